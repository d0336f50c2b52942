//! The heap of the process, and the alignment of its blocks.

use pool_host::CHeap;
use std::ptr::{self, NonNull};

/// The heap of the process.
pub(crate) static HEAP: CHeap = CHeap::new();

/// Alignment in bytes of a block whose request names none (`alignof(max_align_t)`).
pub(crate) const ALIGN: usize = 16;

/// Returns a block of the heap; null if it has none, and until it is started.
#[inline]
pub(crate) fn allocate(bytes: usize, align: usize) -> *mut u8 {
    HEAP.allocate(bytes, align).map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Returns a block of the heap that reads as zeroes; null if it has none, and until it is started.
#[inline]
pub(crate) fn allocate_zeroed(bytes: usize) -> *mut u8 {
    HEAP.allocate_zeroed(bytes, ALIGN).map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Returns the block at an address if it is in the heap.
#[inline]
pub(crate) fn own(block: *mut u8) -> Option<NonNull<u8>> {
    // SAFETY: the heap is not at address 0.
    HEAP.has(block).then(|| unsafe { NonNull::new_unchecked(block) })
}

/// Largest request in bytes for which [`or_trim`] tries twice. The heap's own are no larger.
const LARGEST: usize = 1 << 38;

/// Returns what a request of the C library for so many bytes returns. If that has no memory, what the
/// heap has cached goes back to the system, and the request is made once more; then also the addresses
/// that it has reserved, if the process may have few.
#[cold]
pub(crate) fn or_trim(bytes: usize, request: impl Fn() -> *mut u8) -> *mut u8 {
    let block = request();
    if block.is_null() { after_trim(bytes, &request) } else { block }
}

#[cold]
#[inline(never)]
fn after_trim(bytes: usize, request: &dyn Fn() -> *mut u8) -> *mut u8 {
    // `trim` keeps `errno`, which the refusal has set.
    let goes = bytes <= LARGEST && HEAP.trim(u64::MAX) > 0;
    let block = if goes { request() } else { ptr::null_mut() };
    if block.is_null() && bytes <= LARGEST && HEAP.give_up_addresses() { request() } else { block }
}
