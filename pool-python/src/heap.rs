//! The heaps of this process. A heap stays forever, since its addresses do; one whose pool is gone
//! serves the next pool.

use pool_host::{PageHeap, PageHeapStats};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// All heaps, and those whose pool is gone.
///
/// Python's interpreter lock guards it over a fork: only calls from Python take this lock.
static HEAPS: Mutex<Heaps> = Mutex::new(Heaps { all: Vec::new(), unused: Vec::new() });

struct Heaps {
    all: Vec<&'static PageHeap>,
    unused: Vec<&'static PageHeap>,
}

fn heaps() -> MutexGuard<'static, Heaps> {
    HEAPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A heap in use: by its pool, and by each array that is in it.
#[derive(Debug)]
pub(crate) struct Heap {
    pages: &'static PageHeap,
    /// Counts of the pools that had the heap before.
    before: PageHeapStats,
}

impl Heap {
    /// Takes a heap with these limits. `None` if the C library cannot register handlers for a fork.
    pub(crate) fn new(limit: Option<u64>, decay: Option<Duration>) -> Option<Arc<Self>> {
        let unused = heaps().unused.pop();
        let pages = unused.unwrap_or_else(|| {
            let heap: &'static PageHeap = Box::leak(Box::new(PageHeap::new().background(true)));
            heaps().all.push(heap);
            heap
        });
        if !pages.start() {
            heaps().unused.push(pages);
            return None;
        }
        pages.configure(limit, decay);
        pages.reset_peak();
        Some(Arc::new(Self { pages, before: pages.stats() }))
    }

    /// Returns the heap.
    pub(crate) fn pages(&self) -> &'static PageHeap {
        self.pages
    }

    /// Returns the statistics of this pool alone.
    pub(crate) fn stats(&self) -> PageHeapStats {
        let mut stats = self.pages.stats();
        stats.allocations -= self.before.allocations.min(stats.allocations);
        stats.misses -= self.before.misses;
        stats.returned_bytes -= self.before.returned_bytes;
        stats
    }
}

impl Drop for Heap {
    /// Gives the memory back. No array is in the heap: each held a reference.
    fn drop(&mut self) {
        self.pages.trim(u64::MAX);
        heaps().unused.push(self.pages);
    }
}

/// Returns all heaps of the process.
pub(crate) fn all() -> Vec<&'static PageHeap> {
    heaps().all.clone()
}
