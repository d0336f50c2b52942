//! Addresses without memory behind them: the system's calls.
#![expect(unsafe_code, reason = "the system is called through C")]

use crate::system;
use pool_core::{DeviceError, Why};
use std::ops::Range;
use std::ptr::{self, NonNull};

fn refused(why: Why, call: &'static str) -> DeviceError {
    let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    DeviceError::new(why, call, code.into())
}

/// Readable and writable addresses, which cost memory when they are first written.
pub(crate) fn map(bytes: u64) -> Result<(NonNull<u8>, usize), DeviceError> {
    let too_large = DeviceError::new(Why::TooLarge, "mmap", 0);
    let bytes = usize::try_from(bytes).map_err(|_| too_large)?;
    let base = map_pages(bytes).ok_or_else(|| {
        let refused = refused(Why::OutOfMemory, "mmap");
        DeviceError::new(refused.why, reason(), refused.code)
    })?;
    Ok((base, bytes))
}

fn map_pages(bytes: usize) -> Option<NonNull<u8>> {
    // Miri has no overcommit, and knows no flag for it.
    let overcommit = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
    let (access, sort) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | overcommit);
    // SAFETY: asks for new addresses, anywhere; nothing that exists is touched.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, sort, -1, 0) };
    if base == libc::MAP_FAILED { None } else { NonNull::new(base.cast()) }
}

/// What to say when there are no addresses: under strict overcommit each of them counts as memory.
fn reason() -> &'static str {
    match std::fs::read_to_string("/proc/sys/vm/overcommit_memory") {
        Ok(mode) if mode.trim() == "2" => {
            "mmap of more than there is memory, under strict overcommit (vm.overcommit_memory=2)"
        }
        _ => "mmap",
    }
}

/// Gives addresses back.
///
/// # Safety
///
/// They come from [`map`] with this size, and nobody uses them again.
pub(crate) unsafe fn unmap(base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: as the caller says.
    let done = unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
    if done == 0 { Ok(()) } else { Err(refused(Why::Other, "munmap")) }
}

/// Gives the memory behind addresses back; they read as zeroes from then on.
///
/// # Safety
///
/// They lie in one mapping from [`map`], and nobody uses what they hold.
pub(crate) unsafe fn forget(base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: as the caller says.
    let done = unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
    if done == 0 { Ok(()) } else { Err(refused(Why::Other, "madvise")) }
}

/// Offset and size of a range, if it lies inside `bytes` bytes.
pub(crate) fn inside(
    bytes: usize,
    range: &Range<u64>,
    call: &'static str,
) -> Result<(usize, usize), DeviceError> {
    let outside = DeviceError::new(Why::Foreign, call, 0);
    let start = usize::try_from(range.start).map_err(|_| outside)?;
    let end = usize::try_from(range.end).map_err(|_| outside)?;
    if start > end || end > bytes { Err(outside) } else { Ok((start, end - start)) }
}

/// `count` values of zero bytes, for as long as the process lives. Nothing is allocated, so that an
/// allocator may call it; none if the system has no memory.
pub(crate) fn zeroed<T: Zeroed>(count: usize) -> Option<&'static [T]> {
    let bytes = count.checked_mul(size_of::<T>())?;
    let base = map_pages(bytes)?;
    // SAFETY: so many bytes are mapped, zero, which is a valid `T`, and aligned to a page, which is
    // more than any of these types asks for. They are never unmapped, and nobody else has them.
    Some(unsafe { std::slice::from_raw_parts(base.cast().as_ptr(), count) })
}

/// What may be all zero bytes.
///
/// # Safety
///
/// A value of zero bytes is valid, and is aligned to a page at most.
pub(crate) unsafe trait Zeroed: 'static {}

/// Locks pages in memory. A child process has an unlocked copy of them: a hole would be filled by
/// the child's next mapping, which the pool's blocks would then alias, and zeroes would be no valid
/// values of the types that a collection keeps there. At the system's limit the error names it, and
/// its code is the limit in bytes.
///
/// # Safety
///
/// They come from [`map`] with this size.
pub(crate) unsafe fn lock(base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: as the caller says; nothing that they hold changes.
    if unsafe { libc::mlock(base.as_ptr().cast(), bytes) } == 0 {
        return Ok(());
    }
    let refused = refused(Why::Other, "mlock");
    let at_limit = [libc::ENOMEM, libc::EPERM, libc::EAGAIN].map(i64::from);
    Err(match system::lock_limit_bytes() {
        Some(limit) if at_limit.contains(&refused.code) => {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            DeviceError::new(Why::Limit, "mlock beyond RLIMIT_MEMLOCK, of so many bytes", limit)
        }
        _ => refused,
    })
}

/// Pages with one behind them that nobody may touch.
pub(crate) fn with_guard(bytes: usize, page: usize) -> Option<NonNull<u8>> {
    let base = map_pages(bytes.checked_add(page)?)?;
    forbid(base.as_ptr().expose_provenance() + bytes, page);
    Some(base)
}

/// Lets nobody touch pages from here on. Where the system refuses, they can be touched.
pub(crate) fn forbid(address: usize, bytes: usize) {
    let base = ptr::with_exposed_provenance_mut::<libc::c_void>(address);
    // SAFETY: pages of `with_guard`, which nobody uses any more.
    let _ = unsafe { libc::mprotect(base, bytes, libc::PROT_NONE) };
}

/// Gives pages of [`with_guard`] back, the guard included, after [`forbid`].
pub(crate) fn unmap_guarded(address: usize, bytes: usize) {
    let base = ptr::with_exposed_provenance_mut::<libc::c_void>(address);
    // SAFETY: as above. What cannot be unmapped is lost.
    let _ = unsafe { libc::munmap(base, bytes) };
}
