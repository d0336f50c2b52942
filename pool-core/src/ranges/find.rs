//! Search: which free range serves a request. A bitmap names the lists, and a few of each are
//! looked at.

use crate::by_size::SizeKey;
use crate::port::StreamClock;
use crate::ranges::arena::ArenaConfig;
use crate::ranges::list::{RangeList, UsedBy};
use crate::ranges::node::{NONE, NodeState, Nodes, RangeNode};
use crate::ranges::{RangeRequest, Ranges};
use crate::stream::Requester;
use std::ops::Range;

/// Ranges of one step that are looked at.
const MAX_LOOKS_IN_STEP: usize = 8;
/// Ranges of a list that are looked at.
const MAX_LOOKS: usize = 64;
/// Lists that are searched.
const MAX_LISTS: usize = 16;

/// A free range that serves a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) id: u32,
    /// The list that it is in.
    pub(super) list: u16,
    pub(super) bytes: u64,
}

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// A free range of the own stream, or of none.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(super) fn find_own(
        &mut self,
        request: &RangeRequest<K>,
        requester: &Requester<'_, C>,
    ) -> Option<Found> {
        if self.config.is_ordered() {
            return self.find_in_order(request, requester);
        }
        if let Some(found) = self.find_in(request, requester, UsedBy::Stream(request.stream)) {
            return Some(found);
        }
        if self.lists.some_in_common()
            && let Some(found) = self.find_in_common(request, requester)
        {
            return Some(found);
        }
        self.find_in(request, requester, UsedBy::NoStream)
    }

    /// A good range of one list.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn find_in(
        &mut self,
        request: &RangeRequest<K>,
        requester: &Requester<'_, C>,
        of: UsedBy,
    ) -> Option<Found> {
        let list = self.lists.known(request.group, of)?;
        // Streams of one number need not be ordered after each other: open scopes of wgpu are not.
        let ready = |node: &RangeNode<_>| requester.are_ready(&node.marks);
        let search = ListSearch { nodes: &self.nodes, config: &self.config };
        let (bytes, id) = search.good(self.lists.get(list), request.bytes, &ready)?;
        Some(Found { id, list, bytes })
    }

    /// A good range of the list that the stream has in common with others.
    #[cold]
    #[inline(never)]
    fn find_in_common(
        &mut self,
        request: &RangeRequest<K>,
        requester: &Requester<'_, C>,
    ) -> Option<Found> {
        self.find_in(request, requester, UsedBy::Stream(request.stream).in_common())
    }

    /// As [`Ranges::find_own`], where ranges are in order: the first of all lists.
    #[inline(never)]
    fn find_in_order(
        &mut self,
        request: &RangeRequest<K>,
        requester: &Requester<'_, C>,
    ) -> Option<Found> {
        let ready = |node: &RangeNode<_>| requester.are_ready(&node.marks);
        let own = UsedBy::Stream(request.stream);
        let mut best: Option<(SizeKey, Found)> = None;
        for of in [own, own.in_common(), UsedBy::NoStream] {
            if matches!(of, UsedBy::OneOf(_)) && !self.lists.some_in_common() {
                continue;
            }
            let Some(list) = self.lists.known(request.group, of) else { continue };
            let search = ListSearch { nodes: &self.nodes, config: &self.config };
            let found = search.exact(self.lists.get(list), request.bytes, &ready);
            if let Some((key, id)) = found
                && best.is_none_or(|(best, _)| key < best)
            {
                best = Some((key, Found { id, list, bytes: key.bytes }));
            }
        }
        best.map(|(_, found)| found)
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
        let (mut best, mut lists, mut next) = (None, MAX_LISTS, 0);
        let search = ListSearch { nodes: &self.nodes, config: &self.config };
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
                search.exact(list, request.bytes, &accept).map(|(key, id)| (key.bytes, id))
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
                && node.bytes < self.config.too_large_for(request.bytes)
                && accept(node)
        };
        let end = from.saturating_add(count).min(self.nodes.len());
        let found = (from..end).filter(serves).min_by_key(|id| self.nodes[*id].bytes);
        (found, (end < self.nodes.len()).then_some(end))
    }
}

/// A search in one list after the other, for a few ranges of each.
struct ListSearch<'b, M> {
    nodes: &'b Nodes<M>,
    config: &'b ArenaConfig,
}

impl<M: Clone> ListSearch<'_, M> {
    /// A range of a list: the smallest of a few in the request's own step, else of a few in the
    /// next step that has one.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn good<K>(
        &self,
        list: &RangeList<K>,
        bytes: u64,
        accept: &impl Fn(&RangeNode<M>) -> bool,
    ) -> Option<(u64, u32)> {
        if list.bins.bytes() < bytes {
            return None;
        }
        let (mut step, end) = (list.bins.step(bytes), self.config.too_large_for(bytes));
        for _ in 0..MAX_LOOKS / MAX_LOOKS_IN_STEP {
            let own = list.bins.at_or_above(step)?;
            let found = self.in_step(list.bins.head(own), bytes..end, accept);
            if found.is_some() {
                return found;
            }
            step = own + 1;
        }
        None
    }

    /// The smallest of a few ranges of one step that have one of these sizes, the first exact one if
    /// there is one.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn in_step(
        &self,
        head: u32,
        sizes: Range<u64>,
        accept: &impl Fn(&RangeNode<M>) -> bool,
    ) -> Option<(u64, u32)> {
        let (mut best, mut next, mut left) = ((sizes.end, NONE), head, MAX_LOOKS_IN_STEP);
        while next != NONE && left > 0 {
            let (id, node) = (next, &self.nodes[next]);
            (next, left) = (node.links.older, left - 1);
            if node.bytes >= sizes.start && node.bytes < best.0 && accept(node) {
                best = (node.bytes, id);
                if node.bytes == sizes.start {
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
    ) -> Option<(SizeKey, u32)> {
        if list.bins.bytes() < bytes {
            return None;
        }
        let (mut key, end) = (SizeKey::least(bytes), self.config.too_large_for(bytes));
        for _ in 0..MAX_LOOKS {
            let id = list.bins.first_from(self.nodes, key)?;
            let node = &self.nodes[id];
            if node.bytes >= end {
                return None; // and so are all above it
            }
            key = node.key();
            if accept(node) {
                return Some((key, id));
            }
            key = key.above();
        }
        None
    }

    #[inline]
    fn is_better(&self, (bytes, id): (u64, u32), (than, other): (u64, u32)) -> bool {
        if bytes != than || !self.config.is_ordered() {
            return bytes < than;
        }
        self.nodes[id].key() < self.nodes[other].key()
    }
}
