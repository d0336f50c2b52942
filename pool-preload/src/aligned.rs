//! The functions of C that return aligned blocks.

use crate::heap::{self, ALIGN};
use crate::libc_next::{self, __libc_memalign, errno, set_errno};
use libc::c_int;
use pool_host::tracing;
use std::ptr;

/// Returns the size of a page in bytes, to which `valloc` aligns.
fn page() -> usize {
    // SAFETY: `sysconf` takes a number and returns a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4 << 10)
}

/// Returns a block that is aligned to `align`; null with `errno` if there is no memory.
///
/// An alignment that is no power of two is rounded up to one, as in the C library.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn memalign(align: usize, bytes: usize) -> *mut u8 {
    let block = memalign_plain(align, bytes);
    if tracing::is_on() {
        tracing::allocated(block, bytes);
    }
    block
}

fn memalign_plain(align: usize, bytes: usize) -> *mut u8 {
    if let Some(align) = align.checked_next_power_of_two() {
        let block = heap::allocate(bytes, align.max(ALIGN));
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: the C library's `memalign` takes any alignment and size.
    heap::or_trim(bytes, || unsafe { __libc_memalign(align, bytes) })
}

/// Returns a block that is aligned to `align`, as [`memalign`] does. What the C library makes of an
/// alignment that is no power of two depends on its version.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut u8 {
    if align.is_power_of_two() {
        return memalign(align, bytes);
    }
    let block = libc_next::aligned_alloc(align, bytes);
    if tracing::is_on() {
        tracing::allocated(block, bytes);
    }
    block
}

/// Stores a block that is aligned to `align` at `result`, and returns 0; otherwise returns the
/// error and stores nothing. `errno` stays as it is.
///
/// # Safety
///
/// `result` may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_memalign(
    result: *mut *mut u8,
    align: usize,
    bytes: usize,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut u8>()) {
        return libc::EINVAL;
    }
    let before = errno();
    let block = memalign(align, bytes);
    if block.is_null() {
        set_errno(before);
        return libc::ENOMEM;
    }
    // SAFETY: as the caller says.
    unsafe { result.write(block) };
    0
}

/// Returns a block that is aligned to a page; null with `errno` if there is no memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn valloc(bytes: usize) -> *mut u8 {
    memalign(page(), bytes)
}

/// Returns a block of whole pages that is aligned to a page; null with `errno` if there is no
/// memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pvalloc(bytes: usize) -> *mut u8 {
    let Some(bytes) = bytes.checked_next_multiple_of(page()) else {
        set_errno(libc::ENOMEM);
        return ptr::null_mut();
    };
    memalign(page(), bytes)
}
