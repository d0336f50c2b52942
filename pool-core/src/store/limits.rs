//! Bounds of the cache that change in a running pool.

use crate::limits::{CachedLimit, GivenBack};
use crate::port::DeviceAllocator;
use crate::shard::State;
use crate::store::Store;
use crate::sys::atomic::Ordering::SeqCst;
use std::collections::HashMap;

impl<A: DeviceAllocator> Store<A> {
    /// Sets the cached limit, and gives back what is above it.
    pub(crate) fn set_cached_limit(&self, limit: CachedLimit) -> GivenBack {
        self.bounds.cached.set(limit);
        self.lease_what_is_kept();
        if self.shape.is_arena() {
            return self.give_back_to_limit(None);
        }
        let limit = self.cached_limit();
        while self.sum().kept > limit && self.evict_oldest(0).is_some() {}
        self.lease_what_is_kept(); // less than before
        self.free_deferred()
    }

    /// Lets each of several shards lease what it keeps, and one shard the whole limit: frees lease more.
    fn lease_what_is_kept(&self) {
        let limit = self.cached_limit();
        let (is_limited, largest) =
            (limit < u64::MAX, self.bounds.keeping.full_pool.largest(limit));
        let (mut all, mut leased) = (self.shards.lock_all(), 0);
        let one = all.len() == 1;
        for state in &mut all {
            let state: &mut State<A> = state;
            state.largest = largest;
            state.lease = if one || !is_limited { limit } else { state.kept() };
            leased += if is_limited && !one { state.lease } else { 0 };
        }
        self.leased.store(leased, SeqCst);
    }

    /// Sets the limit on blocks of a size, for sizes below that of large ones or for those, and gives back
    /// what is above it.
    pub(crate) fn set_bucket_limit(&self, blocks: usize, large: bool) -> GivenBack {
        self.bounds.keeping.bucket.set(blocks, large);
        let mut buckets = HashMap::new();
        {
            let mut all = self.shards.lock_all();
            self.places.end_all();
            for state in &mut all {
                let state: &mut State<A> = state;
                if state.leases_places {
                    self.lease_what_buckets_have(state);
                }
                for (key, bytes, count) in state.blocks.counts() {
                    *buckets.entry((key, bytes)).or_insert(0) += count;
                }
            }
        }
        for ((key, bytes), count) in buckets {
            for _ in self.bounds.keeping.bucket.of(bytes)..count {
                if self.evict_oldest_of(key, bytes) {
                    self.places.end_lease((key.kind, bytes), 1);
                }
            }
        }
        self.free_deferred()
    }
}
