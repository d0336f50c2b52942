//! Stacks by their size.

use super::list::List;
use std::ops::RangeInclusive;

/// Stacks by size, ascending. Sizes come seldom and are looked for always: they lie side by side.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    pub(super) sizes: Vec<u64>,
    lists: Vec<List>,
}

impl Stacks {
    #[inline]
    pub(super) fn get(&self, bytes: u64) -> Option<&List> {
        self.sizes.binary_search(&bytes).ok().map(|at| &self.lists[at])
    }

    #[inline]
    pub(super) fn get_mut(&mut self, bytes: u64) -> Option<&mut List> {
        self.sizes.binary_search(&bytes).ok().map(|at| &mut self.lists[at])
    }

    /// The stack of a size, and whether it is new.
    #[inline]
    pub(super) fn entry(&mut self, bytes: u64) -> (&mut List, bool) {
        let found = self.sizes.binary_search(&bytes);
        let at = found.unwrap_or_else(|at| {
            self.sizes.insert(at, bytes);
            self.lists.insert(at, List::EMPTY);
            at
        });
        (&mut self.lists[at], found.is_err())
    }

    /// All stacks, in the order of their sizes.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &List)> {
        self.sizes.iter().copied().zip(&self.lists)
    }

    #[inline]
    pub(super) fn range(&self, sizes: &RangeInclusive<u64>) -> impl Iterator<Item = (u64, &List)> {
        let from = self.sizes.partition_point(|size| size < sizes.start());
        let end = *sizes.end();
        let (sizes, lists) = (&self.sizes[from..], &self.lists[from..]);
        sizes.iter().copied().zip(lists).take_while(move |(size, _)| *size <= end)
    }

    pub(super) fn forget_empty(&mut self) {
        let mut lists = std::mem::take(&mut self.lists).into_iter();
        let kept = lists.by_ref().zip(&self.sizes).filter(|(list, _)| list.len > 0);
        let (kept_lists, kept_sizes) = kept.map(|(list, size)| (list, *size)).unzip();
        (self.lists, self.sizes) = (kept_lists, kept_sizes);
    }
}
