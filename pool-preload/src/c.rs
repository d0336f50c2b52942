//! The functions of C that a program allocates with (the C library's manual, "Replacing malloc").

use crate::heap::{self, ALIGN, HEAP};
use crate::libc_next::{self, __libc_calloc, __libc_free, __libc_malloc, __libc_realloc};
use libc::c_int;
use pool_host::tracing;
use std::ptr;

/// Size in bytes from which a block of the C library that grows moves to the heap.
const LARGE: usize = 64 << 10;

/// Returns a block of at least `bytes` bytes; null with `errno` if there is no memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn malloc(bytes: usize) -> *mut u8 {
    if tracing::is_on() {
        return malloc_traced(bytes);
    }
    malloc_plain(bytes)
}

#[inline]
fn malloc_plain(bytes: usize) -> *mut u8 {
    match HEAP.allocate_cached(bytes, ALIGN) {
        Some(block) => block.as_ptr(),
        None => malloc_slow(bytes),
    }
}

/// Allocates what the thread has not cached. A function, so that [`malloc`] saves no register for it.
#[inline(never)]
extern "C" fn malloc_slow(bytes: usize) -> *mut u8 {
    let block = heap::allocate(bytes, ALIGN);
    if !block.is_null() {
        return block;
    }
    // SAFETY: the C library's `malloc` takes any size.
    heap::or_trim(bytes, || unsafe { __libc_malloc(bytes) })
}

#[cold]
#[inline(never)]
extern "C" fn malloc_traced(bytes: usize) -> *mut u8 {
    let block = malloc_plain(bytes);
    tracing::allocated(block, bytes);
    block
}

/// Frees a block; nothing happens for null. `errno` stays as it is.
///
/// # Safety
///
/// The block comes from a function of this family, is in use, and is not used again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free(block: *mut u8) {
    if tracing::is_on() {
        // SAFETY: as the caller says.
        return unsafe { free_traced(block) };
    }
    // SAFETY: as the caller says.
    unsafe { free_plain(block) };
}

/// Frees a block as [`free`] does, and records it.
///
/// # Safety
///
/// As for [`free`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_traced(block: *mut u8) {
    tracing::freed(block);
    // SAFETY: as the caller says.
    unsafe { free_plain(block) };
}

/// Frees a block as [`free`] does, unrecorded.
///
/// # Safety
///
/// As for [`free`].
#[inline]
unsafe fn free_plain(block: *mut u8) {
    // SAFETY: as the caller says.
    if !unsafe { HEAP.free_cached(block) } {
        // SAFETY: as the caller says.
        unsafe { free_slow(block) };
    }
}

/// Frees a block that the thread does not cache. A function, so that [`free`] saves no register for it.
///
/// # Safety
///
/// As for [`free`].
#[inline(never)]
unsafe extern "C" fn free_slow(block: *mut u8) {
    // SAFETY: as the caller says.
    if !unsafe { HEAP.free(block) } {
        // SAFETY: as the caller says; what is not in the heap is the C library's.
        unsafe { __libc_free(block) };
    }
}

/// Frees a block as [`free`] does. The size is not needed.
///
/// # Safety
///
/// As for [`free`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free_sized(block: *mut u8, _bytes: usize) {
    // SAFETY: as the caller says.
    unsafe { free(block) };
}

/// Frees a block as [`free`] does. Alignment and size are not needed.
///
/// # Safety
///
/// As for [`free`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free_aligned_sized(block: *mut u8, _align: usize, _bytes: usize) {
    // SAFETY: as the caller says.
    unsafe { free(block) };
}

/// Returns a block for `count` elements of `each` bytes that reads as zeroes; null with `errno` if
/// there is no memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn calloc(count: usize, each: usize) -> *mut u8 {
    if tracing::is_on() {
        let block = calloc_plain(count, each);
        tracing::allocated(block, count.saturating_mul(each));
        return block;
    }
    calloc_plain(count, each)
}

fn calloc_plain(count: usize, each: usize) -> *mut u8 {
    if let Some(bytes) = count.checked_mul(each) {
        let block = heap::allocate_zeroed(bytes);
        if !block.is_null() {
            return block;
        }
    }
    // SAFETY: the C library's `calloc` takes any sizes, and reports a product that overflows.
    heap::or_trim(count.saturating_mul(each), || unsafe { __libc_calloc(count, each) })
}

/// Resizes a block, in place or by moving what it holds; null with `errno` if there is no memory,
/// and then the block is unchanged. A size of 0 frees the block, as in the C library.
///
/// # Safety
///
/// As for [`free`], unless the result is null for a size above 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn realloc(block: *mut u8, bytes: usize) -> *mut u8 {
    if !tracing::is_on() {
        // SAFETY: as the caller says.
        return unsafe { realloc_plain(block, bytes) };
    }
    // SAFETY: as the caller says.
    let before = unsafe { malloc_usable_size(block) };
    // Before another thread can have the old block.
    tracing::freed(block);
    // SAFETY: as the caller says.
    let resized = unsafe { realloc_plain(block, bytes) };
    if !resized.is_null() {
        tracing::allocated(resized, bytes);
    } else if bytes > 0 && !block.is_null() {
        tracing::allocated(block, before); // it is unchanged
    }
    resized
}

/// Resizes a block as [`realloc`] does, unrecorded.
///
/// # Safety
///
/// As for [`realloc`].
unsafe fn realloc_plain(block: *mut u8, bytes: usize) -> *mut u8 {
    let Some(own) = heap::own(block) else {
        // SAFETY: as the caller says; the block is the C library's, or null.
        return unsafe { realloc_next(block, bytes) };
    };
    if bytes == 0 {
        // SAFETY: as the caller says.
        unsafe { free_plain(block) };
        return ptr::null_mut();
    }
    // SAFETY: as the caller says; the block is in the heap.
    if let Some(resized) = unsafe { HEAP.resize(own, bytes, ALIGN) } {
        return resized.as_ptr();
    }
    // SAFETY: the C library's `malloc` takes any size.
    let resized = heap::or_trim(bytes, || unsafe { __libc_malloc(bytes) });
    // SAFETY: as the caller says; the block is in the heap.
    if resized.is_null() && bytes <= unsafe { HEAP.usable_bytes(own) } {
        return block; // it is no smaller, and there is no memory for another
    }
    if !resized.is_null() {
        // SAFETY: as the caller says; the block is in the heap.
        let kept = unsafe { HEAP.usable_bytes(own) }.min(bytes);
        // SAFETY: both blocks are in use and hold that many bytes.
        unsafe { resized.copy_from_nonoverlapping(block, kept) };
        // SAFETY: as the caller says.
        unsafe { free_plain(block) };
    }
    resized
}

/// Resizes a block of the C library, or allocates for null.
///
/// A block that grows large moves to the heap: there its pages move instead of its bytes. What the
/// heap refuses stays with the C library.
///
/// # Safety
///
/// As for [`realloc`]; the block is the C library's, or null.
unsafe fn realloc_next(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        return malloc_plain(bytes);
    }
    if bytes >= LARGE {
        let moved = heap::allocate(bytes, ALIGN);
        if !moved.is_null() {
            // SAFETY: as the caller says.
            let kept = unsafe { libc_next::usable_bytes(block) }.min(bytes);
            // SAFETY: both blocks are in use and hold that many bytes.
            unsafe { moved.copy_from_nonoverlapping(block, kept) };
            // SAFETY: as the caller says.
            unsafe { __libc_free(block) };
            return moved;
        }
    }
    if bytes == 0 {
        // SAFETY: as the caller says. This frees the block and returns null.
        return unsafe { __libc_realloc(block, bytes) };
    }
    // SAFETY: as the caller says. A request that is refused leaves the block as it is.
    heap::or_trim(bytes, || unsafe { __libc_realloc(block, bytes) })
}

/// Returns how many bytes a block holds; 0 for null.
///
/// # Safety
///
/// The block comes from a function of this family and is in use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn malloc_usable_size(block: *mut u8) -> usize {
    match heap::own(block) {
        // SAFETY: as the caller says; the block is in the heap.
        Some(block) => unsafe { HEAP.usable_bytes(block) },
        None if block.is_null() => 0,
        // SAFETY: as the caller says; what is not in the heap is the C library's.
        None => unsafe { libc_next::usable_bytes(block) },
    }
}

/// Gives cached memory back to the system, here and in the C library, which keeps `pad` bytes.
/// Returns 1 if any went, else 0.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn malloc_trim(pad: usize) -> c_int {
    let went = HEAP.trim(u64::MAX) > 0;
    c_int::from(libc_next::trim(pad) || went)
}
