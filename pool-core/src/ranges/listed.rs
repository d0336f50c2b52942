//! Free ranges into lists and out of them, and the count of free parts of segments.

use crate::by_size::SizeKey;
use crate::observe::levels::{BlockClass, Count};
use crate::port::StreamClock;
use crate::ranges::Ranges;

/// Free ranges that are not a whole segment (`PyTorch`: `inactive_split`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SplitFigures {
    pub(crate) ranges: Count,
    pub(crate) bytes: Count,
}

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// Puts a free range into a list.
    #[inline]
    pub(super) fn insert(&mut self, list: u16, id: u32) {
        self.lists.bins(list).insert(&mut self.nodes, id);
        if self.split.is_some() {
            self.count_split(id, None, Some(self.nodes[id].bytes));
        }
    }

    /// Takes a free range out of its list.
    #[inline]
    pub(super) fn remove(&mut self, list: u16, id: u32) {
        self.remove_changed(list, id, self.nodes[id].key());
    }

    /// Takes a free range out of its list that has changed since it was put in.
    #[inline]
    pub(super) fn remove_changed(&mut self, list: u16, id: u32, was: SizeKey) {
        self.lists.bins(list).remove(&mut self.nodes, id, was);
        if self.split.is_some() {
            self.count_split(id, Some(was.bytes), None);
        }
    }

    /// Follows a free range that was `was` and has changed.
    #[inline]
    pub(super) fn resize(&mut self, list: u16, id: u32, was: SizeKey) {
        let node = &self.nodes[id];
        let (bytes, step) = (node.bytes, node.links.step);
        self.lists.bins(list).resize(&mut self.nodes, (id, step), was, bytes);
        if self.split.is_some() {
            self.count_split(id, Some(was.bytes), Some(bytes));
        }
    }

    /// Follows a range that had `was` bytes in a list and has `is` now.
    pub(super) fn count_split(&mut self, id: u32, was: Option<u64>, is: Option<u64>) {
        let Some(split) = &mut self.split else { return };
        let Some(segment) = self.segments.get(self.nodes[id].segment) else { return };
        let class = BlockClass::small_if(segment.group.small);
        if let (Some(was), Some(is)) = (was, is)
            && was != segment.bytes
            && is != segment.bytes
        {
            split.ranges.replace(class, 1, 1);
            split.bytes.replace(class, was, is);
            return;
        }
        if let Some(was) = was.filter(|bytes| *bytes != segment.bytes) {
            split.ranges.down(class, 1);
            split.bytes.down(class, was);
        }
        if let Some(is) = is.filter(|bytes| *bytes != segment.bytes) {
            split.ranges.up(class, 1);
            split.bytes.up(class, is);
        }
    }
}
