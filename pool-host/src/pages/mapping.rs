//! The calls to the system that change what lies behind addresses.
//!
//! Memory goes back by an `mmap` at its place, because that also ends what the program did to the
//! pages: protection, locks, policies, advice. Unless the program limits its calls, only mappings
//! without access are made so, of which the system refuses none for want of memory: before Linux 6.12 a
//! refusal left a hole, which the next `mmap` of another thread might have got.
//!
//! A program that limits its own calls to the system permits `mmap` if it allocates at all. Once it
//! has said that it does so ([`Mapping::be_quiet`]), nothing else is called, but for `munmap` where
//! addresses are given up, and only with arguments that the C library's functions have too: private
//! memory without a file, readable and writable, at an address of ours (`MAP_FIXED`) or not, and without
//! access at an address of the system's choice. So memory goes back then by one `mmap` that leaves the
//! addresses open, and what is open stays so.
//!
//! A call that is refused may have unmapped its destination. The addresses are reserved again, or
//! else stay unused for good: another thread may have got them.
#![expect(unsafe_code, reason = "the system is called through C")]

mod moving;

pub(super) use moving::Moved;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
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

/// How addresses are mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Whether blocks may use huge pages.
    huge: AtomicBool,
    /// Whether the system is called by `mmap` and `munmap` only.
    is_quiet: AtomicBool,
    /// The last limit on addresses that the program was heard to set; `u64::MAX` for none.
    heard_limit: AtomicU64,
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
            heard_limit: AtomicU64::new(u64::MAX),
            is_silent: AtomicBool::new(false),
            is_holed: AtomicBool::new(false),
            keeps_advice: AtomicBool::new(false),
        }
    }

    /// Permits huge pages in what is opened from now on.
    pub(super) fn use_huge_pages(&self) {
        self.huge.store(true, Relaxed);
    }

    /// Lets what the program did to pages stay when their memory goes back, which is two calls of the
    /// system in place of three.
    pub(super) fn keep_advice(&self) {
        self.keeps_advice.store(true, Relaxed);
    }

    /// Calls the system by `mmap` and `munmap` only from now on.
    pub(super) fn be_quiet(&self) {
        if !self.is_quiet() {
            self.hear_address_limit(system::address_limit_bytes().unwrap_or(u64::MAX));
        }
        self.is_quiet.store(true, Relaxed);
    }

    /// Calls the system from now on only where there is no block for a request: no memory goes back.
    pub(super) fn be_silent(&self) {
        self.is_silent.store(true, Relaxed);
        self.be_quiet();
    }

    /// Notes the limit on addresses that the program has set, for when the system may not be asked;
    /// `u64::MAX` for none.
    pub(super) fn hear_address_limit(&self, bytes: u64) {
        self.heard_limit.store(bytes, Relaxed);
    }

    /// Returns how many bytes of addresses the process may have; `None` if there is no limit, or none
    /// may be given up.
    pub(super) fn address_limit(&self) -> Option<u64> {
        if !self.is_quiet() {
            return system::address_limit_bytes();
        }
        let heard = self.heard_limit.load(Relaxed);
        (heard != u64::MAX && !self.is_silent.load(Relaxed)).then_some(heard)
    }

    /// Returns whether the system is called by `mmap` and `munmap` only.
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
            let is_holed = self.is_holed.load(Relaxed);
            // SAFETY: as the caller says.
            return !is_holed && unsafe { self.map_anew(start, bytes) } == Forgotten::Open;
        }
        // SAFETY: as the caller says.
        unsafe { kernel::protect(start, bytes, READ_WRITE) }.is_ok()
    }

    /// Makes addresses readable and writable, and takes the memory that is behind them, by `mmap`.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    unsafe fn map_anew(&self, start: *mut u8, bytes: usize) -> Forgotten {
        // SAFETY: as the caller says.
        if unsafe { map(start, bytes, READ_WRITE, libc::MAP_FIXED) }.is_some() {
            return Forgotten::Open;
        }
        // Before Linux 6.12 a refusal for want of memory leaves a hole. One for want of addresses or
        // mappings changes nothing.
        // SAFETY: as the caller says.
        if unsafe { self.reserve_again(start, bytes) } { Forgotten::Closed } else { Forgotten::Not }
    }

    /// Takes memory away from addresses, which stay reserved. A refusal by the system, which has
    /// too many mappings, changes nothing. None are closed while the system is called by `mmap` and
    /// `munmap` only. The thread's `errno` is unchanged.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`], which must come before the next use of the addresses.
    pub(super) unsafe fn close(&self, start: *mut u8, bytes: usize) -> bool {
        if self.is_quiet() {
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
        if self.is_quiet() {
            // SAFETY: as the caller says.
            return system::keeping_errno(|| unsafe { self.map_anew(start, bytes) });
        }
        system::keeping_errno(|| {
            // SAFETY: as the caller says.
            if unsafe { map(start, bytes, libc::PROT_NONE, libc::MAP_FIXED) }.is_none() {
                // The system has too many mappings, of which this makes no more.
                // SAFETY: as the caller says.
                let emptied = unsafe { self.empty(start, bytes) };
                return if emptied { Forgotten::Open } else { Forgotten::Not };
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
    /// system did; it refuses pages that the program has locked, and those at which the program has mapped
    /// a file or shared memory: without memory of their own they would read as that. What the program did
    /// to them otherwise stays. The thread's `errno` is unchanged.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    pub(super) unsafe fn empty(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: as the caller says.
        let advise = |advice| unsafe { self.advise(start, bytes, advice) };
        // The first advice is for memory alone that no file has and no other process.
        system::keeping_errno(|| advise(libc::MADV_FREE) && advise(libc::MADV_DONTNEED))
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

    /// Has pages without memory read as zeroes from now on, by one call for all: a first read of each would be
    /// a fault. Nothing changes where the system refuses that (before Linux 5.14).
    ///
    /// # Safety
    ///
    /// The addresses are open.
    pub(super) unsafe fn prepare_reads(&self, start: *const u8, bytes: usize) {
        // SAFETY: as the caller says; no contents change.
        unsafe { self.advise(start.cast_mut(), bytes, libc::MADV_POPULATE_READ) };
    }

    /// Gives advice, unless the system is called by `mmap` and `munmap` only. Returns whether it was taken.
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

#[cfg(all(test, not(any(miri, shuttle))))]
mod tests;
