//! Growing over virtual memory. A free range has memory behind all of it, or behind none: then it
//! is a hole. Holes begin and end at pages, so there is no table of pages, and the fast path never
//! asks. Free pages go back before more are committed than the configuration allows.

use super::config::{ArenaConfig, Source};
use super::space::{Lent, Piece, Want};
use super::spot::Spot;
use super::{Arena, ArenaBlock};
use crate::clock::{Order, StreamClock};
use crate::device::{DeviceAllocator, MarkOf, StreamOf, VirtualMemory};
use crate::error::{DeviceError, Why};
use crate::layer::GivenBack;
use crate::order::{After, Taker};
use std::ops::Range;

/// The calls of virtual memory, so that an arena is one type with and without.
pub(super) struct PageCalls<A: DeviceAllocator> {
    pub(super) page_bytes: u64,
    address_space: u64,
    reserve: fn(&A, u64) -> Result<A::Block, DeviceError>,
    commit: fn(&A, &A::Block, Range<u64>) -> Result<(), DeviceError>,
    decommit: fn(&A, &A::Block, Range<u64>, &[MarkOf<A>]) -> Result<(), DeviceError>,
    pub(super) release: fn(&A, A::Block, &[MarkOf<A>]) -> Result<(), DeviceError>,
}

impl<A: VirtualMemory> PageCalls<A> {
    /// `None` where the configuration asks for segments.
    pub(super) fn new(upstream: &A, config: &ArenaConfig) -> Option<Self> {
        let Source::Pages { bytes, .. } = config.source else { return None };
        Some(Self {
            page_bytes: bytes.max(upstream.page_bytes()).max(config.granule),
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
        want: &Want<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<ArenaBlock<A>, DeviceError> {
        let taker = self.taker(on);
        let (spot, mut pieces, idle) = loop {
            let mut space = self.space.lock();
            let Some(spot) = space.spot(want, &taker, calls.page_bytes) else {
                drop(space);
                self.reserve_addresses(calls, want)?;
                continue;
            };
            let peak = space.used_peak.max(space.used + want.bytes);
            let most = space.config.committed_limit(peak).min(self.ledger.limit());
            let needed = self.ledger.reserved().saturating_add(spot.missing_bytes);
            let ahead = most.saturating_sub(needed);
            let pieces = space.take_out(&spot, calls.page_bytes, ahead);
            let idle = space.idle_pages(calls.page_bytes, needed.saturating_sub(most));
            break (spot, pieces, idle);
        };
        self.decommit(calls, idle);
        let committed = self.ready_pieces(&taker, &pieces);
        let committed = committed.and_then(|()| self.commit(calls, &mut pieces));
        if let Err(error) = committed {
            let mut space = self.space.lock();
            pieces.into_iter().for_each(|piece| space.give_piece(self.clock_of(), piece));
            return Err(error);
        }
        self.one_block(pieces, &spot, want, on)
    }

    /// More addresses; they cost no memory.
    fn reserve_addresses(
        &self,
        calls: &PageCalls<A>,
        want: &Want<A::Kind>,
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

    /// Orders the taker behind what the free pieces are behind.
    fn ready_pieces(
        &self,
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

    /// Commits all holes among the pieces, or none: what was committed before a refusal goes back.
    fn commit(&self, calls: &PageCalls<A>, pieces: &mut [Piece<A>]) -> Result<(), DeviceError> {
        let size = |piece: &Piece<A>| piece.lent.bytes.end - piece.lent.bytes.start;
        let bytes = pieces.iter().filter(|piece| piece.hole).map(size).sum();
        self.ledger.reserve(bytes)?;
        let (mut done, mut missing) = (Vec::new(), bytes);
        for (at, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.hole) {
            let Lent { block, bytes, .. } = &piece.lent;
            if let Err(error) = (calls.commit)(&self.upstream, block, bytes.clone()) {
                for at in done {
                    let piece: &mut Piece<A> = &mut pieces[at];
                    let Lent { block, bytes, .. } = &piece.lent;
                    match (calls.decommit)(&self.upstream, block, bytes.clone(), &[]) {
                        Ok(()) => missing += size(piece),
                        // The device keeps it there, so it is free memory now.
                        Err(_) => piece.hole = false,
                    }
                }
                self.ledger.give_back(missing);
                return Err(error);
            }
            missing -= size(piece);
            done.push(at);
        }
        let mut space = self.space.lock();
        for at in done {
            pieces[at].hole = false;
            space.count_pages(size(&pieces[at]));
        }
        Ok(())
    }

    /// Makes the pieces one block, and what they hold beyond it free.
    fn one_block(
        &self,
        pieces: Vec<Piece<A>>,
        spot: &Spot,
        want: &Want<A::Kind>,
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
        space.count_out(&all, want);
        drop(space);
        Ok(self.block(all, want))
    }

    /// What a part of fresh memory that its taker leaves is behind.
    pub(super) fn fresh_after(&self, on: &StreamOf<A>) -> After<MarkOf<A>> {
        match A::MEMORY.stream_ordered {
            true => After::One(self.clock_of().mark(on)),
            false => After::Nothing,
        }
    }

    /// Gives the memory behind free pieces back; they are holes then. What the device will not have
    /// back stays free memory.
    pub(super) fn decommit(&self, calls: &PageCalls<A>, idle: Vec<Piece<A>>) -> GivenBack {
        let (mut given_back, mut refusal) = (0, None);
        for mut piece in idle {
            let Lent { block, bytes, after, .. } = &piece.lent;
            let size = bytes.end - bytes.start;
            match (calls.decommit)(&self.upstream, block, bytes.clone(), after.marks()) {
                Ok(()) => {
                    self.ledger.give_back(size);
                    given_back += size;
                    piece.hole = true;
                }
                Err(error) => refusal = refusal.or(Some(error)),
            }
            let mut space = self.space.lock();
            if piece.hole {
                space.count_pages_gone(size);
            }
            space.give_piece(self.clock_of(), piece);
        }
        (given_back, refusal)
    }
}
