//! Addresses that are reserved once, and can be used from the start up to an end that moves.
#![expect(unsafe_code, reason = "the system is called through C")]

use super::runs::Page;
use super::{PAGE, STEP};
use crate::system;
use std::ptr;

/// Bytes that are reserved; less where the system has less.
const SIZES: [usize; 5] = [1 << 40, 1 << 36, 1 << 33, 1 << 30, 1 << 28];
/// Under `RLIMIT_AS` no more than this part of it is reserved: the rest of the program needs
/// addresses too.
const PART_OF_LIMIT: u64 = 4;
/// The start is a multiple of this many bytes.
const ALIGN: usize = 2 << 20;

/// A range of addresses, and one for the map of its pages. Both stay until the process ends.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) base: *mut u8,
    pub(super) bytes: usize,
    pub(super) map: *mut Page,
    /// Pages that can be used.
    usable: usize,
}

// SAFETY: addresses, which any thread may use; who has the space alone moves its end.
unsafe impl Send for Space {}

impl Space {
    /// Reserves the addresses; `None` if the system has too few, as under `RLIMIT_AS`.
    pub(super) fn reserve() -> Option<Self> {
        let most = system::address_limit_bytes().map(|limit| limit / PART_OF_LIMIT);
        let may = |bytes: &&usize| most.is_none_or(|most| **bytes as u64 <= most);
        SIZES.iter().filter(may).find_map(|bytes| {
            let base = reserve(bytes + ALIGN)?;
            let map_bytes = bytes / PAGE * size_of::<Page>();
            let Some(map) = reserve(map_bytes) else {
                // SAFETY: was just mapped, and no other code knows it.
                unsafe { libc::munmap(base.cast(), bytes + ALIGN) };
                return None;
            };
            let base = base.map_addr(|address| address.next_multiple_of(ALIGN));
            // Memory behind a page of a clean run would be no zeroes for free, and 657 MiB for 163
            // on candle. Where the system does not know the advice, it does nothing of itself.
            // SAFETY: advice about addresses that were just reserved.
            let _ = unsafe { libc::madvise(base.cast(), *bytes, libc::MADV_NOHUGEPAGE) };
            Some(Self { base, bytes: *bytes, map: map.cast(), usable: 0 })
        })
    }

    /// Makes at least `pages` pages more usable. Returns the map of all usable pages; `None` if
    /// addresses or memory end.
    pub(super) fn grow(&mut self, pages: usize) -> Option<&'static [Page]> {
        let usable = self.usable.checked_add(pages.checked_next_multiple_of(STEP / PAGE)?)?;
        if usable > self.bytes / PAGE {
            return None;
        }
        let map = self.map.cast::<u8>();
        let entries = |pages: usize| (pages * size_of::<Page>()).next_multiple_of(PAGE);
        allow(map, entries(self.usable)..entries(usable))?;
        allow(self.base, self.usable * PAGE..usable * PAGE)?;
        self.usable = usable;
        // SAFETY: that many entries can be read now and stay, and zero bytes are entries, whose
        // numbers are atomic.
        Some(unsafe { std::slice::from_raw_parts(self.map, usable) })
    }
}

/// Addresses that no code may touch yet. They count as no memory, under strict overcommit too; what
/// is allowed later does, so the system can refuse what it has not.
fn reserve(bytes: usize) -> Option<*mut u8> {
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for new addresses, anywhere; nothing that exists is touched.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, how, -1, 0) };
    (base != libc::MAP_FAILED).then_some(base.cast())
}

/// Lets addresses be used.
fn allow(base: *mut u8, part: std::ops::Range<usize>) -> Option<()> {
    if part.is_empty() {
        return Some(());
    }
    let start = base.wrapping_add(part.start).cast();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: they are reserved, and no code uses them yet.
    let done = unsafe { libc::mprotect(start, part.len(), access) };
    (done == 0).then_some(())
}

/// Gives the memory behind addresses back. Returns whether they read as zeroes from then on: locked
/// memory stays. The thread's `errno` stays as it was, for a program that frees.
///
/// # Safety
///
/// They are of a space, and no other thread uses them.
pub(super) unsafe fn forget(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the address of a variable of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; a thread reads and writes it as it likes.
    let before = unsafe { errno.read() };
    // SAFETY: as the caller says.
    let done = unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 };
    // SAFETY: as above.
    unsafe { errno.write(before) };
    done
}
