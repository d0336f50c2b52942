//! Memory that moves from one place to another without being copied.
#![expect(unsafe_code, reason = "the system is called through C")]

use super::Mapping;
use crate::pages::PAGE;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{kernel, system};
use std::ptr;

/// What is written to a destination before memory moves there: a place that another thread has mapped
/// since has zeroes, or the bytes of a file.
const MARK: u32 = 0x9e37_79b9;

/// What became of memory that was to move, and of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pages) enum Moved {
    /// It moved.
    Yes,
    /// Nothing has changed.
    No,
    /// It is where it was. The destination must be opened before it is used.
    Closed,
    /// It is where it was. The destination may be another's: no code may use it.
    Lost,
}

impl Mapping {
    /// Returns whether memory may be moved.
    pub(in crate::pages) fn moves(&self) -> bool {
        !self.is_quiet() && !self.is_holed.load(Relaxed)
    }

    /// Moves the memory behind open addresses, which are one mapping, to other open addresses. What it
    /// leaves is open and reads as zeroes. The thread's `errno` may change.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`], for both places, but for the contents of `from`. They do not
    /// overlap.
    #[expect(clippy::cast_ptr_alignment, reason = "pages")]
    pub(in crate::pages) unsafe fn transfer(
        &self,
        from: *mut u8,
        to: *mut u8,
        bytes: usize,
    ) -> Moved {
        // Beside `MREMAP_DONTUNMAP`, no other thread gets a mapping at what is left.
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let word = to.cast::<u32>();
        // SAFETY: as the caller says: these pages are open, and no other thread uses them.
        let before = unsafe { word.replace(MARK) };
        // SAFETY: as the caller says; no existing mapping but these two changes.
        if unsafe { kernel::remap(from, bytes, bytes, how, to) }.is_ok() {
            return Moved::Yes;
        }
        // Before Linux 5.7 it knows no such move. It refuses one for want of room in its tables before
        // it changes anything, and for a limit on addresses or memory when the destination is unmapped;
        // another thread may have got that since.
        if system::holds(word, MARK) {
            // SAFETY: the destination is as it was.
            unsafe { word.write(before) };
            return Moved::No;
        }
        // SAFETY: as the caller says.
        if unsafe { self.reserve_again(to, bytes) } {
            return Moved::Closed;
        }
        self.is_holed.store(true, Relaxed);
        Moved::Lost
    }

    /// Returns how many of these bytes are in the mapping of the first one; 0 if the system does not
    /// tell.
    ///
    /// A move of several mappings is refused before Linux 6.17, when the destination is gone already. To
    /// grow in place is refused with another error for one mapping than for several, and never succeeds
    /// here.
    ///
    /// # Safety
    ///
    /// The addresses are open, and other pages of the reservation follow them.
    pub(in crate::pages) unsafe fn piece(from: *mut u8, bytes: usize) -> usize {
        let is_one = |length: usize| {
            // SAFETY: there is no room behind these addresses, so nothing changes.
            let grown = unsafe { kernel::remap(from, length, length + PAGE, 0, ptr::null_mut()) };
            grown == Err(libc::ENOMEM)
        };
        if is_one(bytes) {
            return bytes;
        }
        // `short` is one mapping, and `long` is not.
        let (mut short, mut long) = (0, bytes / PAGE);
        while long - short > 1 {
            let middle = usize::midpoint(short, long);
            if is_one(middle * PAGE) { short = middle } else { long = middle }
        }
        short * PAGE
    }
}
