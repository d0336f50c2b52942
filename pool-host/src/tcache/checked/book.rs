//! The book of the checked mode: a hash table of all blocks by address.
//!
//! It is stored apart from the blocks, so that a stray write of the program is unlikely to change
//! it. It uses open addressing. It doubles when three quarters of its places are used, and the old
//! table is never unmapped.

use crate::virtual_memory::{self, Zeroed};
use std::alloc::Layout;
use std::cell::Cell;

/// Number of places of the first table.
const FIRST: usize = 1 << 12;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The program holds it.
    Live,
    /// The program freed it, and its memory is not yet released.
    Resting,
}

/// The record of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) address: usize,
    pub(super) layout: Layout,
    pub(super) state: State,
}

impl Entry {
    /// Creates the entry of a live block.
    pub(super) fn new(address: usize, layout: Layout) -> Self {
        Self { address, layout, state: State::Live }
    }
}

/// Address in a place that was never used. No block has it.
const NEVER: usize = 0;
/// Address in a place whose block was removed. No block has it.
const REMOVED: usize = 1;

/// One place of the table.
#[derive(Debug)]
struct Place {
    address: Cell<usize>,
    bytes: Cell<usize>,
    align: Cell<usize>,
    resting: Cell<bool>,
}

// SAFETY: the fields are integers and a `bool`, for which zero bytes are a valid value, and the
// alignment is that of `usize`, which is less than a page.
#[expect(unsafe_code, reason = "a promise about zero bytes")]
unsafe impl Zeroed for Place {}

impl Place {
    /// Returns the entry in this place; `None` if the place was never used.
    fn entry(&self) -> Option<Entry> {
        let layout = Layout::from_size_align(self.bytes.get(), self.align.get()).ok()?;
        let state = if self.resting.get() { State::Resting } else { State::Live };
        Some(Entry { address: self.address.get(), layout, state })
    }

    /// Stores an entry in this place.
    fn set(&self, entry: Entry) {
        self.address.set(entry.address);
        self.bytes.set(entry.layout.size());
        self.align.set(entry.layout.align());
        self.resting.set(entry.state == State::Resting);
    }
}

/// The hash table of all blocks.
#[derive(Debug)]
pub(super) struct Book {
    places: &'static [Place],
    /// Number of places with a block or with [`REMOVED`].
    used: usize,
}

// SAFETY: `grow` maps the places for this book alone, and no method that other modules can call
// returns a reference to one. So the cells are reached through one `Book`, by the thread that has
// it.
#[expect(unsafe_code, reason = "places are cells")]
unsafe impl Send for Book {}

impl Book {
    /// Creates an empty book, which has no table yet.
    pub(super) const fn new() -> Self {
        Self { places: &[], used: 0 }
    }

    /// Returns the places where an address may be, in probing order.
    ///
    /// The start is by Fibonacci hashing: a product with the golden ratio spreads addresses that
    /// differ in a few bits.
    fn places(&self, address: usize) -> impl Iterator<Item = &'static Place> + use<> {
        let places = self.places;
        let start = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        (0..places.len()).filter_map(move |step| places.get((start + step) % places.len()))
    }

    /// Finds the place of an address.
    fn find(&self, address: usize) -> Option<&'static Place> {
        if address <= REMOVED {
            return None; // no block is there
        }
        let until = |place: &&Place| place.address.get() != NEVER;
        self.places(address).take_while(until).find(|place| place.address.get() == address)
    }

    /// Adds a block that is not in the book. False if the system has no memory for a larger table.
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

    /// Doubles the table. False if the system has no memory for it, and then the book is unchanged.
    fn grow(&mut self) -> bool {
        let size = (2 * self.places.len()).max(FIRST);
        let Some(larger) = virtual_memory::zeroed(size) else { return false };
        let old = std::mem::replace(&mut self.places, larger);
        self.used = 0;
        let kept = old.iter().filter(|place| place.address.get() > REMOVED);
        kept.filter_map(Place::entry).all(|entry| self.insert(entry))
    }

    /// Returns the entry of an address as it was, and marks it as resting if the layout is that of
    /// the entry.
    ///
    /// `None` if no block has this address.
    pub(super) fn mark_resting(&self, address: usize, layout: Layout) -> Option<Entry> {
        let place = self.find(address)?;
        let entry = place.entry()?;
        place.resting.set(entry.state == State::Resting || entry.layout == layout);
        Some(entry)
    }

    /// Returns the entry of an address.
    pub(super) fn get(&self, address: usize) -> Option<Entry> {
        self.find(address)?.entry()
    }

    /// Removes a block, and returns its entry.
    pub(super) fn remove(&self, address: usize) -> Option<Entry> {
        let place = self.find(address)?;
        let entry = place.entry();
        place.address.set(REMOVED);
        entry
    }
}
