//! Blocks of a book that are kept for a graph: whole, with their records, until the graph goes.

use super::BookState;
use crate::block::record::RecordOwner;
use crate::block::request::PoolRequest;
use crate::book::node::State;
use crate::device::DeviceAllocator;
use crate::lock::LockGuard;
use crate::pool::store::{Grant, Store};
use crate::stream::clock::StreamClock;
use crate::stream::marks::Marks;

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
        *record.marks.get_mut() = Marks::new(self.allocator.clock().mark(request.stream));
        state.figures.out(record.bytes, request.requested);
        let zeroed = !record.unzeroed;
        state.count_hit(request, zeroed, self.bounds.statistics);
        Grant { record, fresh: false, zeroed }
    }

    /// Frees a block into the private pool that it belongs to, or into the book if that is gone.
    #[cold]
    pub(super) fn free_private(&self, mut record: RecordOwner<A>) -> LockGuard<'_, BookState<A>> {
        record.unzeroed = true; // a later launch of the graph may write it
        {
            let mut state = self.with_own_counts();
            state.figures.freed(record.bytes, record.requested);
            state.book.nodes[record.part.range].state = State::Private;
        }
        if let Some(anybodys) = self.privates.keep(self.allocator.clock(), record) {
            return self.free_idle_private(anybodys, true);
        }
        let mut state = self.book.lock();
        state.not_kept += 1;
        state
    }

    /// Frees a block whose private pool is gone. `from_buffer`: not one that lay there.
    pub(crate) fn free_idle_private(
        &self,
        record: RecordOwner<A>,
        from_buffer: bool,
    ) -> LockGuard<'_, BookState<A>> {
        let mut state = self.book.lock();
        let counted = state.not_kept;
        let segment = state.free_or_keep(self.allocator.clock(), record, &self.bounds);
        if !from_buffer {
            state.not_kept = counted;
        }
        if self.book.blocks {
            return self.free_deferred_in_drop(state);
        }
        self.shrink_after_free(state, Some(segment))
    }
}
