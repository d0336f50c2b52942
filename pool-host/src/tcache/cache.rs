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
use super::stats::TcacheStats;
use crate::depot::{
    Batch, CLASSES, Class, Depot, FRONT_CLASSES, FRONT_LARGEST, MAGAZINE, Put, Refused,
};
use crate::system;
use std::alloc::GlobalAlloc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release};

/// Slow turns of a thread between two looks at the time.
const TURNS: u32 = 64;
/// Slow turns of a thread between two sweeps for what stacks have leased and do not use.
const RECLAIM: u32 = 16;
/// How often room is made for one batch, before it goes to the inner allocator instead.
const ATTEMPTS: usize = 64;
/// A program that grew by less has not grown.
const GROWN_LEAST: usize = 64 << 10;
/// Up to here little is idle. (1.4 times the live peak resident on a compiler's run instead of 1.6;
/// without this bound 93 to 99 % of the hits on the loads in `cache/tests/loads.rs`.)
const LITTLE: usize = 16 << 20;
/// Decay runs in so many steps, each of which halves what nobody needed.
const DECAY_STEPS: u64 = 10;

/// A cache of freed blocks.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) depot: Depot,
    pub(crate) fronts: Fronts,
    /// What a front may lease, in bytes.
    front_lease: AtomicUsize,
    /// Milliseconds between two steps of the decay; 0 for none.
    decay_every: AtomicU64,
    decayed_at: AtomicU64,
    /// Bytes from the inner allocator since the last step that they brought about.
    grown: AtomicUsize,
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

fn count(counter: &AtomicU64, by: usize) {
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

    /// Lets a bin hold more, if the front's lease allows it or another bin can give up some.
    #[cold]
    fn widen(&self, front: &Front, class: Class) {
        let (limit, bytes) = front.next_limit(class);
        let most = self.front_lease.load(Relaxed);
        if bytes == 0 || bytes > most {
            return;
        }
        while front.leased() + bytes > most {
            let Some(other) = front.least_used(class) else { return };
            let half = front.limit(other) / 2;
            let excess = (front.limit(other) - front.room(other)).saturating_sub(half);
            let mut oldest = front.take_oldest(other, excess);
            let moves = oldest.len * other.bytes();
            let mut unused = 0;
            if oldest.len > 0 {
                let Ok(rest) = self.depot.push(other, &mut oldest, moves) else {
                    // They stay, and this bin gets no more.
                    return front.fill(other, &mut oldest);
                };
                unused = rest;
            }
            self.depot.leases.give_back(front.set_limit(other, half) - moves + unused);
        }
        let turn = front.turns.load(Relaxed);
        // At the bound all stacks are asked for what they do not use, but not each time.
        if self.depot.leases.extend(bytes)
            || (turn % RECLAIM == 0
                && self.depot.reclaim_leases() > 0
                && self.depot.leases.extend(bytes))
        {
            front.set_limit(class, limit);
        }
    }

    /// Keeps a block of a program in the depot.
    unsafe fn keep_one<A: GlobalAlloc>(&self, class: Class, block: *mut u8, inner: &Inner<'_, A>) {
        let mut put = Put::Refused;
        if !class.is_of_front() && self.may_keep(class.bytes()) {
            put = self.depot.put_above(class, block);
            if put == Put::Refused && self.lease(class.bytes(), inner) {
                if !self.depot.open(class) {
                    self.depot.leases.give_back(class.bytes()); // it is open already
                }
                put = self.depot.put_above(class, block);
            }
        }
        let rest = match put {
            Put::Kept => return,
            Put::Displaced(older) => older,
            Put::Refused => block,
        };
        // SAFETY: as the caller says, of this block or of the one that was kept before.
        unsafe { self.keep(class, Batch::of(rest), inner) };
    }

    /// The newcomer is kept unless it alone is more than half of the bound.
    fn may_keep(&self, bytes: usize) -> bool {
        bytes <= self.depot.leases.limit() / 2
    }

    /// Keeps a batch in the depot and makes room for it; else it goes back.
    unsafe fn keep<A: GlobalAlloc>(&self, class: Class, mut batch: Batch, inner: &Inner<'_, A>) {
        if batch.len == 0 {
            return;
        }
        let mut lease = 0;
        while self.may_keep(batch.len * class.bytes()) {
            match self.depot.push(class, &mut batch, lease) {
                Ok(unused) => return self.depot.leases.give_back(unused),
                Err(Refused::Unleased(bytes)) if self.lease(bytes, inner) => lease += bytes,
                Err(_) => break,
            }
        }
        self.depot.leases.give_back(lease);
        count(&self.counts.evicted, batch.len);
        // SAFETY: as the caller says.
        unsafe { release(class, &batch, inner) };
    }

    /// Leases so many bytes, and evicts for that, oldest first.
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
            // SAFETY: what the depot holds came here by `free`, with this allocator.
            unsafe { release(class, &oldest, inner) };
        }
        false
    }

    /// Each thread looks at the time once in a while: when a class is due, and each so many slow
    /// turns.
    fn turn<A: GlobalAlloc>(&self, front: Option<&Front>, due: bool, inner: &Inner<'_, A>) {
        let Some(front) = front else { return };
        let turns = front.turns.load(Relaxed).wrapping_add(1);
        front.turns.store(turns, Relaxed);
        if due || turns % TURNS == 0 {
            self.decay(system::coarse_milliseconds(), inner);
        }
    }

    /// The program grows by so many bytes. When it has grown by as much as is idle, most of what
    /// nobody needed meanwhile goes back, so that the inner allocator can make of it what grows:
    /// one size's blocks are of no use to another here. Where much is idle, sizes come back in
    /// longer cycles, and only the bound and time take them.
    fn make_way<A: GlobalAlloc>(&self, bytes: usize, inner: &Inner<'_, A>) {
        let grown = self.grown.fetch_add(bytes, Relaxed) + bytes;
        if grown < self.depot.leases.leased().max(GROWN_LEAST) {
            return;
        }
        // What is leased and not used is not idle.
        self.depot.reclaim_leases();
        let idle = self.depot.leases.leased();
        if grown >= idle {
            self.grown.store(0, Relaxed);
            if idle <= LITTLE {
                self.decay_by(2, inner);
            }
        }
    }

    /// So many steps of the decay. Returns the bytes that went back.
    fn decay_by<A: GlobalAlloc>(&self, steps: u32, inner: &Inner<'_, A>) -> usize {
        let mut bytes = 0;
        self.depot.decay(steps, |class, batch| {
            count(&self.counts.decayed, batch.len);
            // SAFETY: what the depot holds came here by `free`, with this allocator.
            bytes += unsafe { release(class, &batch, inner) };
        });
        bytes
    }

    /// Gives back what nobody needed for so long. Returns the bytes.
    pub(crate) fn decay<A: GlobalAlloc>(&self, now: u64, inner: &Inner<'_, A>) -> usize {
        let (every, last) = (self.decay_every.load(Relaxed), self.decayed_at.load(Relaxed));
        let turns = now.saturating_sub(last).checked_div(every).unwrap_or(0);
        let next = last + turns * every;
        // One thread does it.
        if turns == 0 || self.decayed_at.compare_exchange(last, next, Relaxed, Relaxed).is_err() {
            return 0;
        }
        self.decay_by(u32::try_from(turns).unwrap_or(u32::MAX), inner)
    }

    /// Gives back idle blocks of the depot, oldest first, until at least `bytes` went or none is
    /// left. Returns the bytes.
    pub(crate) fn trim<A: GlobalAlloc>(&self, bytes: usize, inner: &Inner<'_, A>) -> usize {
        // What others bring meanwhile is not for this call, or it might never end.
        let bytes = bytes.min(self.depot.all_bytes());
        let mut went = 0;
        while went < bytes
            && let Some((class, oldest)) = self.depot.take_oldest(bytes - went)
        {
            // SAFETY: what the depot holds came here by `free`, with this allocator.
            went += unsafe { release(class, &oldest, inner) };
        }
        went
    }

    /// Gives back all that is idle in this front and in the depot. Returns the bytes.
    pub(crate) fn clear<A: GlobalAlloc>(
        &self,
        front: Option<&Front>,
        inner: &Inner<'_, A>,
    ) -> usize {
        let mut went = 0;
        for class in (0..FRONT_CLASSES).map(Class::numbered) {
            let Some(front) = front else { break };
            while let batch = front.take_oldest(class, MAGAZINE)
                && batch.len > 0
            {
                let fewer = front.limit(class).saturating_sub(batch.len);
                self.depot.leases.give_back(front.set_limit(class, fewer));
                // SAFETY: what fronts hold came here by `free`, with this allocator.
                went += unsafe { release(class, &batch, inner) };
            }
            self.depot.leases.give_back(front.set_limit(class, 0));
        }
        went + self.trim(usize::MAX, inner)
    }

    /// A thread ends: what its front holds goes to the depot, with the lease for it. What the depot
    /// cannot take stays in the front, for the thread that has it next.
    pub(crate) fn leave(&self, front: &Front) {
        for class in (0..FRONT_CLASSES).map(Class::numbered) {
            while let mut batch = front.take_oldest(class, MAGAZINE)
                && batch.len > 0
            {
                let len = batch.len;
                match self.depot.push(class, &mut batch, len * class.bytes()) {
                    // The lease for them went along, as far as it was needed.
                    Ok(unused) => self.depot.leases.give_back(unused),
                    Err(_) => {
                        front.fill(class, &mut batch);
                        break;
                    }
                }
                front.set_limit(class, front.limit(class) - len);
            }
            if front.counted(class).blocks == 0 {
                self.depot.leases.give_back(front.set_limit(class, 0));
            }
        }
        // Release, for whoever has it next.
        front.in_use.store(false, Release);
    }

    /// What it has counted and holds.
    pub(crate) fn stats(&self) -> TcacheStats {
        let mut stats = TcacheStats {
            misses: self.counts.misses.load(Relaxed),
            bypasses: self.counts.bypasses.load(Relaxed),
            refills: self.counts.refills.load(Relaxed),
            flushes: self.counts.flushes.load(Relaxed),
            evictions: self.counts.evicted.load(Relaxed),
            decayed: self.counts.decayed.load(Relaxed),
            leased_bytes: self.depot.leases.leased() as u64,
            leased_peak_bytes: self.depot.leases.peak() as u64,
            cached_limit_bytes: self.depot.leases.limit() as u64,
            ..TcacheStats::default()
        };
        for class in (0..CLASSES).map(Class::numbered) {
            let [mut allocations, mut frees] = self.depot.orphans(class);
            stats.depot_bytes += self.depot.bytes(class) as u64;
            for front in self.fronts.iter() {
                let counted = front.counted(class);
                allocations = counted.allocations.saturating_add(allocations);
                frees = counted.frees.saturating_add(frees);
                stats.front_bytes += (counted.blocks * class.bytes()) as u64;
            }
            stats.allocations = stats.allocations.saturating_add(allocations);
            stats.frees = stats.frees.saturating_add(frees);
            let live = allocations.saturating_sub(frees).saturating_mul(class.bytes() as u64);
            stats.live_bytes = stats.live_bytes.saturating_add(live);
        }
        stats.fronts = self.fronts.iter().count() as u64;
        stats.hits = stats.allocations.saturating_sub(stats.misses);
        stats
    }
}

/// Gives blocks back to the inner allocator. Returns the bytes.
unsafe fn release<A: GlobalAlloc>(class: Class, batch: &Batch, inner: &Inner<'_, A>) -> usize {
    for block in batch.as_slice() {
        // SAFETY: as the caller says.
        unsafe { inner.free(class, *block) };
    }
    batch.len * class.bytes()
}

#[cfg(test)]
mod tests;
