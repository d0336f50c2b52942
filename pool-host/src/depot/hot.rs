//! The newest large block of a class, in one word: two atomic operations take it out and put it
//! back, where a lock costs four and a magazine as much again.
//!
//! `closed` (nothing is leased for it) -> `empty` <-> a block. Only what opens or closes the place
//! has to do with leases; a block goes in and out within the lease that the place holds.

use super::sync::atomic::{
    AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release,
};
use super::sync::const_unless_loom;
use std::ptr;

#[derive(Debug)]
pub(super) struct Hot {
    place: AtomicPtr<u8>,
    /// The epoch in which the block came; in a race it may be another's.
    stamp: AtomicU64,
}

/// What became of a block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Kept,
    /// It is kept, and the one that was here before goes to the stack.
    Displaced(*mut u8),
    /// It is not kept, since nothing is leased for it, or since somebody else was here first.
    Refused,
}

const CLOSED: *mut u8 = ptr::null_mut();
/// Open and without a block. No block is at this address, since blocks are aligned.
const EMPTY: *mut u8 = ptr::without_provenance_mut(1);

#[inline]
fn is_block(place: *mut u8) -> bool {
    place != CLOSED && place != EMPTY
}

impl Hot {
    const_unless_loom! {
        pub(super) fn new() -> Self {
            Self { place: AtomicPtr::new(CLOSED), stamp: AtomicU64::new(0) }
        }
    }

    /// Returns what was there, if that was `old`: this pointer, and not an equal one of before, is
    /// the one that may be used (a block may have been freed and come back in between).
    ///
    /// Acquire and Release: what a program wrote to the block before it freed it comes before what
    /// the next owner writes.
    #[inline]
    fn swap(&self, old: *mut u8, new: *mut u8) -> Option<*mut u8> {
        self.place.compare_exchange(old, new, AcqRel, Relaxed).ok()
    }

    #[inline]
    pub(super) fn take(&self) -> Option<*mut u8> {
        let block = self.place.load(Relaxed);
        if is_block(block) { self.swap(block, EMPTY) } else { None }
    }

    /// Puts a block where none is.
    #[inline]
    pub(super) fn put(&self, block: *mut u8, stamp: u64) -> bool {
        let put = self.place.compare_exchange(EMPTY, block, Release, Relaxed).is_ok();
        if put {
            self.stamp.store(stamp, Relaxed);
        }
        put
    }

    /// Puts a block in, whether one is there or not.
    pub(super) fn put_above(&self, block: *mut u8, stamp: u64) -> Put {
        if self.put(block, stamp) {
            return Put::Kept;
        }
        let older = self.place.load(Relaxed);
        let displaced = if is_block(older) { self.swap(older, block) } else { None };
        let Some(older) = displaced else { return Put::Refused };
        self.stamp.store(stamp, Relaxed);
        Put::Displaced(older)
    }

    /// Opens the place, for which the caller has leased a block's bytes; false if it is open.
    pub(super) fn open(&self) -> bool {
        self.swap(CLOSED, EMPTY).is_some()
    }

    /// Closes the place if it holds nothing. True if it was open: its lease is the caller's.
    pub(super) fn close(&self) -> bool {
        self.place.load(Relaxed) == EMPTY && self.swap(EMPTY, CLOSED).is_some()
    }

    /// The epoch in which its block came; `None` without a block.
    pub(super) fn age(&self) -> Option<u64> {
        let block = self.place.load(Relaxed);
        is_block(block).then(|| self.stamp.load(Relaxed))
    }
}
