//! Memory taken ahead of time.

use crate::block::PoolRequest;
use crate::limits::InTransit;
use crate::port::{Allocating, DeviceAllocator, DeviceError, Limit, StreamClock, Why};
use crate::store::free::{Freed, Room};
use crate::store::trim::ranges;
use crate::store::{Store, bound, device, free, grow, places, sums};
use crate::stream::Pending;

/// Live ranges that no buffer has. They are free when it is dropped, also by a panic of the device.
struct WarmRanges<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    /// Their shards and numbers.
    ids: Vec<(usize, u32)>,
    /// A request that finds none of them waits until they are free.
    _in_transit: InTransit<'s>,
}

impl<A: DeviceAllocator> Drop for WarmRanges<'_, A> {
    fn drop(&mut self) {
        let shards = &self.store.shards;
        for (at, id) in std::mem::take(&mut self.ids) {
            let heap = &mut *shards.lock(at);
            let node = &mut heap.ranges.nodes[id];
            let (marks, dirty) = (std::mem::take(&mut node.marks), node.dirty);
            let when = (dirty, heap.time);
            heap.ranges.free(self.store.allocator.clock(), id, marks, when);
            shards.publish(heap);
        }
    }
}

/// Allocates `count` free blocks of a request's size from the device ahead of time. Counts no
/// request.
pub(crate) fn warm_up<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    count: usize,
) -> Result<(), DeviceError> {
    if !request.class.is_cached() {
        let call = "warm up a size that goes past the pool";
        return Err(DeviceError::new(Why::Unsupported, call));
    }
    match store.layout.is_arena() {
        false => (0..count).try_for_each(|_| warm_up_block(store, request)),
        true => warm_up_ranges(store, request, count),
    }
}

fn warm_up_block<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
) -> Result<(), DeviceError> {
    has_room(store, request)?;
    let _in_transit = InTransit::new(store.transit()); // until it is free memory
    let mut record = device::allocate_block(store, request)?;
    if bound::moves_blocks(store) {
        bound::note_needed(store, request);
    }
    if A::MEMORY.allocating == Allocating::AtOnce {
        record.marks.get_mut().clear_owner();
    }
    let (at, stays, evicted) = {
        let Room { at, mut heap, limit, evicted } = free::lock_for_free(store, &mut record);
        let heap = &mut *heap;
        heap.time += 1;
        record.freed_at = store.time_of(heap);
        // Other threads may have filled the room while the device was called.
        let stays = heap.push_or_defer(request.key, record, limit, &store.settings.rules);
        (at, stays, evicted)
    };
    free::evict_after_free(store, Freed { at, segment: None, evicted });
    if stays {
        return Ok(());
    }
    // One of the two, which other threads have reached meanwhile.
    let is_full = is_in_full_bucket(store, request);
    Err(DeviceError::limit(if is_full { Limit::Bucket } else { Limit::Cached }))
}

/// Whether a free block more stays under the limits.
fn has_room<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
) -> Result<(), DeviceError> {
    let (bytes, limit) = (request.class.bytes, sums::cached_limit(store));
    if bytes > store.settings.rules.full_pool.largest(limit)
        || sums::sum(store).kept.saturating_add(bytes) > limit
    {
        return Err(DeviceError::limit(Limit::Cached));
    }
    match is_in_full_bucket(store, request) {
        true => Err(DeviceError::limit(Limit::Bucket)),
        false => Ok(()),
    }
}

/// Whether the bucket of a request's size has as many blocks as its limit.
fn is_in_full_bucket<A: DeviceAllocator>(store: &Store<A>, request: &PoolRequest<'_, A>) -> bool {
    let most = store.settings.rules.bucket.of(request.class.bytes);
    most != usize::MAX && places::count_in_buckets(store, request.key, request.class.bytes) >= most
}

/// Takes memory until `count` ranges of a request's size fit at once.
fn warm_up_ranges<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    count: usize,
) -> Result<(), DeviceError> {
    let (home, shards) = (store.home(request), store.shards.count());
    let in_transit = InTransit::new(store.transit());
    let mut taken = WarmRanges { store, ids: Vec::new(), _in_transit: in_transit };
    let mut result = Ok(());
    for _ in 0..count {
        let mut from_home = (0..shards).map(|step| (home + step) % shards);
        let free = from_home.find_map(|at| Some((at, find_range(store, at, request)?)));
        let is_fresh = free.is_none();
        match free.map_or_else(|| Ok((home, grow::grow_range(store, home, request)?)), Ok) {
            Ok((at, id)) => {
                let heap = &mut *store.shards.lock(at);
                let node = &mut heap.ranges.nodes[id];
                if is_fresh && !A::MEMORY.cpu_touches {
                    // The device, and the streams that used parts of it, were waited for on the
                    // stream of the request only.
                    node.marks = Pending::One(store.allocator.clock().mark(request.on));
                }
                let bytes = node.bytes;
                heap.time += 1;
                heap.ranges.count_out(bytes);
                store.shards.publish(heap);
                taken.ids.push((at, id));
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    drop(taken);
    let kept = sums::sum(store).kept; // the limit may take all locks
    if result.is_ok() && kept > sums::cached_limit(store) {
        result = Err(DeviceError::limit(Limit::Cached));
    }
    if result.is_err() {
        // What passes the limit goes back with the next call that may; here that is this one.
        let _ = ranges::evict_to_limit(store, None);
    }
    result
}

/// A live range out of free memory, which is not lent.
fn find_range<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    request: &PoolRequest<'_, A>,
) -> Option<u32> {
    let ranges = &mut store.shards.lock(at).ranges;
    let wanted = ranges.config.request(&request.key, request.class.bytes);
    ranges.take_with_marks(&wanted, &store.requester(request))
}
