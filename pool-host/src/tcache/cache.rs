//! The slow path of the tcache: requests and frees that a thread cache cannot serve.
//!
//! They go to the depot, then to the pages, then to the inner allocator.
//!
//! A [`Cache`] is an instance: the caller passes the thread cache to work on and the inner
//! allocator, so that tests can use it without making it the global allocator. The global instance
//! is in `thread.rs`.
//!
//! Nothing here allocates through the global allocator, formats or panics. If a step is not
//! possible (a lock is held by another thread, or the system has no memory), the step is left out:
//! the block goes to the next place on its path, in the end to the inner allocator, or is taken
//! from there.
#![expect(unsafe_code, reason = "blocks are given back to where they came from")]

use super::held::Held;
use super::inner::Inner;
use super::thread_cache::ThreadCache;
use super::thread_caches::ThreadCaches;
use crate::depot::{Batch, Class, Depot, LARGEST, MAGAZINE};
use crate::pages::{Pages, Taken};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::alloc::{GlobalAlloc, Layout};

/// Cached bytes up to which a program counts as small.
///
/// Up to this bound `make_way` gives blocks back while the program grows. Beyond it,
/// threads read the clock more often (`much_is_idle`).
///
/// Measured: with `make_way` 1.4 times the live peak is resident on a compiler's run, without it
/// 1.6 times. Without this bound on it, two of the loads in `cache/tests/loads.rs` hit 86 % and
/// 66 % instead of 96 % and 68 %.
pub(super) const LITTLE: usize = 16 << 20;
/// A cache of freed blocks: the thread caches, the depot and the pages.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) pages: Pages,
    pub(crate) depot: Depot,
    pub(crate) thread_caches: ThreadCaches,
    /// The most bytes that one thread cache may lease.
    pub(super) local_lease: AtomicUsize,
    /// Bytes that all thread caches together have leased.
    pub(super) leased_locally: AtomicUsize,
    /// The cached limit, in bytes.
    pub(super) limit: AtomicUsize,
    /// Whether blocks from 4 MiB are aligned for huge pages.
    huge: AtomicBool,
    /// Milliseconds between two steps of the decay; 0 for no decay.
    pub(super) decay_every: AtomicU64,
    /// Time of the last decay step, in milliseconds.
    pub(super) decayed_at: AtomicU64,
    /// Time at which decayed blocks were last given back, in milliseconds.
    pub(super) paid_at: AtomicU64,
    /// Time at which unused leases of other threads were last reclaimed, in milliseconds.
    pub(super) asked_at: AtomicU64,
    /// Whether many bytes are cached ([`LITTLE`]). Threads then read the clock more often.
    pub(super) is_much_idle: AtomicBool,
    /// Bytes allocated from the inner allocator since growth last caused a decay step.
    pub(super) grown: AtomicUsize,
    /// Bytes given back to the inner allocator since the C library was last asked to trim.
    pub(super) untrimmed: AtomicUsize,
    /// Time at which memory pressure was last read, in milliseconds.
    pub(super) felt_at: AtomicU64,
    /// Factor by which decay is faster while memory is short; 1 otherwise.
    pub(super) haste: AtomicU64,
    pub(crate) counts: Counts,
}

/// Counters of the slow path. They have their own cache lines, so that a slow request does not
/// invalidate a line that hits read.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Counts {
    pub(crate) misses: AtomicU64,
    pub(crate) refills: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) decayed: AtomicU64,
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

/// Returns how many blocks of a class move between a thread cache and the depot at once.
///
/// The batch holds at most 256 KiB and at most one magazine, and at least one block.
const fn batch_len(class: Class) -> usize {
    let fit = LARGEST / class.bytes();
    if fit > MAGAZINE {
        MAGAZINE
    } else if fit == 0 {
        1
    } else {
        fit
    }
}

/// Steps of one decay time. Each step gives back half of the blocks that no request needed.
const DECAY_STEPS: u64 = 10;
/// Blocks of at least this many bytes may use transparent huge pages, and are then aligned to one.
const HUGE_FROM: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;

impl Cache {
    /// Creates a cache that caches nothing until it is configured.
    pub(crate) const fn new() -> Self {
        Self {
            pages: Pages::new(),
            depot: Depot::new(0),
            thread_caches: ThreadCaches::new(),
            local_lease: AtomicUsize::new(0),
            leased_locally: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            huge: AtomicBool::new(false),
            decay_every: AtomicU64::new(0),
            decayed_at: AtomicU64::new(0),
            paid_at: AtomicU64::new(0),
            asked_at: AtomicU64::new(0),
            is_much_idle: AtomicBool::new(false),
            grown: AtomicUsize::new(0),
            untrimmed: AtomicUsize::new(0),
            felt_at: AtomicU64::new(0),
            haste: AtomicU64::new(1),
            counts: Counts {
                misses: AtomicU64::new(0),
                refills: AtomicU64::new(0),
                flushes: AtomicU64::new(0),
                evicted: AtomicU64::new(0),
                decayed: AtomicU64::new(0),
                bypasses: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                cacheless: [const { AtomicU64::new(0) }; 2],
            },
        }
    }

    /// Sets the cached limit and the lease of a thread cache in bytes, the decay time and `now` in
    /// milliseconds.
    ///
    /// Thread caches and the depot together may lease half of the limit, so that large blocks,
    /// which are cached on pages, always have the other half.
    pub(crate) fn configure(&self, limit: usize, local_lease: usize, decay: u64, now: u64) {
        self.limit.store(limit, Relaxed);
        self.depot.leases.set_limit(limit / 2);
        self.local_lease.store(local_lease, Relaxed);
        self.decay_every.store(decay.div_ceil(DECAY_STEPS), Relaxed);
        self.decayed_at.store(now, Relaxed);
        self.pages.configure(limit, decay);
    }

    /// Aligns large blocks for huge pages, and lets the pages use them, from now on.
    pub(crate) fn use_huge_pages(&self) {
        self.huge.store(true, Relaxed);
        self.pages.use_huge_pages();
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
        self.turn(local, Some(class), inner);
        let held = self.hold(local, class);
        self.count_allocation(local, held.as_ref(), class);
        let found = match &held {
            Some(held) => self.refill(held, class, inner),
            None => self.depot.pop(class, 1).and_then(|mut batch| batch.pop()),
        };
        drop(held);
        let taken = match found {
            Some(block) => return Taken { block, zeroed: false },
            None => self.fresh(Inner::<A>::layout(class), class.is_paged(), zeroed, inner),
        };
        if taken.block.is_null() {
            // The program did not get a block, so the request must not count as a live block.
            self.count_free(self.hold(local, class).as_ref(), class);
            count(&self.counts.failures, 1);
        }
        taken
    }

    /// Holds this thread's thread cache, and compacts a class of it.
    ///
    /// `None` if the thread has none, or if another thread keeps holding it.
    pub(super) fn hold<'f>(
        &self,
        local: Option<&'f ThreadCache>,
        class: Class,
    ) -> Option<Held<'f>> {
        let held = local?.hold()?;
        self.compact(&held, class);
        Some(held)
    }

    /// Compacts a class after another thread may have taken blocks back from it.
    ///
    /// A block that the owner was putting in while the class was closed has no lease. It is leased
    /// here, even if the sum of leases then exceeds its bound by that block.
    pub(super) fn compact(&self, held: &Held<'_>, class: Class) {
        let excess = held.compact(class);
        if excess > 0 {
            let bytes = excess * class.bytes();
            self.depot.leases.take(bytes);
            self.leased_locally.fetch_add(bytes, Relaxed);
            held.set_limit(class, held.limit(class) + excess);
        }
    }

    /// Takes a block of the bin.
    ///
    /// If the bin is empty, takes a batch from the depot, returns one block of it, and puts the
    /// others into the bin.
    fn refill<A: GlobalAlloc>(
        &self,
        held: &Held<'_>,
        class: Class,
        inner: &Inner<'_, A>,
    ) -> Option<*mut u8> {
        if let Some(block) = held.pop(class) {
            return Some(block); // the slow path was taken only to read the clock
        }
        self.widen(held, class, inner);
        let most = (held.room(class) / 2 + 1).min(batch_len(class));
        let mut batch = self.depot.pop(class, most)?;
        count(&self.counts.refills, 1);
        let block = batch.pop();
        held.fill(class, &mut batch);
        block
    }

    /// Takes a block from the pages, with `on_pages`, or else from the inner allocator.
    ///
    /// If there is no memory, all cached memory that can be reached is given back, and both are
    /// asked a second time.
    pub(super) fn fresh<A: GlobalAlloc>(
        &self,
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
        self.clear(inner);
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
        self.make_way(layout.size(), inner);
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

    /// Counts a request that the slow path serves.
    fn count_allocation(&self, local: Option<&ThreadCache>, held: Option<&Held<'_>>, class: Class) {
        match (local, held) {
            (Some(local), Some(held)) => {
                let turns = local.next_turns(self.is_much_idle.load(Relaxed));
                held.count_allocation(class, turns);
            }
            _ => self.depot.count_allocation(class),
        }
    }

    /// Counts a block that the slow path takes back.
    pub(super) fn count_free(&self, held: Option<&Held<'_>>, class: Class) {
        match held {
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
        self.turn(local, Some(class), inner);
        let held = self.hold(local, class);
        self.count_free(held.as_ref(), class);
        let mut batch = Batch::of(block);
        if let (Some(local), Some(held)) = (local, &held) {
            held.limit_turns(class, local.next_turns(self.is_much_idle.load(Relaxed)));
            if held.room(class) == 0 {
                self.widen(held, class, inner);
            }
            if held.room(class) == 0 {
                let oldest = held.take_oldest(class, batch_len(class));
                count(&self.counts.flushes, usize::from(oldest.len > 0));
                // SAFETY: each block of the bin of `class` was freed by the program as a block of
                // `class`, or came from the depot as one. One `Tcache` owns this cache, so `inner`
                // is the allocator of all of them. `take_oldest` removed them from the bin, so no
                // thread has them.
                unsafe { self.keep(class, oldest, inner) };
            }
            held.fill(class, &mut batch);
        }
        drop(held);
        // SAFETY: the batch is empty, or holds `block`, for which the caller guarantees this.
        unsafe { self.keep(class, batch, inner) };
        if class.is_paged()
            && let Some(local) = local
        {
            self.freed_large(local, class.bytes());
        }
    }
}

#[cfg(all(test, shuttle))]
mod model;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
