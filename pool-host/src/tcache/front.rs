//! THE HOT PATH of the tcache: [`Front::take`] and [`Front::put`].
//!
//! A front belongs to one thread at a time; it alone writes to it, so a hit is a few plain loads
//! and stores. Counters are atomics only so that others may read them.
//!
//! ```text
//!   bins   |len limit|  one a class; what a bin may hold is leased before it holds it
//!   slots  |p p p p . . . .|  pointers to idle blocks, newest last
//! ```

use crate::depot::{Batch, CLASSES, Class, FRONT_CLASSES, FRONT_LARGEST, MAGAZINE};
use crate::virtual_memory::Zeroed;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

/// Places of a bin. What is used of them depends on the class, see [`capacity`].
const SLOTS: usize = 64;
/// Requests of a large class, whose blocks are used for longer, between two looks at the time.
const LARGE_TURNS: u64 = 1 << 6;

#[derive(Debug)]
struct Count {
    allocations: AtomicU64,
    frees: AtomicU64,
}

#[derive(Debug)]
struct Bin {
    /// How many blocks it holds, and above that how many requests it may serve before the next look
    /// at the time: one subtraction takes from both.
    state: AtomicU32,
    /// How many blocks it may hold: so many are leased.
    limit: AtomicU32,
    /// Requests of the class, plus those that it may serve before the next look.
    base: AtomicU64,
    /// Requests plus blocks held, less blocks that came back. A take and a put leave it as it is,
    /// so only the slow way changes it, and a put counts nothing.
    balance: AtomicU64,
    /// Requests when the hand came by last.
    seen: AtomicU64,
}

/// The part of a bin's state that counts blocks.
const LEN: u32 = 0xffff;
/// One request, and one block less.
const TAKEN: u32 = (1 << 16) + 1;
/// Requests between two looks at the time.
const TURNS: u32 = 0x0fff;

#[derive(Debug)]
pub(crate) struct Front {
    bins: [Bin; FRONT_CLASSES],
    /// What is counted of the classes that have no bins.
    large: [Count; CLASSES - FRONT_CLASSES],
    /// Bytes leased for all bins together.
    leased: AtomicUsize,
    /// The class that gives up room next, unless it was used lately.
    hand: AtomicUsize,
    /// Slow turns, for those who look at the time.
    pub(super) turns: AtomicU32,
    /// Whether a thread has it.
    pub(super) in_use: AtomicBool,
    /// The next of all fronts.
    pub(super) next: AtomicPtr<Front>,
    slots: [[AtomicPtr<u8>; SLOTS]; FRONT_CLASSES],
}

/// What a front has counted, and holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) blocks: usize,
}

/// How many blocks of a class a bin holds at most: two magazines, and 256 KiB.
const fn capacity(class: Class) -> usize {
    let fit = FRONT_LARGEST / class.bytes();
    if fit > 2 * MAGAZINE { 2 * MAGAZINE } else { fit }
}

/// What a bin holds when it is first used; of small blocks four times as many.
const FIRST: usize = 4;
const SMALL: usize = 1024;

#[expect(clippy::declare_interior_mutable_const, reason = "what the empty front is made of")]
const NOTHING: Count = Count { allocations: AtomicU64::new(0), frees: AtomicU64::new(0) };

/// Adds one to a count that only this thread changes.
#[inline]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl Front {
    /// A front without blocks and without room for any: each request goes the slow way.
    #[expect(clippy::declare_interior_mutable_const, reason = "the value of one static")]
    #[expect(clippy::large_stack_arrays, reason = "made by the compiler, in a static")]
    pub(crate) const EMPTY: Self = Self {
        bins: [const {
            Bin {
                state: AtomicU32::new(0),
                limit: AtomicU32::new(0),
                base: AtomicU64::new(0),
                balance: AtomicU64::new(0),
                seen: AtomicU64::new(0),
            }
        }; FRONT_CLASSES],
        large: [const { NOTHING }; CLASSES - FRONT_CLASSES],
        leased: AtomicUsize::new(0),
        hand: AtomicUsize::new(0),
        turns: AtomicU32::new(0),
        in_use: AtomicBool::new(false),
        next: AtomicPtr::new(ptr::null_mut()),
        slots: [const { [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS] }; FRONT_CLASSES],
    };

    /// A block, if one is here. Once in [`TURNS`] requests it says no, so that time passes.
    #[inline]
    pub(crate) fn take(&self, class: Class) -> Option<*mut u8> {
        let bin = self.bins.get(class.number())?;
        let state = bin.state.load(Relaxed);
        if state & LEN == 0 || state <= LEN {
            return None;
        }
        let state = state - TAKEN;
        bin.state.store(state, Relaxed);
        Some(self.slots[class.number()][(state & LEN) as usize % SLOTS].load(Relaxed))
    }

    /// Keeps a block, if there is room for it.
    #[inline]
    pub(crate) fn put(&self, class: Class, block: *mut u8) -> bool {
        let Some(bin) = self.bins.get(class.number()) else { return false };
        let state = bin.state.load(Relaxed);
        let len = state & LEN;
        if len >= bin.limit.load(Relaxed) {
            return false;
        }
        self.slots[class.number()][len as usize % SLOTS].store(block, Relaxed);
        bin.state.store(state + 1, Relaxed);
        true
    }

    /// Whether so many requests of a class came that it is time to look at the time.
    #[inline]
    pub(crate) fn is_due(&self, class: Class) -> bool {
        match self.large(class) {
            Some(large) => large.allocations.load(Relaxed) % LARGE_TURNS == LARGE_TURNS - 1,
            None => (1..=LEN).contains(&self.bin(class).state.load(Relaxed)),
        }
    }

    /// Whether it is a thread's own, not the empty one.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.in_use.load(Relaxed)
    }

    #[inline]
    fn bin(&self, class: Class) -> &Bin {
        // Classes of fronts only come here; the cache asks.
        &self.bins[class.number() % FRONT_CLASSES]
    }

    fn slots(&self, class: Class) -> &[AtomicPtr<u8>; SLOTS] {
        &self.slots[class.number() % FRONT_CLASSES]
    }

    #[inline]
    fn large(&self, class: Class) -> Option<&Count> {
        class.number().checked_sub(FRONT_CLASSES).and_then(|at| self.large.get(at))
    }

    /// Counts a request that the slow way serves; a bin may then serve as many again as at first.
    #[inline]
    pub(crate) fn count_allocation(&self, class: Class) {
        if let Some(large) = self.large(class) {
            return count(&large.allocations);
        }
        let bin = self.bin(class);
        let (allocations, len) = (bin.allocations() + 1, bin.state.load(Relaxed) & LEN);
        bin.base.store(allocations + u64::from(TURNS), Relaxed);
        bin.state.store(len | (TURNS << 16), Relaxed);
        bin.shift_balance(1);
    }

    /// Counts a block that comes back by the slow way.
    #[inline]
    pub(crate) fn count_free(&self, class: Class) {
        match self.large(class) {
            Some(large) => count(&large.frees),
            None => self.bin(class).shift_balance(-1),
        }
    }

    fn len(&self, class: Class) -> usize {
        (self.bin(class).state.load(Relaxed) & LEN) as usize
    }

    /// Sets how many blocks a bin holds, after some were moved in or out.
    fn set_len(&self, class: Class, len: usize) {
        let bin = self.bin(class);
        bin.shift_balance(len.cast_signed() as i64 - self.len(class).cast_signed() as i64);
        let state = bin.state.load(Relaxed) & !LEN;
        bin.state.store(state | u32::try_from(len).unwrap_or(0), Relaxed);
    }

    pub(crate) fn limit(&self, class: Class) -> usize {
        self.bin(class).limit.load(Relaxed) as usize
    }

    /// How many more blocks the bin may hold.
    pub(crate) fn room(&self, class: Class) -> usize {
        self.limit(class).saturating_sub(self.len(class))
    }

    /// Puts blocks in, as many as there is room for; nothing is counted.
    pub(crate) fn fill(&self, class: Class, batch: &mut Batch) {
        let mut len = self.len(class);
        while len < self.limit(class)
            && let Some(block) = batch.pop()
        {
            self.slots(class)[len % SLOTS].store(block, Relaxed);
            len += 1;
        }
        self.set_len(class, len);
    }

    /// Takes out the oldest blocks, at most `most`; nothing is counted.
    pub(crate) fn take_oldest(&self, class: Class, most: usize) -> Batch {
        let (slots, len) = (self.slots(class), self.len(class));
        let taken = most.min(len).min(MAGAZINE);
        let mut batch = Batch::EMPTY;
        for slot in slots.iter().take(taken) {
            batch.add(slot.load(Relaxed));
        }
        for at in taken..len {
            slots[(at - taken) % SLOTS].store(slots[at % SLOTS].load(Relaxed), Relaxed);
        }
        self.set_len(class, len - taken);
        batch
    }

    /// How many blocks a bin would hold next, and what must be leased for that in bytes.
    pub(crate) fn next_limit(&self, class: Class) -> (usize, usize) {
        let limit = self.limit(class);
        let first = if class.bytes() <= SMALL { 4 * FIRST } else { FIRST };
        let next = (2 * limit).max(first).min(capacity(class));
        (next, next.saturating_sub(limit) * class.bytes())
    }

    /// Sets what a bin may hold, and with it what is leased. Returns by how many bytes less.
    pub(crate) fn set_limit(&self, class: Class, limit: usize) -> usize {
        let before = self.limit(class) * class.bytes();
        let after = limit * class.bytes();
        self.bin(class).limit.store(u32::try_from(limit).unwrap_or(0), Relaxed);
        let leased = self.leased.load(Relaxed) + after - before;
        self.leased.store(leased, Relaxed);
        before.saturating_sub(after)
    }

    pub(crate) fn leased(&self) -> usize {
        self.leased.load(Relaxed)
    }

    /// The next class that has room leased and was not asked for since the hand came by last.
    pub(crate) fn least_used(&self, but: Class) -> Option<Class> {
        let hand = self.hand.load(Relaxed);
        for number in (hand..hand + 2 * FRONT_CLASSES).map(|number| number % FRONT_CLASSES) {
            let (class, bin) = (Class::numbered(number), &self.bins[number]);
            let allocations = bin.allocations();
            if bin.limit.load(Relaxed) == 0 || class == but {
                continue;
            }
            if bin.seen.load(Relaxed) == allocations {
                self.hand.store(number + 1, Relaxed);
                return Some(class);
            }
            bin.seen.store(allocations, Relaxed);
        }
        None
    }

    pub(crate) fn counted(&self, class: Class) -> Counted {
        if let Some(large) = self.large(class) {
            let (allocations, frees) = (&large.allocations, &large.frees);
            return Counted {
                allocations: allocations.load(Relaxed),
                frees: frees.load(Relaxed),
                blocks: 0,
            };
        }
        let (bin, blocks) = (self.bin(class), self.len(class));
        let allocations = bin.allocations();
        // Read while the thread works, they may not fit together.
        let frees = (allocations + blocks as u64).wrapping_sub(bin.balance.load(Relaxed));
        let frees = frees.cast_signed().max(0).cast_unsigned();
        Counted { allocations, frees, blocks }
    }
}

impl Bin {
    /// Requests so far.
    fn allocations(&self) -> u64 {
        let left = self.state.load(Relaxed) >> 16;
        self.base.load(Relaxed).saturating_sub(u64::from(left))
    }

    fn shift_balance(&self, by: i64) {
        self.balance.store(self.balance.load(Relaxed).wrapping_add_signed(by), Relaxed);
    }
}

// SAFETY: numbers, flags and pointers, all of which may be zero; aligned to 8.
#[expect(unsafe_code, reason = "a promise about zero bytes")]
unsafe impl Zeroed for Front {}
