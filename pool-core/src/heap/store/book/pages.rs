//! Growth over virtual memory. A free range has memory behind all of it, or is a hole, which begins
//! and ends at pages. Free pages go back before more are committed than the configuration allows.

use crate::heap::block::record::SegmentBlock;
use crate::heap::block::request::PoolRequest;
use crate::heap::book::place::Placement;
use crate::heap::store::Store;
use crate::heap::store::book::device::{Moving, Piece};
use crate::observe::Reason;
use crate::port::{DeviceAllocator, DeviceError, Order, PageCalls, Why};
use crate::size::{LARGEST, MIB};
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
    /// Whether the host waits for streams that still use them.
    wait: bool,
}

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request by committing pages. Returns a live range.
    pub(super) fn grow_pages(
        &self,
        pages: &PageCalls<A>,
        request: &PoolRequest<'_, A>,
    ) -> Result<u32, DeviceError> {
        let requester = self.requester(request);
        match self.grow_by(pages, request, &requester, true) {
            // What the device lacks with the pages that would be committed ahead, it may have
            // without.
            Err(error) if error.is_out_of_memory() => {
                self.grow_by(pages, request, &requester, false)
            }
            // Where an event fails, what is not behind one will do.
            Err(_) => {
                let requester = Requester { steal: StealPolicy::Never, ..requester };
                self.grow_by(pages, request, &requester, true)
            }
            grown => grown,
        }
    }

    fn grow_by(
        &self,
        pages: &PageCalls<A>,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        ahead: bool,
    ) -> Result<u32, DeviceError> {
        let Plan { placement, mut pieces, spare, wait } = loop {
            match self.plan(pages, request, requester, ahead) {
                Some(plan) => break plan,
                None => self.reserve_addresses(pages, request)?,
            }
        };
        self.decommit(pages, spare, wait, Reason::Bound);
        let ready = ready(requester, &pieces.pieces);
        ready.and_then(|()| self.commit(pages, &mut pieces.pieces))?;
        let rest = self.fresh_marks(request.on);
        let mut state = self.book.lock();
        let pieces = pieces.take_over();
        let ids: Vec<u32> = pieces.iter().map(|piece| piece.id).collect();
        for piece in pieces.iter().filter(|piece| piece.fresh) {
            // `commit` promises nothing of the contents.
            state.book.nodes[piece.id].unzeroed = true;
        }
        let nothing = DeviceError::new(Why::Other, "a placement without a range");
        let clock = self.allocator.clock();
        state.book.assemble(clock, &ids, &placement, &rest).ok_or(nothing)
    }

    /// Takes out where the block will be, and the free pages that go back for it.
    fn plan<'s>(
        &'s self,
        pages: &PageCalls<A>,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        ahead: bool,
    ) -> Option<Plan<'s, A>> {
        let (page, book_request) = (pages.page_bytes, self.book.book_request(request));
        let mut state = self.book.lock();
        let placement = state.book.place(&book_request, requester, page)?;
        let limit = self.ledger.limit_now();
        let used = state.book.used().saturating_add(book_request.bytes);
        let peak = state.book.used_peak.max(used);
        let most = state.book.config.committed_limit(peak, page).min(limit);
        let needed = self.ledger.reserved().saturating_add(placement.missing);
        let ahead_limit = state.book.config.ahead_limit(peak, page).min(limit);
        let ahead = if ahead { ahead_limit.saturating_sub(needed) } else { 0 };
        let ids = state.book.take_out(&placement, page, ahead);
        let pieces = ids.into_iter().filter_map(|id| state.piece(id)).collect::<Vec<_>>();
        let spare = state.spare_pages(page, needed.saturating_sub(most));
        // A stream that is behind is waited for only if that gets out of hand.
        let behind = (most / BEHIND_PART).max(BEHIND_LEAST);
        let wait = needed > limit.min(most.saturating_add(behind));
        let (pieces, spare) = (self.moving(pieces), self.moving(spare));
        Some(Plan { placement, pieces, spare, wait })
    }

    /// Reserves more addresses; they cost no memory.
    fn reserve_addresses(
        &self,
        pages: &PageCalls<A>,
        request: &PoolRequest<'_, A>,
    ) -> Result<(), DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "reserve addresses");
        let book_request = self.book.book_request(request);
        let needed =
            book_request.bytes.checked_next_multiple_of(pages.page_bytes).ok_or(too_large)?;
        if needed > LARGEST {
            return Err(too_large);
        }
        let bytes = needed.max(pages.address_space.next_multiple_of(pages.page_bytes));
        let block = (pages.reserve)(&self.allocator, bytes)?;
        let mut state = self.book.lock();
        let whole = state.add_segment(SegmentBlock::new(block), book_request.group, bytes);
        state.book.put_hole(self.allocator.clock(), whole);
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
            let mut state = self.book.lock();
            state.calls.reserved_bytes.up(false, piece.bytes());
            state.calls.num_device_alloc += pages.calls_for(piece.bytes());
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
