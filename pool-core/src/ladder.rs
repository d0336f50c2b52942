//! Out of memory is a ladder: each rung frees or finds something, and then searches again.
//!
//! 1. the request's own bucket;
//! 2. blocks of other shards and streams that are ready;
//! 3. a block behind an event, by one wait on the device;
//! 4. the device, after what is owed to it was given back;
//! 5. idle blocks given back, oldest first, as many bytes as are missing; the device once more;
//! 6. everything idle given back, the device for the last time (and again while another thread
//!    holds blocks between a shard and the device), and then an error with figures.

use crate::clock::StreamClock;
use crate::device::DeviceAllocator;
use crate::error::{AllocError, DeviceError, Figures};
use crate::shard::Want;
use crate::store::{Grant, Store};
use std::thread;

/// How often a request that is about to be refused waits for blocks in other threads' hands.
const PATIENCE: u32 = 1000;

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
        let (mut given_back, mut patience) = (0, PATIENCE);
        let mut short = match self.search_then_device(want, &mut given_back) {
            Ok(grant) => return Ok(grant),
            Err(error) => error,
        };
        let mut rungs = [self.missing(want), u64::MAX].into_iter();
        while short.is_want_of_memory() {
            let Some(bytes) = rungs.next().or_else(|| self.wait_for_others(&mut patience)) else {
                break;
            };
            given_back += self.trim(bytes).0;
            short = match self.search_then_device(want, &mut given_back) {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
        }
        Err(self.refuse(short, want.requested, want.class.bytes, given_back))
    }

    /// The rungs from 2 to 4. What an event refuses is told only if the device refuses too.
    fn search_then_device(
        &self,
        want: &Want<'_, A>,
        given_back: &mut u64,
    ) -> Result<Grant<A>, DeviceError> {
        let mut refused = None;
        if want.class.pooled {
            if let Some(grant) = self.take_elsewhere(want) {
                return Ok(grant);
            }
            match self.take_behind_event(want) {
                Ok(Some(grant)) => return Ok(grant),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        *given_back += self.settle().0;
        self.fresh(want).map_err(|error| refused.unwrap_or(error))
    }

    /// Another thread holds blocks that come back, to a shard or to the device, in a moment: lets
    /// it, and then everything idle is worth giving back once more.
    fn wait_for_others(&self, patience: &mut u32) -> Option<u64> {
        *patience = patience.checked_sub(1)?;
        self.is_in_transit().then(|| {
            thread::yield_now();
            u64::MAX
        })
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
