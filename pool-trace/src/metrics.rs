//! The statistics of a pool as metrics of the [`metrics`] facade, for Prometheus and the like.
//!
//! Metrics are read from [`BucketPool::stats`] when they are published, so a hit pays nothing.
//! Publish before each scrape, or on a timer.

use metrics::{Label, counter, gauge};
use pool_core::{BucketPool, DeviceAllocator, PoolStats};

/// Publishes the statistics of a pool under the name that its builder gave it, as the label `pool`.
/// Pools without a name share the empty label, and the last one published is seen.
///
/// - Counters of requests: `bucketpool_hits_total`, `bucketpool_misses_total`,
///   `bucketpool_bypasses_total`, `bucketpool_failures_total`, and of those that waited for memory
///   `bucketpool_waits_total` and `bucketpool_timeouts_total`, a part of the failures.
/// - Counters of blocks: `bucketpool_evictions_total`, and of frees,
///   `bucketpool_deallocations_total`.
/// - Gauges in bytes: `bucketpool_requested_bytes`, `bucketpool_allocated_bytes`,
///   `bucketpool_active_bytes`, `bucketpool_reserved_bytes`, `bucketpool_cached_bytes`,
///   `bucketpool_lost_bytes`, `bucketpool_reserved_peak_bytes`, and the limits
///   `bucketpool_reserved_limit_bytes` and `bucketpool_cached_limit_bytes`, infinite without a limit:
///   reserved bytes divided by their limit are the share that is used.
/// - A gauge of requests that wait now, over all pools of the pool's budget:
///   `bucketpool_waiting_requests`.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
/// use bucketpool::{BucketPool, sim::SimDevice};
///
/// let pool = BucketPool::builder(SimDevice::new()).name("tiles").build();
/// drop(pool.allocate(4096)?);
/// bucketpool::trace::metrics::publish(&pool);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn publish<A: DeviceAllocator>(pool: &BucketPool<A>) {
    publish_stats(pool.name(), &pool.stats());
    gauge!("bucketpool_waiting_requests", labels(pool.name()))
        .set(pool.budget().waiter_count() as f64);
}

/// Publishes statistics under a name, such as those of a `AnyPool`: all that
/// [`publish`] does but the requests that wait now.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
/// use bucketpool::{BucketPool, config::AnyPool, sim::SimDevice};
///
/// let pool = AnyPool::from(BucketPool::new(SimDevice::new()));
/// bucketpool::trace::metrics::publish_stats("tiles", &pool.stats());
/// ```
pub fn publish_stats(pool: &str, stats: &PoolStats) {
    let labels = labels(pool);
    for (name, value) in [
        ("bucketpool_hits_total", stats.hits),
        ("bucketpool_misses_total", stats.misses),
        ("bucketpool_bypasses_total", stats.bypasses),
        ("bucketpool_failures_total", stats.failures),
        ("bucketpool_waits_total", stats.waits),
        ("bucketpool_timeouts_total", stats.timeouts),
        ("bucketpool_evictions_total", stats.evictions),
        ("bucketpool_deallocations_total", stats.deallocations),
    ] {
        counter!(name, labels.clone()).absolute(value);
    }
    for (name, bytes) in [
        ("bucketpool_requested_bytes", Some(stats.requested_bytes)),
        ("bucketpool_allocated_bytes", Some(stats.allocated_bytes)),
        ("bucketpool_active_bytes", Some(stats.active_bytes)),
        ("bucketpool_reserved_bytes", Some(stats.reserved_bytes)),
        ("bucketpool_reserved_limit_bytes", stats.reserved_limit_bytes),
        ("bucketpool_cached_bytes", Some(stats.cached_bytes)),
        ("bucketpool_cached_limit_bytes", stats.cached_limit_bytes),
        ("bucketpool_lost_bytes", Some(stats.lost_bytes)),
        ("bucketpool_reserved_peak_bytes", Some(stats.reserved_peak_bytes)),
    ] {
        gauge!(name, labels.clone()).set(bytes.map_or(f64::INFINITY, |bytes| bytes as f64));
    }
}

fn labels(pool: &str) -> Vec<Label> {
    vec![Label::new("pool", pool.to_owned())]
}
