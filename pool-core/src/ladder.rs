//! Out of memory is a ladder: each rung frees or finds something, and then searches again.
//!
//! 1. the request's own bucket;
//! 2. blocks of other shards and streams that are ready;
//! 3. a block behind an event, by one wait on the device;
//! 4. the device, after what is owed to it was given back;
//! 5. idle blocks given back, oldest first, as many bytes as are missing; the device once more;
//! 6. everything idle given back, the device for the last time, and then an error with figures.

use crate::clock::StreamClock;
use crate::device::DeviceAllocator;
use crate::error::{AllocError, DeviceError, Figures};
use crate::shard::Want;
use crate::store::{Grant, Store};

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request.
    #[inline]
    pub(crate) fn allocate(&self, want: &Want<'_, A>) -> Result<Grant<A>, AllocError> {
        if want.class.pooled
            && let Some(grant) = self.take(want)
        {
            return Ok(grant);
        }
        self.climb(want)
    }

    #[cold]
    fn climb(&self, want: &Want<'_, A>) -> Result<Grant<A>, AllocError> {
        let mut given_back = 0;
        let mut short = match self.search_then_device(want) {
            Ok(grant) => return Ok(grant),
            Err(error) => error,
        };
        for all in [false, true] {
            if !short.is_want_of_memory() {
                break;
            }
            given_back += self.trim(if all { u64::MAX } else { self.missing(want) }).0;
            short = match self.search_then_device(want) {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
        }
        Err(self.refuse(short, want.requested, want.class.bytes, given_back))
    }

    fn search_then_device(&self, want: &Want<'_, A>) -> Result<Grant<A>, DeviceError> {
        if want.class.pooled {
            if let Some(grant) = self.take_elsewhere(want) {
                return Ok(grant);
            }
            if let Some(grant) = self.take_behind_event(want)? {
                return Ok(grant);
            }
        }
        self.settle();
        self.fresh(want)
    }

    /// What must go back before the request fits under the limit; all of it if the device, not
    /// the limit, is short.
    fn missing(&self, want: &Want<'_, A>) -> u64 {
        let needed = self.ledger.reserved().saturating_add(want.class.bytes);
        match needed.saturating_sub(self.ledger.limit()) {
            0 => want.class.bytes,
            over => over,
        }
    }

    /// The error of a request, counted.
    #[cold]
    pub(crate) fn refuse(
        &self,
        cause: DeviceError,
        requested: u64,
        rounded: u64,
        given_back: u64,
    ) -> AllocError {
        self.shards.own().counts.failures += u64::from(self.bounds.statistics);
        self.error(cause, requested, rounded, given_back)
    }

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
        let largest = self.shards.iter().map(|shard| shard.idle.largest_bytes()).max();
        AllocError::new(Figures {
            cause,
            requested_bytes,
            rounded_bytes,
            reserved_bytes: self.ledger.reserved(),
            reserved_limit_bytes: self.ledger.limit(),
            cached_bytes: self.cached_bytes(),
            pending_bytes: self.cached_bytes_not(|mark| clock.is_seen_done(mark)),
            unsubmitted_bytes: self.cached_bytes_not(|mark| clock.is_submitted(mark)),
            largest_free_bytes: largest.unwrap_or(0),
            given_back_bytes,
        })
    }
}
