//! Freed ranges: coalesced with their neighbours, and put in a list.

use super::Book;
use super::list::Of;
use super::node::{Extent, NONE, State};
use crate::clock::StreamClock;
use crate::order::After;

impl<C: StreamClock, K: Copy + Eq + Default> Book<C, K> {
    /// Makes a range free that is in no list: coalesces it with its neighbours and puts it in the
    /// list of who used it last.
    #[inline]
    pub(crate) fn release(&mut self, clock: &C, id: u32, marks: After<C::Mark>, freed_at: u64) {
        let of = Of::marks(clock, marks.marks());
        let node = &mut self.nodes[id];
        (node.marks, node.freed_at) = (marks, freed_at);
        self.put_free(clock, id, of);
    }

    /// Puts a range that is in no list among the free ones of `of`.
    #[inline]
    pub(super) fn put_free(&mut self, clock: &C, id: u32, of: Of) {
        let node = &self.nodes[id];
        let (before, after, at) = (node.before, node.after, node.segment);
        if of != Of::Hole {
            let bytes = node.bytes;
            self.count_cached(bytes);
        }
        let Some(segment) = self.segments.get_mut(at) else { return };
        segment.used -= 1;
        let group = segment.group;
        // Both are looked at before either is judged, so that the two cache misses overlap.
        let lists = [before, after].map(|id| self.list_of(id));
        let may =
            |neighbour: u32| self.nodes[neighbour].marks.may_coalesce(clock, &self.nodes[id].marks);
        let below = lists[0].and_then(|list| of.coalesced(self.lists.get(list).of));
        let apart = below.is_some() && !may(before);
        let below = below.filter(|_| !apart);
        let of = below.unwrap_or(of);
        let above = lists[1].and_then(|list| of.coalesced(self.lists.get(list).of));
        let apart_above = above.is_some() && !may(after);
        let above = above.filter(|_| !apart_above);
        let of = above.unwrap_or(of);
        self.apart |= apart || apart_above;
        let into = match (below, above) {
            (None, None) => {
                let own = self.lists.number(group, of);
                self.nodes[id].state = State::Free(own);
                return self.insert(own, id);
            }
            (Some(_), None) => self.coalesce_below(clock, before, id),
            (None, Some(_)) => self.coalesce_above(clock, id, after),
            (Some(_), Some(_)) => self.coalesce_both(clock, before, id, after),
        };
        let (into, was) = into;
        // Streams of one number may be several.
        let of = match &self.nodes[into].marks {
            After::Many(marks) => Of::marks(clock, marks),
            _ => of,
        };
        let own = self.lists.number(group, of);
        let list = self.list_of(into).unwrap_or(own);
        if list == own {
            return self.resize(own, into, was);
        }
        self.remove_changed(list, into, was);
        self.nodes[into].state = State::Free(own);
        self.insert(own, into);
    }

    /// Coalesces a free range with the one after it if both are in the list of several streams and
    /// behind the same marks: two parts of a range that was split and not taken.
    pub(crate) fn rejoin(&mut self, clock: &C, id: u32) {
        let next = self.nodes[id].after;
        let list = self.list_of(id);
        let several = list.is_some_and(|list| self.lists.get(list).of == Of::Several);
        if next == NONE || !several || self.list_of(next) != list {
            return;
        }
        let later = |a: &[C::Mark], b: &[C::Mark]| {
            a.iter().all(|a| b.iter().any(|b| clock.is_later(*b, *a)))
        };
        let (own, other) = (self.nodes[id].marks.marks(), self.nodes[next].marks.marks());
        if later(own, other) && later(other, own) {
            self.coalesce_any(clock, id);
        }
    }

    /// Whether the work before all marks of a range has reached the device.
    pub(crate) fn is_submitted(&self, clock: &C, id: u32) -> bool {
        self.nodes[id].marks.marks().iter().all(|mark| clock.is_submitted(*mark))
    }

    /// Whether a range is free memory in a list.
    pub(crate) fn is_free(&self, id: u32) -> bool {
        matches!(self.nodes[id].state, State::Free(_)) && !self.is_hole(id)
    }

    /// The list that a range is in.
    #[inline]
    pub(crate) fn list_of(&self, id: u32) -> Option<u16> {
        match self.nodes.state(id)? {
            State::Free(list) => Some(list),
            _ => None,
        }
    }

    /// Takes `id` into the free range below it. Returns that, and how large it was.
    #[inline]
    fn coalesce_below(&mut self, clock: &C, below: u32, id: u32) -> (u32, Extent) {
        let was = self.nodes[below].extent();
        self.merge_notes(clock, below, id);
        self.nodes.coalesce_next(below);
        (below, was)
    }

    /// Takes `id` into the free range above it, which keeps its number.
    #[inline]
    fn coalesce_above(&mut self, clock: &C, id: u32, above: u32) -> (u32, Extent) {
        let was = self.nodes[above].extent();
        self.merge_notes(clock, above, id);
        self.lower_start(above);
        (above, was)
    }

    /// Takes `id` and the smaller neighbour into the larger.
    #[inline]
    fn coalesce_both(&mut self, clock: &C, below: u32, id: u32, above: u32) -> (u32, Extent) {
        let larger_below = self.nodes[below].bytes >= self.nodes[above].bytes;
        let (into, other) = if larger_below { (below, above) } else { (above, below) };
        let was = self.nodes[into].extent();
        if let Some(list) = self.list_of(other) {
            self.remove(list, other);
        }
        self.merge_notes(clock, into, id);
        self.merge_notes(clock, into, other);
        if into == below {
            self.nodes.coalesce_next(below);
            self.nodes.coalesce_next(below);
        } else {
            self.lower_start(above);
            self.lower_start(above);
        }
        (into, was)
    }

    /// Takes the range before `id` into it, and makes that number vacant.
    #[inline]
    fn lower_start(&mut self, id: u32) {
        let low = self.nodes[id].before;
        let (bytes, before) = (self.nodes[low].bytes, self.nodes[low].before);
        let node = &mut self.nodes[id];
        node.bytes += bytes;
        node.offset -= bytes;
        node.before = before;
        let at = node.segment;
        if before == NONE {
            if let Some(segment) = self.segments.get_mut(at) {
                segment.first = id;
            }
        } else {
            self.nodes[before].after = id;
        }
        self.nodes.remove(low);
    }

    /// Merges marks, age and contents of two ranges that coalesce; the age is that of the larger.
    #[inline]
    pub(crate) fn merge_notes(&mut self, clock: &C, into: u32, from: u32) {
        let node = &mut self.nodes[from];
        let marks = std::mem::take(&mut node.marks);
        let (bytes, freed_at, dirty) = (node.bytes, node.freed_at, node.dirty);
        let node = &mut self.nodes[into];
        node.marks = std::mem::take(&mut node.marks).join(clock, marks);
        node.dirty |= dirty;
        if bytes > node.bytes {
            node.freed_at = freed_at;
        }
    }
}
