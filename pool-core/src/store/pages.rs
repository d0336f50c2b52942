//! Growth over virtual memory. A free range has memory behind all of it, or is a hole, which begins
//! and ends at pages. Where pages go back alone, free ones do before more are committed than the
//! configuration allows. Where what one call commits goes back whole, nothing goes back for growth,
//! and a call commits more than is missing.

use crate::block::record::SegmentBlock;
use crate::block::request::PoolRequest;
use crate::observe::Reason;
use crate::port::{DeviceAllocator, DeviceError, Order, PageCalls, Why};
use crate::ranges::backing::Backing;
use crate::ranges::place::Placement;
use crate::size::{LARGEST, MIB};
use crate::store::Store;
use crate::store::moving::{Moving, Piece};
use crate::stream::{Requester, StealPolicy};

/// Committed bytes may pass the limit of the configuration by one part in this many, and by this
/// many bytes, before the host waits for streams that use free pages.
const BEHIND_PART: u64 = 16;
const BEHIND_LEAST: u64 = 4 * MIB;

/// A placement, and the ranges that were taken out for it.
struct Plan<'s, A: DeviceAllocator> {
    placement: Placement,
    pieces: Moving<'s, A>,
    /// Free pages that go back first.
    spare: Moving<'s, A>,
    /// Bytes of other shards that go back too.
    excess: u64,
    /// Whether the host waits for streams that still use them.
    wait: bool,
}

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request by committing pages. Returns a live range.
    pub(super) fn grow_pages(
        &self,
        at: usize,
        pages: &PageCalls<A>,
        request: &PoolRequest<'_, A>,
    ) -> Result<u32, DeviceError> {
        let requester = self.requester(request);
        match self.grow_by(at, pages, request, &requester, true) {
            // What the device lacks with the pages that would be committed ahead, it may have
            // without.
            Err(error) if error.is_out_of_memory() => {
                self.grow_by(at, pages, request, &requester, false)
            }
            // Where an event fails, what is not behind one will do.
            Err(_) => {
                let requester = Requester { steal: StealPolicy::Never, ..requester };
                self.grow_by(at, pages, request, &requester, true)
            }
            grown => grown,
        }
    }

    fn grow_by(
        &self,
        at: usize,
        pages: &PageCalls<A>,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        ahead: bool,
    ) -> Result<u32, DeviceError> {
        let Plan { placement, mut pieces, spare, excess, wait } = loop {
            match self.plan(at, pages.page_bytes, request, requester, ahead) {
                Some(plan) => break plan,
                None => self.reserve_addresses(at, pages, request)?,
            }
        };
        self.decommit(pages, spare, wait, Reason::Bound);
        self.decommit_of_others(at, pages, excess);
        let ready = ready(requester, &pieces.pieces);
        ready.and_then(|()| self.commit(pages, &mut pieces.pieces))?;
        let rest = self.fresh_marks(request.on);
        let state = &mut *self.shards.lock(at);
        let pieces = pieces.take_over();
        let ids: Vec<u32> = pieces.iter().map(|piece| piece.id).collect();
        for piece in pieces.iter().filter(|piece| piece.fresh) {
            state.ranges.note_committed(piece.id);
        }
        let nothing = DeviceError::new(Why::Other, "a placement without a range");
        let (clock, turn) = (self.allocator.clock(), state.turn);
        state.ranges.assemble(clock, &ids, &placement, (&rest, turn)).ok_or(nothing)
    }

    /// Takes out where the block will be, and the free pages that go back for it.
    fn plan<'s>(
        &'s self,
        at: usize,
        page: u64,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        ahead: bool,
    ) -> Option<Plan<'s, A>> {
        let wanted = self.shape.range_request(request);
        // Bytes that buffers have, and their peak, are those of the whole pool.
        let (used, used_peak) = self.used();
        let state = &mut *self.shards.lock(at);
        let placement = state.ranges.place(&wanted, requester)?;
        let (limit, missing) = (self.ledger.limit_now(), placement.missing);
        let needed = self.ledger.reserved().saturating_add(missing);
        let (config, committed) = (&state.ranges.config, state.ranges.committed());
        let (most, extra) = match state.ranges.backing {
            Backing::Commits(_) => {
                let extra = config.growth(committed, missing) - missing;
                (u64::MAX, extra.min(limit.saturating_sub(needed)))
            }
            Backing::Pages(_) | Backing::Block => {
                let peak = used_peak.max(used.saturating_add(wanted.bytes));
                let shards = self.split_apart();
                let most = config.committed_limit(peak, page, shards).min(limit);
                let ahead = config.ahead_limit(peak, page, shards).min(limit);
                (most, ahead.saturating_sub(needed))
            }
        };
        let ids = state.ranges.take_out(&placement, if ahead { extra } else { 0 });
        let pieces = ids.into_iter().filter_map(|id| state.piece(id)).collect::<Vec<_>>();
        let spare = state.spare_pages(needed.saturating_sub(most));
        // A stream that is behind is waited for only if that gets out of hand.
        let behind = (most / BEHIND_PART).max(BEHIND_LEAST);
        let wait = most < u64::MAX && needed > limit.min(most.saturating_add(behind));
        let spared: u64 = spare.iter().map(Piece::bytes).sum();
        let excess = needed.saturating_sub(most).saturating_sub(spared);
        let (pieces, spare) = (self.moving(at, pieces), self.moving(at, spare));
        Some(Plan { placement, pieces, spare, excess, wait })
    }

    /// Gives free pages of other shards back, about `bytes` bytes, that no stream still uses.
    fn decommit_of_others(&self, at: usize, pages: &PageCalls<A>, bytes: u64) {
        let mut missing = bytes;
        for other in (0..self.shards.count()).filter(|other| *other != at) {
            if missing == 0 {
                return;
            }
            let spare = {
                let state = &mut *self.shards.lock(other);
                let spare = state.spare_pages(missing);
                self.moving(other, spare)
            };
            missing = missing.saturating_sub(self.decommit(pages, spare, false, Reason::Bound).0);
        }
    }

    /// Reserves more addresses; they cost no memory.
    fn reserve_addresses(
        &self,
        at: usize,
        pages: &PageCalls<A>,
        request: &PoolRequest<'_, A>,
    ) -> Result<(), DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "reserve addresses");
        let wanted = self.shape.range_request(request);
        let needed = wanted.bytes.checked_next_multiple_of(pages.page_bytes).ok_or(too_large)?;
        if needed > LARGEST {
            return Err(too_large);
        }
        // A process may have fewer addresses than memory: half of what fits is reserved then, so that
        // the program's own heap and stacks find addresses too.
        let at_most = |bytes: u64| needed.max(bytes.next_multiple_of(pages.page_bytes));
        let (mut bytes, mut refused) = (at_most(pages.address_space), false);
        let block = loop {
            match (pages.reserve)(&self.allocator, bytes) {
                Ok(block) if refused && bytes > needed => {
                    (pages.release)(&self.allocator, block, &[])?;
                    refused = false;
                }
                Err(error) if error.why == Why::OutOfAddresses && bytes > needed => refused = true,
                Ok(block) => break block,
                Err(error) => return Err(error),
            }
            bytes = at_most(bytes / 2);
        };
        let state = &mut *self.shards.lock(at);
        let whole = state.add_segment(SegmentBlock::new(block), wanted.group, bytes);
        state.ranges.put_hole(self.allocator.clock(), whole);
        Ok(())
    }

    /// Commits all holes among the pieces, or none: what was committed before a refusal goes back.
    fn commit(&self, pages: &PageCalls<A>, pieces: &mut [Piece<A>]) -> Result<(), DeviceError> {
        let bytes = pieces.iter().filter(|piece| piece.hole).map(Piece::bytes).sum();
        let (mut reservation, mut refusal) = (self.ledger.reserve(bytes)?, None);
        for piece in pieces.iter_mut().filter(|piece| piece.hole) {
            if let Err(error) =
                (pages.commit)(&self.allocator, piece.segment(), piece.range.clone())
            {
                refusal = Some(error);
                break;
            }
            reservation.note_allocated(piece.bytes());
            let calls = &mut *self.calls.lock();
            calls.reserved_bytes.up(false, piece.bytes());
            calls.num_device_alloc += pages.calls_for(piece.bytes());
            (piece.hole, piece.fresh) = (false, true);
        }
        let Some(refusal) = refusal else { return Ok(()) };
        drop(reservation);
        // What the device keeps is free memory from now on.
        self.decommit_each(pages, pieces.iter_mut().filter(|piece| piece.fresh), None);
        Err(refusal)
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
