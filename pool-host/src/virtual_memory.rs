//! System calls for address ranges: map, unmap, give pages back, lock and protect.
//!
//! A mapping has no memory behind it until the program writes to it.
#![expect(unsafe_code, reason = "the system is called through C")]

use crate::{kernel, system};
use pool_core::port::Limit;
use pool_core::{DeviceError, Why};
use std::ops::Range;
use std::ptr::{self, NonNull};

/// The call that maps, where it is not refused for another reason.
const MMAP: &str = "mmap";

fn refused(why: Why, call: &'static str, error: i32) -> DeviceError {
    DeviceError::new(why, call).code(error.into())
}

/// Maps `bytes` bytes of readable and writable addresses, and returns the base and the size.
///
/// A page costs memory when it is first written, and reads as zeroes before that.
pub(crate) fn map(bytes: u64) -> Result<(NonNull<u8>, usize), DeviceError> {
    let too_large = DeviceError::new(Why::TooLarge, "mmap");
    let bytes = usize::try_from(bytes).map_err(|_| too_large)?;
    let base = map_pages(bytes).map_err(|error| refused(Why::OutOfMemory, reason(), error))?;
    Ok((base, bytes))
}

/// Maps addresses as [`map`] does, and leaves them out of core dumps until [`dump`] puts them
/// there.
pub(crate) fn reserve(bytes: u64) -> Result<(NonNull<u8>, usize), DeviceError> {
    let (base, bytes) = map(bytes).map_err(|refused| match refused.why {
        // No memory is asked for, unless the system counts what could be written.
        Why::OutOfMemory if refused.call == MMAP => {
            DeviceError { why: Why::OutOfAddresses, call: "mmap (`ulimit -v`)", ..refused }
        }
        _ => refused,
    })?;
    if !cfg!(miri) {
        // A refusal makes core dumps larger, and is ignored.
        // SAFETY: `map` just mapped these bytes. This advice changes no contents.
        let _ = unsafe { kernel::advise(base.as_ptr(), bytes, libc::MADV_DONTDUMP) };
    }
    Ok((base, bytes))
}

/// Puts an address range into core dumps. Returns whether it is there: the system may have no room
/// for one mapping more.
///
/// # Safety
///
/// The range lies in one mapping from [`reserve`].
pub(crate) unsafe fn dump(base: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: the caller guarantees that the range is mapped. This advice changes no contents.
    cfg!(miri) || unsafe { kernel::advise(base.as_ptr(), bytes, libc::MADV_DODUMP) }.is_ok()
}

fn map_pages(bytes: usize) -> Result<NonNull<u8>, i32> {
    // Miri has no overcommit and does not support the flag.
    map_with(bytes, if cfg!(miri) { 0 } else { libc::MAP_NORESERVE })
}

/// Maps readable and writable addresses whose memory the system promises as far as it does for
/// `malloc`: it may refuse more than there is.
pub(crate) fn map_promised(bytes: usize) -> Option<NonNull<u8>> {
    map_with(bytes, 0).ok()
}

/// Returns the number of the system's error if it refuses the mapping.
fn map_with(bytes: usize, promise: i32) -> Result<NonNull<u8>, i32> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without an address and without `MAP_FIXED`, the system chooses unused addresses, so
    // no existing mapping changes.
    let base = unsafe { kernel::map(ptr::null_mut(), bytes, access, promise) }?;
    NonNull::new(base).ok_or(libc::ENOMEM)
}

/// Returns the text for an `mmap` that failed. Under strict overcommit every mapped byte counts as
/// memory, and the text says so.
fn reason() -> &'static str {
    match std::fs::read_to_string("/proc/sys/vm/overcommit_memory") {
        Ok(mode) if mode.trim() == "2" => {
            "mmap of more than there is memory, under strict overcommit (vm.overcommit_memory=2)"
        }
        _ => MMAP,
    }
}

/// Unmaps an address range.
///
/// # Safety
///
/// [`map`], [`map_promised`] or [`reserve`] mapped these bytes, and no code uses the range again.
pub(crate) unsafe fn unmap(base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: the caller guarantees that this is a whole mapping that is not used again.
    let done = unsafe { kernel::unmap(base.as_ptr(), bytes) };
    done.map_err(|error| refused(Why::Other, "munmap", error))
}

/// Gives the memory behind an address range back to the system. The range stays mapped and reads as
/// zeroes from then on.
///
/// # Safety
///
/// The range lies in one mapping from [`map`] or [`reserve`], and no code relies on its contents.
pub(crate) unsafe fn forget(base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: the caller guarantees that the range is mapped and that its contents may be lost.
    let done = unsafe { kernel::advise(base.as_ptr(), bytes, libc::MADV_DONTNEED) };
    done.map_err(|error| refused(Why::Other, "madvise", error))
}

/// Returns offset and size of `range` if it lies inside `bytes` bytes.
pub(crate) fn inside(
    bytes: usize,
    range: &Range<u64>,
    call: &'static str,
) -> Result<(usize, usize), DeviceError> {
    let outside = DeviceError::new(Why::Foreign, call);
    let start = usize::try_from(range.start).map_err(|_| outside)?;
    let end = usize::try_from(range.end).map_err(|_| outside)?;
    if start > end || end > bytes { Err(outside) } else { Ok((start, end - start)) }
}

/// Maps `count` zeroed values that live as long as the process.
///
/// Returns `None` if the system has no memory. It does not call the global allocator, so an
/// allocator may use it.
pub(crate) fn zeroed<T: Zeroed>(count: usize) -> Option<&'static [T]> {
    let bytes = count.checked_mul(size_of::<T>())?;
    // As the C library maps memory: a sandbox may permit nothing else.
    let base = map_promised(bytes)?;
    // SAFETY: `map_promised` returned a fresh mapping of `count * size_of::<T>()` zero bytes, aligned
    // to a page. `Zeroed` guarantees that zero bytes are a valid `T` and that a page is aligned
    // enough. The mapping is never unmapped, and no other code knows its address.
    Some(unsafe { std::slice::from_raw_parts(base.cast().as_ptr(), count) })
}

/// Types for which all bytes zero is a valid value.
///
/// # Safety
///
/// A value of all zero bytes is valid, and the type's alignment is at most a page.
pub(crate) unsafe trait Zeroed: 'static {}

/// Locks an address range in memory.
///
/// At the system's limit, the error names `RLIMIT_MEMLOCK`, and its code is the limit in bytes.
///
/// A forked child keeps an unlocked copy of the pages. The pages are neither left out of the child
/// nor zeroed there (`MADV_DONTFORK`, `MADV_WIPEONFORK`). If they were left out, the child's next
/// mapping could take their addresses and would then alias the pool's blocks. If they were zeroed,
/// the types that a collection keeps there could have invalid values.
///
/// # Safety
///
/// [`map`] returned `base` and `bytes`.
pub(crate) unsafe fn lock(base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: the caller guarantees that the range is mapped. Locking does not change its contents.
    if unsafe { libc::mlock(base.as_ptr().cast(), bytes) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let refused = refused(Why::Other, "mlock", error);
    let at_limit = [libc::ENOMEM, libc::EPERM, libc::EAGAIN].map(i64::from);
    Err(match system::lock_limit_bytes() {
        Some(limit) if at_limit.contains(&refused.code) => {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            DeviceError::new(Why::Limit(Limit::Device), "mlock beyond RLIMIT_MEMLOCK")
                .expected(limit)
        }
        _ => refused,
    })
}

/// Maps `bytes` bytes and one guard page behind them, which no code may access.
///
/// `bytes` is a multiple of `page`. Returns `None` if the system has no memory, or refuses the
/// protection: each guard is a mapping, of which a process can have `vm.max_map_count`.
pub(crate) fn with_guard(bytes: usize, page: usize) -> Option<NonNull<u8>> {
    let base = map_pages(bytes.checked_add(page)?).ok()?;
    let address = base.as_ptr().expose_provenance();
    // SAFETY: the last page of what was just mapped.
    if unsafe { forbid(address + bytes, page) } {
        return Some(base);
    }
    // SAFETY: all of what was just mapped, which no code uses.
    unsafe { unmap_guarded(address, bytes + page) };
    None
}

/// Makes pages of [`with_guard`] inaccessible. Returns false if the system refuses; then they stay
/// accessible.
///
/// # Safety
///
/// They are of [`with_guard`], and no code uses them from now on.
pub(crate) unsafe fn forbid(address: usize, bytes: usize) -> bool {
    let base = ptr::with_exposed_provenance_mut(address);
    // SAFETY: as the caller says. Later accesses fault.
    unsafe { kernel::protect(base, bytes, libc::PROT_NONE) }.is_ok()
}

/// Unmaps pages of [`with_guard`] after [`forbid`]. `bytes` includes the guard page.
///
/// # Safety
///
/// It is a whole mapping of [`with_guard`], and no code uses it from now on.
pub(crate) unsafe fn unmap_guarded(address: usize, bytes: usize) {
    let base = ptr::with_exposed_provenance_mut(address);
    // SAFETY: as the caller says.
    if unsafe { kernel::unmap(base, bytes) }.is_err() {
        // The addresses are lost, since the mapping would have to be split and there are too many.
        // SAFETY: as the caller says; the contents may go.
        let _ = unsafe { kernel::advise(base, bytes, libc::MADV_DONTNEED) };
    }
}
