//! Free blocks by age: which go where a limit needs room, and the place of one that comes back.
//!
//! A stack has its blocks in the order in which they came. So the oldest block of all is at the bottom of
//! the bin that is first by the age of its bottom, and bins are kept in a heap by that age. A hit and a
//! free do not touch the heap: the entry of a bin may say that it is older than it is, which is mended
//! where the entry comes first (a lazy heap). A block that comes back below all others gets its bin a new
//! entry, and the one before counts no more.
#![expect(unsafe_code, reason = "records of free blocks are reached by their addresses")]

use crate::block::Key;
use crate::block::record::{Record, RecordOwner};
use crate::blocks::Blocks;
use crate::blocks::table::{Address, BY_AGE};
use crate::port::DeviceAllocator;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow::{self, Break, Continue};

/// Blocks that are looked at for the place of one by age.
const MAX_LOOKS_BACK: usize = 64;
/// The oldest blocks of which the largest goes where a limit needs room: fewer blocks go for the same
/// bytes, so fewer are missed (`docs/decisions/049-evictions.md`).
pub(super) const OLDEST: usize = 32;
/// One time in this many the oldest goes, so that what is not needed any more does not stay for good.
pub(super) const BY_AGE_ONE_IN: u32 = 4;

/// Bins by the age of their oldest blocks, the oldest first: ages and slots.
pub(super) struct Ages(BinaryHeap<Reverse<(u64, usize)>>);

impl Ages {
    pub(super) const EMPTY: Self = Self(BinaryHeap::new());
}

/// Bins whose entries were taken out to look at their blocks. They are listed again at the end, also if the
/// look panics: it may ask a clock.
struct Begun<'b, A: DeviceAllocator> {
    blocks: &'b mut Blocks<A>,
    slots: Vec<usize>,
}

impl<A: DeviceAllocator> Drop for Begun<'_, A> {
    fn drop(&mut self) {
        for at in self.slots.drain(..) {
            self.blocks.list_by_age(at);
        }
    }
}

impl<A: DeviceAllocator> Blocks<A> {
    /// Gives a bin an entry that says how old it is. It has blocks.
    pub(super) fn list_by_age(&mut self, at: usize) {
        if self.ages.0.len() >= 2 * self.table.len() {
            return self.list_all_by_age(); // entries that count no more are as many
        }
        let Some((age, _)) = self.oldest_of(at) else { return };
        let bin = self.table.bin(at);
        (bin.entry, bin.listed) = (age, bin.listed | BY_AGE);
        self.ages.0.push(Reverse((age, at)));
    }

    /// Gives each bin that has blocks an entry, and no other: also after their slots have changed.
    pub(super) fn list_all_by_age(&mut self) {
        self.ages.0.clear();
        for (at, bin) in self.table.iter_mut() {
            bin.listed &= !BY_AGE;
            // SAFETY: the stacks own the record, and `self` is borrowed alone.
            if let Some(bottom) = bin.blocks.bottom().map(|bottom| unsafe { bottom.as_ref() }) {
                (bin.entry, bin.listed) = (bottom.came, bin.listed | BY_AGE);
                self.ages.0.push(Reverse((bin.entry, at)));
            }
        }
    }

    /// The block of a bin that came first, and its age.
    pub(super) fn oldest_of(&mut self, at: usize) -> Option<(u64, Address<A>)> {
        let bottom = self.table.bin(at).blocks.bottom()?;
        // SAFETY: the stacks own the record, and `self` is borrowed.
        Some((unsafe { bottom.as_ref() }.came, bottom))
    }

    /// The bin that has the block that came first, and its age. Mends the entries before it.
    fn oldest_bin(&mut self) -> Option<(u64, usize)> {
        loop {
            let Reverse((age, at)) = *self.ages.0.peek()?;
            let bin = self.table.bin(at);
            if bin.listed & BY_AGE == 0 || bin.entry != age {
                self.ages.0.pop(); // another entry of its bin counts, or none
                continue;
            }
            match self.oldest_of(at) {
                Some((now, _)) if now == age => return Some((age, at)),
                now => {
                    self.ages.0.pop();
                    let bin = self.table.bin(at);
                    match now {
                        Some((now, _)) => {
                            debug_assert!(now > age, "an entry is no younger than its bin");
                            bin.entry = now;
                            self.ages.0.push(Reverse((now, at)));
                        }
                        None => bin.listed &= !BY_AGE,
                    }
                }
            }
        }
    }

    /// Calls `look` with the blocks and the slots of their bins in the order in which they came, until it
    /// breaks.
    pub(super) fn each_by_age(
        &mut self,
        mut look: impl FnMut(&mut Record<A>, (usize, Address<A>)) -> ControlFlow<()>,
    ) {
        let mut begun = Begun { blocks: self, slots: Vec::new() };
        let mut next: BinaryHeap<Reverse<(u64, usize, Address<A>)>> = BinaryHeap::new();
        loop {
            let blocks = &mut *begun.blocks;
            while let Some((age, at)) = blocks.oldest_bin() {
                if next.peek().is_some_and(|Reverse((first, ..))| *first < age) {
                    break;
                }
                blocks.ages.0.pop();
                let bin = blocks.table.bin(at);
                bin.listed &= !BY_AGE; // another entry of the same age must not begin it once more
                begun.slots.push(at);
                next.extend(bin.blocks.bottom().map(|bottom| Reverse((age, at, bottom))));
            }
            let Some(Reverse((_, at, mut address))) = next.pop() else { break };
            // SAFETY: the stacks own the record, and they are borrowed alone.
            if look(unsafe { address.as_mut() }, (at, address)).is_break() {
                break;
            }
            // SAFETY: it is in this stack.
            if let Some(above) = unsafe { blocks.table.bin(at).blocks.above(address) } {
                // SAFETY: as for `address`.
                let came = unsafe { above.as_ref() }.came;
                next.push(Reverse((came, at, above)));
            }
        }
    }

    /// Puts a block back whose room was held, where it was by age, as far as a bounded number of
    /// looks tells: it is as old as it was.
    pub(crate) fn put_back(&mut self, key: Key<A::Kind>, mut record: RecordOwner<A>) {
        let at = self.slot_for(key, &mut record);
        let mut came = record.came.min(self.came);
        let blocks = &self.table.bin(at).blocks;
        let (mut below, mut above, mut looks) = (None, blocks.bottom(), 0);
        while let Some(address) = above {
            // SAFETY: the stacks own the record, and `self` is borrowed alone.
            let older = unsafe { address.as_ref() }.came;
            if older >= came {
                break;
            }
            // SAFETY: it is in this stack.
            let next = unsafe { blocks.above(address) };
            (below, above, looks) = (above, next, looks + 1);
            if looks == MAX_LOOKS_BACK {
                came = older; // as old as the one below
                break;
            }
        }
        record.came = came;
        let bin = self.table.bin(at);
        // SAFETY: the record had an owner, so it was in no stack; `self` is borrowed alone, and the two are
        // neighbours in this one.
        unsafe { bin.blocks.insert(record.into_address(), below, above) };
        bin.count += 1;
        if came < bin.entry {
            self.list_by_age(at);
        }
        self.begin(at);
    }

    /// The block that came first.
    pub(crate) fn oldest(&mut self) -> Option<&Record<A>> {
        let (_, at) = self.oldest_bin()?;
        // SAFETY: the stacks own the record, and `self` is borrowed.
        self.oldest_of(at).map(|(_, address)| unsafe { address.as_ref() })
    }

    /// Takes the oldest block of which `may` says so, of those that were freed before `before`.
    pub(crate) fn pop_oldest(
        &mut self,
        before: u64,
        may: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let mut found = None;
        self.each_by_age(|record, place| {
            let is_old = record.freed_at < before;
            if is_old && !may(record) {
                return Continue(());
            }
            found = is_old.then_some(place);
            Break(())
        });
        found.map(|(at, address)| self.remove(at, address))
    }

    /// Takes the block that goes where a limit needs room: the largest of the oldest few, of equal
    /// ones the oldest; and now and then the oldest.
    pub(crate) fn pop_to_evict(&mut self) -> Option<RecordOwner<A>> {
        self.evicted = self.evicted.wrapping_add(1);
        let looks = if self.evicted.is_multiple_of(BY_AGE_ONE_IN) { 1 } else { OLDEST };
        let (mut most, mut left, mut largest) = (0, looks, None);
        self.each_by_age(|record, place| {
            if record.bytes > most {
                (most, largest) = (record.bytes, Some(place));
            }
            left -= 1;
            if left > 0 { Continue(()) } else { Break(()) }
        });
        largest.map(|(at, address)| self.remove(at, address))
    }

    /// Takes the block that came first of those of a size and stream.
    pub(crate) fn pop_oldest_of(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
    ) -> Option<RecordOwner<A>> {
        let at = self.table.find(bytes, key)?;
        let (_, oldest) = self.oldest_of(at)?;
        Some(self.remove(at, oldest))
    }

    /// When the block of a size and stream that came first was freed.
    pub(crate) fn age_of_oldest(&self, key: Key<A::Kind>, bytes: u64) -> Option<u64> {
        let bottom = self.table.get(bytes, key)?.blocks.bottom()?;
        // SAFETY: the stacks own the record, and `self` is borrowed.
        Some(unsafe { bottom.as_ref() }.freed_at)
    }

    /// Bytes of the blocks that came first, of a bounded number.
    pub(crate) fn bytes_of_oldest(&mut self, most: usize) -> u64 {
        let (mut bytes, mut left) = (0, most);
        self.each_by_age(|record, _| {
            bytes += record.bytes;
            left -= 1;
            if left > 0 { Continue(()) } else { Break(()) }
        });
        bytes
    }

    /// Asserts that each bin with blocks has an entry that says that it is no younger than it is.
    #[cfg(any(test, feature = "check"))]
    pub(super) fn check_ages(&self) {
        let entries: std::collections::HashSet<_> =
            self.ages.0.iter().map(|entry| entry.0).collect();
        assert!(self.ages.0.len() <= 2 * self.table.len(), "{} entries", self.ages.0.len());
        for bin in self.table.iter().filter(|bin| bin.count > 0) {
            let at = self.table.slot(bin.bytes, bin.key());
            // SAFETY: the stacks own the record, and `self` is borrowed.
            let oldest = bin.blocks.bottom().map(|bottom| unsafe { bottom.as_ref() }.came);
            assert!(bin.listed & BY_AGE != 0, "a bin with blocks has an entry");
            assert!(oldest >= Some(bin.entry), "the entry of a bin is no younger than its blocks");
            assert!(entries.contains(&(bin.entry, at)), "the entry of a bin is in the heap");
        }
    }
}
