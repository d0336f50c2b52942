//! The calls to the system that change what lies behind addresses.
//!
//! Memory goes back by an `mmap` at its place, because that also ends what the program did to the
//! pages: protection, locks, policies, advice. Only mappings without access are made so, of which
//! the system refuses none for want of memory: before Linux 6.12 a refusal left a hole, which the
//! next `mmap` of another thread might have got.
//!
//! A program that limits its own calls to the system permits `mmap` if it allocates at all. Once it
//! has said that it does so ([`Mapping::be_quiet`]), nothing else is called but `mremap`.
#![expect(unsafe_code, reason = "the system is called through C")]

use super::PAGE;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::{stderr, system};
use libc::c_int;
use std::ptr;

/// The most mappings of a block that are moved. Each move of a block that grows adds one; a copy
/// makes them one again.
const PIECES: usize = 8;
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

/// What became of memory that was to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    /// The bytes that have moved, the first ones.
    pub(super) moved: usize,
    /// The bytes of the destination behind them that must be opened before they are used.
    pub(super) closed: usize,
}

/// How addresses are mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Whether blocks may use huge pages.
    huge: AtomicBool,
    /// Whether the system is called by `mmap` and `mremap` only.
    is_quiet: AtomicBool,
    /// Whether what the program did to pages may stay when their memory goes back.
    keeps_advice: AtomicBool,
}

impl Mapping {
    /// Without huge pages, and with advice.
    pub(super) const fn new() -> Self {
        Self {
            huge: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
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

    /// Calls the system by `mmap` and `mremap` only from now on.
    pub(super) fn be_quiet(&self) {
        self.is_quiet.store(true, Relaxed);
    }

    /// Returns whether the system is called by `mmap` and `mremap` only.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Relaxed)
    }

    /// Reserves addresses that no code may touch yet.
    ///
    /// They do not count as memory, even under strict overcommit and `RLIMIT_DATA`.
    pub(super) fn reserve(&self, bytes: usize) -> Option<*mut u8> {
        // SAFETY: the address is null and `MAP_FIXED` is not set, so the system chooses unused
        // addresses and no existing mapping changes.
        let base = unsafe { map(ptr::null_mut(), bytes, libc::PROT_NONE, 0) };
        if let Some(base) = base {
            // SAFETY: `map` just mapped these bytes.
            unsafe { self.advise_reserved(base, bytes) };
        }
        base
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

    /// Reserves addresses again that a refused call may have left without a mapping; with `is_gone` it
    /// has. If another thread has got them since, the process ends: each of the two would use the
    /// memory of the other.
    ///
    /// # Safety
    ///
    /// The addresses are whole pages of a reservation.
    unsafe fn reserve_again(&self, start: *mut u8, bytes: usize, is_gone: bool) {
        let how = libc::MAP_FIXED_NOREPLACE;
        // SAFETY: with this flag, no existing mapping changes.
        let base = unsafe { map(start, bytes, libc::PROT_NONE, how) };
        if base == Some(start) {
            // SAFETY: `map` just mapped these bytes.
            return unsafe { self.advise_reserved(start, bytes) };
        }
        if is_gone || base.is_some() || error() != Some(libc::EEXIST) {
            stderr::say(&[b"bucketpool: the system has given reserved addresses away\n"]);
            std::process::abort();
        }
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
        unsafe { libc::mprotect(start.cast(), bytes, READ_WRITE) == 0 }
    }

    /// Does what [`Mapping::open`] does by `mmap`. The memory is not promised, so that the system
    /// refuses it only under strict overcommit.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`].
    unsafe fn open_quietly(&self, start: *mut u8, bytes: usize) -> bool {
        let how = libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: as the caller says.
        let is_open = unsafe { map(start, bytes, READ_WRITE, how) }.is_some();
        if !is_open {
            // SAFETY: as the caller says.
            unsafe { self.reserve_again(start, bytes, false) };
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

    /// Moves the memory behind open addresses to other open addresses. What it leaves is open and
    /// reads as zeroes. The thread's `errno` may change.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::open`], for both places, but for the contents of `from`. They do not
    /// overlap, and other pages of the reservation follow `from`.
    pub(super) unsafe fn transfer(&self, from: *mut u8, to: *mut u8, bytes: usize) -> Transfer {
        let mut moved = 0;
        // SAFETY: as the caller says.
        let (pieces, count) = unsafe { pieces(from, bytes) };
        for piece in &pieces[..count] {
            let (from, to) = (from.wrapping_add(moved), to.wrapping_add(moved));
            // Beside `MREMAP_DONTUNMAP`, no other thread gets a mapping at what is left.
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
            // SAFETY: as the caller says; no existing mapping but these two changes.
            let done = unsafe { libc::mremap(from.cast(), *piece, *piece, how, to) };
            if done != libc::MAP_FAILED {
                moved += piece;
                continue;
            }
            // Before Linux 5.7 nothing has changed; else the destination is gone.
            let is_gone = error() != Some(libc::EINVAL);
            if is_gone {
                // SAFETY: as the caller says.
                unsafe { self.reserve_again(to, *piece, true) };
            }
            return Transfer { moved, closed: if is_gone { *piece } else { 0 } };
        }
        Transfer { moved, closed: 0 }
    }

    /// Gives advice, unless the system is called by `mmap` and `mremap` only. Returns whether it was taken.
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

/// Returns the lengths of the mappings in which these addresses are, and how many they are; 0 if
/// they are more than [`PIECES`], or the system does not tell.
///
/// Before Linux 6.17 a move of several mappings is refused when the destination is gone already, so
/// they move one by one. To grow in place is refused with another error for one mapping than for
/// several, and never succeeds here.
///
/// # Safety
///
/// The addresses are open, and other pages of the reservation follow them.
unsafe fn pieces(from: *mut u8, bytes: usize) -> ([usize; PIECES], usize) {
    let is_one = |at: usize, length: usize| {
        let start = from.wrapping_add(at).cast();
        // SAFETY: there is no room behind these addresses, so nothing changes.
        unsafe { libc::mremap(start, length, length + PAGE, 0) };
        error() == Some(libc::ENOMEM)
    };
    let (mut pieces, mut at) = ([0; PIECES], 0);
    for count in 0..PIECES {
        let rest = bytes - at;
        // The longest length that is one mapping: `short` is, and `long` is not.
        let (mut short, mut long) = (0, rest / PAGE);
        if is_one(at, rest) {
            pieces[count] = rest;
            return (pieces, count + 1);
        }
        while long - short > 1 {
            let middle = usize::midpoint(short, long);
            if is_one(at, middle * PAGE) { short = middle } else { long = middle }
        }
        if short == 0 {
            break;
        }
        pieces[count] = short * PAGE;
        at += short * PAGE;
    }
    (pieces, 0)
}

/// Returns the number of the last error of a system call.
fn error() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}
