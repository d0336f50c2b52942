//! Zeroes in blocks that held something else before.
//!
//! A short block is written. A long one may have been used little, and writing it would give memory to
//! pages that nobody touched: then its memory goes back, and it costs what fresh pages cost. But fresh
//! pages cost a block of which all is written three times what to write it once more costs. A few of its
//! pages tell what it is: pages without memory read as zeroes.
//!
//! What the pages tell decides about the cost alone. Both ways leave zeroes.
#![expect(unsafe_code, reason = "blocks are addresses in a range that the system reserved")]

use super::{PAGE, Pages};
use std::slice;

/// Bytes from which on the memory of a block may go back. To write 1 MiB that is in the processor's
/// cache takes 20 us, and 4 MiB take 200.
const FROM: usize = 4 << 20;
/// Bytes for which it is decided at once.
const STRETCH: usize = 2 << 20;
/// Pages of a stretch that are looked at. To read a page without memory takes about as long as to write
/// two pages with memory.
const LOOKS: usize = 2;

impl Pages {
    /// Makes the first bytes of a block read as zeroes, whether it is on these pages or not.
    ///
    /// # Safety
    ///
    /// The block holds that many bytes, the caller owns it, and its contents are not needed.
    #[inline]
    pub(crate) unsafe fn zero(&self, block: *mut u8, bytes: usize) {
        if bytes < FROM || self.mapping.is_quiet() || !self.has(block) {
            // SAFETY: as the caller says.
            unsafe { block.write_bytes(0, bytes) };
        } else {
            // SAFETY: as the caller says, and the block is on these pages.
            unsafe { self.zero_used(block, bytes) };
        }
    }

    /// Writes those stretches of a block that are likely to have been used, and takes the memory of the
    /// others.
    ///
    /// # Safety
    ///
    /// As for [`Pages::zero`]; the block is on these pages.
    #[cold]
    unsafe fn zero_used(&self, block: *mut u8, bytes: usize) {
        // The stretches before `at` and from `unused` on, whose memory can go back with one call.
        let (mut unused, mut at) = (0, 0);
        while at < bytes {
            let length = STRETCH.min(bytes - at);
            let start = block.wrapping_add(at);
            // SAFETY: a block on pages is whole pages, so these are pages of it.
            let is_used = unsafe { is_used(start, length.div_ceil(PAGE)) };
            if is_used {
                // SAFETY: as the caller says.
                unsafe { self.empty_or_write(block.wrapping_add(unused), at - unused) };
                // SAFETY: as the caller says; the stretch is in the block.
                unsafe { start.write_bytes(0, length) };
                unused = at + length;
            }
            at += length;
        }
        // SAFETY: as the caller says.
        unsafe { self.empty_or_write(block.wrapping_add(unused), bytes - unused) };
    }

    /// Makes bytes from the beginning of a page on read as zeroes: takes their memory, or writes them
    /// where the system refuses that.
    ///
    /// # Safety
    ///
    /// As for [`Pages::zero`]; the bytes are on these pages, and so is the rest of their last page.
    unsafe fn empty_or_write(&self, start: *mut u8, bytes: usize) {
        // SAFETY: as the caller says; these are open pages.
        if bytes > 0 && !unsafe { self.mapping.empty(start, bytes.next_multiple_of(PAGE)) } {
            // SAFETY: as the caller says.
            unsafe { start.write_bytes(0, bytes) };
        }
    }
}

/// Returns whether these pages are likely to have been written: whether all that are looked at hold a
/// byte that is not zero.
///
/// # Safety
///
/// The caller owns the pages, which begin at a multiple of the page size.
#[expect(clippy::cast_ptr_alignment, reason = "pages are aligned to more")]
unsafe fn is_used(start: *const u8, pages: usize) -> bool {
    (0..LOOKS).all(|look| {
        // Not at equal distances: a program may use each page at a round one, and no other.
        let number = (start.addr() / PAGE + look).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let page = start.wrapping_add((number >> 32) % pages * PAGE).cast::<u64>();
        // SAFETY: the page is the caller's, and nothing writes to it meanwhile. It is as aligned as a
        // `u64`. A block of the program may hold bytes that it has not written, but the system has: its
        // pages came from `mmap`.
        let words = unsafe { slice::from_raw_parts(page, PAGE / size_of::<u64>()) };
        // Parts without a branch inside, for instructions that look at several words.
        words.chunks(64).any(|part| part.iter().fold(0, |all, word| all | word) != 0)
    })
}

#[cfg(all(test, not(any(miri, shuttle))))]
#[expect(clippy::panic, reason = "tests")]
mod tests;
