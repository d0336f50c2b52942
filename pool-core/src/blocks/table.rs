//! The bins of free blocks, found by size, kind and stream: a hash table with open addressing, so that a
//! bin is found by one look in almost all cases. The blocks of a bin are a stack through the links in their
//! records.
#![expect(unsafe_code, reason = "slots are found by a masked hash, and records by their addresses")]

use crate::block::Key;
use crate::block::record::{Link, Links, Record};
use crate::by_size::{Entries, SizeKey, SizeLinks};
use crate::port::{DeviceAllocator, StreamClock};
use std::mem;
use std::ptr::NonNull;

/// Slots of the table at first, as a power of two.
const FIRST_BITS: u32 = 4;

/// Blocks of one size and kind that one stream used last: a cache line.
#[repr(align(64))]
pub(super) struct Bin<A: DeviceAllocator> {
    /// 0: there is no bin in this slot.
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) blocks: Stack<A>,
    pub(super) count: u32,
    /// Blocks that it may have, where shards lease places of a limit.
    pub(super) places: u32,
    /// The age of its entry among the bins by age.
    pub(super) entry: u64,
    pub(super) kind: A::Kind,
    /// Where it is listed: [`BY_AGE`] and [`BY_SIZE`].
    pub(super) listed: u8,
}

/// It has an entry among the bins by age, which says that it is no younger than its oldest block.
pub(super) const BY_AGE: u8 = 1;
/// It is among the bins by size.
pub(super) const BY_SIZE: u8 = 2;

impl<A: DeviceAllocator> Bin<A> {
    fn vacant() -> Self {
        Self {
            bytes: 0,
            stream: 0,
            blocks: Stack::EMPTY,
            count: 0,
            places: 0,
            entry: 0,
            kind: A::Kind::default(),
            listed: 0,
        }
    }

    #[inline]
    pub(super) fn is(&self, bytes: u64, key: Key<A::Kind>) -> bool {
        self.bytes == bytes
            && (!has_streams::<A>() || self.stream == key.stream_id)
            && self.kind == key.kind
    }

    pub(super) fn key(&self) -> Key<A::Kind> {
        Key { kind: self.kind, stream_id: self.stream }
    }
}

/// Whether bins have streams: in memory that has them, and in tests of bins alone.
#[inline]
fn has_streams<A: DeviceAllocator>() -> bool {
    A::Clock::HAS_STREAMS || cfg!(test)
}

/// The stream of a bin: 0 in memory without streams, whatever number its clock gives.
#[inline]
fn stream_of<A: DeviceAllocator>(key: Key<A::Kind>) -> u64 {
    if has_streams::<A>() { key.stream_id } else { 0 }
}

/// All bins.
pub(crate) struct Table<A: DeviceAllocator> {
    slots: Vec<Bin<A>>,
    /// The links of each slot among the bins by size.
    links: Vec<SizeLinks>,
    /// Bits of a hash that do not name a slot.
    shift: u32,
    /// Slots that have a bin.
    used: usize,
}

impl<A: DeviceAllocator> Table<A> {
    pub(super) fn new() -> Self {
        // One vacant slot, so that a search always ends.
        let (slots, links) = (vec![Bin::vacant()], vec![SizeLinks::NONE]);
        Self { slots, links, shift: u64::BITS - 1, used: 0 }
    }

    /// The slot of a bin, or the vacant one where it would be.
    #[inline]
    pub(super) fn slot(&self, bytes: u64, key: Key<A::Kind>) -> usize {
        let first = self.first_slot(bytes, stream_of::<A>(key));
        if self.at(first).is(bytes, key) { first } else { self.slot_behind(first, bytes, key) }
    }

    /// [`Table::slot`] of a bin that is not in the first slot where it may be.
    #[inline(never)]
    fn slot_behind(&self, first: usize, bytes: u64, key: Key<A::Kind>) -> usize {
        self.next_slot(first, |bin| bin.is(bytes, key))
    }

    /// The first slot where a bin of this size and stream may be. The hash is multiplicative (Knuth,
    /// *TAOCP* 6.4).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
    fn first_slot(&self, bytes: u64, stream: u64) -> usize {
        let both = bytes.wrapping_add(stream.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        (both.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize & (self.slots.len() - 1)
    }

    /// The next slot from `at` on whose bin `is` it, or which is vacant. There is a vacant one.
    fn next_slot(&self, mut at: usize, is: impl Fn(&Bin<A>) -> bool) -> usize {
        while self.at(at).bytes != 0 && !is(self.at(at)) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    /// The slot of a bin, if there is one.
    #[inline]
    pub(super) fn find(&self, bytes: u64, key: Key<A::Kind>) -> Option<usize> {
        let at = self.slot(bytes, key);
        (self.at(at).bytes != 0).then_some(at)
    }

    /// The bin of a size and key, if it is in this slot.
    #[inline]
    pub(super) fn bin_at(
        &mut self,
        at: usize,
        bytes: u64,
        key: Key<A::Kind>,
    ) -> Option<&mut Bin<A>> {
        self.slots.get_mut(at).filter(|bin| bin.is(bytes, key))
    }

    #[inline]
    pub(super) fn at(&self, at: usize) -> &Bin<A> {
        debug_assert!(at < self.slots.len());
        // SAFETY: numbers of slots are less than their count, by which each hash is masked.
        unsafe { self.slots.get_unchecked(at & (self.slots.len() - 1)) }
    }

    #[inline]
    pub(super) fn bin(&mut self, at: usize) -> &mut Bin<A> {
        debug_assert!(at < self.slots.len());
        let mask = self.slots.len() - 1;
        // SAFETY: as in `at`; there is one slot at least.
        unsafe { self.slots.get_unchecked_mut(at & mask) }
    }

    /// The bin of a size and key, if there is one.
    pub(super) fn get(&self, bytes: u64, key: Key<A::Kind>) -> Option<&Bin<A>> {
        self.find(bytes, key).map(|at| self.at(at))
    }

    /// The same, to change it.
    pub(super) fn get_mut(&mut self, bytes: u64, key: Key<A::Kind>) -> Option<&mut Bin<A>> {
        self.find(bytes, key).map(|at| self.bin(at))
    }

    /// Whether there is room for one bin more.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        2 * (self.used + 1) <= self.slots.len()
    }

    /// Adds a bin that there is room for. Returns its slot.
    pub(super) fn add(&mut self, bytes: u64, key: Key<A::Kind>) -> usize {
        let stream = stream_of::<A>(key);
        let at = self.next_slot(self.first_slot(bytes, stream), |_| false);
        let bin = &mut self.slots[at];
        (bin.bytes, bin.kind, bin.stream) = (bytes, key.kind, stream);
        self.used += 1;
        at
    }

    /// Forgets bins without blocks and places, and grows where that is not enough. All bins are in
    /// other slots then.
    #[cold]
    pub(super) fn make_room(&mut self) {
        let stays = |bin: &Bin<A>| bin.count > 0 || bin.places > 0;
        let filled = self.slots.iter().filter(|bin| stays(bin)).count();
        let bits = (4 * (filled + 1)).next_power_of_two().ilog2().max(FIRST_BITS);
        let slots = (0..1_usize << bits).map(|_| Bin::vacant()).collect();
        let before = mem::replace(&mut self.slots, slots);
        self.links = vec![SizeLinks::NONE; self.slots.len()];
        (self.shift, self.used) = (u64::BITS - bits, filled);
        for bin in before.into_iter().filter(stays) {
            let at = self.next_slot(self.first_slot(bin.bytes, bin.stream), |_| false);
            self.slots[at] = bin;
        }
    }

    /// How many slots there are, of which half may have bins.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// All bins, to change them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Bin<A>)> {
        self.slots.iter_mut().enumerate().filter(|(_, bin)| bin.bytes != 0)
    }

    /// All bins.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Bin<A>> {
        self.slots.iter().filter(|bin| bin.bytes != 0)
    }
}

impl<A: DeviceAllocator> Entries for Table<A> {
    /// By size; no two bins are equal, whatever a kind says of itself.
    fn key(&self, id: u32) -> SizeKey {
        SizeKey { bytes: self.at(id as usize).bytes, born: id, offset: 0 }
    }

    fn links(&self, id: u32) -> SizeLinks {
        self.links[id as usize]
    }

    fn links_mut(&mut self, id: u32) -> &mut SizeLinks {
        &mut self.links[id as usize]
    }
}

/// A record that a stack owns.
pub(super) type Address<A> = NonNull<Record<A>>;

/// The links of a record.
///
/// # Safety
///
/// The record is in a stack of one [`Blocks`](crate::blocks::Blocks), which is borrowed alone, and no
/// reference to it is in use.
#[inline]
unsafe fn links<'l, A: DeviceAllocator>(of: Address<A>) -> &'l mut Links<A> {
    // SAFETY: as the caller says.
    unsafe { &mut (*of.as_ptr()).links }
}

/// Blocks one upon the other in the order in which they came, the newest on top.
pub(super) struct Stack<A: DeviceAllocator> {
    pub(super) top: Link<A>,
    /// Of meaning only if there is a top. (The link `above` of the top means nothing either, so a hit writes to no
    /// other block than the one that it takes.)
    bottom: Link<A>,
}

impl<A: DeviceAllocator> Stack<A> {
    pub(super) const EMPTY: Self = Self { top: None, bottom: None };

    /// The block that came first.
    #[inline]
    pub(super) fn bottom(&self) -> Link<A> {
        self.top.and(self.bottom)
    }

    /// The block that came after one of this stack.
    ///
    /// # Safety
    ///
    /// The record is in this stack.
    #[inline]
    pub(super) unsafe fn above(&self, of: Address<A>) -> Link<A> {
        if self.top == Some(of) {
            return None;
        }
        // SAFETY: the stack is borrowed, and with it its records.
        unsafe { of.as_ref() }.links.above
    }

    /// Adds a record on top.
    ///
    /// # Safety
    ///
    /// The record is in no stack, and those of this one are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn push(&mut self, record: Address<A>) {
        // SAFETY: as the caller says.
        unsafe { links(record) }.below = self.top;
        match self.top.replace(record) {
            // SAFETY: as above; the two are not the same record.
            Some(below) => unsafe { links(below) }.above = Some(record),
            None => self.bottom = Some(record),
        }
    }

    /// Takes the record on top out.
    ///
    /// # Safety
    ///
    /// It is the top, and all records of this stack are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn pop(&mut self, top: Address<A>) {
        // SAFETY: as the caller says.
        self.top = unsafe { links(top) }.below;
    }

    /// Adds a record between two neighbours; `None`: it is the bottom, or the top.
    ///
    /// # Safety
    ///
    /// The record is in no stack, the two are neighbours of this one, and all of it are as [`links`]
    /// asks for.
    pub(super) unsafe fn insert(&mut self, record: Address<A>, below: Link<A>, above: Link<A>) {
        // SAFETY: as the caller says.
        let own = unsafe { links(record) };
        (own.below, own.above) = (below, above);
        match below {
            // SAFETY: as above; the three are different records.
            Some(below) => unsafe { links(below) }.above = Some(record),
            None => self.bottom = Some(record),
        }
        match above {
            // SAFETY: as above.
            Some(above) => unsafe { links(above) }.below = Some(record),
            None => self.top = Some(record),
        }
    }

    /// Takes a record out.
    ///
    /// # Safety
    ///
    /// The record is in this stack, and all of it are as [`links`] asks for.
    #[inline]
    pub(super) unsafe fn remove(&mut self, record: Address<A>) {
        // SAFETY: as the caller says.
        let (below, above) = (unsafe { links(record) }.below, unsafe { self.above(record) });
        match above {
            // SAFETY: as above; the two are not the same record.
            Some(above) => unsafe { links(above) }.below = below,
            None => self.top = below,
        }
        match below {
            // SAFETY: as above.
            Some(below) => unsafe { links(below) }.above = above,
            None => self.bottom = above,
        }
    }
}

// SAFETY: a stack is the owner of its records, which is as good as the records themselves.
unsafe impl<A: DeviceAllocator> Send for Stack<A> where Record<A>: Send {}

/// The places of each bin, where shards lease them of a limit on blocks of a size. Only pools of memory
/// without streams have several shards then, so a size has one bin.
impl<A: DeviceAllocator> Table<A> {
    /// Takes as many places of a bin as `of` says of those that have no block.
    pub(crate) fn take_places(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        of: impl Fn(u32) -> u32,
    ) -> u32 {
        let Some(bin) = self.get_mut(bytes, key) else { return 0 };
        let taken = of(bin.places.saturating_sub(bin.count));
        bin.places -= taken;
        taken
    }

    /// Whether a bin has as many blocks as it has places.
    pub(crate) fn has_no_place(&self, key: Key<A::Kind>, bytes: u64) -> bool {
        self.get(bytes, key).is_none_or(|bin| bin.count >= bin.places)
    }

    /// Whether the table would grow for a bin.
    pub(crate) fn is_full_for(&self, key: Key<A::Kind>, bytes: u64) -> bool {
        !self.has_room() && self.find(bytes, key).is_none()
    }

    /// Takes the places of all bins without blocks.
    pub(crate) fn take_idle_places(&mut self, mut taken: impl FnMut((A::Kind, u64), u32)) {
        for (_, bin) in self.iter_mut().filter(|(_, bin)| bin.count == 0 && bin.places > 0) {
            taken((bin.kind, bin.bytes), mem::take(&mut bin.places));
        }
    }

    /// Gives each bin whose blocks are `limited` a place for each of them, and no other.
    pub(crate) fn lease_places_of_all(
        &mut self,
        limited: impl Fn(u64) -> bool,
        mut leased: impl FnMut((A::Kind, u64), u32),
    ) {
        for (_, bin) in self.iter_mut() {
            bin.places = if limited(bin.bytes) { bin.count } else { 0 };
            if bin.places > 0 {
                leased((bin.kind, bin.bytes), bin.places);
            }
        }
    }

    /// The places of each bin that has any, and its blocks.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn places_of_all(&self) -> impl Iterator<Item = ((A::Kind, u64), u32, u32)> {
        let with = self.iter().filter(|bin| bin.places > 0);
        with.map(|bin| ((bin.kind, bin.bytes), bin.places, bin.count))
    }

    /// How many blocks each bucket has: those of a size, kind and stream.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Key<A::Kind>, u64, usize)> {
        self.iter().map(|bin| (bin.key(), bin.bytes, bin.count as usize))
    }
}
