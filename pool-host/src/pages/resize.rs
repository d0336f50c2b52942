//! Blocks that grow and shrink: in place, or else by moving to a longer run.
//!
//! A block that moves gets room for more growth, an eighth of what was asked for, so that many
//! small steps copy little. The memory of a long one moves with it: it is not copied, and pages
//! that were never touched stay so. A block of middle length is copied where its new place has memory,
//! and then has memory everywhere.
#![expect(unsafe_code, reason = "blocks are addresses in a range that the system reserved")]

use super::deferred::Deferral;
use super::mapping::Transfer;
use super::{LARGEST, PAGE, Pages, Taken};
use crate::sync::atomic::Ordering::Relaxed;
use crate::system;
use std::ptr;
use std::slice;

/// Divisor of a block's bytes: a block that moves gets that part as room.
const ROOM_PART: usize = 8;
/// Bytes from which on the memory of a block is moved to pages that have none. To move 1 MiB takes
/// about 10 us, and to copy it into fresh pages 200 us.
const MOVES_FROM: usize = 1 << 20;
/// Bytes from which on it is also moved to pages of which some have memory. Such pages lose theirs by
/// the move, and the next use of the old place has to get as much anew. A shorter block is copied to
/// them, which takes about 60 us for 1 MiB. By that rule Arrow's builders take a fifth less time, with
/// two fifths more resident memory.
const MOVES_ANYWHERE_FROM: usize = 4 << 20;

impl Pages {
    /// Resizes a block in place to at least `bytes` bytes. Returns false if that is not possible;
    /// the block is then unchanged. A block that would shrink by little keeps its pages, and so
    /// does one that would shrink while another thread forks.
    ///
    /// # Safety
    ///
    /// The block must come from these pages, the caller must own it, and no thread may use the
    /// bytes behind its new end.
    pub(crate) unsafe fn resize(&self, block: *mut u8, bytes: usize) -> bool {
        let (first, pages) = self.run_of(block);
        let Some(wanted) = Self::pages_of(bytes).filter(|wanted| *wanted > 0) else { return false };
        let links = self.links(first as usize);
        let asked = pages.saturating_sub(links.room());
        if wanted <= pages && wanted >= asked {
            links.set_room(pages - wanted);
            return true;
        }
        // To free a few pages is not worth taking the lock.
        if wanted < asked && asked - wanted < (asked / 8).clamp(1, 64) {
            return true;
        }
        let now = system::coarse_milliseconds();
        let rest = if wanted < pages && self.is_unmapping.load(Relaxed) {
            let (start, bytes) = (self.address(first + wanted), (pages - wanted) as usize * PAGE);
            // SAFETY: the caller owns these pages, and nothing uses the bytes behind the new end.
            // If the lock is not to be had below, the block keeps them, and they read as zeroes.
            let how = unsafe { self.mapping.forget(start, bytes) };
            Deferral::emptied(how)
        } else {
            Deferral::Freed
        };
        let entered = self.enter(|inside| {
            if wanted > pages {
                let done = inside.extend(first, pages, wanted, false, &self.mapping)
                    || (self.sweep(inside)
                        && inside.extend(first, pages, wanted, false, &self.mapping))
                    || inside.extend(first, pages, wanted, true, &self.mapping);
                self.note_end(inside);
                return (done, self.turn(inside, now, wanted - pages));
            }
            let less = pages - wanted;
            inside.runs.use_up(first, wanted);
            inside.runs.use_up(first + wanted, less);
            self.release(inside, first + wanted, rest);
            (true, self.turn(inside, now, less))
        });
        let Some((done, budget)) = entered else { return wanted <= pages };
        self.give_back(budget);
        done
    }

    /// Resizes a block to at least `bytes` bytes, in place or else by moving its first `kept` bytes
    /// to a block that is aligned to `align` and has room for more growth.
    ///
    /// Returns the resized block; `None` if that is not possible, and then the block is unchanged.
    ///
    /// # Safety
    ///
    /// The block must come from these pages, the caller must own it, and both it and the result
    /// must hold `kept` bytes. Unless the result is `None`, the caller may use only the result.
    pub(crate) unsafe fn resize_or_move(
        &self,
        block: *mut u8,
        kept: usize,
        bytes: usize,
        align: usize,
    ) -> Option<*mut u8> {
        // SAFETY: the caller guarantees that the block is its own. When it shrinks, the caller uses
        // no bytes behind the new end.
        if unsafe { self.resize(block, bytes) } {
            return Some(block);
        }
        let to = self.take_to_grow(bytes, align)?;
        let ((first, pages), (to_first, to_pages)) = (self.run_of(block), self.run_of(to.block));
        let length = pages as usize * PAGE;
        let mut transfer = Transfer { moved: 0, closed: 0 };
        let moves_from = if to.zeroed { MOVES_FROM } else { MOVES_ANYWHERE_FROM };
        if length >= moves_from && pages <= to_pages {
            // SAFETY: the caller owns both blocks, and uses the old one no more unless nothing has
            // moved. The new one has at least as many pages, and no contents that are needed. Both
            // are in use, so they do not overlap. The range ends with reserved addresses.
            transfer = unsafe { self.mapping.transfer(block, to.block, length) };
        }
        let Transfer { moved, closed } = transfer;
        let rest = to.block.wrapping_add(moved);
        // SAFETY: the new block is the caller's, and its contents from here on are not needed.
        if closed > 0 && !unsafe { self.mapping.open(rest, closed) } {
            self.trim(usize::MAX);
            // SAFETY: as above.
            if !unsafe { self.mapping.open(rest, closed) } {
                assert_eq!(moved, 0, "no memory for the rest of a block of which a part has moved");
                self.give_emptied(to_first, to_pages);
                return None;
            }
        }
        if moved < kept {
            let to = Taken { block: rest, ..to };
            // SAFETY: the caller guarantees that both blocks hold `kept` bytes. They do not
            // overlap, since both are in use.
            unsafe { copy(block.wrapping_add(moved), to, kept - moved) };
        }
        if moved > 0 {
            self.give_emptied(first, pages);
        } else {
            // SAFETY: the caller owns the block and uses only the result.
            unsafe { self.give(block) };
        }
        Some(to.block)
    }

    /// Takes a block to which the contents of a block that cannot grow in place will move, with
    /// room for more growth if there is memory for it.
    pub(crate) fn take_to_grow(&self, bytes: usize, align: usize) -> Option<Taken> {
        let (asked, align) = (Self::pages_of(bytes)?, Self::align_of(align)?);
        let roomy = Self::pages_of(LARGEST.min(bytes + bytes / ROOM_PART))?;
        let Some(taken) = self.take_run(roomy, align) else { return self.take_run(asked, align) };
        let (first, pages) = self.run_of(taken.block);
        self.links(first as usize).set_room(pages - asked);
        Some(taken)
    }
}

/// Copies the first bytes of a block. What is zero is not written to a block of zeroes, so that
/// pages without memory get none.
///
/// # Safety
///
/// Both blocks hold `bytes` bytes, the caller owns them, and they do not overlap.
unsafe fn copy(from: *const u8, to: Taken, bytes: usize) {
    if !to.zeroed {
        // SAFETY: as the caller says.
        return unsafe { to.block.copy_from_nonoverlapping(from, bytes) };
    }
    for at in (0..bytes).step_by(PAGE) {
        let (from, length) = (from.wrapping_add(at), PAGE.min(bytes - at));
        // SAFETY: these bytes are in the block, which the caller owns and nothing writes meanwhile.
        // A block of the program may hold bytes that it has not written, but the system has: its
        // pages came from `mmap`.
        let page = unsafe { slice::from_raw_parts(from, length) };
        if page.iter().any(|byte| *byte != 0) {
            // SAFETY: as the caller says.
            unsafe { ptr::copy_nonoverlapping(from, to.block.wrapping_add(at), length) };
        }
    }
}
