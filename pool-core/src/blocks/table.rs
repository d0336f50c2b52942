//! The classes of free blocks, found by size and kind: a hash table with open addressing, so that a
//! class is found without a search in almost all cases.
#![expect(unsafe_code, reason = "places are found by a masked hash")]

use crate::blocks::lists::Stack;
use crate::by_size::{Entries, SizeKey, SizeLinks};
use crate::port::DeviceAllocator;
use std::mem;

/// Places of the table at first, as a power of two.
const FIRST_BITS: u32 = 4;

/// Blocks that one stream used last, of one size and kind.
pub(super) struct Bin<A: DeviceAllocator> {
    pub(super) stream: u64,
    pub(super) blocks: Stack<A>,
    pub(super) count: u32,
}

/// The blocks of one size and kind.
pub(super) struct ClassBin<A: DeviceAllocator> {
    /// 0: there is no class at this place.
    pub(super) bytes: u64,
    pub(super) kind: A::Kind,
    /// The bin that was used last.
    pub(super) bin: Bin<A>,
    /// The bins of other streams that have blocks.
    #[expect(
        clippy::box_collection,
        reason = "one word in a class, where there are none as a rule"
    )]
    pub(super) others: Option<Box<Vec<Bin<A>>>>,
    /// Blocks of all bins.
    pub(super) count: u32,
    /// Blocks that it may have, where shards lease places of a limit.
    pub(super) places: u32,
    /// Its links among the classes by size, and whether it is there.
    pub(super) links: SizeLinks,
}

impl<A: DeviceAllocator> Bin<A> {
    fn empty(stream: u64) -> Self {
        Self { stream, blocks: Stack::EMPTY, count: 0 }
    }
}

impl<A: DeviceAllocator> ClassBin<A> {
    fn vacant() -> Self {
        Self {
            bytes: 0,
            kind: A::Kind::default(),
            bin: Bin::empty(0),
            others: None,
            count: 0,
            places: 0,
            links: SizeLinks::NONE,
        }
    }

    /// Makes the bin of a stream the one that was used last. Returns false if the stream has no
    /// blocks here.
    #[inline]
    pub(super) fn find(&mut self, stream: u64) -> bool {
        self.bin.stream == stream && self.bin.count > 0 || self.find_other(stream)
    }

    #[inline(never)]
    fn find_other(&mut self, stream: u64) -> bool {
        let Some(others) = &mut self.others else { return false };
        let Some(at) = others.iter().position(|bin| bin.stream == stream) else { return false };
        if self.bin.count == 0 {
            self.bin = others.swap_remove(at);
        } else {
            mem::swap(&mut self.bin, &mut others[at]);
        }
        if others.is_empty() {
            self.others = None;
        }
        true
    }

    /// Makes the bin of a stream the one that was used last, whether it has blocks or not.
    #[inline]
    pub(super) fn find_or_add(&mut self, stream: u64) {
        if self.bin.stream != stream && !self.find_other(stream) {
            let before = mem::replace(&mut self.bin, Bin::empty(stream));
            if before.count > 0 {
                self.others.get_or_insert_default().push(before);
            }
        }
    }

    /// All bins, the one that was used last first.
    pub(super) fn bins(&self) -> impl Iterator<Item = &Bin<A>> {
        [&self.bin].into_iter().chain(self.others.iter().flat_map(|others| others.iter()))
    }
}

/// All classes.
pub(super) struct Table<A: DeviceAllocator> {
    places: Vec<ClassBin<A>>,
    /// Bits of a hash that do not name a place.
    shift: u32,
    /// Places that have a class.
    used: usize,
}

impl<A: DeviceAllocator> Table<A> {
    pub(super) fn new() -> Self {
        // One vacant place, so that a search always ends.
        Self { places: vec![ClassBin::vacant()], shift: u64::BITS - 1, used: 0 }
    }

    /// The place of a class, or the vacant one where it would be.
    #[inline]
    fn place(&self, bytes: u64, kind: A::Kind) -> usize {
        self.first_place(bytes, |class| class.bytes == bytes && class.kind == kind)
    }

    /// The vacant place where a class of these bytes would be that is in no place yet.
    fn vacant_place(&self, bytes: u64) -> usize {
        self.first_place(bytes, |_| false)
    }

    /// The first place for classes of these bytes whose class `is` it, or which is vacant. There is a
    /// vacant one. The hash is multiplicative (Knuth, *TAOCP* 6.4).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below the number of places")]
    fn first_place(&self, bytes: u64, is: impl Fn(&ClassBin<A>) -> bool) -> usize {
        let mask = self.places.len() - 1;
        let hash = bytes.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut at = (hash >> self.shift) as usize & mask;
        loop {
            let class = self.at(at);
            if is(class) || class.bytes == 0 {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// The number of a class, if there is one.
    #[inline]
    pub(super) fn find(&self, bytes: u64, kind: A::Kind) -> Option<usize> {
        let at = self.place(bytes, kind);
        (self.at(at).bytes != 0).then_some(at)
    }

    /// Whether a class has this number.
    #[inline]
    pub(super) fn is_at(&self, at: usize, bytes: u64, kind: A::Kind) -> bool {
        self.places.get(at).is_some_and(|class| class.bytes == bytes && class.kind == kind)
    }

    #[inline]
    fn at(&self, at: usize) -> &ClassBin<A> {
        debug_assert!(at < self.places.len());
        // SAFETY: numbers of places are less than their count, by which each hash is masked.
        unsafe { self.places.get_unchecked(at & (self.places.len() - 1)) }
    }

    #[inline]
    pub(super) fn class(&mut self, at: usize) -> &mut ClassBin<A> {
        debug_assert!(at < self.places.len());
        let mask = self.places.len() - 1;
        // SAFETY: as in `at`; there is one place at least.
        unsafe { self.places.get_unchecked_mut(at & mask) }
    }

    /// The class of a number; not if it has none.
    pub(super) fn get(&self, at: usize) -> Option<&ClassBin<A>> {
        self.places.get(at).filter(|class| class.bytes != 0)
    }

    /// Whether there is room for one class more.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        2 * (self.used + 1) <= self.places.len()
    }

    /// Adds a class that there is room for. Returns its number.
    pub(super) fn add(&mut self, bytes: u64, kind: A::Kind) -> usize {
        let at = self.vacant_place(bytes);
        let class = &mut self.places[at];
        (class.bytes, class.kind) = (bytes, kind);
        self.used += 1;
        at
    }

    /// Forgets classes without blocks and places, and grows where that is not enough. All classes have other
    /// numbers then.
    #[cold]
    pub(super) fn make_room(&mut self) {
        let stays = |class: &ClassBin<A>| class.count > 0 || class.places > 0;
        let filled = self.places.iter().filter(|class| stays(class)).count();
        let bits = (4 * (filled + 1)).next_power_of_two().ilog2().max(FIRST_BITS);
        let places = (0..1_usize << bits).map(|_| ClassBin::vacant()).collect();
        let before = mem::replace(&mut self.places, places);
        (self.shift, self.used) = (u64::BITS - bits, filled);
        for class in before.into_iter().filter(stays) {
            let at = self.vacant_place(class.bytes);
            self.places[at] = class;
        }
    }

    /// How many classes there is room for.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// All classes.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ClassBin<A>> {
        self.places.iter_mut().filter(|class| class.bytes != 0)
    }

    /// All classes with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &ClassBin<A>)> {
        self.places.iter().enumerate().filter(|(_, class)| class.bytes != 0)
    }
}

impl<A: DeviceAllocator> Entries for Table<A> {
    fn key(&self, id: u32) -> SizeKey {
        SizeKey::least(self.places[id as usize].bytes)
    }
    fn links(&self, id: u32) -> SizeLinks {
        self.places[id as usize].links
    }
    fn links_mut(&mut self, id: u32) -> &mut SizeLinks {
        &mut self.places[id as usize].links
    }
}
