//! The list of one size class: its recent blocks and its spans, under a lock.
#![expect(unsafe_code, reason = "blocks that wait are linked through their bytes")]

use super::{BATCH, Batch, RECENT};
use crate::class::Class;
use crate::pages::Pages;
use crate::pages::lock::ForkLock;
use crate::pages::span::Spans;
use crate::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use std::cell::UnsafeCell;
use std::ptr;

/// The recent blocks of a class, the newest last. Whoever holds the lock of the class owns them.
///
/// They are not beside the lock: a fork reads all locks.
#[derive(Debug)]
pub(super) struct Recent(pub(super) UnsafeCell<[*mut u8; RECENT]>);

// SAFETY: the pointers are blocks that no thread owns. `Depot::enter` alone makes a reference to
// them, under the lock of their class.
unsafe impl Sync for Recent {}
// SAFETY: as above; a thread that has the whole depot owns the blocks.
unsafe impl Send for Recent {}

/// A lock of a class, what it guards beside [`Recent`], and figures that are read without it.
///
/// It is aligned to two cache lines, because processors fetch lines in pairs, and has no more.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ClassList {
    pub(super) inside: ForkLock<Contents>,
    /// Blocks that came back while another thread forked, linked through their first bytes.
    pub(super) late: AtomicPtr<u8>,
    /// Requests of threads without a thread cache, and blocks that these threads freed.
    pub(super) cacheless: [AtomicU64; 2],
    /// As of the last call under the lock: free blocks of spans, spans, recent blocks and their cap.
    pub(super) free: AtomicUsize,
    pub(super) spans: AtomicU32,
    pub(super) recent: AtomicU32,
    pub(super) cap: AtomicU32,
}

#[cfg(not(pool_counts))] // counted atomics are larger
const _: () = assert!(size_of::<ClassList>() == 128, "each fork reads all locks");

/// What the lock of a class guards beside [`Recent`].
#[derive(Debug)]
pub(super) struct Contents {
    /// The number of recent blocks, and the most that there may be.
    pub(super) len: u32,
    pub(super) cap: u32,
    /// The fewest and the most of them in this round of [`Depot::age`]. No request needed the fewest.
    pub(super) low: u32,
    pub(super) high: u32,
    pub(super) spans: Spans,
}

// SAFETY: the pointer of the spans is an address that no code reads or writes through.
unsafe impl Send for Contents {}

/// The contents of a class, under its lock.
pub(super) struct Locked<'d> {
    pub(super) class: Class,
    pub(super) inside: &'d mut Contents,
    pub(super) recent: &'d mut [*mut u8; RECENT],
    pub(super) pages: &'d Pages,
}

impl Locked<'_> {
    pub(super) fn len(&self) -> usize {
        self.inside.len as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most RECENT")]
    fn set_len(&mut self, len: usize) {
        let inside = &mut *self.inside;
        inside.len = len as u32;
        inside.low = inside.low.min(inside.len);
        inside.high = inside.high.max(inside.len);
    }

    /// Moves the oldest recent blocks to their spans.
    pub(super) fn retire(&mut self, blocks: usize) {
        let (class, pages) = (self.class, self.pages);
        self.recent[..blocks].iter().for_each(|block| self.inside.spans.put(class, *block, pages));
        let len = self.len();
        self.recent.copy_within(blocks..len, 0);
        self.set_len(len - blocks);
    }

    /// Takes in a free block.
    pub(super) fn put(&mut self, block: *mut u8) {
        let cap = self.inside.cap as usize;
        if self.len() >= cap {
            if cap == 0 {
                return self.inside.spans.put(self.class, block, self.pages);
            }
            self.retire(cap.div_ceil(2));
        }
        self.recent[self.len()] = block;
        self.set_len(self.len() + 1);
    }

    /// Takes free blocks: at least one, and at most `most` and [`BATCH`] of them. `None` if there is
    /// no memory.
    pub(super) fn take(&mut self, most: usize) -> Option<Batch> {
        let (mut batch, most) = (Batch::EMPTY, most.clamp(1, BATCH));
        if self.len() == 0 {
            let places = &mut batch.blocks[..most];
            batch.len = self.inside.spans.take(self.class, places, self.pages);
            return (batch.len > 0).then_some(batch);
        }
        let stays = self.len().saturating_sub(most);
        self.recent[stays..self.len()].iter().for_each(|block| batch.add(*block));
        self.set_len(stays);
        Some(batch)
    }

    /// Begins a round: moves some of the recent blocks that no request needed in the last one to
    /// their spans, and lets the class have no more than were needed and stay. Returns how many
    /// moved, and the bytes of room that the class loses.
    #[expect(clippy::cast_possible_truncation, reason = "at most RECENT")]
    pub(super) fn shed(&mut self, count: impl FnOnce(usize) -> usize) -> (usize, usize) {
        let moved = count(self.inside.low as usize);
        self.retire(moved);
        let inside = &mut *self.inside;
        let before = inside.cap;
        inside.cap = before.min(inside.high - moved as u32);
        (inside.low, inside.high) = (inside.len, inside.len);
        (moved, (before - inside.cap) as usize * self.class.bytes())
    }
}

impl ClassList {
    pub(super) const fn new() -> Self {
        let inside = Contents { len: 0, cap: 0, low: 0, high: 0, spans: Spans::new() };
        Self {
            inside: ForkLock::new(inside),
            late: AtomicPtr::new(ptr::null_mut()),
            cacheless: [AtomicU64::new(0), AtomicU64::new(0)],
            free: AtomicUsize::new(0),
            spans: AtomicU32::new(0),
            recent: AtomicU32::new(0),
            cap: AtomicU32::new(0),
        }
    }

    /// Publishes the figures that have changed.
    pub(super) fn publish(&self, inside: &Contents) {
        let small = [
            (&self.recent, inside.len),
            (&self.cap, inside.cap),
            (&self.spans, inside.spans.count),
        ];
        for (figure, now) in small {
            if figure.load(Relaxed) != now {
                figure.store(now, Relaxed);
            }
        }
        if self.free.load(Relaxed) != inside.spans.free {
            self.free.store(inside.spans.free, Relaxed);
        }
    }

    /// Leaves a block to the next thread that has the lock.
    #[cold]
    #[expect(clippy::cast_ptr_alignment, reason = "blocks are aligned to 16 bytes")]
    pub(super) fn put_late(&self, block: *mut u8) {
        let mut next = self.late.load(Relaxed);
        loop {
            // SAFETY: the program has freed the block, which has 16 bytes and more and is as aligned,
            // and this thread owns it.
            unsafe { block.cast::<*mut u8>().write(next) };
            match self.late.compare_exchange_weak(next, block, Release, Relaxed) {
                Ok(_) => return,
                Err(other) => next = other,
            }
        }
    }

    /// Takes in the blocks that came during a fork.
    #[cold]
    #[expect(clippy::cast_ptr_alignment, reason = "blocks are aligned to 16 bytes")]
    pub(super) fn take_late(&self, held: &mut Locked<'_>) {
        let mut block = self.late.swap(ptr::null_mut(), Acquire);
        while !block.is_null() {
            // SAFETY: `put_late` wrote that, and no thread has used the block since.
            let next = unsafe { block.cast::<*mut u8>().read() };
            held.put(block);
            block = next;
        }
    }
}
