//! Bins by size, for searches that may take a larger block or one of another stream.
//!
//! A bin enters with its first block. It leaves where a search meets it without blocks, not at the hit
//! that takes the last one: as a rule it has blocks again soon.
#![expect(unsafe_code, reason = "records of free blocks are reached by their addresses")]

use crate::block::Key;
use crate::block::record::{Record, RecordOwner};
use crate::blocks::table::{Address, BY_SIZE, Bin};
use crate::blocks::{Blocks, Effort, MAX_LOOKS};
use crate::by_size::{Entries, SizeKey, SizeSteps};
use crate::port::DeviceAllocator;
use std::ops::RangeInclusive;

/// Sizes that are looked at.
const MAX_SIZES: usize = 64;
/// Streams of a size that are looked at, unless all are.
const MAX_STREAMS: usize = 16;

/// The bins of each kind, by size.
pub(super) struct Sizes<K>(Vec<(K, SizeSteps)>);

impl<K: Copy + Eq> Sizes<K> {
    pub(super) const EMPTY: Self = Self(Vec::new());

    /// The number of a kind that has bins.
    fn find(&self, kind: K) -> Option<usize> {
        self.0.iter().position(|(of, _)| *of == kind)
    }

    fn find_or_add(&mut self, kind: K) -> &mut SizeSteps {
        let of = self.find(kind).unwrap_or_else(|| {
            self.0.push((kind, SizeSteps::new(0, true)));
            self.0.len() - 1
        });
        &mut self.0[of].1
    }
}

impl<A: DeviceAllocator> Blocks<A> {
    /// Lists a bin by its size.
    pub(super) fn list_by_size(&mut self, at: usize) {
        let steps = self.sizes.find_or_add(self.table.at(at).kind);
        steps.insert(&mut self.table, number(at));
        self.table.bin(at).listed |= BY_SIZE; // last: a kind that is compared may panic
    }

    /// Lists each bin that has blocks, and no other: also after their slots have changed.
    pub(super) fn list_all_by_size(&mut self) {
        self.sizes.0.clear();
        self.table.iter_mut().for_each(|(_, bin)| bin.listed &= !BY_SIZE);
        for at in 0..self.table.len() {
            if self.table.at(at).count > 0 {
                self.list_by_size(at);
            }
        }
    }

    /// Whether a bin that was listed has blocks; if not, it is not listed any more.
    fn is_filled(&mut self, of: usize, at: usize) -> bool {
        let bin = self.table.bin(at);
        if bin.count > 0 {
            return true;
        }
        bin.listed &= !BY_SIZE;
        let key = self.table.key(number(at));
        self.sizes.0[of].1.remove(&mut self.table, number(at), key);
        false
    }

    /// The first bin of a kind that has blocks, from a place in the order up to the size `last`.
    fn first_in(&mut self, of: usize, from: SizeKey, last: u64) -> Option<usize> {
        loop {
            let at = self.sizes.0[of].1.first_from(&self.table, from)? as usize;
            if self.table.at(at).bytes > last {
                return None;
            }
            if self.is_filled(of, at) {
                return Some(at);
            }
        }
    }

    /// The largest size that is at most this of which there is a block.
    fn largest_up_to(&mut self, most: u64) -> Option<u64> {
        let mut largest = None;
        for of in 0..self.sizes.0.len() {
            while let Some(id) = self.sizes.0[of].1.last_up_to(&self.table, most) {
                if self.is_filled(of, id as usize) {
                    largest = largest.max(Some(self.table.at(id as usize).bytes));
                    break;
                }
            }
        }
        largest
    }

    /// Takes the smallest block of a stream that has one of these sizes, of a few that `ready`
    /// accepts.
    #[inline(never)]
    pub(crate) fn pop_in_range(
        &mut self,
        key: Key<A::Kind>,
        sizes: &RangeInclusive<u64>,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let of = self.sizes.find(key.kind)?;
        let mut from = SizeKey::least(*sizes.start());
        for _ in 0..MAX_SIZES {
            let mut at = self.first_in(of, from, *sizes.end())?;
            let bytes = self.table.at(at).bytes;
            if !self.table.at(at).is(bytes, key) {
                at = self.table.slot(bytes, key);
            }
            if let Some(record) = self.pop_at(at, &ready) {
                return Some(record);
            }
            from = SizeKey::least(bytes.checked_add(1)?);
        }
        None
    }

    /// Takes a block of the smallest of these sizes that `ready` accepts, whatever stream used it
    /// last. The streams are asked by the age of their oldest blocks, and of each the oldest first: these
    /// are done first.
    pub(crate) fn pop_of_any(
        &mut self,
        kind: A::Kind,
        sizes: &RangeInclusive<u64>,
        effort: Effort,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let (size_looks, streams, looks) = match effort {
            Effort::Bounded => (MAX_SIZES, MAX_STREAMS, MAX_LOOKS),
            Effort::All => (usize::MAX, usize::MAX, usize::MAX),
        };
        let of = self.sizes.find(kind)?;
        let mut from = SizeKey::least(*sizes.start());
        for _ in 0..size_looks {
            let first = self.first_in(of, from, *sizes.end())?;
            let bytes = self.table.at(first).bytes;
            for (_, at) in self.bins_of(kind, bytes, streams) {
                if let Some(address) = self.find_above_bottom(at, looks, &ready) {
                    return Some(self.remove(at, address));
                }
            }
            from = SizeKey::least(bytes.checked_add(1)?);
        }
        None
    }

    /// So many bins of a size and kind that have blocks, and the ages of their oldest, in that order.
    fn bins_of(&mut self, kind: A::Kind, bytes: u64, most: usize) -> Vec<(u64, usize)> {
        let (mut bins, mut from) = (Vec::new(), SizeKey::least(bytes));
        while bins.len() < most
            && let Some(of) = self.sizes.find(kind)
            && let Some(at) = self.first_in(of, from, bytes)
        {
            if self.table.at(at).kind == kind {
                bins.extend(self.oldest_of(at).map(|(age, _)| (age, at)));
            }
            from = self.table.key(number(at)).above();
        }
        bins.sort_unstable();
        bins
    }

    /// The first block of a bin that `ready` accepts, from the oldest upwards.
    fn find_above_bottom(
        &mut self,
        at: usize,
        looks: usize,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<Address<A>> {
        let blocks = &self.table.bin(at).blocks;
        let mut next = blocks.bottom();
        for _ in 0..looks {
            let mut address = next?;
            // SAFETY: the stacks own the record, and `self` is borrowed alone.
            if ready(unsafe { address.as_mut() }) {
                return Some(address);
            }
            // SAFETY: it is in this stack.
            next = unsafe { blocks.above(address) };
        }
        None
    }

    /// Bytes of the largest block; 0 if there is none.
    pub(crate) fn largest(&mut self) -> u64 {
        self.largest_up_to(u64::MAX).unwrap_or(0)
    }

    /// Takes the largest block of which `may` says so, of those the oldest of a bin.
    pub(crate) fn pop_largest(
        &mut self,
        may: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let kinds: Vec<A::Kind> = self.sizes.0.iter().map(|(kind, _)| *kind).collect();
        let mut most = u64::MAX;
        loop {
            let bytes = self.largest_up_to(most)?;
            for kind in &kinds {
                let found = self.pop_of_any(*kind, &(bytes..=bytes), Effort::All, &may);
                if found.is_some() {
                    return found;
                }
            }
            most = bytes.checked_sub(1)?;
        }
    }

    /// How many blocks of a size and kind another shard may have: half of them.
    pub(crate) fn half_of(&self, bytes: u64, kind: A::Kind) -> u32 {
        self.counts_of(bytes, kind).sum::<u32>().div_ceil(2)
    }

    /// Bytes of the blocks of these sizes and a kind.
    pub(crate) fn bytes_of(&mut self, kind: A::Kind, sizes: &RangeInclusive<u64>) -> u64 {
        let (mut sum, mut from) = (0, SizeKey::least(*sizes.start()));
        while let Some(of) = self.sizes.find(kind)
            && let Some(at) = self.first_in(of, from, *sizes.end())
        {
            let bin = self.table.at(at);
            if bin.kind == kind {
                sum += bin.bytes * u64::from(bin.count);
            }
            from = self.table.key(number(at)).above();
        }
        sum
    }

    fn counts_of(&self, bytes: u64, kind: A::Kind) -> impl Iterator<Item = u32> {
        let bins = self.bins_from(kind, bytes);
        bins.take_while(move |bin| bin.bytes == bytes).map(|bin| bin.count)
    }

    /// The bins of a kind from a size on.
    fn bins_from(&self, kind: A::Kind, bytes: u64) -> impl Iterator<Item = &Bin<A>> {
        let steps = self.sizes.find(kind).map(|of| &self.sizes.0[of].1);
        let ids = steps.into_iter().flat_map(move |steps| steps.ascending(&self.table, bytes));
        ids.map(|id| self.table.at(id as usize))
    }

    /// How many bins are listed by size.
    #[cfg(test)]
    pub(super) fn listed_by_size(&self) -> usize {
        self.sizes.0.iter().map(|(kind, _)| self.bins_from(*kind, 0).count()).sum()
    }

    /// Asserts that each bin with blocks is listed by its size.
    #[cfg(any(test, feature = "check"))]
    pub(super) fn check_sizes(&self) {
        for bin in self.table.iter().filter(|bin| bin.count > 0) {
            let listed = self.bins_from(bin.kind, bin.bytes).any(|of| std::ptr::eq(of, bin));
            assert!(listed && bin.listed & BY_SIZE != 0, "{} bytes are listed", bin.bytes);
        }
    }
}

/// The number of a slot. There are fewer than 2^32: a table of so many has 256 GiB.
#[expect(clippy::cast_possible_truncation, reason = "below 2^32")]
fn number(at: usize) -> u32 {
    at as u32
}
