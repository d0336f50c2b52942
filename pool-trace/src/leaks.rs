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
/// [`RangeMap::id`](pool_core::observe::RangeMap::id) is [`LiveBuffer::id`]: the two tell whose each
/// part of a [`MemoryMap`](pool_core::observe::MemoryMap) is ([`LeakTracker::get`]).
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
/// for range in pool.map().segments.iter().flat_map(|segment| &segment.ranges) {
///     if let Some(buffer) = tracker.get(range.id) {
///         println!("{:?}: {} bytes of {}, {}", range.range, buffer.bytes, buffer.tag, buffer.calls());
///     }
/// }
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
    /// A number that no other live buffer of the process has ([`PoolEvent::id`]).
    pub id: u64,
    /// Bytes that were requested.
    pub bytes: u64,
    /// The tag of the request.
    pub tag: &'static str,
    /// The number of the stream.
    pub stream: u64,
    /// Allocations that the tracker had seen before it.
    pub nth: u64,
    /// The calls that allocated it, those inside of this library first ([`LiveBuffer::calls`] is
    /// without them).
    pub backtrace: Arc<Backtrace>,
}

impl LiveBuffer {
    /// Returns the calls that allocated it as text, from the program's own on: without those of this
    /// library, and without those of the runtime that began the thread. Reading the names costs
    /// milliseconds.
    #[must_use]
    pub fn calls(&self) -> String {
        own_calls(&self.backtrace.to_string())
    }
}

/// The crates of this library whose calls are not the program's: what their names begin with, and, with
/// `-` for `_`, the folders of their sources.
const LIBRARY: [&str; 8] = [
    "bucketpool",
    "pool_array",
    "pool_config",
    "pool_core",
    "pool_cuda",
    "pool_host",
    "pool_sim",
    "pool_trace",
];
/// What the names of the standard library's calls begin with.
const STANDARD: [&str; 3] = ["std::", "core::", "alloc::"];
/// The call in which a program's own calls end.
const RUNTIME: &str = "__rust_begin_short_backtrace";

/// A call in the text of a backtrace: a line with its number and name, and one with its place if that is
/// known.
struct Call<'t> {
    name: &'t str,
    lines: Vec<&'t str>,
}

/// Whether a folder is a crate's: its name, in a registry with a version behind it.
fn is_folder_of(folder: &str, krate: &str) -> bool {
    let version = folder.strip_prefix(krate).map(|rest| rest.strip_prefix('-').unwrap_or(rest));
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

impl Call<'_> {
    /// Whether it is one of the library, or of the standard library on its behalf. An inlined call has a
    /// name without its crate, but a place.
    fn is_inside(&self) -> bool {
        let place = self.lines.get(1).copied().unwrap_or_default();
        let is_of = |krate: &str| {
            let rest = self.name.strip_prefix(krate);
            let folder = place.split(['/', '\\']).zip(place.split(['/', '\\']).skip(1));
            let mut folders = folder.filter(|(_, below)| *below == "src").map(|(folder, _)| folder);
            rest.is_some_and(|rest| rest.starts_with("::") || rest.starts_with('['))
                || folders.any(|folder| is_folder_of(folder, &krate.replace('_', "-")))
        };
        LIBRARY.iter().any(|krate| is_of(krate))
            || STANDARD.iter().any(|start| self.name.starts_with(start))
            || place.contains("/rustc/")
    }
}

/// The calls of a backtrace between those of the library and those of the runtime; all of it if that
/// leaves none.
fn own_calls(backtrace: &str) -> String {
    let mut calls: Vec<Call<'_>> = Vec::new();
    for line in backtrace.lines() {
        let numbered = line.trim_start().split_once(": ");
        match numbered.filter(|(number, _)| number.parse::<u32>().is_ok()) {
            Some((_, name)) => {
                calls.push(Call { name: name.trim_start_matches(['<', '&']), lines: vec![line] });
            }
            None => calls.last_mut().into_iter().for_each(|call| call.lines.push(line)),
        }
    }
    let first = calls.iter().position(|call| !call.is_inside());
    let own = &calls[first.unwrap_or(0)..];
    let own = own.split(|call| call.name.contains(RUNTIME)).next().filter(|own| !own.is_empty());
    let lines: Vec<&str> =
        own.unwrap_or(&calls).iter().flat_map(|call| call.lines.iter().copied()).collect();
    lines.join("\n")
}

impl LeakTracker {
    /// Returns the live buffer with this [`PoolEvent::id`], which is that of a range of a memory map;
    /// `None` if there is none.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<LiveBuffer> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).by_id.get(&id).cloned()
    }

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
                let PoolEvent { id, requested_bytes: bytes, tag, stream, .. } = *event;
                let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
                let nth = live.next;
                live.next += 1;
                live.by_id.insert(id, LiveBuffer { id, bytes, tag, stream, nth, backtrace });
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
        write!(f, "{} live buffers, {} requested", live.len(), Bytes(bytes))?;
        let mut places: BTreeMap<(String, &str), (usize, u64)> = BTreeMap::new();
        for buffer in live {
            let place = (buffer.calls(), buffer.tag);
            let (count, bytes) = places.entry(place).or_default();
            (*count, *bytes) = (*count + 1, *bytes + buffer.bytes);
        }
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
        for ((calls, tag), (count, bytes)) in places {
            write!(f, "\n{count} buffers, {}, tag {tag:?}, allocated by\n{calls}", Bytes(bytes))?;
        }
        Ok(())
    }
}
