//! The reserved range of addresses, of which a growing part is usable, from its start on.
#![expect(unsafe_code, reason = "the system is called through C")]

use super::runs::Page;
use super::{PAGE, STEP};
use crate::system;
use std::ptr;

/// Bytes to reserve: the first of these sizes that the system has addresses for.
const SIZES: [usize; 5] = [1 << 40, 1 << 36, 1 << 33, 1 << 30, 1 << 28];
/// Divisor of `RLIMIT_AS`: at most a quarter of that limit is reserved for blocks, because the rest
/// of the program needs addresses too.
const PART_OF_LIMIT: u64 = 4;
/// Alignment of the range's start in bytes.
const ALIGN: usize = 2 << 20;

/// A reserved range of addresses, and another for the map of its pages.
///
/// Both stay reserved until the process ends.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) base: *mut u8,
    pub(super) bytes: usize,
    pub(super) map: *mut Page,
    /// Number of usable pages, in the range and in the map.
    usable: usize,
}

// SAFETY: the pointers are addresses of mappings that belong to no thread and are never unmapped.
// The end moves in `grow` only, which needs `&mut self`.
unsafe impl Send for Space {}

impl Space {
    /// Reserves the addresses. Returns `None` if the system has too few, for instance under
    /// `RLIMIT_AS`. The range has at most `most` bytes. With `huge` it may use huge pages.
    pub(super) fn reserve(most: usize, huge: bool) -> Option<Self> {
        if cfg!(miri) {
            return None; // Miri cannot map addresses without access
        }
        let part = system::address_limit_bytes().map(|limit| limit / PART_OF_LIMIT);
        let may =
            |bytes: &&usize| **bytes <= most && part.is_none_or(|part| **bytes as u64 <= part);
        SIZES.iter().filter(may).find_map(|bytes| {
            let base = reserve(bytes + ALIGN)?;
            let map_bytes = bytes / PAGE * size_of::<Page>();
            let Some(map) = reserve(map_bytes) else {
                // SAFETY: `reserve` just mapped these bytes, and no other code has their address.
                unsafe { libc::munmap(base.cast(), bytes + ALIGN) };
                return None;
            };
            let base = base.map_addr(|address| address.next_multiple_of(ALIGN));
            // With huge pages, a clean run may have memory behind it: 657 MiB instead of 163 MiB
            // with candle. A system that does not know the advice has no huge pages, so its error
            // is ignored.
            let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            // SAFETY: `reserve` mapped `bytes + ALIGN` bytes, so `bytes` bytes from the aligned
            // base are inside the mapping. This advice changes no contents.
            let _ = unsafe { libc::madvise(base.cast(), *bytes, advice) };
            Some(Self { base, bytes: *bytes, map: map.cast(), usable: 0 })
        })
    }

    /// Makes at least `pages` more pages usable. Returns the map of all usable pages, or `None` if
    /// there are no addresses or no memory.
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
        // SAFETY: `allow` made `usable` entries of the map readable and writable, and they are
        // never unmapped. Their bytes are zero or were written as entries, and zero bytes are a
        // valid `Page`. All fields are atomic, so shared references may be written through. The map
        // is aligned to a page.
        Some(unsafe { std::slice::from_raw_parts(self.map, usable) })
    }
}

/// Reserves addresses that no code may touch yet.
///
/// They do not count as memory, even under strict overcommit. The part that [`allow`] makes usable
/// counts, so the system can refuse it there. Core dumps leave them out: gdb's `gcore` would write
/// them all, 1 TiB.
fn reserve(bytes: usize) -> Option<*mut u8> {
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the address is null and `MAP_FIXED` is not set, so the system chooses unused
    // addresses and no existing mapping changes.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, how, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    // A refusal makes core dumps larger, and is ignored.
    // SAFETY: `mmap` just mapped these bytes. This advice changes no contents.
    let _ = unsafe { libc::madvise(base, bytes, libc::MADV_DONTDUMP) };
    Some(base.cast())
}

/// Makes a part of the addresses from `base` readable and writable, and puts it into core dumps.
fn allow(base: *mut u8, part: std::ops::Range<usize>) -> Option<()> {
    if part.is_empty() {
        return Some(());
    }
    let start = base.wrapping_add(part.start).cast();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the callers pass parts of a range from `reserve` that no code uses yet, so no
    // reference is affected.
    let done = unsafe { libc::mprotect(start, part.len(), access) };
    if done != 0 {
        return None;
    }
    // SAFETY: as above; this advice changes no contents. The system refuses it only where it has
    // refused that of `reserve`, and then the part was never left out.
    let _ = unsafe { libc::madvise(start, part.len(), libc::MADV_DODUMP) };
    Some(())
}

/// Returns the memory behind addresses to the system.
///
/// The result is true if they then read as zeroes; false if the system refuses, as it does for
/// locked memory. The thread's `errno` is unchanged, because a program does not expect a free to
/// change it.
///
/// # Safety
///
/// The addresses must be whole usable pages of a [`Space`], and no thread may use their contents.
pub(super) unsafe fn forget(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller guarantees that these are pages of a `Space`, whose contents no thread
    // uses.
    let give = || unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 };
    system::keeping_errno(give)
}
