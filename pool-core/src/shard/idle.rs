//! Idle blocks: a stack for each size, and one line of all of them by age.
//!
//! A stack, because the block that came back last is the one most likely to be warm. A line,
//! because what goes first when a bound is passed is the oldest, whatever its size. Both run
//! through one slab of nodes, so taking a block out of the middle of either costs no search:
//!
//! ```text
//!   shelf (kind, lane)          age:  oldest                      newest
//!     512 B   [n4 n1]                   n1 <-> n2 <-> n3 <-> n4
//!     4 KiB   [n3 n2]           slab:  |n1|n2|n3|n4|  |  |   (vacant nodes are used again)
//! ```
//!
//! What came last is in neither yet (`recent.rs`): most of it is taken again at once.
//!
//! Nothing here knows what an item is, nor about devices, limits and locks.

mod list;
mod recent;
mod stacks;

use list::{AGE, Links, List, NONE, Node, STACK};
use recent::{Entry, Recent, STAY};
use stacks::Stacks;
use std::ops::RangeInclusive;

/// Empty stacks are kept, since a size that came once comes again, until they are more than this
/// and more than the others.
const EMPTY_STACKS_KEPT: usize = 32;

/// Items of a size, on the shelf of a key, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Idle<K, T> {
    recent: Recent<K, T>,
    nodes: Vec<Node<T>>,
    vacant: Vec<u32>,
    shelves: Vec<Shelf<K>>,
    age: List,
    bytes: u64,
    /// The most that there ever were.
    peak: u64,
    empty_stacks: usize,
}

#[derive(Debug)]
struct Shelf<K> {
    key: K,
    stacks: Stacks,
}

/// An item that is looked at without the lock. Its node keeps its place, so that an item that is
/// put back is as old as it was, and still counts as idle meanwhile.
#[derive(Debug)]
pub(crate) struct Loan<T> {
    id: u32,
    pub(crate) item: T,
}

/// An item that was taken out.
#[derive(Debug)]
pub(crate) struct Taken<T> {
    pub(crate) bytes: u64,
    pub(crate) item: T,
}

impl<K: Copy + Eq, T> Idle<K, T> {
    pub(crate) fn new() -> Self {
        let (nodes, vacant, shelves) = (Vec::new(), Vec::new(), Vec::new());
        let recent = Recent::new();
        Self {
            recent,
            nodes,
            vacant,
            shelves,
            age: List::EMPTY,
            bytes: 0,
            peak: 0,
            empty_stacks: 0,
        }
    }

    /// The sum of the sizes of all items.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most that this sum ever was, or has been since [`Idle::reset_peak`].
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.bytes;
    }

    /// When the oldest item came, in the caller's own time; `None` without items.
    pub(crate) fn oldest_stamp(&self) -> Option<u64> {
        let oldest = self.age.oldest_present(&self.nodes, AGE);
        let stacked = oldest.and_then(|id| self.nodes.get(id as usize)).map(|node| node.stamp);
        stacked.or_else(|| self.recent.iter().next().map(|entry| entry.stamp))
    }

    /// How many items there are.
    pub(crate) fn len(&self) -> usize {
        self.age.len + self.recent.len()
    }

    /// Adds an item as the newest.
    #[inline]
    pub(crate) fn push(&mut self, key: K, bytes: u64, stamp: u64, item: T) {
        self.bytes += bytes;
        self.peak = self.peak.max(self.bytes);
        if self.recent.is_full() {
            self.settle_but(STAY);
        }
        self.recent.push(Entry { bytes, key, stamp, item });
    }

    /// Puts an item that is newer than all in stacks on its own.
    fn stack(&mut self, Entry { bytes, key, stamp, item }: Entry<K, T>) {
        let shelf = self.shelf(key);
        let links = [Links { older: NONE, newer: NONE }; 2];
        let node = Node { item: Some(item), shelf, bytes, stamp, links };
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(Node { item: None, ..node });
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        });
        self.nodes[id as usize] = node;
        self.age.append(&mut self.nodes, AGE, id);
        let (stack, is_new) = self.shelves[shelf].stacks.entry(bytes);
        if stack.len == 0 && !is_new {
            self.empty_stacks -= 1;
        }
        stack.append(&mut self.nodes, STACK, id);
    }

    /// From here on all items lie in stacks.
    #[inline]
    fn settle(&mut self) {
        if self.recent.len() > 0 {
            self.settle_but(0);
        }
    }

    /// All but the newest few go to the stacks.
    #[cold]
    fn settle_but(&mut self, stay: usize) {
        let mut recent = std::mem::replace(&mut self.recent, Recent::new());
        recent.drain(stay, |entry| self.stack(entry));
        self.recent = recent;
    }

    /// Takes the newest item that `accept`s, of the smallest size in `sizes` that has one, from one
    /// shelf. Looks at a few of each stack only.
    #[inline]
    pub(crate) fn take(
        &mut self,
        key: K,
        sizes: &RangeInclusive<u64>,
        accept: impl Fn(&mut T) -> bool,
    ) -> Option<Taken<T>> {
        let bytes = *sizes.start();
        if let Some(item) = self.recent.take(key, bytes, &accept) {
            self.bytes -= bytes;
            return Some(Taken { bytes, item });
        }
        self.take_stacked(key, sizes, accept)
    }

    fn take_stacked(
        &mut self,
        key: K,
        sizes: &RangeInclusive<u64>,
        accept: impl Fn(&mut T) -> bool,
    ) -> Option<Taken<T>> {
        if sizes.start() != sizes.end() {
            self.settle();
        }
        let shelf = self.shelves.iter().find(|shelf| shelf.key == key)?;
        let (_, id) = shelf.newest_where(&mut self.nodes, sizes, &accept)?;
        self.remove(id)
    }

    /// The same from all shelves that `on` names.
    pub(crate) fn take_among(
        &mut self,
        on: impl Fn(&K) -> bool,
        sizes: &RangeInclusive<u64>,
        accept: impl Fn(&mut T) -> bool,
    ) -> Option<Taken<T>> {
        self.settle();
        let shelves = self.shelves.iter().filter(|shelf| on(&shelf.key));
        let found = shelves.filter_map(|s| s.newest_where(&mut self.nodes, sizes, &accept));
        let (_, id) = found.min_by_key(|(bytes, _)| *bytes)?;
        self.remove(id)
    }

    /// Lends the oldest item that `accept`s, of the smallest size in `sizes` that has one, from the
    /// next of the shelves that `on` names, counted on in `shelf`.
    pub(crate) fn lend(
        &mut self,
        shelf: &mut usize,
        on: impl Fn(&K) -> bool,
        sizes: &RangeInclusive<u64>,
        accept: impl Fn(&mut T) -> bool,
    ) -> Option<Loan<T>> {
        self.settle();
        let id = loop {
            let next = self.shelves.get(*shelf)?;
            *shelf += 1;
            let mut stacks = next.stacks.range(sizes).filter(|_| on(&next.key));
            let mut oldest = |list: &List| list.oldest_where(&mut self.nodes, STACK, &accept);
            if let Some(id) = stacks.find_map(|(_, stack)| oldest(stack)) {
                break id;
            }
        };
        let item = self.nodes.get_mut(id as usize)?.item.take()?;
        Some(Loan { id, item })
    }

    /// Takes a loan back, as if nothing had been.
    pub(crate) fn put_back(&mut self, loan: Loan<T>) {
        if let Some(node) = self.nodes.get_mut(loan.id as usize) {
            node.item = Some(loan.item);
        }
    }

    /// Takes out what was lent.
    pub(crate) fn take_lent(&mut self, loan: Loan<T>) -> Option<Taken<T>> {
        let id = loan.id;
        self.put_back(loan);
        self.remove(id)
    }

    /// Takes out the item that came first.
    pub(crate) fn take_oldest(&mut self) -> Option<Taken<T>> {
        self.settle();
        self.age.oldest_present(&self.nodes, AGE).and_then(|id| self.remove(id))
    }

    /// Takes out all items that `accept` says, oldest first.
    pub(crate) fn take_all(&mut self, accept: impl Fn(&T) -> bool) -> Vec<Taken<T>> {
        self.settle();
        let mut ids = Vec::new();
        let mut id = self.age.oldest;
        while let Some(node) = self.nodes.get(id as usize) {
            if node.item.as_ref().is_some_and(&accept) {
                ids.push(id);
            }
            id = node.links[AGE].newer;
        }
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes out all items that came before `stamp`, oldest first.
    pub(crate) fn take_before(&mut self, stamp: u64) -> Vec<Taken<T>> {
        self.settle();
        let older = |idle: &Self| idle.oldest_stamp().is_some_and(|oldest| oldest < stamp);
        std::iter::from_fn(|| older(self).then(|| self.take_oldest()).flatten()).collect()
    }

    /// How many items of one size lie on one shelf.
    pub(crate) fn count_of(&self, key: K, bytes: u64) -> usize {
        let shelf = self.shelves.iter().find(|shelf| shelf.key == key);
        let stacked = shelf.and_then(|shelf| shelf.stacks.get(bytes)).map_or(0, |stack| stack.len);
        let recent = self.recent.iter().filter(|entry| entry.key == key && entry.bytes == bytes);
        stacked + recent.count()
    }

    /// Takes out the oldest item of one size on one shelf.
    pub(crate) fn take_oldest_of(&mut self, key: K, bytes: u64) -> Option<Taken<T>> {
        self.settle();
        let shelf = self.shelves.iter().find(|shelf| shelf.key == key)?;
        let oldest = shelf.stacks.get(bytes)?.oldest_present(&self.nodes, STACK)?;
        self.remove(oldest)
    }

    /// Takes out the oldest item of the largest size.
    pub(crate) fn take_largest(&mut self) -> Option<Taken<T>> {
        self.settle();
        self.largest().and_then(|(_, oldest)| self.remove(oldest))
    }

    /// The largest size that has an item; 0 without items.
    pub(crate) fn largest_bytes(&self) -> u64 {
        let recent = self.recent.iter().map(|entry| entry.bytes).max();
        self.largest().map_or(0, |(bytes, _)| bytes).max(recent.unwrap_or(0))
    }

    fn largest(&self) -> Option<(u64, u32)> {
        let of_shelf = |shelf: &Shelf<K>| {
            shelf.stacks.iter().rev().find_map(|(bytes, stack)| {
                stack.oldest_present(&self.nodes, STACK).map(|oldest| (bytes, oldest))
            })
        };
        self.shelves.iter().filter_map(of_shelf).max_by_key(|(bytes, _)| *bytes)
    }

    /// The sizes that have items, and how many; a size may come more than once.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = (u64, usize)> {
        let stacks = self.shelves.iter().flat_map(|shelf| shelf.stacks.iter());
        let stacked = stacks.filter(|(_, stack)| stack.len > 0);
        let recent = self.recent.iter().map(|entry| (entry.bytes, 1));
        stacked.map(|(bytes, stack)| (bytes, stack.len)).chain(recent)
    }

    /// All items with their sizes, in no particular order.
    pub(crate) fn items<'i>(&'i self) -> impl Iterator<Item = (u64, &'i T)>
    where
        K: 'i,
    {
        let of_node = |node: &'i Node<T>| node.item.as_ref().map(|item| (node.bytes, item));
        let recent = self.recent.iter().map(|entry| (entry.bytes, &entry.item));
        self.nodes.iter().filter_map(of_node).chain(recent)
    }

    #[inline]
    fn shelf(&mut self, key: K) -> usize {
        if self.empty_stacks > EMPTY_STACKS_KEPT.max(self.age.len) {
            self.forget_empty_stacks();
        }
        if let Some(at) = self.shelves.iter().position(|shelf| shelf.key == key) {
            return at;
        }
        self.shelves.push(Shelf { key, stacks: Stacks::default() });
        self.shelves.len() - 1
    }

    #[cold]
    fn forget_empty_stacks(&mut self) {
        self.shelves.iter_mut().for_each(|shelf| shelf.stacks.forget_empty());
        self.empty_stacks = 0;
    }

    #[inline]
    fn remove(&mut self, id: u32) -> Option<Taken<T>> {
        let node = self.nodes.get_mut(id as usize)?;
        let item = node.item.take()?;
        let (bytes, shelf) = (node.bytes, node.shelf);
        self.age.unlink(&mut self.nodes, AGE, id);
        if let Some(stack) = self.shelves[shelf].stacks.get_mut(bytes) {
            stack.unlink(&mut self.nodes, STACK, id);
            self.empty_stacks += usize::from(stack.len == 0);
        }
        self.vacant.push(id);
        self.bytes -= bytes;
        Some(Taken { bytes, item })
    }
}

impl<K> Shelf<K> {
    #[inline]
    fn newest_where<T>(
        &self,
        nodes: &mut [Node<T>],
        sizes: &RangeInclusive<u64>,
        accept: impl Fn(&mut T) -> bool,
    ) -> Option<(u64, u32)> {
        for (bytes, stack) in self.stacks.range(sizes) {
            if let Some(id) = stack.newest_where(nodes, &accept) {
                return Some((bytes, id));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
