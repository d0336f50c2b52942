//! Live buffers, and where each was allocated.

use pool_core::observe::{EventKind, Observer, PoolEvent};
use pool_core::size::Bytes;
use std::backtrace::Backtrace;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

/// Remembers each live buffer with the backtrace of its allocation: an [`Observer`].
///
/// A backtrace costs some microseconds, and its names are read when it is shown. They need line
/// tables (`debug = "line-tables-only"` in the profile).
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub mod trace { pub use pool_trace::*; } }
/// use bucketpool::{BucketPool, sim::SimDevice, trace::LeakTracker};
/// use std::sync::Arc;
///
/// let tracker = Arc::new(LeakTracker::default());
/// let pool = BucketPool::builder(SimDevice::new()).observer(tracker.clone()).build();
/// std::mem::forget(pool.tagged("tile").allocate(4096)?);
/// let leaks = tracker.live();
/// assert_eq!((leaks.len(), leaks[0].tag, leaks[0].bytes), (1, "tile", 4096));
/// println!("{tracker}");
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Debug, Default)]
pub struct LeakTracker {
    live: Mutex<LiveBuffers>,
}

#[derive(Debug, Default)]
struct LiveBuffers {
    next: u64,
    by_id: HashMap<u64, LiveBuffer>,
}

/// A buffer that is not freed yet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LiveBuffer {
    /// Bytes that were requested.
    pub bytes: u64,
    /// The tag of the request.
    pub tag: &'static str,
    /// The number of the stream.
    pub stream: u64,
    /// Allocations that the tracker had seen before it.
    pub nth: u64,
    /// The calls that allocated it.
    pub backtrace: Arc<Backtrace>,
}

impl LeakTracker {
    /// Returns the live buffers, oldest first.
    #[must_use]
    pub fn live(&self) -> Vec<LiveBuffer> {
        let mut live: Vec<_> = self
            .live
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .by_id
            .values()
            .cloned()
            .collect();
        live.sort_by_key(|buffer| buffer.nth);
        live
    }
}

impl Observer for LeakTracker {
    fn event(&self, event: &PoolEvent<'_>) {
        match event.kind {
            EventKind::Hit | EventKind::Miss | EventKind::Bypass => {
                let backtrace = Arc::new(Backtrace::force_capture());
                let (bytes, tag, stream) = (event.requested_bytes, event.tag, event.stream);
                let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
                let nth = live.next;
                live.next += 1;
                live.by_id.insert(event.id, LiveBuffer { bytes, tag, stream, nth, backtrace });
            }
            EventKind::Free => {
                let freed = self
                    .live
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .by_id
                    .remove(&event.id);
                drop(freed);
            }
            _ => {}
        }
    }
}

/// The live buffers by where they were allocated, the most bytes first.
impl fmt::Display for LeakTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.live();
        let bytes: u64 = live.iter().map(|buffer| buffer.bytes).sum();
        write!(f, "{} live buffers, {}", live.len(), Bytes(bytes))?;
        let mut places: BTreeMap<(String, &str), (usize, u64)> = BTreeMap::new();
        for buffer in live {
            let place = (buffer.backtrace.to_string(), buffer.tag);
            let (count, bytes) = places.entry(place).or_default();
            (*count, *bytes) = (*count + 1, *bytes + buffer.bytes);
        }
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
        for ((backtrace, tag), (count, bytes)) in places {
            write!(
                f,
                "\n{count} buffers, {}, tag {tag:?}, allocated by\n{backtrace}",
                Bytes(bytes)
            )?;
        }
        Ok(())
    }
}
