//! Zeroed memory for the blocks of pools that is not written for that.
//!
//! ```text
//!   bytes            from                                     once freed
//!   below 16 KiB     the global allocator (`calloc`)          there
//!   below 8 MiB      HEAP, one page heap of the process       32 MiB stay cached there, and what
//!                                                             comes between two looks
//!   8 MiB and more   a mapping of its own, at most 16 384     unmapped
//! ```
//!
//! `calloc` clears all memory that was in its heap before, also pages that nobody ever touched, and
//! each page that it clears first is a fault. Pages of `HEAP` that the system has just given, and
//! mappings, are zero without that. Where one of the two has no memory, the global allocator has the
//! next word. The limits come from measurements (docs/decisions/050-fresh-host-memory.md).
#![expect(unsafe_code, reason = "blocks are addresses")]

use crate::page_heap::PageHeap;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::{system, virtual_memory};
use once_cell::race::OnceBool;
use pool_core::DeviceError;
use std::alloc::{self, Layout};
use std::ptr::NonNull;

/// Bytes from which on a block is in [`HEAP`]: it wastes half a page on average there.
const PAGES_FROM: usize = 16 << 10;
/// Bytes from which on a block is a mapping. A free costs a call of the system and all page faults of
/// the next block.
const MAPPING_FROM: usize = 8 << 20;
/// The most mappings at a time. The system permits the process 65 530 (`vm.max_map_count`), and a
/// block that is freed between others splits one in two.
const MAX_MAPPINGS: usize = 16 << 10;
/// Least size of a page in bytes: each mapping begins at a multiple.
const LEAST_PAGE: usize = 4 << 10;
/// Alignment of all blocks of C's `calloc` in bytes. For larger ones the standard library takes
/// other memory and writes the zeroes itself (library/std/src/sys/alloc, `MIN_ALIGN`).
const NATURAL: usize = 16;

/// The pages of all pools of this process. It has no thread: what pools do not need they return by
/// [`release_kept`], and the rest is little.
static HEAP: PageHeap = PageHeap::new().cached_limit(32 << 20).background(false);
/// The number of mappings.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);
/// Bytes that went to the global allocator or to [`HEAP`] since [`release_kept`] last did something.
static FREED: AtomicUsize = AtomicUsize::new(0);
/// Fewer freed bytes than this are not worth a walk through the heap.
const TRIMMED: usize = 1 << 20;

/// Memory that reads as zeroes. It has room for the requested bytes at the requested alignment.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) base: NonNull<u8>,
    /// Whether it is a mapping of its own, which [`free`] must be told.
    pub(crate) is_mapping: bool,
}

/// Starts the heap, before a block needs it: a thread that does so later may be the one that a fork
/// waits for, and handlers for forks are not added meanwhile.
pub(crate) fn prepare() {
    let _ = uses_pages();
}

/// Returns memory for a block, whose bytes begin at the first multiple of `alignment` in it.
///
/// Returns `None` if there is no memory, or the size overflows. `bytes` must not be 0, and
/// `alignment` is a power of two.
pub(crate) fn allocate(bytes: usize, alignment: usize) -> Option<Fresh> {
    let layout = layout(bytes, alignment)?;
    if layout.size() < PAGES_FROM || !uses_pages() {
        return from_global(layout);
    }
    if bytes >= MAPPING_FROM
        && !PageHeap::is_in_sandbox()
        && let Some(base) = map(mapping_bytes(bytes, alignment)?)
    {
        return Some(Fresh { base, is_mapping: true });
    }
    match HEAP.allocate_zeroed(bytes, alignment) {
        Some(base) => Some(Fresh { base, is_mapping: false }),
        None => from_global(layout),
    }
}

fn from_global(layout: Layout) -> Option<Fresh> {
    // SAFETY: the layout's size is not 0, since `allocate` is not called for 0 bytes.
    let base = unsafe { alloc::alloc_zeroed(layout) };
    NonNull::new(base).map(|base| Fresh { base, is_mapping: false })
}

/// Maps a block, unless there are too many.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let base = if MAPPINGS.fetch_add(1, Relaxed) < MAX_MAPPINGS {
        virtual_memory::map_promised(bytes)
    } else {
        None
    };
    if base.is_none() {
        MAPPINGS.fetch_sub(1, Relaxed);
    }
    base
}

/// Frees the memory of a block.
///
/// # Errors
///
/// If the system does not unmap a mapping.
///
/// # Safety
///
/// [`allocate`] returned it for these bytes and this alignment, and no code uses it again.
pub(crate) unsafe fn free(
    Fresh { base, is_mapping }: Fresh,
    bytes: usize,
    alignment: usize,
) -> Result<(), DeviceError> {
    if is_mapping {
        let mapped = mapping_bytes(bytes, alignment).unwrap_or(bytes);
        // SAFETY: the caller guarantees that `allocate` mapped the block, which it did with this
        // size, and that it is not used again.
        return unsafe { unmap(base, mapped) };
    }
    FREED.fetch_add(bytes, Relaxed);
    if HEAP.has(base.as_ptr()) {
        // SAFETY: the address is of the heap, and the caller guarantees that it is a block that is
        // not used again.
        unsafe { HEAP.free(base) };
    } else if let Some(layout) = layout(bytes, alignment) {
        // SAFETY: the block is neither a mapping nor of the heap, so `allocate` got it from the global
        // allocator with this layout, which depends on the size and the alignment alone. The caller
        // guarantees that it is not used again.
        unsafe { alloc::dealloc(base.as_ptr(), layout) };
    }
    Ok(())
}

/// Unmaps a block; where the system refuses, since one mapping would become two and there are too many,
/// gives its memory back, and the addresses stay.
///
/// # Safety
///
/// As for [`virtual_memory::unmap`].
unsafe fn unmap(base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: as the caller says.
    match unsafe { virtual_memory::unmap(base, bytes) } {
        Ok(()) => {
            MAPPINGS.fetch_sub(1, Relaxed);
            Ok(())
        }
        // SAFETY: as above; the range is still mapped, and nobody relies on its contents.
        Err(_) => unsafe { virtual_memory::forget(base, bytes) },
    }
}

/// Gives the memory of freed blocks to the system.
///
/// glibc keeps what it gets, once a large block has raised its mmap threshold: it walks through its
/// heap, one step for each free block of a page and more. Does nothing until at least 1 MiB was freed
/// since the last time.
pub(crate) fn release_kept() {
    if FREED.load(Relaxed) >= TRIMMED {
        FREED.store(0, Relaxed);
        if uses_pages() {
            HEAP.trim_all();
        }
        // It needs a call that `malloc` itself does not.
        if !PageHeap::is_in_sandbox() {
            system::trim_c_heap();
        }
    }
}

/// Returns the layout to request of the global allocator, with room to align within.
fn layout(bytes: usize, alignment: usize) -> Option<Layout> {
    let room = if alignment > NATURAL { alignment } else { 0 };
    Layout::from_size_align(bytes.checked_add(room)?, NATURAL).ok()
}

/// Returns the size of a mapping, with room to align within.
fn mapping_bytes(bytes: usize, alignment: usize) -> Option<usize> {
    bytes.checked_add(if alignment > LEAST_PAGE { alignment } else { 0 })
}

/// Returns whether blocks may be pages: not where a sanitizer, Valgrind or Miri looks after the
/// blocks of the global allocator.
fn uses_pages() -> bool {
    // Threads that come here first do not wait for each other: one may be missing in a forked child.
    // While another one starts the heap, blocks come from the global allocator.
    static IS_WATCHED: OnceBool = OnceBool::new();
    let is_watched = || {
        let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        system::is_watched_beside(preloaded.as_encoded_bytes())
    };
    !cfg!(miri) && !IS_WATCHED.get_or_init(is_watched) && HEAP.start_for_pools()
}
