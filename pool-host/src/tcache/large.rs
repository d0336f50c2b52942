//! Blocks larger than all classes, or aligned to more than a page: pages, or the inner allocator.
//!
//! A request that a block of its length can serve which was freed a moment ago is
//! [`Cache::take_large`], the hot path of large blocks.
#![expect(unsafe_code, reason = "blocks are given back to where they came from")]

use super::background;
use super::cache::{Cache, count};
use super::inner::Inner;
use super::thread_cache::ThreadCache;
use crate::class::Class;
use crate::pages::Taken;
use crate::system;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes that a thread frees until it looks at the limit. From then on it looks each time that they have
/// doubled, until it reads the clock.
const CHECKED_FROM: usize = 16 << 20;

impl Cache {
    /// Takes a block larger than all classes that was freed a moment ago. `None` if there is none,
    /// and where the slow path must count the request.
    #[inline]
    pub(crate) fn take_large(&self, local: &ThreadCache, layout: Layout) -> Option<*mut u8> {
        if !local.may_count_large(false) {
            return None;
        }
        let block = self.pages.take_recent(layout.size(), self.align_of(layout))?;
        local.count_large(false);
        Some(block)
    }

    /// Takes back a block larger than all classes, if it is on pages. False where the slow path
    /// must do it, and then nothing is done.
    ///
    /// # Safety
    ///
    /// As for [`Cache::free_large`].
    #[inline]
    pub(crate) unsafe fn put_large(&self, local: &ThreadCache, block: *mut u8) -> bool {
        if !local.may_count_large(true) || !self.pages.has(block) {
            return false;
        }
        local.count_large(true);
        // SAFETY: the block is on the pages, and the caller guarantees that it is not used again.
        let bytes = unsafe { self.pages.give(block) };
        self.freed_large(local, bytes);
        true
    }

    /// Returns a run of pages; `None` if there is no memory, and while another thread forks.
    pub(crate) fn take_run<A: GlobalAlloc>(
        &self,
        local: Option<&ThreadCache>,
        layout: Layout,
        inner: &Inner<'_, A>,
    ) -> Option<Taken> {
        self.turn(local, inner);
        let taken = self.pages.take(layout.size(), self.align_of(layout));
        self.count_large(local, false);
        if taken.is_none() {
            self.count_large(local, true);
            count(&self.counts.failures, 1);
        }
        taken
    }

    /// Frees a run of pages.
    ///
    /// # Safety
    ///
    /// The block is a run of pages, and is not used again.
    pub(crate) unsafe fn free_run(&self, local: Option<&ThreadCache>, block: *mut u8) {
        self.count_large(local, true);
        // SAFETY: as the caller says.
        let bytes = unsafe { self.pages.give(block) };
        if let Some(local) = local {
            self.freed_large(local, bytes);
        }
    }

    /// Resizes a run of pages, in place or else by moving its contents to a place with room for more
    /// growth. Returns the resized block; `None` if that is not possible, and then the block is
    /// unchanged.
    ///
    /// # Safety
    ///
    /// As for [`Cache::resize`].
    pub(crate) unsafe fn resize_run(
        &self,
        local: Option<&ThreadCache>,
        block: *mut u8,
        old: Layout,
        new: Layout,
    ) -> Option<*mut u8> {
        let (kept, align) = (old.size().min(new.size()), self.align_of(new));
        // SAFETY: the caller guarantees that the block is on the pages and uses only the result. Both
        // hold `kept` bytes.
        let block = unsafe { self.pages.resize_or_move(block, kept, new.size(), align) }?;
        self.count_large(local, true);
        self.count_large(local, false);
        Some(block)
    }

    /// Returns a block larger than all classes, or aligned to more than 4096 bytes; a null block if
    /// there is no memory.
    pub(crate) fn allocate_large<A: GlobalAlloc>(
        &self,
        local: Option<&ThreadCache>,
        layout: Layout,
        zeroed: bool,
        inner: &Inner<'_, A>,
    ) -> Taken {
        self.turn(local, inner);
        self.count_large(local, false);
        let taken = self.fresh(local, layout, true, zeroed, inner);
        if taken.block.is_null() {
            self.count_large(local, true);
            count(&self.counts.failures, 1);
        }
        taken
    }

    /// Notes that the thread of `own` freed a large block of this size. Now and then, gives back what
    /// is beyond the limit.
    #[inline]
    pub(super) fn freed_large(&self, own: &ThreadCache, bytes: usize) {
        if own.frees(bytes, CHECKED_FROM) {
            self.check_limit();
        }
    }

    #[cold]
    fn check_limit(&self) {
        system::keeping_errno(|| {
            self.pages.heed_limits();
            if self.idle_bytes() > self.limit.load(Relaxed) {
                // Runs in slots count as used until they are swept.
                self.pages.give_back_slots();
            }
            background::wake();
        });
    }

    /// Counts a request larger than all classes, or with `freed` a free of such a block.
    pub(super) fn count_large(&self, local: Option<&ThreadCache>, freed: bool) {
        match local {
            Some(local) => local.count_large(freed),
            None => count(&self.counts.cacheless[usize::from(freed)], 1),
        }
    }

    /// Takes back a block that is larger than all classes, or aligned to more than 4096 bytes.
    ///
    /// # Safety
    ///
    /// The block was allocated by this cache with this layout and this inner allocator, and the
    /// caller does not use it again.
    pub(crate) unsafe fn free_large<A: GlobalAlloc>(
        &self,
        local: Option<&ThreadCache>,
        block: *mut u8,
        layout: Layout,
        inner: &Inner<'_, A>,
    ) {
        if self.pages.has(block) {
            // SAFETY: the block is on the pages, and the caller guarantees that it is not used
            // again.
            unsafe { self.free_run(local, block) };
        } else {
            self.count_large(local, true);
            // SAFETY: the caller guarantees that this cache allocated the block with this layout.
            // It is not on the pages, so `ask_inner` got it from `inner` with this layout, or
            // `Tcache::realloc` had `inner` resize it to this layout.
            unsafe { inner.free(block, layout) };
        }
    }

    /// Resizes a block on pages to a new layout, in place or else by moving its contents.
    ///
    /// A block that moves gets a place with room for more growth. Returns the resized block; `None`
    /// if that is not possible, and then the block is unchanged.
    ///
    /// # Safety
    ///
    /// The block is on the pages, and was allocated by this cache with the layout `old`. Unless the
    /// result is `None`, the caller uses only the returned pointer from then on. `new` has the
    /// alignment of `old`, and at least one byte.
    pub(crate) unsafe fn resize(
        &self,
        local: Option<&ThreadCache>,
        block: *mut u8,
        old: Layout,
        new: Layout,
    ) -> Option<*mut u8> {
        let class = Class::of(new);
        let bytes = class.map_or(new.size(), Class::bytes);
        let (kept, align) = (old.size().min(new.size()), self.align_of(new));
        // SAFETY: the caller guarantees that the block is on the pages and uses only the result.
        // The old block holds `old.size()` bytes, and the new one `bytes`, which is at least
        // `new.size()`.
        let block = unsafe { self.pages.resize_or_move(block, kept, bytes, align) }?;
        match Class::of(old) {
            Some(old) => self.count_free(local, old),
            None => self.count_large(local, true),
        }
        match class {
            Some(class) => self.count_resized(local, class),
            None => self.count_large(local, false),
        }
        Some(block)
    }

    /// Counts a request that moved no block into or out of a thread cache.
    fn count_resized(&self, local: Option<&ThreadCache>, class: Class) {
        match local.and_then(ThreadCache::hold) {
            Some(held) => held.count_allocation(class),
            None => self.depot.count_allocation(class),
        }
    }
}
