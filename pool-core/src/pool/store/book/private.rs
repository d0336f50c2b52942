//! Blocks of a book that are kept for a graph: whole, with their records, until the graph goes.

use super::{BookState, PoolBook};
use crate::block::record::RecordOwner;
use crate::block::request::Want;
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
        book: &PoolBook<A>,
        want: &Want<'_, A>,
        mut record: RecordOwner<A>,
    ) -> Grant<A> {
        let mut state = book.lock();
        if let Some(part) = record.part() {
            state.book.nodes[part.range].state = State::Live;
        }
        record.requested = want.requested;
        *record.marks.get_mut() = Marks::new(self.allocator.clock().mark(want.stream));
        state.figures.out(record.bytes, want.requested);
        let zeroed = !record.dirty;
        state.count_hit(want, zeroed, self.bounds.statistics);
        Grant { record, zeroed }
    }

    /// Frees a block into the private pool that it belongs to, or into the book if that is gone.
    #[cold]
    pub(super) fn free_private<'s>(
        &'s self,
        book: &'s PoolBook<A>,
        mut record: RecordOwner<A>,
    ) -> LockGuard<'s, BookState<A>> {
        record.dirty = true; // a later launch of the graph may write it
        {
            let mut state = book.lock();
            state.figures.freed(record.bytes, record.requested);
            state.kept_for_graphs += 1;
            if let Some(part) = record.part() {
                state.book.nodes[part.range].state = State::Private;
            }
        }
        match self.privates.keep(self.allocator.clock(), record) {
            Some(anybodys) => self.free_idle_private(book, anybodys),
            None => book.lock(),
        }
    }

    /// Frees a cached block whose private pool is gone.
    pub(crate) fn free_idle_private<'s>(
        &'s self,
        book: &'s PoolBook<A>,
        record: RecordOwner<A>,
    ) -> LockGuard<'s, BookState<A>> {
        self.free_record(book, record, None)
    }
}
