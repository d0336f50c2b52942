//! Ranges that were taken out of the lists, so that calls to the device need no lock.
#![expect(unsafe_code, reason = "the block of a segment outlives its ranges")]

use crate::limits::GivenBack;
use crate::observe::Reason;
use crate::port::{DeviceAllocator, DeviceError, MarkOf, PageCalls, StreamClock};
use crate::ranges::node::NodeState;
use crate::shard::State;
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
        // are free; this one is `Moving` until it is put back.
        unsafe { self.block.as_ref() }
    }
}

impl<A: DeviceAllocator> State<A> {
    /// A range that was taken out, with all that a call to the device needs.
    pub(super) fn piece(&self, id: u32) -> Option<Piece<A>> {
        let node = &self.ranges.nodes[id];
        let block = self.segment_of(id)?.share();
        let hole = node.state == NodeState::Moving { hole: true };
        let (after, freed_at) = (node.marks.clone(), node.freed_at);
        Some(Piece { id, block, range: node.range(), after, freed_at, hole, fresh: false })
    }

    /// Takes out free pages, at least `bytes` bytes or all that a bounded search finds.
    pub(super) fn spare_pages(&mut self, bytes: u64) -> Vec<Piece<A>> {
        let found = if bytes > 0 { self.ranges.pick_returnable(bytes) } else { Vec::new() };
        let ids = found.into_iter().filter_map(|found| self.ranges.carve(found.id, &found.part));
        let ids = ids.collect::<Vec<_>>();
        ids.into_iter().filter_map(|id| self.piece(id)).collect()
    }
}

/// Pieces that this thread has taken out. What is left of them when it is dropped is put into the
/// lists again, as what it is then: also if a call to the device panics.
pub(super) struct Moving<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    /// Their shard.
    at: usize,
    pub(super) pieces: Vec<Piece<A>>,
    /// How many of them others may wait for.
    counted: usize,
}

impl<A: DeviceAllocator> Moving<'_, A> {
    /// Takes the pieces over, which are live from now on. Call it under the lock of their shard.
    pub(super) fn take_over(&mut self) -> Vec<Piece<A>> {
        self.store.transit().end(std::mem::take(&mut self.counted));
        std::mem::take(&mut self.pieces)
    }
}

impl<A: DeviceAllocator> Drop for Moving<'_, A> {
    fn drop(&mut self) {
        if self.counted == 0 {
            return;
        }
        let (clock, pieces) = (self.store.allocator.clock(), std::mem::take(&mut self.pieces));
        let mut state = self.store.shards.lock(self.at);
        for piece in pieces {
            if piece.hole {
                state.ranges.put_hole(clock, piece.id);
            } else {
                if piece.fresh {
                    state.ranges.note_committed(piece.id);
                }
                state.ranges.release(clock, piece.id, piece.after, piece.freed_at);
                state.ranges.rejoin(clock, piece.id);
            }
        }
        self.take_over();
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// Notes that this thread has pieces which may be free in a moment. Call it under the lock.
    pub(super) fn moving(&self, at: usize, pieces: Vec<Piece<A>>) -> Moving<'_, A> {
        let counted = pieces.len();
        self.transit().begin(counted);
        Moving { store: self, at, pieces, counted }
    }

    /// Gives the memory behind pieces back; they are holes then. What the device refuses
    /// stays free memory; so does what a stream still uses, unless the host may `wait`.
    pub(super) fn decommit(
        &self,
        pages: &PageCalls<A>,
        mut moving: Moving<'_, A>,
        wait: bool,
        reason: Reason,
    ) -> GivenBack {
        let is_done = |mark: &MarkOf<A>| self.allocator.clock().is_done(*mark) == Ok(true);
        let may = |piece: &&mut Piece<A>| wait || piece.after.marks().iter().all(is_done);
        self.decommit_each(pages, moving.pieces.iter_mut().filter(may), Some(reason))
    }

    pub(super) fn decommit_each<'p>(
        &self,
        pages: &PageCalls<A>,
        pieces: impl Iterator<Item = &'p mut Piece<A>>,
        reason: Option<Reason>,
    ) -> GivenBack
    where
        A: 'p,
    {
        let (mut given_back, mut refusal) = (0, None);
        for piece in pieces.filter(|piece| !piece.hole) {
            let waits = !self.is_seen_done(piece.after.marks());
            let (range, marks) = (piece.range.clone(), piece.after.marks());
            let outcome = (pages.decommit)(&self.allocator, piece.segment(), range, marks);
            refusal = refusal.or(outcome.err());
            let mut calls = self.calls.lock();
            calls.num_sync_all_streams += u64::from(waits);
            // A lost device has nothing.
            if outcome.is_ok() || outcome.is_err_and(DeviceError::is_end_of_device) {
                self.ledger.note_freed(piece.bytes());
                calls.reserved_bytes.down(false, piece.bytes());
                calls.num_device_free += pages.calls_for(piece.bytes());
                given_back += if outcome.is_ok() { piece.bytes() } else { 0 };
                piece.hole = true;
                drop(calls);
                if let Some(reason) = reason {
                    self.notify_eviction(reason, piece.bytes());
                }
            }
        }
        (given_back, refusal)
    }

    /// Whether all marks were seen done, so that giving back waits for nothing.
    pub(super) fn is_seen_done(&self, marks: &[MarkOf<A>]) -> bool {
        marks.iter().all(|mark| self.allocator.clock().is_seen_done(*mark))
    }
}
