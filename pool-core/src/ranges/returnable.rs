//! Free memory that can go back to the device: which, and in which order.

use crate::port::StreamClock;
use crate::ranges::list::UsedBy;
use crate::ranges::node::{NONE, NodeState, number};
use crate::ranges::segment::{Backing, Segment};
use crate::ranges::{RangeRequest, Ranges};
use crate::stream::Pending;
use std::ops::Range;

/// Ranges of a list that are looked at, from the size that is enough on, and from the largest on.
const MAX_LOOKS: usize = 32;
/// Ranges that go back for one request at most.
const MAX_RUNS: usize = 64;

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

/// The bytes of a free range that can go back: the whole segments, pages or commits inside of it.
pub(crate) fn part_of<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    id: u32,
) -> Range<u64> {
    let node = &ranges.nodes[id];
    let (place, nothing) = (node.range(), node.offset..node.offset);
    let Some(segment) = ranges.segments.get(node.segment) else { return nothing };
    match ranges.backing {
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
pub(crate) fn end_of<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    id: u32,
    bytes: u64,
) -> Range<u64> {
    let all = part_of(ranges, id);
    let start = all.start.max(all.end.saturating_sub(bytes));
    if start == all.start {
        return all;
    }
    let start = match (ranges.backing, ranges.segments.get(ranges.nodes[id].segment)) {
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
pub(crate) fn pick<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    bytes: u64,
) -> Vec<Returnable> {
    let lists: Vec<u16> = ranges.lists.next_portion().collect();
    let part = |id: u32| Returnable { id, part: part_of(ranges, id) };
    let bins = || lists.iter().map(|list| &ranges.lists.get(*list).bins);
    let enough = bins().flat_map(|bins| bins.ascending(&ranges.nodes, bytes).take(MAX_LOOKS));
    let enough = enough.map(part).filter(|found| found.bytes() >= bytes);
    if let Some(one) = enough.min_by_key(Returnable::bytes) {
        return vec![one];
    }
    let most = bins().flat_map(|bins| bins.descending(&ranges.nodes).take(MAX_LOOKS));
    let mut most: Vec<_> = most.map(part).filter(|found| found.bytes() > 0).collect();
    most.sort_unstable_by_key(|found| std::cmp::Reverse(found.bytes()));
    let mut missing = bytes;
    let is_needed = |found: &Returnable| {
        let needed = missing > 0;
        missing = missing.saturating_sub(found.bytes());
        needed
    };
    most.into_iter().take(MAX_RUNS).take_while(is_needed).collect()
}

/// The free ranges that can go back among `count` nodes from number `from` on, and the number
/// to carry on with; `None` at the end.
pub(crate) fn aged<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    from: u32,
    count: u32,
) -> (Vec<Aged>, Option<u32>) {
    let end = from.saturating_add(count).min(ranges.nodes.len());
    let can_go = |id: &u32| ranges.is_free(*id) && !part_of(ranges, *id).is_empty();
    let aged = (from..end).filter(can_go).map(|id| (ranges.nodes[id].freed_at, id)).collect();
    (aged, (end < ranges.nodes.len()).then_some(end))
}

/// Whether anything that is free can go back, behind submitted work; as far as a bounded search
/// tells.
pub(crate) fn has_any<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    clock: &C,
) -> bool {
    if ranges.backing == Backing::Block {
        let mut free = ranges.segments.iter().filter(|(_, segment)| segment.used == 0);
        return free.any(|(_, segment)| {
            ranges.nodes.walk(segment.first).all(|id| ranges.is_submitted(clock, id))
        });
    }
    let full = |list: &&super::list::RangeList<K>| {
        list.used_by != UsedBy::Hole && list.bins.bytes() >= ranges.backing.page()
    };
    let lists = ranges.lists.iter().filter(full).take(MAX_LOOKS);
    let mut largest = lists.flat_map(|list| list.bins.descending(&ranges.nodes).take(MAX_LOOKS));
    let has = |id: u32| !part_of(ranges, id).is_empty();
    largest.any(|id| has(id) && ranges.is_submitted(clock, id))
}

/// Removes the segment that a free range is all of. Returns it, and what it is behind.
pub(crate) fn remove_segment<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    id: u32,
) -> Option<(Segment<K>, Pending<C::Mark>)> {
    let (at, bytes) = (ranges.nodes[id].segment, ranges.nodes[id].bytes);
    let list = ranges.list_of(id)?;
    if part_of(ranges, id).is_empty() {
        return None;
    }
    ranges.take_low(id, list, bytes);
    let marks = std::mem::take(&mut ranges.nodes[id].marks);
    ranges.nodes.remove(id);
    Some((ranges.segments.remove(at)?, marks))
}

/// The marks of all ranges of a segment.
pub(crate) fn marks_of_segment<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    at: usize,
) -> Vec<C::Mark> {
    let Some(segment) = ranges.segments.get(number(at)) else { return Vec::new() };
    let all = ranges.nodes.walk(segment.first);
    all.flat_map(|id| ranges.nodes[id].marks.marks()).copied().collect()
}

/// Whether free ranges of a group, of several streams or of one whose work is not submitted,
/// may be neighbours and together serve a request.
pub(crate) fn may_be_apart<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    request: &RangeRequest<K>,
) -> bool {
    let lists = ranges.lists.iter().filter(|list| {
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
    bytes >= request.bytes && (ranges.apart || several || streams > 1)
}

/// Coalesces free neighbours of any streams among `count` nodes from number `from` on, if `may`
/// says that their marks can all be waited for. Returns whether there were any, and the number
/// to carry on with; `None` at the end.
pub(crate) fn coalesce_streams<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    clock: &C,
    from: u32,
    count: u32,
    may: impl Fn(&[C::Mark]) -> bool,
) -> (bool, Option<u32>) {
    coalesce_pairs(ranges, clock, from, count, |ranges, id, next| {
        may(ranges.nodes[id].marks.marks()) && may(ranges.nodes[next].marks.marks())
    })
}

/// Coalesces free neighbours of any streams that share a page, or a commit, of which all is free.
/// Returns the number to carry on with.
pub(crate) fn coalesce_pages<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    clock: &C,
    from: u32,
    count: u32,
) -> Option<u32> {
    // All neighbours of a page have one answer: what coalesces is free before and after.
    let mut known = None;
    let may = |ranges: &Ranges<C, K>, id: u32, next: u32| {
        let Some(page) = page_around(ranges, next) else { return false };
        if ranges.nodes[next].offset == page.start {
            return false; // they meet between two pages
        }
        let place = (ranges.nodes[next].segment, page.start);
        if let Some((_, is_free)) = known.filter(|(known, _)| *known == place) {
            return is_free;
        }
        let is_free = is_free_page(ranges, clock, id, next, &page);
        known = Some((place, is_free));
        is_free
    };
    coalesce_pairs(ranges, clock, from, count, may).1
}

/// The page or commit that a range begins in; `None` for whole segments.
fn page_around<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    id: u32,
) -> Option<Range<u64>> {
    let at = ranges.nodes[id].offset;
    match (ranges.backing, ranges.segments.get(ranges.nodes[id].segment)) {
        (Backing::Pages(page), _) => Some(at / page * page..at / page * page + page),
        (Backing::Commits(_), Some(segment)) => Some(segment.commits.around(at)),
        _ => None,
    }
}

/// Whether all of a page, in which two neighbours meet, is free memory behind submitted work.
fn is_free_page<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    clock: &C,
    id: u32,
    next: u32,
    page: &Range<u64>,
) -> bool {
    let goes = |id: u32| id != NONE && ranges.is_free(id) && ranges.is_submitted(clock, id);
    let (mut low, mut high) = (id, next);
    while goes(low) && ranges.nodes[low].offset > page.start {
        low = ranges.nodes[low].before;
    }
    while goes(high) && ranges.nodes[high].range().end < page.end {
        high = ranges.nodes[high].after;
    }
    goes(low) && goes(high)
}

/// Coalesces neighbours of which `may` says so, among `count` nodes from number `from` on.
/// Returns whether there were any, and the number to carry on with; `None` at the end.
fn coalesce_pairs<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    clock: &C,
    from: u32,
    count: u32,
    mut may: impl FnMut(&Ranges<C, K>, u32, u32) -> bool,
) -> (bool, Option<u32>) {
    let (mut any, mut steps) = (false, 0);
    let mut id = from;
    while id < ranges.nodes.len() && steps < count {
        steps += 1;
        let next = ranges.nodes[id].after;
        let both_free = next != NONE && ranges.is_free(id) && ranges.is_free(next);
        if both_free && may(ranges, id, next) {
            coalesce_any(ranges, clock, id);
            any = true;
        } else {
            id += 1;
        }
    }
    (any, (id < ranges.nodes.len()).then_some(id))
}

/// Coalesces a free range with the free range after it, of any streams.
pub(super) fn coalesce_any<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    clock: &C,
    id: u32,
) {
    let next = ranges.nodes[id].after;
    let lists = [id, next].map(|id| ranges.list_of(id));
    invariant!(lists.iter().all(Option::is_some), "ranges that are coalesced are free");
    let [Some(own), Some(other)] = lists else { return };
    ranges.remove(own, id);
    ranges.remove(other, next);
    ranges.absorb(clock, id, next);
    let group = ranges.segments.get(ranges.nodes[id].segment).map(|segment| segment.group);
    let Some(group) = group else { return };
    let of = UsedBy::of_marks(clock, ranges.nodes[id].marks.marks());
    let list = ranges.lists.number(group, of);
    ranges.nodes[id].state = NodeState::Free(list);
    ranges.insert(list, id);
}

/// Whether a range and the one after it are free memory behind submitted work.
fn may_be_one<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    clock: &C,
    id: u32,
) -> bool {
    [id, ranges.nodes[id].after]
        .into_iter()
        .all(|id| id != NONE && ranges.is_free(id) && ranges.is_submitted(clock, id))
}

/// Coalesces segments that are wholly free, behind all of their marks, in at most `count` steps
/// from segment `at` on, and below `end`. Ranges behind work that is not submitted stay apart.
/// Returns whether there are more.
pub(crate) fn coalesce_free_segments<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    clock: &C,
    at: &mut u32,
    end: u32,
    count: u32,
) -> bool {
    for _ in 0..count {
        if *at >= ranges.segments.len().min(end) {
            return false;
        }
        let free = ranges.segments.find(*at).filter(|segment| segment.used == 0);
        let parts = free.filter(|segment| ranges.nodes[segment.first].bytes < segment.bytes);
        match parts.map(|segment| segment.first) {
            Some(first) if may_be_one(ranges, clock, first) => coalesce_any(ranges, clock, first),
            _ => *at += 1,
        }
    }
    true
}
