//! Magazines and batches: blocks of one size class that move between depot and thread caches.
//!
//! Pointers to cached blocks are in magazines and not in the blocks: a write to a freed block
//! cannot corrupt a free list, and caching a block does not load it into the processor's caches.

use super::sync::{TryLock, const_unless_loom};
use crate::virtual_memory;
use std::cell::Cell;
use std::ptr;

/// Capacity of a magazine in blocks. A magazine is then 256 bytes.
pub(crate) const MAGAZINE: usize = 28;
/// Magazines that one mapping holds (16 KiB). Linking them writes to all of its pages.
const AT_ONCE: usize = 64;

/// A link to a magazine. Magazines are never unmapped, so the reference is `'static`.
pub(crate) type Link = Option<&'static Magazine>;

/// Up to [`MAGAZINE`] blocks of one class, linked to its neighbours in a free list.
#[derive(Debug)]
pub(crate) struct Magazine {
    /// The next older magazine in a free list; the next one in a list of empty magazines.
    pub(crate) below: Cell<Link>,
    /// The next newer magazine in a free list.
    pub(crate) above: Cell<Link>,
    /// Epoch of the first batch in it, by the depot's clock.
    pub(crate) stamp: Cell<u64>,
    /// Number of blocks in it.
    pub(crate) len: Cell<usize>,
    blocks: [Cell<*mut u8>; MAGAZINE],
}

/// Blocks of one class that move between a free list and a thread cache, or to the inner allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) blocks: [*mut u8; MAGAZINE],
    pub(crate) len: usize,
}

impl Batch {
    /// A batch without blocks.
    pub(crate) const EMPTY: Self = Self { blocks: [ptr::null_mut(); MAGAZINE], len: 0 };

    /// Returns a batch of one block.
    pub(crate) fn of(block: *mut u8) -> Self {
        let mut batch = Self::EMPTY;
        batch.add(block);
        batch
    }

    /// Adds a block. The batch must have fewer than [`MAGAZINE`] blocks; a full batch does not take
    /// the block.
    pub(crate) fn add(&mut self, block: *mut u8) {
        if let Some(place) = self.blocks.get_mut(self.len) {
            *place = block;
            self.len += 1;
        }
    }

    /// Takes the block that was added last.
    pub(crate) fn pop(&mut self) -> Option<*mut u8> {
        self.len = self.len.checked_sub(1)?;
        self.blocks.get(self.len).copied()
    }

    /// Returns the blocks in the order in which they were added.
    pub(crate) fn as_slice(&self) -> &[*mut u8] {
        self.blocks.get(..self.len).unwrap_or_default()
    }
}

impl Magazine {
    /// Moves blocks from the batch into the magazine until it is full or the batch is empty. The
    /// last block of the batch moves first.
    pub(crate) fn add(&self, batch: &mut Batch) {
        while let Some(place) = self.blocks.get(self.len.get())
            && let Some(block) = batch.pop()
        {
            place.set(block);
            self.len.set(self.len.get() + 1);
        }
    }

    /// Takes the `most` blocks that were added last, or all if there are fewer.
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

/// Empty magazines that all free lists share.
///
/// A free list takes the magazines that another gave up, so about as many magazines are mapped as
/// all lists used together at their peak.
#[derive(Debug)]
pub(crate) struct Vacant(TryLock<Spare>);

/// A list of empty magazines, linked through `below`.
#[derive(Debug)]
struct Spare(Link);

impl Vacant {
    const_unless_loom! {
        /// Creates an empty list.
        pub(crate) fn new() -> Self {
            Self(TryLock::new(Spare(None)))
        }
    }

    /// Takes an empty magazine. Returns `None` if the system has no memory, or if the lock is held
    /// for too long.
    pub(crate) fn take(&self) -> Link {
        self.0.enter(|spare| {
            let magazine = spare.0.or_else(more)?;
            spare.0 = magazine.below.get();
            Some(magazine)
        })?
    }

    /// Runs `work` while the list is locked.
    #[cfg(test)]
    pub(crate) fn while_held(&self, work: impl FnOnce()) {
        assert!(self.0.enter(|_| work()).is_some(), "the lock was had");
    }

    /// Takes back an empty magazine. Returns false, without effect, if the lock is held for too
    /// long.
    pub(crate) fn put(&self, magazine: &'static Magazine) -> bool {
        let put = self.0.enter(|spare| {
            magazine.below.set(spare.0);
            spare.0 = Some(magazine);
        });
        put.is_some()
    }
}

/// Maps [`AT_ONCE`] magazines and links them. Returns the first, or `None` without memory.
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

// SAFETY: the links lead to empty magazines that no free list links. They are reached only through
// the `TryLock` in `Vacant`, so one thread at a time uses their cells.
#[expect(unsafe_code, reason = "links are shared references to cells")]
unsafe impl Send for Spare {}

// SAFETY: zero bytes are a valid magazine: both links are `None`, the stamp and the length are 0,
// and the block pointers are null. Its alignment is that of a pointer, which is less than a page.
#[expect(unsafe_code, reason = "a promise about zero bytes")]
unsafe impl virtual_memory::Zeroed for Magazine {}
