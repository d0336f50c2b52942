//! Freed ranges: coalesced with their neighbours, and put in a list.

use super::Book;
use super::list::Of;
use super::node::{NONE, State};
use crate::clock::StreamClock;
use crate::order::After;

impl<C: StreamClock, K: Copy + Eq> Book<C, K> {
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
        let Some(segment) = self.segments.get_mut(at) else { return };
        segment.used -= 1;
        let group = segment.group;
        // Both are looked at before either is judged, so that the two cache misses overlap.
        let lists = [before, after].map(|id| self.list_of(id));
        let may =
            |neighbour: u32| self.nodes[neighbour].marks.may_coalesce(clock, &self.nodes[id].marks);
        let below = lists[0].and_then(|list| of.coalesced(self.lists.get(list).of));
        let below = below.filter(|_| may(before));
        let of = below.unwrap_or(of);
        let above = lists[1].and_then(|list| of.coalesced(self.lists.get(list).of));
        let above = above.filter(|_| may(after));
        let of = above.unwrap_or(of);
        let into = match (below, above) {
            (None, None) => {
                let own = self.lists.number(group, of);
                self.nodes[id].state = State::Free(own);
                return self.lists.bins(own).insert(&mut self.nodes, id);
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
            return self.lists.bins(own).resize(&mut self.nodes, into, was);
        }
        let bytes = std::mem::replace(&mut self.nodes[into].bytes, was);
        self.lists.bins(list).remove(&mut self.nodes, into);
        self.nodes[into].bytes = bytes;
        self.nodes[into].state = State::Free(own);
        self.lists.bins(own).insert(&mut self.nodes, into);
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
    fn coalesce_below(&mut self, clock: &C, below: u32, id: u32) -> (u32, u64) {
        let was = self.nodes[below].bytes;
        self.merge_notes(clock, below, id);
        self.nodes.coalesce_next(below);
        (below, was)
    }

    /// Takes `id` into the free range above it, which keeps its number.
    #[inline]
    fn coalesce_above(&mut self, clock: &C, id: u32, above: u32) -> (u32, u64) {
        let was = self.nodes[above].bytes;
        self.merge_notes(clock, above, id);
        self.lower_start(above);
        (above, was)
    }

    /// Takes `id` and the smaller neighbour into the larger.
    #[inline]
    fn coalesce_both(&mut self, clock: &C, below: u32, id: u32, above: u32) -> (u32, u64) {
        let (low, high) = (self.nodes[below].bytes, self.nodes[above].bytes);
        let (into, other) = if low >= high { (below, above) } else { (above, below) };
        if let Some(list) = self.list_of(other) {
            self.lists.bins(list).remove(&mut self.nodes, other);
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
        (into, low.max(high))
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
