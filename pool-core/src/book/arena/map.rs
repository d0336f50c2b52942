//! The segments of an arena and their ranges, for tests and for people who look for fragmentation.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A segment of an arena: a block of the device, or a reservation of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SegmentMap {
    /// Its bytes.
    pub bytes: u64,
    /// Its ranges in the order of their addresses, which are offsets in bytes. They tile it.
    pub ranges: Vec<(Range<u64>, RangeState)>,
}

/// The state of a range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RangeState {
    /// A buffer has it, or it is kept for a graph.
    Used,
    /// Free, with memory behind it.
    Free,
    /// Addresses without memory.
    Hole,
}
