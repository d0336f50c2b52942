//! What a shard takes over from others, in memory whose blocks are cheap to make: half of what one has
//! of a size, once the pool has more of it than was ever needed at once, and some slack. Without the
//! slack two threads with the same sizes would take single blocks from each other for ever; without
//! the bound each shard would come to have as much as one heap.

use crate::block::PoolRequest;
use crate::block::record::{Record, RecordOwner};
use crate::blocks::Effort;
use crate::port::{DeviceAllocator, StreamClock};
use crate::shard::Heap;
use crate::store::bound::Miss;
use crate::store::{Store, bound, places};
use crate::sys::LockGuard;

/// Blocks of one size that are taken over at once.
const MAX_TAKEN: usize = 32;

/// Blocks that another shard had, on the stack: nothing allocates under the lock of a shard.
struct Stolen<A: DeviceAllocator> {
    blocks: [Option<RecordOwner<A>>; MAX_TAKEN],
    /// What of the cached limit they fill, and of the limit of their bucket.
    lease: u64,
    places: u32,
    /// The epoch of the limits that these are of.
    epoch: u32,
}

/// What a look at another shard gave.
enum Look<A: DeviceAllocator> {
    Busy,
    Nothing,
    Taken(Option<RecordOwner<A>>),
}

/// Takes blocks over from any other shard, and serves a request with one of them. Looks first where
/// the size was found last; busy shards are waited for in the end, with no lock held.
pub(super) fn steal<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
) -> Option<RecordOwner<A>> {
    let Miss::Searches { first, counts } = bound::miss(store, request) else { return None };
    if counts && bound::counts_enough(store, request) {
        return None;
    }
    let (home, count) = (store.home(request), store.shards.count());
    let mut busy = 0_u64;
    for at in (0..count).map(|step| (first + step) % count).filter(|at| *at != home) {
        match look(store, at, home, request, store.shards.try_lock(at)) {
            Look::Taken(record) => return record,
            Look::Nothing => {}
            Look::Busy => busy |= 1 << at,
        }
    }
    for at in (0..count).filter(|at| busy >> at & 1 == 1) {
        let heap = store.shards.lock(at);
        if let Look::Taken(record) = look(store, at, home, request, Some(heap)) {
            return record;
        }
    }
    // The hit may have been in another shard than its home, which was busy.
    let requester = store.requester(request);
    let own =
        store.shards.lock(home).lend_own_block(request, &requester, store.settings.statistics);
    if own.is_some() {
        return own;
    }
    // Blocks that another thread has on their way are in no shard.
    if !store.transit().others_have_pieces() {
        bound::note_needed(store, request);
    }
    None
}

/// Takes blocks over from one shard. One lock is held at a time.
fn look<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    home: usize,
    request: &PoolRequest<'_, A>,
    other: Option<LockGuard<'_, Heap<A>>>,
) -> Look<A> {
    let Some(mut other) = other else { return Look::Busy };
    let _in_transit = store.leaves(&other);
    let taken = pop_blocks(store, &mut other, request);
    drop(other);
    #[cfg(pool_counts)]
    crate::sys::counts::look(taken.is_some());
    let Some(taken) = taken else { return Look::Nothing };
    bound::note_taken(store, request, at);
    let own = &mut *store.shards.lock(home);
    let is_same = own.epoch == taken.epoch;
    if let Some(bytes) = taken.blocks[0].as_ref().map(|record| record.bytes)
        && is_same
    {
        own.lease = own.lease.saturating_add(taken.lease);
        if taken.places > 0 {
            places::end_idle_leases(store, own, request.key, bytes);
            own.blocks.add_places(request.key, bytes, taken.places);
        }
    }
    // Limits that have changed meanwhile count one of them, which goes at once.
    for (number, record) in taken.blocks.into_iter().flatten().enumerate() {
        match is_same || number == 0 {
            true => own.push(request.key, record),
            false => own.evict(record, &store.settings.rules),
        }
    }
    let requester = store.requester(request);
    Look::Taken(own.lend_own_block(request, &requester, store.settings.statistics))
}

/// Takes blocks out that serve a request.
fn pop_blocks<A: DeviceAllocator>(
    store: &Store<A>,
    from: &mut Heap<A>,
    request: &PoolRequest<'_, A>,
) -> Option<Stolen<A>> {
    let (key, bytes) = (request.key, request.class.bytes);
    let half = from.blocks.half_of(bytes, key.kind) as usize;
    let mut blocks = std::array::from_fn(|_| None);
    for block in blocks.iter_mut().take(half) {
        *block = from.blocks.pop_oldest_of(key, bytes);
    }
    if blocks[0].is_none() && (store.larger_blocks_serve || A::Clock::HAS_STREAMS) {
        let (requester, sizes) = (store.requester(request), request.sizes());
        let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(&requester);
        // One: blocks of other sizes and streams are worth less here than where they are.
        blocks[0] = match A::Clock::HAS_STREAMS {
            true => from.blocks.pop_of_any(key.kind, &sizes, Effort::Bounded, ready),
            false => from.blocks.pop_in_range(key, &sizes, ready),
        };
    }
    let size = blocks[0].as_ref()?.bytes;
    let places = blocks.iter().flatten().fold(0, |places, _| places + 1);
    let places = from.blocks.table.take_places(key, size, |spare| spare.min(places));
    let filled: u64 = blocks.iter().flatten().map(|record| record.bytes).sum();
    let lease = if store.is_unlimited() { 0 } else { filled.min(from.lease) };
    from.lease -= lease;
    Some(Stolen { blocks, lease, places, epoch: from.epoch })
}
