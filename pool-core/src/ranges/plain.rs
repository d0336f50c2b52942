//! The plain ways of a range, each in one function that looks at each node once: a free range of the
//! own stream, or of none, becomes live, whole or split; and a live range that one stream alone used
//! becomes free, and coalesces with neighbours of the same list. A free that is not plain goes the
//! way of [`Ranges::free`].

use crate::port::StreamClock;
use crate::ranges::find::Found;
use crate::ranges::list::UsedBy;
use crate::ranges::node::{NONE, NodeState};
use crate::ranges::{RangeRequest, Ranges};
use crate::stream::{Pending, Requester};

/// A range that serves a request.
pub(crate) struct Served {
    pub(crate) id: u32,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
    pub(crate) segment: u32,
    pub(crate) dirty: bool,
}

/// A range that is freed, as its node has it.
struct FreedRange {
    id: u32,
    before: u32,
    after: u32,
    segment: u32,
    bytes: u64,
    dirty: bool,
    freed_at: u64,
}

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// Serves a request from ranges that need no call to the device: a part of a free range of the
    /// same stream, or of no stream. The new range is behind no marks: its record has them.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        request: &RangeRequest<K>,
        requester: &Requester<'_, C>,
    ) -> Option<Served> {
        let found = self.find_own(request, requester)?;
        let is_free = self.nodes[found.id].state == NodeState::Free(found.list);
        invariant!(is_free, "a range that a list has is free");
        if !is_free {
            return None; // it has another owner
        }
        let splits = found.bytes > request.bytes && self.config.splits(found.bytes, request.bytes);
        Some(if splits { self.split_found(found, request.bytes) } else { self.take_found(found) })
    }

    /// Makes a free range live.
    #[inline]
    fn take_found(&mut self, Found { id, list, bytes }: Found) -> Served {
        self.remove(list, id);
        let node = &mut self.nodes[id];
        node.state = NodeState::Live;
        let (offset, segment, dirty) = (node.offset, node.segment, node.dirty);
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.used += 1;
        }
        self.cached -= bytes; // no request is served from a hole
        Served { id, bytes, offset, segment, dirty }
    }

    /// Makes the low `bytes` bytes of a free range live. The rest stays in its list.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn split_found(&mut self, Found { id, list, bytes: whole }: Found, bytes: u64) -> Served {
        let (low, next) = self.nodes.next_vacant();
        let rest = &mut self.nodes[id];
        let was = rest.key();
        let (segment, before, dirty) = (rest.segment, rest.before, rest.dirty);
        let step = rest.links.step;
        (rest.offset, rest.bytes, rest.before) = (was.offset + bytes, whole - bytes, low);
        let node = &mut self.nodes[low];
        (node.offset, node.bytes, node.before, node.after) = (was.offset, bytes, before, id);
        (node.segment, node.born, node.state) = (segment, was.born, NodeState::Live);
        node.dirty = dirty;
        self.nodes.set_vacant(next);
        if before != NONE {
            self.nodes[before].after = low;
        }
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.used += 1;
            if before == NONE {
                segment.first = low;
            }
        }
        self.lists.bins(list).resize(&mut self.nodes, (id, step), was, whole - bytes);
        if self.split.is_some() {
            self.count_split(id, Some(whole), Some(whole - bytes));
        }
        self.cached -= bytes; // no request is served from a hole
        Served { id: low, bytes, offset: was.offset, segment, dirty }
    }

    /// Frees a range that no stream used but that of `mark`, or none. Returns false, and does nothing,
    /// if it is not plain: if the stream has no list of its own, or if a neighbour is free and
    /// neither a hole nor in that list behind a mark of the same stream.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    pub(super) fn free_plain(
        &mut self,
        clock: &C,
        id: u32,
        mut mark: Option<C::Mark>,
        (dirty, freed_at): (bool, u64),
    ) -> bool {
        let node = &self.nodes[id];
        let (bytes, before, after, at) = (node.bytes, node.before, node.after, node.segment);
        let used_by = match mark {
            Some(mark) => UsedBy::Stream(clock.stream_id(mark)),
            None => UsedBy::NoStream,
        };
        let Some(group) = self.segments.get(at).map(|segment| segment.group) else { return false };
        if self.lists.some_in_common() {
            return false;
        }
        let Some(own) = self.lists.known(group, used_by) else { return false };
        // Both are looked at before either is judged, so that the two cache misses overlap.
        let (below, above) = (self.nodes.state(before), self.nodes.state(after));
        let below = self.joins(clock, (before, below), own, &mut mark);
        let above = self.joins(clock, (after, above), own, &mut mark);
        let (Some(below), Some(above)) = (below, above) else { return false };
        // The clock is not asked any more: a panic of it would leave the range half free.
        let marks = mark.map_or(Pending::Nothing, Pending::One);
        self.used -= bytes;
        self.count_cached(bytes);
        let freed = FreedRange { id, before, after, segment: at, bytes, dirty, freed_at };
        if below || above {
            self.join_freed(freed, own, (below, above), marks);
            return true;
        }
        let node = &mut self.nodes[id];
        (node.dirty, node.freed_at) = (dirty, freed_at);
        (node.state, node.marks) = (NodeState::Free(own), marks);
        if let Some(segment) = self.segments.get_mut(at) {
            segment.used -= 1;
        }
        self.insert(own, id);
        true
    }

    /// Takes a freed range into the larger of its free neighbours, and the other one too. `marks` are of all.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn join_freed(
        &mut self,
        FreedRange { id, before, after, segment: at, bytes, mut dirty, freed_at }: FreedRange,
        own: u16,
        (below, above): (bool, bool),
        marks: Pending<C::Mark>,
    ) {
        self.nodes.remove(id);
        let both = below && above;
        let up = below && !(both && self.nodes[after].bytes > self.nodes[before].bytes);
        let into = if up { before } else { after };
        let (mut added, mut first, mut last) = (bytes, before, after);
        if both {
            let other = if up { after } else { before };
            self.remove(own, other);
            let node = &self.nodes[other];
            (added, dirty) = (bytes + node.bytes, dirty | node.dirty);
            (first, last) = if up { (first, node.after) } else { (node.before, last) };
            self.nodes.remove(other);
        }
        let node = &mut self.nodes[into];
        let (was, step) = (node.key(), node.links.step);
        (node.bytes, node.dirty) = (was.bytes + added, node.dirty | dirty);
        node.marks = marks;
        if bytes > was.bytes {
            node.freed_at = freed_at;
        }
        if up {
            node.after = last;
            if last != NONE {
                self.nodes[last].before = into;
            }
        } else {
            (node.offset, node.before) = (was.offset - added, first);
            if first != NONE {
                self.nodes[first].after = into;
            }
        }
        if let Some(segment) = self.segments.get_mut(at) {
            segment.used -= 1;
            if !up && first == NONE {
                segment.first = into;
            }
        }
        self.lists.bins(own).resize(&mut self.nodes, (into, step), was, was.bytes + added);
        if self.split.is_some() {
            self.count_split(into, Some(was.bytes), Some(was.bytes + added));
        }
    }

    /// Whether a neighbour in this state coalesces with a range of the list `own` behind `mark`, which
    /// becomes the mark of both then. `None` if that is not plain.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn joins(
        &self,
        clock: &C,
        (id, state): (u32, Option<NodeState>),
        own: u16,
        mark: &mut Option<C::Mark>,
    ) -> Option<bool> {
        let Some(NodeState::Free(list)) = state else { return Some(false) };
        if list != own {
            return (self.lists.get(list).used_by == UsedBy::Hole).then_some(false);
        }
        match (&self.nodes[id].marks, mark) {
            (Pending::Nothing, None) => Some(true),
            // Streams of one number may be several.
            (Pending::One(theirs), Some(mark)) if clock.same_stream(*theirs, *mark) => {
                *mark = clock.later(*theirs, *mark);
                Some(true)
            }
            _ => None,
        }
    }
}
