//! The statistics of a pool as metrics of the [`metrics`] facade, for Prometheus and the like.
//!
//! Metrics are read from [`BucketPool::stats`](pool_core::BucketPool::stats) when they are
//! published, so a hit pays nothing. Publish before each scrape, or on a timer.

use metrics::{Label, counter, gauge};
use pool_core::PoolStats;

/// Publishes the statistics of a pool under a name, as the label `pool`.
///
/// - Counters of requests: `bucketpool_hits_total`, `bucketpool_misses_total`,
///   `bucketpool_bypasses_total`, `bucketpool_failures_total`.
/// - Counters of blocks: `bucketpool_evictions_total`, and of frees,
///   `bucketpool_deallocations_total`.
/// - Gauges in bytes: `bucketpool_requested_bytes`, `bucketpool_allocated_bytes`,
///   `bucketpool_active_bytes`, `bucketpool_reserved_bytes`, `bucketpool_cached_bytes`,
///   `bucketpool_lost_bytes`, `bucketpool_reserved_peak_bytes`.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_trace as trace; }
/// use bucketpool::{BucketPool, sim::SimDevice};
///
/// let pool = BucketPool::new(SimDevice::new());
/// drop(pool.allocate(4096)?);
/// bucketpool::trace::metrics::publish("tiles", &pool.stats());
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn publish(pool: &str, stats: &PoolStats) {
    let labels = vec![Label::new("pool", pool.to_owned())];
    for (name, value) in [
        ("bucketpool_hits_total", stats.hits),
        ("bucketpool_misses_total", stats.misses),
        ("bucketpool_bypasses_total", stats.bypasses),
        ("bucketpool_failures_total", stats.failures),
        ("bucketpool_evictions_total", stats.evictions),
        ("bucketpool_deallocations_total", stats.deallocations),
    ] {
        counter!(name, labels.clone()).absolute(value);
    }
    for (name, bytes) in [
        ("bucketpool_requested_bytes", stats.requested_bytes),
        ("bucketpool_allocated_bytes", stats.allocated_bytes),
        ("bucketpool_active_bytes", stats.active_bytes),
        ("bucketpool_reserved_bytes", stats.reserved_bytes),
        ("bucketpool_cached_bytes", stats.cached_bytes),
        ("bucketpool_lost_bytes", stats.lost_bytes),
        ("bucketpool_reserved_peak_bytes", stats.reserved_peak_bytes),
    ] {
        gauge!(name, labels.clone()).set(bytes as f64);
    }
}
