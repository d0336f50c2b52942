//! Search: which free range serves a request. A bitmap names the lists, and a few of each are
//! looked at.

use crate::by_size::SizeKey;
use crate::port::StreamClock;
use crate::ranges::arena::ArenaConfig;
use crate::ranges::list::{RangeList, UsedBy};
use crate::ranges::node::{NONE, NodeState, Nodes, RangeNode};
use crate::ranges::{RangeRequest, Ranges};
use crate::stream::Requester;

/// Ranges of one step that are looked at.
const LOOKS: usize = 8;
/// Ranges of a list that are looked at.
const LOOKS_IN_LIST: usize = 64;
/// Lists that are searched.
const LISTS: usize = 16;

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// A free range of the own stream, or of none.
    #[inline]
    pub(crate) fn find_own(
        &mut self,
        request: &RangeRequest<K>,
        requester: &Requester<'_, C>,
    ) -> Option<u32> {
        // Streams of one number need not be ordered after each other: open scopes of wgpu are not.
        let ready = |node: &RangeNode<_>| requester.are_ready(&node.marks);
        let exact = self.config.is_ordered();
        let search = Search { nodes: &self.nodes, config: &self.config };
        let mut best = None;
        for of in [UsedBy::Stream(request.stream), UsedBy::OneOf(request.stream), UsedBy::NoStream]
        {
            let list = match of {
                UsedBy::OneOf(stream) => self.lists.in_common(request.group, stream),
                of => self.lists.known(request.group, of),
            };
            let list = list.filter(|list| list.bins.bytes() >= request.bytes);
            let Some(list) = list else { continue };
            if !exact {
                if let Some((_, id)) = search.good(list, request.bytes, &ready) {
                    return Some(id);
                }
            } else if let Some(found) = search.exact(list, request.bytes, &ready)
                && best.is_none_or(|best| search.is_better(found, best))
            {
                best = Some(found);
            }
        }
        best.map(|(_, id)| id)
    }

    /// The smallest free range that `accept` takes, among a bounded number of ranges of the lists
    /// that `of` names.
    #[inline]
    pub(crate) fn find(
        &mut self,
        request: &RangeRequest<K>,
        of: impl Fn(UsedBy) -> bool,
        accept: impl Fn(&RangeNode<C::Mark>) -> bool,
    ) -> Option<u32> {
        let (mut best, mut lists, mut next) = (None, LISTS, 0);
        let search = Search { nodes: &self.nodes, config: &self.config };
        for (at, list) in self.lists.from(self.find_from) {
            let fits = list.bins.bytes() >= request.bytes && list.group == request.group;
            if !fits || list.used_by == UsedBy::Hole || !of(list.used_by) {
                continue;
            }
            let Some(more) = lists.checked_sub(1) else {
                next = at; // the next search begins with what this one leaves out
                break;
            };
            lists = more;
            let found = if self.config.is_ordered() {
                search.exact(list, request.bytes, &accept)
            } else {
                search.good(list, request.bytes, &accept)
            };
            let Some(found) = found else { continue };
            if best.is_none_or(|best| search.is_better(found, best)) {
                best = Some(found);
            }
        }
        self.find_from = next;
        best.map(|(_, id)| id)
    }

    /// The smallest free range that `accept` takes among `count` nodes from number `from` on, and
    /// the number to carry on with; `None` at the end.
    pub(crate) fn scan(
        &self,
        request: &RangeRequest<K>,
        from: u32,
        count: u32,
        accept: impl Fn(&RangeNode<C::Mark>) -> bool,
    ) -> (Option<u32>, Option<u32>) {
        let serves = |id: &u32| {
            let node = &self.nodes[*id];
            let NodeState::Free(list) = node.state else { return false };
            let list = self.lists.get(list);
            list.used_by != UsedBy::Hole
                && list.group == request.group
                && node.bytes >= request.bytes
                && self.config.suits(node.bytes, request.bytes)
                && accept(node)
        };
        let end = from.saturating_add(count).min(self.nodes.len());
        let found = (from..end).filter(serves).min_by_key(|id| self.nodes[*id].bytes);
        (found, (end < self.nodes.len()).then_some(end))
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
    ) -> Option<(u64, u32)> {
        let mut step = list.bins.step(bytes);
        for _ in 0..LOOKS_IN_LIST / LOOKS {
            let own = list.bins.at_or_above(step)?;
            let found = self.in_step(list.bins.head(own), bytes, accept);
            if found.is_some() {
                return found;
            }
            step = own + 1;
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
    ) -> Option<(u64, u32)> {
        let (mut best, mut next, mut left) = ((u64::MAX, NONE), head, LOOKS);
        while next != NONE && left > 0 {
            let (id, node) = (next, &self.nodes[next]);
            (next, left) = (node.links.older, left - 1);
            let fits = node.bytes >= bytes && node.bytes < best.0;
            if fits && self.suits(node, bytes) && accept(node) {
                best = (node.bytes, id);
                if node.bytes == bytes {
                    break;
                }
            }
        }
        (best.1 != NONE).then_some(best)
    }

    /// The best fit of a list; of equal sizes the oldest segment, then the lowest offset.
    #[inline]
    fn exact<K>(
        &self,
        list: &RangeList<K>,
        bytes: u64,
        accept: &impl Fn(&RangeNode<M>) -> bool,
    ) -> Option<(u64, u32)> {
        let mut key = SizeKey::least(bytes);
        for _ in 0..LOOKS_IN_LIST {
            let id = list.bins.first_from(self.nodes, key)?;
            let node = &self.nodes[id];
            if !self.suits(node, bytes) {
                return None; // too large, and so are all above it
            }
            if accept(node) {
                return Some((node.bytes, id));
            }
            key = node.key().above();
        }
        None
    }

    /// Whether a range is not too large.
    #[inline]
    fn suits(&self, node: &RangeNode<M>, bytes: u64) -> bool {
        self.config.suits(node.bytes, bytes)
    }

    #[inline]
    fn is_better(&self, (bytes, id): (u64, u32), (than, other): (u64, u32)) -> bool {
        if bytes != than || !self.config.is_ordered() {
            return bytes < than;
        }
        self.nodes[id].key() < self.nodes[other].key()
    }
}
