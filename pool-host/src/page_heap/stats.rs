//! The statistics of a page heap.

use crate::pages::PagesStats;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use pool_core::size::Bytes;
use std::fmt;

/// Counters of a page heap, and the bytes that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageHeapStats {
    /// Requests that were served. It may be a little too low where threads share a counter.
    pub allocations: u64,
    /// The part of `allocations` that got pages without old contents from the system.
    pub misses: u64,
    /// Bytes of blocks that are in use, in whole pages.
    pub live_bytes: u64,
    /// High-water mark of `live_bytes` and recently freed blocks.
    pub live_peak_bytes: u64,
    /// Bytes that are cached: free, with memory behind them.
    pub cached_bytes: u64,
    /// Bytes that were given back to the system, in sum.
    pub returned_bytes: u64,
    /// The limit on cached bytes; 0 before the start.
    pub cached_limit_bytes: u64,
}

impl PageHeapStats {
    pub(super) fn of(pages: &PagesStats, counts: &ShardCounts, limit: usize) -> Self {
        Self {
            allocations: counts.allocations().max(pages.fresh),
            misses: pages.fresh,
            live_bytes: pages.used.saturating_sub(pages.slots),
            live_peak_bytes: pages.used_peak,
            cached_bytes: pages.dirty + pages.slots,
            returned_bytes: pages.returned,
            cached_limit_bytes: limit as u64,
        }
    }

    /// Returns the requests that cached memory served.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.allocations.saturating_sub(self.misses)
    }

    /// Returns the part of the requests that cached memory served; 0 if there were no requests.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.allocations == 0 { 0.0 } else { self.hits() as f64 / self.allocations as f64 }
    }
}

impl fmt::Display for PageHeapStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A heap that serves has a limit.
        if self.cached_limit_bytes == 0 {
            return f.write_str("off: the heap is not started");
        }
        write!(
            f,
            "{} large blocks, {:.1} % from cached memory; {} in use, {} at most; {} cached of {} \
             at most; {} given back",
            self.allocations,
            100.0 * self.hit_rate(),
            Bytes(self.live_bytes),
            Bytes(self.live_peak_bytes),
            Bytes(self.cached_bytes),
            Bytes(self.cached_limit_bytes),
            Bytes(self.returned_bytes),
        )
    }
}

/// Number of counters. A thread uses the one of its number, so that most threads share none.
const SHARDS: usize = 8;

/// Counters of requests and of freed bytes.
///
/// They are loaded and stored, not added atomically: an atomic addition would cost a fifth of a
/// hit. Two threads that share a counter may lose a few counts.
#[derive(Debug)]
pub(super) struct ShardCounts([Count; SHARDS]);

/// The counters of one shard, on cache lines that no other shard uses.
#[derive(Debug)]
#[repr(align(128))]
struct Count {
    allocations: AtomicU64,
    /// Bytes freed since [`ShardCounts::add_freed`] last returned a sum.
    freed: AtomicUsize,
}

impl Count {
    const fn new() -> Self {
        Self { allocations: AtomicU64::new(0), freed: AtomicUsize::new(0) }
    }
}

impl ShardCounts {
    pub(super) const fn new() -> Self {
        Self([const { Count::new() }; SHARDS])
    }

    /// Counts a request of the thread with this number.
    #[inline]
    pub(super) fn add_allocation(&self, own: usize) {
        let allocations = &self.0[own % SHARDS].allocations;
        allocations.store(allocations.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Counts freed bytes of the thread with this number. Returns the sum each time that a shard
    /// has counted `every` bytes, and begins again.
    #[inline]
    pub(super) fn add_freed(&self, own: usize, bytes: usize, every: usize) -> Option<usize> {
        let freed = &self.0[own % SHARDS].freed;
        let sum = freed.load(Relaxed).saturating_add(bytes);
        let is_time = sum >= every;
        freed.store(if is_time { 0 } else { sum }, Relaxed);
        is_time.then_some(sum)
    }

    fn allocations(&self) -> u64 {
        self.0.iter().map(|count| count.allocations.load(Relaxed)).sum()
    }
}
