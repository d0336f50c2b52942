//! The inner allocator of a tcache, which serves its misses in whole blocks of a class.
#![expect(unsafe_code, reason = "an allocator is called through pointers")]

use crate::class::Class;
use std::alloc::{GlobalAlloc, Layout};

/// The inner allocator of a cache, with the layouts of its blocks.
#[derive(Debug)]
pub(crate) struct Inner<'a, A>(pub(crate) &'a A);

impl<A: GlobalAlloc> Inner<'_, A> {
    /// Returns the layout with which blocks of a class are allocated and freed.
    ///
    /// It depends on the class alone, because `dealloc` knows only the program's layout, from which
    /// the class follows.
    #[inline]
    pub(crate) const fn layout(class: Class) -> Layout {
        // SAFETY: `Class::align` is a power of two of at most 4096, and `Class::bytes` is at most
        // 256 KiB, so the size rounded up to the alignment does not overflow `isize`.
        unsafe { Layout::from_size_align_unchecked(class.bytes(), class.align()) }
    }

    /// Allocates a block; null if there is no memory.
    ///
    /// With `zeroed` the block reads as zeroes; otherwise its contents are not specified.
    pub(crate) fn allocate(&self, layout: Layout, zeroed: bool) -> *mut u8 {
        if zeroed {
            // SAFETY: the layout is that of a class, which has at least 16 bytes, or that of a
            // program's request, whose caller guarantees that it is not of 0 bytes (`GlobalAlloc`).
            unsafe { self.0.alloc_zeroed(layout) }
        } else {
            // SAFETY: as above, the layout is not of 0 bytes.
            unsafe { self.0.alloc(layout) }
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// The block was allocated by this allocator with this layout, and is not used again.
    pub(crate) unsafe fn free(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees the allocator and the layout, and does not use the block
        // again.
        unsafe { self.0.dealloc(block, layout) };
    }
}
