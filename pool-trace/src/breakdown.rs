//! Statistics by stream and by tag.

use pool_core::observe::{EventKind, Observer, PoolEvent};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Streams that have an entry each although they have no live buffer, at most. A program that makes a
/// stream for each piece of work has any number of streams, and few at once.
const MAX_IDLE_STREAMS: usize = 1024;

/// Counts requests and bytes by stream and by tag: an [`Observer`].
///
/// It has an entry for each stream with live buffers, and for up to 1024 of the others: those used
/// last. The rest is one sum, [`Breakdown::other_streams`].
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
    by_stream: BTreeMap<u64, StreamCounts>,
    other_streams: RequestCounts,
    /// Events so far.
    events: u64,
    /// Entries of `by_stream` at which idle streams are next summed up, if that is more than
    /// [`MAX_IDLE_STREAMS`].
    sum_up_at: usize,
    by_tag: BTreeMap<&'static str, RequestCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct StreamCounts {
    requests: RequestCounts,
    /// The number of its last event.
    used_at: u64,
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
    /// Returns the statistics of each stream that has live buffers or was used lately, by its
    /// number.
    #[must_use]
    pub fn by_stream(&self) -> BTreeMap<u64, RequestCounts> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.by_stream.iter().map(|(stream, counts)| (*stream, counts.requests)).collect()
    }

    /// Returns the sum of the statistics of all streams that [`Breakdown::by_stream`] leaves out.
    /// `peak_bytes` is the largest of theirs, since they were not all there at once. A stream that is
    /// used again after it was summed up begins with zeros.
    #[must_use]
    pub fn other_streams(&self) -> RequestCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).other_streams
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
        counts.events += 1;
        let used_at = counts.events;
        let stream = counts.by_stream.entry(event.stream).or_default();
        stream.used_at = used_at;
        stream.requests.add(event);
        if counts.by_stream.len() > MAX_IDLE_STREAMS.max(counts.sum_up_at) {
            counts.sum_up_idle();
        }
        counts.by_tag.entry(event.tag).or_default().add(event);
    }
}

impl Counts {
    /// Sums up the streams without live buffers but for half of [`MAX_IDLE_STREAMS`], those used last.
    fn sum_up_idle(&mut self) {
        let idle = self.by_stream.iter().filter(|(_, counts)| !counts.requests.has_live_buffers());
        let mut idle: Vec<(u64, u64)> =
            idle.map(|(stream, counts)| (counts.used_at, *stream)).collect();
        idle.sort_unstable();
        idle.truncate(idle.len().saturating_sub(MAX_IDLE_STREAMS / 2));
        for (_, stream) in idle {
            if let Some(counts) = self.by_stream.remove(&stream) {
                self.other_streams.add_stream(&counts.requests);
            }
        }
        // Many streams with live buffers are not looked at with each new one.
        self.sum_up_at = self.by_stream.len() * 2;
    }
}

impl RequestCounts {
    fn has_live_buffers(&self) -> bool {
        self.allocations > self.frees
    }

    /// Adds the requests of a stream without live buffers.
    fn add_stream(&mut self, stream: &Self) {
        self.allocations += stream.allocations;
        self.hits += stream.hits;
        self.refusals += stream.refusals;
        self.waits += stream.waits;
        self.frees += stream.frees;
        self.live_bytes += stream.live_bytes;
        self.peak_bytes = self.peak_bytes.max(stream.peak_bytes);
    }

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
