//! The figures of a pool around a refusal, and the verdict: which of the ways to run out of memory
//! it was, and what to do about it.

use crate::device::DeviceAllocator;
use crate::error::{AllocError, DeviceError, Figures, Verdict, Why};
use crate::pool::store::Store;

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
        if self.is_forked() {
            return AllocError::new(Figures::unknown(cause, requested_bytes, rounded_bytes));
        }
        let (survey, cached_bytes) = (self.survey(), self.cached_bytes());
        let mut cached_by_stream: Vec<_> = survey.by_stream.into_iter().collect();
        cached_by_stream.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        AllocError::new(Figures {
            cause,
            requested_bytes,
            rounded_bytes,
            reserved_bytes: self.ledger.reserved(),
            reserved_limit_bytes: self.ledger.limit(),
            budget_reserved_bytes: self.ledger.budget.reserved_bytes(),
            budget_limit_bytes: self.ledger.budget.limit(),
            device_free_bytes: match cause.why {
                Why::OutOfMemory => self.allocator.free_bytes(),
                _ => None,
            },
            cached_bytes,
            pending_bytes: survey.pending,
            unsubmitted_bytes: survey.unsubmitted,
            stranded_bytes: 0,
            largest_free_bytes: survey.largest_free,
            given_back_bytes,
            cached_by_stream,
            verdict: Verdict::of_cause(cause),
        })
    }
}
