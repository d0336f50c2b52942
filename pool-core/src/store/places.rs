//! The limit on the blocks of a bucket over several shards: each leases places of it, and the leases of
//! all are never more than the limit. A free whose shard has no place left leases more, then takes places
//! that others leased and do not use; if none has any, the bucket is full.

use crate::block::Key;
use crate::block::record::RecordOwner;
use crate::limits::FullBucket;
use crate::port::DeviceAllocator;
use crate::shard::Heap;
use crate::store::Store;
use crate::store::sums::LimitRead;
use crate::sys::Mutex;
use std::collections::HashMap;
use std::ops::ControlFlow::{Break, Continue};

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

/// Finds a place for a block in the bucket of its shard, where shards lease places and this one has none
/// left. Returns whether a block of any shard was evicted for it: that is a deferred free.
pub(super) fn make_place<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    record: &mut RecordOwner<A>,
    limit: LimitRead,
) -> bool {
    let (bytes, kind, shards) = (record.bytes, record.kind, store.shards.count());
    if !store.settings.rules.limits_buckets || shards == 1 {
        return false;
    }
    let key = Heap::key_of(store.allocator.clock(), record);
    {
        let heap = &mut *store.shards.lock(at);
        let most = store.settings.rules.bucket.of(bytes);
        let largest = store.settings.rules.full_pool.largest(limit.bytes);
        let stays = record.is_pooled() && !heap.closed && bytes <= largest;
        let is_full = heap.is_bucket_full(key, bytes, &store.settings.rules);
        if heap.epoch != limit.epoch || !stays || !is_full {
            return false;
        }
        end_idle_leases(store, heap, key, bytes);
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let step = number((most / (2 * shards)).max(1));
        let got = store.places.lease((kind, bytes), step, number(most));
        heap.blocks.add_places(key, bytes, got);
        if got > 0 {
            return false;
        }
    }
    let (mut got, mut evicted) = (spare_places(store, at, key, bytes, limit.epoch), false);
    if got == 0 && store.settings.rules.full_bucket == FullBucket::EvictOldest {
        (evicted, got) = evict_oldest_of(store, key, bytes, limit.epoch);
    }
    let heap = &mut *store.shards.lock(at);
    if heap.epoch == limit.epoch {
        heap.blocks.add_places(key, bytes, got);
    }
    evicted
}

/// Before the table of a shard grows for a class: those without blocks need no places.
pub(super) fn end_idle_leases<A: DeviceAllocator>(
    store: &Store<A>,
    heap: &mut Heap<A>,
    key: Key<A::Kind>,
    bytes: u64,
) {
    if heap.blocks.table.is_full_for(key, bytes) {
        heap.blocks.table.take_idle_places(|class, places| store.places.end_lease(class, places));
    }
}

/// Takes half of the places that another shard leased and does not use, first of those in which no
/// thread is.
fn spare_places<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    key: Key<A::Kind>,
    bytes: u64,
    epoch: u32,
) -> u32 {
    let mut got = 0;
    store.shards.each_other(at, |heap| {
        if heap.epoch == epoch {
            got = heap.blocks.table.take_places(key, bytes, |spare| spare.div_ceil(2));
        }
        if heap.epoch != epoch || got > 0 { Break(()) } else { Continue(()) }
    });
    got
}

/// Evicts the block of a bucket that was freed first, of all shards. Returns whether there was one, and
/// its place, which is the caller's then.
fn evict_oldest_of<A: DeviceAllocator>(
    store: &Store<A>,
    key: Key<A::Kind>,
    bytes: u64,
    epoch: u32,
) -> (bool, u32) {
    let age = |at| Some((store.shards.lock(at).blocks.age_of_oldest(key, bytes)?, at));
    let oldest = (0..store.shards.count()).filter_map(age).min();
    let Some((_, at)) = oldest else { return (false, 0) };
    let heap = &mut *store.shards.lock(at);
    let found = if heap.epoch == epoch { heap.blocks.pop_oldest_of(key, bytes) } else { None };
    let Some(record) = found else { return (false, 0) };
    heap.evict(record, &store.settings.rules);
    (true, heap.blocks.table.take_places(key, bytes, |spare| spare.min(1)))
}

/// How many blocks of a size all shards have in their buckets.
pub(super) fn count_in_buckets<A: DeviceAllocator>(
    store: &Store<A>,
    key: Key<A::Kind>,
    bytes: u64,
) -> usize {
    (0..store.shards.count()).map(|at| store.shards.lock(at).blocks.count_of(key, bytes)).sum()
}

/// Where a pool that limits buckets takes its second shard: the first one has leased a place for each of
/// its blocks.
pub(super) fn begin_leases<A: DeviceAllocator>(store: &Store<A>, first: &mut Heap<A>) {
    if store.settings.rules.limits_buckets {
        first.leases_places = true;
        lease_what_buckets_have(store, first);
    }
}

/// Lets a shard, of which nothing is leased in the sum, lease a place for each of its blocks.
pub(super) fn lease_what_buckets_have<A: DeviceAllocator>(store: &Store<A>, heap: &mut Heap<A>) {
    let limited = |bytes| store.settings.rules.bucket.of(bytes) != usize::MAX;
    heap.blocks.table.lease_places_of_all(limited, |class, places| {
        store.places.lease(class, places, u32::MAX);
    });
}
