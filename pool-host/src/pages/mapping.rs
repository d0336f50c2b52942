//! The calls to the system that change what lies behind addresses.
//!
//! Each is one `mmap` at a fixed address, because that also ends what the program did to the pages:
//! protection, locks, policies, advice. A program that limits its own calls to the system permits
//! `mmap` if it allocates at all; the advice that follows is left out once the program has said
//! that it does so ([`Mapping::be_quiet`]).
#![expect(unsafe_code, reason = "the system is called through C")]

use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::system;
use libc::{c_int, c_void};
use std::ptr;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// How addresses are mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Whether blocks may use huge pages.
    huge: AtomicBool,
    /// Whether the system is called by `mmap` only.
    is_quiet: AtomicBool,
}

impl Mapping {
    /// Without huge pages, and with advice.
    pub(super) const fn new() -> Self {
        Self { huge: AtomicBool::new(false), is_quiet: AtomicBool::new(false) }
    }

    /// Permits huge pages in what is opened from now on.
    pub(super) fn use_huge_pages(&self) {
        self.huge.store(true, Relaxed);
    }

    /// Calls the system by `mmap` only from now on.
    pub(super) fn be_quiet(&self) {
        self.is_quiet.store(true, Relaxed);
    }

    /// Returns whether the system is called by `mmap` only.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Relaxed)
    }

    /// Reserves addresses that no code may touch yet.
    ///
    /// They do not count as memory, even under strict overcommit and `RLIMIT_DATA`. Core dumps
    /// leave them out: gdb's `gcore` would write them all, 1 TiB.
    pub(super) fn reserve(&self, bytes: usize) -> Option<*mut u8> {
        // SAFETY: the address is null and `MAP_FIXED` is not set, so the system chooses unused
        // addresses and no existing mapping changes.
        let base = unsafe { map(ptr::null_mut(), bytes, libc::PROT_NONE, 0) };
        if let Some(base) = base {
            // SAFETY: `map` just mapped these bytes, and the advice changes no contents.
            unsafe { self.advise(base, bytes, libc::MADV_DONTDUMP) };
        }
        base
    }

    /// Maps fresh memory, which reads as zeroes, at addresses. Returns false, with nothing changed,
    /// if there is too little memory, or too many mappings.
    ///
    /// Without `huge`, the memory has no huge pages: with them a clean run may have memory behind
    /// it, which took 657 MiB instead of 163 MiB with candle.
    ///
    /// # Safety
    ///
    /// The addresses are whole pages of a reservation, and no thread uses their contents.
    pub(super) unsafe fn open(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: as the caller says.
        let is_open = unsafe { map(start, bytes, READ_WRITE, libc::MAP_FIXED) }.is_some();
        if is_open {
            let huge = self.huge.load(Relaxed);
            let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            // SAFETY: these bytes are mapped, and the advice changes no contents.
            unsafe { self.advise(start, bytes, advice) };
        }
        is_open
    }

    /// Takes memory away from addresses, which stay reserved. A refusal by the system changes
    /// nothing.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`], which must come before the next use of the addresses.
    pub(super) unsafe fn close(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: as the caller says.
        let closed = unsafe { map(start, bytes, libc::PROT_NONE, libc::MAP_FIXED) }.is_some();
        if closed {
            // SAFETY: these bytes are mapped, and the advice changes no contents.
            unsafe { self.advise(start, bytes, libc::MADV_DONTDUMP) };
        }
        closed
    }

    /// Returns the memory behind open addresses to the system. The addresses stay open and then
    /// read as zeroes; false if the system refuses. The thread's `errno` is unchanged, because a
    /// program does not expect a free to change it.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    pub(super) unsafe fn forget(&self, start: *mut u8, bytes: usize) -> bool {
        system::keeping_errno(|| {
            // SAFETY: as the caller says.
            if unsafe { self.open(start, bytes) } {
                return true;
            }
            // The system has too many mappings, of which this makes no more.
            // SAFETY: as the caller says.
            unsafe { self.advise(start, bytes, libc::MADV_DONTNEED) }
        })
    }

    /// Permits the system to take the memory behind open addresses when it is short, until a thread
    /// writes there again. Until then they read as what was written last, or as zeroes.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    pub(super) unsafe fn lend(&self, start: *mut u8, bytes: usize) {
        // SAFETY: as the caller says. A refusal changes nothing.
        system::keeping_errno(|| unsafe { self.advise(start, bytes, libc::MADV_FREE) });
    }

    /// Moves the memory behind open addresses to other open addresses. Those that it leaves are
    /// open and read as zeroes. Returns false, with nothing changed, if the system cannot: before
    /// Linux 5.7, and where the program has changed a part of the pages.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`], for both places, but for the contents of `from`. They do not
    /// overlap.
    pub(super) unsafe fn transfer(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
        // Beside `MREMAP_DONTUNMAP`, no other thread gets a mapping at the addresses that are left.
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: as the caller says; no existing mapping but these two changes.
        let moved = unsafe { libc::mremap(from.cast(), bytes, bytes, how, to.cast::<c_void>()) };
        moved != libc::MAP_FAILED
    }

    /// Gives advice, unless the system is called by `mmap` only. Returns whether it was taken.
    ///
    /// # Safety
    ///
    /// The addresses are mapped, and no thread needs the contents that this advice may change.
    unsafe fn advise(&self, start: *mut u8, bytes: usize, advice: c_int) -> bool {
        // SAFETY: as the caller says. Systems that do not know an advice refuse it.
        !self.is_quiet() && unsafe { libc::madvise(start.cast(), bytes, advice) == 0 }
    }
}

/// Maps memory that no file has.
///
/// # Safety
///
/// With `MAP_FIXED` in `how`, no code needs what is mapped there.
unsafe fn map(start: *mut u8, bytes: usize, access: c_int, how: c_int) -> Option<*mut u8> {
    let how = how | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: as the caller says.
    let base = unsafe { libc::mmap(start.cast(), bytes, access, how, -1, 0) };
    (base != libc::MAP_FAILED).then_some(base.cast())
}
