//! What an arena looks like: for tests, for people, for whoever hunts fragmentation.

use super::Arena;
use super::ranges::{HOLE, USED};
use crate::device::DeviceAllocator;
use std::ops::Range;

/// One segment of an arena: a block of the allocator below, or a reservation of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentMap {
    /// Its bytes.
    pub bytes: u64,
    /// What it is cut into, in the order of addresses, which are offsets in bytes. Tiles it.
    pub ranges: Vec<(Range<u64>, RangeState)>,
}

/// What a range of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeState {
    /// Handed out.
    Used,
    /// Free, with memory behind it.
    Free,
    /// Addresses without memory.
    Hole,
}

impl<A: DeviceAllocator> Arena<A> {
    /// All segments as they are now. Costs time in the number of ranges.
    ///
    /// ```
    /// use pool_core::{Arena, ArenaConfig, BucketPool, MIB, RangeState, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(Arena::new(SimDevice::new(), ArenaConfig::segments(2 * MIB)));
    /// let _buffer = pool.allocate(MIB)?;
    /// let map = pool.allocator().map();
    /// assert_eq!(map[0].ranges, [(0..MIB, RangeState::Used), (MIB..2 * MIB, RangeState::Free)]);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[must_use]
    pub fn map(&self) -> Vec<SegmentMap> {
        let space = self.space.lock();
        let segments = space.segments.iter().flatten().map(|segment| {
            let ranges = space.ranges.walk(segment.first).map(|id| {
                let state = match space.ranges.get(id).shelf {
                    USED => RangeState::Used,
                    HOLE => RangeState::Hole,
                    _ => RangeState::Free,
                };
                (space.place(id), state)
            });
            SegmentMap { bytes: segment.bytes, ranges: ranges.collect() }
        });
        segments.collect()
    }
}
