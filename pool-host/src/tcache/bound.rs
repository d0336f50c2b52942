//! Keeps cached blocks within the bound: leases bytes for bins and for batches, and evicts the
//! oldest blocks of the depot to make leases possible.
#![expect(unsafe_code, reason = "blocks are given back to where they came from")]

use super::cache::{Cache, LITTLE, count};
use super::held::Held;
use super::inner::Inner;
use crate::depot::{Batch, Class, Refused};
use crate::system;
use std::alloc::GlobalAlloc;
use std::sync::atomic::Ordering::Relaxed;

/// The most attempts to lease bytes for one batch. After them the batch goes to the inner
/// allocator. An attempt reclaims unused leases, or evicts blocks of one magazine.
pub(super) const ATTEMPTS: usize = 8;
/// The fewest milliseconds between two calls that reclaim unused leases of other threads.
const ASK_EVERY: u64 = 2;

impl Cache {
    /// Raises the limit of a bin, if the bytes for that can be leased.
    ///
    /// If the thread cache would lease more than one may, other bins that were not used lately give
    /// up half of their limit first.
    #[cold]
    pub(super) fn widen<A: GlobalAlloc>(
        &self,
        held: &Held<'_>,
        class: Class,
        inner: &Inner<'_, A>,
    ) {
        let (limit, bytes) = held.next_limit(class);
        let most = self.local_lease.load(Relaxed);
        if bytes == 0 || bytes > most {
            return;
        }
        while held.leased() + bytes > most {
            let Some(other) = held.least_used(class) else { return };
            self.compact(held, other);
            let half = held.limit(other) / 2;
            let excess = (held.limit(other) - held.room(other)).saturating_sub(half);
            let mut oldest = held.take_oldest(other, excess);
            let Some(moved) = self.hand_over(other, &mut oldest) else {
                // The depot takes no blocks now. They stay, and this bin keeps its limit.
                return held.fill(other, &mut oldest);
            };
            self.return_lease(held.set_limit(other, half), moved);
        }
        if self.lease_locally(bytes) || (self.ask_others(inner) && self.lease_locally(bytes)) {
            held.set_limit(class, limit);
        }
    }

    /// Reclaims unused leases of the free lists, and blocks with their leases of some thread
    /// caches.
    ///
    /// Does so at most once in [`ASK_EVERY`] milliseconds. Returns whether it did.
    fn ask_others<A: GlobalAlloc>(&self, inner: &Inner<'_, A>) -> bool {
        let (now, asked) = (system::coarse_milliseconds(), self.asked_at.load(Relaxed));
        let may = now.saturating_sub(asked) >= ASK_EVERY
            && self.asked_at.compare_exchange(asked, now, Relaxed, Relaxed).is_ok();
        if may {
            self.depot.reclaim_leases();
            self.visit_caches(None, inner);
        }
        may
    }

    /// Leases `bytes` for a thread cache. Returns whether it did.
    ///
    /// All thread caches together lease at most half of the bound on leases. The other half is for
    /// the depot, which serves all threads.
    fn lease_locally(&self, bytes: usize) -> bool {
        let before = self.leased_locally.fetch_add(bytes, Relaxed);
        let may =
            before + bytes <= self.depot.leases.limit() / 2 && self.depot.leases.extend(bytes);
        if !may {
            self.leased_locally.fetch_sub(bytes, Relaxed);
        }
        may
    }

    /// Notes that a thread cache gave up `bytes` leased bytes. `moved` of them moved to the depot
    /// together with blocks; the others are given back.
    ///
    /// `moved` must not exceed `bytes`.
    pub(super) fn return_lease(&self, bytes: usize, moved: usize) {
        self.leased_locally.fetch_sub(bytes, Relaxed);
        self.depot.leases.give_back(bytes - moved);
    }

    /// Moves blocks out of a thread cache to the pages or to the depot. The thread cache must have
    /// leased their bytes.
    ///
    /// Returns the bytes of that lease that moved to the depot with them. `None` if the depot does
    /// not take the batch; the batch then has the blocks that are not on pages.
    pub(super) fn hand_over(&self, class: Class, batch: &mut Batch) -> Option<usize> {
        if batch.len == 0 {
            return Some(0);
        }
        if class.is_paged() {
            let mut others = Batch::EMPTY;
            while let Some(block) = batch.pop() {
                if !self.pages.has(block) {
                    others.add(block);
                    continue;
                }
                // SAFETY: `pages.has` says that the block is on the pages. The program freed it,
                // and the caller took it out of a bin (`Held::take_oldest`, `Held::take_closed`),
                // so no other thread has it.
                unsafe { self.pages.give(block) };
            }
            *batch = others;
            if batch.len == 0 {
                return Some(0);
            }
        }
        let lease = batch.len * class.bytes();
        self.depot.push(class, batch, lease).ok().map(|unused| lease - unused)
    }

    /// Moves a batch to the depot; evicts the oldest blocks if the bound would be exceeded.
    ///
    /// If the depot does not take the batch, or the batch is larger than half of the bound on
    /// leases, its blocks go to the inner allocator and count as evicted. Blocks of a paged class
    /// go to the pages, which cache them, or to the inner allocator if they are not on pages.
    ///
    /// # Safety
    ///
    /// Each block of the batch was allocated by this cache as a block of `class`, with this inner
    /// allocator, and is not used again.
    pub(super) unsafe fn keep<A: GlobalAlloc>(
        &self,
        class: Class,
        mut batch: Batch,
        inner: &Inner<'_, A>,
    ) {
        if batch.len == 0 {
            return;
        }
        if class.is_paged() {
            // SAFETY: the caller guarantees this for each block of the batch.
            unsafe { self.release(class, &batch, inner) };
            return;
        }
        let mut lease = 0;
        // A batch larger than half of the bound would evict too many others.
        while batch.len * class.bytes() <= self.depot.leases.limit() / 2 {
            match self.depot.push(class, &mut batch, lease) {
                Ok(unused) => {
                    self.depot.leases.give_back(unused);
                    if self.depot.leases.leased() > LITTLE && !self.is_much_idle.load(Relaxed) {
                        self.much_is_idle();
                    }
                    return;
                }
                Err(Refused::Unleased(bytes)) if self.lease(bytes, inner) => lease += bytes,
                Err(_) => break,
            }
        }
        self.depot.leases.give_back(lease);
        count(&self.counts.evicted, batch.len);
        // SAFETY: the caller guarantees this for each block of the batch. A refused `push` leaves
        // the whole batch here, so the depot has none of them.
        unsafe { self.release(class, &batch, inner) };
    }

    /// Leases `bytes` for the depot; reclaims unused leases and evicts the oldest blocks for that.
    /// Returns whether it leased them.
    fn lease<A: GlobalAlloc>(&self, bytes: usize, inner: &Inner<'_, A>) -> bool {
        for _ in 0..ATTEMPTS {
            if self.depot.leases.extend(bytes) {
                return true;
            }
            if self.depot.reclaim_leases() > 0 {
                continue;
            }
            let Some((class, oldest)) = self.depot.take_oldest(bytes) else { break };
            count(&self.counts.evicted, oldest.len);
            // SAFETY: the program freed each block of the depot, by `ThreadCache::put` or
            // `Cache::free`, as a block of `class`. The caller of `dealloc` guarantees that this
            // cache allocated it as one and that the program no longer uses it. One `Tcache` owns
            // this cache, so `inner` is the allocator of all blocks. `take_oldest` removed the
            // batch from the depot, so no other thread has it.
            unsafe { self.release(class, &oldest, inner) };
        }
        self.depot.leases.extend(bytes)
    }

    /// Gives blocks back to the pages or to the inner allocator. Returns their bytes.
    ///
    /// # Safety
    ///
    /// Each block of the batch was allocated by this cache as a block of `class`, with this inner
    /// allocator, and is not used again.
    pub(super) unsafe fn release<A: GlobalAlloc>(
        &self,
        class: Class,
        batch: &Batch,
        inner: &Inner<'_, A>,
    ) -> usize {
        for block in batch.as_slice() {
            if class.is_paged() && self.pages.has(*block) {
                // SAFETY: `pages.has` says that the block is on the pages; the caller guarantees
                // that it is not used again.
                unsafe { self.pages.give(*block) };
            } else {
                // SAFETY: the caller guarantees that this cache allocated the block as one of
                // `class` and that it is not used again. It is not on the pages, so it came from
                // `inner`, with the layout of its class.
                unsafe { inner.free(*block, Inner::<A>::layout(class)) };
                self.untrimmed.fetch_add(class.bytes(), Relaxed);
            }
        }
        batch.len * class.bytes()
    }
}
