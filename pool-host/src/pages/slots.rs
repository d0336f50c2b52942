//! Blocks that were freed a moment ago, by length: one exchange takes one out or puts one in, where
//! the lock would cost two threads twenty times as much.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Most threads begin at different shards.
const SHARDS: usize = 8;
/// Slots of a shard. A length has two of them.
const SLOTS: usize = 32;
/// Nothing is here. No run begins at page 0.
const VACANT: u64 = 0;

#[derive(Debug)]
#[repr(align(128))]
struct Shard([AtomicU64; SLOTS]);

/// Runs that count as used, each in one word: the first page, and how many.
#[derive(Debug)]
pub(super) struct Slots([Shard; SHARDS]);

/// The first of the two slots of a length.
fn slot_of(pages: u32) -> usize {
    // A multiplicative hash (Knuth, TAOCP 6.4).
    (pages.wrapping_mul(0x9E37_79B1) >> 27) as usize & (SLOTS - 2)
}

fn packed(first: u32, pages: u32) -> u64 {
    u64::from(first) << 32 | u64::from(pages)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn unpacked(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Slots {
    pub(super) const fn new() -> Self {
        Self([const { Shard([const { AtomicU64::new(VACANT) }; SLOTS]) }; SHARDS])
    }

    /// Takes a run of this length out that begins at a multiple of `align` pages. `own` is a number
    /// of the thread.
    #[inline]
    pub(super) fn take(&self, pages: u32, align: u32, own: usize) -> Option<u32> {
        let slot = slot_of(pages);
        (0..SHARDS).find_map(|next| {
            let Shard(slots) = &self.0[(own + next) % SHARDS];
            slots[slot..slot + 2].iter().find_map(|place| {
                let word = place.load(Relaxed);
                let (first, its_pages) = unpacked(word);
                let fits = word != VACANT && its_pages == pages && first.is_multiple_of(align);
                // Acquire: what its last owner wrote comes before what the next writes.
                let taken = fits && place.compare_exchange(word, VACANT, Acquire, Relaxed).is_ok();
                taken.then_some(first)
            })
        })
    }

    /// Puts a run in, if there is a place for it.
    #[inline]
    pub(super) fn put(&self, first: u32, pages: u32, own: usize) -> bool {
        let (slot, Shard(slots)) = (slot_of(pages), &self.0[own % SHARDS]);
        slots[slot..slot + 2].iter().any(|place| {
            place.load(Relaxed) == VACANT
                && place.compare_exchange(VACANT, packed(first, pages), Release, Relaxed).is_ok()
        })
    }

    /// Takes all runs out.
    pub(super) fn drain(&self) -> impl Iterator<Item = (u32, u32)> {
        let places = self.0.iter().flat_map(|Shard(slots)| slots);
        // A look first: a swap takes the line from the threads that use it.
        let filled = places.filter(|place| place.load(Relaxed) != VACANT);
        let words = filled.map(|place| place.swap(VACANT, Acquire));
        words.filter(|word| *word != VACANT).map(unpacked)
    }
}
