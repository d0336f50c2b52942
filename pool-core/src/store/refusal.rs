//! The last search before a refusal, and the error with the figures of that moment.

use crate::block::record::Record;
use crate::error::{AllocError, CachedOnStream, Figures, Verdict};
use crate::observe::{EventFields, Tag};
use crate::port::{DeviceAllocator, DeviceError, StreamClock, Why};
use crate::store::Store;
use crate::store::stages::Unserved;

impl<A: DeviceAllocator> Store<A> {
    /// Whether any shard has memory that could serve a request after it went back to the device.
    /// Holds all locks, so that no block can move from a shard that was looked at to one that was
    /// not.
    pub(super) fn has_free(&self) -> bool {
        let clock = self.allocator.clock();
        let goes =
            |record: &Record<A>| record.marks.lock().all_are(|mark| clock.is_submitted(mark));
        self.shards.lock_all().iter().any(|state| {
            state.blocks.iter().any(goes)
                || !state.deferred.is_empty() && state.deferred.iter().any(|record| goes(record))
                || state.ranges.has_returnable(clock)
        })
    }

    /// An error with the figures of this moment, for a call that is no search for memory.
    #[cold]
    pub(crate) fn error(
        &self,
        cause: DeviceError,
        requested_bytes: u64,
        rounded_bytes: u64,
        given_back_bytes: u64,
    ) -> AllocError {
        let figures = self.figures(cause, None);
        AllocError::new(Figures { requested_bytes, rounded_bytes, given_back_bytes, ..figures })
    }

    /// The figures of this moment, without those of a request. `stream`: the number of the stream
    /// that requests memory. Cost: linear in the number of ranges; a call of the device where its
    /// memory was short.
    #[cold]
    pub(crate) fn figures(&self, cause: DeviceError, stream: Option<u64>) -> Figures {
        if self.is_unusable() {
            return Figures::unknown(cause);
        }
        let (survey, in_use) = (self.survey(), self.in_use());
        let stranded_bytes = stream.map_or(0, |id| self.stranded(id, self.bounds.steal));
        let by_stream = survey.by_stream.into_iter();
        let mut cached_by_stream: Vec<_> =
            by_stream.map(|(stream_id, bytes)| CachedOnStream { stream_id, bytes }).collect();
        cached_by_stream.sort_by_key(|cached| std::cmp::Reverse(cached.bytes));
        Figures {
            cause,
            wrong_argument: None,
            requested_bytes: 0,
            rounded_bytes: 0,
            reserved_bytes: self.ledger.reserved(),
            reserved_limit_bytes: self.ledger.limit(),
            budget_reserved_bytes: self.ledger.budget.reserved_bytes(),
            budget_limit_bytes: self.ledger.budget.limit(),
            allocated_bytes: in_use.allocated,
            live_requested_bytes: in_use.requested,
            private_bytes: self.privates.all_idle_bytes(),
            lost_bytes: in_use.lost,
            device_free_bytes: match cause.why {
                Why::OutOfMemory => self.allocator.free_bytes(),
                _ => None,
            },
            cached_bytes: in_use.cached,
            pending_bytes: survey.pending,
            unsubmitted_bytes: survey.unsubmitted,
            stranded_bytes,
            largest_free_bytes: survey.largest_free,
            given_back_bytes: 0,
            cached_by_stream,
            freed_while_waiting: None,
            in_pages: self.shape.has_pages(),
            verdict: Verdict::of_cause(cause),
        }
    }

    /// The error of a request that is refused, counted.
    #[cold]
    pub(crate) fn refuse(&self, unserved: Unserved, requested: u64, tag: Tag) -> AllocError {
        let Unserved { cause, given_back, rounded, stream, figures, freed_meanwhile, .. } =
            unserved;
        self.count_refusal(cause);
        let fields =
            EventFields { stream: stream.unwrap_or(0), requested, tag, ..EventFields::default() };
        let fields = EventFields { bytes: rounded, ..fields };
        let mut figures = *figures.unwrap_or_else(|| Box::new(self.figures(cause, stream)));
        (figures.requested_bytes, figures.rounded_bytes) = (requested, rounded);
        (figures.given_back_bytes, figures.freed_while_waiting) = (given_back, freed_meanwhile);
        let error = match stream {
            Some(_) => AllocError::judged(figures, cause, A::MEMORY.cpu_touches),
            None => AllocError::new(Figures { cause, ..figures }),
        };
        self.notify_refusal(fields, error.figures());
        error
    }

    fn count_refusal(&self, cause: DeviceError) {
        if self.bounds.statistics && !self.is_unusable() {
            let counts = &mut self.shards.lock(0).counts;
            counts.failures += 1;
            counts.timeouts += u64::from(cause.why == Why::TimedOut);
        }
    }

    /// Counts a request that begins to wait.
    pub(crate) fn count_wait(&self) {
        if self.bounds.statistics && !self.is_unusable() {
            self.shards.lock(0).counts.waits += 1;
        }
    }
}
