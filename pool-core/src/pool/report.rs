//! The figures of a pool around a refusal, and the verdict: which of the ways to run out of memory
//! it was, and what to do about it.

use crate::device::DeviceAllocator;
use crate::error::{AllocError, DeviceError, Figures, Verdict};
use crate::pool::store::Store;
use crate::stream::clock::StreamClock;
use std::collections::BTreeMap;

impl<A: DeviceAllocator> Store<A> {
    /// The figures of this moment around a refusal.
    #[cold]
    pub(crate) fn error(
        &self,
        cause: DeviceError,
        requested_bytes: u64,
        rounded_bytes: u64,
        given_back_bytes: u64,
    ) -> AllocError {
        let clock = self.allocator.clock();
        if self.is_forked() {
            return AllocError::new(Figures::unknown(cause, requested_bytes, rounded_bytes));
        }
        let survey = self.book.as_ref().map(|book| self.survey(book)).unwrap_or_default();
        let largest = self.shards.iter().map(|shard| shard.idle.largest_bytes()).max();
        let cached_bytes = self.cached_bytes();
        AllocError::new(Figures {
            cause,
            requested_bytes,
            rounded_bytes,
            reserved_bytes: self.ledger.reserved(),
            reserved_limit_bytes: self.ledger.limit(),
            cached_bytes,
            pending_bytes: self.cached_bytes_not(|mark| clock.is_seen_done(mark)) + survey.pending,
            unsubmitted_bytes: self.cached_bytes_not(|mark| clock.is_submitted(mark))
                + survey.unsubmitted,
            stranded_bytes: 0,
            largest_free_bytes: largest.unwrap_or(0).max(survey.largest_free),
            given_back_bytes,
            cached_by_stream: self.cached_by_stream(survey.by_stream),
            verdict: Verdict::of_cause(cause),
        })
    }

    /// Idle bytes by the lane of the stream that used them last, the most first.
    fn cached_by_stream(&self, book: BTreeMap<Option<u64>, u64>) -> Vec<(Option<u64>, u64)> {
        let mut lanes = book;
        for shard in self.shards.iter() {
            for (bytes, record) in shard.idle.items() {
                let lane = self.allocator.clock().lane(record.marks.lock().home());
                *lanes.entry(Some(lane)).or_default() += bytes;
            }
        }
        let mut lanes: Vec<_> = lanes.into_iter().collect();
        lanes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        lanes
    }
}
