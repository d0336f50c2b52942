//! The limit on cached bytes over several shards: each leases a part of it, and the parts are never
//! more than the limit. A free that has no room in the lease of its shard takes more of the limit,
//! then what others leased and do not use, then what the oldest blocks of all fill. What an arena has
//! above its leases goes back.
//!
//! A limit that changes in a running pool changes under all locks, and begins an epoch:
//! a thread that had looked at a limit, or had a lease in hand, sees under the lock of its shard that the
//! epoch is another one, and that what it knew holds no more.

use crate::block::Key;
use crate::block::record::RecordOwner;
use crate::limits::FullPool;
use crate::port::DeviceAllocator;
use crate::shard::{Heap, MAX_EVICTIONS};
use crate::store::sums::LimitRead;
use crate::store::{Store, places, sums};
use crate::sys::LockGuard;
use crate::sys::atomic::Ordering::SeqCst;
use std::collections::HashMap;
use std::ops::ControlFlow::{Break, Continue};

/// A lease grows by one part of the limit in this many, or by a block.
const PARTS: u64 = 160;

/// Finds room for `bytes` bytes more under the cached limit, as far as there is any, and adds it to the
/// lease of a shard, unless limits have changed since this one was read. Returns whether blocks were
/// evicted for it.
pub(super) fn lease<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    bytes: u64,
    limit: LimitRead,
) -> bool {
    let step = bytes.max(limit.bytes / PARTS);
    let missing = {
        let heap = &mut *store.shards.lock(at);
        if heap.epoch != limit.epoch {
            return false;
        }
        let leased = lease_more(store, bytes, step, limit.bytes);
        heap.lease += leased;
        bytes.saturating_sub(leased)
    };
    if missing == 0 {
        return false;
    }
    let (mut got, mut evicted) = (spare_leases(store, at, missing, step, limit.epoch), false);
    let refuses = store.settings.rules.full_pool == FullPool::RefuseNewest;
    let evictions = if store.layout.is_arena() || refuses { 0 } else { MAX_EVICTIONS };
    for _ in 0..evictions {
        if got >= missing {
            break;
        }
        let Some(room) = evict_oldest(store, at, limit.epoch) else { break };
        got += room;
        evicted = true;
    }
    let heap = &mut *store.shards.lock(at);
    if heap.epoch == limit.epoch {
        heap.lease += got;
    }
    evicted
}

/// Takes what other shards leased and do not use until it is `bytes` bytes, at most `step` of each,
/// first of those in which no thread is.
fn spare_leases<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    bytes: u64,
    step: u64,
    epoch: u32,
) -> u64 {
    let mut got = 0;
    store.shards.each_other(at, |heap| {
        if heap.epoch != epoch {
            got = 0;
            return Break(());
        }
        let spare = (heap.lease - heap.kept().min(heap.lease)).min(step);
        heap.lease -= spare;
        got += spare;
        if got >= bytes { Break(()) } else { Continue(()) }
    });
    got
}

/// Takes a part of the limit that no shard has leased: `step` bytes if there are as many, else
/// `bytes`, else all that are left.
fn lease_more<A: DeviceAllocator>(store: &Store<A>, bytes: u64, step: u64, limit: u64) -> u64 {
    let part = |leased: u64| match limit.saturating_sub(leased) {
        room if room >= step => step,
        room => room.min(bytes),
    };
    part(store.leased.update(SeqCst, SeqCst, |leased| leased + part(leased)))
}

/// Gives a shard room for a block under the cached limit, if it can and the block may stay. Returns
/// whether blocks of any shard were evicted for it: they are deferred frees.
pub(super) fn make_lease<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    record: &mut RecordOwner<A>,
    limit: LimitRead,
) -> bool {
    let bytes = record.bytes;
    let missing = {
        let heap = &mut *store.shards.lock(at);
        if heap.epoch != limit.epoch {
            return false;
        }
        let limit = limit.bytes;
        heap.largest = store.settings.rules.full_pool.largest(limit);
        if store.shards.count() == 1 || store.is_unlimited() {
            heap.lease = limit;
            return false;
        }
        if record.part().is_none()
            && !heap.may_stay(store.allocator.clock(), record, limit, &store.settings.rules)
        {
            return false;
        }
        (heap.kept() + bytes).saturating_sub(heap.lease)
    };
    if missing == 0 {
        return false;
    }
    lease(store, at, missing, limit)
}

/// Evicts a block of the shard that has the oldest of all, of equally old ones one that is not in the
/// shard `of`: the largest of its oldest few. Returns the room that its shard does not lease any more.
fn evict_oldest<A: DeviceAllocator>(store: &Store<A>, of: usize, epoch: u32) -> Option<u64> {
    let age = |at: &usize| {
        let heap = &mut *store.shards.lock(*at);
        store.keep_time(heap); // what is freed next is younger than all that is compared
        (heap.blocks.oldest().map_or(u64::MAX, |record| record.freed_at), *at == of)
    };
    let oldest = (0..store.shards.count()).min_by_key(age)?;
    let heap: &mut Heap<A> = &mut store.shards.lock(oldest);
    if heap.epoch != epoch {
        return None;
    }
    let record = heap.blocks.pop_to_evict()?;
    let room = record.bytes.min(heap.lease);
    heap.evict(record, &store.settings.rules);
    heap.lease -= room;
    Some(room)
}

/// Evicts what is above the limits as they are now, and lets shards lease anew: what threads have in
/// hand of the leases before is theirs no more.
pub(super) fn begin_epoch<A: DeviceAllocator>(store: &Store<A>) {
    let peak = sums::allocated_peak(store); // takes locks
    let mut all = store.shards.lock_all();
    let epoch = store.epoch.fetch_add(1, SeqCst).wrapping_add(1);
    for heap in &mut all {
        heap.epoch = epoch;
    }
    let limit = store.settings.cached.get().bytes(peak);
    evict_above_buckets(store, &mut all);
    evict_above(store, &mut all, limit);
    lease_what_is_kept(store, &mut all, limit);
    store.places.end_all();
    for heap in all.iter_mut().filter(|heap| heap.leases_places) {
        places::lease_what_buckets_have(store, heap);
    }
}

/// Evicts the oldest blocks of each bucket that has more than its limit.
fn evict_above_buckets<A: DeviceAllocator>(store: &Store<A>, all: &mut [LockGuard<'_, Heap<A>>]) {
    if !store.settings.rules.limits_buckets {
        return;
    }
    let mut buckets = HashMap::new();
    for (key, bytes, count) in all.iter().flat_map(|heap| heap.blocks.table.counts()) {
        *buckets.entry((key, bytes)).or_insert(0) += count;
    }
    for ((key, bytes), count) in buckets {
        let most = store.settings.rules.bucket.of(bytes);
        (most..count).for_each(|_| evict_oldest_of_all(store, all, key, bytes));
    }
}

/// Evicts old blocks, those of the shard with the oldest of all first, until free blocks are within
/// the limit.
fn evict_above<A: DeviceAllocator>(
    store: &Store<A>,
    all: &mut [LockGuard<'_, Heap<A>>],
    limit: u64,
) {
    let mut above = all.iter().map(|heap| heap.blocks.bytes).sum::<u64>().saturating_sub(limit);
    while above > 0 {
        let age = |heap: &mut LockGuard<'_, Heap<A>>| {
            heap.blocks.oldest().map_or(u64::MAX, |record| record.freed_at)
        };
        let ages = all.iter_mut().map(age).enumerate();
        let Some((oldest, _)) = ages.min_by_key(|(_, age)| *age) else { return };
        let heap = &mut all[oldest];
        let Some(record) = heap.blocks.pop_to_evict() else { return };
        above = above.saturating_sub(record.bytes);
        heap.evict(record, &store.settings.rules);
    }
}

/// Lets each of several shards lease what it keeps, as far as the limit goes, and one shard the whole
/// limit: frees lease more.
fn lease_what_is_kept<A: DeviceAllocator>(
    store: &Store<A>,
    all: &mut [LockGuard<'_, Heap<A>>],
    limit: u64,
) {
    let (one, unlimited) = (all.len() == 1, limit == u64::MAX);
    let (mut left, largest) = (limit, store.settings.rules.full_pool.largest(limit));
    for heap in all.iter_mut() {
        heap.largest = largest;
        heap.lease = if one || unlimited { limit } else { heap.kept().min(left) };
        left -= if unlimited { 0 } else { heap.lease };
    }
    store.leased.store(if unlimited || one { 0 } else { limit - left }, SeqCst);
}

/// Evicts the block of a bucket that was freed first.
fn evict_oldest_of_all<A: DeviceAllocator>(
    store: &Store<A>,
    all: &mut [LockGuard<'_, Heap<A>>],
    key: Key<A::Kind>,
    bytes: u64,
) {
    let age = |heap: &&mut LockGuard<'_, Heap<A>>| {
        heap.blocks.age_of_oldest(key, bytes).unwrap_or(u64::MAX)
    };
    let Some(heap) = all.iter_mut().min_by_key(age) else { return };
    if let Some(record) = heap.blocks.pop_oldest_of(key, bytes) {
        heap.evict(record, &store.settings.rules);
    }
}
