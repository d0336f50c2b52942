//! The limit on the blocks of a bucket over several shards: each leases places of it, and the leases of
//! all are never more than the limit. A free whose shard has no place left leases more, then takes places
//! that others leased and do not use; if none has any, the bucket is full.

use crate::block::record::RecordOwner;
use crate::block::request::Key;
use crate::limits::FullBucket;
use crate::port::DeviceAllocator;
use crate::shard::State;
use crate::store::Store;
use crate::store::limits::LimitRead;
use crate::sys::Mutex;
use std::collections::HashMap;

/// Places that shards have leased, of each kind and size. The lock of a shard may be held where this one is
/// taken, not the other way.
#[derive(Debug)]
pub(crate) struct Places<K>(Mutex<HashMap<(K, u64), u32>>);

impl<K: Copy + Eq + std::hash::Hash> Places<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    /// Leases `step` places more, or as many as are left.
    fn lease(&self, (kind, bytes): (K, u64), step: u32, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let leased = &mut *self.0.lock();
        let of_class = leased.entry((kind, bytes)).or_default();
        let got = step.min(most.saturating_sub(*of_class));
        *of_class += got;
        got
    }

    /// Takes places back that a shard had leased.
    fn end_lease(&self, (kind, bytes): (K, u64), places: u32) {
        let leased = &mut *self.0.lock();
        if let Some(of_class) = leased.get_mut(&(kind, bytes)) {
            *of_class = of_class.saturating_sub(places);
            if *of_class == 0 {
                leased.remove(&(kind, bytes));
            }
        }
    }

    /// Takes all places back, where the caller lets shards lease anew.
    pub(super) fn end_all(&self) {
        self.0.lock().clear();
    }

    /// All that are leased.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn leased(&self) -> HashMap<(K, u64), u32> {
        self.0.lock().clone()
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// Finds a place for a block in the bucket of its shard, where shards lease places and this one has none
    /// left. Returns whether a block of any shard was evicted for it: that is a deferred free.
    pub(super) fn make_place(
        &self,
        at: usize,
        record: &mut RecordOwner<A>,
        limit: LimitRead,
    ) -> bool {
        let (bytes, kind, shards) = (record.bytes, record.kind, self.shards.count());
        if !self.bounds.keeping.limits_buckets || shards == 1 {
            return false;
        }
        let key = State::key_of(self.allocator.clock(), record);
        {
            let state = &mut *self.shards.lock(at);
            let most = self.bounds.keeping.bucket.of(bytes);
            let largest = self.bounds.keeping.full_pool.largest(limit.bytes);
            let stays = record.is_pooled() && !state.closed && bytes <= largest;
            let is_full = state.is_bucket_full(key, bytes, &self.bounds.keeping);
            if state.epoch != limit.epoch || !stays || !is_full {
                return false;
            }
            self.end_idle_leases(state, key, bytes);
            let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            let step = number((most / (2 * shards)).max(1));
            let got = self.places.lease((kind, bytes), step, number(most));
            state.blocks.add_places(key, bytes, got);
            if got > 0 {
                return false;
            }
        }
        let (mut got, mut evicted) = (self.spare_places(at, key, bytes, limit.epoch), false);
        if got == 0 && self.bounds.keeping.full_bucket == FullBucket::EvictOldest {
            (evicted, got) = self.evict_oldest_of(key, bytes, limit.epoch);
        }
        let state = &mut *self.shards.lock(at);
        if state.epoch == limit.epoch {
            state.blocks.add_places(key, bytes, got);
        }
        evicted
    }

    /// Before the table of a shard grows for a class: those without blocks need no places.
    pub(super) fn end_idle_leases(&self, state: &mut State<A>, key: Key<A::Kind>, bytes: u64) {
        if state.blocks.is_full_for(key, bytes) {
            state.blocks.take_idle_places(|class, places| self.places.end_lease(class, places));
        }
    }

    /// Takes half of the places that another shard leased and does not use, first of those in which no
    /// thread is.
    fn spare_places(&self, at: usize, key: Key<A::Kind>, bytes: u64, epoch: u32) -> u32 {
        let mut seen = 1_u64 << at;
        for of in [Some(at), None] {
            for other in 0..self.shards.count() {
                if seen & 1 << other != 0 {
                    continue;
                }
                let Some(mut state) = self.shards.lock_for(other, of) else { continue };
                seen |= 1 << other;
                if state.epoch != epoch {
                    return 0;
                }
                let got = state.blocks.take_places(key, bytes, |spare| spare.div_ceil(2));
                if got > 0 {
                    return got;
                }
            }
        }
        0
    }

    /// Evicts the block of a bucket that was freed first, of all shards. Returns whether there was one, and
    /// its place, which is the caller's then.
    fn evict_oldest_of(&self, key: Key<A::Kind>, bytes: u64, epoch: u32) -> (bool, u32) {
        let age = |at| Some((self.shards.lock(at).blocks.age_of_oldest(key, bytes)?, at));
        let oldest = (0..self.shards.count()).filter_map(age).min();
        let Some((_, at)) = oldest else { return (false, 0) };
        let state = &mut *self.shards.lock(at);
        let found =
            if state.epoch == epoch { state.blocks.take_oldest_of(key, bytes) } else { None };
        let Some(record) = found else { return (false, 0) };
        state.evict(record, &self.bounds.keeping);
        (true, state.blocks.take_places(key, bytes, |spare| spare.min(1)))
    }

    /// How many blocks of a size all shards have in their buckets.
    pub(super) fn count_in_buckets(&self, key: Key<A::Kind>, bytes: u64) -> usize {
        (0..self.shards.count()).map(|at| self.shards.lock(at).blocks.count_of(key, bytes)).sum()
    }

    /// Where a pool that limits buckets takes its second shard: the first one has leased a place for each of
    /// its blocks.
    pub(super) fn begin_leases(&self, first: &mut State<A>) {
        if self.bounds.keeping.limits_buckets {
            first.leases_places = true;
            self.lease_what_buckets_have(first);
        }
    }

    /// Lets a shard, of which nothing is leased in the sum, lease a place for each of its blocks.
    pub(super) fn lease_what_buckets_have(&self, state: &mut State<A>) {
        let limited = |bytes| self.bounds.keeping.bucket.of(bytes) != usize::MAX;
        state.blocks.lease_places_of_all(limited, |class, places| {
            self.places.lease(class, places, u32::MAX);
        });
    }
}
