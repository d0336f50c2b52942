//! Blocks of one class in batches, as a depot passes them to and from fronts.
//!
//! Pointers are kept here and not in the blocks: a write to a freed block cannot lead the allocator
//! astray, and a cold block is not touched for being cached.

use super::sync::{TryLock, const_unless_loom};
use crate::virtual_memory;
use std::cell::Cell;
use std::ptr;

/// Blocks in a magazine at most; with that it is 256 bytes.
pub(crate) const MAGAZINE: usize = 28;
/// Magazines that are mapped at once; pages of them cost memory when they are first used.
const AT_ONCE: usize = 64;

/// A link to a magazine. They are never unmapped, so it lives as long as the process.
pub(crate) type Link = Option<&'static Magazine>;

/// Some blocks of one class, with the neighbours in a stack.
#[derive(Debug)]
pub(crate) struct Magazine {
    pub(crate) below: Cell<Link>,
    pub(crate) above: Cell<Link>,
    /// When it came, in the depot's own time.
    pub(crate) stamp: Cell<u64>,
    pub(crate) len: Cell<usize>,
    blocks: [Cell<*mut u8>; MAGAZINE],
}

/// A batch on its way between a stack and a front, or to the inner allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) blocks: [*mut u8; MAGAZINE],
    pub(crate) len: usize,
}

impl Batch {
    pub(crate) const EMPTY: Self = Self { blocks: [ptr::null_mut(); MAGAZINE], len: 0 };

    pub(crate) fn of(block: *mut u8) -> Self {
        let mut batch = Self::EMPTY;
        batch.add(block);
        batch
    }

    /// Adds a block; there is room, as its maker has seen to.
    pub(crate) fn add(&mut self, block: *mut u8) {
        if let Some(place) = self.blocks.get_mut(self.len) {
            *place = block;
            self.len += 1;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<*mut u8> {
        self.len = self.len.checked_sub(1)?;
        self.blocks.get(self.len).copied()
    }

    pub(crate) fn as_slice(&self) -> &[*mut u8] {
        self.blocks.get(..self.len).unwrap_or_default()
    }
}

impl Magazine {
    /// Adds as much of the batch as there is room for.
    pub(crate) fn add(&self, batch: &mut Batch) {
        while let Some(place) = self.blocks.get(self.len.get())
            && let Some(block) = batch.pop()
        {
            place.set(block);
            self.len.set(self.len.get() + 1);
        }
    }

    /// Takes the newest `most` blocks.
    pub(crate) fn take(&self, most: usize) -> Batch {
        let mut batch = Batch::EMPTY;
        let keep = self.len.get().saturating_sub(most);
        for block in self.blocks.iter().take(self.len.get()).skip(keep) {
            batch.add(block.get());
        }
        self.len.set(keep);
        batch
    }
}

/// Magazines that nobody uses, of all stacks: what a stack gives up another takes, so that there
/// are only as many as all of them need at once.
#[derive(Debug)]
pub(crate) struct Vacant(TryLock<Spare>);

/// A list through `below`.
#[derive(Debug)]
struct Spare(Link);

impl Vacant {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self(TryLock::new(Spare(None)))
        }
    }

    /// A magazine; none if the system has no memory, or if others are in here for too long.
    pub(crate) fn take(&self) -> Link {
        self.0.enter(|spare| {
            let magazine = spare.0.or_else(more)?;
            spare.0 = magazine.below.get();
            Some(magazine)
        })?
    }

    /// Takes back an empty magazine. False if others are in here for too long.
    pub(crate) fn put(&self, magazine: &'static Magazine) -> bool {
        let put = self.0.enter(|spare| {
            magazine.below.set(spare.0);
            spare.0 = Some(magazine);
        });
        put.is_some()
    }
}

/// Magazines fresh from the system, linked.
#[cold]
fn more() -> Link {
    let fresh: &'static [Magazine] = virtual_memory::zeroed(AT_ONCE)?;
    for pair in fresh.windows(2) {
        if let [above, below] = pair {
            above.below.set(Some(below));
        }
    }
    fresh.first()
}

// SAFETY: the list leads to magazines that nobody else reaches, and their cells are empty.
#[expect(unsafe_code, reason = "links are shared references to cells")]
unsafe impl Send for Spare {}

// SAFETY: no links, no blocks, a length of 0, and no more than 256 bytes of alignment.
#[expect(unsafe_code, reason = "a promise about zero bytes")]
unsafe impl virtual_memory::Zeroed for Magazine {}
