//! The allocator below, which is asked for whole blocks of a class and gets them back as such.
#![expect(unsafe_code, reason = "an allocator is called through pointers")]

use crate::depot::{Class, STEP};
use std::alloc::{GlobalAlloc, Layout};

/// From here on blocks may be made of transparent huge pages.
const HUGE_FROM: usize = 4 << 20;
/// The size of a huge page on the machines that this was measured on.
const HUGE_PAGE: usize = 2 << 20;

/// The inner allocator of a cache, and how its blocks are laid out.
#[derive(Debug)]
pub(crate) struct Inner<'a, A> {
    pub(crate) allocator: &'a A,
    /// Large blocks are aligned to huge pages, and the system is advised to use them.
    pub(crate) huge_pages: bool,
}

impl<A: GlobalAlloc> Inner<'_, A> {
    fn is_huge(&self, class: Class) -> bool {
        self.huge_pages && class.bytes() >= HUGE_FROM
    }

    /// How a block of this class is allocated, and so freed: a pure function of the class, since a
    /// program's `dealloc` says no more.
    #[inline]
    pub(crate) fn layout(&self, class: Class) -> Layout {
        let align = if self.is_huge(class) { HUGE_PAGE } else { STEP };
        // SAFETY: a power of two, and a class is at most 64 GiB and a little.
        unsafe { Layout::from_size_align_unchecked(class.bytes(), align) }
    }

    /// A block, or null.
    pub(crate) fn allocate(&self, class: Class, zeroed: bool) -> *mut u8 {
        let layout = self.layout(class);
        let block = if zeroed && !self.is_huge(class) {
            // SAFETY: no class is of 0 bytes.
            unsafe { self.allocator.alloc_zeroed(layout) }
        } else {
            // SAFETY: as above.
            unsafe { self.allocator.alloc(layout) }
        };
        if self.is_huge(class) && !block.is_null() {
            // SAFETY: the addresses are this block's, and advice changes nothing that it holds. It
            // may be refused, and then nothing is lost.
            unsafe { libc::madvise(block.cast(), layout.size(), libc::MADV_HUGEPAGE) };
            if zeroed {
                // After the advice, or the pages would come one by one.
                // SAFETY: so many bytes were just allocated.
                unsafe { block.write_bytes(0, layout.size()) };
            }
        }
        block
    }

    /// Gives a block back.
    ///
    /// # Safety
    ///
    /// It comes from this allocator, of this class, and nobody uses it again.
    pub(crate) unsafe fn free(&self, class: Class, block: *mut u8) {
        // SAFETY: as the caller says; the layout is that of `allocate`.
        unsafe { self.allocator.dealloc(block, self.layout(class)) };
    }

    /// Makes a block of another class of this one; null if there is no memory.
    ///
    /// # Safety
    ///
    /// As for [`Inner::free`], unless the result is null.
    pub(crate) unsafe fn resize(&self, block: *mut u8, old: Class, new: Class) -> *mut u8 {
        // Another's `realloc` would copy what is aligned so, and not ask for huge pages again.
        if !self.is_huge(old) && !self.is_huge(new) {
            // SAFETY: as the caller says; both layouts are aligned alike.
            return unsafe { self.allocator.realloc(block, self.layout(old), new.bytes()) };
        }
        let moved = self.allocate(new, false);
        if !moved.is_null() {
            let kept = old.bytes().min(new.bytes());
            // SAFETY: both hold so many bytes, and they are two blocks.
            unsafe { moved.copy_from_nonoverlapping(block, kept) };
            // SAFETY: as the caller says.
            unsafe { self.free(old, block) };
        }
        moved
    }
}
