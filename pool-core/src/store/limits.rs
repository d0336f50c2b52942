//! Bounds of the cache that change in a running pool. A change happens under all locks, and begins an epoch:
//! a thread that had looked at a limit, or had a lease in hand, sees under the lock of its shard that the
//! epoch is another one, and that what it knew holds no more.

use crate::block::request::Key;
use crate::limits::{CachedLimit, GivenBack};
use crate::port::DeviceAllocator;
use crate::shard::State;
use crate::store::Store;
use crate::sys::LockGuard;
use crate::sys::atomic::Ordering::SeqCst;
use std::collections::HashMap;

/// The cached limit, as it was read in an epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitRead {
    pub(super) bytes: u64,
    pub(super) epoch: u32,
}

impl<A: DeviceAllocator> Store<A> {
    /// The cached limit and the epoch, which was read first: if it holds, so does the limit.
    pub(super) fn read_limit(&self) -> LimitRead {
        let epoch = self.epoch.load(SeqCst);
        LimitRead { bytes: self.cached_limit(), epoch }
    }

    /// Sets the cached limit, and gives back what is above it.
    pub(crate) fn set_cached_limit(&self, limit: CachedLimit) -> GivenBack {
        self.bounds.cached.set(limit);
        self.begin_epoch();
        match self.shape.is_arena() {
            true => self.give_back_to_limit(None),
            false => self.free_deferred(),
        }
    }

    /// Sets the limit on blocks of a size, for sizes below that of large ones or for those, and gives back
    /// what is above it.
    pub(crate) fn set_bucket_limit(&self, blocks: usize, large: bool) -> GivenBack {
        self.bounds.keeping.bucket.set(blocks, large);
        self.begin_epoch();
        self.free_deferred()
    }

    /// Evicts what is above the limits as they are now, and lets shards lease anew: what threads have in
    /// hand of the leases before is theirs no more.
    fn begin_epoch(&self) {
        let peak = self.allocated_peak(); // takes locks
        let mut all = self.shards.lock_all();
        let epoch = self.epoch.fetch_add(1, SeqCst).wrapping_add(1);
        for state in &mut all {
            state.epoch = epoch;
        }
        let limit = self.bounds.cached.get().bytes(peak);
        self.evict_above_buckets(&mut all);
        self.evict_above(&mut all, limit);
        self.lease_what_is_kept(&mut all, limit);
        self.places.end_all();
        for state in all.iter_mut().filter(|state| state.leases_places) {
            self.lease_what_buckets_have(state);
        }
    }

    /// Evicts the oldest blocks of each bucket that has more than its limit.
    fn evict_above_buckets(&self, all: &mut [LockGuard<'_, State<A>>]) {
        if !self.bounds.keeping.limits_buckets {
            return;
        }
        let mut buckets = HashMap::new();
        for (key, bytes, count) in all.iter().flat_map(|state| state.blocks.counts()) {
            *buckets.entry((key, bytes)).or_insert(0) += count;
        }
        for ((key, bytes), count) in buckets {
            let most = self.bounds.keeping.bucket.of(bytes);
            (most..count).for_each(|_| self.evict_oldest_of_all(all, key, bytes));
        }
    }

    /// Evicts old blocks, those of the shard with the oldest of all first, until free blocks are within
    /// the limit.
    fn evict_above(&self, all: &mut [LockGuard<'_, State<A>>], limit: u64) {
        let mut above =
            all.iter().map(|state| state.blocks.bytes).sum::<u64>().saturating_sub(limit);
        while above > 0 {
            let age = |state: &mut LockGuard<'_, State<A>>| {
                state.blocks.oldest().map_or(u64::MAX, |record| record.freed_at)
            };
            let ages = all.iter_mut().map(age).enumerate();
            let Some((oldest, _)) = ages.min_by_key(|(_, age)| *age) else { return };
            let state = &mut all[oldest];
            let Some(record) = state.blocks.take_to_evict() else { return };
            above = above.saturating_sub(record.bytes);
            state.evict(record, &self.bounds.keeping);
        }
    }

    /// Lets each of several shards lease what it keeps, as far as the limit goes, and one shard the whole
    /// limit: frees lease more.
    fn lease_what_is_kept(&self, all: &mut [LockGuard<'_, State<A>>], limit: u64) {
        let (one, unlimited) = (all.len() == 1, limit == u64::MAX);
        let (mut left, largest) = (limit, self.bounds.keeping.full_pool.largest(limit));
        for state in all.iter_mut() {
            state.largest = largest;
            state.lease = if one || unlimited { limit } else { state.kept().min(left) };
            left -= if unlimited { 0 } else { state.lease };
        }
        self.leased.store(if unlimited || one { 0 } else { limit - left }, SeqCst);
    }

    /// Evicts the block of a bucket that was freed first.
    fn evict_oldest_of_all(
        &self,
        all: &mut [LockGuard<'_, State<A>>],
        key: Key<A::Kind>,
        bytes: u64,
    ) {
        let age = |state: &&mut LockGuard<'_, State<A>>| {
            state.blocks.age_of_oldest(key, bytes).unwrap_or(u64::MAX)
        };
        let Some(state) = all.iter_mut().min_by_key(age) else { return };
        if let Some(record) = state.blocks.take_oldest_of(key, bytes) {
            state.evict(record, &self.bounds.keeping);
        }
    }
}
