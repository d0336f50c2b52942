//! Growing over virtual memory. A free range has memory behind all of it, or behind none: then it
//! is a hole. Holes begin and end at pages, so there is no table of pages, and the fast path never
//! asks. Free pages go back before more are committed than the configuration allows.

use super::config::{ArenaConfig, Source};
use super::space::{ArenaRequest, Lent, Piece};
use super::spot::Spot;
use super::{Arena, ArenaBlock};
use crate::clock::{Order, StreamClock};
use crate::device::{Allocating, DeviceAllocator, MarkOf, StreamOf, VirtualMemory};
use crate::error::{DeviceError, Why};
use crate::layer::GivenBack;
use crate::order::{After, StealPolicy, Taker};
use crate::size::MIB;
use std::ops::Range;

/// What streams still use may pass what is allowed by one part in so many, and by so many bytes,
/// before the host waits.
const BEHIND_PART: u64 = 16;
const BEHIND_LEAST: u64 = 4 * MIB;

/// The calls of virtual memory, so that an arena is one type with and without.
pub(super) struct PageCalls<A: DeviceAllocator> {
    pub(super) page_bytes: u64,
    /// The device's own, which reservations are aligned to.
    pub(super) device_page_bytes: u64,
    address_space: u64,
    reserve: fn(&A, u64) -> Result<A::Block, DeviceError>,
    commit: Commit<A>,
    decommit: Decommit<A>,
    pub(super) release: Release<A>,
}

type Block<A> = <A as DeviceAllocator>::Block;
type Commit<A> = fn(&A, &Block<A>, Range<u64>) -> Result<(), DeviceError>;
type Decommit<A> = fn(&A, &Block<A>, Range<u64>, &[MarkOf<A>]) -> Result<(), DeviceError>;
type Release<A> = fn(&A, Block<A>, &[MarkOf<A>]) -> Result<(), DeviceError>;

impl<A: VirtualMemory> PageCalls<A> {
    /// `None` where the configuration asks for segments.
    pub(super) fn new(upstream: &A, config: &ArenaConfig) -> Option<Self> {
        let Source::Pages { bytes, .. } = config.source else { return None };
        Some(Self {
            page_bytes: bytes.max(upstream.page_bytes()).max(config.granule),
            device_page_bytes: upstream.page_bytes(),
            address_space: upstream.address_space(),
            reserve: A::reserve,
            commit: A::commit,
            decommit: A::decommit,
            release: A::release,
        })
    }
}

impl<A: DeviceAllocator> Arena<A> {
    /// Serves a request by committing pages.
    pub(super) fn grow_pages(
        &self,
        calls: &PageCalls<A>,
        want: &ArenaRequest<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<ArenaBlock<A>, DeviceError> {
        let taker = self.taker(on);
        match self.grow_by(calls, want, &taker, true) {
            // What the device lacks with the pages that would be committed ahead, it may have
            // without.
            Err(error) if error.is_want_of_memory() => self.grow_by(calls, want, &taker, false),
            // Where an event fails, what is not behind one will do.
            Err(_) => {
                self.grow_by(calls, want, &Taker { steal: StealPolicy::Never, ..taker }, true)
            }
            grown => grown,
        }
    }

    fn grow_by(
        &self,
        calls: &PageCalls<A>,
        want: &ArenaRequest<A::Kind>,
        taker: &Taker<'_, A::Clock>,
        ahead: bool,
    ) -> Result<ArenaBlock<A>, DeviceError> {
        let (spot, mut pieces, idle, wait) = loop {
            let mut space = self.space.lock();
            let Some(spot) = space.spot(want, taker, calls.page_bytes) else {
                drop(space);
                self.reserve_addresses(calls, want)?;
                continue;
            };
            let limit = self.ledger.limit();
            let peak = space.used_peak.max(space.used.saturating_add(want.bytes));
            let most = space.config.committed_limit(peak).min(limit);
            let needed = self.ledger.reserved().saturating_add(spot.missing_bytes);
            let ahead = if ahead { most.saturating_sub(needed) } else { 0 };
            let pieces = space.take_out(&spot, calls.page_bytes, ahead);
            let idle = space.idle_pages(calls.page_bytes, needed.saturating_sub(most));
            // A stream that is behind is waited for only if that gets out of hand.
            let behind = (most / BEHIND_PART).max(BEHIND_LEAST);
            let wait = needed > limit.min(most.saturating_add(behind));
            break (spot, pieces, idle, wait);
        };
        self.decommit(calls, idle, wait);
        let committed = ready(taker, &pieces);
        let committed = committed.and_then(|()| self.commit(calls, &mut pieces));
        if let Err(error) = committed {
            self.give_pieces(pieces);
            return Err(error);
        }
        self.one_block(pieces, &spot, want, taker.on)
    }

    /// More addresses; they cost no memory.
    fn reserve_addresses(
        &self,
        calls: &PageCalls<A>,
        want: &ArenaRequest<A::Kind>,
    ) -> Result<(), DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "reserve addresses", 0);
        let needed = want.bytes.checked_next_multiple_of(calls.page_bytes).ok_or(too_large)?;
        let bytes = needed.max(calls.address_space.next_multiple_of(calls.page_bytes));
        let block = (calls.reserve)(&self.upstream, bytes)?;
        let mut space = self.space.lock();
        let first = space.add_segment(block, want.sort, bytes);
        space.give_hole(self.clock_of(), first);
        Ok(())
    }

    /// Commits all holes among the pieces, or none: what was committed before a refusal goes back.
    fn commit(&self, calls: &PageCalls<A>, pieces: &mut [Piece<A>]) -> Result<(), DeviceError> {
        let size = |piece: &Piece<A>| piece.lent.bytes.end - piece.lent.bytes.start;
        let bytes = pieces.iter().filter(|piece| piece.hole).map(size).sum();
        self.ledger.reserve(bytes)?;
        let mut missing = bytes;
        let mut refusal = None;
        for piece in pieces.iter_mut().filter(|piece| piece.hole) {
            let Lent { block, bytes, .. } = &piece.lent;
            if let Err(error) = (calls.commit)(&self.upstream, block, bytes.clone()) {
                refusal = Some(error);
                break;
            }
            missing -= size(piece);
            self.ledger.took(size(piece));
            self.space.lock().count_pages(size(piece));
            piece.hole = false;
            piece.fresh = true;
        }
        let Some(refusal) = refusal else { return Ok(()) };
        self.ledger.cancel(missing);
        let fresh = pieces.iter_mut().filter(|piece| piece.fresh);
        // What the device keeps is free memory from now on.
        self.decommit_each(calls, fresh);
        Err(refusal)
    }

    /// Makes the pieces one block, and what they hold beyond it free.
    fn one_block(
        &self,
        pieces: Vec<Piece<A>>,
        spot: &Spot,
        want: &ArenaRequest<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<ArenaBlock<A>, DeviceError> {
        let clock = self.clock_of();
        let nothing = DeviceError::new(Why::Other, "no place for a block", 0);
        let fresh = self.fresh_after(on);
        let mut space = self.space.lock();
        let since = space.turn;
        let mut pieces = pieces.into_iter().map(|piece| piece.lent);
        let mut all = pieces.next().ok_or(nothing)?;
        for piece in pieces {
            space.ranges.join_next(all.ticket.id);
            all.bytes.end = piece.bytes.end;
        }
        if all.bytes.end > spot.block.end {
            let above = space.ranges.cut(all.ticket.id, spot.block.end - all.bytes.start);
            let ticket = space.ranges.ticket(above);
            space.give(clock, ticket, fresh.clone(), since);
        }
        if all.bytes.start < spot.block.start {
            let id = space.ranges.cut(all.ticket.id, spot.block.start - all.bytes.start);
            space.give(clock, all.ticket, fresh, since);
            all.ticket = space.ranges.ticket(id);
        }
        all.bytes = spot.block.clone();
        space.count_out(all.bytes.end - all.bytes.start, want.requested);
        drop(space);
        Ok(self.block(all, want))
    }

    /// What a part of fresh memory that its taker leaves is behind.
    pub(super) fn fresh_after(&self, on: &StreamOf<A>) -> After<MarkOf<A>> {
        match A::MEMORY.allocating {
            Allocating::InOrder => After::One(self.clock_of().mark(on)),
            Allocating::AtOnce => After::Nothing,
        }
    }

    /// Gives the memory behind free pieces back; they are holes then. What the device will not have
    /// back stays free memory, and unless the host may `wait`, so does what a stream still uses.
    pub(super) fn decommit(
        &self,
        calls: &PageCalls<A>,
        idle: Vec<Piece<A>>,
        wait: bool,
    ) -> GivenBack {
        let is_done = |mark: &MarkOf<A>| self.clock_of().is_done(*mark) == Ok(true);
        let may = |piece: &&mut Piece<A>| wait || piece.lent.after.marks().iter().all(is_done);
        let mut idle = idle;
        let went = self.decommit_each(calls, idle.iter_mut().filter(may));
        self.give_pieces(idle);
        went
    }

    /// Makes pieces free again, as what they are now.
    fn give_pieces(&self, pieces: Vec<Piece<A>>) {
        let mut space = self.space.lock();
        for piece in pieces {
            space.give_piece(self.clock_of(), piece);
        }
    }

    fn decommit_each<'p>(
        &self,
        calls: &PageCalls<A>,
        pieces: impl Iterator<Item = &'p mut Piece<A>>,
    ) -> GivenBack
    where
        A: 'p,
    {
        let (mut given_back, mut refusal) = (0, None);
        for piece in pieces.filter(|piece| !piece.hole) {
            let Lent { block, bytes, after, .. } = &piece.lent;
            let size = bytes.end - bytes.start;
            let waits = !self.is_seen_done(after.marks());
            let gone = (calls.decommit)(&self.upstream, block, bytes.clone(), after.marks());
            refusal = refusal.or(gone.err());
            self.space.lock().stats.num_sync_all_streams += u64::from(waits);
            // A lost device has nothing.
            if gone.is_ok() || gone.is_err_and(DeviceError::is_end_of_device) {
                self.ledger.give_back(size);
                self.space.lock().count_pages_gone(size);
                given_back += if gone.is_ok() { size } else { 0 };
                piece.hole = true;
            }
        }
        (given_back, refusal)
    }
}

/// Orders the taker behind what free pieces are behind.
fn ready<A: DeviceAllocator>(
    taker: &Taker<'_, A::Clock>,
    pieces: &[Piece<A>],
) -> Result<(), DeviceError> {
    for mark in pieces.iter().flat_map(|piece| piece.lent.after.marks()) {
        if !taker.is_ready(*mark) && taker.make_ready(*mark)? == Order::NotYet {
            return Err(DeviceError::new(Why::NotSubmitted, "grow over a free range", 0));
        }
    }
    Ok(())
}
