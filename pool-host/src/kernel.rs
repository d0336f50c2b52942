//! System calls by their numbers.
//!
//! A program, or a library that is loaded before the C library, may define functions such as `mmap`,
//! `madvise`, `read` or `syscall`, and allocate in them: profilers and memory counters do. The heap
//! calls the system while it holds a lock, so it must not come to code of the program. On x86-64 the
//! instruction is here; elsewhere the C library's `syscall` makes the call. Miri knows functions of
//! the C library only.
//!
//! No call here is a point at which a thread can be cancelled. On x86-64 none changes `errno`.
#![expect(unsafe_code, reason = "the system is called")]

use libc::{c_int, c_long};
use std::ffi::CStr;
use std::ptr;

/// Makes a system call. Returns the number of the error if it fails.
///
/// # Safety
///
/// As for the call.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let Ok(number) = isize::try_from(number) else { return Err(libc::ENOSYS) };
    let result: isize;
    // SAFETY: the kernel reads these registers, and changes `rax`, `rcx` and `r11` only (System V
    // ABI for x86-64, A.2.1). What the call does to memory is as the caller says.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first, in("rsi") second, in("rdx") third,
            in("r10") fourth, in("r8") fifth, in("r9") sixth,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    told(result, || c_int::try_from(-result).unwrap_or(libc::EINVAL))
}

/// Makes a system call. Returns the number of the error if it fails.
///
/// # Safety
///
/// As for the call.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: as the caller says.
    let result = unsafe { libc::syscall(number, first, second, third, fourth, fifth, sixth) };
    told(result as isize, error)
}

/// Returns what a call has told: an error is a number from -4095 to -1.
fn told(result: isize, error: impl FnOnce() -> c_int) -> Result<usize, c_int> {
    if (-4095..0).contains(&result) { Err(error()) } else { Ok(result.cast_unsigned()) }
}

/// Returns the number of the last error of a function of the C library.
fn error() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Converts a number to an argument as the C library does.
fn word(number: c_int) -> usize {
    (number as isize).cast_unsigned()
}

/// Maps memory that no file has.
///
/// # Safety
///
/// With `MAP_FIXED` in `how`, no code needs what is mapped there.
pub(crate) unsafe fn map(
    start: *mut u8,
    bytes: usize,
    access: c_int,
    how: c_int,
) -> Result<*mut u8, c_int> {
    let how = how | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if cfg!(miri) {
        // SAFETY: as the caller says.
        let base = unsafe { libc::mmap(start.cast(), bytes, access, how, -1, 0) };
        return if base == libc::MAP_FAILED { Err(error()) } else { Ok(base.cast()) };
    }
    let arguments = [start.expose_provenance(), bytes, word(access), word(how), usize::MAX, 0];
    // SAFETY: as the caller says.
    unsafe { call(libc::SYS_mmap, arguments) }.map(ptr::with_exposed_provenance_mut)
}

/// Unmaps pages.
///
/// # Safety
///
/// No code needs what is mapped there.
pub(crate) unsafe fn unmap(start: *mut u8, bytes: usize) -> Result<(), c_int> {
    if cfg!(miri) {
        // SAFETY: as the caller says.
        let done = unsafe { libc::munmap(start.cast(), bytes) };
        return if done == 0 { Ok(()) } else { Err(error()) };
    }
    // SAFETY: as the caller says.
    unsafe { call(libc::SYS_munmap, [start.expose_provenance(), bytes, 0, 0, 0, 0]) }.map(|_| ())
}

/// Gives advice on pages.
///
/// # Safety
///
/// No code needs contents that this advice may change.
pub(crate) unsafe fn advise(start: *mut u8, bytes: usize, advice: c_int) -> Result<(), c_int> {
    let arguments = [start.expose_provenance(), bytes, word(advice), 0, 0, 0];
    // SAFETY: as the caller says.
    unsafe { call(libc::SYS_madvise, arguments) }.map(|_| ())
}

/// Sets what code may do with pages.
///
/// # Safety
///
/// No code does what is not permitted from then on.
pub(crate) unsafe fn protect(start: *mut u8, bytes: usize, access: c_int) -> Result<(), c_int> {
    let arguments = [start.expose_provenance(), bytes, word(access), 0, 0, 0];
    // SAFETY: as the caller says.
    unsafe { call(libc::SYS_mprotect, arguments) }.map(|_| ())
}

/// Resizes a mapping, or moves it to `to`.
///
/// # Safety
///
/// The caller owns both places, and no code needs what is mapped at `to`.
pub(crate) unsafe fn remap(
    start: *mut u8,
    bytes: usize,
    wanted: usize,
    how: c_int,
    to: *mut u8,
) -> Result<(), c_int> {
    let (start, to) = (start.expose_provenance(), to.expose_provenance());
    // SAFETY: as the caller says.
    unsafe { call(libc::SYS_mremap, [start, bytes, wanted, word(how), to, 0]) }.map(|_| ())
}

/// Opens a file for reading.
pub(crate) fn open(path: &CStr) -> Option<c_int> {
    let how = libc::O_RDONLY | libc::O_CLOEXEC;
    if cfg!(miri) {
        // SAFETY: the path ends with a zero byte.
        return Some(unsafe { libc::open(path.as_ptr(), how) }).filter(|file| *file >= 0);
    }
    let path = path.as_ptr().expose_provenance();
    // SAFETY: the path ends with a zero byte.
    let file = unsafe { call(libc::SYS_openat, [word(libc::AT_FDCWD), path, word(how), 0, 0, 0]) };
    c_int::try_from(file.ok()?).ok()
}

/// Reads from a file. Returns how many bytes it has read.
pub(crate) fn read(file: c_int, text: &mut [u8]) -> Option<usize> {
    let start = text.as_mut_ptr();
    if cfg!(miri) {
        // SAFETY: `text` is a mutable slice of this length.
        return usize::try_from(unsafe { libc::read(file, start.cast(), text.len()) }).ok();
    }
    let arguments = [word(file), start.expose_provenance(), text.len(), 0, 0, 0];
    // SAFETY: `text` is a mutable slice of this length.
    unsafe { call(libc::SYS_read, arguments) }.ok()
}

/// Closes a file.
///
/// # Safety
///
/// The caller owns the descriptor.
pub(crate) unsafe fn close(file: c_int) {
    if cfg!(miri) {
        // SAFETY: as the caller says.
        unsafe { libc::close(file) };
        return;
    }
    // SAFETY: as the caller says. Linux has closed it also if it reports an error.
    let _ = unsafe { call(libc::SYS_close, [word(file), 0, 0, 0, 0, 0]) };
}

/// Returns the soft limit of this process for a resource (`RLIMIT_AS` and others); `None` if there is
/// none.
///
/// The type of a resource's number differs between C libraries.
pub(crate) fn limit(resource: impl TryInto<usize>) -> Option<u64> {
    if cfg!(miri) {
        return None;
    }
    let resource = resource.try_into().ok()?;
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let arguments = [0, resource, 0, (&raw mut limit).expose_provenance(), 0, 0];
    // SAFETY: the call writes one `rlimit64` to `limit`, which lives through it.
    let known = unsafe { call(libc::SYS_prlimit64, arguments) }.is_ok();
    (known && limit.rlim_cur != libc::RLIM64_INFINITY).then_some(limit.rlim_cur)
}

/// Waits for a word, or wakes those who wait for it. The word may be at any address.
///
/// # Safety
///
/// `time` is null or an address of a time.
pub(crate) unsafe fn futex(
    at: *mut u32,
    how: c_int,
    value: u32,
    time: *const libc::timespec,
) -> Result<(), c_int> {
    if cfg!(miri) {
        // SAFETY: as the caller says.
        let result = unsafe { libc::syscall(libc::SYS_futex, at, how, value, time) };
        return if result < 0 { Err(error()) } else { Ok(()) };
    }
    let (at, time) = (at.expose_provenance(), time.expose_provenance());
    // SAFETY: as the caller says; the system reads the word, or uses its address only.
    unsafe { call(libc::SYS_futex, [at, word(how), value as usize, time, 0, 0]) }.map(|_| ())
}
