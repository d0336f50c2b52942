//! The figures of a pool around a refusal.

use crate::error::{AllocError, CachedOnStream, Figures, Verdict};
use crate::heap::store::Store;
use crate::port::{DeviceAllocator, DeviceError, Why};

impl<A: DeviceAllocator> Store<A> {
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
            in_pages: self.book.has_pages(),
            verdict: Verdict::of_cause(cause),
        }
    }
}
