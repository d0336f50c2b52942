//! A request that the device serves: with a whole block, a segment that is split, or pages.
//!
//! Over virtual memory a free range has memory behind all of it, or is a hole, which begins
//! and ends at pages. Where pages go back alone, free ones do before more are committed than the
//! configuration allows. Where what one call commits goes back whole, nothing goes back for growth,
//! and a call commits more than is missing.

use crate::block::PoolRequest;
use crate::block::record::SegmentBlock;
use crate::limits::InTransit;
use crate::observe::Reason;
use crate::port::{Allocating, DeviceAllocator, DeviceError, Order, PageCalls, StreamClock, Why};
use crate::ranges::place;
use crate::ranges::place::Placement;
use crate::ranges::segment::Backing;
use crate::shard::Grant;
use crate::size::MIB;
use crate::store::pieces::{Piece, Pieces};
use crate::store::trim::ranges;
use crate::store::{Store, bound, device, pieces, sums};
use crate::stream::{Requester, StealPolicy};

/// Serves a request with memory from the device.
#[cold]
pub(super) fn grow<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
) -> Result<Grant<A>, DeviceError> {
    let (clock, statistics) = (store.allocator.clock(), store.settings.statistics);
    clock.takes_memory(request.stream)?;
    let at = store.home(request);
    if !store.layout.is_arena() {
        let record = device::allocate_block(store, request)?;
        {
            let heap = &mut *store.shards.lock(at);
            heap.count_out(record.bytes, request.requested);
            heap.count_miss(request, statistics);
        }
        note_slow(store, at);
        return Ok(Grant { record, fresh: true });
    }
    let id = grow_range(store, at, request)?;
    let mark = clock.mark(request.stream);
    let taken = {
        let heap = &mut *store.shards.lock(at);
        heap.count_miss(request, statistics);
        let lent = heap.lend_range(id, request, mark);
        store.shards.publish(heap);
        lent
    };
    note_slow(store, at);
    let nothing = DeviceError::new(Why::Other, "no segment of a range");
    let mut grant = Grant::new(taken.ok_or(nothing)?, request, clock, true);
    // With pages it may be in part a range that other streams had.
    if store.layout.pages.is_none() && A::MEMORY.allocating == Allocating::AtOnce {
        grant.record.marks.get_mut().set_fresh();
    }
    Ok(grant)
}

/// Takes the peaks of several shards, and the time, when a slow path has lent memory.
fn note_slow<A: DeviceAllocator>(store: &Store<A>, at: usize) {
    if store.shards.count() > 1 {
        store.keep_time(&mut store.shards.lock(at));
        sums::watch_peaks(store);
    }
}

/// A live range of memory from the device, in a shard, which is not lent yet.
pub(super) fn grow_range<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    request: &PoolRequest<'_, A>,
) -> Result<u32, DeviceError> {
    device::refuse_early(store, store.layout.bytes_to_grow(request.class.bytes))?;
    match &store.layout.pages {
        Some(pages) => grow_pages(store, at, pages, request),
        None => grow_segment(store, at, request),
    }
}

fn grow_segment<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    request: &PoolRequest<'_, A>,
) -> Result<u32, DeviceError> {
    let too_large = DeviceError::new(Why::TooLarge, "round up to a segment");
    let arena = store.layout.arena.as_ref().ok_or(too_large)?;
    let wanted = arena.request(&request.key, request.class.bytes);
    let segment = arena.segment_bytes(wanted.bytes).ok_or(too_large)?;
    ranges::collect_garbage(store, segment);
    if A::MEMORY.is_cheap && !bound::may_take_segment(store, at, segment) {
        bound::note_arena_needs(store, segment);
    }
    // Its bytes are reserved before its ranges are in the shard.
    let _in_transit = InTransit::new(store.transit());
    let (block, bytes) = match device::allocate(store, request, segment) {
        // What the device lacks for a whole segment it may have for the request alone.
        Err(error) if error.is_out_of_memory() && wanted.bytes < segment => {
            (device::allocate(store, request, wanted.bytes)?, wanted.bytes)
        }
        taken => (taken?, segment),
    };
    device::count_allocation(store, wanted.group.small, bytes);
    let rest = device::fresh_marks(store, request.on);
    let heap = &mut *store.shards.lock(at);
    let id = heap.add_segment(SegmentBlock::new(block), wanted.group, bytes);
    heap.ranges.nodes[id].dirty = !A::MEMORY.fresh_is_zeroed;
    let (clock, time) = (store.allocator.clock(), heap.time);
    Ok(heap.ranges.split_live(clock, id, wanted.bytes, (rest, time)))
}

/// Committed bytes may pass the limit of the configuration by one part in this many, and by this
/// many bytes, before the host waits for streams that use free pages.
const BEHIND_PART: u64 = 16;
const BEHIND_LEAST: u64 = 4 * MIB;

/// A placement, and the ranges that were taken out for it.
struct Plan<'s, A: DeviceAllocator> {
    placement: Placement,
    pieces: Pieces<'s, A>,
    /// Free pages that go back first.
    spare: Pieces<'s, A>,
    /// Bytes of other shards that go back too.
    excess: u64,
    /// Whether the host waits for streams that still use them.
    wait: bool,
}

/// Serves a request by committing pages. Returns a live range.
pub(super) fn grow_pages<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    pages: &PageCalls<A>,
    request: &PoolRequest<'_, A>,
) -> Result<u32, DeviceError> {
    let requester = store.requester(request);
    match grow_by(store, at, pages, request, &requester, true) {
        // What the device lacks with the pages that would be committed ahead, it may have
        // without.
        Err(error) if error.is_out_of_memory() => {
            grow_by(store, at, pages, request, &requester, false)
        }
        // Where an event fails, what is not behind one will do.
        Err(_) => {
            let requester = Requester { steal: StealPolicy::Never, ..requester };
            grow_by(store, at, pages, request, &requester, true)
        }
        grown => grown,
    }
}

fn grow_by<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    pages: &PageCalls<A>,
    request: &PoolRequest<'_, A>,
    requester: &Requester<'_, A::Clock>,
    ahead: bool,
) -> Result<u32, DeviceError> {
    let Plan { placement, mut pieces, spare, excess, wait } = loop {
        match plan(store, at, pages.page_bytes, request, requester, ahead) {
            Some(plan) => break plan,
            None => pieces::reserve_addresses(store, at, pages, request)?,
        }
    };
    pieces::decommit(store, pages, spare, wait, Reason::Bound);
    decommit_of_others(store, at, pages, excess);
    let ready = ready(requester, &pieces.all);
    ready.and_then(|()| pieces::commit(store, pages, &mut pieces.all))?;
    let rest = device::fresh_marks(store, request.on);
    let heap = &mut *store.shards.lock(at);
    let pieces = pieces.take_over();
    let ids: Vec<u32> = pieces.iter().map(|piece| piece.id).collect();
    for piece in pieces.iter().filter(|piece| piece.fresh) {
        place::note_committed(&mut heap.ranges, piece.id);
    }
    let nothing = DeviceError::new(Why::Other, "a placement without a range");
    let (clock, time) = (store.allocator.clock(), heap.time);
    place::assemble(&mut heap.ranges, clock, &ids, &placement, (&rest, time)).ok_or(nothing)
}

/// Takes out where the block will be, and the free pages that go back for it.
fn plan<'s, A: DeviceAllocator>(
    store: &'s Store<A>,
    at: usize,
    page: u64,
    request: &PoolRequest<'_, A>,
    requester: &Requester<'_, A::Clock>,
    ahead: bool,
) -> Option<Plan<'s, A>> {
    // Bytes that buffers have, and their peak, are those of the whole pool.
    let (used, used_peak) = sums::used(store);
    let heap = &mut *store.shards.lock(at);
    let wanted = heap.ranges.config.request(&request.key, request.class.bytes);
    let placement = place::place(&heap.ranges, &wanted, requester)?;
    let (limit, missing) = (store.ledger.limit_now(), placement.missing);
    let needed = store.ledger.reserved().saturating_add(missing);
    let (config, committed) = (&heap.ranges.config, heap.ranges.committed());
    let (most, extra) = match heap.ranges.backing {
        Backing::Commits(_) => {
            let extra = config.growth(committed, missing) - missing;
            (u64::MAX, extra.min(limit.saturating_sub(needed)))
        }
        Backing::Pages(_) | Backing::Block => {
            let peak = used_peak.max(used.saturating_add(wanted.bytes));
            let shards = bound::split_apart(store);
            let most = config.committed_limit(peak, page, shards).min(limit);
            let ahead = config.ahead_limit(peak, page, shards).min(limit);
            (most, ahead.saturating_sub(needed))
        }
    };
    let ids = place::take_out(&mut heap.ranges, &placement, if ahead { extra } else { 0 });
    let pieces = ids.into_iter().filter_map(|id| pieces::piece(heap, id)).collect::<Vec<_>>();
    let spare = pieces::spare_pages(heap, needed.saturating_sub(most));
    // A stream that is behind is waited for only if that gets out of hand.
    let behind = (most / BEHIND_PART).max(BEHIND_LEAST);
    let wait = most < u64::MAX && needed > limit.min(most.saturating_add(behind));
    let spared: u64 = spare.iter().map(Piece::bytes).sum();
    let excess = needed.saturating_sub(most).saturating_sub(spared);
    let (pieces, spare) = (Pieces::new(store, heap, pieces), Pieces::new(store, heap, spare));
    Some(Plan { placement, pieces, spare, excess, wait })
}

/// Gives free pages of other shards back, about `bytes` bytes, that no stream still uses.
fn decommit_of_others<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    pages: &PageCalls<A>,
    bytes: u64,
) {
    let mut missing = bytes;
    for other in (0..store.shards.count()).filter(|other| *other != at) {
        if missing == 0 {
            return;
        }
        let spare = {
            let heap = &mut *store.shards.lock(other);
            let spare = pieces::spare_pages(heap, missing);
            Pieces::new(store, heap, spare)
        };
        missing = missing
            .saturating_sub(pieces::decommit(store, pages, spare, false, Reason::Bound).bytes);
    }
}

/// Orders the taker behind the marks of free pieces.
fn ready<A: DeviceAllocator>(
    requester: &Requester<'_, A::Clock>,
    pieces: &[Piece<A>],
) -> Result<(), DeviceError> {
    for mark in pieces.iter().flat_map(|piece| piece.after.marks()) {
        if !requester.is_ready(*mark) && requester.make_ready(*mark)? == Order::NotYet {
            return Err(DeviceError::new(Why::NotSubmitted, "grow over a free range"));
        }
    }
    Ok(())
}
