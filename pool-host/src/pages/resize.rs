//! Blocks that grow and shrink: in place, or else by moving to a longer run.
//!
//! A block that moves gets room for more growth, an eighth of what was asked for, so that many
//! small steps copy little. The memory of a long one moves with it: it is not copied, and pages
//! that were never touched stay so. A block of middle length is copied where its new place has memory,
//! and then has memory everywhere.
#![expect(unsafe_code, reason = "blocks are addresses in a range that the system reserved")]

use super::deferred::Deferral;
use super::mapping::{Mapping, Moved};
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
/// Bytes of a mapping from which on it moves in any case. A shorter one moves if it is half of its block.
/// Each that moves is one mapping more in the process, which has 65 530; a copied one is none.
const LONG: usize = 4 << 20;
/// Mappings of a block that may move. What is behind them is copied.
const LOOKS: u32 = 8;
/// Pages of zeroes that are not copied to pages with memory: these lose it.
const EMPTIED: usize = 16;

/// How what a block held came to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    Copied,
    /// Some of its memory has moved.
    Moved,
}

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
        let unmaps = wanted < pages && self.is_unmapping.load(Relaxed);
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
            if unmaps {
                return (true, 0);
            }
            self.release(inside, first + wanted, Deferral::Freed);
            (true, self.turn(inside, now, less))
        });
        let Some((done, budget)) = entered else { return wanted <= pages };
        if unmaps {
            // It is no part of the block any more, and this thread owns it.
            self.give_emptied(first + wanted, pages - wanted);
        }
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
        self.heed_address_limit();
        let mut to = self.take_to_grow(bytes, align)?;
        // SAFETY: the caller guarantees that it owns the block, and that both hold `kept` bytes.
        let mut contents = unsafe { self.transfer(block, kept, to) };
        if contents.is_none() {
            to = self.take_to_grow(bytes, align)?;
            // SAFETY: as above. They do not overlap, since both are in use.
            unsafe { self.copy(block, to, kept, kept >= MOVES_FROM) };
            contents = Some(Brought::Copied);
        }
        if contents == Some(Brought::Moved) {
            let (first, pages) = self.run_of(block);
            self.give_emptied(first, pages);
        } else {
            // SAFETY: the caller owns the block and uses only the result.
            unsafe { self.give(block) };
        }
        Some(to.block)
    }

    /// Brings the contents of a block to another one that holds as much: the memory of long pieces moves,
    /// and the rest is copied. `None` if the other block cannot be used any more, and then no code may;
    /// the block has its contents.
    ///
    /// # Safety
    ///
    /// The caller owns both blocks, and both hold `kept` bytes.
    unsafe fn transfer(&self, block: *mut u8, kept: usize, to: Taken) -> Option<Brought> {
        let ((_, pages), (to_first, to_pages)) = (self.run_of(block), self.run_of(to.block));
        let length = pages as usize * PAGE;
        let moves_from = if to.zeroed { MOVES_FROM } else { MOVES_ANYWHERE_FROM };
        let moves = length >= moves_from && pages <= to_pages && self.mapping.moves();
        let mut looks = if moves { LOOKS } else { 0 };
        let (mut at, mut contents) = (0, Brought::Copied);
        while at < kept {
            let (from, into) = (block.wrapping_add(at), to.block.wrapping_add(at));
            let rest = length - at;
            let piece = match looks {
                0 => 0,
                // SAFETY: the caller owns the block. The range ends with reserved addresses.
                _ => unsafe { Mapping::piece(from, rest) },
            };
            looks = looks.saturating_sub(1);
            let how = if piece > 0 && piece >= LONG.min(length / 2) {
                // SAFETY: the caller owns both blocks, and uses of both only what this function leaves
                // it. Both hold so many bytes behind `at`, and they do not overlap.
                unsafe { self.mapping.transfer(from, into, piece) }
            } else {
                Moved::No
            };
            // SAFETY: what has not moved is not needed in the destination.
            let open = || unsafe { self.mapping.open(into, piece) };
            let zeroed = match how {
                Moved::Yes | Moved::No => to.zeroed,
                Moved::Closed if open() || (self.trim(usize::MAX) > 0 && open()) => true,
                Moved::Closed | Moved::Lost => {
                    // SAFETY: the destination has what was before `at`. The block has it too, or else
                    // zeroes where memory has moved.
                    unsafe { self.copy(to.block, Taken { block, zeroed: true }, at, true) };
                    // SAFETY: the caller owns these pages, and needs their contents no more.
                    unsafe { self.mapping.empty(to.block, at) };
                    // So it stays used for good.
                    self.release_later(to_first, Deferral::EmptiedClosed);
                    return None;
                }
            };
            let end = if piece > 0 { at + piece } else { length };
            if how == Moved::Yes {
                contents = Brought::Moved;
            } else {
                let to = Taken { block: into, zeroed };
                // SAFETY: the caller guarantees that both blocks hold `kept` bytes. They do not
                // overlap, since both are in use.
                unsafe { self.copy(from, to, end.min(kept) - at, length >= MOVES_FROM) };
            }
            at = end;
        }
        Some(contents)
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

    /// Copies the first bytes of a block. A page of zeroes is not written to a block of zeroes, so that
    /// it gets no memory there, and many of them, of a long block, take the memory from another one.
    ///
    /// # Safety
    ///
    /// Both blocks hold `bytes` bytes, the caller owns them, and they do not overlap.
    unsafe fn copy(&self, from: *const u8, to: Taken, bytes: usize, is_long: bool) {
        if !to.zeroed && !is_long {
            // SAFETY: as the caller says.
            return unsafe { to.block.copy_from_nonoverlapping(from, bytes) };
        }
        if is_long {
            // SAFETY: as the caller says: pages of the block, whose last one is whole.
            unsafe { self.mapping.prepare_reads(from, bytes.next_multiple_of(PAGE)) };
        }
        let is_zero_at = |at: usize| {
            let (from, length) = (from.wrapping_add(at), PAGE.min(bytes - at));
            // SAFETY: these bytes are in the block, which the caller owns and nothing writes meanwhile.
            // A block of the program may hold bytes that it has not written, but the system has: its
            // pages came from `mmap`.
            is_zero(unsafe { slice::from_raw_parts(from, length) })
        };
        let mut at = 0;
        while at < bytes {
            let zero = is_zero_at(at);
            let same = (at..bytes).step_by(PAGE).take_while(|at| is_zero_at(*at) == zero).count();
            let length = (same * PAGE).min(bytes - at);
            let (from, into) = (from.wrapping_add(at), to.block.wrapping_add(at));
            at += length;
            if zero && (to.zeroed || same >= EMPTIED) {
                let pages = length / PAGE * PAGE;
                // SAFETY: as the caller says: whole pages of the block.
                if to.zeroed || (length == pages && unsafe { self.mapping.empty(into, pages) }) {
                    continue;
                }
            }
            // SAFETY: as the caller says.
            unsafe { ptr::copy_nonoverlapping(from, into, length) };
        }
    }
}

/// Returns whether all of these bytes are zero.
fn is_zero(bytes: &[u8]) -> bool {
    // The bytes of a line of the processor's cache are compared at once.
    let (lines, rest) = bytes.as_chunks::<64>();
    let any = |bytes: &[u8]| bytes.iter().fold(0, |any, byte| any | byte);
    lines.iter().all(|line| any(line) == 0) && any(rest) == 0
}
