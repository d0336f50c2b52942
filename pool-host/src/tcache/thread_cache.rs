//! THE HOT PATH of the tcache: [`ThreadCache::take`] and [`ThreadCache::put`], and what the slow path
//! does with a thread's blocks.
//!
//! A thread cache belongs to one thread at a time, its owner. A hit is a few plain loads and stores
//! of the owner.
//!
//! ```text
//!   bins   |state cap|  one for each class; `state` is its length and a count of requests
//!   slots  |x x x x .|  pointers to free blocks, the newest last
//!                len
//! ```
//!
//! Another thread takes a thread's blocks back when that thread does not use them. The owner notes
//! that it is busy and then looks whether it is stopped; the other notes that it is stopped and then
//! looks whether it is busy. Each has a barrier between the two (`barrier.rs`), so at most one of
//! them works on the blocks (Dekker's algorithm). The other's barrier reaches all threads and is
//! dear, so only threads that have made no request for a while are stopped.
#![expect(
    unsafe_code,
    reason = "pages are given back by their addresses, and a bound is told to the compiler"
)]

use super::barrier;
use crate::class::{CLASSES, Class};
use crate::depot::{BATCH, Batch};
use crate::pages::{PAGE, end_for};
use crate::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire,
    Ordering::Relaxed, Ordering::Release,
};
use crate::system;
use crate::virtual_memory::{self, Zeroed};
use std::hint::{assert_unchecked, cold_path};
use std::ptr::{self, NonNull};

/// Slots of a bin. The class decides how many of them are used.
pub(super) const SLOTS: usize = 64;
/// The most bytes that a bin of more than one block may hold.
const BIN_BYTES: usize = 2 << 20;
/// The first capacity of a bin, in blocks. Bins with blocks of at most [`SMALL`] bytes start with
/// four times as many.
const FIRST: usize = 4;
const SMALL: usize = 1024;
/// Looks at a stopped thread cache before its owner does without it.
const LOOKS: u32 = 64;
/// Requests larger than all classes between two reads of the clock.
const LARGE_TURNS: u64 = 1 << 8;

/// The free blocks of one class in a thread cache, without their slots.
#[derive(Debug)]
struct Bin {
    /// The length, in blocks, in the low 16 bits, and above them the number of requests.
    state: AtomicU64,
    /// `requests + length - frees`. A take and a put leave it unchanged, so only the slow path
    /// writes it, and a put need not count a free.
    balance: AtomicU64,
    /// The most blocks that the bin may hold.
    cap: AtomicU16,
    /// The low 16 bits of the number of requests and frees at the last call of [`Held::is_unused`].
    used: AtomicU16,
    /// The low 32 bits of the number of requests at the last look.
    seen: AtomicU32,
}

/// Mask of the length in a bin's state.
const LEN: u64 = 0xffff;
/// One request in a bin's state.
const REQUEST: u64 = LEN + 1;
/// Requests of a class after which one takes the slow path, which may read the clock.
const TURNS: u64 = 256 * REQUEST;
/// The most requests of a class after which one does in a thread that has a pace.
const LONGEST_PACE: u32 = 64;

/// The free blocks that one thread reaches without a lock.
///
/// The order of the fields is that in memory: all counters share the first page, and the slots of a class
/// are on pages that a thread touches which uses the class.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ThreadCache {
    bins: [Bin; CLASSES],
    /// Whether the owner works on the bins.
    busy: AtomicBool,
    /// Whether another thread does, or wants to.
    stopped: AtomicBool,
    /// Requests larger than all classes, and frees of such blocks.
    pub(super) large: [AtomicU64; 2],
    /// The bytes that all bins together may hold.
    room: AtomicUsize,
    /// The bins that may hold blocks, one bit for each. Most threads use few classes, and their bins are far
    /// apart.
    roomy: [AtomicU64; CLASSES.div_ceil(64)],
    /// Slow-path calls of the owner; every so often one of them reads the clock.
    pub(super) turns: AtomicU32,
    /// The most requests of a class after which one takes the slow path; 0 for [`TURNS`].
    pace: AtomicU32,
    /// Requests that bins count and that no program made, for the pace.
    skipped: AtomicU64,
    /// Time at which the owner last read the clock, in milliseconds.
    pub(super) looked_at: AtomicU64,
    /// Time at which the blocks last aged, in milliseconds.
    pub(super) aged_at: AtomicU64,
    /// Bytes of large blocks that the owner freed since it read the clock.
    freed: AtomicUsize,
    /// Value of `freed` at which the owner next looks at the limit.
    freed_most: AtomicUsize,
    /// Whether a bin got hardly any room when its class was used.
    pub(super) wants_room: AtomicBool,
    /// The number of the class from which room is taken next.
    pub(super) yields: AtomicU32,
    /// Whether a thread owns the thread cache.
    pub(super) in_use: AtomicBool,
    /// The next in the list of all thread caches.
    pub(super) next: AtomicPtr<ThreadCache>,
    /// The one below it in a stack of those without an owner.
    pub(super) below: AtomicPtr<ThreadCache>,
    /// The blocks of each bin, the oldest first.
    slots: [[AtomicPtr<u8>; SLOTS]; CLASSES],
}

/// Counters of one class of a thread cache, and its free blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) blocks: usize,
}

/// Returns the largest capacity of a bin.
const fn largest_cap(class: Class) -> usize {
    let fit = BIN_BYTES / class.bytes();
    if fit > SLOTS { SLOTS } else { fit }
}

impl ThreadCache {
    /// The thread cache of threads without one: it is stopped for good, so that each request takes
    /// the slow path.
    #[expect(clippy::declare_interior_mutable_const, reason = "the value of one static")]
    #[expect(clippy::large_stack_arrays, reason = "made by the compiler, in a static")]
    pub(crate) const EMPTY: Self = Self {
        bins: [const {
            Bin {
                state: AtomicU64::new(0),
                balance: AtomicU64::new(0),
                cap: AtomicU16::new(0),
                used: AtomicU16::new(0),
                seen: AtomicU32::new(0),
            }
        }; CLASSES],
        busy: AtomicBool::new(false),
        stopped: AtomicBool::new(true),
        large: [const { AtomicU64::new(0) }; 2],
        room: AtomicUsize::new(0),
        roomy: [const { AtomicU64::new(0) }; CLASSES.div_ceil(64)],
        turns: AtomicU32::new(0),
        pace: AtomicU32::new(0),
        skipped: AtomicU64::new(0),
        looked_at: AtomicU64::new(0),
        aged_at: AtomicU64::new(0),
        freed: AtomicUsize::new(0),
        freed_most: AtomicUsize::new(0),
        wants_room: AtomicBool::new(false),
        yields: AtomicU32::new(0),
        in_use: AtomicBool::new(false),
        next: AtomicPtr::new(ptr::null_mut()),
        below: AtomicPtr::new(ptr::null_mut()),
        slots: [const { [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS] }; CLASSES],
    };

    /// Takes the newest block of a class. Only the owner may call this.
    ///
    /// `None` if the bin is empty, for one request in 256, so that the slow path can read the clock,
    /// and while another thread works on the blocks.
    #[inline]
    pub(crate) fn take(&self, class: Class) -> Option<*mut u8> {
        if !self.begin() {
            return None;
        }
        let bin = &self.bins[class.number() % CLASSES];
        let state = bin.state.load(Relaxed);
        let taken = state.wrapping_add(REQUEST - 1);
        let hits = state & LEN != 0 && taken & (TURNS - REQUEST) != 0;
        barrier::switch();
        let block = hits.then(|| {
            bin.state.store(taken, Relaxed);
            self.slots[class.number() % CLASSES][(taken & LEN) as usize % SLOTS].load(Relaxed)
        });
        self.end();
        block
    }

    /// Puts a block into the bin of its class, if there is room. Returns whether it did. Only the
    /// owner may call this.
    #[inline]
    pub(crate) fn put(&self, class: Class, block: *mut u8) -> bool {
        self.put_if::<false>(class, block)
    }

    /// Puts a block as [`ThreadCache::put`] does, and ends the program if it is the one that was put
    /// last.
    #[inline]
    pub(crate) fn put_new(&self, class: Class, block: *mut u8) -> bool {
        self.put_if::<true>(class, block)
    }

    /// Puts a block as [`ThreadCache::put`] does. If it `LOOKS`, it ends the program where the block is the
    /// one that was put last.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the two callers are the hot path")]
    fn put_if<const LOOKS: bool>(&self, class: Class, block: *mut u8) -> bool {
        if !self.begin() {
            return false;
        }
        let (bin, slots) = self.bin(class);
        let state = bin.state.load(Relaxed);
        let len = (state & LEN) as usize;
        let fits = len < usize::from(bin.cap.load(Relaxed));
        if LOOKS && len > 0 && slots[(len - 1) % SLOTS].load(Relaxed) == block {
            cold_path();
            self.end();
            end_for(block);
        }
        barrier::switch();
        if fits {
            // SAFETY: a cap is at most `SLOTS`, since `Held::set_cap` sets none above that.
            unsafe { assert_unchecked(len < SLOTS) };
            slots[len].store(block, Relaxed);
            // Release: a thread that takes the block back sees what was written to it.
            bin.state.store(state + 1, Release);
        }
        self.end();
        fits
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "an address")]
    fn bin(&self, class: Class) -> (&Bin, &[AtomicPtr<u8>; SLOTS]) {
        let number = class.number() % CLASSES;
        (&self.bins[number], &self.slots[number])
    }

    /// Begins work of the owner. Returns false if another thread works on the blocks.
    #[inline]
    fn begin(&self) -> bool {
        self.busy.store(true, Relaxed);
        barrier::light();
        // Acquire: the owner sees what the other thread did before it let go.
        if self.stopped.load(Acquire) {
            cold_path();
            self.end();
            return false;
        }
        true
    }

    /// Ends work of the owner.
    #[inline]
    fn end(&self) {
        self.busy.store(false, Release);
    }

    /// Begins longer work of the owner. `None` if another thread keeps working on the blocks.
    ///
    /// Until it is dropped, nothing may allocate that could come back to this thread cache.
    pub(super) fn hold(&self) -> Option<Held<'_>> {
        for _ in 0..LOOKS {
            if self.begin() {
                return Some(Held { local: self, is_owner: true });
            }
            barrier::switch();
            std::hint::spin_loop();
        }
        None
    }

    /// Stops the owner, for another thread. `None` if the owner is at work, if a third thread has
    /// stopped it, or if the system has no barrier.
    pub(super) fn stop(&self) -> Option<Held<'_>> {
        if !barrier::is_there()
            || self.stopped.compare_exchange(false, true, Acquire, Relaxed).is_err()
        {
            return None;
        }
        let held = Held { local: self, is_owner: false };
        // Dropped, and so let go, if the owner is at work.
        (barrier::heavy() && !self.busy.load(Acquire)).then_some(held)
    }

    /// Returns whether a thread may have been at work when this process was made.
    pub(super) fn is_torn(&self) -> bool {
        self.busy.load(Relaxed) || self.stopped.load(Relaxed)
    }

    /// Returns whether the hot path may count a large request, or with `freed` a free.
    ///
    /// It may not count the first, because a thread without a thread cache has the empty one, which
    /// no thread counts in; nor one in [`LARGE_TURNS`], which reads the clock.
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

    /// Sets how many requests of a class are served at most until one takes the slow path, which then
    /// reads the clock: 1 if the last reading was long ago (`is_late`), and twice as many as before if
    /// it was not, so that a thread which asks seldom reads it each time, and one which asks often does
    /// not pay for it. Without `paces` it is [`TURNS`].
    pub(super) fn pace(&self, paces: bool, is_late: bool) {
        let before = self.pace.load(Relaxed);
        let is_new = before == 0 || is_late;
        let pace = if is_new { 1 } else { (2 * before).min(LONGEST_PACE) };
        self.pace.store(if paces { pace } else { 0 }, Relaxed);
        if paces
            && before != 1
            && is_new
            && let Some(held) = self.hold()
        {
            let used = Class::all().filter(|class| held.cap(*class) > 0);
            used.for_each(|class| held.skip(class));
        }
    }

    /// Returns the requests that [`ThreadCache::counted`] counts, and as many frees, which no program made.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    /// Notes that the owner reads the clock at this time, in milliseconds.
    pub(super) fn looks(&self, now: u64) {
        if self.looked_at.swap(now, Relaxed) < now {
            self.freed.store(0, Relaxed);
            self.freed_most.store(0, Relaxed);
        }
    }

    /// Notes that the owner freed a large block. Returns whether it should look at the limit: when the
    /// bytes that it freed since it read the clock reach `first`, and then each time that they have
    /// doubled.
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

    /// Returns the counters of a class, with the requests that were skipped. While the owner works, they
    /// may be inconsistent.
    pub(crate) fn counted(&self, class: Class) -> Counted {
        let bin = &self.bins[class.number()];
        let state = bin.state.load(Relaxed);
        let (allocations, blocks) = (state / REQUEST, state & LEN);
        #[expect(clippy::cast_possible_truncation, reason = "16 bits")]
        let len = blocks as usize;
        let frees = (allocations + blocks).wrapping_sub(bin.balance.load(Relaxed));
        let frees = frees.cast_signed().max(0).cast_unsigned();
        Counted { allocations, frees, blocks: len }
    }

    /// Returns the bytes of the free blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.roomy().map(|class| self.counted(class).blocks * class.bytes()).sum()
    }

    /// Returns the classes whose bins may hold blocks.
    pub(super) fn roomy(&self) -> impl Iterator<Item = Class> {
        self.roomy.iter().enumerate().flat_map(|(at, word)| {
            let without_lowest = |left: &u64| Some(left & (left - 1)).filter(|left| *left > 0);
            let first = Some(word.load(Relaxed)).filter(|left| *left > 0);
            std::iter::successors(first, without_lowest)
                .map(move |left| Class::numbered(64 * at + left.trailing_zeros() as usize))
        })
    }

    /// Returns the bytes that all bins together may hold.
    pub(super) fn room_bytes(&self) -> usize {
        self.room.load(Relaxed)
    }

    /// Lets each bin hold no more blocks than it has. Returns the bytes that all may hold then.
    pub(super) fn fit(&self) -> usize {
        if let Some(held) = self.hold() {
            self.roomy().for_each(|class| held.fit(class));
        }
        self.room_bytes()
    }

    /// Returns whether the thread cache may hold blocks.
    pub(super) fn has_room(&self) -> bool {
        self.room_bytes() > 0
    }

    /// Gives the memory of the slots back to the system, if no block is in them. The caller owns the
    /// thread cache, which is in memory of its own.
    pub(super) fn forget_slots(&self) {
        let Some(_held) = self.hold() else { return };
        if cfg!(miri) || Class::all().any(|class| self.counted(class).blocks > 0) {
            return;
        }
        let slots = ptr::from_ref(&self.slots).cast::<u8>().cast_mut();
        let skipped = slots.align_offset(PAGE);
        let bytes = size_of_val(&self.slots).saturating_sub(skipped) / PAGE * PAGE;
        let Some(start) = NonNull::new(slots.wrapping_add(skipped)) else { return };
        // SAFETY: these are pages of a mapping of `ThreadCaches::add`. They hold slots only, which
        // no code reads while their bins are empty, and this thread holds the thread cache, so no
        // other fills a bin. Zero bytes are valid slots. A refusal leaves them as they are.
        let _ = system::keeping_errno(|| unsafe { virtual_memory::forget(start, bytes) });
    }
}

/// A thread cache on which the current thread works, and no other.
#[derive(Debug)]
pub(super) struct Held<'f> {
    local: &'f ThreadCache,
    is_owner: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.is_owner {
            self.local.end();
        } else {
            self.local.stopped.store(false, Release);
        }
    }
}

impl Held<'_> {
    fn bin(&self, class: Class) -> &Bin {
        &self.local.bins[class.number()]
    }

    fn slots(&self, class: Class) -> &[AtomicPtr<u8>; SLOTS] {
        &self.local.slots[class.number()]
    }

    /// Returns how many blocks a bin holds.
    pub(super) fn len(&self, class: Class) -> usize {
        (self.bin(class).state.load(Acquire) & LEN) as usize
    }

    /// Returns how many blocks a bin may hold.
    pub(super) fn cap(&self, class: Class) -> usize {
        self.bin(class).cap.load(Relaxed).into()
    }

    /// Returns whether a bin holds as many blocks as it may.
    pub(super) fn is_full(&self, class: Class) -> bool {
        self.len(class) >= self.cap(class)
    }

    /// Returns whether a bin may hold fewer blocks than it may at first.
    pub(super) fn is_short(&self, class: Class) -> bool {
        self.cap(class) < FIRST.min(largest_cap(class))
    }

    fn shift_balance(&self, class: Class, by: i64) {
        let balance = &self.bin(class).balance;
        balance.store(balance.load(Relaxed).wrapping_add_signed(by), Relaxed);
    }

    /// Sets the length of a bin after blocks were moved in or out, which counts as no request and no
    /// free.
    fn set_len(&self, class: Class, len: usize) {
        let (state, len) = (&self.bin(class).state, len as u64);
        let before = state.load(Relaxed);
        self.shift_balance(class, len.wrapping_sub(before & LEN).cast_signed());
        state.store(before & !LEN | len, Release);
    }

    /// Counts a request that the slow path serves.
    pub(super) fn count_allocation(&self, class: Class) {
        let state = &self.bin(class).state;
        state.store(state.load(Relaxed).wrapping_add(REQUEST), Relaxed);
        self.shift_balance(class, 1);
        self.skip(class);
    }

    /// Skips requests of a class, so that the next one which takes the slow path comes as soon as the
    /// pace says. They count as allocated and freed.
    fn skip(&self, class: Class) {
        let (bin, pace) = (self.bin(class), self.local.pace.load(Relaxed));
        if pace == 0 {
            return;
        }
        let state = bin.state.load(Relaxed);
        let left = (TURNS - state % TURNS).div_ceil(REQUEST);
        let skipped = left.saturating_sub(pace.into());
        bin.state.store(state.wrapping_add(skipped * REQUEST), Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "fewer than 256")]
        bin.seen.store(bin.seen.load(Relaxed).wrapping_add(skipped as u32), Relaxed);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "fewer than 256, a request and a free each"
        )]
        let calls = 2 * skipped as u16;
        bin.used.store(bin.used.load(Relaxed).wrapping_add(calls), Relaxed);
        self.local.skipped.store(self.local.skipped.load(Relaxed) + skipped, Relaxed);
    }

    /// Counts a free that the slow path serves.
    pub(super) fn count_free(&self, class: Class) {
        self.shift_balance(class, -1);
    }

    /// Takes the newest block out of a bin. Counts no request.
    pub(super) fn pop(&self, class: Class) -> Option<*mut u8> {
        let last = self.len(class).checked_sub(1)?;
        let block = self.slots(class)[last % SLOTS].load(Relaxed);
        barrier::switch();
        self.set_len(class, last);
        Some(block)
    }

    /// Moves blocks of the batch into a bin, as many as it may hold. Counts no free.
    pub(super) fn fill(&self, class: Class, batch: &mut Batch) {
        let (mut len, cap) = (self.len(class), self.cap(class));
        while len < cap
            && let Some(block) = batch.pop()
        {
            self.slots(class)[len % SLOTS].store(block, Relaxed);
            len += 1;
        }
        self.set_len(class, len);
    }

    /// Takes the oldest blocks out of a bin, at most `most` and at most a batch of them. Counts no
    /// request.
    pub(super) fn take_oldest(&self, class: Class, most: usize) -> Batch {
        let (slots, len) = (self.slots(class), self.len(class));
        let taken = most.min(len).min(BATCH);
        let mut batch = Batch::EMPTY;
        slots[..taken].iter().for_each(|slot| batch.add(slot.load(Relaxed)));
        for at in taken..len {
            slots[at - taken].store(slots[at].load(Relaxed), Relaxed);
        }
        self.set_len(class, len - taken);
        batch
    }

    /// Returns whether a bin may ever hold more blocks than it may now.
    pub(super) fn is_narrow(&self, class: Class) -> bool {
        self.cap(class) < largest_cap(class)
    }

    /// Lets a bin hold more blocks, four times as many, or those with which the thread holds `most`
    /// bytes.
    pub(super) fn widen(&self, class: Class, most: usize) {
        let (cap, room) = (self.cap(class), &self.local.room);
        let first = if class.bytes() <= SMALL { 4 * FIRST } else { FIRST };
        let next = (4 * cap).max(first).min(largest_cap(class));
        let more = most.saturating_sub(room.load(Relaxed)) / class.bytes();
        if next > cap && more > 0 {
            self.set_cap(class, next.min(cap + more));
        }
    }

    fn set_cap(&self, class: Class, cap: usize) {
        let (before, room, cap) = (self.cap(class), &self.local.room, cap.min(SLOTS));
        let bytes = room.load(Relaxed) + cap * class.bytes();
        room.store(bytes - before * class.bytes(), Relaxed);
        self.bin(class).cap.store(u16::try_from(cap).unwrap_or(0), Relaxed);
        let (word, bit) = (&self.local.roomy[class.number() / 64], 1 << (class.number() % 64));
        let others = word.load(Relaxed) & !bit;
        word.store(if cap > 0 { others | bit } else { others }, Relaxed);
    }

    /// Returns how many blocks of a class no request needed since the last call. If there was no
    /// request, the bin may hold half as many from now on.
    ///
    /// So many requests can have needed that many blocks at most, so the others were not needed.
    pub(super) fn unneeded(&self, class: Class) -> usize {
        let bin = self.bin(class);
        #[expect(clippy::cast_possible_truncation, reason = "a difference counts")]
        let requests = (bin.state.load(Relaxed) / REQUEST) as u32;
        let since = requests.wrapping_sub(bin.seen.load(Relaxed)) as usize;
        bin.seen.store(requests, Relaxed);
        if since == 0 {
            self.narrow(class);
        }
        self.len(class).saturating_sub(since)
    }

    /// Returns whether a bin has room and there was no request and no free since the last call.
    pub(super) fn is_unused(&self, class: Class) -> bool {
        let bin = self.bin(class);
        let state = bin.state.load(Relaxed);
        // requests + (requests + length - balance)
        let calls = 2 * (state / REQUEST) + (state & LEN);
        #[expect(clippy::cast_possible_truncation, reason = "a difference counts")]
        let calls = calls.wrapping_sub(bin.balance.load(Relaxed)) as u16;
        let before = bin.used.load(Relaxed);
        bin.used.store(calls, Relaxed);
        self.cap(class) > 0 && before == calls
    }

    /// Lets a bin hold no more blocks than it has.
    pub(super) fn fit(&self, class: Class) {
        self.set_cap(class, self.len(class));
    }

    /// Lets a bin hold half as many blocks, and at least those that it has.
    pub(super) fn narrow(&self, class: Class) {
        self.set_cap(class, (self.cap(class) / 2).max(self.len(class)));
    }
}

// SAFETY: all fields are atomic numbers, flags and pointers, or arrays of them, for which zero
// bytes are valid values: 0, false and null. The alignment is 8 bytes, less than a page.
unsafe impl Zeroed for ThreadCache {}
