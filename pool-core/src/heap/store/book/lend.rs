//! Lends a range of the book: the figures under the lock, then the record without it.
#![expect(unsafe_code, reason = "a record is written into the slot of its range")]

use crate::heap::block::record::{Part, Record, RecordOwner};
use crate::heap::block::request::PoolRequest;
use crate::heap::store::Grant;
use crate::heap::store::book::BookState;
use crate::port::{DeviceAllocator, MarkOf, StreamClock};
use std::ptr::NonNull;

/// A range that is lent, and the slot for its record.
#[must_use]
pub(super) struct Lent<A: DeviceAllocator> {
    part: Part<A>,
    bytes: u64,
    unzeroed: bool,
    slot: NonNull<Record<A>>,
    mark: MarkOf<A>,
}

impl<A: DeviceAllocator> Lent<A> {
    /// Writes the record. Needs no lock.
    #[inline]
    pub(super) fn grant(self, request: &PoolRequest<'_, A>) -> Grant<A> {
        let record = Record::new(self.part, self.bytes, request, self.mark);
        // SAFETY: slots do not move. The range is live and was not lent before, so no code has the
        // record of its number, and none gets it before the owner frees the range.
        let record = unsafe { RecordOwner::in_slot(self.slot, record) };
        Grant { record, fresh: false, zeroed: !self.unzeroed }
    }
}

impl<A: DeviceAllocator> BookState<A> {
    /// Lends a live range. Call it after the last device call for a request, since the record gets
    /// the mark that its stream has reached.
    #[inline]
    pub(super) fn lend(
        &mut self,
        id: u32,
        request: &PoolRequest<'_, A>,
        clock: &A::Clock,
    ) -> Option<Lent<A>> {
        let node = &self.book.nodes[id];
        let (bytes, unzeroed) = (node.bytes, node.unzeroed);
        let block = self.blocks.get(node.segment as usize)?.as_ref()?.share();
        let part = Part { block, offset: node.offset, range: id };
        self.book.count_out(bytes);
        self.figures.out(bytes, request.requested);
        let slot = self.records.slot(id);
        Some(Lent { part, bytes, unzeroed, slot, mark: clock.mark(request.stream) })
    }

    /// Lends a live range that was free memory.
    #[inline]
    pub(super) fn lend_hit(
        &mut self,
        id: u32,
        request: &PoolRequest<'_, A>,
        clock: &A::Clock,
        statistics: bool,
    ) -> Option<Lent<A>> {
        let lent = self.lend(id, request, clock)?;
        self.count_hit(request, !lent.unzeroed, statistics);
        Some(lent)
    }

    /// Counts a request that free memory served.
    #[inline]
    pub(super) fn count_hit(
        &mut self,
        request: &PoolRequest<'_, A>,
        zeroed: bool,
        statistics: bool,
    ) {
        // The rest follows from the figures (`counted`).
        if statistics && (zeroed || !request.class.is_cached()) {
            let pooled = request.class.is_cached();
            *(if pooled { &mut self.untouched_hits } else { &mut self.counts.bypasses }) += 1;
        }
    }

    /// Counts a request that the device served.
    pub(super) fn count_miss(&mut self, request: &PoolRequest<'_, A>, statistics: bool) {
        if !statistics {
            return;
        }
        let counts = &mut self.counts;
        *(if request.class.is_cached() { &mut counts.misses } else { &mut counts.bypasses }) += 1;
        counts.from_device_bytes = counts.from_device_bytes.saturating_add(request.requested);
    }
}
