//! Addresses without memory behind them: the system's calls.
#![expect(unsafe_code, reason = "the system is called through C")]

use pool_core::{DeviceError, Why};
use std::ops::Range;
use std::ptr::{self, NonNull};

fn refused(why: Why, call: &'static str) -> DeviceError {
    let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    DeviceError::new(why, call, code.into())
}

fn setting(name: libc::c_int) -> Option<u64> {
    // SAFETY: asks the system for a number.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok()
}

/// The size of a page.
pub(crate) fn page_bytes() -> u64 {
    setting(libc::_SC_PAGESIZE).unwrap_or(4096)
}

/// The memory of this machine.
pub(crate) fn physical_bytes() -> Option<u64> {
    setting(libc::_SC_PHYS_PAGES)?.checked_mul(page_bytes())
}

/// Readable and writable addresses, which cost memory when they are first written.
pub(crate) fn map(bytes: u64) -> Result<(NonNull<u8>, usize), DeviceError> {
    let too_large = DeviceError::new(Why::TooLarge, "mmap", 0);
    let bytes = usize::try_from(bytes).map_err(|_| too_large)?;
    let (access, sort) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: asks for new addresses, anywhere; nothing that exists is touched.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, sort, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(refused(Why::OutOfMemory, reason()));
    }
    NonNull::new(base.cast()).map(|base| (base, bytes)).ok_or(too_large)
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
