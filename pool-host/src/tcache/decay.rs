//! All clocks of the tcache: what no request needs for a while goes from the thread caches to the
//! depot, from there to spans, and from the pages to the system.
//!
//! ```text
//!   Cache::turn         on each slow call       now and then, and for one hit in 256: reads the clock
//!   Cache::look_now     also the background thread
//!     age               a tenth of the decay time has passed
//!       own             half of what its thread did not need
//!       visit_parked    in the background thread: all that threads did not need which have not read
//!                       the clock meanwhile
//!     Depot::age         half of what no thread needed
//!     Depot::give_back   pages between blocks in use
//!     Pages::look        pages beyond the recent need, on a clock of their own
//! ```
//!
//! Each of these does a bounded part; the next call continues where one stopped. The last three are
//! left to the background thread while there is one. [`Cache::trim`] and [`Cache::clear`] take as long
//! as they need.
#![expect(unsafe_code, reason = "blocks are given back to where they came from")]

use super::cache::Cache;
use super::inner::Inner;
use super::thread_cache::{SLOTS, ThreadCache};
use super::{background, barrier};
use crate::class::{CLASSES, Class};
use crate::depot::BATCH;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{pressure, system};
use std::alloc::GlobalAlloc;

/// Steps after which a thread that has not read the clock is taken for one that makes no request.
const PARKED_AFTER: u64 = 2;
/// Slow-path calls of a thread between two reads of the clock.
const TURNS: u32 = 16;
/// Milliseconds between two reads of the clock by a thread that does the work of the background thread.
const LATE: u64 = 10;
/// Slow-path calls of a thread between two in which it makes room, so that the classes that it uses have
/// calls between these.
const ROOM_TURNS: u32 = 4;
/// The most thread caches of others from which one step takes blocks back.
const CACHES: usize = 128;
/// The classes of which a thread takes room when it has none for another.
const CLASSES_FOR_ROOM: u32 = 32;
/// Factor by which decay is faster while memory is short.
const HASTE: u64 = 4;
/// Blocks that one call of the program moves from the depot to spans, and its work for spans that
/// nobody uses ([`Spans::give_back`](crate::pages::span::Spans::give_back)): 16 system calls.
const MOVES: usize = 1024;
const WORK: usize = 256;
/// Factor by which the background thread does more of both, every 50 ms.
const OF_THREAD: usize = 64;

impl Cache {
    /// Counts a slow-path call of a thread, and every so often reads the clock: each time where there is
    /// work for the background thread and no such thread, and then it sets the pace of the thread's
    /// hits, too.
    ///
    /// Does nothing for a thread without a thread cache.
    pub(super) fn turn<A: GlobalAlloc>(&self, local: Option<&ThreadCache>, inner: &Inner<'_, A>) {
        let Some(local) = local else { return };
        let turns = local.turns.load(Relaxed).wrapping_add(1);
        local.turns.store(turns, Relaxed);
        if turns % ROOM_TURNS == 0 && local.wants_room.load(Relaxed) {
            local.wants_room.store(false, Relaxed);
            self.make_room(local, inner);
        }
        let paces = self.clocks.every.load(Relaxed) > 0 && background::is_missed(&self.pages);
        if paces || turns % TURNS == 0 {
            let before = local.looked_at.load(Relaxed);
            self.look_now(Some(local), inner);
            let is_late = local.looked_at.load(Relaxed).saturating_sub(before) >= LATE;
            local.pace(paces, is_late);
        }
    }

    /// Reads the clock and runs the work that is due. Also reads the system's memory pressure, at
    /// most once a second.
    ///
    /// `own` is the calling thread's thread cache; `None` for the background thread.
    pub(super) fn look_now<A: GlobalAlloc>(&self, own: Option<&ThreadCache>, inner: &Inner<'_, A>) {
        let now = system::coarse_milliseconds();
        if !self.pages.is_quiet() && self.clocks.feels(now) {
            let is_short = !cfg!(miri) && system::keeping_errno(pressure::is_memory_short);
            self.clocks.haste.store(if is_short { HASTE } else { 1 }, Relaxed);
        }
        self.look(now, own, inner);
    }

    /// Runs the work that is due at the time `now`, in milliseconds: a bounded part of it.
    pub(crate) fn look<A: GlobalAlloc>(
        &self,
        now: u64,
        own: Option<&ThreadCache>,
        inner: &Inner<'_, A>,
    ) {
        let every = self.clocks.every.load(Relaxed);
        if let Some(own) = own {
            own.looks(now);
            if every > 0 && now.saturating_sub(own.aged_at.load(Relaxed)) >= every {
                own.aged_at.store(now, Relaxed);
                self.age(own, inner);
            }
        }
        let since = now.saturating_sub(PARKED_AFTER * every);
        // A program that limits its system calls need not permit the one of a visit: the background
        // thread makes it, which a filter of a program that begins later does not reach.
        if own.is_none() && self.clocks.visits(now) {
            self.visit_parked(since, inner);
        }
        if own.is_none() {
            self.clocks.watch(now);
        }
        if self.clocks.steps(now) {
            self.depot.begin_round();
            let small = self.small_bytes(since);
            self.clocks.small_bytes.store(small, Relaxed);
            let of_others = self.thread_caches.room_bytes() + self.depot.room_bytes();
            let limit = self.limit.load(Relaxed).saturating_sub(of_others);
            let haste = self.clocks.haste.load(Relaxed);
            self.pages.adjust(limit, haste, self.clocks.is_watched(now));
        }
        if own.is_none() || !self.clocks.is_watched(now) {
            let times = if own.is_none() { OF_THREAD } else { 1 };
            self.depot.age(times * MOVES, &self.pages);
            self.depot.give_back(times * WORK, &self.pages);
            self.pages.look();
        }
        if own.is_none() {
            self.pages.keep_to_limit();
        }
    }

    /// Moves half of the blocks that the calling thread did not need since the last call out of its
    /// thread cache; half of all blocks, if it may hold more than its part.
    fn age<A: GlobalAlloc>(&self, own: &ThreadCache, inner: &Inner<'_, A>) {
        let is_over = own.room_bytes() > self.most_of_thread(own);
        self.shed(own, Class::all(), inner, |blocks, unneeded| {
            let half = if is_over { blocks.div_ceil(2) } else { 0 };
            half.max(unneeded.div_ceil(2))
        });
    }

    /// Moves the blocks of classes that the calling thread does not use out of its thread cache, so that
    /// other classes may hold more: of the next [`CLASSES_FOR_ROOM`] classes.
    #[cold]
    fn make_room<A: GlobalAlloc>(&self, own: &ThreadCache, inner: &Inner<'_, A>) {
        let from = own.yields.load(Relaxed);
        own.yields.store(from.wrapping_add(CLASSES_FOR_ROOM), Relaxed);
        let classes = (0..CLASSES_FOR_ROOM)
            .map(|at| Class::numbered(from.wrapping_add(at) as usize % CLASSES))
            .filter(|class| own.hold().is_some_and(|held| held.is_unused(*class)));
        self.shed(own, classes, inner, |blocks, _| blocks);
    }

    /// Moves blocks out of the calling thread's cache: of each of these classes as many as `count` says of
    /// its blocks, and of those that were not needed.
    fn shed<A: GlobalAlloc>(
        &self,
        own: &ThreadCache,
        classes: impl Iterator<Item = Class>,
        inner: &Inner<'_, A>,
        count: impl Fn(usize, usize) -> usize,
    ) {
        for class in classes {
            let mut most = None;
            for _ in 0..SLOTS.div_ceil(BATCH) {
                // Held for each batch: the inner allocator may come back to this thread cache.
                let Some(held) = own.hold() else { return };
                if held.cap(class) == 0 {
                    break;
                }
                let unneeded = || count(held.len(class), held.unneeded(class));
                let left = most.unwrap_or_else(|| self.counting_room(own, unneeded));
                if left == 0 {
                    break;
                }
                let batch = held.take_oldest(class, left);
                self.counting_room(own, || held.narrow(class));
                drop(held);
                most = Some(left.saturating_sub(BATCH));
                // SAFETY: as in `Cache::free`; no thread cache has these blocks any more.
                unsafe { self.put_back(class, &batch, inner) };
            }
        }
    }

    /// Takes back what the next [`CACHES`] threads did not need which have not read the clock since
    /// `before`. What a thread needs that makes a request now and then stays.
    fn visit_parked<A: GlobalAlloc>(&self, before: u64, inner: &Inner<'_, A>) {
        let parked = |local: &&ThreadCache| local.looked_at.load(Relaxed) < before;
        let caches = self.thread_caches.next_with_room(CACHES);
        caches.filter(parked).for_each(|local| self.visit(local, inner));
    }

    /// Takes back the blocks of a thread cache that its thread did not need since the last visit.
    /// Does nothing if the thread is at work.
    fn visit<A: GlobalAlloc>(&self, local: &ThreadCache, inner: &Inner<'_, A>) {
        let held = local.stop();
        #[cfg(pool_counts)]
        pool_core::counts::look(held.is_some());
        let Some(held) = held else { return };
        for class in Class::all() {
            let mut unneeded = self.counting_room(local, || held.unneeded(class));
            while unneeded > 0
                && let batch = held.take_oldest(class, unneeded)
                && !batch.as_slice().is_empty()
            {
                unneeded -= batch.as_slice().len();
                // SAFETY: as in `Cache::free`; no thread cache has these blocks any more.
                unsafe { self.put_back(class, &batch, inner) };
            }
            self.counting_room(local, || held.fit(class));
        }
    }

    /// Returns the bytes of blocks in thread caches, and of those that threads share.
    fn small_bytes(&self, since: u64) -> usize {
        let in_depot: usize = Class::all().map(|class| self.depot.recent_bytes(class)).sum();
        in_depot + self.thread_caches.survey(since)
    }

    /// Returns the cached bytes; of blocks in thread caches and in the depot, those at the last step.
    pub(super) fn idle_bytes(&self) -> usize {
        self.clocks.small_bytes.load(Relaxed) + self.pages.idle_bytes()
    }

    /// Makes no system call from now on that allocators do not need.
    pub(super) fn enter_sandbox(&self) {
        barrier::do_without();
        self.pages.be_quiet();
    }

    /// Gives cached memory back, the oldest first: pages, and then blocks that threads share, until at
    /// least `bytes` bytes are given back or none are left. Returns the bytes.
    ///
    /// Blocks in thread caches stay.
    pub(crate) fn trim(&self, bytes: usize) -> usize {
        let went = self.pages.trim(bytes);
        if went >= bytes {
            return went;
        }
        let returned = || usize::try_from(self.pages.stats().returned).unwrap_or(usize::MAX);
        let before = returned();
        self.depot.clear(&self.pages);
        self.pages.trim(bytes - went);
        went + returned().saturating_sub(before)
    }

    /// Gives back all cached memory: thread caches of all threads, depot and pages. Returns the
    /// bytes.
    ///
    /// Blocks stay in the thread caches of threads that are at work meanwhile, and in all but `own`
    /// if the system has no `membarrier`.
    pub(crate) fn clear<A: GlobalAlloc>(
        &self,
        own: Option<&ThreadCache>,
        inner: &Inner<'_, A>,
    ) -> usize {
        if let Some(own) = own {
            self.shed(own, Class::all(), inner, |blocks, _| blocks);
        }
        for local in self.thread_caches.iter().filter(|local| local.has_room()) {
            // The second visit finds that nothing was needed since the first.
            self.visit(local, inner);
            self.visit(local, inner);
        }
        self.trim(usize::MAX)
    }

    /// Takes over what the threads had that a forked child does not have.
    pub(crate) fn in_child(&self, own: &ThreadCache) {
        self.depot.in_child();
        self.pages.in_child();
        self.thread_caches.keep_alone(own);
    }

    /// Gives up the thread cache of a thread that ends. Its blocks go back.
    ///
    /// It may hold none from then on, so that it takes nothing from what others may hold. Blocks of the
    /// inner allocator stay for the next thread that owns it, and all if another thread works on it.
    pub(crate) fn leave(&self, local: &ThreadCache) {
        if let Some(held) = local.hold() {
            for class in local.roomy() {
                for _ in 0..held.len(class).div_ceil(BATCH) {
                    let batch = held.take_oldest(class, BATCH);
                    // SAFETY: as in `Cache::free`; no thread cache has these blocks any more.
                    let mut others = unsafe { self.put_on_pages(class, &batch) };
                    held.fill(class, &mut others);
                }
                self.counting_room(local, || held.fit(class));
            }
        }
        self.thread_caches.leave(local, self.pages.is_quiet());
    }
}
