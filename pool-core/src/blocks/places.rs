//! The places of each bin, where shards lease them of a limit on blocks of a size. Only pools of memory
//! without streams have several shards then, so a size has one bin.

use crate::block::request::Key;
use crate::blocks::Blocks;
use crate::port::DeviceAllocator;
use std::mem;

impl<A: DeviceAllocator> Blocks<A> {
    /// Lets a bin have so many blocks more.
    pub(crate) fn add_places(&mut self, key: Key<A::Kind>, bytes: u64, places: u32) {
        if places > 0 {
            let at = self.find_or_add(bytes, key);
            self.table.bin(at).places += places;
        }
    }

    /// Takes as many places of a bin as `of` says of those that have no block.
    pub(crate) fn take_places(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        of: impl Fn(u32) -> u32,
    ) -> u32 {
        let Some(bin) = self.table.get_mut(bytes, key) else { return 0 };
        let taken = of(bin.places.saturating_sub(bin.count));
        bin.places -= taken;
        taken
    }

    /// Whether a bin has as many blocks as it has places.
    pub(crate) fn has_no_place(&self, key: Key<A::Kind>, bytes: u64) -> bool {
        self.table.get(bytes, key).is_none_or(|bin| bin.count >= bin.places)
    }

    /// Whether the table would grow for a bin.
    pub(crate) fn is_full_for(&self, key: Key<A::Kind>, bytes: u64) -> bool {
        !self.table.has_room() && self.table.find(bytes, key).is_none()
    }

    /// Takes the places of all bins without blocks.
    pub(crate) fn take_idle_places(&mut self, mut taken: impl FnMut((A::Kind, u64), u32)) {
        for (_, bin) in self.table.iter_mut().filter(|(_, bin)| bin.count == 0 && bin.places > 0) {
            taken((bin.kind, bin.bytes), mem::take(&mut bin.places));
        }
    }

    /// Gives each bin whose blocks are `limited` a place for each of them, and no other.
    pub(crate) fn lease_places_of_all(
        &mut self,
        limited: impl Fn(u64) -> bool,
        mut leased: impl FnMut((A::Kind, u64), u32),
    ) {
        for (_, bin) in self.table.iter_mut() {
            bin.places = if limited(bin.bytes) { bin.count } else { 0 };
            if bin.places > 0 {
                leased((bin.kind, bin.bytes), bin.places);
            }
        }
    }

    /// The places of each bin that has any, and its blocks.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn places_of_all(&self) -> impl Iterator<Item = ((A::Kind, u64), u32, u32)> {
        let with = self.table.iter().filter(|bin| bin.places > 0);
        with.map(|bin| ((bin.kind, bin.bytes), bin.places, bin.count))
    }

    /// How many blocks each bucket has: those of a size, kind and stream.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Key<A::Kind>, u64, usize)> {
        self.table.iter().map(|bin| (bin.key(), bin.bytes, bin.count as usize))
    }
}
