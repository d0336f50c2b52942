//! The calls to the system that change what lies behind addresses.
//!
//! Memory goes back by an `mmap` at its place, because that also ends what the program did to the
//! pages: protection, locks, policies, advice. Only mappings without access are made so, of which
//! the system refuses none for want of memory: before Linux 6.12 a refusal left a hole, which the
//! next `mmap` of another thread might have got.
//!
//! A program that limits its own calls to the system permits `mmap` if it allocates at all. Once it
//! has said that it does so ([`Mapping::be_quiet`]), nothing else is called, and only with arguments
//! that the C library's functions have too: private memory without a file, without access or readable
//! and writable, at an address of ours (`MAP_FIXED`) or not.
//!
//! A call that is refused may have unmapped its destination. The addresses are reserved again, or
//! else stay unused for good: another thread may have got them.
#![expect(unsafe_code, reason = "the system is called through C")]

use super::PAGE;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::{kernel, system};
use libc::c_int;
use std::ptr;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// What became of memory that was to go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgotten {
    /// It went. The addresses are open and read as zeroes.
    Open,
    /// It went. The addresses must be opened before they are used.
    Closed,
    /// The system has refused that.
    Not,
}

/// What became of memory that was to move, and of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// It moved.
    Yes,
    /// Nothing has changed.
    No,
    /// It is where it was. The destination must be opened before it is used.
    Closed,
    /// It is where it was. The destination may be another's: no code may use it.
    Lost,
}

/// How addresses are mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Whether blocks may use huge pages.
    huge: AtomicBool,
    /// Whether the system is called by `mmap` only.
    is_quiet: AtomicBool,
    /// Whether no memory goes back.
    is_silent: AtomicBool,
    /// Whether the system has left a hole that could not be filled: no memory is moved, and after a
    /// refusal to open addresses none are opened.
    is_holed: AtomicBool,
    /// Whether what the program did to pages may stay when their memory goes back.
    keeps_advice: AtomicBool,
}

impl Mapping {
    /// Without huge pages, and with advice.
    pub(super) const fn new() -> Self {
        Self {
            huge: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            is_holed: AtomicBool::new(false),
            keeps_advice: AtomicBool::new(false),
        }
    }

    /// Permits huge pages in what is opened from now on.
    pub(super) fn use_huge_pages(&self) {
        self.huge.store(true, Relaxed);
    }

    /// Lets what the program did to pages stay when their memory goes back, which is one call of the
    /// system in place of three.
    pub(super) fn keep_advice(&self) {
        self.keeps_advice.store(true, Relaxed);
    }

    /// Calls the system by `mmap` only from now on.
    pub(super) fn be_quiet(&self) {
        self.is_quiet.store(true, Relaxed);
    }

    /// Calls the system from now on only where there is no block for a request: no memory goes back.
    pub(super) fn be_silent(&self) {
        self.is_silent.store(true, Relaxed);
        self.be_quiet();
    }

    /// Returns how many bytes of addresses the process may have; `None` if there is no limit, or the
    /// system may not be asked.
    pub(super) fn address_limit(&self) -> Option<u64> {
        if self.is_quiet() { None } else { system::address_limit_bytes() }
    }

    /// Returns whether the system is called by `mmap` only.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Relaxed)
    }

    /// Reserves addresses that no code may touch yet.
    ///
    /// They do not count as memory, even under strict overcommit and `RLIMIT_DATA`.
    pub(super) fn reserve(&self, bytes: usize) -> Option<*mut u8> {
        // SAFETY: the address is null and `MAP_FIXED` is not set, so the system chooses unused
        // addresses and no existing mapping changes.
        let base = unsafe { map(ptr::null_mut(), bytes, libc::PROT_NONE, self.unpromised()) };
        if let Some(base) = base {
            // SAFETY: `map` just mapped these bytes.
            unsafe { self.advise_reserved(base, bytes) };
        }
        base
    }

    /// Returns the flag with which the C library reserves addresses, for the filter of a sandbox.
    /// Without access, no memory is promised anyway.
    fn unpromised(&self) -> c_int {
        if self.is_quiet() { libc::MAP_NORESERVE } else { 0 }
    }

    /// Gives the advice for reserved addresses. Core dumps leave them out: gdb's `gcore` would write
    /// them all, 1 TiB.
    ///
    /// # Safety
    ///
    /// The addresses are mapped without access.
    unsafe fn advise_reserved(&self, start: *mut u8, bytes: usize) {
        // SAFETY: as the caller says; there are no contents.
        unsafe { self.advise(start, bytes, libc::MADV_DONTDUMP) };
        // SAFETY: as above.
        unsafe { self.advise_pages(start, bytes) };
    }

    /// Advises huge pages, or that there be none: with them a clean run may have memory behind it,
    /// which took 657 MiB instead of 163 MiB with candle.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::advise_reserved`].
    unsafe fn advise_pages(&self, start: *mut u8, bytes: usize) {
        let huge = self.huge.load(Relaxed);
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: as the caller says; there are no contents.
        unsafe { self.advise(start, bytes, advice) };
    }

    /// Unmaps reserved addresses.
    ///
    /// # Safety
    ///
    /// No code uses them, or has an address there that it takes for one of this reservation.
    pub(super) unsafe fn give_up(start: *mut u8, bytes: usize) {
        // SAFETY: as the caller says. If the system refuses, they stay reserved.
        let _ = unsafe { kernel::unmap(start, bytes) };
    }

    /// Reserves addresses again that a refused call may have left without a mapping. Returns whether
    /// it had.
    ///
    /// Without `MAP_FIXED` no existing mapping changes: the system chooses other addresses if there is
    /// one.
    ///
    /// # Safety
    ///
    /// The addresses are whole pages of a reservation.
    unsafe fn reserve_again(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: no existing mapping changes.
        let base = unsafe { map(start, bytes, libc::PROT_NONE, self.unpromised()) };
        match base {
            // SAFETY: `map` just mapped these bytes.
            Some(base) if base == start => unsafe { self.advise_reserved(start, bytes) },
            // SAFETY: `map` just mapped these bytes, and no code knows of them.
            Some(other) => unsafe { Self::give_up(other, bytes) },
            None => self.is_holed.store(true, Relaxed),
        }
        base == Some(start)
    }

    /// Makes reserved addresses readable and writable. Returns false, with nothing changed, if there
    /// is too little memory, or too many mappings. The thread's `errno` may change.
    ///
    /// # Safety
    ///
    /// The addresses are whole pages of a reservation, and no thread uses their contents.
    pub(super) unsafe fn open(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: as the caller says.
        let is_open = unsafe { self.permit(start, bytes) };
        if is_open {
            // SAFETY: these bytes are mapped, and the advice changes no contents.
            unsafe { self.advise(start, bytes, libc::MADV_DODUMP) };
        }
        is_open
    }

    /// Does what [`Mapping::open`] does, for addresses that core dumps have.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    unsafe fn permit(&self, start: *mut u8, bytes: usize) -> bool {
        if self.is_quiet() {
            // SAFETY: as the caller says.
            return unsafe { self.open_quietly(start, bytes) };
        }
        // SAFETY: as the caller says.
        unsafe { kernel::protect(start, bytes, READ_WRITE) }.is_ok()
    }

    /// Does what [`Mapping::open`] does by `mmap`.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    unsafe fn open_quietly(&self, start: *mut u8, bytes: usize) -> bool {
        if self.is_holed.load(Relaxed) {
            return false;
        }
        // SAFETY: as the caller says.
        let is_open = unsafe { map(start, bytes, READ_WRITE, libc::MAP_FIXED) }.is_some();
        if !is_open {
            // Before Linux 6.12 a refusal for want of memory leaves a hole.
            // SAFETY: as the caller says.
            unsafe { self.reserve_again(start, bytes) };
        }
        is_open
    }

    /// Takes memory away from addresses, which stay reserved. A refusal by the system, which has
    /// too many mappings, changes nothing. The thread's `errno` is unchanged.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`], which must come before the next use of the addresses.
    pub(super) unsafe fn close(&self, start: *mut u8, bytes: usize) -> bool {
        if self.is_silent.load(Relaxed) {
            return false;
        }
        system::keeping_errno(|| {
            // SAFETY: as the caller says.
            let closed = unsafe { map(start, bytes, libc::PROT_NONE, libc::MAP_FIXED) }.is_some();
            if closed {
                // SAFETY: `map` just mapped these bytes.
                unsafe { self.advise_reserved(start, bytes) };
            }
            closed
        })
    }

    /// Returns the memory behind open addresses to the system. The thread's `errno` is unchanged,
    /// because a program does not expect a free to change it.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    pub(super) unsafe fn forget(&self, start: *mut u8, bytes: usize) -> Forgotten {
        if self.is_silent.load(Relaxed) {
            return Forgotten::Not;
        }
        // SAFETY: as the caller says.
        if self.keeps_advice.load(Relaxed) && unsafe { self.empty(start, bytes) } {
            return Forgotten::Open;
        }
        system::keeping_errno(|| {
            // SAFETY: as the caller says.
            if unsafe { map(start, bytes, libc::PROT_NONE, libc::MAP_FIXED) }.is_none() {
                // The system has too many mappings, of which this makes no more.
                // SAFETY: as the caller says.
                let advised = unsafe { self.advise(start, bytes, libc::MADV_DONTNEED) };
                return if advised { Forgotten::Open } else { Forgotten::Not };
            }
            // SAFETY: `map` just mapped these bytes.
            unsafe { self.advise_pages(start, bytes) };
            // SAFETY: as the caller says.
            if unsafe { self.permit(start, bytes) } {
                return Forgotten::Open;
            }
            // SAFETY: as above.
            unsafe { self.advise(start, bytes, libc::MADV_DONTDUMP) };
            Forgotten::Closed
        })
    }

    /// Takes the memory behind open addresses, which stay open and read as zeroes. Returns whether the
    /// system did; it refuses pages that the program has locked. What the program did to them
    /// otherwise stays. The thread's `errno` is unchanged.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    pub(super) unsafe fn empty(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: as the caller says.
        system::keeping_errno(|| unsafe { self.advise(start, bytes, libc::MADV_DONTNEED) })
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

    /// Returns whether memory may be moved.
    pub(super) fn moves(&self) -> bool {
        !self.is_quiet() && !self.is_holed.load(Relaxed)
    }

    /// Moves the memory behind open addresses, which are one mapping, to other open addresses. What it
    /// leaves is open and reads as zeroes. The thread's `errno` may change.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`], for both places, but for the contents of `from`. They do not
    /// overlap.
    pub(super) unsafe fn transfer(&self, from: *mut u8, to: *mut u8, bytes: usize) -> Moved {
        // Beside `MREMAP_DONTUNMAP`, no other thread gets a mapping at what is left.
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: as the caller says; no existing mapping but these two changes.
        let Err(error) = (unsafe { kernel::remap(from, bytes, bytes, how, to) }) else {
            return Moved::Yes;
        };
        // Before Linux 5.7 it knows no such move. It refuses one for want of room in its tables before
        // it changes anything, and for a limit on addresses or memory when the destination is unmapped.
        // Advice that pages have already it refuses where there are none.
        // SAFETY: as the caller says; the advice changes no contents.
        if error == libc::EINVAL || unsafe { self.advise(to, bytes, libc::MADV_DODUMP) } {
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
    pub(super) unsafe fn piece(from: *mut u8, bytes: usize) -> usize {
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

    /// Gives advice, unless the system is called by `mmap` only. Returns whether it was taken.
    ///
    /// # Safety
    ///
    /// The addresses are mapped, and no thread needs the contents that this advice may change.
    unsafe fn advise(&self, start: *mut u8, bytes: usize, advice: c_int) -> bool {
        // SAFETY: as the caller says. Systems that do not know an advice refuse it.
        !self.is_quiet() && unsafe { kernel::advise(start, bytes, advice) }.is_ok()
    }
}

/// Maps memory that no file has.
///
/// # Safety
///
/// With `MAP_FIXED` in `how`, no code needs what is mapped there.
unsafe fn map(start: *mut u8, bytes: usize, access: c_int, how: c_int) -> Option<*mut u8> {
    // SAFETY: as the caller says.
    unsafe { kernel::map(start, bytes, access, how) }.ok()
}
