//! What a tcache counts.

use std::fmt;

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
        use pool_core::Bytes;
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
