//! Placement in a reservation when no free range serves: over holes, where the fewest pages are
//! missing. Takes ranges out of the lists for calls to the device, and puts them back.

use crate::by_size::SizeKey;
use crate::port::StreamClock;
use crate::ranges::list::UsedBy;
use crate::ranges::node::{NONE, NodeState, RangeNode, number};
use crate::ranges::segment::Backing;
use crate::ranges::{RangeRequest, Ranges};
use crate::stream::{Pending, Requester};
use std::ops::Range;

/// Holes that are looked at: from the smallest on, and from the size of the request on; of the
/// latter, and of the largest ones, those that are ranked.
const MAX_SMALL_HOLES: usize = 32;
const MAX_LARGE_HOLES: usize = 8;
/// Ranges beside a hole that are looked at, on each side.
const MAX_BESIDE: usize = 8;

/// Where a block would lie, and what that takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The lowest of the free ranges and holes that it lies in.
    first: u32,
    /// The bytes of the block in its segment.
    pub(crate) block: Range<u64>,
    /// Bytes to commit, in whole pages.
    pub(crate) missing: u64,
}

/// A free range or hole beside others.
struct Neighbour {
    id: u32,
    bytes: Range<u64>,
    hole: bool,
}

impl Neighbour {
    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// How good a placement is, best first: bytes missing, calls that commit them, how large the free
/// neighbourhood is (the end of the reservation last), address.
type Rank = (u64, u64, u64, u64);

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// Whether a range is addresses without memory.
    #[inline]
    pub(crate) fn is_hole(&self, id: u32) -> bool {
        self.list_of(id).is_some_and(|list| self.lists.get(list).used_by == UsedBy::Hole)
    }

    /// Takes a part of a free range or hole out of its list. What is below and above it stays what
    /// it was. The part is `Out` then. Returns no range that is neither: it has an owner.
    pub(crate) fn carve(&mut self, id: u32, part: &Range<u64>) -> Option<u32> {
        let place = self.nodes[id].range();
        let list = self.list_of(id);
        invariant!(list.is_some(), "a range that is taken out is in a list");
        let list = list?;
        if place.start < part.start {
            // The part is above: the lower rest is a new range in the same list.
            let low = self.split_off(id, list, part.start - place.start);
            let RangeNode { segment, before, .. } = self.nodes[low];
            if before == NONE {
                self.note_first(segment, low);
            }
            self.nodes[low].state = NodeState::Free(list);
            self.insert(list, low);
        }
        let taken = self.take_low(id, list, part.end - part.start);
        let hole = self.lists.get(list).used_by == UsedBy::Hole;
        self.nodes[taken].state = NodeState::Out { hole };
        Some(taken)
    }

    /// Takes the low `bytes` bytes of a free range, or all of it, out of its list. What is left of
    /// it keeps its number, its age and its marks, and its list where the step of its size is the
    /// same.
    #[inline]
    pub(super) fn take_low(&mut self, id: u32, list: u16, bytes: u64) -> u32 {
        let whole = self.nodes[id].bytes;
        let taken = if bytes < whole {
            self.split_off(id, list, bytes)
        } else {
            self.remove(list, id);
            id
        };
        let RangeNode { segment, before, .. } = self.nodes[taken];
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.used += 1;
            if before == NONE {
                segment.first = taken;
            }
        }
        if self.lists.get(list).used_by != UsedBy::Hole {
            self.cached -= bytes.min(whole);
        }
        taken
    }

    /// Splits the low `bytes` bytes off a free range, which stays in its list. They are in no list,
    /// behind the same marks.
    #[inline]
    fn split_off(&mut self, id: u32, list: u16, bytes: u64) -> u32 {
        let low = self.nodes.split_low(id, bytes);
        let RangeNode { offset, bytes: rest, born, .. } = self.nodes[id];
        let was = SizeKey { bytes: rest + bytes, born, offset: offset - bytes };
        self.resize(list, id, was);
        low
    }

    /// Splits the low `bytes` bytes off a range, behind the same marks. Returns their number.
    #[inline]
    fn split_low(&mut self, id: u32, bytes: u64) -> u32 {
        let low = self.nodes.split_low(id, bytes);
        let RangeNode { before, segment, .. } = self.nodes[low];
        if before == NONE {
            self.note_first(segment, low);
        }
        low
    }

    /// Splits a live range to `bytes` bytes, where the configuration splits. Returns it. Who takes
    /// the rest, which is free from `freed_at` on, must be ordered after `rest`.
    pub(crate) fn split_live(
        &mut self,
        clock: &C,
        id: u32,
        bytes: u64,
        (rest, freed_at): (Pending<C::Mark>, u64),
    ) -> u32 {
        let whole = self.nodes[id].bytes;
        if whole <= bytes || !self.config.splits(whole, bytes) {
            return id;
        }
        let low = self.split_low(id, bytes);
        if let Some(segment) = self.segments.get_mut(self.nodes[low].segment) {
            segment.used += 1;
        }
        self.release(clock, id, rest, freed_at);
        low
    }
}

/// The best placement of a request among a bounded number of holes.
pub(crate) fn place<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    request: &RangeRequest<K>,
    requester: &Requester<'_, C>,
) -> Option<Placement> {
    let page = ranges.backing.page();
    let holes = |list: &&super::list::RangeList<K>| {
        list.group == request.group && list.used_by == UsedBy::Hole && list.bins.bytes() > 0
    };
    let mut best: Option<(Rank, Placement)> = None;
    let list = ranges.lists.iter().find(holes)?;
    let up = list.bins.ascending(&ranges.nodes, 0).take(MAX_SMALL_HOLES);
    let fits = |id: &u32| ranges.nodes[*id].bytes >= request.bytes;
    let large = list.bins.ascending(&ranges.nodes, request.bytes);
    // The end of the reservation is the largest.
    let last = list.bins.descending(&ranges.nodes);
    let large = large.take(MAX_SMALL_HOLES).filter(fits).take(MAX_LARGE_HOLES);
    // What is beside a hole is looked at once.
    let (mut parts, mut seen) = (Vec::with_capacity(2 * MAX_BESIDE + 1), Vec::new());
    for hole in up.chain(large).chain(last.take(MAX_LARGE_HOLES)) {
        if seen.contains(&hole) {
            continue;
        }
        parts.clear();
        neighbourhood(ranges, hole, requester, &mut parts);
        seen.extend(parts.iter().filter(|part| part.hole).map(|part| part.id));
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { continue };
        let all = first.bytes.start..last.bytes.end;
        if all.end - all.start < request.bytes {
            continue;
        }
        // Each byte that is not free in the neighbourhood is missing.
        let free: u64 = parts.iter().filter(|part| !part.hole).map(Neighbour::len).sum();
        let least = request.bytes.saturating_sub(free);
        if best.as_ref().is_some_and(|((missing, ..), _)| *missing < least) {
            continue;
        }
        let at_end = ranges.nodes[last.id].after == NONE;
        let size = if at_end { u64::MAX } else { all.end - all.start };
        for start in starts(&parts, &all, request.bytes, at_end) {
            let block = start..start + request.bytes;
            let (missing, calls) = missing(&parts, &block, page);
            let rank = (missing, calls, size, start);
            if best.as_ref().is_none_or(|(best, _)| rank < *best) {
                best = Some((rank, Placement { first: first.id, block, missing }));
            }
        }
    }
    best.map(|(_, placement)| placement)
}

/// Adds the free ranges and holes around a hole that a taker may have, by address.
fn neighbourhood<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    hole: u32,
    requester: &Requester<'_, C>,
    parts: &mut Vec<Neighbour>,
) {
    let mut first = hole;
    for _ in 0..MAX_BESIDE {
        let before = ranges.nodes[first].before;
        if before == NONE || !may_have(ranges, before, requester) {
            break;
        }
        first = before;
    }
    let mut past = 0;
    let mut is_near = |id: &u32| {
        past += usize::from(ranges.nodes[*id].offset > ranges.nodes[hole].offset);
        past <= MAX_BESIDE && may_have(ranges, *id, requester)
    };
    let near = ranges.nodes.walk(first).take_while(|id| is_near(id));
    let neighbour =
        |id| Neighbour { id, bytes: ranges.nodes[id].range(), hole: ranges.is_hole(id) };
    parts.extend(near.map(neighbour));
}

/// Whether a range is free, and ready for the taker or can be made so for certain.
fn may_have<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &Ranges<C, K>,
    id: u32,
    requester: &Requester<'_, C>,
) -> bool {
    let can = |mark| {
        requester.is_ready(mark)
            || !requester.must_be_done()
                && requester.may_query(mark)
                && requester.clock.is_submitted(mark)
    };
    let node = &ranges.nodes[id];
    let free = matches!(node.state, NodeState::Free(_));
    free && node.marks.marks().iter().all(|mark| can(*mark))
}

/// Takes out what a placement needs, by address: the free parts that the block lies in, and
/// the pages of holes. Where the block ends in a hole, up to `ahead` bytes more of that hole,
/// since the call that commits them is made anyway. Each is `Out` then.
pub(crate) fn take_out<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    placement: &Placement,
    ahead: u64,
) -> Vec<u32> {
    let (block, page, mut pieces) = (&placement.block, ranges.backing.page(), Vec::new());
    let mut next = placement.first;
    while next != NONE && ranges.nodes[next].offset < block.end {
        let (id, place) = (next, ranges.nodes[next].range());
        next = ranges.nodes[id].after;
        if place.end <= block.start {
            continue;
        }
        let part = if ranges.is_hole(id) {
            let extra = if place.end > block.end { ahead / page * page } else { 0 };
            pages_of(block, page, extra, &place)
        } else {
            place.start.max(block.start)..place.end.min(block.end)
        };
        pieces.extend(ranges.carve(id, &part));
    }
    pieces
}

/// Makes the pieces of a placement, all of which have memory now, one live block. The rest of
/// them becomes free; who takes it must be ordered after `rest`. Returns the block, or `None`
/// without pieces.
pub(crate) fn assemble<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    clock: &C,
    pieces: &[u32],
    placement: &Placement,
    (rest, freed_at): (&Pending<C::Mark>, u64),
) -> Option<u32> {
    let (whole, others) = pieces.split_first()?;
    let (whole, block) = (*whole, &placement.block);
    for other in others {
        ranges.nodes.absorb(whole, *other, |_, _| {});
    }
    let at = ranges.nodes[whole].segment;
    ranges.nodes[whole].marks = Pending::Nothing;
    let place = ranges.nodes[whole].range();
    let below =
        (place.start < block.start).then(|| ranges.split_low(whole, block.start - place.start));
    let (taken, above) = match place.end > block.end {
        true => (ranges.split_low(whole, block.end - block.start), Some(whole)),
        false => (whole, None),
    };
    ranges.nodes[taken].state = NodeState::Live;
    if let Some(segment) = ranges.segments.get_mut(at) {
        // Each of them was counted when it was carved; a rest is counted until it is free.
        let rests = u32::from(below.is_some()) + u32::from(above.is_some());
        segment.used = segment.used + 1 + rests - number(pieces.len());
    }
    for id in [below, above].into_iter().flatten() {
        ranges.nodes[id].state = NodeState::Out { hole: false };
        ranges.release(clock, id, rest.clone(), freed_at);
    }
    Some(taken)
}

/// Puts a range that is in no list among the holes.
pub(crate) fn put_hole<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    clock: &C,
    id: u32,
) {
    let node = &mut ranges.nodes[id];
    (node.marks, node.dirty) = (Pending::Nothing, false);
    let (segment, place) = (node.segment, node.range());
    if let Some(segment) = ranges.segments.get_mut(segment) {
        segment.commits.remove(&place);
    }
    ranges.put_free(clock, id, UsedBy::Hole);
}

/// Notes that one call has committed memory behind all of a range that is in no list. `commit`
/// promises nothing of the contents.
pub(crate) fn note_committed<C: StreamClock, K: Copy + Eq + Default>(
    ranges: &mut Ranges<C, K>,
    id: u32,
) {
    ranges.nodes[id].dirty = true;
    let (segment, place) = (ranges.nodes[id].segment, ranges.nodes[id].range());
    if let (Backing::Commits(_), Some(segment)) = (ranges.backing, ranges.segments.get_mut(segment))
    {
        segment.commits.add(place);
    }
}

/// Where a block may start in a neighbourhood: at its ends, and at the ends of its free ranges.
fn starts(
    parts: &[Neighbour],
    all: &Range<u64>,
    bytes: u64,
    at_end: bool,
) -> impl Iterator<Item = u64> {
    let free = parts.iter().filter(|part| !part.hole);
    let free =
        free.flat_map(move |part| [Some(part.bytes.start), part.bytes.end.checked_sub(bytes)]);
    let at_the_end = if at_end { None } else { all.end.checked_sub(bytes) };
    let all = all.clone();
    let ends = [Some(all.start), at_the_end];
    let fits = move |start: &u64| *start >= all.start && *start + bytes <= all.end;
    free.chain(ends).flatten().filter(fits)
}

/// The bytes that a block lacks, in whole pages, and how many calls commit them.
fn missing(parts: &[Neighbour], block: &Range<u64>, page: u64) -> (u64, u64) {
    let (mut bytes, mut calls) = (0, 0);
    for part in parts.iter().filter(|part| part.hole) {
        let lacks = pages_of(block, page, 0, &part.bytes);
        if lacks.start < lacks.end {
            bytes += lacks.end - lacks.start;
            calls += 1;
        }
    }
    (bytes, calls)
}

/// The pages that hold a block, and `extra` bytes more, as far as they lie in a hole.
fn pages_of(block: &Range<u64>, page: u64, extra: u64, hole: &Range<u64>) -> Range<u64> {
    let end = block.end.next_multiple_of(page).saturating_add(extra);
    let start = hole.start.max(block.start / page * page);
    start..hole.end.min(end).max(start)
}
