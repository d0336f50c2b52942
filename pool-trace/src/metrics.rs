//! The statistics of a pool as metrics of the [`metrics`] facade, for Prometheus and the like.
//!
//! Metrics are read from [`BucketPool::stats`] when they are published, so a hit pays nothing.
//! Publish before each scrape, or on a timer.

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, gauge};
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
/// Each has its unit and a sentence that says what it is (`# HELP` of Prometheus).
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
    let what = "Requests that wait for memory now, over all pools of the budget";
    describe_gauge!("bucketpool_waiting_requests", Unit::Count, what);
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
    for (name, value, what) in counters(stats) {
        describe_counter!(name, Unit::Count, what);
        counter!(name, labels.clone()).absolute(value);
    }
    for (name, bytes, what) in gauges(stats) {
        describe_gauge!(name, Unit::Bytes, what);
        gauge!(name, labels.clone()).set(bytes.map_or(f64::INFINITY, |bytes| bytes as f64));
    }
}

/// The counters: name, value and what it counts.
fn counters(stats: &PoolStats) -> [(&'static str, u64, &'static str); 8] {
    [
        ("bucketpool_hits_total", stats.hits, "Requests that free memory of the pool served"),
        ("bucketpool_misses_total", stats.misses, "Requests that the device served"),
        (
            "bucketpool_bypasses_total",
            stats.bypasses,
            "Requests of no size class, which went past the pool to the device",
        ),
        (
            "bucketpool_failures_total",
            stats.failures,
            "Requests that were refused, those that timed out included",
        ),
        ("bucketpool_waits_total", stats.waits, "Requests that waited for memory"),
        ("bucketpool_timeouts_total", stats.timeouts, "Requests that waited in vain"),
        ("bucketpool_evictions_total", stats.evictions, "Free blocks that went back to the device"),
        ("bucketpool_deallocations_total", stats.deallocations, "Buffers that were freed"),
    ]
}

/// The gauges in bytes: name, value, which is infinite for no limit, and what it is.
fn gauges(stats: &PoolStats) -> [(&'static str, Option<u64>, &'static str); 9] {
    [
        (
            "bucketpool_requested_bytes",
            Some(stats.requested_bytes),
            "Bytes that live buffers requested",
        ),
        (
            "bucketpool_allocated_bytes",
            Some(stats.allocated_bytes),
            "Bytes of the blocks of live buffers, after rounding",
        ),
        (
            "bucketpool_active_bytes",
            Some(stats.active_bytes),
            "Bytes of blocks of live buffers, and of freed ones that streams may still use",
        ),
        (
            "bucketpool_reserved_bytes",
            Some(stats.reserved_bytes),
            "Bytes that the pool has from the device",
        ),
        (
            "bucketpool_reserved_limit_bytes",
            stats.reserved_limit_bytes,
            "The limit on reserved bytes, of the pool or of its budget",
        ),
        ("bucketpool_cached_bytes", Some(stats.cached_bytes), "Bytes of free memory of the pool"),
        ("bucketpool_cached_limit_bytes", stats.cached_limit_bytes, "The limit on cached bytes"),
        (
            "bucketpool_lost_bytes",
            Some(stats.lost_bytes),
            "Bytes that the device did not take back",
        ),
        (
            "bucketpool_reserved_peak_bytes",
            Some(stats.reserved_peak_bytes),
            "The most bytes that the pool had from the device at once",
        ),
    ]
}

fn labels(pool: &str) -> Vec<Label> {
    vec![Label::new("pool", pool.to_owned())]
}
