//! Free blocks by age: which go where a limit needs room, and the place of one that comes back.
#![expect(unsafe_code, reason = "records of free blocks are reached by their addresses")]

use crate::block::record::{Record, RecordOwner};
use crate::block::request::Key;
use crate::blocks::Blocks;
use crate::blocks::lists::Address;
use crate::port::DeviceAllocator;

/// Blocks that are looked at for the place of one by age.
const LOOKS_BACK: usize = 64;
/// The oldest blocks of which the largest goes where a limit needs room: fewer blocks go for the same
/// bytes, so fewer are missed (`docs/decisions/049-evictions.md`).
pub(super) const OLDEST: usize = 32;
/// One time in this many the oldest goes, so that what is not needed any more does not stay for good.
pub(super) const BY_AGE: u32 = 4;

impl<A: DeviceAllocator> Blocks<A> {
    /// Puts a block back whose room was held, where it was by age, as far as a bounded number of
    /// looks tells: it is as old as it was.
    pub(crate) fn put_back(&mut self, key: Key<A::Kind>, record: RecordOwner<A>) {
        let freed_at = record.freed_at;
        self.leave_room(&record);
        self.push(key, record);
        let Some(at) = self.ages.newest() else { return };
        let mut older = self.ages.oldest;
        for _ in 0..LOOKS_BACK {
            let Some(address) = older.filter(|older| *older != at) else { break };
            // SAFETY: the lists own the records, and `self` is borrowed alone.
            let record = unsafe { address.as_ref() };
            if record.freed_at > freed_at {
                break;
            }
            older = record.links.newer;
        }
        if let Some(newer) = older.filter(|older| *older != at) {
            // SAFETY: both are in the list, and `self` is borrowed alone.
            unsafe { self.ages.move_before(at, newer) };
        }
        // SAFETY: as above.
        let class = unsafe { at.as_ref() }.class as usize;
        // SAFETY: `push` has put it on top of the bin of this class that was used last.
        unsafe { self.table.class(class).bin.blocks.move_to_bottom(at) };
    }

    /// The block that came first.
    pub(crate) fn oldest(&self) -> Option<&Record<A>> {
        // SAFETY: the lists own the record, and `self` is borrowed.
        self.ages.oldest.map(|address| unsafe { address.as_ref() })
    }

    /// Takes the oldest block of which `may` says so, of those that were freed before `before`.
    pub(crate) fn take_oldest(
        &mut self,
        before: u64,
        may: impl Fn(&mut Record<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let mut next = self.ages.oldest;
        while let Some(mut address) = next {
            // SAFETY: the lists own the record, and `self` is borrowed alone.
            let record = unsafe { address.as_mut() };
            if record.freed_at >= before {
                return None;
            }
            if may(record) {
                return Some(self.take_address(address));
            }
            next = record.links.newer;
        }
        None
    }

    /// Takes the block that goes where a limit needs room: the largest of the oldest few, of equal
    /// ones the oldest; and now and then the oldest.
    pub(crate) fn take_to_evict(&mut self) -> Option<RecordOwner<A>> {
        let (mut largest, mut next) = (self.ages.oldest?, self.ages.oldest);
        self.evicted = self.evicted.wrapping_add(1);
        let looks = if self.evicted.is_multiple_of(BY_AGE) { 0 } else { OLDEST };
        let mut most = 0;
        for _ in 0..looks {
            let Some(address) = next else { break };
            // SAFETY: the lists own the record, and `self` is borrowed alone.
            let record = unsafe { address.as_ref() };
            if record.bytes > most {
                (largest, most) = (address, record.bytes);
            }
            next = record.links.newer;
        }
        Some(self.take_address(largest))
    }

    /// Takes the block that came first of those of a size and stream.
    pub(crate) fn take_oldest_of(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
    ) -> Option<RecordOwner<A>> {
        let at = self.table.find(bytes, key.kind)?;
        let class = self.table.class(at);
        let oldest = if class.find(key.stream_id) { class.bin.blocks.bottom } else { None };
        oldest.map(|address| self.remove(at, address))
    }

    /// When the block of a size and stream that came first was freed.
    pub(crate) fn age_of_oldest(&self, key: Key<A::Kind>, bytes: u64) -> Option<u64> {
        let class = self.table.get(self.table.find(bytes, key.kind)?)?;
        let bin = class.bins().find(|bin| bin.stream == key.stream_id)?;
        // SAFETY: the lists own the record, and `self` is borrowed.
        bin.blocks.bottom.map(|address| unsafe { address.as_ref() }.freed_at)
    }

    /// Bytes of the blocks that came first, of a bounded number.
    pub(crate) fn bytes_of_oldest(&self, most: usize) -> u64 {
        self.iter().take(most).map(|record| record.bytes).sum()
    }

    /// All blocks, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record<A>> {
        // SAFETY: the lists own the records, and `self` is borrowed as long as the iterator.
        let at = |address: Address<A>| unsafe { address.as_ref() };
        std::iter::successors(self.ages.oldest.map(at), move |record| record.links.newer.map(at))
    }
}
