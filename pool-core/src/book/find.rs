//! Search: which free range serves a request. A bitmap names the lists, and a few of each are
//! looked at.

use super::list::{Of, RangeList};
use super::node::{NONE, Nodes, RangeNode};
use super::tree::RangeKey;
use super::{Book, BookRequest};
use crate::arena::ArenaConfig;
use crate::clock::StreamClock;
use crate::order::Taker;

/// Ranges of one step that are looked at.
const LOOKS: usize = 8;
/// Ranges of a list that are looked at and do not serve before its search ends.
const TURNED_DOWN: usize = 64;
/// Lists that are searched.
const LISTS: usize = 16;

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A bounded number of ranges.
    Bounded,
    /// All ranges, before the request is refused.
    All,
}

impl<C: StreamClock, K: Copy + Eq + Default> Book<C, K> {
    /// A free range of the own stream, or of none.
    #[inline]
    pub(crate) fn find_own(
        &mut self,
        request: &BookRequest<K>,
        taker: &Taker<'_, C>,
    ) -> Option<u32> {
        // Streams of one number need not be ordered after each other: open scopes of wgpu are not.
        let ready = |node: &RangeNode<_>| taker.are_ready(&node.marks);
        if self.config.is_exact() {
            return self.find(request, |of| of.is_own(request.stream), ready, Effort::Bounded);
        }
        let search = Search { nodes: &self.nodes, config: &self.config };
        let (mut best, mut left): (Option<(u64, u32)>, usize) = (None, TURNED_DOWN);
        for of in [Of::Stream(request.stream), Of::Untouched] {
            let list = self.lists.known(request.group, of);
            let list = list.filter(|list| list.bins.bytes() >= request.bytes);
            let Some(list) = list else { continue };
            let found = search.good(list, request.bytes, &ready, &mut left);
            if found.is_some_and(|found| best.is_none_or(|best| found.0 < best.0)) {
                best = found;
            }
        }
        best.map(|(_, id)| id)
    }

    /// The smallest free range that `accept` takes, among the lists that `of` names.
    #[inline]
    pub(crate) fn find(
        &self,
        request: &BookRequest<K>,
        of: impl Fn(Of) -> bool,
        accept: impl Fn(&RangeNode<C::Mark>) -> bool,
        effort: Effort,
    ) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        let (mut lists, turned_down) = match effort {
            Effort::Bounded => (LISTS, TURNED_DOWN),
            Effort::All => (usize::MAX, usize::MAX),
        };
        for list in self.lists.iter() {
            let fits = list.bins.bytes() >= request.bytes && list.group == request.group;
            if !fits || list.of == Of::Hole || !of(list.of) {
                continue;
            }
            let Some(more) = lists.checked_sub(1) else { break };
            lists = more;
            let mut left = turned_down;
            let found = if self.config.is_exact() {
                self.find_exact(list, request.bytes, &accept)
            } else {
                let search = Search { nodes: &self.nodes, config: &self.config };
                search.good(list, request.bytes, &accept, &mut left)
            };
            let Some(found) = found else { continue };
            if best.is_none_or(|best| self.is_better(found, best)) {
                best = Some(found);
            }
        }
        best.map(|(_, id)| id)
    }

    /// The best fit of a list; of equal sizes the oldest segment, then the lowest offset.
    fn find_exact(
        &self,
        list: &RangeList<K>,
        bytes: u64,
        accept: &impl Fn(&RangeNode<C::Mark>) -> bool,
    ) -> Option<(u64, u32)> {
        // A size that does not suit is too large, and so are all above it.
        let suits = |id: &u32| self.config.suits(self.nodes[*id].bytes, bytes);
        let mut fits = list.bins.ascending(&self.nodes, bytes).take_while(suits);
        let id = fits.find(|id| accept(&self.nodes[*id]))?;
        Some((self.nodes[id].bytes, id))
    }

    #[inline]
    fn is_better(&self, (bytes, id): (u64, u32), (than, other): (u64, u32)) -> bool {
        if bytes != than || !self.config.is_exact() {
            return bytes < than;
        }
        RangeKey::of(&self.nodes[id]) < RangeKey::of(&self.nodes[other])
    }
}

/// A search in one list after the other, for a few ranges of each.
struct Search<'b, M> {
    nodes: &'b Nodes<M>,
    config: &'b ArenaConfig,
}

impl<M: Clone> Search<'_, M> {
    /// A range of a list: the smallest of a few in the request's own step, else of a few in the
    /// next step that has one.
    #[inline]
    fn good<K>(
        &self,
        list: &RangeList<K>,
        bytes: u64,
        accept: &impl Fn(&RangeNode<M>) -> bool,
        left: &mut usize,
    ) -> Option<(u64, u32)> {
        for head in list.bins.upward(bytes) {
            let found = self.in_step(head, bytes, accept, left);
            if found.is_some() || *left == 0 {
                return found;
            }
        }
        None
    }

    /// The smallest of a few ranges of one step, the first exact one if there is one.
    #[inline]
    fn in_step(
        &self,
        head: u32,
        bytes: u64,
        accept: &impl Fn(&RangeNode<M>) -> bool,
        left: &mut usize,
    ) -> Option<(u64, u32)> {
        let (mut best, mut next) = ((u64::MAX, NONE), head);
        let looks = if *left > TURNED_DOWN { usize::MAX } else { LOOKS };
        for _ in 0..looks {
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
}
