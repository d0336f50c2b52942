//! THE HOT PATH of the tcache: [`Front::take`] and [`Front::put`].
//!
//! A front belongs to one thread at a time; it alone writes to it, so a hit is a few plain loads and
//! stores. Counters are atomics only so that others may read them.
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
/// After so many requests of a class the slow path is taken once, which looks at the time.
const TICK: u64 = 1 << 16;
/// The same of a large class, whose blocks are used for longer.
const LARGE_TICK: u64 = 1 << 6;

#[derive(Debug, Default)]
struct Count {
    allocations: AtomicU64,
    frees: AtomicU64,
}

#[derive(Debug)]
#[repr(C)]
struct Bin {
    len: AtomicU32,
    /// How many it may hold: so many are leased.
    limit: AtomicU32,
    count: Count,
    /// Allocations when the hand came by last.
    seen: AtomicU64,
}

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

/// What a bin holds when it is first used.
const FIRST: usize = 4;

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
                len: AtomicU32::new(0),
                limit: AtomicU32::new(0),
                count: NOTHING,
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

    /// A block, if one is here. Once in [`TICK`] requests it says no, so that time passes.
    #[inline]
    pub(crate) fn take(&self, class: Class) -> Option<*mut u8> {
        let bin = self.bins.get(class.number())?;
        let (len, allocations) = (bin.len.load(Relaxed), bin.count.allocations.load(Relaxed));
        if len == 0 || allocations % TICK == TICK - 1 {
            return None;
        }
        bin.len.store(len - 1, Relaxed);
        bin.count.allocations.store(allocations + 1, Relaxed);
        Some(self.slots[class.number()][(len - 1) as usize % SLOTS].load(Relaxed))
    }

    /// Keeps a block, if there is room for it.
    #[inline]
    pub(crate) fn put(&self, class: Class, block: *mut u8) -> bool {
        let Some(bin) = self.bins.get(class.number()) else { return false };
        let len = bin.len.load(Relaxed);
        if len >= bin.limit.load(Relaxed) {
            return false;
        }
        self.slots[class.number()][len as usize % SLOTS].store(block, Relaxed);
        bin.len.store(len + 1, Relaxed);
        count(&bin.count.frees);
        true
    }

    /// Whether so many requests of a class came that it is time to look at the time.
    #[inline]
    pub(crate) fn is_due(&self, class: Class) -> bool {
        self.count_of(class).allocations.load(Relaxed) % LARGE_TICK == LARGE_TICK - 1
    }

    /// Whether it is a thread's own, not the empty one.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.in_use.load(Relaxed)
    }

    fn bin(&self, class: Class) -> &Bin {
        // Classes of fronts only come here; the cache asks.
        &self.bins[class.number() % FRONT_CLASSES]
    }

    fn slots(&self, class: Class) -> &[AtomicPtr<u8>; SLOTS] {
        &self.slots[class.number() % FRONT_CLASSES]
    }

    fn count_of(&self, class: Class) -> &Count {
        let large = class.number().checked_sub(FRONT_CLASSES).and_then(|at| self.large.get(at));
        large.unwrap_or_else(|| &self.bin(class).count)
    }

    #[inline]
    pub(crate) fn count_allocation(&self, class: Class) {
        count(&self.count_of(class).allocations);
    }

    #[inline]
    pub(crate) fn count_free(&self, class: Class) {
        count(&self.count_of(class).frees);
    }

    fn len(&self, class: Class) -> usize {
        self.bin(class).len.load(Relaxed) as usize
    }

    fn set_len(&self, class: Class, len: usize) {
        self.bin(class).len.store(u32::try_from(len).unwrap_or(0), Relaxed);
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
        let next = (2 * limit).max(FIRST).min(capacity(class));
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
            let allocations = bin.count.allocations.load(Relaxed);
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
        let count = self.count_of(class);
        Counted {
            allocations: count.allocations.load(Relaxed),
            frees: count.frees.load(Relaxed),
            blocks: if class.is_of_front() { self.len(class) } else { 0 },
        }
    }
}

// SAFETY: numbers, flags and pointers, all of which may be zero; aligned to 8.
#[expect(unsafe_code, reason = "a promise about zero bytes")]
unsafe impl Zeroed for Front {}
