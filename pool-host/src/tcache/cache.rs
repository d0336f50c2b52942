//! The slow path of the tcache: requests and frees that a thread cache cannot serve.
//!
//! They go to the depot or to the pages, and to the inner allocator where those have no addresses or
//! no memory.
//!
//! A [`Cache`] is an instance: the caller passes the thread cache to work on and the inner
//! allocator, so that tests can use it without making it the global allocator. The global instance
//! is in `thread.rs`.
//!
//! Nothing here allocates through the global allocator, formats or panics. If a step is not
//! possible (another thread forks, or the system has no memory), the step is left out: the block
//! goes to the next place on its path.
#![expect(unsafe_code, reason = "blocks are given back to where they came from")]

use super::clocks::Clocks;
use super::inner::Inner;
use super::thread_cache::{Held, ThreadCache};
use super::thread_caches::ThreadCaches;
use crate::class::Class;
use crate::depot::{Batch, Depot, batch_len};
use crate::pages::{Pages, Taken};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::alloc::{GlobalAlloc, Layout};

/// Part of the cached limit that the caches of all threads together may hold, as a divisor.
const PART_OF_THREADS: usize = 2;
/// Part of the used pages that they may hold beyond [`LEAST`] for all and [`LEAST_OF_THREAD`] for each,
/// as a divisor; and with blocks of classes that their threads use no more.
const PART_OF_USED: usize = 2;
const PART_OF_UNUSED: usize = 16;
const LEAST: usize = 1 << 20;
const LEAST_OF_THREAD: usize = 1 << 20;
/// Blocks of at least this many bytes may use transparent huge pages, and are then aligned to one.
const HUGE_FROM: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// A cache of freed blocks: the thread caches, the depot and the pages.
///
/// What a fork writes to is on one page: the end of `pages`, `thread_caches` and the begin of `depot`.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Cache {
    /// The most bytes that one thread cache may hold.
    thread_limit: AtomicUsize,
    /// The cached limit, in bytes.
    pub(super) limit: AtomicUsize,
    /// Whether blocks from 4 MiB are aligned for huge pages.
    huge: AtomicBool,
    pub(super) clocks: Clocks,
    pub(crate) counts: Counts,
    pub(crate) pages: Pages,
    pub(crate) thread_caches: ThreadCaches,
    pub(crate) depot: Depot,
}

#[cfg(not(pool_counts))] // counted atomics are larger
const _: () = {
    let first = std::mem::offset_of!(Cache, pages) + Pages::LOCK_AT;
    assert!(
        first / 4096 == (std::mem::offset_of!(Cache, depot) + 64) / 4096,
        "a fork copies one page"
    );
};

/// Counters of the slow path. They have their own cache lines, so that a slow request does not
/// invalidate a line that hits read.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Counts {
    pub(crate) misses: AtomicU64,
    pub(crate) refills: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) bypasses: AtomicU64,
    pub(crate) failures: AtomicU64,
    /// Requests larger than all classes by threads without a thread cache, and frees of such
    /// blocks.
    pub(crate) cacheless: [AtomicU64; 2],
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Relaxed);
}

impl Cache {
    /// Creates a cache that caches nothing until it is configured.
    pub(crate) const fn new() -> Self {
        Self {
            pages: Pages::new(),
            depot: Depot::new(),
            thread_caches: ThreadCaches::new(),
            thread_limit: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            huge: AtomicBool::new(false),
            clocks: Clocks::new(),
            counts: Counts {
                misses: AtomicU64::new(0),
                refills: AtomicU64::new(0),
                flushes: AtomicU64::new(0),
                bypasses: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                cacheless: [const { AtomicU64::new(0) }; 2],
            },
        }
    }

    /// Sets the cached limit and that of a thread cache in bytes, the decay time and `now` in
    /// milliseconds.
    pub(crate) fn configure(&self, limit: usize, of_thread: usize, decay: u64, now: u64) {
        self.limit.store(limit, Relaxed);
        self.thread_limit.store(of_thread, Relaxed);
        self.clocks.set(decay, now);
        self.depot.configure(limit);
        // Without decay no step tells the pages what the others may hold.
        let of_others = if decay == 0 { limit / PART_OF_THREADS + self.depot.limit() } else { 0 };
        self.pages.configure(limit - of_others, decay);
    }

    /// Aligns large blocks for huge pages, and lets the pages use them, from now on.
    pub(crate) fn use_huge_pages(&self) {
        self.huge.store(true, Relaxed);
        self.pages.use_huge_pages();
    }

    /// Returns how many bytes the bins of a thread may hold: its part of what all may, and at most what is
    /// set for a thread. All may hold 1 MiB for each thread, 1 MiB and half of the used pages, and at
    /// most half of the limit.
    pub(super) fn most_of_thread(&self, local: &ThreadCache) -> usize {
        let least = LEAST + self.thread_caches.owners() * LEAST_OF_THREAD;
        let all = least + self.pages.used_bytes() / PART_OF_USED;
        let all = all.min(self.limit.load(Relaxed) / PART_OF_THREADS);
        let part = self.thread_caches.part_of(all, local.room_bytes(), LEAST_OF_THREAD);
        part.min(self.thread_limit.load(Relaxed))
    }

    /// Runs work that changes how many bytes a thread cache may hold, and counts these bytes.
    pub(super) fn counting_room<R>(&self, local: &ThreadCache, work: impl FnOnce() -> R) -> R {
        let before = local.room_bytes();
        let result = work();
        self.thread_caches.count_room(before, local.room_bytes());
        result
    }

    /// Lets a bin hold more blocks, if its thread may. If that holds many bytes then, or the bin has hardly
    /// any room, the thread soon takes room from bins that it does not use.
    fn widen(&self, local: &ThreadCache, held: &Held<'_>, class: Class) {
        if !held.is_narrow(class) {
            return; // without a look at words that all threads write
        }
        let before = local.room_bytes();
        self.counting_room(local, || held.widen(class, self.most_of_thread(local)));
        let few = LEAST_OF_THREAD + self.pages.used_bytes() / PART_OF_UNUSED;
        let is_much = local.room_bytes() > before.max(few) && local.bytes() > few;
        if is_much || held.is_short(class) {
            local.wants_room.store(true, Relaxed);
        }
    }

    /// Returns a block of a class; a null block if there is no memory.
    ///
    /// `Taken::zeroed` tells whether the block reads as zeroes. With `zeroed`, a block from the
    /// inner allocator is requested zeroed; a cached block is not, so the caller must zero it.
    pub(crate) fn allocate<A: GlobalAlloc>(
        &self,
        local: Option<&ThreadCache>,
        class: Class,
        zeroed: bool,
        inner: &Inner<'_, A>,
    ) -> Taken {
        self.turn(local, inner);
        if let Some(block) = self.take_cached(local, class) {
            return Taken { block, zeroed: false };
        }
        let layout = Inner::<A>::layout(class);
        let taken = self.fresh(local, layout, class.is_paged(), zeroed, inner);
        if taken.block.is_null() {
            // The program did not get a block, so the request must not count as a live block.
            self.count_free(local, class);
            count(&self.counts.failures, 1);
        }
        taken
    }

    /// Returns a part of a span; `None` if there is no memory, and while another thread forks.
    pub(crate) fn take_part<A: GlobalAlloc>(
        &self,
        local: Option<&ThreadCache>,
        class: Class,
        inner: &Inner<'_, A>,
    ) -> Option<Taken> {
        self.turn(local, inner);
        let block = self.take_cached(local, class);
        if block.is_none() {
            self.count_free(local, class);
            count(&self.counts.failures, 1);
        }
        Some(Taken { block: block?, zeroed: false })
    }

    /// Counts a request, and takes a block of the thread cache or of the depot, of which the thread
    /// cache gets more.
    fn take_cached(&self, local: Option<&ThreadCache>, class: Class) -> Option<*mut u8> {
        let owned = local.and_then(|local| Some((local, local.hold()?)));
        let Some((local, held)) = owned else {
            self.depot.count_allocation(class);
            return if class.is_paged() {
                None
            } else {
                self.depot.take(class, 1, &self.pages)?.pop()
            };
        };
        held.count_allocation(class);
        if let Some(block) = held.pop(class) {
            return Some(block); // the slow path was taken to read the clock
        }
        self.widen(local, &held, class);
        if class.is_paged() {
            return None;
        }
        let most = (held.cap(class) / 2 + 1).min(batch_len(class));
        let mut batch = self.depot.take(class, most, &self.pages)?;
        count(&self.counts.refills, 1);
        let block = batch.pop();
        // The bin was empty and has room for as many.
        held.fill(class, &mut batch);
        block
    }

    /// Takes a block from the pages, with `on_pages`, or else from the inner allocator.
    ///
    /// If there is no memory, all cached memory that can be reached is given back, and both are
    /// asked a second time.
    pub(super) fn fresh<A: GlobalAlloc>(
        &self,
        local: Option<&ThreadCache>,
        layout: Layout,
        on_pages: bool,
        zeroed: bool,
        inner: &Inner<'_, A>,
    ) -> Taken {
        let ask = || {
            if on_pages && let Some(taken) = self.pages.take(layout.size(), self.align_of(layout)) {
                return taken;
            }
            Taken { block: self.ask_inner(layout, on_pages, zeroed, inner), zeroed }
        };
        let taken = ask();
        if !taken.block.is_null() {
            return taken;
        }
        // Out of memory: give back all cached memory, and ask again.
        self.clear(local, inner);
        ask()
    }

    /// Allocates from the inner allocator, and counts a miss; a bypass if the block should have
    /// come from the pages.
    #[cold]
    fn ask_inner<A: GlobalAlloc>(
        &self,
        layout: Layout,
        on_pages: bool,
        zeroed: bool,
        inner: &Inner<'_, A>,
    ) -> *mut u8 {
        let block = inner.allocate(layout, zeroed);
        if !block.is_null() {
            count(if on_pages { &self.counts.bypasses } else { &self.counts.misses }, 1);
        }
        block
    }

    /// Returns the alignment to request for a layout: that of a huge page for large blocks, if huge
    /// pages are on.
    #[inline]
    pub(super) fn align_of(&self, layout: Layout) -> usize {
        let is_huge = layout.size() >= HUGE_FROM && self.huge.load(Relaxed);
        if is_huge { layout.align().max(HUGE_PAGE) } else { layout.align() }
    }

    /// Counts a block that the slow path takes back.
    pub(super) fn count_free(&self, local: Option<&ThreadCache>, class: Class) {
        match local.and_then(ThreadCache::hold) {
            Some(held) => held.count_free(class),
            None => self.depot.count_free(class),
        }
    }

    /// Takes a block of a class back from the program.
    ///
    /// # Safety
    ///
    /// The block was allocated by this cache as a block of `class`, with this inner allocator, and
    /// the caller does not use it again.
    pub(crate) unsafe fn free<A: GlobalAlloc>(
        &self,
        local: Option<&ThreadCache>,
        class: Class,
        block: *mut u8,
        inner: &Inner<'_, A>,
    ) {
        self.turn(local, inner);
        let (mut batch, mut spilt) = (Batch::EMPTY, Batch::EMPTY);
        batch.add(block);
        if let Some((local, held)) = local.and_then(|local| Some((local, local.hold()?))) {
            held.count_free(class);
            if held.is_full(class) && held.cap(class) < 2 * batch_len(class) {
                // So that a thread which only frees moves whole batches, too.
                self.widen(local, &held, class);
            }
            if held.is_full(class) {
                spilt = held.take_oldest(class, batch_len(class));
                count(&self.counts.flushes, 1);
            }
            held.fill(class, &mut batch);
        } else {
            self.depot.count_free(class);
        }
        for batch in [spilt, batch] {
            // SAFETY: each block of a bin of `class` was freed by the program as a block of `class`,
            // or came from the depot as one, and so did `block`. One `Tcache` owns this cache, so
            // `inner` is the allocator of all of them. No thread cache has them any more.
            unsafe { self.put_back(class, &batch, inner) };
        }
        if class.is_paged()
            && let Some(local) = local
        {
            self.freed_large(local, class.bytes());
        }
    }

    /// Gives blocks back to the depot, to the pages or to the inner allocator.
    ///
    /// # Safety
    ///
    /// Each block of the batch was allocated by this cache as a block of `class`, with this inner
    /// allocator, and is not used again.
    pub(super) unsafe fn put_back<A: GlobalAlloc>(
        &self,
        class: Class,
        batch: &Batch,
        inner: &Inner<'_, A>,
    ) {
        // SAFETY: as the caller says.
        let others = unsafe { self.put_on_pages(class, batch) };
        for block in others.as_slice() {
            // SAFETY: the caller guarantees that this cache allocated the block as one of `class` and
            // that it is not used again. It is not on the pages, so it came from `inner`, with the
            // layout of its class.
            unsafe { inner.free(*block, Inner::<A>::layout(class)) };
        }
    }

    /// Gives those blocks back that are on pages, and returns the others.
    ///
    /// # Safety
    ///
    /// As for [`Cache::put_back`].
    pub(super) unsafe fn put_on_pages(&self, class: Class, batch: &Batch) -> Batch {
        let (mut parts, mut others) = (Batch::EMPTY, Batch::EMPTY);
        for block in batch.as_slice() {
            if !self.pages.has(*block) {
                others.add(*block);
            } else if class.is_paged() {
                // SAFETY: the block is on the pages; the caller guarantees that it is not used again.
                unsafe { self.pages.give(*block) };
            } else {
                parts.add(*block);
            }
        }
        self.depot.put(class, &parts, &self.pages);
        others
    }
}

#[cfg(all(test, shuttle))]
mod model;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
