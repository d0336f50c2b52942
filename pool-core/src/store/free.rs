//! Frees that are not a push under one lock: what passes a limit goes back to the device.

use crate::block::flags::CLEAN;
use crate::block::record::RecordOwner;
use crate::limits::InTransit;
use crate::observe::Reason;
use crate::port::{DeviceAllocator, DeviceError};
use crate::shard::{Heap, MarkedBlock, Removed};
use crate::store::trim::ranges;
use crate::store::{Store, device, leases, places, sums, trim};
use crate::sys::LockGuard;

/// A live block that went: the shard that counts its buffer, the memory, and a note that it is on its
/// way.
type Gone<'s, A> = (usize, Option<Removed<A>>, InTransit<'s>);

/// The shard that a free block belongs in, locked.
pub(super) struct Room<'s, A: DeviceAllocator> {
    pub(super) at: usize,
    pub(super) heap: LockGuard<'s, Heap<A>>,
    /// The cached limit in bytes.
    pub(super) limit: u64,
    /// Blocks of any shard were evicted for the block: deferred frees.
    pub(super) evicted: bool,
}

/// Where a block was freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freed {
    pub(super) at: usize,
    /// The segment that it is a part of.
    pub(super) segment: Option<u32>,
    /// Blocks of any shard were evicted for it: deferred frees.
    pub(super) evicted: bool,
}

/// Frees a block, but for the buffer, which the caller counts as freed when the call has ended.
/// Returns the shard that counts it.
pub(crate) fn free<A: DeviceAllocator>(
    store: &Store<A>,
    mut record: RecordOwner<A>,
    zeroed: bool,
) -> usize {
    record.flags.set(CLEAN, zeroed);
    let freed = free_shared(store, record, true);
    evict_after_free(store, freed);
    freed.at
}

/// Frees a block that is no private pool's. `counts`: a buffer had it.
pub(super) fn free_shared<A: DeviceAllocator>(
    store: &Store<A>,
    mut record: RecordOwner<A>,
    counts: bool,
) -> Freed {
    let (bytes, requested) = (record.bytes, record.requested);
    let clock = store.allocator.clock();
    let Room { at, mut heap, limit, evicted } = lock_for_free(store, &mut record);
    let heap = &mut *heap;
    if counts {
        heap.accounts.freed(bytes, requested);
    }
    record.freed_at = store.time_of(heap);
    let Some(part) = record.part() else {
        let key = Heap::key_of(clock, &mut record);
        let stays = heap.push_or_defer(key, record, limit, &store.settings.rules);
        heap.not_kept += u64::from(counts && !stays);
        return Freed { at, segment: None, evicted };
    };
    let segment = Some(heap.ranges.nodes[part.range].segment);
    heap.free_range(clock, record);
    store.shards.publish(heap);
    Freed { at, segment, evicted }
}

/// Locks the shard that a free block belongs in, with room for it under the limits of the cache if
/// there is any.
pub(super) fn lock_for_free<'s, A: DeviceAllocator>(
    store: &'s Store<A>,
    record: &mut RecordOwner<A>,
) -> Room<'s, A> {
    let mut evicted = false;
    loop {
        let limit = sums::read_limit(store);
        let at = shard_of(store, record);
        evicted |= places::make_place(store, at, record, limit)
            | leases::make_lease(store, at, record, limit);
        let heap = store.shards.lock(at);
        if heap.epoch == limit.epoch {
            return Room { at, heap, limit: limit.bytes, evicted };
        }
    }
}

/// The shard that a block is freed into: that of its last use, or of its segment.
#[inline]
pub(super) fn shard_of<A: DeviceAllocator>(store: &Store<A>, record: &mut RecordOwner<A>) -> usize {
    if let Some(part) = record.part() {
        return part.shard as usize;
    }
    let key = Heap::key_of(store.allocator.clock(), record);
    store.shards.home(&key)
}

/// After a free: gives back what passes the limits, if a drop may.
pub(super) fn evict_after_free<A: DeviceAllocator>(
    store: &Store<A>,
    Freed { at, segment, evicted }: Freed,
) {
    let (deferred, closed) = {
        let heap = store.shards.lock(at);
        (!heap.deferred.is_empty(), heap.closed)
    };
    if !A::MEMORY.free_in_drop && !closed {
        return;
    }
    // What the device refuses is counted as lost, or stays free memory.
    if evicted {
        let _ = trim::free_deferred(store);
    } else if deferred {
        let _ = trim::free_deferred_of(store, at, true);
    }
    if store.layout.is_arena() && (closed || !store.is_unlimited()) {
        let _ = ranges::evict_excess(store, at, segment);
    }
}

/// Frees a detached whole block on the device now. Returns its refusal, and the shard that
/// counts the buffer.
pub(crate) fn free_detached<A: DeviceAllocator>(
    store: &Store<A>,
    record: RecordOwner<A>,
) -> (usize, Option<DeviceError>) {
    let (at, removed, _in_transit) = remove_live(store, record);
    let refusal = removed.and_then(|it| device::free(store, at, it, Some(Reason::Bound)).refusal);
    (at, refusal)
}

/// A detached block leaves the pool's figures for good, not by way of the device. Returns it with
/// what it is behind, and the shard that counts the buffer.
pub(crate) fn remove_detached<A: DeviceAllocator>(
    store: &Store<A>,
    record: RecordOwner<A>,
) -> (usize, Option<MarkedBlock<A>>) {
    let (at, removed, _in_transit) = remove_live(store, record);
    let Some(Removed { block, bytes, after, .. }) = removed else { return (at, None) };
    store.shards.lock(at).counts.lost_bytes -= bytes;
    store.ledger.note_freed(bytes);
    (at, Some((block, after.marks().to_vec())))
}

/// Takes a live whole block out of the pool's hands.
fn remove_live<A: DeviceAllocator>(store: &Store<A>, mut record: RecordOwner<A>) -> Gone<'_, A> {
    let at = shard_of(store, &mut record);
    let heap = &mut *store.shards.lock(at);
    heap.accounts.freed(record.bytes, record.requested);
    heap.not_kept += 1;
    (at, store.remove_block(heap, record), store.leaves(heap))
}
