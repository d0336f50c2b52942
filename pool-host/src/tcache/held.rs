//! The slow path on a thread cache: a thread holds it and works on its bins.
//!
//! That thread is the owner, or a visitor: another thread that takes back the classes that the
//! owner does not use. A visitor writes limits, floors, leases and `watched`. Only the owner writes
//! to `state`, `base`, `balance` and the slots. On the hot path the owner does so without holding
//! the thread cache.
#![expect(unsafe_code, reason = "pages are given back by their addresses")]

use super::barrier;
use super::thread_cache::{Bin, CALLED, LEN, SLOTS, TURNS, ThreadCache};
use crate::depot::{Batch, CLASSES, Class, LARGEST, MAGAZINE};
use crate::pages::PAGE;
use crate::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::{system, virtual_memory};
use std::ptr::NonNull;

/// Requests larger than all classes between two reads of the clock. Programs use their blocks for
/// longer.
const LARGE_TURNS: u64 = 1 << 8;
/// Requests of a class between two reads of the clock while many bytes are cached. A program with
/// 10 requests a second then gives memory back soon. A read costs about 60 ns.
const TURNS_WET: u32 = 16;
/// Milliseconds between two reads of the clock, beyond which a thread may read it with each
/// request.
const CALM: u64 = 20;
/// Attempts to hold a thread cache that another thread holds, before the caller does without it.
const LOOKS: u32 = 64;
/// The first limit of a bin, in blocks. Bins with blocks of at most [`SMALL`] bytes start with four
/// times as many.
const FIRST: usize = 4;
const SMALL: usize = 1024;
/// The most classes that one visit takes back.
pub(super) const AT_ONCE: usize = 64;

/// Counters of one class of a thread cache, and its cached blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) blocks: usize,
}

/// Returns the largest limit of a bin: two magazines, or as many blocks as 256 KiB hold if that is
/// less.
const fn capacity(class: Class) -> usize {
    let fit = LARGEST / class.bytes();
    if fit > 2 * MAGAZINE { 2 * MAGAZINE } else { fit }
}

impl ThreadCache {
    #[inline]
    pub(super) fn bin(&self, class: Class) -> &Bin {
        &self.bins[class.number()]
    }

    /// Returns whether the thread should read the clock.
    ///
    /// For a class: its turns are used up while the bin has blocks, or a visitor called the thread.
    /// With `None`: each [`LARGE_TURNS`]th request larger than all classes.
    pub(crate) fn is_due(&self, class: Option<Class>) -> bool {
        let Some(class) = class else {
            return self.large[0].load(Relaxed) % LARGE_TURNS == LARGE_TURNS - 1;
        };
        let bin = self.bin(class);
        bin.floor.load(Relaxed) == CALLED || (1..=LEN).contains(&bin.state.load(Relaxed))
    }

    /// Notes that the owner reads the clock at the time `now`, in milliseconds.
    pub(super) fn looks(&self, now: u64) {
        let before = self.looked_at.load(Relaxed);
        if now > before {
            self.is_calm.store(now - before > CALM, Relaxed);
            self.looked_at.store(now, Relaxed);
            self.freed.store(0, Relaxed);
            self.freed_most.store(0, Relaxed);
        }
    }

    /// Notes that the owner freed a large block of `bytes` bytes. Returns whether the caller should
    /// sum up the cached bytes.
    ///
    /// That is so when the bytes freed since the last read of the clock reach `first`, and then
    /// each time that they have doubled.
    #[inline]
    pub(super) fn frees(&self, bytes: usize, first: usize) -> bool {
        let freed = self.freed.load(Relaxed).saturating_add(bytes);
        self.freed.store(freed, Relaxed);
        let is_time = freed >= self.freed_most.load(Relaxed).max(first);
        if is_time {
            self.freed_most.store(freed.saturating_mul(2), Relaxed);
        }
        is_time
    }

    /// Returns the turns of a class: its requests before the next read of the clock.
    pub(super) fn next_turns(&self, is_much_idle: bool) -> u32 {
        match (is_much_idle, self.is_calm.load(Relaxed)) {
            (false, _) => TURNS,
            (true, false) => TURNS_WET,
            (true, true) => 0,
        }
    }

    /// Returns whether the hot path may count a large request, or with `freed` a free.
    ///
    /// It may not count the first, because a thread without a thread cache has the empty one, which
    /// no thread writes to; nor one in [`LARGE_TURNS`], which reads the clock.
    #[inline]
    pub(crate) fn may_count_large(&self, freed: bool) -> bool {
        let count = self.large[usize::from(freed)].load(Relaxed);
        count > 0 && count % LARGE_TURNS != LARGE_TURNS - 1
    }

    /// Counts a request larger than all classes, or with `freed` a free of such a block. Only the
    /// owner may call this.
    #[inline]
    pub(crate) fn count_large(&self, freed: bool) {
        let counter = &self.large[usize::from(freed)];
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }

    /// Takes out of the books what is leased for no bin, in a forked child: a thread that is not
    /// there was giving it back. Returns the bytes.
    pub(super) fn forget_lost_lease(&self) -> usize {
        let of_bin =
            |class: Class| usize::from(self.bin(class).limit.load(Relaxed)) * class.bytes();
        let backed: usize = Class::all().map(of_bin).sum();
        let lost = self.leased().saturating_sub(backed);
        if lost > 0 {
            self.leased.store(backed, Relaxed);
        }
        lost
    }

    /// Returns whether a thread holds it at the moment.
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    /// Holds the thread cache; `None` if it stays held for [`LOOKS`] attempts.
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        for _ in 0..LOOKS {
            if self.held.compare_exchange(false, true, Acquire, Relaxed).is_ok() {
                return Some(Held(self));
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Gives the memory of the slots back to the system, if no block is in them. The caller owns the
    /// thread cache, which is in memory of its own.
    pub(super) fn forget_slots(&self) {
        let Some(_held) = self.hold() else { return };
        let is_empty = |bin: &Bin| bin.state.load(Relaxed) & LEN == 0;
        if cfg!(miri) || !self.bins.iter().all(is_empty) {
            return;
        }
        let slots = std::ptr::from_ref(&self.slots).cast::<u8>().cast_mut();
        let skipped = slots.align_offset(PAGE);
        let bytes = size_of_val(&self.slots).saturating_sub(skipped) / PAGE * PAGE;
        let Some(start) = NonNull::new(slots.wrapping_add(skipped)) else { return };
        // SAFETY: these are pages of a mapping of `ThreadCaches::add`. They hold slots only, which
        // no code reads while their bins are empty, and this thread holds the thread cache, so no
        // other fills a bin. Zero bytes are valid slots. A refusal leaves them as they are.
        let _ = system::keeping_errno(|| unsafe { virtual_memory::forget(start, bytes) });
    }

    /// Returns the counters of a class.
    ///
    /// `frees = allocations + len - balance`, and blocks below the floor are not counted as cached.
    /// While the owner works, the numbers may be inconsistent.
    pub(crate) fn counted(&self, class: Class) -> Counted {
        let bin = self.bin(class);
        let (allocations, len) = (bin.allocations(), bin.state.load(Relaxed) & LEN);
        let frees = (allocations + u64::from(len)).wrapping_sub(bin.balance.load(Relaxed));
        let frees = frees.cast_signed().max(0).cast_unsigned();
        let taken = Some(bin.floor.load(Relaxed)).filter(|floor| *floor != CALLED).unwrap_or(0);
        Counted { allocations, frees, blocks: len.saturating_sub(taken.into()) as usize }
    }

    /// Returns the leased bytes of all bins together.
    pub(crate) fn leased(&self) -> usize {
        self.leased.load(Relaxed)
    }
}

/// A thread cache that the current thread holds. No other thread works on it, but if the current
/// thread is a visitor, the owner still takes and puts blocks on the hot path.
#[derive(Debug)]
pub(crate) struct Held<'f>(&'f ThreadCache);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Release);
    }
}

/// A class that a visitor is taking back, with the length and the limit that its bin had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    pub(super) class: Class,
    len: u32,
    limit: u16,
}

impl Held<'_> {
    fn bin(&self, class: Class) -> &Bin {
        self.0.bin(class)
    }

    fn slots(&self, class: Class) -> &[AtomicPtr<u8>; SLOTS] {
        &self.0.slots[class.number()]
    }

    /// Moves the blocks above the floor down to the first slots, and sets the floor to 0.
    ///
    /// Only the owner may call this, and must call it before it works on the class otherwise.
    /// Returns the blocks that have no lease: one that the owner was putting in, or one that it put
    /// back when it saw the floor, while a visitor closed the bin.
    pub(crate) fn compact(&self, class: Class) -> usize {
        let bin = self.bin(class);
        let taken = match bin.floor.load(Relaxed) {
            // A visitor that found an empty bin leaves no floor.
            0 => return self.raw_len(class).saturating_sub(self.limit(class)),
            CALLED => 0,
            taken => taken,
        };
        let (slots, len) = (self.slots(class), self.raw_len(class));
        let stays = len.saturating_sub(taken.into());
        for at in 0..stays {
            slots[at % SLOTS].store(slots[(len - stays + at) % SLOTS].load(Relaxed), Relaxed);
        }
        self.set_len(class, stays);
        let limit = bin.limit.load(Relaxed);
        let limit = limit.saturating_sub(taken);
        bin.limit.store(limit, Relaxed);
        bin.floor.store(0, Relaxed);
        stays.saturating_sub(limit.into())
    }

    /// Counts a request that the slow path serves, and sets the turns of the class: the hits that
    /// its bin serves before the next slow request. Only the owner may call this.
    pub(crate) fn count_allocation(&self, class: Class, turns: u32) {
        let bin = self.bin(class);
        let (allocations, len) = (bin.allocations() + 1, bin.state.load(Relaxed) & LEN);
        bin.base.store(allocations + u64::from(turns), Relaxed);
        bin.state.store(len | (turns << 16), Relaxed);
        bin.shift_balance(1);
    }

    /// Lowers the turns of a class to at most `most`. Only the owner may call this.
    pub(super) fn limit_turns(&self, class: Class, most: u32) {
        let bin = self.bin(class);
        let state = bin.state.load(Relaxed);
        let left = state >> 16;
        if left > most {
            bin.base.store(bin.base.load(Relaxed) - u64::from(left - most), Relaxed);
            bin.state.store((state & LEN) | (most << 16), Relaxed);
        }
    }

    /// Calls the owner: its next request of a class whose limit is not 0 takes the slow path and
    /// reads the clock.
    pub(super) fn call(&self) {
        for bin in &self.0.bins {
            if bin.limit.load(Relaxed) > 0 && bin.floor.load(Relaxed) == 0 {
                bin.floor.store(CALLED, Relaxed);
            }
        }
    }

    /// Counts a free that the slow path serves. Only the owner may call this.
    pub(crate) fn count_free(&self, class: Class) {
        self.bin(class).shift_balance(-1);
    }

    /// Counts a request that a resized block serves, without a block from the bin. Only the owner
    /// may call this.
    pub(crate) fn count_resized(&self, class: Class) {
        let bin = self.bin(class);
        bin.base.store(bin.base.load(Relaxed) + 1, Relaxed);
        bin.shift_balance(1);
    }

    /// Returns the length of a bin, including blocks below its floor.
    fn raw_len(&self, class: Class) -> usize {
        (self.bin(class).state.load(Relaxed) & LEN) as usize
    }

    /// Sets the length of a bin after blocks were moved in or out, and adjusts its balance, so that
    /// the move counts as no request and no free.
    fn set_len(&self, class: Class, len: usize) {
        let bin = self.bin(class);
        bin.shift_balance(len.cast_signed() as i64 - self.raw_len(class).cast_signed() as i64);
        let state = bin.state.load(Relaxed) & !LEN;
        bin.state.store(state | u32::try_from(len).unwrap_or(0), Relaxed);
    }

    /// Returns the limit of a bin, in blocks.
    pub(crate) fn limit(&self, class: Class) -> usize {
        self.bin(class).limit.load(Relaxed).into()
    }

    /// Returns how many more blocks a bin may hold.
    pub(crate) fn room(&self, class: Class) -> usize {
        self.limit(class).saturating_sub(self.raw_len(class))
    }

    /// Takes the newest block out of a bin. Only the owner may call this, after [`Held::compact`].
    pub(crate) fn pop(&self, class: Class) -> Option<*mut u8> {
        let last = self.raw_len(class).checked_sub(1)?;
        let block = self.slots(class)[last % SLOTS].load(Relaxed);
        self.set_len(class, last);
        Some(block)
    }

    /// Moves blocks of the batch into a bin, as many as its limit allows. Counts no free.
    pub(crate) fn fill(&self, class: Class, batch: &mut Batch) {
        let mut len = self.raw_len(class);
        while len < self.limit(class)
            && let Some(block) = batch.pop()
        {
            self.slots(class)[len % SLOTS].store(block, Relaxed);
            len += 1;
        }
        self.set_len(class, len);
    }

    /// Takes the oldest blocks out of a bin, at most `most` and at most a magazine of them. Counts
    /// no request.
    pub(crate) fn take_oldest(&self, class: Class, most: usize) -> Batch {
        let (slots, len) = (self.slots(class), self.raw_len(class));
        let taken = most.min(len).min(MAGAZINE);
        let batch = self.copied(class, 0..taken);
        for at in taken..len {
            slots[(at - taken) % SLOTS].store(slots[at % SLOTS].load(Relaxed), Relaxed);
        }
        self.set_len(class, len - taken);
        batch
    }

    /// Returns a copy of these slots of a bin, at most a magazine of them.
    pub(super) fn copied(&self, class: Class, places: std::ops::Range<usize>) -> Batch {
        let mut batch = Batch::EMPTY;
        for slot in self.slots(class).iter().take(places.end).skip(places.start) {
            batch.add(slot.load(Relaxed));
        }
        batch
    }

    /// Returns the next larger limit of a bin, and the bytes to lease for it.
    pub(crate) fn next_limit(&self, class: Class) -> (usize, usize) {
        let limit = self.limit(class);
        let first = if class.bytes() <= SMALL { 4 * FIRST } else { FIRST };
        let next = (2 * limit).max(first).min(capacity(class));
        (next, next.saturating_sub(limit) * class.bytes())
    }

    /// Sets the limit of a bin, and adjusts the leased bytes of the thread cache. Returns by how
    /// many bytes they fell.
    ///
    /// The caller updates the leases of the cache.
    pub(crate) fn set_limit(&self, class: Class, limit: usize) -> usize {
        let before = self.limit(class) * class.bytes();
        let after = limit * class.bytes();
        self.bin(class).limit.store(u16::try_from(limit).unwrap_or(0), Relaxed);
        self.0.leased.store(self.0.leased() + after - before, Relaxed);
        before.saturating_sub(after)
    }

    /// Returns the leased bytes of all bins together.
    pub(crate) fn leased(&self) -> usize {
        self.0.leased()
    }

    /// Returns the next class, other than `but`, that has leased bytes and no requests since the
    /// cursor last passed it.
    pub(crate) fn least_used(&self, but: Class) -> Option<Class> {
        let cursor = self.0.cursor.load(Relaxed);
        for number in cursor..cursor + 2 * CLASSES {
            let class = Class::numbered(number % CLASSES);
            let (bin, allocations) = (self.bin(class), self.requests(class));
            if bin.limit.load(Relaxed) == 0 || class == but {
                continue;
            }
            if bin.seen.load(Relaxed) == allocations {
                self.0.cursor.store(class.number() + 1, Relaxed);
                return Some(class);
            }
            bin.seen.store(allocations, Relaxed);
        }
        None
    }

    /// Returns the low 32 bits of a class's number of requests, to see whether it changed.
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    fn requests(&self, class: Class) -> u32 {
        self.bin(class).allocations() as u32
    }

    /// Closes classes that the owner did not request since the last visit, and calls the owner for
    /// the others. Returns how many classes it closed.
    ///
    /// A closed class has the limit 0 and a floor at its length, so an owner that sees both puts no
    /// block in and takes none out. After `barrier::heavy` the owner sees both. A put or a take
    /// that loaded them earlier may still complete; [`Held::compact`] handles it. After the barrier
    /// [`Held::take_closed`] takes the blocks; if the barrier fails, [`Held::open_again`] opens the
    /// class. Unused classes that do not fit into `closed` are left for the next visit.
    pub(super) fn close_idle(&self, closed: &mut [Option<Closed>; AT_ONCE]) -> usize {
        let mut count = 0;
        for class in Class::all() {
            let bin = self.bin(class);
            let (len, floor) = (bin.state.load(Relaxed) & LEN, bin.floor.load(Relaxed));
            let is_floor_known = floor == 0 || floor == CALLED;
            if bin.limit.load(Relaxed) == 0 || !is_floor_known {
                continue;
            }
            let requests = self.requests(class);
            if bin.watched.swap(requests, Relaxed) != requests {
                bin.floor.store(CALLED, Relaxed);
            } else if let Some(place) = closed.get_mut(count) {
                barrier::switch();
                *place = Some(Closed { class, len, limit: bin.limit.swap(0, Relaxed) });
                bin.floor.store(u16::try_from(len).unwrap_or(0), Relaxed);
                count += 1;
            }
        }
        count
    }

    /// Takes the blocks of a closed class: the caller may copy them out of the first slots. Returns
    /// their number, and by how many bytes the lease of the thread cache fell.
    ///
    /// Must be called after a successful `barrier::heavy`. An owner whose take is past its `light`
    /// has made the shorter length visible here; one that is not will see the floor and put the
    /// block back. So no block is taken by both.
    pub(super) fn take_closed(&self, closed: Closed) -> (usize, usize) {
        let bin = self.bin(closed.class);
        // Acquire: the slots that its thread wrote before, in `put`.
        let now = bin.state.load(Acquire) & LEN;
        let taken = now.min(closed.len);
        bin.floor.store(u16::try_from(taken).unwrap_or(0), Relaxed);
        // A block that the owner put in after `close_idle` read the length stays, and stays leased.
        let stays = now - taken;
        if stays > 0 {
            bin.limit.store(u16::try_from(now).unwrap_or(0), Relaxed);
        }
        let fewer = usize::from(closed.limit).saturating_sub(stays as usize) * closed.class.bytes();
        self.0.leased.store(self.0.leased() - fewer, Relaxed);
        (taken as usize, fewer)
    }

    /// Opens a closed class with its former limit and takes nothing, because the barrier failed.
    pub(super) fn open_again(&self, closed: Closed) {
        self.bin(closed.class).limit.store(closed.limit, Relaxed);
        self.bin(closed.class).floor.store(CALLED, Relaxed);
    }
}

/// Returns whether a visitor can take blocks back: whether the system has the barrier for it.
pub(super) fn can_take_back() -> bool {
    barrier::is_there()
}

impl Bin {
    /// Returns the number of requests so far.
    pub(super) fn allocations(&self) -> u64 {
        let left = self.state.load(Relaxed) >> 16;
        self.base.load(Relaxed).saturating_sub(u64::from(left))
    }

    fn shift_balance(&self, by: i64) {
        self.balance.store(self.balance.load(Relaxed).wrapping_add_signed(by), Relaxed);
    }
}
