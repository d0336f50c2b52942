//! Requests and frees that the own thread cache does not serve, and those that are not cached.
#![expect(unsafe_code, reason = "blocks of an allocator are pointers")]

use super::checked::CHECKED;
use super::thread::{CACHE, own_thread_cache, thread_cache};
use super::{Tcache, background};
use crate::class::Class;
use crate::tracing;
use std::alloc::{GlobalAlloc, Layout};

impl<A: GlobalAlloc + Sync + 'static> Tcache<A> {
    #[inline(never)]
    pub(super) fn allocate_otherwise(&self, layout: Layout, zeroed: bool) -> *mut u8 {
        if !self.serves() {
            return self.allocate_past(layout, zeroed);
        }
        if !self.traces() {
            return self.allocate_slow(layout, zeroed);
        }
        let cached = Class::of(layout).and_then(|class| thread_cache().take(class));
        let block = cached.unwrap_or_else(|| self.allocate_slow(layout, zeroed));
        if zeroed && cached.is_some() {
            // SAFETY: a block of this class holds that many bytes.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        tracing::allocated(block, layout.size());
        block
    }

    /// Allocates what the thread cache does not have.
    fn allocate_slow(&self, layout: Layout, zeroed: bool) -> *mut u8 {
        background::wake();
        let taken = match Class::of(layout) {
            Some(class) => CACHE.allocate(own_thread_cache(), class, zeroed, &self.inner()),
            None => CACHE.allocate_large(own_thread_cache(), layout, zeroed, &self.inner()),
        };
        if zeroed && !taken.zeroed && !taken.block.is_null() {
            // SAFETY: a block for this layout holds that many bytes.
            unsafe { CACHE.pages.zero(taken.block, layout.size()) };
        }
        taken.block
    }

    #[inline(never)]
    pub(super) unsafe fn free_otherwise(&self, block: *mut u8, layout: Layout) {
        if self.traces() {
            tracing::freed(block);
            if Class::of(layout).is_some_and(|class| thread_cache().put(class, block)) {
                return;
            }
        }
        match Class::of(layout) {
            // SAFETY: as the caller says; what has a class was allocated as a block of it.
            Some(class) if self.serves() => unsafe {
                CACHE.free(own_thread_cache(), class, block, &self.inner());
            },
            // SAFETY: as the caller says.
            None if self.serves() => unsafe {
                CACHE.free_large(own_thread_cache(), block, layout, &self.inner());
            },
            // SAFETY: as the caller says, or what is wrong with it is found.
            _ if self.checks() => unsafe { CHECKED.free(block, layout, &self.inner) },
            // SAFETY: as the caller says; the same layout went past us in `alloc`.
            _ => unsafe { self.inner.dealloc(block, layout) },
        }
    }

    /// Resizes a block, and records that if all is recorded: its free first, since another thread
    /// may get the old block at once. `None` if `resize` returns null, and the block stays.
    pub(super) fn resized(
        &self,
        old: (*mut u8, usize),
        bytes: usize,
        resize: impl FnOnce() -> *mut u8,
    ) -> Option<*mut u8> {
        let traces = self.traces();
        if traces {
            tracing::freed(old.0);
        }
        let new = resize();
        let (block, bytes) = if new.is_null() { old } else { (new, bytes) };
        if traces {
            tracing::allocated(block, bytes);
        }
        (!new.is_null()).then_some(new)
    }

    /// Past the cache.
    #[cold]
    fn allocate_past(&self, layout: Layout, zeroed: bool) -> *mut u8 {
        if self.checks() {
            return CHECKED.allocate(layout, zeroed, &self.inner);
        }
        if zeroed {
            // SAFETY: the layout is the caller's own, who promises that it is not of 0 bytes.
            unsafe { self.inner.alloc_zeroed(layout) }
        } else {
            // SAFETY: as above.
            unsafe { self.inner.alloc(layout) }
        }
    }
}
