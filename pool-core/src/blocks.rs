//! Whole blocks that are free: by size and kind, then by the stream that used them last; and all of
//! them by age. A pure structure: no lock, no call to a device, no time.
//!
//! ```text
//!   Table      a class for each size and kind        (table.rs)
//!     Bin      its blocks that one stream used last, the newest on top
//!   Ages       all blocks, the oldest first          (lists.rs)
//!   SizeSteps  classes by size, where a larger block may serve (by_size.rs)
//! ```
//!
//! [`Blocks::take`] and [`Blocks::push`] are **the hot path** of a pool without an arena.
#![expect(unsafe_code, reason = "records of free blocks are owned by their lists")]

mod by_age;
mod lists;
mod places;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use crate::block::record::{Record, RecordOwner};
use crate::block::request::Key;
use crate::by_size::{NONE, SizeKey, SizeSteps};
use crate::port::DeviceAllocator;
use lists::{Address, Ages};
use std::ops::RangeInclusive;
use table::{Bin, ClassBin, Table};

/// Blocks of a bin that are asked whether they are ready.
const LOOKS: usize = 8;
/// Classes by size that are looked at.
const CLASSES: usize = 64;
/// Streams of a class that are looked at, unless all are.
const STREAMS: usize = 16;
/// The free blocks of a shard.
pub(crate) struct Blocks<A: DeviceAllocator> {
    table: Table<A>,
    ages: Ages<A>,
    /// Classes by size, for each kind: those with blocks, and some that have none any more. `None` if
    /// a block serves its own size only.
    by_size: Option<Vec<(A::Kind, SizeSteps)>>,
    /// Bytes of all blocks.
    pub(crate) bytes: u64,
    /// Blocks that were taken to evict them.
    evicted: u32,
}

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A bounded number of blocks or ranges.
    Bounded,
    /// All of them, before the request is refused.
    All,
}

impl<A: DeviceAllocator> Blocks<A> {
    /// No blocks. `by_size`: larger blocks may serve a request.
    pub(crate) fn new(by_size: bool) -> Self {
        let (table, by_size) = (Table::new(), by_size.then(Vec::new));
        Self { table, ages: Ages::EMPTY, by_size, bytes: 0, evicted: 0 }
    }

    /// Takes the block of a size and stream that came last, of a few that `ready` accepts.
    pub(crate) fn take(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let at = self.table.find(bytes, key.kind)?;
        self.take_in(at, key.stream_id, ready)
    }

    /// Takes the block of a size and stream that came last, if `ready` accepts it.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn take_top(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let at = self.table.find(bytes, key.kind)?;
        let class = self.table.class(at);
        if class.bin.stream != key.stream_id {
            class.find(key.stream_id);
        }
        let mut top = class.bin.blocks.top.filter(|_| class.bin.stream == key.stream_id);
        // SAFETY: the lists own the record, and `self` is borrowed alone.
        let is_ready = top.as_mut().is_some_and(|top| ready(unsafe { top.as_mut() }));
        let address = top.filter(|_| is_ready)?;
        // SAFETY: the block is on top of this bin, and `self` is borrowed alone.
        unsafe { class.bin.blocks.pop(address) };
        // SAFETY: it is in the list of all too.
        unsafe { self.ages.remove(address) };
        class.bin.count -= 1;
        class.count -= 1;
        self.bytes -= bytes;
        // SAFETY: it is in no list any more.
        Some(unsafe { RecordOwner::of_address(address) })
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
        let (mut least, mut looks) = (SizeKey::least(*sizes.start()), 0);
        while looks < CLASSES {
            let steps = self.by_size.iter().flatten().find(|(kind, _)| *kind == key.kind);
            let at = steps?.1.first_from(&self.table, least)? as usize;
            let class = self.table.class(at);
            let (bytes, is_empty) = (class.bytes, class.count == 0);
            if bytes > *sizes.end() {
                return None;
            }
            least = SizeKey::least(bytes).above();
            if is_empty {
                self.unlist(at);
            } else if let Some(record) = self.take_in(at, key.stream_id, &ready) {
                return Some(record);
            } else {
                looks += 1;
            }
        }
        None
    }

    /// Takes a block of the smallest of these sizes that `ready` accepts, whatever stream used it
    /// last. Of each stream the oldest are asked first: they are done first.
    pub(crate) fn take_of_any(
        &mut self,
        kind: A::Kind,
        sizes: &RangeInclusive<u64>,
        effort: Effort,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let (streams, looks) = match effort {
            Effort::Bounded => (STREAMS, LOOKS),
            Effort::All => (usize::MAX, usize::MAX),
        };
        for at in self.classes_in(kind, sizes, effort) {
            let class = self.table.class(at);
            let bins: Vec<(u64, _)> = class
                .bins()
                .filter(|bin| bin.count > 0)
                .take(streams)
                .map(|bin| (bin.stream, bin.blocks.bottom))
                .collect();
            for (stream, bottom) in bins {
                if let Some(address) = Self::find_above(bottom, looks, &ready) {
                    self.table.class(at).find(stream);
                    return Some(self.remove(at, address));
                }
            }
        }
        None
    }

    /// The first block that `ready` accepts, from one of a bin upwards.
    fn find_above(
        bottom: Option<Address<A>>,
        looks: usize,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<Address<A>> {
        let mut next = bottom;
        for _ in 0..looks {
            let mut address = next?;
            // SAFETY: the lists own the record, and the caller has borrowed them alone.
            let record = unsafe { address.as_mut() };
            if ready(record) {
                return Some(address);
            }
            next = record.links.above;
        }
        None
    }

    /// The classes of these sizes that have blocks, smaller ones first.
    fn classes_in(&self, kind: A::Kind, sizes: &RangeInclusive<u64>, effort: Effort) -> Vec<usize> {
        let most = if effort == Effort::All { usize::MAX } else { CLASSES };
        self.filled(kind, sizes).map(|(at, _)| at).take(most).collect()
    }

    /// The same with their numbers.
    fn filled(
        &self,
        kind: A::Kind,
        sizes: &RangeInclusive<u64>,
    ) -> impl Iterator<Item = (usize, &ClassBin<A>)> {
        let (least, most) = (*sizes.start(), *sizes.end());
        let by_size = self.by_size.as_ref().filter(|_| least < most);
        let one = if by_size.is_none() { self.table.find(least, kind) } else { None };
        let steps = by_size.and_then(|by_size| by_size.iter().find(|(of, _)| *of == kind));
        let listed =
            steps.into_iter().flat_map(move |(_, steps)| steps.ascending(&self.table, least));
        let all = one.into_iter().chain(listed.map(|id| id as usize));
        let all = all.filter_map(|at| Some((at, self.table.get(at)?)));
        let all = all.take_while(move |(_, class)| class.bytes <= most);
        all.filter(|(_, class)| class.count > 0)
    }

    #[inline]
    fn take_in(
        &mut self,
        at: usize,
        stream: u64,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let class = self.table.class(at);
        if !class.find(stream) {
            return None;
        }
        let mut next = class.bin.blocks.top;
        for _ in 0..LOOKS {
            let mut address = next?;
            // SAFETY: the lists own the record, and `self` is borrowed alone.
            let record = unsafe { address.as_mut() };
            if ready(record) {
                return Some(self.remove(at, address));
            }
            next = record.links.below;
        }
        None
    }

    /// Takes a block out of the lists, which is in the bin of its class that was used last.
    #[inline]
    fn remove(&mut self, at: usize, address: Address<A>) -> RecordOwner<A> {
        let class = self.table.class(at);
        // SAFETY: the block is in this bin, and `self` is borrowed alone.
        unsafe { class.bin.blocks.remove(address) };
        // SAFETY: it is in the list of all too.
        unsafe { self.ages.remove(address) };
        class.bin.count -= 1;
        class.count -= 1;
        self.bytes -= class.bytes;
        // SAFETY: it is in no list any more.
        unsafe { RecordOwner::of_address(address) }
    }

    /// Adds a block as the newest.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn push(&mut self, key: Key<A::Kind>, mut record: RecordOwner<A>) {
        let (bytes, known) = (record.bytes, record.class as usize);
        let at = match self.table.is_at(known, bytes, key.kind) {
            true => known,
            false => self.find_or_add(bytes, key.kind),
        };
        record.class = number(at);
        let class = self.table.class(at);
        if class.bin.stream != key.stream_id {
            class.find_or_add(key.stream_id);
        }
        class.bin.count += 1;
        class.count += 1;
        let is_listed = class.links.is_listed;
        let address = record.into_address();
        // SAFETY: the record had an owner, so it was in no list; `self` is borrowed alone.
        unsafe { class.bin.blocks.push(address) };
        // SAFETY: as above; this list links records by other fields.
        unsafe { self.ages.push(address) };
        self.bytes += bytes;
        if !is_listed && self.by_size.is_some() {
            self.list(at);
        }
    }

    /// Notes that a block that was just taken out may come back: its room stays taken.
    pub(crate) fn hold_room(&mut self, record: &RecordOwner<A>) {
        self.bytes += record.bytes;
    }

    /// Frees the room of a block that was to come back.
    pub(crate) fn leave_room(&mut self, record: &RecordOwner<A>) {
        self.bytes -= record.bytes;
    }

    #[inline(never)]
    fn find_or_add(&mut self, bytes: u64, kind: A::Kind) -> usize {
        match self.table.find(bytes, kind) {
            Some(at) => at,
            None => self.add_class(bytes, kind),
        }
    }

    #[cold]
    fn add_class(&mut self, bytes: u64, kind: A::Kind) -> usize {
        if !self.table.has_room() {
            self.table.make_room();
            if let Some(by_size) = &mut self.by_size {
                by_size.clear(); // classes have other numbers
                let all: Vec<usize> = self.table.iter().map(|(at, _)| at).collect();
                for at in all {
                    self.list(at);
                }
            }
        }
        self.table.add(bytes, kind)
    }

    /// Adds a class to those by size.
    #[inline(never)]
    fn list(&mut self, at: usize) {
        let Some(by_size) = &mut self.by_size else { return };
        let class = self.table.class(at);
        class.links.is_listed = true;
        let kind = class.kind;
        let known = by_size.iter().position(|(of, _)| *of == kind);
        let index = known.unwrap_or_else(|| {
            by_size.push((kind, SizeSteps::new(0, true)));
            by_size.len() - 1
        });
        by_size[index].1.insert(&mut self.table, number(at));
    }

    /// Takes a class without blocks out of those by size. A search does this where it meets one, not
    /// the hit that takes the last block: as a rule the class has blocks again soon.
    fn unlist(&mut self, at: usize) {
        let class = self.table.class(at);
        class.links.is_listed = false;
        let (kind, key) = (class.kind, SizeKey::least(class.bytes));
        let by_size = self.by_size.iter_mut().flatten();
        if let Some((_, steps)) = by_size.into_iter().find(|(of, _)| *of == kind) {
            steps.remove(&mut self.table, number(at), key);
        }
    }

    /// Bytes of the largest block; 0 if there is none.
    pub(crate) fn largest(&self) -> u64 {
        let with = self.table.iter().filter(|(_, class)| class.count > 0);
        with.map(|(_, class)| class.bytes).max().unwrap_or(0)
    }

    /// Takes the largest block of which `may` says so, of those the oldest of a bin.
    pub(crate) fn take_largest(
        &mut self,
        may: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let with = self.table.iter().filter(|(_, class)| class.count > 0);
        let mut sizes: Vec<(u64, A::Kind)> =
            with.map(|(_, class)| (class.bytes, class.kind)).collect();
        sizes.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let take = |(bytes, kind)| self.take_of_any(kind, &(bytes..=bytes), Effort::All, &may);
        sizes.into_iter().find_map(take)
    }

    /// Takes a block out that is in the lists.
    fn take_address(&mut self, address: Address<A>) -> RecordOwner<A> {
        // SAFETY: the lists own the record, and `self` is borrowed alone.
        let record = unsafe { address.as_ref() };
        let (bytes, kind, bottom) = (record.bytes, record.kind, Self::bottom_below(address));
        let at = self.table.find(bytes, kind);
        let found = at.and_then(|at| Some((at, self.stream_of(at, bottom)?)));
        // A kind that is equal to another at times is in another class than the one found.
        let searched =
            || self.table.iter().find_map(|(at, _)| Some((at, self.stream_of(at, bottom)?)));
        let Some((at, stream)) = found.or_else(searched) else {
            unreachable!("a block is in a bin")
        };
        self.table.class(at).find(stream);
        self.remove(at, address)
    }

    /// The block at the bottom of the stack that a block is in.
    fn bottom_below(address: Address<A>) -> Address<A> {
        let mut bottom = address;
        // SAFETY: the lists own the records, and the caller has borrowed them.
        while let Some(below) = unsafe { bottom.as_ref() }.links.below {
            bottom = below;
        }
        bottom
    }

    /// The stream of the bin with this bottom, if a class has it: the bin of a block is not in its
    /// record.
    fn stream_of(&self, at: usize, bottom: Address<A>) -> Option<u64> {
        let is = |bin: &&Bin<A>| bin.blocks.bottom == Some(bottom);
        self.table.get(at)?.bins().find(is).map(|bin| bin.stream)
    }

    /// How many blocks of a size and kind another shard may have: half of them.
    pub(crate) fn half_of(&self, bytes: u64, kind: A::Kind) -> u32 {
        self.count_of_size(bytes, kind).div_ceil(2)
    }

    /// Bytes of the blocks of these sizes and a kind.
    pub(crate) fn bytes_of(&self, kind: A::Kind, sizes: &RangeInclusive<u64>) -> u64 {
        let bytes = |class: &ClassBin<A>| u64::from(class.count) * class.bytes;
        self.filled(kind, sizes).map(|(_, class)| bytes(class)).sum()
    }

    fn count_of_size(&self, bytes: u64, kind: A::Kind) -> u32 {
        let class = self.table.find(bytes, kind).and_then(|at| self.table.get(at));
        class.map_or(0, |class| class.count)
    }

    /// How many blocks there are of a size that a stream used last.
    pub(crate) fn count_of(&mut self, key: Key<A::Kind>, bytes: u64) -> usize {
        let Some(at) = self.table.find(bytes, key.kind) else { return 0 };
        let class = self.table.class(at);
        if class.find(key.stream_id) { class.bin.count as usize } else { 0 }
    }

    /// How many classes there is room for.
    #[cfg(test)]
    fn places(&self) -> usize {
        self.table.places()
    }

    /// Asserts that each list agrees with its blocks.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn check(&self) {
        let (mut bytes, mut count) = (0, 0);
        for record in self.iter() {
            (bytes, count) = (bytes + record.bytes, count + 1);
            let class = self.table.find(record.bytes, record.kind);
            assert!(class.is_some(), "a block of {} bytes has no class", record.bytes);
        }
        assert_eq!(bytes, self.bytes, "bytes of all blocks by age");
        let mut in_bins = 0;
        for (_, class) in self.table.iter() {
            let mut of_class = 0;
            for bin in class.bins() {
                let (mut of_bin, mut above, mut next) = (0, None, bin.blocks.top);
                while let Some(address) = next {
                    // SAFETY: as in `iter`.
                    let record = unsafe { address.as_ref() };
                    assert_eq!((record.bytes, record.kind), (class.bytes, class.kind), "its class");
                    assert_eq!(record.links.above, above, "the block above");
                    (above, next, of_bin) = (Some(address), record.links.below, of_bin + 1);
                }
                assert_eq!((above, of_bin), (bin.blocks.bottom, bin.count), "a bin");
                of_class += of_bin;
            }
            assert_eq!(of_class, class.count, "blocks of {} bytes", class.bytes);
            in_bins += of_class as usize;
        }
        assert_eq!(in_bins, count, "blocks in bins");
        let Some(by_size) = &self.by_size else { return };
        for (kind, steps) in by_size {
            let listed: Vec<u64> = steps
                .ascending(&self.table, 0)
                .filter_map(|id| self.table.get(id as usize))
                .inspect(|class| assert!(class.links.is_listed, "{} bytes are listed", class.bytes))
                .filter(|class| class.count > 0)
                .map(|class| class.bytes)
                .collect();
            let with = self.table.iter().map(|(_, class)| class);
            let with = with.filter(|class| class.count > 0 && class.kind == *kind);
            let mut filled: Vec<u64> = with.map(|class| class.bytes).collect();
            filled.sort_unstable();
            assert_eq!(listed, filled, "sizes with blocks");
        }
    }
}

impl<A: DeviceAllocator> Drop for Blocks<A> {
    /// Loses the blocks that are left: a pool that ends has taken them out before.
    fn drop(&mut self) {
        while let Some(address) = self.ages.oldest {
            drop(self.take_address(address));
        }
    }
}

/// A number of a class.
fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(NONE)
}
