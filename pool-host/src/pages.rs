//! Pages of our own for large blocks: a range of addresses that is divided into runs of pages.
//!
//! ```text
//!   Pages::take      here       a length in pages
//!     Slots::take    slots.rs   HOT: one exchange, for a run of this length that was just freed
//!     Runs::take     runs.rs    the lock: a dirty run, also of what lies in slots; else a clean
//!                               one; else the range grows
//!   Pages::give      here
//!     Slots::put     slots.rs   HOT: one exchange
//!     Runs::release  runs.rs    the lock: joined with its neighbours
//!     give_back      here       what is more than the recent need goes back to the system, the
//!                               oldest first, a bounded number of pages in a call
//! ```
//!
//! A map says where each run begins and ends, so a block has no header, and is freed by its address
//! alone. Nothing here allocates. What a program holds, what lies in slots, and what is on its way
//! to the system counts as used.
#![expect(unsafe_code, reason = "blocks are addresses in a range that the system reserved")]

mod heap;
mod lock;
mod need;
mod runs;
mod slots;
mod space;
#[cfg(all(test, not(any(miri, loom, shuttle))))]
mod tests;

use crate::system;
use heap::Heap;
use lock::ForkLock;
use need::Need;
use runs::{Page, PageState, Run};
use slots::Slots;
use space::Space;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

/// A page of ours in bytes. No smaller than the system's, which takes memory back by pages.
pub(crate) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };
/// The usable part of the range grows by this many bytes.
const STEP: usize = 64 << 20;
/// Requests of more bytes are refused: lengths are kept in 30 bits.
const LARGEST: usize = 1 << 38;
/// The largest alignment.
const MOST_ALIGN: usize = 2 << 20;
/// A block of this size that has to move for growth goes where it has room for more.
const ROOMY: usize = 1 << 20;

/// The base before there is a range: so far from all blocks that none seems to be in it, whichever
/// of the two values a thread reads first.
const NOWHERE: *mut u8 = ptr::without_provenance_mut(1 << (usize::BITS - 1));
/// Runs that the system may keep, since the program has locked a page of them, before a call gives
/// up.
const REFUSALS: u32 = 64;

/// Large blocks on pages of their own.
#[derive(Debug)]
pub(crate) struct Pages {
    inside: ForkLock<Heap>,
    slots: Slots,
    /// The range that was reserved, which tells whether a block is from here. It has no bytes
    /// before the first request.
    base: AtomicPtr<u8>,
    bytes: AtomicUsize,
    map: AtomicPtr<Page>,
    /// The system has no addresses: nothing is served.
    refused: AtomicBool,
    /// Milliseconds at which a hit is to look at what can go back.
    next_look: AtomicU64,
}

/// A block, and whether all of it reads as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) block: *mut u8,
    pub(crate) zeroed: bool,
}

/// Bytes of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagesStats {
    /// Of blocks, and of what lies in slots.
    pub(crate) used: u64,
    /// Free, with memory behind them.
    pub(crate) dirty: u64,
}

impl Pages {
    pub(crate) const fn new() -> Self {
        Self {
            inside: ForkLock::new(Heap::new()),
            slots: Slots::new(),
            base: AtomicPtr::new(NOWHERE),
            bytes: AtomicUsize::new(0),
            map: AtomicPtr::new(ptr::null_mut()),
            refused: AtomicBool::new(false),
            next_look: AtomicU64::new(0),
        }
    }

    /// Whether a block is from here.
    #[inline]
    pub(crate) fn has(&self, block: *mut u8) -> bool {
        let from_base = block.addr().wrapping_sub(self.base.load(Relaxed).addr());
        from_base < self.bytes.load(Relaxed)
    }

    /// Bytes of a block from here, which the caller owns.
    #[inline]
    pub(crate) fn bytes_of(&self, block: *mut u8) -> usize {
        self.run_of(block).1 as usize * PAGE
    }

    /// The first page of a block, and how many.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the range has fewer than 2^30 pages")]
    fn run_of(&self, block: *mut u8) -> (u32, u32) {
        let first = (block.addr() - self.base.load(Relaxed).addr()) / PAGE;
        // SAFETY: the entry of a block's first page is in the usable part of the map, and no
        // thread writes to it before the owner frees the block.
        let page = unsafe { &*self.map.load(Relaxed).wrapping_add(first) };
        (first as u32, page.pages())
    }

    #[inline]
    fn address(&self, first: u32) -> *mut u8 {
        self.base.load(Relaxed).wrapping_add(first as usize * PAGE)
    }

    /// A block of at least `bytes` bytes, more than none; `None` if addresses or memory end, or for
    /// an alignment above 2 MiB.
    #[inline]
    pub(crate) fn take(&self, bytes: usize, align: usize) -> Option<Taken> {
        let (pages, align) = (Self::pages_of(bytes)?, Self::align_of(align)?);
        if let Some(first) = self.slots.take(pages, align, own_shard()) {
            return Some(Taken { block: self.address(first), zeroed: false });
        }
        self.take_run(pages, align, false)
    }

    #[expect(clippy::cast_possible_truncation, reason = "LARGEST has fewer than 2^30 pages")]
    fn pages_of(bytes: usize) -> Option<u32> {
        (bytes <= LARGEST).then_some(bytes.div_ceil(PAGE) as u32)
    }

    /// An alignment in pages.
    fn align_of(align: usize) -> Option<u32> {
        let align = u32::try_from(align.div_ceil(PAGE)).ok()?;
        (align as usize * PAGE <= MOST_ALIGN).then_some(align)
    }

    /// Takes a run under the lock. `roomy`: out of a long one, so that it can grow.
    #[cold]
    fn take_run(&self, pages: u32, align: u32, roomy: bool) -> Option<Taken> {
        if !self.is_ready() {
            return None;
        }
        let now = system::coarse_milliseconds();
        let (first, zeroed, budget) = self.inside.enter(|inside| {
            let mut found = inside.take_dirty(pages, align, roomy);
            // Nothing new as long as a block that was just freed could serve.
            if found.is_none() && self.sweep(inside) {
                found = inside.take_dirty(pages, align, roomy);
            }
            let (first, state) = found.or_else(|| inside.take_clean(pages, align, roomy))?;
            inside.need.up(pages);
            let zeroed = state == PageState::Clean;
            // Old contents became no more by this, so nothing need go back.
            let budget = if zeroed { self.turn(inside, now, pages) } else { 0 };
            Some((first, zeroed, budget))
        })?;
        self.give_back(budget);
        Some(Taken { block: self.address(first), zeroed })
    }

    /// Takes a block back.
    ///
    /// # Safety
    ///
    /// It is from here, and is not used again.
    #[inline]
    pub(crate) unsafe fn give(&self, block: *mut u8) {
        let (first, pages) = self.run_of(block);
        if self.slots.put(first, pages, own_shard()) {
            return self.look();
        }
        self.give_run(first, pages);
    }

    #[cold]
    fn give_run(&self, first: u32, pages: u32) {
        let now = system::coarse_milliseconds();
        let budget = self.inside.enter(|inside| {
            inside.need.down(pages);
            inside.runs.release(Run { first, pages, state: PageState::Dirty });
            self.turn(inside, now, pages)
        });
        self.give_back(budget);
    }

    /// Makes a block hold `bytes` bytes where it is. False if it cannot, and then it is as it was.
    ///
    /// # Safety
    ///
    /// It is from here, and what is behind the new end is not used.
    pub(crate) unsafe fn resize(&self, block: *mut u8, bytes: usize) -> bool {
        let (first, pages) = self.run_of(block);
        let Some(wanted) = Self::pages_of(bytes).filter(|wanted| *wanted > 0) else { return false };
        // A little less is not worth the lock.
        let less = pages.saturating_sub(wanted);
        if wanted <= pages && less < (pages / 8).clamp(1, 64) {
            return true;
        }
        let now = system::coarse_milliseconds();
        let (done, budget) = self.inside.enter(|inside| {
            if wanted > pages {
                let done = inside.extend(first, pages, wanted, false)
                    || (self.sweep(inside) && inside.extend(first, pages, wanted, false))
                    || inside.extend(first, pages, wanted, true);
                return (done, self.turn(inside, now, wanted - pages));
            }
            inside.runs.use_up(first, wanted);
            inside.need.down(less);
            inside.runs.release(Run {
                first: first + wanted,
                pages: less,
                state: PageState::Dirty,
            });
            (true, self.turn(inside, now, less))
        });
        self.give_back(budget);
        done
    }

    /// Takes a block for the contents of one that cannot grow where it is: out of a long run, so
    /// that the next growth need not move it.
    pub(crate) fn take_to_grow(&self, bytes: usize, align: usize) -> Option<Taken> {
        self.take_run(Self::pages_of(bytes)?, Self::align_of(align)?, bytes >= ROOMY)
    }

    /// Gives free memory back to the system, the oldest first, until at least `bytes` bytes went,
    /// none is left, or the system kept 64 runs, which the program has locked. Returns the bytes.
    pub(crate) fn trim(&self, bytes: usize) -> usize {
        self.inside.enter(|inside| self.sweep(inside));
        let (mut went, mut refusals) = (0, 0);
        while went < bytes && refusals < REFUSALS {
            match self.give_back_some(bytes.div_ceil(PAGE) as u64, |dirty, _| dirty) {
                None => break,
                Some(0) => refusals += 1,
                Some(some) => went += some as usize * PAGE,
            }
        }
        went
    }

    /// The bytes that it holds.
    pub(crate) fn stats(&self) -> PagesStats {
        self.inside.enter(|inside| PagesStats {
            used: inside.need.live * PAGE as u64,
            dirty: inside.runs.dirty * PAGE as u64,
        })
    }

    /// On the way of a hit: now and then, whether something can go back.
    #[inline]
    fn look(&self) {
        if system::coarse_milliseconds() >= self.next_look.load(Relaxed) {
            self.look_now();
        }
    }

    /// Gives back what is more than the recent need, a bounded number of pages. For a program that
    /// allocates nothing, and for its other allocations.
    #[cold]
    pub(crate) fn look_now(&self) {
        if self.bytes.load(Relaxed) == 0 {
            return;
        }
        let now = system::coarse_milliseconds();
        let budget = self.inside.enter(|inside| self.turn(inside, now, 0));
        self.give_back(budget);
    }

    /// Notes the time. Returns how many pages this call, which is about `own` itself, is to give
    /// back.
    fn turn(&self, inside: &mut Heap, now: u64, own: u32) -> u64 {
        if inside.need.is_over(now) {
            // Before the window ends: what lies in slots is not needed.
            self.sweep(inside);
            inside.need.turn(now);
        }
        self.next_look.store(inside.need.next_look(now, inside.runs.dirty), Relaxed);
        inside.need.budget(now, own).min(inside.need.excess(inside.runs.dirty))
    }

    /// Frees what lies in slots, so that it is joined, and can go back. Returns whether there was
    /// anything.
    fn sweep(&self, inside: &mut Heap) -> bool {
        let mut any = false;
        for (first, pages) in self.slots.drain() {
            any = true;
            inside.need.down(pages);
            inside.runs.release(Run { first, pages, state: PageState::Dirty });
        }
        any
    }

    /// Gives back what is more than the recent need, at most `budget` pages.
    fn give_back(&self, mut budget: u64) {
        while budget > 0 {
            let went = self.give_back_some(budget, |dirty, need| need.excess(dirty));
            let Some(went) = went.filter(|went| *went > 0) else { return };
            budget = budget.saturating_sub(went.into());
        }
    }

    /// Gives the end of the oldest dirty run back to the system, without the lock. Returns how many
    /// pages went: none of a run that the system keeps, which is the newest then.
    fn give_back_some(&self, most: u64, excess: impl Fn(u64, &Need) -> u64) -> Option<u32> {
        let oldest = self.inside.enter(|inside| {
            let excess = excess(inside.runs.dirty, &inside.need);
            inside.runs.take_oldest(u32::try_from(excess.min(most)).unwrap_or(u32::MAX))
        });
        let (first, pages) = oldest?;
        // SAFETY: pages of the range that were free, and count as used until they are released.
        let clean = unsafe { space::forget(self.address(first), pages as usize * PAGE) };
        let state = if clean { PageState::Clean } else { PageState::Dirty };
        self.inside.enter(|inside| inside.runs.release(Run { first, pages, state }));
        Some(if clean { pages } else { 0 })
    }

    /// Whether there is a range to serve from. Reserves it at first.
    fn is_ready(&self) -> bool {
        self.bytes.load(Acquire) > 0 || self.reserve()
    }

    #[cold]
    fn reserve(&self) -> bool {
        if self.refused.load(Relaxed) {
            return false;
        }
        let reserved = self.inside.enter(|inside| {
            if inside.space.is_some() {
                return true;
            }
            let Some(space) = Space::reserve() else { return false };
            self.base.store(space.base, Relaxed);
            self.map.store(space.map, Relaxed);
            self.bytes.store(space.bytes, Release);
            inside.space = Some(space);
            true
        });
        self.refused.store(!reserved, Relaxed);
        reserved
    }

    /// Takes the lock before a fork, so that the child finds all runs whole.
    pub(crate) fn before_fork(&self) {
        self.inside.before_fork();
    }

    /// Gives it up after that, in parent and child.
    pub(crate) fn after_fork(&self) {
        self.inside.after_fork();
    }
}

/// A number that differs between threads, mostly: no thread-local variable, since a thread may end.
#[inline]
fn own_shard() -> usize {
    // SAFETY: asks for the number of this thread.
    let thread = unsafe { libc::pthread_self() };
    // Stacks lie a power of two and some pages apart: the top bits of a product differ.
    let mixed = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(mixed >> 48).unwrap_or(0)
}
