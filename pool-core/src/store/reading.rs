//! The figures of a pool: sums over its shards, under all their locks, so that they are of one
//! moment.

use crate::observe::PoolStats;
use crate::port::DeviceAllocator;
use crate::shard::{State, Sum};
use crate::store::Store;
use crate::sys::LockGuard;

/// Bytes of one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InUse {
    /// Of the blocks that buffers have, and as they were requested.
    pub(crate) allocated: u64,
    pub(crate) requested: u64,
    /// Of free memory.
    pub(crate) cached: u64,
    /// Bytes that the device did not take back.
    pub(crate) lost: u64,
}

impl<A: DeviceAllocator> Store<A> {
    /// Adds up all shards.
    pub(super) fn sum(&self) -> Sum {
        self.sum_of(&self.shards.lock_all())
    }

    /// Adds up all shards if no thread is in any of them. A thread that waited for one with the locks
    /// of others would stop all that need those.
    pub(super) fn try_sum(&self) -> Option<Sum> {
        Some(self.sum_of(&self.shards.try_lock_all()?))
    }

    fn sum_of(&self, all: &[LockGuard<'_, State<A>>]) -> Sum {
        let mut sum = Sum::of_nothing();
        all.iter().enumerate().for_each(|(at, state)| sum.add(state, at == 0));
        if all.len() > 1 {
            self.note_peaks(&mut sum);
        }
        sum
    }

    /// Bytes that buffers and private pools have of ranges, and the most of that at once. Who grows
    /// waits for no other shard: of several it is what each lets the others know.
    pub(super) fn used(&self) -> (u64, u64) {
        let count = self.shards.count();
        if count == 1 {
            let sum = self.sum();
            return (sum.used, sum.used_peak);
        }
        let used = (0..count).map(|at| self.shards.published(at).used()).sum();
        (used, self.note_used(used))
    }

    /// The most bytes that were allocated at once.
    pub(super) fn allocated_peak(&self) -> u64 {
        if self.shards.count() > 1 {
            self.watch_peaks();
            return self.last_allocated_peak();
        }
        let sum = self.sum();
        if self.shape.is_arena() { sum.used_peak } else { sum.allocated_peak }
    }

    /// Bytes in buffers, in caches and lost, at one moment.
    pub(crate) fn in_use(&self) -> InUse {
        let Sum { accounts, counts, kept, deferred, .. } = self.sum();
        InUse {
            allocated: accounts.allocated.now().0,
            requested: accounts.requested.now().0,
            cached: kept + deferred,
            lost: counts.lost_bytes,
        }
    }

    /// Bytes of free memory.
    pub(crate) fn cached_bytes(&self) -> u64 {
        if self.is_unusable() { 0 } else { self.in_use().cached }
    }

    /// Bytes of the blocks that buffers have.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        if self.is_unusable() { 0 } else { self.in_use().allocated }
    }

    /// The figures of this moment.
    pub(crate) fn stats(&self) -> PoolStats {
        if self.is_unusable() {
            return PoolStats::default();
        }
        let survey = self.survey();
        let private_bytes = self.privates.all_idle_bytes();
        let sum = self.sum();
        let (requested_bytes, requested_peak_bytes) = sum.accounts.requested.now();
        let (allocated_bytes, allocated_peak_bytes) = sum.accounts.allocated.now();
        // The device was asked for at least as much as was ever allocated at once.
        let reserved_peak_bytes = self.ledger.peak();
        let allocated_peak_bytes = allocated_peak_bytes.min(reserved_peak_bytes);
        let requested_peak_bytes = requested_peak_bytes.min(allocated_peak_bytes);
        PoolStats {
            keys: survey.free.len() as u64,
            cached_buffers: survey.free.values().map(|count| *count as u64).sum(),
            requested_bytes,
            requested_peak_bytes,
            allocated_bytes,
            allocated_peak_bytes,
            active_bytes: allocated_bytes + survey.pending,
            cached_bytes: sum.kept + sum.deferred,
            deferred_bytes: sum.deferred,
            peak_cached_bytes: sum.cached_peak.min(reserved_peak_bytes),
            reserved_bytes: self.ledger.reserved(),
            reserved_peak_bytes,
            reserved_limit_bytes: limit(self.ledger.limit().min(self.ledger.budget.limit())),
            cached_limit_bytes: limit(self.cached_limit()),
            private_bytes,
            ..self.counted(&sum)
        }
    }

    /// Buffers that were freed in all, also before counts were reset. It takes all locks.
    pub(crate) fn freed_buffers(&self) -> u64 {
        if self.is_unusable() { 0 } else { self.sum().accounts.live.freed() }
    }

    /// The counts, as a pool reports them.
    fn counted(&self, sum: &Sum) -> PoolStats {
        let (live, requested) = (sum.accounts.live.stat(), sum.accounts.requested.stat());
        let PoolStats { misses, bypasses, from_device_bytes, .. } = sum.counts;
        if !self.bounds.statistics {
            return sum.counts;
        }
        let hits = live.allocated.saturating_sub(misses + bypasses);
        PoolStats {
            allocations: hits + misses + bypasses + sum.counts.failures,
            hits,
            reuses: hits.saturating_sub(sum.untouched_hits),
            deallocations: live.freed,
            returns: live.freed.saturating_sub(sum.not_kept),
            from_pool_bytes: requested.allocated.saturating_sub(from_device_bytes),
            ..sum.counts
        }
    }

    /// Sets all counts to 0.
    pub(crate) fn reset_counts(&self) {
        (0..self.shards.count()).for_each(|at| self.shards.lock(at).reset_counts());
        self.calls.lock().reset_accumulated();
    }

    /// Lets the peaks start again from the current figures.
    pub(crate) fn reset_peaks(&self) {
        (0..self.shards.count()).for_each(|at| self.shards.lock(at).reset_peaks());
        self.reset_summed_peaks();
        self.calls.lock().reset_peak();
        self.ledger.reset_peak();
    }
}

/// A limit as it is reported.
fn limit(bytes: u64) -> Option<u64> {
    (bytes != u64::MAX).then_some(bytes)
}
