//! Free memory that can go back to the device: which, and in which order.

use crate::port::StreamClock;
use crate::ranges::backing::Backing;
use crate::ranges::list::UsedBy;
use crate::ranges::node::{NONE, NodeState, number};
use crate::ranges::segment::Segment;
use crate::ranges::{RangeRequest, Ranges};
use crate::stream::Pending;
use std::ops::Range;

/// Ranges of a list that are looked at, from the size that is enough on, and from the largest on.
const LOOKS: usize = 32;
/// Ranges of a page that are looked at.
const SHARERS: u32 = 64;
/// Ranges that go back for one request at most.
const RUNS: usize = 64;

/// A free range, and the part of it that can go back.
#[derive(Clone, Debug)]
pub(crate) struct Returnable {
    pub(crate) id: u32,
    pub(crate) part: Range<u64>,
}

impl Returnable {
    fn bytes(&self) -> u64 {
        self.part.end - self.part.start
    }
}

/// A free range that can go back, and when it was freed.
pub(crate) type Aged = (u64, u32);

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// The bytes of a free range that can go back: the whole segments, pages or commits inside of it.
    pub(crate) fn returnable(&self, id: u32) -> Range<u64> {
        let node = &self.nodes[id];
        let (place, nothing) = (node.range(), node.offset..node.offset);
        let Some(segment) = self.segments.get(node.segment) else { return nothing };
        match self.backing {
            Backing::Block if segment.bytes == node.bytes => place,
            Backing::Block => nothing,
            Backing::Pages(page) => {
                let start = place.start.next_multiple_of(page);
                start..(place.end / page * page).max(start)
            }
            Backing::Commits(_) => segment.commits.whole(&place),
        }
    }

    /// The end of what can go back of a free range: as much of it as holds `bytes` bytes, or all.
    pub(crate) fn returnable_end(&self, id: u32, bytes: u64) -> Range<u64> {
        let all = self.returnable(id);
        let start = all.start.max(all.end.saturating_sub(bytes));
        if start == all.start {
            return all;
        }
        let start = match (self.backing, self.segments.get(self.nodes[id].segment)) {
            (Backing::Pages(page), _) => start / page * page,
            (Backing::Commits(_), Some(segment)) => segment.commits.around(start).start,
            _ => all.start,
        };
        start..all.end
    }

    /// Free ranges whose returnable bytes together are `bytes` or more: the one that has the fewest
    /// of those that have enough, else those that have the most. Among a bounded number of ranges,
    /// of other lists with each call. A device call costs the same for any length, so all of them
    /// go.
    pub(crate) fn pick_returnable(&mut self, bytes: u64) -> Vec<Returnable> {
        let lists: Vec<u16> = self.lists.next_portion().collect();
        let part = |id: u32| Returnable { id, part: self.returnable(id) };
        let bins = || lists.iter().map(|list| &self.lists.get(*list).bins);
        let enough = bins().flat_map(|bins| bins.ascending(&self.nodes, bytes).take(LOOKS));
        let enough = enough.map(part).filter(|found| found.bytes() >= bytes);
        if let Some(one) = enough.min_by_key(Returnable::bytes) {
            return vec![one];
        }
        let most = bins().flat_map(|bins| bins.descending(&self.nodes).take(LOOKS));
        let mut most: Vec<_> = most.map(part).filter(|found| found.bytes() > 0).collect();
        most.sort_unstable_by_key(|found| std::cmp::Reverse(found.bytes()));
        let mut missing = bytes;
        let is_needed = |found: &Returnable| {
            let needed = missing > 0;
            missing = missing.saturating_sub(found.bytes());
            needed
        };
        most.into_iter().take(RUNS).take_while(is_needed).collect()
    }

    /// The free ranges that can go back among `count` nodes from number `from` on, and the number
    /// to carry on with; `None` at the end.
    pub(crate) fn aged(&self, from: u32, count: u32) -> (Vec<Aged>, Option<u32>) {
        let end = from.saturating_add(count).min(self.nodes.len());
        let can_go = |id: &u32| self.is_free(*id) && !self.returnable(*id).is_empty();
        let aged = (from..end).filter(can_go).map(|id| (self.nodes[id].freed_at, id)).collect();
        (aged, (end < self.nodes.len()).then_some(end))
    }

    /// Whether anything that is free can go back, behind submitted work; as far as a bounded search
    /// tells.
    pub(crate) fn has_returnable(&self, clock: &C) -> bool {
        if self.backing == Backing::Block {
            let mut free = self.segments.iter().filter(|(_, segment)| segment.used == 0);
            return free.any(|(_, segment)| {
                self.nodes.walk(segment.first).all(|id| self.is_submitted(clock, id))
            });
        }
        let full = |list: &&super::list::RangeList<K>| {
            list.used_by != UsedBy::Hole && list.bins.bytes() >= self.backing.page()
        };
        let lists = self.lists.iter().filter(full).take(LOOKS);
        let mut largest = lists.flat_map(|list| list.bins.descending(&self.nodes).take(LOOKS));
        let has = |id: u32| !self.returnable(id).is_empty();
        largest.any(|id| has(id) && self.is_submitted(clock, id))
    }

    /// Removes the segment that a free range is all of. Returns it, and what it is behind.
    pub(crate) fn remove_segment(&mut self, id: u32) -> Option<(Segment<K>, Pending<C::Mark>)> {
        let (at, bytes) = (self.nodes[id].segment, self.nodes[id].bytes);
        let list = self.list_of(id)?;
        if self.returnable(id).is_empty() {
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
    pub(crate) fn may_be_apart(&self, request: &RangeRequest<K>) -> bool {
        let lists = self.lists.iter().filter(|list| {
            list.used_by != UsedBy::Hole && list.group == request.group && list.bins.bytes() > 0
        });
        let (mut streams, mut bytes, mut several) = (0, 0, false);
        for list in lists {
            bytes += list.bins.bytes();
            match list.used_by {
                UsedBy::Stream(_) => streams += 1,
                UsedBy::Several | UsedBy::OneOf(_) => several = true,
                UsedBy::NoStream | UsedBy::Hole => {} // coalesces with that of any stream
            }
        }
        bytes >= request.bytes && (self.apart || several || streams > 1)
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
        self.coalesce_pairs(clock, from, count, |ranges, id, next| {
            may(ranges.nodes[id].marks.marks()) && may(ranges.nodes[next].marks.marks())
        })
    }

    /// Coalesces free neighbours of any streams that share a page, or a commit, of which all is free.
    /// Returns the number to carry on with.
    pub(crate) fn coalesce_pages(&mut self, clock: &C, from: u32, count: u32) -> Option<u32> {
        let may = |ranges: &Self, id: u32, next: u32| ranges.shares_free_page(clock, id, next);
        self.coalesce_pairs(clock, from, count, may).1
    }

    /// Whether all of the page or commit in which two neighbours meet is free memory behind submitted
    /// work, in a bounded number of ranges.
    fn shares_free_page(&self, clock: &C, id: u32, next: u32) -> bool {
        let at = self.nodes[next].offset;
        let (start, end) = match (self.backing, self.segments.get(self.nodes[next].segment)) {
            (Backing::Pages(page), _) => (at / page * page, at / page * page + page),
            (Backing::Commits(_), Some(segment)) => {
                let part = segment.commits.around(at);
                (part.start, part.end)
            }
            _ => return false,
        };
        let goes = |id: u32| id != NONE && self.is_free(id) && self.is_submitted(clock, id);
        let (mut low, mut high, mut left) = (id, next, SHARERS);
        while goes(low) && self.nodes[low].offset > start && left > 0 {
            (low, left) = (self.nodes[low].before, left - 1);
        }
        while goes(high) && self.nodes[high].range().end < end && left > 0 {
            (high, left) = (self.nodes[high].after, left - 1);
        }
        goes(low) && goes(high) && left > 0 && self.nodes[next].offset > start
    }

    /// Coalesces neighbours of which `may` says so, among `count` nodes from number `from` on.
    /// Returns whether there were any, and the number to carry on with; `None` at the end.
    fn coalesce_pairs(
        &mut self,
        clock: &C,
        from: u32,
        count: u32,
        may: impl Fn(&Self, u32, u32) -> bool,
    ) -> (bool, Option<u32>) {
        let (mut any, mut steps) = (false, 0);
        let mut id = from;
        while id < self.nodes.len() && steps < count {
            steps += 1;
            let next = self.nodes[id].after;
            let both_free = next != NONE && self.is_free(id) && self.is_free(next);
            if both_free && may(self, id, next) {
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
        let lists = [id, next].map(|id| self.list_of(id));
        invariant!(lists.iter().all(Option::is_some), "ranges that are coalesced are free");
        let [Some(own), Some(other)] = lists else { return };
        self.remove(own, id);
        self.remove(other, next);
        self.absorb(clock, id, next);
        let group = self.segments.get(self.nodes[id].segment).map(|segment| segment.group);
        let Some(group) = group else { return };
        let of = UsedBy::of_marks(clock, self.nodes[id].marks.marks());
        let list = self.lists.number(group, of);
        self.nodes[id].state = NodeState::Free(list);
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
            let free = self.segments.find(*at).filter(|segment| segment.used == 0);
            let parts = free.filter(|segment| self.nodes[segment.first].bytes < segment.bytes);
            match parts.map(|segment| segment.first) {
                Some(first) if self.may_be_one(clock, first) => self.coalesce_any(clock, first),
                _ => *at += 1,
            }
        }
        true
    }
}
