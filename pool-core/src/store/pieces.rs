//! Pages: ranges that were taken out of the lists, so that calls to the device need no lock, and these calls.
#![expect(unsafe_code, reason = "the block of a segment outlives its ranges")]

use crate::block::PoolRequest;
use crate::block::record::SegmentBlock;
use crate::limits::GivenBack;
use crate::observe::Reason;
use crate::port::{DeviceAllocator, DeviceError, MarkOf, PageCalls, StreamClock, Why};
use crate::ranges::node::NodeState;
use crate::ranges::{place, returnable};
use crate::shard::Heap;
use crate::size::LARGEST;
use crate::store::Store;
use crate::stream::Pending;
use std::ops::Range;
use std::ptr::NonNull;

/// A range that is in no list.
pub(super) struct Piece<A: DeviceAllocator> {
    pub(super) id: u32,
    block: NonNull<A::Block>,
    pub(super) range: Range<u64>,
    pub(super) after: Pending<MarkOf<A>>,
    freed_at: u64,
    /// Whether there is no memory behind it.
    pub(super) hole: bool,
    /// Whether it was a hole when it was taken out, and is none any more.
    pub(super) fresh: bool,
}

impl<A: DeviceAllocator> Piece<A> {
    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The block of its reservation.
    pub(super) fn segment(&self) -> &A::Block {
        // SAFETY: the pointer came from a box, which goes only with a segment all of whose ranges
        // are free; this one is `Out` until it is put back.
        unsafe { self.block.as_ref() }
    }
}

/// A range that was taken out, with all that a call to the device needs.
pub(super) fn piece<A: DeviceAllocator>(heap: &Heap<A>, id: u32) -> Option<Piece<A>> {
    let node = &heap.ranges.nodes[id];
    let block = heap.segment_of(id)?.share();
    let hole = node.state == NodeState::Out { hole: true };
    let (after, freed_at) = (node.marks.clone(), node.freed_at);
    Some(Piece { id, block, range: node.range(), after, freed_at, hole, fresh: false })
}

/// Takes out free pages, at least `bytes` bytes or all that a bounded search finds.
pub(super) fn spare_pages<A: DeviceAllocator>(heap: &mut Heap<A>, bytes: u64) -> Vec<Piece<A>> {
    let found = if bytes > 0 { returnable::pick(&mut heap.ranges, bytes) } else { Vec::new() };
    let ids = found.into_iter().filter_map(|found| heap.ranges.carve(found.id, &found.part));
    let ids = ids.collect::<Vec<_>>();
    ids.into_iter().filter_map(|id| piece(heap, id)).collect()
}

/// Pieces that this thread has taken out. What is left of them when it is dropped is put into the
/// lists again, as what it is then: also if a call to the device panics.
pub(super) struct Pieces<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    /// Their shard.
    at: usize,
    pub(super) all: Vec<Piece<A>>,
    /// How many of them others may wait for.
    counted: usize,
}

impl<'s, A: DeviceAllocator> Pieces<'s, A> {
    /// Pieces that were taken out of a shard, which is locked: they may be free in a moment.
    pub(super) fn new(store: &'s Store<A>, from: &Heap<A>, pieces: Vec<Piece<A>>) -> Self {
        let counted = pieces.len();
        store.transit().begin(counted);
        Self { store, at: from.number as usize, all: pieces, counted }
    }
}

impl<A: DeviceAllocator> Pieces<'_, A> {
    /// Takes the pieces over, which are live from now on. Call it under the lock of their shard.
    pub(super) fn take_over(&mut self) -> Vec<Piece<A>> {
        self.store.transit().end(std::mem::take(&mut self.counted));
        std::mem::take(&mut self.all)
    }
}

impl<A: DeviceAllocator> Drop for Pieces<'_, A> {
    fn drop(&mut self) {
        if self.counted == 0 {
            return;
        }
        let (clock, pieces) = (self.store.allocator.clock(), std::mem::take(&mut self.all));
        let mut heap = self.store.shards.lock(self.at);
        for piece in pieces {
            if piece.hole {
                place::put_hole(&mut heap.ranges, clock, piece.id);
            } else {
                if piece.fresh {
                    place::note_committed(&mut heap.ranges, piece.id);
                }
                heap.ranges.release(clock, piece.id, piece.after, piece.freed_at);
                heap.ranges.rejoin(clock, piece.id);
            }
        }
        self.take_over();
    }
}

/// Gives the memory behind pieces back; they are holes then. What the device refuses
/// stays free memory; so does what a stream still uses, unless the host may `wait`.
pub(super) fn decommit<A: DeviceAllocator>(
    store: &Store<A>,
    pages: &PageCalls<A>,
    mut from: Pieces<'_, A>,
    wait: bool,
    reason: Reason,
) -> GivenBack {
    let is_done = |mark: &MarkOf<A>| store.allocator.clock().is_done(*mark) == Ok(true);
    let may = |piece: &&mut Piece<A>| wait || piece.after.marks().iter().all(is_done);
    decommit_each(store, pages, from.all.iter_mut().filter(may), Some(reason))
}

pub(super) fn decommit_each<'p, A: DeviceAllocator + 'p>(
    store: &Store<A>,
    pages: &PageCalls<A>,
    pieces: impl Iterator<Item = &'p mut Piece<A>>,
    reason: Option<Reason>,
) -> GivenBack {
    let mut given_back = GivenBack::default();
    for piece in pieces.filter(|piece| !piece.hole) {
        let waits = !is_seen_done(store, piece.after.marks());
        let (range, marks) = (piece.range.clone(), piece.after.marks());
        let outcome = (pages.decommit)(&store.allocator, piece.segment(), range, marks);
        let went = if outcome.is_ok() { piece.bytes() } else { 0 };
        given_back += GivenBack { bytes: went, refusal: outcome.err() };
        // A lost device has nothing.
        let is_gone = outcome.is_ok() || outcome.is_err_and(DeviceError::is_end_of_device);
        {
            let calls = &mut *store.calls.lock();
            calls.num_sync_all_streams += u64::from(waits);
            if is_gone {
                calls.reserved_bytes.down(false, piece.bytes());
                calls.num_device_free += pages.calls_for(piece.bytes());
            }
        }
        if is_gone {
            store.ledger.note_freed(piece.bytes());
            piece.hole = true;
            if let Some(reason) = reason {
                store.notify_eviction(reason, piece.bytes());
            }
        }
    }
    given_back
}

/// Whether all marks were seen done, so that giving back waits for nothing.
pub(super) fn is_seen_done<A: DeviceAllocator>(store: &Store<A>, marks: &[MarkOf<A>]) -> bool {
    marks.iter().all(|mark| store.allocator.clock().is_seen_done(*mark))
}

/// Reserves more addresses; they cost no memory.
pub(super) fn reserve_addresses<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    pages: &PageCalls<A>,
    request: &PoolRequest<'_, A>,
) -> Result<(), DeviceError> {
    let too_large = DeviceError::new(Why::TooLarge, "reserve addresses");
    let needed = request.class.bytes.checked_next_multiple_of(pages.page_bytes).ok_or(too_large)?;
    if needed > LARGEST {
        return Err(too_large);
    }
    // A process may have fewer addresses than memory: half of what fits is reserved then, so that
    // the program's own heap and stacks find addresses too.
    let at_most = |bytes: u64| needed.max(bytes.next_multiple_of(pages.page_bytes));
    let (mut bytes, mut refused) = (at_most(pages.address_space), false);
    let block = loop {
        match (pages.reserve)(&store.allocator, bytes) {
            Ok(block) if refused && bytes > needed => {
                (pages.release)(&store.allocator, block, &[])?;
                refused = false;
            }
            Err(error) if error.why == Why::OutOfAddresses && bytes > needed => refused = true,
            Ok(block) => break block,
            Err(error) => return Err(error),
        }
        bytes = at_most(bytes / 2);
    };
    let heap = &mut *store.shards.lock(at);
    let group = heap.ranges.config.request(&request.key, request.class.bytes).group;
    let whole = heap.add_segment(SegmentBlock::new(block), group, bytes);
    place::put_hole(&mut heap.ranges, store.allocator.clock(), whole);
    Ok(())
}

/// Commits all holes among the pieces, or none: what was committed before a refusal goes back.
pub(super) fn commit<A: DeviceAllocator>(
    store: &Store<A>,
    pages: &PageCalls<A>,
    pieces: &mut [Piece<A>],
) -> Result<(), DeviceError> {
    let bytes = pieces.iter().filter(|piece| piece.hole).map(Piece::bytes).sum();
    let (mut reservation, mut refusal) = (store.ledger.reserve(bytes)?, None);
    for piece in pieces.iter_mut().filter(|piece| piece.hole) {
        if let Err(error) = (pages.commit)(&store.allocator, piece.segment(), piece.range.clone()) {
            refusal = Some(error);
            break;
        }
        reservation.note_allocated(piece.bytes());
        let calls = &mut *store.calls.lock();
        calls.reserved_bytes.up(false, piece.bytes());
        calls.num_device_alloc += pages.calls_for(piece.bytes());
        (piece.hole, piece.fresh) = (false, true);
    }
    let Some(refusal) = refusal else { return Ok(()) };
    drop(reservation);
    // What the device keeps is free memory from now on.
    decommit_each(store, pages, pieces.iter_mut().filter(|piece| piece.fresh), None);
    Err(refusal)
}
