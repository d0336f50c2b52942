//! What a tcache counts.

use super::cache::Cache;
use crate::depot::{CLASSES, Class};
use pool_core::Bytes;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// What a tcache has counted, and what it holds. Summed over all threads when it is asked for;
/// exact when no thread is in it meanwhile.
///
/// Sizes are those of the classes: a program's `dealloc` says what was asked for, but nobody counts
/// it, since that would cost each hit two more additions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcacheStats {
    /// Requests that had a size class.
    pub allocations: u64,
    /// Blocks that came back.
    pub frees: u64,
    /// Requests that were served without the inner allocator.
    pub hits: u64,
    /// Requests that it served.
    pub misses: u64,
    /// Requests past the cache: aligned to more than 16 bytes, or above 64 GiB.
    pub bypasses: u64,
    /// Batches from the depot to a thread.
    pub refills: u64,
    /// Batches from a thread to the depot.
    pub flushes: u64,
    /// Blocks given back to the inner allocator because of the bound.
    pub evictions: u64,
    /// Blocks given back because nobody needed them for a while.
    pub decayed: u64,
    /// Bytes that the program holds.
    pub live_bytes: u64,
    /// Idle bytes in the fronts of threads.
    pub front_bytes: u64,
    /// Idle bytes that all threads share.
    pub depot_bytes: u64,
    /// What fronts and depot may hold without asking; never less than they hold, never above the
    /// bound.
    pub leased_bytes: u64,
    /// The most that ever was.
    pub leased_peak_bytes: u64,
    /// The bound.
    pub cached_limit_bytes: u64,
    /// Fronts: as many as threads lived at once.
    pub fronts: u64,
}

impl TcacheStats {
    /// Hits of all requests that had a size class; 0 without any.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.allocations == 0 { 0.0 } else { self.hits as f64 / self.allocations as f64 }
    }

    /// All idle bytes.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.front_bytes + self.depot_bytes
    }
}

impl fmt::Display for TcacheStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} allocations, {:.1} % hits, {} misses, {} past it; {} live, {} idle in {} fronts, \
             {} in the depot, of {} at most",
            self.allocations,
            100.0 * self.hit_rate(),
            self.misses,
            self.bypasses,
            Bytes(self.live_bytes),
            Bytes(self.front_bytes),
            self.fronts,
            Bytes(self.depot_bytes),
            Bytes(self.cached_limit_bytes),
        )
    }
}

impl Cache {
    /// What it has counted and holds.
    pub(crate) fn stats(&self) -> TcacheStats {
        let mut stats = TcacheStats {
            misses: self.counts.misses.load(Relaxed),
            bypasses: self.counts.bypasses.load(Relaxed),
            refills: self.counts.refills.load(Relaxed),
            flushes: self.counts.flushes.load(Relaxed),
            evictions: self.counts.evicted.load(Relaxed),
            decayed: self.counts.decayed.load(Relaxed),
            leased_bytes: self.depot.leases.leased() as u64,
            leased_peak_bytes: self.depot.leases.peak() as u64,
            cached_limit_bytes: self.depot.leases.limit() as u64,
            ..TcacheStats::default()
        };
        for class in (0..CLASSES).map(Class::numbered) {
            let [mut allocations, mut frees] = self.depot.orphans(class);
            stats.depot_bytes += self.depot.bytes(class) as u64;
            for front in self.fronts.iter() {
                let counted = front.counted(class);
                allocations = counted.allocations.saturating_add(allocations);
                frees = counted.frees.saturating_add(frees);
                stats.front_bytes += (counted.blocks * class.bytes()) as u64;
            }
            stats.allocations = stats.allocations.saturating_add(allocations);
            stats.frees = stats.frees.saturating_add(frees);
            let live = allocations.saturating_sub(frees).saturating_mul(class.bytes() as u64);
            stats.live_bytes = stats.live_bytes.saturating_add(live);
        }
        stats.fronts = self.fronts.iter().count() as u64;
        stats.hits = stats.allocations.saturating_sub(stats.misses);
        stats
    }
}
