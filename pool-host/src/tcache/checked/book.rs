//! Which blocks there are, by address: a table beside the blocks, so that a stray write does not
//! change it. Open addressing; it doubles, and the old one is never given back.

use crate::virtual_memory::{self, Zeroed};
use std::alloc::Layout;
use std::cell::Cell;

/// Places of the first table.
const FIRST: usize = 1 << 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Live,
    /// Freed, and not yet given back.
    Resting,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) address: usize,
    pub(super) layout: Layout,
    pub(super) state: State,
}

impl Entry {
    pub(super) fn new(address: usize, layout: Layout) -> Self {
        Self { address, layout, state: State::Live }
    }
}

/// No block is at these addresses: never used, and removed.
const NEVER: usize = 0;
const REMOVED: usize = 1;

#[derive(Debug)]
struct Place {
    address: Cell<usize>,
    bytes: Cell<usize>,
    align: Cell<usize>,
    resting: Cell<bool>,
}

// SAFETY: numbers, and a flag that is down.
#[expect(unsafe_code, reason = "a promise about zero bytes")]
unsafe impl Zeroed for Place {}

impl Place {
    fn entry(&self) -> Option<Entry> {
        let layout = Layout::from_size_align(self.bytes.get(), self.align.get()).ok()?;
        let state = if self.resting.get() { State::Resting } else { State::Live };
        Some(Entry { address: self.address.get(), layout, state })
    }

    fn set(&self, entry: Entry) {
        self.address.set(entry.address);
        self.bytes.set(entry.layout.size());
        self.align.set(entry.layout.align());
        self.resting.set(entry.state == State::Resting);
    }
}

#[derive(Debug)]
pub(super) struct Book {
    places: &'static [Place],
    /// Places that are not as they were at first.
    used: usize,
}

// SAFETY: nobody else has the places.
#[expect(unsafe_code, reason = "places are cells")]
unsafe impl Send for Book {}

impl Book {
    pub(super) const fn new() -> Self {
        Self { places: &[], used: 0 }
    }

    /// The places where an address may be, in order. Fibonacci hashing: the golden ratio spreads
    /// addresses that differ in a few bits.
    fn places(&self, address: usize) -> impl Iterator<Item = &'static Place> + use<> {
        let places = self.places;
        let start = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        (0..places.len()).filter_map(move |step| places.get((start + step) % places.len()))
    }

    fn find(&self, address: usize) -> Option<&'static Place> {
        let until = |place: &&Place| place.address.get() != NEVER;
        self.places(address).take_while(until).find(|place| place.address.get() == address)
    }

    /// Adds a block that is new. False if the system has no memory for it.
    pub(super) fn insert(&mut self, entry: Entry) -> bool {
        if 4 * self.used >= 3 * self.places.len() && !self.grow() {
            return false;
        }
        let free = self.places(entry.address).find(|place| place.address.get() <= REMOVED);
        let Some(free) = free else { return false };
        self.used += usize::from(free.address.get() == NEVER);
        free.set(entry);
        true
    }

    fn grow(&mut self) -> bool {
        let size = (2 * self.places.len()).max(FIRST);
        let Some(larger) = virtual_memory::zeroed(size) else { return false };
        let old = std::mem::replace(&mut self.places, larger);
        self.used = 0;
        let kept = old.iter().filter(|place| place.address.get() > REMOVED);
        kept.filter_map(Place::entry).all(|entry| self.insert(entry))
    }

    /// What is known of an address; a live block of this layout rests from now on.
    pub(super) fn mark_resting(&self, address: usize, layout: Layout) -> Option<Entry> {
        let place = self.find(address)?;
        let entry = place.entry()?;
        place.resting.set(entry.state == State::Resting || entry.layout == layout);
        Some(entry)
    }

    /// Takes a block out.
    pub(super) fn remove(&self, address: usize) -> Option<Entry> {
        let place = self.find(address)?;
        let entry = place.entry();
        place.address.set(REMOVED);
        entry
    }
}
