//! Slots for runs that were just freed, by length.
//!
//! One exchange takes a run or puts it in. The lock would cost two threads twenty times as much.

use crate::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Number of shards. Most threads begin at different ones.
const SHARDS: usize = 8;
/// Number of slots in a shard. Each length has two of them, which it shares with other lengths.
const SLOTS: usize = 64;
/// An empty slot. No block begins at page 0, and none has 0 pages.
const VACANT: u64 = 0;

/// The slots of one shard, on cache lines that no other shard uses.
#[derive(Debug)]
#[repr(align(128))]
struct Shard([AtomicU64; SLOTS]);

/// Freed runs that the map still counts as used.
///
/// Each slot is one word: the first page in the high half, the number of pages in the low half.
#[derive(Debug)]
pub(super) struct Slots([Shard; SHARDS]);

/// Returns the first of the two slots of a length.
fn slot_of(pages: u32) -> usize {
    // A multiplicative hash (Knuth, TAOCP 6.4).
    (pages.wrapping_mul(0x9E37_79B1) >> 26) as usize & (SLOTS - 2)
}

/// Packs a run into a word.
fn packed(first: u32, pages: u32) -> u64 {
    u64::from(first) << 32 | u64::from(pages)
}

/// Returns the first page and the number of pages in a word.
#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn unpacked(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Slots {
    /// Creates empty slots.
    pub(super) const fn new() -> Self {
        Self([const { Shard([const { AtomicU64::new(VACANT) }; SLOTS]) }; SHARDS])
    }

    /// Takes a run of exactly this length that begins at a multiple of `align` pages. Returns its
    /// first page.
    ///
    /// `own` is the thread's number: the search begins at its shard and covers all shards.
    #[inline]
    pub(super) fn take(&self, pages: u32, align: u32, own: usize) -> Option<u32> {
        let slot = slot_of(pages);
        (0..SHARDS).find_map(|next| {
            let Shard(slots) = &self.0[(own + next) % SHARDS];
            slots[slot..slot + 2].iter().find_map(|place| {
                let word = place.load(Relaxed);
                let (first, its_pages) = unpacked(word);
                let fits = word != VACANT && its_pages == pages && first.is_multiple_of(align);
                // Acquire: the last owner's accesses happen before those of the next.
                let taken = fits && place.compare_exchange(word, VACANT, Acquire, Relaxed).is_ok();
                taken.then_some(first)
            })
        })
    }

    /// Puts a run into the thread's own shard. Where both slots of its length are full, the run that
    /// came first leaves them: it is the caller's then.
    #[inline]
    pub(super) fn put(&self, first: u32, pages: u32, own: usize) -> Option<(u32, u32)> {
        let (slot, Shard(slots)) = (slot_of(pages), &self.0[own % SHARDS]);
        // AcqRel: it passes on what the owners of all these runs did before.
        let mut left = slots[slot].swap(packed(first, pages), AcqRel);
        if left != VACANT {
            left = slots[slot + 1].swap(left, AcqRel);
        }
        (left != VACANT).then(|| unpacked(left))
    }

    /// Returns the pages of all runs in slots.
    pub(super) fn pages(&self) -> u64 {
        let places = self.0.iter().flat_map(|Shard(slots)| slots);
        places.map(|place| u64::from(unpacked(place.load(Relaxed)).1)).sum()
    }

    /// Takes the runs of all slots, as the iterator proceeds.
    pub(super) fn drain(&self) -> impl Iterator<Item = (u32, u32)> {
        let places = self.0.iter().flat_map(|Shard(slots)| slots);
        // Load first: a swap takes the cache line from the threads that use it.
        let filled = places.filter(|place| place.load(Relaxed) != VACANT);
        let words = filled.map(|place| place.swap(VACANT, Acquire));
        words.filter(|word| *word != VACANT).map(unpacked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths that have the same two slots.
    fn lengths() -> [u32; 3] {
        let mut same = (1..).filter(|pages| slot_of(*pages) == slot_of(1));
        std::array::from_fn(|_| same.next().unwrap_or(0))
    }

    #[test]
    fn the_newest_runs_stay() {
        let (slots, [a, b, c]) = (Slots::new(), lengths());
        assert_eq!(slots.put(10, a, 0), None);
        assert_eq!(slots.put(20, b, 0), None);
        assert_eq!(slots.put(30, c, 0), Some((10, a)), "the first one leaves");
        assert_eq!(slots.take(c, 1, 0), Some(30));
        assert_eq!(slots.put(40, a, 0), None, "in the place of the last one");
        assert_eq!(slots.drain().collect::<Vec<_>>(), [(40, a), (20, b)]);
    }

    #[test]
    fn a_run_serves_its_length_and_alignment_alone() {
        let slots = Slots::new();
        assert_eq!(slots.put(6, 16, 3), None);
        assert_eq!(slots.take(17, 1, 3), None);
        assert_eq!(slots.take(16, 4, 3), None, "page 6 is no multiple of 4");
        assert_eq!(slots.pages(), 16);
        assert_eq!(slots.take(16, 2, 0), Some(6), "all shards are searched");
        assert_eq!(slots.take(16, 2, 0), None);
    }
}
