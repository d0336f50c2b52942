//! Gives cached blocks back before the bound evicts them: with time (decay), while a small program
//! grows, on `trim` and `clear`, and when a thread ends.
//!
//! Decay and growth work in bounded steps; the next call continues where one stopped. `trim` and
//! `clear` take as long as they need.
#![expect(unsafe_code, reason = "blocks are given back to where they came from")]

use super::cache::{Cache, LITTLE, count};
use super::held::{AT_ONCE, Closed, Held, can_take_back};
use super::inner::Inner;
use super::thread_cache::ThreadCache;
use super::{background, barrier};
use crate::depot::{Class, MAGAZINE};
use crate::{pressure, system};
use std::alloc::GlobalAlloc;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

/// Slow-path calls of a thread between two reads of the clock.
const TURNS: u32 = 64;
/// Growth in bytes below which [`Cache::make_way`] does nothing.
const GROWN_LEAST: usize = 64 << 10;
/// Decayed blocks that are given back for each elapsed millisecond. This takes about 1 % of a
/// thread's time.
const PER_MILLISECOND: u64 = 160;
/// The most decayed blocks that one call gives back. They take about 1 ms, in a call that comes
/// 100 ms after the last one.
pub(super) const MOST: u64 = 16 << 10;
/// The most blocks that one call of [`Cache::make_way`] gives back.
pub(super) const WAY_MOST: usize = 1024;
/// The most thread caches that one visit takes from the list of those with leased bytes.
const CACHES: usize = 16;
/// The fewest bytes given back to the inner allocator after which decay asks the C library to trim.
const TRIMMED_FROM: usize = 1 << 20;
/// Milliseconds since blocks were last given back, from which on a call may trim the C library. The
/// program makes few requests then, so the cost of one call matters less.
const CALM: u64 = 50;
/// Milliseconds between two reads of the system's memory pressure.
const FEEL_EVERY: u64 = 1000;
/// Factor by which decay is faster while memory is short.
const HASTE: u64 = 4;

impl Cache {
    /// Counts a slow-path call of a thread. Runs the work that is due when [`ThreadCache::is_due`]
    /// says so, and on each [`TURNS`]th call.
    ///
    /// Does nothing for a thread without a thread cache.
    pub(super) fn turn<A: GlobalAlloc>(
        &self,
        local: Option<&ThreadCache>,
        class: Option<Class>,
        inner: &Inner<'_, A>,
    ) {
        let Some(local) = local else { return };
        let turns = local.turns.load(Relaxed).wrapping_add(1);
        local.turns.store(turns, Relaxed);
        if turns % TURNS == 0 || local.is_due(class) {
            self.look_now(Some(local), inner);
        }
    }

    /// Reads the clock and runs the work that is due. Also reads the system's memory pressure, at
    /// most once in [`FEEL_EVERY`] milliseconds.
    ///
    /// `own` is the calling thread's thread cache.
    pub(super) fn look_now<A: GlobalAlloc>(&self, own: Option<&ThreadCache>, inner: &Inner<'_, A>) {
        let now = system::coarse_milliseconds();
        if let Some(own) = own {
            own.looks(now);
        }
        let felt = self.felt_at.load(Relaxed);
        if self.decay_every.load(Relaxed) > 0
            && !self.pages.is_quiet()
            && now.saturating_sub(felt) >= FEEL_EVERY
            && self.felt_at.compare_exchange(felt, now, Relaxed, Relaxed).is_ok()
        {
            let is_short = !cfg!(miri) && system::keeping_errno(pressure::is_memory_short);
            self.haste.store(if is_short { HASTE } else { 1 }, Relaxed);
        }
        self.look(now, own, inner);
    }

    /// Runs the work that is due at the time `now`, in milliseconds: a bounded part of it.
    ///
    /// A decay step visits thread caches, `own` first, and marks blocks of the depot that no
    /// request needed. Each elapsed millisecond pays for giving back some of the marked blocks.
    pub(crate) fn look<A: GlobalAlloc>(
        &self,
        now: u64,
        own: Option<&ThreadCache>,
        inner: &Inner<'_, A>,
    ) {
        let haste = self.haste.load(Relaxed).max(1);
        let every = (self.decay_every.load(Relaxed)).div_ceil(haste);
        let last = self.decayed_at.load(Relaxed);
        let turns = now.saturating_sub(last).checked_div(every).unwrap_or(0);
        let next = last + turns * every;
        // The thread whose exchange succeeds runs the step.
        if turns > 0 && self.decayed_at.compare_exchange(last, next, Relaxed, Relaxed).is_ok() {
            self.visit_caches(own, inner);
            self.depot.age(u32::try_from(turns).unwrap_or(u32::MAX));
        }
        let paid = self.paid_at.load(Relaxed);
        let time = now.saturating_sub(paid);
        if time > 0 && self.paid_at.compare_exchange(paid, now, Relaxed, Relaxed).is_ok() {
            let most = time.saturating_mul(PER_MILLISECOND).min(MOST);
            self.give_back_due(usize::try_from(most).unwrap_or(usize::MAX), inner);
            let limit = self.limit.load(Relaxed).saturating_sub(self.depot.leases.leased());
            self.pages.adjust(limit, haste);
            self.pages.look();
            if self.idle_bytes() > LITTLE {
                self.much_is_idle();
            } else {
                self.is_much_idle.store(false, Relaxed);
            }
            if time >= CALM && paid > 0 {
                // `malloc_trim` walks all free blocks of the C library. It is called only after at
                // least as many bytes were given back as are still leased, which bounds its cost
                // per byte.
                self.trim_inner(TRIMMED_FROM.max(self.depot.leases.leased()));
            }
        } else {
            self.pages.look();
        }
    }

    /// Makes no system call from now on that allocators do not need.
    pub(super) fn enter_sandbox(&self) {
        barrier::do_without();
        self.pages.be_quiet();
    }

    /// Returns the cached bytes: those on pages, and those that thread caches and the depot have
    /// leased, whether they hold blocks or not.
    pub(super) fn idle_bytes(&self) -> usize {
        self.depot.leases.leased() + self.pages.idle_bytes()
    }

    /// Notes that more than [`LITTLE`] bytes are cached, and has some threads read the clock with
    /// their next request and then more often. Starts the background thread if it is wanted.
    ///
    /// A thread that makes few requests, all of them hits, would otherwise read the clock late.
    pub(super) fn much_is_idle(&self) {
        background::wake();
        if !self.is_much_idle.swap(true, Relaxed) {
            let some = self.thread_caches.next_leased(CACHES);
            some.filter_map(ThreadCache::hold).for_each(|held| held.call());
        }
    }

    /// Gives back decayed blocks, at most `most` of them.
    fn give_back_due<A: GlobalAlloc>(&self, mut most: usize, inner: &Inner<'_, A>) {
        while most > 0
            && let Some((class, batch)) = self.depot.take_due(most)
        {
            most -= batch.len;
            count(&self.counts.decayed, batch.len);
            // SAFETY: the program freed each block of the depot, by `ThreadCache::put` or
            // `Cache::free`, as a block of `class`. The caller of `dealloc` guarantees that this
            // cache allocated it as one and that the program no longer uses it. One `Tcache` owns
            // this cache, so `inner` is the allocator of all blocks. `take_due` removed the batch
            // from the depot, so no other thread has it.
            unsafe { self.release(class, &batch, inner) };
        }
    }

    /// Has the C library give free memory back to the system, if at least `least` bytes were given
    /// back to the inner allocator since the last time.
    ///
    /// Calls glibc's `malloc_trim`, whatever the inner allocator is; with another C library, does
    /// nothing. Cost: one step for each free block of a page and more.
    fn trim_inner(&self, least: usize) {
        if self.pages.is_quiet() {
            return;
        }
        if self.untrimmed.load(Relaxed) < least {
            return;
        }
        self.untrimmed.store(0, Relaxed);
        system::trim_c_heap();
    }

    /// Notes that the program grows by `bytes`, and gives cached blocks back when it has grown by
    /// as many bytes as are cached.
    ///
    /// It then runs two decay steps at once: half of the blocks that no request needed since the
    /// last step, and half of the blocks that are left. The inner allocator can use their memory
    /// for other sizes, which this cache cannot: it does not split or coalesce blocks. With more
    /// than [`LITTLE`] leased bytes it gives nothing back, since the cycles after which programs
    /// request a size again are longer there; then only the bound and time do.
    pub(super) fn make_way<A: GlobalAlloc>(&self, bytes: usize, inner: &Inner<'_, A>) {
        let grown = self.grown.fetch_add(bytes, Relaxed) + bytes;
        if grown < self.depot.leases.leased().max(GROWN_LEAST) {
            return;
        }
        // Leased bytes without a block are not cached memory.
        self.depot.reclaim_leases();
        let idle = self.depot.leases.leased();
        if grown >= idle {
            self.grown.store(0, Relaxed);
            if idle <= LITTLE {
                self.depot.age(2);
                self.give_back_due(WAY_MOST, inner);
            }
        }
    }

    /// Visits `own`, and then the next [`CACHES`] thread caches that have leased bytes: takes back
    /// the classes that their threads did not use since the last visit.
    ///
    /// Does nothing if the system has no `membarrier`.
    pub(super) fn visit_caches<A: GlobalAlloc>(
        &self,
        own: Option<&ThreadCache>,
        inner: &Inner<'_, A>,
    ) {
        if !can_take_back() {
            return;
        }
        if let Some(own) = own {
            self.visit(own, inner);
        }
        let others = self.thread_caches.next_leased(CACHES);
        let is_other = |local: &&ThreadCache| own.is_none_or(|own| !ptr::eq(*local, own));
        others.filter(is_other).for_each(|local| self.visit(local, inner));
    }

    /// Takes back the blocks and the leases of the classes that a thread did not use since the last
    /// visit, at most [`AT_ONCE`] classes.
    ///
    /// A class that the thread used keeps its blocks; the thread's next request of that class reads
    /// the clock. Does nothing if another thread holds the thread cache.
    fn visit<A: GlobalAlloc>(&self, local: &ThreadCache, inner: &Inner<'_, A>) {
        if local.is_held() {
            return; // by this thread, or for a moment by another
        }
        let Some(held) = local.hold() else { return };
        let mut closed = [None; AT_ONCE];
        let found = held.close_idle(&mut closed);
        #[cfg(pool_counts)]
        pool_core::counts::look(found > 0);
        if found == 0 {
            return;
        }
        let is_safe = barrier::heavy();
        for closed in closed.into_iter().flatten() {
            if is_safe {
                self.take_back(&held, closed, inner);
            } else {
                held.open_again(closed);
            }
        }
    }

    /// Moves the blocks of a closed class to the depot or to the pages, and gives their lease back.
    ///
    /// Blocks that the depot does not take go to the inner allocator. Must be called after a
    /// successful `barrier::heavy`.
    fn take_back<A: GlobalAlloc>(&self, held: &Held<'_>, closed: Closed, inner: &Inner<'_, A>) {
        let (blocks, fewer) = held.take_closed(closed);
        let mut moved = 0;
        for start in (0..blocks).step_by(MAGAZINE) {
            let mut batch = held.copied(closed.class, start..blocks.min(start + MAGAZINE));
            match self.hand_over(closed.class, &mut batch) {
                Some(bytes) => moved += bytes,
                None => {
                    // SAFETY: each block of a bin of this class was freed by the program as a block
                    // of the class, or came from the depot as one; `inner` is the allocator of all
                    // blocks of this cache. `take_closed`, after the barrier, set the floor to
                    // `blocks`, so the owner does not take these, and this thread still holds the
                    // thread cache, so no visitor does. `hand_over` has taken those out of the
                    // batch that it gave away.
                    unsafe { self.release(closed.class, &batch, inner) };
                }
            }
        }
        // Blocks that were put in while the class was closed have no lease yet.
        let unleased = moved.saturating_sub(fewer);
        self.depot.leases.take(unleased);
        self.return_lease(fewer, moved - unleased);
    }

    /// Gives cached memory back, the oldest first, from the pages and then from the depot, until at
    /// least `bytes` bytes are given back or none are left. Returns the bytes.
    ///
    /// Blocks in thread caches stay. In the end, has the C library trim.
    pub(crate) fn trim<A: GlobalAlloc>(&self, bytes: usize, inner: &Inner<'_, A>) -> usize {
        let mut went = self.pages.trim(bytes);
        // Blocks that other threads free meanwhile do not count, or this call might never end.
        let bytes = bytes.min(went.saturating_add(self.depot.all_bytes()));
        while went < bytes
            && let Some((class, oldest)) = self.depot.take_oldest(bytes - went)
        {
            // SAFETY: as in `give_back_due`; `take_oldest` removed the batch from the depot.
            went += unsafe { self.release(class, &oldest, inner) };
        }
        self.trim_inner(1);
        went
    }

    /// Gives back all cached memory: thread caches of all threads, pages and depot. Returns the
    /// bytes.
    ///
    /// Blocks stay in a thread cache that another thread holds meanwhile, in classes that a thread
    /// uses meanwhile, and in all thread caches if the system has no `membarrier`. The result does
    /// not count blocks of a thread cache that the depot did not take.
    pub(crate) fn clear<A: GlobalAlloc>(&self, inner: &Inner<'_, A>) -> usize {
        if can_take_back() {
            for local in self.thread_caches.iter().filter(|local| local.leased() > 0) {
                // The first visit takes back no class that was used since the last visit. Each
                // visit takes back at most `AT_ONCE` classes.
                for _ in 0..=CLEAR_VISITS {
                    self.visit(local, inner);
                }
            }
        }
        self.trim(usize::MAX, inner)
    }

    /// Takes over the thread caches of the threads that a forked child does not have.
    pub(crate) fn in_child(&self, own: &ThreadCache) {
        self.thread_caches.keep_alone(own);
        self.return_lease(own.forget_lost_lease(), 0);
    }

    /// Gives up the thread cache of a thread that ends. Its blocks move to the depot, with their
    /// leases, or to the pages.
    ///
    /// The blocks of a class that the depot does not take stay in the thread cache, for the next
    /// thread that owns it. If another thread holds the thread cache, all remaining blocks stay.
    pub(crate) fn leave(&self, local: &ThreadCache) {
        for class in Class::all() {
            let Some(held) = self.hold(Some(local), class) else { break };
            while let mut batch = held.take_oldest(class, MAGAZINE)
                && batch.len > 0
            {
                let len = batch.len;
                let Some(moved) = self.hand_over(class, &mut batch) else {
                    held.fill(class, &mut batch);
                    break;
                };
                let limit = held.limit(class).saturating_sub(len);
                self.return_lease(held.set_limit(class, limit), moved);
            }
            if local.counted(class).blocks == 0 {
                self.return_lease(held.set_limit(class, 0), 0);
            }
        }
        self.thread_caches.leave(local, self.pages.is_quiet());
    }
}

/// Visits that take back all classes of a thread cache, after a first one that only marks those in
/// use.
const CLEAR_VISITS: usize = crate::depot::CLASSES.div_ceil(AT_ONCE);
