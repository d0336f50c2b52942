//! The statistics of a tcache.

use super::cache::Cache;
use crate::class::Class;
use pool_core::size::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// Counters of a tcache, and the bytes that it holds.
///
/// The sums over all threads are computed when [`Tcache::stats`](super::Tcache::stats) is called.
/// They are exact if no thread uses the tcache during that call.
///
/// Sizes are those of classes and pages, not the requested ones: `dealloc` knows the requested
/// size, but to count it would cost two more additions for each hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TcacheStats {
    /// What the tcache does; all other fields are 0 unless it serves.
    #[serde(default)]
    pub state: TcacheState,
    /// Requests that were served or failed, without those of a tcache that passes through.
    pub allocations: u64,
    /// Blocks that the program freed.
    pub frees: u64,
    /// Requests that failed, since the system had no memory.
    pub failures: u64,
    /// Requests that were served with cached memory: `allocations - misses - bypasses - failures`.
    pub hits: u64,
    /// Requests that got pages without old contents from the system, or a block of a class from the
    /// inner allocator.
    pub misses: u64,
    /// Requests for large blocks that went past the cache to the inner allocator: those aligned to
    /// more than 2 MiB, and those for which the pages have no addresses or no memory.
    pub bypasses: u64,
    /// Batches that moved from the depot to a thread cache.
    pub refills: u64,
    /// Batches that moved out of a full thread cache.
    pub flushes: u64,
    /// Bytes of blocks that the program holds, without large blocks of the inner allocator (see
    /// `bypasses`).
    pub live_bytes: u64,
    /// Cached bytes in thread caches.
    pub thread_cache_bytes: u64,
    /// Cached bytes in the depot, which all threads share.
    pub depot_bytes: u64,
    /// Bytes of free blocks between blocks in use, in pages of both. Some have no memory behind them:
    /// blocks that no request ever had, and pages that have gone back. They are not counted as cached.
    pub span_bytes: u64,
    /// Cached bytes in pages: free pages with memory behind them.
    pub page_bytes: u64,
    /// The cached limit.
    pub cached_limit_bytes: u64,
    /// Thread caches that exist: the largest number of threads that used the tcache at once.
    pub thread_caches: u64,
}

/// What a tcache does in its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TcacheState {
    /// It passes all on: the word `off`, a sanitizer or Valgrind, or a heap that is not started.
    #[default]
    Off,
    /// It passes all on, since another one has the cache of the process.
    Second,
    /// It looks for mistakes of the program, and caches nothing.
    Checked,
    /// It serves requests from its cache.
    Serving,
}

impl TcacheStats {
    /// Returns the statistics of a tcache that has no cache.
    pub(super) fn without_cache(state: TcacheState) -> Self {
        Self { state, ..Self::default() }
    }

    /// Returns `hits / allocations`; 0 if there were no requests.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.allocations == 0 { 0.0 } else { self.hits as f64 / self.allocations as f64 }
    }

    /// Returns all cached bytes: those of thread caches, depot and pages.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.thread_cache_bytes + self.depot_bytes + self.page_bytes
    }
}

impl fmt::Display for TcacheStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            TcacheState::Off => return f.write_str("off: no request is served from a cache"),
            TcacheState::Second => {
                return f.write_str("a second Tcache in the process, which passes all on");
            }
            TcacheState::Checked => return f.write_str("checked mode, which caches nothing"),
            TcacheState::Serving => {}
        }
        write!(
            f,
            "{} allocations, {:.1} % hits, {} misses, {} bypasses; {} live; cached {} in {} thread \
             caches, {} in the depot, {} in free pages, of {} at most",
            self.allocations,
            100.0 * self.hit_rate(),
            self.misses,
            self.bypasses,
            Bytes(self.live_bytes),
            Bytes(self.thread_cache_bytes),
            self.thread_caches,
            Bytes(self.depot_bytes),
            Bytes(self.page_bytes),
            Bytes(self.cached_limit_bytes),
        )
    }
}

impl Cache {
    /// Sums up the counters, and the bytes that are held.
    pub(crate) fn stats(&self) -> TcacheStats {
        let pages = self.pages.stats();
        let mut stats = TcacheStats {
            state: TcacheState::Serving,
            misses: self.counts.misses.load(Relaxed) + pages.fresh,
            bypasses: self.counts.bypasses.load(Relaxed),
            failures: self.counts.failures.load(Relaxed),
            refills: self.counts.refills.load(Relaxed),
            flushes: self.counts.flushes.load(Relaxed),
            page_bytes: pages.dirty + pages.slots,
            cached_limit_bytes: self.limit.load(Relaxed) as u64,
            ..TcacheStats::default()
        };
        let cacheless = self.counts.cacheless.each_ref();
        let larges =
            self.thread_caches.iter().map(|local| local.large.each_ref()).chain([cacheless]);
        for [allocations, frees] in larges {
            stats.allocations += allocations.load(Relaxed);
            stats.frees += frees.load(Relaxed);
        }
        // The pages know how many of their bytes are in use; those in thread caches are subtracted
        // below.
        let mut on_pages = pages.used.saturating_sub(pages.slots);
        for class in Class::all() {
            let [mut allocations, mut frees] = self.depot.cacheless(class);
            stats.depot_bytes += self.depot.recent_bytes(class) as u64;
            stats.span_bytes += self.depot.free_bytes(class) as u64;
            on_pages = on_pages.saturating_sub(self.depot.span_bytes(class) as u64);
            for local in self.thread_caches.iter() {
                let counted = local.counted(class);
                let idle = (counted.blocks * class.bytes()) as u64;
                allocations = counted.allocations.saturating_add(allocations);
                frees = counted.frees.saturating_add(frees);
                stats.thread_cache_bytes += idle;
                if class.is_paged() {
                    on_pages = on_pages.saturating_sub(idle);
                }
            }
            stats.allocations = stats.allocations.saturating_add(allocations);
            stats.frees = stats.frees.saturating_add(frees);
            if !class.is_paged() {
                let live = allocations.saturating_sub(frees).saturating_mul(class.bytes() as u64);
                stats.live_bytes = stats.live_bytes.saturating_add(live);
            }
        }
        for local in self.thread_caches.iter() {
            stats.allocations = stats.allocations.saturating_sub(local.skipped());
            stats.frees = stats.frees.saturating_sub(local.skipped());
        }
        stats.live_bytes = stats.live_bytes.saturating_add(on_pages);
        stats.thread_caches = self.thread_caches.iter().count() as u64;
        let not_cached = stats.misses + stats.bypasses + stats.failures;
        stats.hits = stats.allocations.saturating_sub(not_cached);
        // Each failure was taken out of the live blocks as if it had been freed.
        stats.frees = stats.frees.saturating_sub(stats.failures);
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcache_without_a_cache_says_why() {
        assert_eq!(TcacheStats::default().to_string(), "off: no request is served from a cache");
        let of = |state| TcacheStats::without_cache(state).to_string();
        let (second, checked) = (of(TcacheState::Second), of(TcacheState::Checked));
        assert!(second.starts_with("a second Tcache") && checked.starts_with("checked"));
        let unused = of(TcacheState::Serving);
        assert!(unused.starts_with("0 allocations, "), "{unused}");
    }
}
