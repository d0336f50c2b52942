//! The heaps of this process. A heap stays forever, since its addresses do; one whose pool is gone
//! serves the next pool.
#![expect(unsafe_code, reason = "the system is called through C")]

use pool_host::{PageHeap, PageHeapStats};
use pyo3::Python;
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
    /// Whether a thread looks after the heap.
    background: bool,
}

/// Returns how many addresses a heap may reserve: twice the memory of the machine, and at least 64
/// GiB. A heap keeps them, and a process may have many.
fn addresses() -> u64 {
    // SAFETY: `sysconf` takes a number and returns a number.
    let [pages, bytes] =
        [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    let memory = u64::try_from(pages).unwrap_or(0) * u64::try_from(bytes).unwrap_or(0);
    (2 * memory).max(64 << 30)
}

impl Heap {
    /// Takes a heap with these limits; with `background` a thread looks after all heaps. `None` if
    /// the C library cannot register handlers for a fork.
    pub(crate) fn new(
        limit: Option<u64>,
        decay: Option<Duration>,
        background: bool,
    ) -> Option<Arc<Self>> {
        let unused = heaps().unused.pop();
        let pages = unused.unwrap_or_else(|| {
            let heap = PageHeap::new().addresses(addresses()).background(false);
            let heap: &'static PageHeap = Box::leak(Box::new(heap));
            heaps().all.push(heap);
            heap
        });
        if !pages.start() {
            heaps().unused.push(pages);
            return None;
        }
        if background {
            pages.request_background();
        }
        pages.configure(limit, decay);
        pages.reset_peak();
        Some(Arc::new(Self { pages, before: pages.stats(), background }))
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
    /// Lets the next pool have the heap, with its memory. What no pool needs returns to the system
    /// after a second. No array is in the heap: each held a reference.
    fn drop(&mut self) {
        if self.background {
            let limit = self.pages.stats().cached_limit_bytes;
            self.pages.configure(Some(limit), Some(Duration::from_secs(1)));
        } else {
            // This takes about 100 ms for 1 GiB, and other threads of Python may run meanwhile.
            let trim = || self.pages.trim(u64::MAX);
            if Python::try_attach(|py| py.detach(trim)).is_none() {
                trim();
            }
        }
        heaps().unused.push(self.pages);
    }
}

/// Returns all heaps of the process.
pub(crate) fn all() -> Vec<&'static PageHeap> {
    heaps().all.clone()
}
