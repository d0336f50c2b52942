//! Segments that come and go, and what is counted of them.

use super::space::{Segment, Sort, Space, number};
use crate::device::DeviceAllocator;
use crate::device_stats::DeviceStats;
use std::sync::Arc;

impl<A: DeviceAllocator> Space<A> {
    /// Adds a segment, handed out whole. Returns its range.
    pub(super) fn add_segment(&mut self, block: A::Block, sort: Sort<A::Kind>, bytes: u64) -> u32 {
        let at = self.vacant_segments.pop().unwrap_or_else(|| {
            self.segments.push(None);
            number(self.segments.len() - 1)
        });
        let first = self.ranges.segment(at, bytes);
        self.born += 1;
        self.segments[at as usize] =
            Some(Segment { block: Arc::new(block), sort, bytes, first, born: self.born });
        first
    }

    /// Takes out a segment that is wholly free; its range has been taken.
    pub(super) fn drop_segment(&mut self, at: u32) -> Option<Segment<A>> {
        let segment = self.segments.get_mut(at as usize)?.take()?;
        self.vacant_segments.push(at);
        self.ranges.drop_range(segment.first);
        Some(segment)
    }

    /// Counts pages that were committed in one call.
    pub(super) fn count_pages(&mut self, bytes: u64) {
        self.stats.reserved_bytes.up(false, bytes);
        self.stats.num_device_alloc += 1;
    }

    /// Counts pages that went back in one call.
    pub(super) fn count_pages_gone(&mut self, bytes: u64) {
        self.stats.reserved_bytes.down(false, bytes);
        self.stats.num_device_free += 1;
    }

    /// Counts a segment that came from the device.
    pub(super) fn count_segment(&mut self, small: bool, bytes: u64) {
        let DeviceStats { segment, reserved_bytes, num_device_alloc, .. } = &mut self.stats;
        segment.up(small, 1);
        reserved_bytes.up(small, bytes);
        *num_device_alloc += 1;
    }

    /// Counts one that went back.
    pub(super) fn count_segment_gone(&mut self, small: bool, bytes: u64) {
        let DeviceStats { segment, reserved_bytes, num_device_free, .. } = &mut self.stats;
        segment.down(small, 1);
        reserved_bytes.down(small, bytes);
        *num_device_free += 1;
    }
}
