//! Free memory that can go back to the device: which, and in which order.

use super::Book;
use super::list::Of;
use super::node::State;
use crate::clock::StreamClock;
use std::ops::Range;

/// Ranges that are looked at for one run of pages, from the size that is enough on, and from the
/// largest on.
const LOOKS: usize = 32;

/// A free range that can go back, and when it was freed.
pub(crate) type Aged = (u64, u32);

impl<C: StreamClock, K: Copy + Eq> Book<C, K> {
    /// A run of free pages: the shortest that has `bytes` bytes, else the longest, among a bounded
    /// number of ranges. A call costs the same for any length, so the run is whole.
    pub(crate) fn free_run(&self, page: u64, bytes: u64) -> Option<(u32, Range<u64>)> {
        let lists = || self.lists.iter().filter(|list| list.of != Of::Hole);
        let run = |id: u32| (id, self.whole_pages(id, page));
        let length = |run: &(u32, Range<u64>)| run.1.end - run.1.start;
        let enough = lists().filter_map(|list| {
            let ids = list.bins.upward(bytes).flat_map(|head| self.nodes.list(head)).take(LOOKS);
            ids.map(run).filter(|run| length(run) >= bytes).min_by_key(length)
        });
        let longest = || {
            let runs = lists().filter_map(|list| {
                let ids = list.bins.downward().flat_map(|head| self.nodes.list(head)).take(LOOKS);
                ids.map(run).max_by_key(length)
            });
            runs.max_by_key(length).filter(|run| !run.1.is_empty())
        };
        enough.min_by_key(length).filter(|_| bytes > 0).or_else(longest)
    }

    /// The free ranges that can go back among `count` nodes from number `from` on, and the number
    /// to carry on with; `None` at the end. With pages, those that hold a whole page; else those
    /// that are a whole segment.
    pub(crate) fn aged(
        &self,
        from: u32,
        count: u32,
        page: Option<u64>,
    ) -> (Vec<Aged>, Option<u32>) {
        let end = from.saturating_add(count).min(self.nodes.len());
        let can_go = |id: &u32| {
            let node = &self.nodes[*id];
            if !matches!(node.state, State::Free(_)) || self.is_hole(*id) {
                return false;
            }
            if let Some(page) = page {
                return !self.whole_pages(*id, page).is_empty();
            }
            let segment = self.segments.get(node.segment);
            segment.is_some_and(|segment| segment.bytes == node.bytes)
        };
        let aged = (from..end).filter(can_go).map(|id| (self.nodes[id].freed_at, id)).collect();
        (aged, (end < self.nodes.len()).then_some(end))
    }

    /// Coalesces up to `count` ranges of a wholly free segment, of any streams, behind all of their
    /// marks. Returns whether it is one range then.
    pub(crate) fn coalesce_segment(&mut self, clock: &C, at: u32, count: u32) -> bool {
        for _ in 0..count {
            let Some(segment) = self.segments.get(at).filter(|segment| segment.used == 0) else {
                return false;
            };
            let (first, group, whole) = (segment.first, segment.group, segment.bytes);
            let node = &self.nodes[first];
            if node.bytes == whole {
                return true;
            }
            let next = node.after;
            for id in [first, next] {
                if self.is_hole(id) {
                    return false;
                }
                let Some(list) = self.list_of(id) else { return false };
                self.lists.bins(list).remove(&mut self.nodes, id);
            }
            self.merge_notes(clock, first, next);
            self.nodes.coalesce_next(first);
            let of = Of::marks(clock, self.nodes[first].marks.marks());
            let list = self.lists.number(group, of);
            self.nodes[first].state = State::Free(list);
            self.lists.bins(list).insert(&mut self.nodes, first);
        }
        self.segments
            .get(at)
            .is_some_and(|segment| self.nodes[segment.first].bytes == segment.bytes)
    }
}
