//! What happens when a front has no block or no room: the depot, the inner allocator, the bound.
//!
//! An instance, handed the front to work on and the allocator below, so that it can be tested
//! without a program around it. The global one is in `thread.rs`.
//!
//! None of this allocates, blocks, formats or panics. A step that cannot be taken is left out: a
//! block goes to the inner allocator, or comes from it.
#![expect(unsafe_code, reason = "blocks are given back to the allocator that they came from")]

use super::front::Front;
use super::fronts::Fronts;
use super::inner::Inner;
use crate::depot::{Batch, Class, Depot, FRONT_LARGEST, MAGAZINE};
use std::alloc::GlobalAlloc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A cache of freed blocks.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) depot: Depot,
    pub(crate) fronts: Fronts,
    /// What a front may lease, in bytes.
    pub(super) front_lease: AtomicUsize,
    /// Milliseconds between two steps of the decay; 0 for none.
    pub(super) decay_every: AtomicU64,
    pub(super) decayed_at: AtomicU64,
    /// Bytes from the inner allocator since the last step that they brought about.
    pub(super) grown: AtomicUsize,
    pub(crate) counts: Counts,
}

/// What is counted on slow paths, in one place.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) misses: AtomicU64,
    pub(crate) refills: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) decayed: AtomicU64,
    pub(crate) bypasses: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Relaxed);
}

/// How many blocks of a class move between a front and the depot at once.
const fn batch_len(class: Class) -> usize {
    let fit = FRONT_LARGEST / class.bytes();
    if fit > MAGAZINE {
        MAGAZINE
    } else if fit == 0 {
        1
    } else {
        fit
    }
}

/// Decay runs in so many steps, each of which halves what nobody needed.
const DECAY_STEPS: u64 = 10;

impl Cache {
    /// Keeps nothing until it is configured.
    pub(crate) const fn new() -> Self {
        Self {
            depot: Depot::new(0),
            fronts: Fronts::new(),
            front_lease: AtomicUsize::new(0),
            decay_every: AtomicU64::new(0),
            decayed_at: AtomicU64::new(0),
            grown: AtomicUsize::new(0),
            counts: Counts {
                misses: AtomicU64::new(0),
                refills: AtomicU64::new(0),
                flushes: AtomicU64::new(0),
                evicted: AtomicU64::new(0),
                decayed: AtomicU64::new(0),
                bypasses: AtomicU64::new(0),
            },
        }
    }

    /// Sets the bounds, in bytes and milliseconds.
    pub(crate) fn configure(&self, limit: usize, front_lease: usize, decay: u64, now: u64) {
        self.depot.leases.set_limit(limit);
        self.front_lease.store(front_lease, Relaxed);
        self.decay_every.store(decay.div_ceil(DECAY_STEPS), Relaxed);
        self.decayed_at.store(now, Relaxed);
    }

    /// A block for a program, and whether it is fresh from the inner allocator; null if there is no
    /// memory. A fresh one is zeroed if that is asked for.
    pub(crate) fn allocate<A: GlobalAlloc>(
        &self,
        front: Option<&Front>,
        class: Class,
        zeroed: bool,
        inner: &Inner<'_, A>,
    ) -> (*mut u8, bool) {
        self.turn(front, front.is_some_and(|front| front.is_due(class)), inner);
        self.count_allocation(front, class);
        let found = match front.filter(|_| class.is_of_front()) {
            Some(front) => self.refill(front, class),
            None => self.depot.pop(class, 1).and_then(|mut batch| batch.pop()),
        };
        match found {
            Some(block) => (block, false),
            None => (self.fresh(front, class, zeroed, inner), true),
        }
    }

    /// A large block, if the newest of its class is at hand. Once in a while it says no, so that
    /// somebody looks at the time.
    #[inline]
    pub(crate) fn take_large(&self, front: &Front, class: Class) -> Option<*mut u8> {
        if !front.is_own() || front.is_due(class) {
            return None;
        }
        let block = self.depot.take_hot(class)?;
        front.count_allocation(class);
        Some(block)
    }

    /// Keeps a large block, if the place of the newest of its class is free.
    #[inline]
    pub(crate) fn put_large(&self, front: &Front, class: Class, block: *mut u8) -> bool {
        if !front.is_own() || !self.depot.put_hot(class, block) {
            return false;
        }
        front.count_free(class);
        true
    }

    /// A block of the front, after a batch from the depot if it has none.
    fn refill(&self, front: &Front, class: Class) -> Option<*mut u8> {
        if let Some(block) = front.take_oldest(class, 1).pop() {
            return Some(block); // only the time was to be looked at
        }
        self.widen(front, class);
        let most = (front.room(class) / 2 + 1).min(batch_len(class));
        let mut batch = self.depot.pop(class, most)?;
        count(&self.counts.refills, 1);
        let block = batch.pop();
        front.fill(class, &mut batch);
        block
    }

    /// A miss.
    #[cold]
    fn fresh<A: GlobalAlloc>(
        &self,
        front: Option<&Front>,
        class: Class,
        zeroed: bool,
        inner: &Inner<'_, A>,
    ) -> *mut u8 {
        count(&self.counts.misses, 1);
        self.make_way(class.bytes(), inner);
        let block = inner.allocate(class, zeroed);
        if !block.is_null() {
            return block;
        }
        // Out of memory: all that is idle goes back, and once more.
        self.clear(front, inner);
        let block = inner.allocate(class, zeroed);
        if block.is_null() {
            // Nobody has it, so it is not counted as alive.
            self.count_free(front, class);
        }
        block
    }

    fn count_allocation(&self, front: Option<&Front>, class: Class) {
        match front {
            Some(front) => front.count_allocation(class),
            None => self.depot.count_allocation(class),
        }
    }

    fn count_free(&self, front: Option<&Front>, class: Class) {
        match front {
            Some(front) => front.count_free(class),
            None => self.depot.count_free(class),
        }
    }

    /// Takes a block back from a program.
    ///
    /// # Safety
    ///
    /// It comes from `inner`, of this class, and nobody uses it again. So it is with all that
    /// follows.
    pub(crate) unsafe fn free<A: GlobalAlloc>(
        &self,
        front: Option<&Front>,
        class: Class,
        block: *mut u8,
        inner: &Inner<'_, A>,
    ) {
        self.turn(front, false, inner);
        self.count_free(front, class);
        let Some(front) = front.filter(|_| class.is_of_front()) else {
            // SAFETY: as the caller says.
            return unsafe { self.keep_one(class, block, inner) };
        };
        if front.room(class) == 0 {
            self.widen(front, class);
        }
        if front.room(class) == 0 {
            let oldest = front.take_oldest(class, batch_len(class));
            count(&self.counts.flushes, usize::from(oldest.len > 0));
            // SAFETY: what fronts hold came here by `free`, with this allocator.
            unsafe { self.keep(class, oldest, inner) };
        }
        let mut batch = Batch::of(block);
        front.fill(class, &mut batch);
        // SAFETY: as the caller says.
        unsafe { self.keep(class, batch, inner) };
    }

    /// Makes a block of another class of a large one: an idle one, into which it is copied, or else
    /// the inner allocator's business, which can move pages where we would have to copy them. Null
    /// if there is no memory, and then the block is as it was.
    ///
    /// # Safety
    ///
    /// The block comes from `inner`, of the old class; both are of the depot.
    pub(crate) unsafe fn resize<A: GlobalAlloc>(
        &self,
        front: Option<&Front>,
        block: *mut u8,
        old: Class,
        new: Class,
        inner: &Inner<'_, A>,
    ) -> *mut u8 {
        self.turn(front, false, inner);
        if let Some(idle) = self.depot.pop(new, 1).and_then(|mut batch| batch.pop()) {
            self.count_allocation(front, new);
            // SAFETY: both hold so many bytes, and they are two blocks.
            unsafe { idle.copy_from_nonoverlapping(block, old.bytes().min(new.bytes())) };
            // SAFETY: as the caller says.
            unsafe { self.free(front, old, block, inner) };
            return idle;
        }
        self.make_way(new.bytes(), inner);
        // SAFETY: as the caller says.
        let mut resized = unsafe { inner.resize(block, old, new) };
        if resized.is_null() {
            self.clear(front, inner);
            // SAFETY: as above; it was refused, so the block is as it was.
            resized = unsafe { inner.resize(block, old, new) };
        }
        if !resized.is_null() {
            self.count_free(front, old);
            self.count_allocation(front, new);
            count(&self.counts.misses, 1);
        }
        resized
    }
}

#[cfg(all(test, shuttle))]
mod model;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
