//! Misses, evictions and refusals of a pool as events of the [`tracing`] facade.

use pool_core::observe::{EventKind, Observer, PoolEvent, Reason};
use tracing::{debug, info, warn};

/// Reports what a pool does besides hits and frees, to the subscriber of the program: an
/// [`Observer`] with the target `bucketpool`.
///
/// | event | level |
/// |---|---|
/// | `miss`, `bypass` | debug |
/// | `evict` for a limit, an age, or because the program asked | debug |
/// | `evict` because a request was short of memory, `wait` | info |
/// | `refuse` | warn |
///
/// A refusal has the bytes of the block that would have served, the verdict, what the pool has reserved,
/// the lower one of its limit and its budget's, and what live buffers have; all fields but the kinds
/// are bytes.
///
/// It does not see hits and frees, which pay nothing for it.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
/// use bucketpool::trace::TracingEvents;
/// use bucketpool::{BucketPool, sim::SimDevice};
/// use std::sync::Arc;
///
/// let builder = BucketPool::builder(SimDevice::new()).name("tiles");
/// let pool = builder.observer(Arc::new(TracingEvents)).build();
/// drop(pool.allocate(4096)?); // an event `miss`
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingEvents;

impl Observer for TracingEvents {
    fn sees_hits(&self) -> bool {
        false
    }

    fn event(&self, event: &PoolEvent<'_>) {
        let PoolEvent { pool, tag, stream, requested_bytes, bytes, .. } = *event;
        let requested = requested_bytes;
        match event.kind {
            EventKind::Miss => {
                debug!(target: "bucketpool", pool, tag, stream, requested, bytes, "miss");
            }
            EventKind::Bypass => {
                debug!(target: "bucketpool", pool, tag, stream, requested, bytes, "bypass");
            }
            EventKind::Evict(Reason::Shortage) => {
                info!(target: "bucketpool", pool, bytes, reason = "shortage", "evict");
            }
            EventKind::Evict(reason) => {
                let reason = &*reason.to_string();
                debug!(target: "bucketpool", pool, bytes, reason, "evict");
            }
            EventKind::Wait => {
                info!(target: "bucketpool", pool, tag, stream, requested, "wait");
            }
            EventKind::Refuse(why) => {
                let why = &*why.to_string();
                let Some(figures) = event.refusal else {
                    warn!(target: "bucketpool", pool, tag, stream, requested, bytes, why, "refuse");
                    return;
                };
                let verdict = &*format!("{:?}", figures.verdict);
                let (reserved, in_buffers) = (figures.reserved_bytes, figures.allocated_bytes);
                let limit = figures.reserved_limit_bytes.min(figures.budget_limit_bytes);
                warn!(
                    target: "bucketpool",
                    pool, tag, stream, requested, bytes, why, verdict, reserved, in_buffers, limit, "refuse"
                );
            }
            _ => {}
        }
    }
}
