//! Whether memory came back while a request searched: a search looks at one list after the other,
//! and a block may go from one that it has not seen to one that it has.

use crate::heap::store::Store;
use crate::port::DeviceAllocator;

/// How much memory has come back to the pools of a budget so far. If it is the same before and
/// after a search, and nothing is on its way, the search has seen all memory that was free at one
/// moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// Blocks that buffers gave back, and that went from one cache to another, in all pools.
    blocks: u64,
    /// How often other threads returned memory to a list or to a limit.
    by_others: u64,
}

impl<A: DeviceAllocator> Store<A> {
    /// Reads how much memory has come back so far. Cost: a lock for each pool of the budget, and a
    /// read for each thread cache.
    pub(crate) fn returned(&self) -> Returned {
        let by_others = self.transit().returns_of_others();
        Returned { blocks: self.ledger.budget.returned_blocks(), by_others }
    }

    /// Blocks of this pool that buffers gave back, and that went from one cache to another. It
    /// never falls.
    pub(crate) fn returned_blocks(&self) -> u64 {
        let state = self.book.lock();
        let in_transfer = state.transfer.as_ref().map_or(0, |transfer| transfer.kept());
        let to_book = state.frees.wrapping_add(in_transfer);
        self.caches.kept().wrapping_add(to_book)
    }
}
