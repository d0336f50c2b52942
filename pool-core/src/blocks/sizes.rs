//! Bins by size, for searches that may take a larger block or one of another stream.
//!
//! A bin enters with its first block. It leaves where a search meets it without blocks, not at the hit
//! that takes the last one: as a rule it has blocks again soon.
#![expect(unsafe_code, reason = "records of free blocks are reached by their addresses")]

use crate::block::record::{Record, RecordOwner};
use crate::block::request::Key;
use crate::blocks::stack::Address;
use crate::blocks::table::BY_SIZE;
use crate::blocks::{Blocks, Effort, LOOKS};
use crate::port::DeviceAllocator;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Sizes that are looked at.
const SIZES: usize = 64;
/// Streams of a size that are looked at, unless all are.
const STREAMS: usize = 16;

/// The sizes of bins and their streams, for each kind.
pub(super) struct Sizes<K>(Vec<(K, BTreeSet<(u64, u64)>)>);

impl<K: Copy + Eq> Sizes<K> {
    pub(super) const EMPTY: Self = Self(Vec::new());

    fn add(&mut self, bytes: u64, key: Key<K>) {
        let known = self.0.iter().position(|(of, _)| *of == key.kind);
        let at = known.unwrap_or_else(|| {
            self.0.push((key.kind, BTreeSet::new()));
            self.0.len() - 1
        });
        self.0[at].1.insert((bytes, key.stream_id));
    }

    /// The first of these sizes and streams, with the number of its kind.
    fn first(&self, kind: K, bins: &RangeInclusive<(u64, u64)>) -> Option<(usize, (u64, u64))> {
        let of = self.0.iter().position(|(of, _)| *of == kind)?;
        let found = self.0[of].1.range(*bins.start()..).next()?;
        (found <= bins.end()).then_some((of, *found))
    }

    /// The largest size of all kinds that is at most this.
    fn last(&self, most: u64) -> Option<(usize, (u64, u64))> {
        let last = |set: &BTreeSet<_>| set.range(..=(most, u64::MAX)).next_back().copied();
        let of_kinds = self.0.iter().enumerate();
        of_kinds.filter_map(|(of, (_, set))| Some((of, last(set)?))).max_by_key(|(_, found)| *found)
    }

    /// The streams of a size and kind.
    fn streams(&self, kind: K, bytes: u64) -> impl Iterator<Item = u64> {
        let of_kind = self.0.iter().find(|(of, _)| *of == kind).into_iter();
        of_kind.flat_map(move |(_, set)| set.range((bytes, 0)..=(bytes, u64::MAX))).map(|at| at.1)
    }
}

impl<A: DeviceAllocator> Blocks<A> {
    /// Lists a bin by its size.
    pub(super) fn list_by_size(&mut self, at: usize) {
        let bin = self.table.bin(at);
        bin.listed |= BY_SIZE;
        let (bytes, key) = (bin.bytes, bin.key());
        self.sizes.add(bytes, key);
    }

    /// Lists each bin that has blocks, and no other: not those that the table forgot.
    pub(super) fn list_all_by_size(&mut self) {
        self.sizes.0.clear();
        for (_, bin) in self.table.iter_mut() {
            bin.listed &= !BY_SIZE;
            if bin.count > 0 {
                bin.listed |= BY_SIZE;
                self.sizes.add(bin.bytes, bin.key());
            }
        }
    }

    /// Whether a bin that was listed has blocks; if not, it is not listed any more.
    fn is_filled(&mut self, of: usize, (bytes, stream_id): (u64, u64)) -> bool {
        let (kind, set) = &mut self.sizes.0[of];
        let bin = self.table.get_mut(bytes, Key { kind: *kind, stream_id });
        if bin.as_ref().is_some_and(|bin| bin.count > 0) {
            return true;
        }
        set.remove(&(bytes, stream_id));
        if let Some(bin) = bin {
            bin.listed &= !BY_SIZE;
        }
        false
    }

    /// The smallest of these sizes of which there is a block.
    fn smallest_in(&mut self, kind: A::Kind, sizes: &RangeInclusive<u64>) -> Option<u64> {
        loop {
            let bins = (*sizes.start(), 0)..=(*sizes.end(), u64::MAX);
            let (of, bin) = self.sizes.first(kind, &bins)?;
            if self.is_filled(of, bin) {
                return Some(bin.0);
            }
        }
    }

    /// The largest size that is at most this of which there is a block.
    fn largest_up_to(&mut self, most: u64) -> Option<u64> {
        loop {
            let (of, bin) = self.sizes.last(most)?;
            if self.is_filled(of, bin) {
                return Some(bin.0);
            }
        }
    }

    /// Takes the smallest block of a stream that has one of these sizes, of a few that `ready`
    /// accepts.
    #[inline(never)]
    pub(crate) fn take_in_range(
        &mut self,
        key: Key<A::Kind>,
        sizes: &RangeInclusive<u64>,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let mut least = *sizes.start();
        for _ in 0..SIZES {
            let bytes = self.smallest_in(key.kind, &(least..=*sizes.end()))?;
            if let Some(record) = self.take(key, bytes, &ready) {
                return Some(record);
            }
            least = bytes + 1;
        }
        None
    }

    /// Takes a block of the smallest of these sizes that `ready` accepts, whatever stream used it
    /// last. The streams are asked by the age of their oldest blocks, and of each the oldest first: these
    /// are done first.
    pub(crate) fn take_of_any(
        &mut self,
        kind: A::Kind,
        sizes: &RangeInclusive<u64>,
        effort: Effort,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let (size_looks, streams, looks) = match effort {
            Effort::Bounded => (SIZES, STREAMS, LOOKS),
            Effort::All => (usize::MAX, usize::MAX, usize::MAX),
        };
        let mut least = *sizes.start();
        for _ in 0..size_looks {
            let bytes = self.smallest_in(kind, &(least..=*sizes.end()))?;
            for (_, at) in self.bins_of(kind, bytes, streams) {
                if let Some(address) = self.find_above_bottom(at, looks, &ready) {
                    return Some(self.remove(at, address));
                }
            }
            least = bytes.checked_add(1)?;
        }
        None
    }

    /// So many bins of a size and kind that have blocks, and the ages of their oldest, in that order.
    fn bins_of(&mut self, kind: A::Kind, bytes: u64, most: usize) -> Vec<(u64, usize)> {
        let (mut bins, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next.filter(|_| bins.len() < most) {
            let Some((of, bin)) = self.sizes.first(kind, &((bytes, from)..=(bytes, u64::MAX)))
            else {
                break;
            };
            next = bin.1.checked_add(1);
            if self.is_filled(of, bin)
                && let Some(at) = self.table.find(bytes, Key { kind, stream_id: bin.1 })
                && let Some((age, _)) = self.oldest_of(at)
            {
                bins.push((age, at));
            }
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
    pub(crate) fn take_largest(
        &mut self,
        may: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let kinds: Vec<A::Kind> = self.sizes.0.iter().map(|(kind, _)| *kind).collect();
        let mut most = u64::MAX;
        loop {
            let bytes = self.largest_up_to(most)?;
            for kind in &kinds {
                let found = self.take_of_any(*kind, &(bytes..=bytes), Effort::All, &may);
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
        let (mut sum, mut least) = (0, *sizes.start());
        while let Some(bytes) = self.smallest_in(kind, &(least..=*sizes.end())) {
            sum += bytes * self.counts_of(bytes, kind).map(u64::from).sum::<u64>();
            let Some(next) = bytes.checked_add(1) else { break };
            least = next;
        }
        sum
    }

    fn counts_of(&self, bytes: u64, kind: A::Kind) -> impl Iterator<Item = u32> {
        let keys = self.sizes.streams(kind, bytes).map(move |stream_id| Key { kind, stream_id });
        keys.filter_map(move |key| self.table.get(bytes, key)).map(|bin| bin.count)
    }

    /// How many bins are listed by size.
    #[cfg(test)]
    pub(super) fn listed_by_size(&self) -> usize {
        self.sizes.0.iter().map(|(_, set)| set.len()).sum()
    }

    /// Asserts that each bin with blocks is listed by its size.
    #[cfg(any(test, feature = "check"))]
    pub(super) fn check_sizes(&self) {
        for bin in self.table.iter().filter(|bin| bin.count > 0) {
            let listed = self.sizes.streams(bin.kind, bin.bytes).any(|of| of == bin.stream);
            assert!(listed && bin.listed & BY_SIZE != 0, "{} bytes are listed", bin.bytes);
        }
    }
}
