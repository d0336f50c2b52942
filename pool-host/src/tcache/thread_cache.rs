//! THE HOT PATH of the tcache: [`ThreadCache::take`] and [`ThreadCache::put`].
//!
//! A thread cache belongs to one thread at a time, its owner. A hit is a few plain loads and stores
//! of the owner. For everything else a thread holds the thread cache (`held.rs`): the owner, or
//! another thread.
//!
//! ```text
//!   bins   |len floor limit|  one for each class; the bytes of `limit` blocks are leased
//!   slots  |x x|p p . . . .|  pointers to cached blocks, the newest last
//!          floor    len   limit
//! ```
//!
//! Another thread takes blocks back by raising the floor: the owner takes no block below it. This
//! is the steal of a work-stealing deque (Chase and Lev, Dynamic circular work-stealing deque,
//! 2005). The owner stores the new length and then loads the floor; the other thread stores the
//! floor and then loads the length. Each has a barrier between the two (`barrier.rs`).

use super::barrier;
use crate::depot::{CLASSES, Class};
use crate::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
    Ordering::Release,
};
use crate::virtual_memory::Zeroed;
use std::ptr;

/// Slots of a bin. The class decides how many of them are used.
pub(super) const SLOTS: usize = 64;

/// The cached blocks of one class in a thread cache, without their slots.
#[derive(Debug)]
pub(super) struct Bin {
    /// The length, in blocks, in the low 16 bits, and in the high 16 bits the turns: requests that
    /// the bin may serve before the next read of the clock. One subtraction lowers both.
    pub(super) state: AtomicU32,
    /// The most blocks that the bin may hold. Their bytes are leased.
    pub(super) limit: AtomicU16,
    /// The number of blocks, in the first slots, that the owner must not take, or [`CALLED`].
    pub(super) floor: AtomicU16,
    /// The low 32 bits of the number of requests when the cursor last passed the class.
    pub(super) seen: AtomicU32,
    /// The low 32 bits of the number of requests at the last visit.
    pub(super) watched: AtomicU32,
    /// `base = requests + turns`. The hot path leaves it unchanged.
    pub(super) base: AtomicU64,
    /// `balance = requests + length - frees`. A take and a put leave it unchanged, so only the slow
    /// path writes it, and a put need not count a free.
    pub(super) balance: AtomicU64,
}

/// Mask of the length in a bin's state.
pub(super) const LEN: u32 = 0xffff;
/// The amount that a take subtracts from a bin's state: one turn and one block.
const TAKEN: u32 = (1 << 16) + 1;
/// The most requests of a class between two reads of the clock.
pub(super) const TURNS: u32 = 0x0fff;
/// A floor above every length. The owner takes the slow path, reads the clock, and lowers the
/// floor.
pub(super) const CALLED: u16 = u16::MAX;

/// The cached blocks that one thread reaches without a lock.
#[derive(Debug)]
pub(crate) struct ThreadCache {
    pub(super) bins: [Bin; CLASSES],
    /// Requests larger than all classes, and frees of such blocks.
    pub(super) large: [AtomicU64; 2],
    /// Leased bytes of all bins together.
    pub(super) leased: AtomicUsize,
    /// Number of the class that gives up leased bytes next, unless it was used lately.
    pub(super) cursor: AtomicUsize,
    /// Slow-path calls of the owner; every so often one of them reads the clock (`aging.rs`).
    pub(super) turns: AtomicU32,
    /// Time at which the owner last read the clock, in milliseconds.
    pub(super) looked_at: AtomicU64,
    /// Whether that was long after the read before.
    pub(super) is_calm: AtomicBool,
    /// Bytes of large blocks that the owner freed since then.
    pub(super) freed: AtomicUsize,
    /// Value of `freed` at which the owner next sums up the cached bytes.
    pub(super) freed_most: AtomicUsize,
    /// Whether a thread owns the thread cache.
    pub(super) in_use: AtomicBool,
    /// Whether a thread, the owner or another, works on the bins on the slow path.
    pub(super) held: AtomicBool,
    /// The next in the list of all thread caches.
    pub(super) next: AtomicPtr<ThreadCache>,
    /// The blocks of each bin, the oldest first.
    pub(super) slots: [[AtomicPtr<u8>; SLOTS]; CLASSES],
}

impl ThreadCache {
    /// A thread cache with no blocks and with limits of 0. Each request takes the slow path.
    #[expect(clippy::declare_interior_mutable_const, reason = "the value of one static")]
    #[expect(clippy::large_stack_arrays, reason = "made by the compiler, in a static")]
    pub(crate) const EMPTY: Self = Self {
        bins: [const {
            Bin {
                state: AtomicU32::new(0),
                limit: AtomicU16::new(0),
                floor: AtomicU16::new(0),
                seen: AtomicU32::new(0),
                watched: AtomicU32::new(0),
                base: AtomicU64::new(0),
                balance: AtomicU64::new(0),
            }
        }; CLASSES],
        large: [const { AtomicU64::new(0) }; 2],
        leased: AtomicUsize::new(0),
        cursor: AtomicUsize::new(0),
        turns: AtomicU32::new(0),
        looked_at: AtomicU64::new(0),
        is_calm: AtomicBool::new(false),
        freed: AtomicUsize::new(0),
        freed_most: AtomicUsize::new(0),
        in_use: AtomicBool::new(false),
        held: AtomicBool::new(false),
        next: AtomicPtr::new(ptr::null_mut()),
        slots: [const { [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS] }; CLASSES],
    };

    /// Takes the newest block of a class.
    ///
    /// `None` if the bin is empty, if its turns are used up, so that the slow path reads the clock,
    /// or if the newest block is below the floor. Only the owner may call this.
    #[inline]
    pub(crate) fn take(&self, class: Class) -> Option<*mut u8> {
        let bin = self.bins.get(class.number())?;
        let state = bin.state.load(Relaxed);
        // No turns, or no blocks: nothing is stored, since a visitor would see a length below 0.
        // There are no turns in the static, empty thread cache either, which threads without one
        // share and must not write to.
        if state <= LEN || state & LEN == 0 {
            return None;
        }
        let taken = state.wrapping_sub(TAKEN);
        bin.state.store(taken, Relaxed);
        barrier::light();
        if state & LEN <= u32::from(bin.floor.load(Relaxed)) {
            bin.state.store(state, Relaxed);
            return None;
        }
        Some(self.slots[class.number()][(taken & LEN) as usize % SLOTS].load(Relaxed))
    }

    /// Puts a block into the bin of its class if the limit allows it. Returns whether it did. Only
    /// the owner may call this.
    #[inline]
    pub(crate) fn put(&self, class: Class, block: *mut u8) -> bool {
        let Some(bin) = self.bins.get(class.number()) else { return false };
        let state = bin.state.load(Relaxed);
        let len = state & LEN;
        if len >= u32::from(bin.limit.load(Relaxed)) {
            return false;
        }
        self.slots[class.number()][len as usize % SLOTS].store(block, Relaxed);
        // Release: a thread that takes the block back sees it in its slot.
        bin.state.store(state + 1, Release);
        true
    }
}

// SAFETY: all fields are atomic numbers, flags and pointers, or arrays of them, for which zero
// bytes are valid values: 0, false and null. The alignment is 8 bytes, less than a page.
#[expect(unsafe_code, reason = "a promise about zero bytes")]
unsafe impl Zeroed for ThreadCache {}
