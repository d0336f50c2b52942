//! Freed ranges: coalesced with their neighbours, and put in a list.

use crate::by_size::SizeKey;
use crate::port::StreamClock;
use crate::ranges::list::UsedBy;
use crate::ranges::node::{NONE, NodeState, RangeNode};
use crate::ranges::{Ranges, returnable};
use crate::stream::Pending;

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// Makes a range free that is in no list: coalesces it with its neighbours and puts it in the
    /// list of who used it last.
    #[inline(never)]
    pub(crate) fn release(&mut self, clock: &C, id: u32, marks: Pending<C::Mark>, freed_at: u64) {
        let used_by = UsedBy::of_marks(clock, marks.marks());
        let node = &mut self.nodes[id];
        (node.marks, node.freed_at) = (marks, freed_at);
        self.put_free(clock, id, used_by);
    }

    /// Puts a range that is in no list among the free ones of `used_by`.
    #[inline]
    pub(super) fn put_free(&mut self, clock: &C, id: u32, used_by: UsedBy) {
        let RangeNode { before, after, segment: at, bytes, .. } = self.nodes[id];
        let Some(segment) = self.segments.get_mut(at) else { return };
        segment.used -= 1;
        let group = segment.group;
        if used_by != UsedBy::Hole {
            self.count_cached(bytes);
        }
        // Both are looked at before either is judged, so that the two cache misses overlap.
        let [below, above] = [before, after].map(|id| self.list_of(id));
        let mut used_by = used_by;
        let below = below.filter(|list| self.coalesces(clock, id, (before, *list), &mut used_by));
        let above = above.filter(|list| self.coalesces(clock, id, (after, *list), &mut used_by));
        let (into, list, was) = match (below, above) {
            (None, None) => {
                let own = self.lists.number(group, used_by);
                self.nodes[id].state = NodeState::Free(own);
                return self.insert(own, id);
            }
            (Some(list), None) => (before, list, self.absorb_first(clock, before, id)),
            (None, Some(list)) => (after, list, self.absorb_first(clock, after, id)),
            (Some(below), Some(above)) => {
                self.coalesce_both(clock, id, (before, below), (after, above))
            }
        };
        if into == after && self.nodes[into].before == NONE {
            self.note_first(at, into);
        }
        // Streams of one number may be several.
        if let Pending::Many(marks) = &self.nodes[into].marks {
            used_by = UsedBy::of_marks(clock, marks);
        }
        let own = self.lists.number(group, used_by);
        if list == own {
            return self.resize(own, into, was);
        }
        self.remove_changed(list, into, was);
        self.nodes[into].state = NodeState::Free(own);
        self.insert(own, into);
    }

    /// Whether a range of `used_by` coalesces with a free neighbour, of which the number and the
    /// list are given. `used_by` is who used both last then.
    #[inline]
    fn coalesces(
        &mut self,
        clock: &C,
        id: u32,
        (neighbour, list): (u32, u16),
        used_by: &mut UsedBy,
    ) -> bool {
        let theirs = self.used_by(clock, neighbour, list);
        let Some(both) = used_by.coalesced(theirs) else { return false };
        let may = self.nodes[neighbour].marks.may_coalesce(clock, &self.nodes[id].marks);
        match may {
            true => *used_by = both,
            false => self.apart = true,
        }
        may
    }

    /// Who used a range of a list last.
    #[inline]
    pub(super) fn used_by(&self, clock: &C, id: u32, list: u16) -> UsedBy {
        match self.lists.get(list).used_by {
            UsedBy::OneOf(_) => UsedBy::of_marks(clock, self.nodes[id].marks.marks()),
            of => of,
        }
    }

    /// Coalesces a free range with the one after it if both are in the list of several streams and
    /// behind the same marks: two parts of a range that was split and not taken.
    pub(crate) fn rejoin(&mut self, clock: &C, id: u32) {
        let next = self.nodes[id].after;
        let list = self.list_of(id);
        let several = list.is_some_and(|list| self.lists.get(list).used_by == UsedBy::Several);
        if next == NONE || !several || self.list_of(next) != list {
            return;
        }
        let later = |a: &[C::Mark], b: &[C::Mark]| {
            a.iter().all(|a| b.iter().any(|b| clock.is_later(*b, *a)))
        };
        let (own, other) = (self.nodes[id].marks.marks(), self.nodes[next].marks.marks());
        if later(own, other) && later(other, own) {
            returnable::coalesce_any(self, clock, id);
        }
    }

    /// Whether the work before all marks of a range has reached the device.
    pub(crate) fn is_submitted(&self, clock: &C, id: u32) -> bool {
        self.nodes[id].marks.marks().iter().all(|mark| clock.is_submitted(*mark))
    }

    /// Whether a range is free memory in a list.
    pub(crate) fn is_free(&self, id: u32) -> bool {
        matches!(self.nodes[id].state, NodeState::Free(_)) && !self.is_hole(id)
    }

    /// The list that a range is in.
    #[inline]
    pub(crate) fn list_of(&self, id: u32) -> Option<u16> {
        match self.nodes.state(id)? {
            NodeState::Free(list) => Some(list),
            _ => None,
        }
    }

    /// Takes a neighbour into a free range. Returns how large that was.
    #[inline]
    fn absorb_first(&mut self, clock: &C, into: u32, from: u32) -> SizeKey {
        let was = self.nodes[into].key();
        self.absorb(clock, into, from);
        was
    }

    /// Takes a range and the smaller of its free neighbours, each with its list, into the larger.
    /// Returns that, its list, and how large it was.
    fn coalesce_both(
        &mut self,
        clock: &C,
        id: u32,
        below: (u32, u16),
        above: (u32, u16),
    ) -> (u32, u16, SizeKey) {
        let larger_below = self.nodes[below.0].bytes >= self.nodes[above.0].bytes;
        let (into, other) = if larger_below { (below, above) } else { (above, below) };
        self.remove(other.1, other.0);
        let was = self.absorb_first(clock, into.0, id);
        self.absorb(clock, into.0, other.0);
        (into.0, into.1, was)
    }

    /// Takes a neighbour by address into a range, behind the marks of both.
    #[inline]
    pub(super) fn absorb(&mut self, clock: &C, into: u32, from: u32) {
        self.nodes.absorb(into, from, |own, other| own.join(clock, other));
    }

    /// Notes the lowest range of a segment.
    #[inline]
    pub(super) fn note_first(&mut self, segment: u32, first: u32) {
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.first = first;
        }
    }
}
