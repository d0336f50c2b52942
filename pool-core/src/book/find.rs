//! Search: which free range serves a request. A bitmap names the lists, and a few of each are
//! looked at.

use super::list::{Of, RangeList};
use super::node::{NONE, RangeNode};
use super::{Book, BookRequest};
use crate::clock::StreamClock;
use crate::order::Taker;

/// Ranges of one step that are looked at.
const LOOKS: usize = 8;
/// Ranges of all lists that are looked at and do not serve before a search ends.
const TURNED_DOWN: usize = 64;

impl<C: StreamClock, K: Copy + Eq> Book<C, K> {
    /// A free range of the own stream, or of none.
    #[inline]
    pub(crate) fn find_own(&self, request: &BookRequest<K>, taker: &Taker<'_, C>) -> Option<u32> {
        let own = |of: Of| of == Of::Untouched || of == Of::Stream(request.stream);
        // Streams of one number need not be ordered after each other: open scopes of wgpu are not.
        self.find(request, own, |node| node.marks.marks().iter().all(|m| taker.is_ready(*m)))
    }

    /// The smallest free range that `accept` takes, among the lists that `of` names.
    #[inline]
    pub(crate) fn find(
        &self,
        request: &BookRequest<K>,
        of: impl Fn(Of) -> bool,
        accept: impl Fn(&RangeNode<C::Mark>) -> bool,
    ) -> Option<u32> {
        let (mut best, mut left): (Option<(u64, u32)>, usize) = (None, TURNED_DOWN);
        for list in self.lists.iter() {
            let fits = list.bins.bytes() >= request.bytes && list.group == request.group;
            if !fits || !of(list.of) {
                continue;
            }
            let found = match self.config.is_exact() {
                true => self.find_exact(list, request.bytes, &accept),
                false => self.find_good(list, request.bytes, &accept, &mut left),
            };
            let Some(found) = found else { continue };
            if best.is_none_or(|best| self.is_better(found, best)) {
                best = Some(found);
            }
        }
        best.map(|(_, id)| id)
    }

    /// A range of a list: the smallest of a few in the request's own step, else of a few in the
    /// next step that has one.
    #[inline]
    fn find_good(
        &self,
        list: &RangeList<K>,
        bytes: u64,
        accept: &impl Fn(&RangeNode<C::Mark>) -> bool,
        left: &mut usize,
    ) -> Option<(u64, u32)> {
        for head in list.bins.upward(bytes) {
            let found = self.find_in_step(head, bytes, accept, left);
            if found.is_some() || *left == 0 {
                return found;
            }
        }
        None
    }

    /// The smallest of a few ranges of one step, the first exact one if there is one.
    #[inline]
    fn find_in_step(
        &self,
        head: u32,
        bytes: u64,
        accept: &impl Fn(&RangeNode<C::Mark>) -> bool,
        left: &mut usize,
    ) -> Option<(u64, u32)> {
        let (mut best, mut next) = ((u64::MAX, NONE), head);
        for _ in 0..LOOKS {
            if next == NONE || *left == 0 {
                break;
            }
            let (id, node) = (next, &self.nodes[next]);
            next = node.older;
            let suits = node.bytes >= bytes && self.config.suits(node.bytes, bytes);
            if !suits || node.bytes >= best.0 || !accept(node) {
                *left -= 1;
                continue;
            }
            best = (node.bytes, id);
            if node.bytes == bytes {
                break;
            }
        }
        (best.1 != NONE).then_some(best)
    }

    /// The best fit of a list; of equal sizes the oldest segment, then the lowest offset.
    fn find_exact(
        &self,
        list: &RangeList<K>,
        bytes: u64,
        accept: &impl Fn(&RangeNode<C::Mark>) -> bool,
    ) -> Option<(u64, u32)> {
        for head in list.bins.upward(bytes) {
            let mut best = None;
            for id in self.nodes.list(head) {
                let node = &self.nodes[id];
                let suits = node.bytes >= bytes && self.config.suits(node.bytes, bytes);
                let found = (node.bytes, id);
                if suits && best.is_none_or(|best| self.is_better(found, best)) && accept(node) {
                    best = Some(found);
                }
            }
            if best.is_some() {
                return best;
            }
        }
        None
    }

    #[inline]
    fn is_better(&self, (bytes, id): (u64, u32), (than, other): (u64, u32)) -> bool {
        if bytes != than || !self.config.is_exact() {
            return bytes < than;
        }
        let place = |id: u32| {
            let node = &self.nodes[id];
            (self.segments.get(node.segment).map_or(0, |segment| segment.born), node.offset)
        };
        place(id) < place(other)
    }
}
