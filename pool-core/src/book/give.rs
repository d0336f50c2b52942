//! Free memory that can go back to the device: which, and in which order.

use super::list::Of;
use super::node::{NONE, State, number};
use super::segment::BookSegment;
use super::{Book, BookRequest};
use crate::clock::StreamClock;
use crate::order::After;
use std::ops::Range;

/// Ranges that are looked at for one run of pages, from the size that is enough on, and from the
/// largest on.
const LOOKS: usize = 32;

/// A free range that can go back, and when it was freed.
pub(crate) type Aged = (u64, u32);

impl<C: StreamClock, K: Copy + Eq + Default> Book<C, K> {
    /// The bytes of a range that can go back: with pages, those that lie wholly inside; else all of
    /// it, if it is a whole segment.
    pub(crate) fn returnable(&self, id: u32, page: Option<u64>) -> Range<u64> {
        let node = &self.nodes[id];
        let is_whole =
            || self.segments.get(node.segment).is_some_and(|segment| segment.bytes == node.bytes);
        match page {
            Some(page) => self.whole_pages(id, page),
            None if is_whole() => node.range(),
            None => node.offset..node.offset,
        }
    }

    /// The free range whose returnable bytes are the fewest that are `bytes` or more, else the
    /// most, among a bounded number of ranges. A call costs the same for any length, so all of
    /// them go.
    pub(crate) fn to_give_back(&self, bytes: u64, page: Option<u64>) -> Option<(u32, Range<u64>)> {
        let lists = || self.lists.iter().filter(|list| list.of != Of::Hole);
        let part = |id: u32| (id, self.returnable(id, page));
        let length = |(_, part): &(u32, Range<u64>)| part.end - part.start;
        let enough = lists().filter_map(|list| {
            let ids = list.bins.ascending(&self.nodes, bytes).take(LOOKS);
            ids.map(part).filter(|part| length(part) >= bytes).min_by_key(length)
        });
        let most = || {
            let parts = lists().filter_map(|list| {
                let ids = list.bins.descending(&self.nodes).take(LOOKS);
                ids.map(part).max_by_key(length)
            });
            parts.max_by_key(length).filter(|part| length(part) > 0)
        };
        enough.min_by_key(length).filter(|_| bytes > 0).or_else(most)
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
        let can_go = |id: &u32| self.is_free(*id) && !self.returnable(*id, page).is_empty();
        let aged = (from..end).filter(can_go).map(|id| (self.nodes[id].freed_at, id)).collect();
        (aged, (end < self.nodes.len()).then_some(end))
    }

    /// Removes the segment that a free range is all of. Returns it, and what it is behind.
    pub(crate) fn remove_segment(&mut self, id: u32) -> Option<(BookSegment<K>, After<C::Mark>)> {
        let (at, bytes) = (self.nodes[id].segment, self.nodes[id].bytes);
        let list = self.list_of(id)?;
        if self.returnable(id, None).is_empty() {
            return None;
        }
        self.take_low(id, list, bytes);
        let marks = std::mem::take(&mut self.nodes[id].marks);
        self.nodes.remove(id);
        Some((self.segments.remove(at)?, marks))
    }

    /// The marks of all ranges of a segment.
    pub(crate) fn marks_of_segment(&self, at: usize) -> Vec<C::Mark> {
        let Some(segment) = self.segments.get(number(at)) else { return Vec::new() };
        let ranges = self.nodes.walk(segment.first);
        ranges.flat_map(|id| self.nodes[id].marks.marks()).copied().collect()
    }

    /// Whether free ranges of a group, of several streams or of one whose work is not submitted,
    /// may be neighbours and together serve a request.
    pub(crate) fn may_be_apart(&self, request: &BookRequest<K>) -> bool {
        let lists = self.lists.iter().filter(|list| {
            list.of != Of::Hole && list.group == request.group && list.bins.bytes() > 0
        });
        let (mut count, mut bytes, mut several) = (0, 0, false);
        for list in lists {
            count += 1;
            bytes += list.bins.bytes();
            several |= list.of == Of::Several;
        }
        bytes >= request.bytes && (self.apart || several || count > 1)
    }

    /// Coalesces free neighbours of any streams among `count` nodes from number `from` on, if `may`
    /// says that their marks can all be waited for. Returns whether there were any, and the number
    /// to carry on with; `None` at the end.
    pub(crate) fn coalesce_streams(
        &mut self,
        clock: &C,
        from: u32,
        count: u32,
        may: impl Fn(&[C::Mark]) -> bool,
    ) -> (bool, Option<u32>) {
        let (mut any, mut steps) = (false, 0);
        let mut id = from;
        while id < self.nodes.len() && steps < count {
            steps += 1;
            let next = self.nodes[id].after;
            let fit = |id: u32| self.is_free(id) && may(self.nodes[id].marks.marks());
            if next != NONE && fit(id) && fit(next) {
                self.coalesce_any(clock, id);
                any = true;
            } else {
                id += 1;
            }
        }
        (any, (id < self.nodes.len()).then_some(id))
    }

    /// Coalesces a free range with the free range after it, of any streams.
    pub(super) fn coalesce_any(&mut self, clock: &C, id: u32) {
        let next = self.nodes[id].after;
        for id in [id, next] {
            if let Some(list) = self.list_of(id) {
                self.remove(list, id);
            }
        }
        self.absorb(clock, id, next);
        let group = self.segments.get(self.nodes[id].segment).map(|segment| segment.group);
        let Some(group) = group else { return };
        let of = Of::marks(clock, self.nodes[id].marks.marks());
        let list = self.lists.number(group, of);
        self.nodes[id].state = State::Free(list);
        self.insert(list, id);
    }

    /// Whether a range and the one after it are free memory behind submitted work.
    fn may_be_one(&self, clock: &C, id: u32) -> bool {
        [id, self.nodes[id].after]
            .into_iter()
            .all(|id| id != NONE && self.is_free(id) && self.is_submitted(clock, id))
    }

    /// Coalesces segments that are wholly free, behind all of their marks, in at most `count` steps
    /// from segment `at` on, and below `end`. Ranges behind work that is not submitted stay apart.
    /// Returns whether there are more.
    pub(crate) fn coalesce_free_segments(
        &mut self,
        clock: &C,
        at: &mut u32,
        end: u32,
        count: u32,
    ) -> bool {
        for _ in 0..count {
            if *at >= self.segments.len().min(end) {
                return false;
            }
            let free = self.segments.get(*at).filter(|segment| segment.used == 0);
            let parts = free.filter(|segment| self.nodes[segment.first].bytes < segment.bytes);
            match parts.map(|segment| segment.first) {
                Some(first) if self.may_be_one(clock, first) => self.coalesce_any(clock, first),
                _ => *at += 1,
            }
        }
        true
    }
}
