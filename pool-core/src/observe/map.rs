//! The memory of a pool as a picture: its segments and their ranges.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// All memory that a pool has from its device, at one moment.
///
/// `Display` draws the parts that have memory for a terminal, with a legend: one line or more for
/// each segment, all on one scale. A character shows the state of most of its bytes.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{ArenaConfig, BucketPool, MIB, sim::SimDevice};
///
/// let config = ArenaConfig::segments(4 * MIB);
/// let pool = BucketPool::builder(SimDevice::new()).arena(config).build();
/// let held = [(); 3].map(|()| pool.allocate(MIB));
/// let [_first, second, _third] = held;
/// drop(second);
/// let map = pool.map();
/// assert_eq!((map.free_bytes(), map.largest_free_bytes()), (2 * MIB, MIB));
/// assert_eq!(map.fragmentation(), 0.5);
/// // The pool has not asked yet whether the stream of the second is done: `~`.
/// let picture = map.to_string();
/// assert!(picture.lines().last().unwrap().starts_with("one character is 16.00 KiB (# used  "));
/// assert_eq!(picture.matches('~').count(), 64 + 1); // 1 MiB, and the legend
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryMap {
    /// The segments, the oldest number first.
    pub segments: Vec<SegmentMap>,
}

/// A segment: a block of the device, or a reservation of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SegmentMap {
    /// Its bytes.
    pub bytes: u64,
    /// Its ranges in the order of their addresses. They tile it. Without an arena there is one.
    pub ranges: Vec<RangeMap>,
}

/// A range of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RangeMap {
    /// Offsets in bytes from the start of the segment.
    pub range: Range<u64>,
    /// Its state.
    pub state: RangeState,
    /// The id of the stream that used the range last; `None` while the range is in use, and if no
    /// stream or several streams used it.
    #[serde(default)]
    pub stream: Option<u64>,
    /// The id of the range's buffer in events ([`PoolEvent::id`](crate::observe::PoolEvent::id)),
    /// by which a `LeakTracker` finds its tag and its requested bytes; 0 while the range is not in
    /// use.
    #[serde(default)]
    pub id: u64,
    /// Allocations of the pool since it was freed; 0 while it is used.
    #[serde(default)]
    pub age: u64,
}

/// The state of a range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RangeState {
    /// A buffer has it.
    Used,
    /// Kept for a graph.
    Private,
    /// Free, with memory behind it.
    Free,
    /// Free, behind work that is not seen done.
    Pending,
    /// Addresses without memory.
    Hole,
}

impl RangeMap {
    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it is free: pending or not.
    #[must_use]
    pub fn is_free(&self) -> bool {
        matches!(self.state, RangeState::Free | RangeState::Pending)
    }
}

impl SegmentMap {
    fn bytes_of(&self, states: &[RangeState]) -> u64 {
        let ranges = self.ranges.iter().filter(|range| states.contains(&range.state));
        ranges.map(RangeMap::bytes).sum()
    }

    /// Bytes that have memory behind them.
    #[must_use]
    pub fn committed_bytes(&self) -> u64 {
        self.bytes - self.bytes_of(&[RangeState::Hole])
    }

    /// Bytes that buffers and graphs have.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.bytes_of(&[RangeState::Used, RangeState::Private])
    }
}

impl MemoryMap {
    fn free_ranges(&self) -> impl Iterator<Item = u64> {
        let ranges = self.segments.iter().flat_map(|segment| &segment.ranges);
        ranges.filter(|range| range.is_free()).map(RangeMap::bytes)
    }

    /// Free bytes, those of pending ranges included.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_ranges().sum()
    }

    /// Bytes of the largest free range: the largest request that needs nothing from the device.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        self.free_ranges().max().unwrap_or(0)
    }

    /// External fragmentation, from 0 to 1: `1 - largest_free_bytes / free_bytes`; 0 if nothing is
    /// free.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        match self.free_bytes() {
            0 => 0.0,
            free => 1.0 - self.largest_free_bytes() as f64 / free as f64,
        }
    }
}
