//! Statistics by stream and by tag.

use pool_core::observe::{EventKind, Observer, PoolEvent};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Counts requests and bytes by stream and by tag: an [`Observer`].
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
/// use bucketpool::{BucketPool, KIB, sim::SimDevice, trace::Breakdown};
/// use std::sync::Arc;
///
/// let breakdown = Arc::new(Breakdown::default());
/// let pool = BucketPool::builder(SimDevice::new()).observer(breakdown.clone()).build();
/// let weights = pool.tagged("weights").allocate(64 * KIB)?;
/// drop(pool.tagged("scratch").allocate(4 * KIB)?);
/// let by_tag = breakdown.by_tag();
/// assert_eq!(by_tag["weights"].live_bytes, weights.size());
/// assert_eq!((by_tag["scratch"].live_bytes, by_tag["scratch"].peak_bytes), (0, 4 * KIB));
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Debug, Default)]
pub struct Breakdown {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    by_stream: BTreeMap<u64, RequestCounts>,
    by_tag: BTreeMap<&'static str, RequestCounts>,
}

/// The requests of one stream, or of one tag. Bytes are those that were requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Requests that were served.
    pub allocations: u64,
    /// Of those, requests that cached blocks served.
    pub hits: u64,
    /// Requests that were refused.
    pub refusals: u64,
    /// Requests that waited for memory.
    pub waits: u64,
    /// Buffers that were freed.
    pub frees: u64,
    /// Bytes of live buffers.
    pub live_bytes: u64,
    /// The most of that at once.
    pub peak_bytes: u64,
}

impl Breakdown {
    /// Returns the statistics of each stream, by its number.
    #[must_use]
    pub fn by_stream(&self) -> BTreeMap<u64, RequestCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).by_stream.clone()
    }

    /// Returns the statistics of each tag; requests without one are below the empty name.
    #[must_use]
    pub fn by_tag(&self) -> BTreeMap<&'static str, RequestCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).by_tag.clone()
    }
}

impl Observer for Breakdown {
    fn event(&self, event: &PoolEvent<'_>) {
        if matches!(event.kind, EventKind::Evict(_)) {
            return;
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.by_stream.entry(event.stream).or_default().add(event);
        counts.by_tag.entry(event.tag).or_default().add(event);
    }
}

impl RequestCounts {
    fn add(&mut self, event: &PoolEvent<'_>) {
        match event.kind {
            EventKind::Hit | EventKind::Miss | EventKind::Bypass => {
                self.allocations += 1;
                self.hits += u64::from(event.kind == EventKind::Hit);
                self.live_bytes += event.requested_bytes;
                self.peak_bytes = self.peak_bytes.max(self.live_bytes);
            }
            EventKind::Free => {
                self.frees += 1;
                self.live_bytes = self.live_bytes.saturating_sub(event.requested_bytes);
            }
            EventKind::Refuse(_) => self.refusals += 1,
            EventKind::Wait => self.waits += 1,
            _ => {}
        }
    }
}
