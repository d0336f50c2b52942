//! The places of each class, where shards lease them of a limit on blocks of a size.

use crate::block::request::Key;
use crate::blocks::Blocks;
use crate::port::DeviceAllocator;
use std::mem;

impl<A: DeviceAllocator> Blocks<A> {
    /// Lets a class have so many blocks more.
    pub(crate) fn add_places(&mut self, key: Key<A::Kind>, bytes: u64, places: u32) {
        if places > 0 {
            let at = self.find_or_add(bytes, key.kind);
            self.table.class(at).places += places;
        }
    }

    /// Takes as many places of a class as `of` says of those that have no block.
    pub(crate) fn take_places(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        of: impl Fn(u32) -> u32,
    ) -> u32 {
        let Some(at) = self.table.find(bytes, key.kind) else { return 0 };
        let class = self.table.class(at);
        let taken = of(class.places.saturating_sub(class.count));
        class.places -= taken;
        taken
    }

    /// Whether a class has as many blocks as it has places.
    pub(crate) fn has_no_place(&self, key: Key<A::Kind>, bytes: u64) -> bool {
        let class = self.table.find(bytes, key.kind).and_then(|at| self.table.get(at));
        class.is_none_or(|class| class.count >= class.places)
    }

    /// Whether the table would grow for a class.
    pub(crate) fn is_full_for(&self, key: Key<A::Kind>, bytes: u64) -> bool {
        !self.table.has_room() && self.table.find(bytes, key.kind).is_none()
    }

    /// Takes the places of all classes without blocks.
    pub(crate) fn take_idle_places(&mut self, mut taken: impl FnMut((A::Kind, u64), u32)) {
        for class in self.table.iter_mut().filter(|class| class.count == 0 && class.places > 0) {
            taken((class.kind, class.bytes), mem::take(&mut class.places));
        }
    }

    /// Gives each class whose blocks are `limited` a place for each of them, and no other.
    pub(crate) fn lease_places_of_all(
        &mut self,
        limited: impl Fn(u64) -> bool,
        mut leased: impl FnMut((A::Kind, u64), u32),
    ) {
        for class in self.table.iter_mut() {
            class.places = if limited(class.bytes) { class.count } else { 0 };
            if class.places > 0 {
                leased((class.kind, class.bytes), class.places);
            }
        }
    }

    /// The places of each class that has any, and its blocks.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn places_of_all(&self) -> impl Iterator<Item = ((A::Kind, u64), u32, u32)> {
        let with = self.table.iter().filter(|(_, class)| class.places > 0);
        with.map(|(_, class)| ((class.kind, class.bytes), class.places, class.count))
    }

    /// How many blocks each bucket has: those of a size, kind and stream.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Key<A::Kind>, u64, usize)> {
        self.table.iter().flat_map(|(_, class)| {
            let key = |stream_id| Key { kind: class.kind, stream_id };
            class.bins().map(move |bin| (key(bin.stream), class.bytes, bin.count as usize))
        })
    }
}
