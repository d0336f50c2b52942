//! Blocks of one class in batches, as a depot passes them to and from fronts.
//!
//! Pointers are kept here and not in the blocks: a write to a freed block cannot lead the allocator
//! astray, and a cold block is not touched for being cached.

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
    /// Magazines fresh from the system, linked through `below`; none if it has no memory.
    #[cold]
    pub(crate) fn more() -> Link {
        let fresh: &'static [Self] = virtual_memory::zeroed(AT_ONCE)?;
        for pair in fresh.windows(2) {
            if let [below, above] = pair {
                above.below.set(Some(below));
            }
        }
        fresh.last()
    }

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

// SAFETY: no links, no blocks, a length of 0, and no more than 256 bytes of alignment.
#[expect(unsafe_code, reason = "a promise about zero bytes")]
unsafe impl virtual_memory::Zeroed for Magazine {}
