//! Blocks of a book that are kept for a graph: whole, with their records, until the graph goes.

use crate::heap::block::record::RecordOwner;
use crate::heap::block::request::PoolRequest;
use crate::heap::book::node::State;
use crate::heap::store::book::BookState;
use crate::heap::store::{Grant, Store};
use crate::limits::InTransit;
use crate::port::{DeviceAllocator, StreamClock};
use crate::stream::LastUses;
use crate::sys::LockGuard;

impl<A: DeviceAllocator> Store<A> {
    /// Lends a cached block of a private pool again.
    pub(crate) fn lend_private(
        &self,
        request: &PoolRequest<'_, A>,
        mut record: RecordOwner<A>,
    ) -> Grant<A> {
        let mut state = self.with_own_counts();
        state.book.nodes[record.part.range].state = State::Live;
        record.requested = request.requested;
        *record.marks.get_mut() = LastUses::new(self.allocator.clock().mark(request.stream));
        state.figures.out(record.bytes, request.requested);
        let zeroed = !record.unzeroed;
        state.count_hit(request, zeroed, self.bounds.statistics);
        Grant { record, fresh: false, zeroed }
    }

    /// Frees a block into the private pool that it belongs to, or into the book if that is gone.
    #[cold]
    pub(super) fn free_private(&self, mut record: RecordOwner<A>) -> LockGuard<'_, BookState<A>> {
        record.unzeroed = true; // a later launch of the graph may write it
        let _in_transit = InTransit::new(self.transit());
        {
            let mut state = self.with_own_counts();
            state.figures.freed(record.bytes, record.requested);
            state.book.nodes[record.part.range].state = State::Private;
        }
        if let Some(anybodys) = self.privates.keep(self.allocator.clock(), record) {
            return self.free_without_private(anybodys);
        }
        let mut state = self.book.lock();
        state.not_kept += 1;
        state
    }

    /// Frees a block that a buffer had and whose private pool is gone.
    fn free_without_private(&self, record: RecordOwner<A>) -> LockGuard<'_, BookState<A>> {
        let mut state = self.book.lock();
        let segment = state.free_or_keep(self.allocator.clock(), record, &self.bounds);
        self.give_back_in_drop(state, segment)
    }

    /// Frees the blocks that lay in a private pool which is gone. All of them are free memory
    /// before the device is called, so a panic of the device loses one block at most.
    pub(crate) fn free_private_blocks(
        &self,
        records: Vec<RecordOwner<A>>,
        in_transit: InTransit<'_>,
    ) {
        let mut segments = Vec::with_capacity(records.len());
        for record in records {
            let mut state = self.book.lock();
            let counted = state.not_kept; // no buffer gave it back
            segments.push(state.free_or_keep(self.allocator.clock(), record, &self.bounds));
            state.not_kept = counted;
        }
        drop(in_transit);
        for segment in segments {
            drop(self.give_back_in_drop(self.book.lock(), segment));
        }
    }

    /// After a free in a segment: gives back what passes the bounds, if a drop may.
    fn give_back_in_drop<'s>(
        &'s self,
        state: LockGuard<'s, BookState<A>>,
        segment: u32,
    ) -> LockGuard<'s, BookState<A>> {
        match self.book.blocks {
            true => self.free_deferred_in_drop(state),
            false => self.shrink_after_free(state, Some(segment)),
        }
    }
}
