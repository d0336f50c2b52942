//! Whole blocks that are free: by size, kind and the stream that used them last; and by age. A pure
//! structure: no lock, no call to a device, no time.
//!
//! ```text
//!   Table      a bin for each size, kind and stream     (table.rs)
//!     Stack    its blocks, the newest on top            (table.rs)
//!   Ages       bins by the age of their oldest block    (by_age.rs)
//!   Sizes      bins by size, where another may serve    (sizes.rs)
//! ```
//!
//! [`Blocks::pop_top`] and [`Blocks::push_again`] are **the hot path** of a pool without an arena: they touch a
//! bin and its stack. A bin is listed by age and size when it gets its first block.
#![expect(unsafe_code, reason = "records of free blocks are owned by their stacks")]

mod by_age;
mod sizes;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use crate::block::Key;
use crate::block::record::{Record, RecordOwner};
use crate::port::DeviceAllocator;
use by_age::Ages;
use sizes::Sizes;
use table::{Address, BY_AGE, BY_SIZE, Table};

/// Blocks of a bin that are asked whether they are ready.
const MAX_LOOKS: usize = 8;

/// The free blocks of a shard.
pub(crate) struct Blocks<A: DeviceAllocator> {
    /// Its bins; the places of each, where shards lease them.
    pub(crate) table: Table<A>,
    /// Bytes of all blocks.
    pub(crate) bytes: u64,
    /// Blocks that came so far, which is the age of the newest.
    came: u64,
    ages: Ages,
    sizes: Sizes<A::Kind>,
    /// How many blocks were evicted.
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
    pub(crate) fn new() -> Self {
        let (ages, sizes) = (Ages::EMPTY, Sizes::EMPTY);
        Self { table: Table::new(), bytes: 0, came: 0, ages, sizes, evicted: 0 }
    }

    /// Takes the block of a size and stream that came last, if `ready` accepts it.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn pop_top(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let bin = self.table.bin(self.table.slot(bytes, key));
        let mut top = bin.blocks.top?;
        // SAFETY: the stack owns the record, and `self` is borrowed alone.
        if !ready(unsafe { top.as_mut() }) {
            return None;
        }
        // SAFETY: the block is on top of this stack, and `self` is borrowed alone.
        unsafe { bin.blocks.pop(top) };
        bin.count -= 1;
        self.bytes -= bytes;
        // SAFETY: it is in no stack any more.
        Some(unsafe { RecordOwner::of_address(top) })
    }

    /// Takes the block of a size and stream that came last, of a few that `ready` accepts.
    pub(crate) fn pop(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        self.pop_at(self.table.slot(bytes, key), ready)
    }

    /// The same for the bin in a slot.
    fn pop_at(
        &mut self,
        at: usize,
        ready: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let mut next = self.table.bin(at).blocks.top;
        for _ in 0..MAX_LOOKS {
            let mut address = next?;
            // SAFETY: the stacks own the record, and `self` is borrowed alone.
            let record = unsafe { address.as_mut() };
            if ready(record) {
                return Some(self.remove(at, address));
            }
            next = record.links.below;
        }
        None
    }

    /// Takes a block out that is in the bin of this slot.
    fn remove(&mut self, at: usize, address: Address<A>) -> RecordOwner<A> {
        let bin = self.table.bin(at);
        // SAFETY: the block is in this stack, and `self` is borrowed alone.
        unsafe { bin.blocks.remove(address) };
        bin.count -= 1;
        self.bytes -= bin.bytes;
        // SAFETY: it is in no stack any more.
        unsafe { RecordOwner::of_address(address) }
    }

    /// Adds a block as the newest, if it is in the slot of the last time and its bin is listed. Returns it
    /// otherwise.
    #[expect(clippy::inline_always, reason = "a free is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn push_again(
        &mut self,
        key: Key<A::Kind>,
        mut record: RecordOwner<A>,
    ) -> Result<(), RecordOwner<A>> {
        let bytes = record.bytes;
        let Some(bin) = self.table.bin_at(record.slot as usize, bytes, key) else {
            return Err(record);
        };
        if bin.listed != BY_AGE | BY_SIZE {
            return Err(record);
        }
        self.came += 1;
        record.came = self.came;
        self.bytes += bytes;
        bin.count += 1;
        // SAFETY: the record had an owner, so it was in no stack; `self` is borrowed alone.
        unsafe { bin.blocks.push(record.into_address()) };
        Ok(())
    }

    /// Adds a block as the newest.
    #[inline(never)]
    pub(crate) fn push(&mut self, key: Key<A::Kind>, mut record: RecordOwner<A>) {
        self.came += 1;
        record.came = self.came;
        self.bytes += record.bytes;
        let at = self.slot_for(key, &mut record);
        let bin = self.table.bin(at);
        bin.count += 1;
        // SAFETY: as in `push_again`.
        unsafe { bin.blocks.push(record.into_address()) };
        self.begin(at);
    }

    /// The slot of the bin that a block belongs in.
    fn slot_for(&mut self, key: Key<A::Kind>, record: &mut RecordOwner<A>) -> usize {
        let at = self.find_or_add(record.bytes, key);
        record.slot = u32::try_from(at).unwrap_or(u32::MAX);
        at
    }

    #[inline(never)]
    fn find_or_add(&mut self, bytes: u64, key: Key<A::Kind>) -> usize {
        if let Some(at) = self.table.find(bytes, key) {
            return at;
        }
        if !self.table.has_room() {
            self.table.make_room();
            self.list_all_by_age();
            self.list_all_by_size();
        }
        self.table.add(bytes, key)
    }

    /// Lists a bin that has blocks where it is not listed.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, at: usize) {
        let listed = self.table.bin(at).listed;
        if listed & BY_AGE == 0 {
            self.list_by_age(at);
        }
        if listed & BY_SIZE == 0 {
            self.list_by_size(at);
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

    /// How many blocks there are of a size that a stream used last.
    pub(crate) fn count_of(&self, key: Key<A::Kind>, bytes: u64) -> usize {
        self.table.get(bytes, key).map_or(0, |bin| bin.count as usize)
    }

    /// All blocks, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record<A>> {
        // SAFETY: the stacks own the records, and `self` is borrowed as long as the iterator.
        let at = |address: Address<A>| unsafe { address.as_ref() };
        self.table.iter().flat_map(move |bin| {
            std::iter::successors(bin.blocks.top.map(at), move |record| record.links.below.map(at))
        })
    }

    /// Asserts that all agrees with the blocks.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn check(&self) {
        assert_eq!(self.iter().map(|record| record.bytes).sum::<u64>(), self.bytes, "all bytes");
        for bin in self.table.iter() {
            let (mut count, mut above, mut next) = (0, None, bin.blocks.top);
            let mut came = self.came;
            while let Some(address) = next {
                // SAFETY: as in `iter`.
                let record = unsafe { address.as_ref() };
                assert_eq!((record.bytes, record.kind), (bin.bytes, bin.kind), "its bin");
                assert!(record.came <= came, "a block is no younger than those above");
                if above.is_some() {
                    assert_eq!(record.links.above, above, "the block above");
                }
                (above, next, count) = (Some(address), record.links.below, count + 1);
                came = record.came;
            }
            assert_eq!((above, count), (bin.blocks.bottom(), bin.count), "a bin");
        }
        self.check_ages();
        self.check_sizes();
    }
}

impl<A: DeviceAllocator> Drop for Blocks<A> {
    /// Loses the blocks that are left: a pool that ends has taken them out before.
    fn drop(&mut self) {
        for (_, bin) in self.table.iter_mut() {
            while let Some(top) = bin.blocks.top {
                // SAFETY: the stack owns the record, and `self` is borrowed alone.
                unsafe { bin.blocks.pop(top) };
                // SAFETY: it is in no stack any more.
                drop(unsafe { RecordOwner::of_address(top) });
            }
        }
    }
}

impl<A: DeviceAllocator> Blocks<A> {
    /// Lets a bin have so many blocks more.
    pub(crate) fn add_places(&mut self, key: Key<A::Kind>, bytes: u64, places: u32) {
        if places > 0 {
            let at = self.find_or_add(bytes, key);
            self.table.bin(at).places += places;
        }
    }
}
