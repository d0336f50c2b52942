//! Whether memory came back while a request searched: a search looks at one list after the other,
//! and a block may go from one that it has not seen to one that it has.

use crate::device::DeviceAllocator;
use crate::pool::store::Store;

/// How much memory has come back to a pool, and to its budget, so far. If it is the same before
/// and after a search, and nothing is on its way, the search has seen all free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// Bytes of the blocks that buffers gave back.
    freed: u64,
    /// How often blocks went from one cache to another.
    hand_overs: u64,
    /// Returns of other threads to the lists and limits of the budget's pools.
    by_others: u64,
}

impl<A: DeviceAllocator> Store<A> {
    /// Reads how much memory has come back so far. Cost: linear in the number of thread caches.
    pub(crate) fn returned(&self) -> Returned {
        let by_others = self.transit().returns_of_others();
        let state = self.book.lock();
        let freed = self.reading(&state).figures.allocated.down_total();
        Returned { freed, hand_overs: state.hand_overs, by_others }
    }
}
