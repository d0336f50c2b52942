//! A bounded queue of fixed-size records, from any thread to one reader.
//!
//! No thread waits and none allocates: a record that finds the ring full is lost and counted.

#[cfg(all(test, loom))]
mod model;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
use std::fmt;
use std::ops::Deref;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Words of a record.
pub const WORDS: usize = 7;

/// Room for one record: a cache line. All zeroes is an empty slot, so the memory of a ring may come
/// from the system as it is.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct RingSlot {
    /// The number of its record, from 1 on; 0 for none.
    number: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A ring over `S`, slots in a box or in mapped memory. Their number is a power of two.
///
/// ```
/// use pool_trace::ring::{Ring, slots};
///
/// let ring = Ring::new(slots(2));
/// assert!(ring.push([7; 7]) && ring.push([8; 7]));
/// assert!(!ring.push([9; 7]), "full");
/// assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Some([7; 7]), Some([8; 7]), None));
/// assert_eq!(ring.lost(), 1);
/// ```
pub struct Ring<S> {
    slots: S,
    /// Records that were put.
    head: OwnLine,
    /// Records that were read.
    tail: OwnLine,
    lost: OwnLine,
}

/// A counter on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct OwnLine(AtomicU64);

/// Returns `count` empty slots, at least 2, rounded up to a power of two.
#[must_use]
pub fn slots(count: usize) -> Box<[RingSlot]> {
    let count = count.clamp(2, 1 << 30).next_power_of_two();
    std::iter::repeat_with(RingSlot::default).take(count).collect()
}

impl<S: Deref<Target = [RingSlot]>> Ring<S> {
    /// Creates an empty ring. If the number of slots is no power of two, only the largest power of
    /// two among them is used.
    #[must_use]
    pub fn new(slots: S) -> Self {
        let [head, tail, lost] = [(); 3].map(|()| OwnLine::default());
        Self { slots, head, tail, lost }
    }

    fn capacity(&self) -> u64 {
        let slots = self.slots.len() as u64;
        if slots == 0 { 0 } else { 1 << slots.ilog2() }
    }

    fn slot(&self, number: u64) -> &RingSlot {
        let at = number & (self.capacity() - 1);
        &self.slots[usize::try_from(at).unwrap_or(0)]
    }

    /// Puts a record, or counts it as lost if the ring is full.
    pub fn push(&self, words: [u64; WORDS]) -> bool {
        let mut number = self.head.0.load(Relaxed);
        loop {
            let unread = number.wrapping_sub(self.tail.0.load(Acquire));
            // A number that was read before the tail passed it is negative here, and the exchange
            // below fails.
            if unread.cast_signed() >= self.capacity().cast_signed() {
                self.lost.0.fetch_add(1, Relaxed);
                return false;
            }
            match self.head.0.compare_exchange_weak(number, number + 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => number = now,
            }
        }
        // The reader has passed the slot: the acquiring load above saw its tail.
        let slot = self.slot(number);
        for (word, value) in slot.words.iter().zip(words) {
            word.store(value, Relaxed);
        }
        slot.number.store(number + 1, Release);
        true
    }

    /// Takes the oldest record; `None` if there is none, or if the thread that puts it is not done.
    /// One thread at a time may read.
    pub fn pop(&self) -> Option<[u64; WORDS]> {
        let number = self.tail.0.load(Relaxed);
        if self.capacity() == 0 {
            return None;
        }
        let slot = self.slot(number);
        if slot.number.load(Acquire) != number + 1 {
            return None;
        }
        let words = std::array::from_fn(|at| slot.words[at].load(Relaxed));
        self.tail.0.store(number + 1, Release);
        Some(words)
    }

    /// Returns how many records were lost.
    pub fn lost(&self) -> u64 {
        self.lost.0.load(Relaxed)
    }

    /// Returns how many records were put and not read.
    pub fn unread(&self) -> u64 {
        let tail = self.tail.0.load(Acquire);
        self.head.0.load(Relaxed).saturating_sub(tail)
    }
}

impl<S> fmt::Debug for Ring<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("head", &self.head)
            .field("tail", &self.tail)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Pushes a record whose words agree, as soon as there is room.
    fn push(ring: &Ring<Box<[RingSlot]>>, thread: u64, number: u64) {
        let record = [thread, number, number, number, number, number, number];
        while !ring.push(record) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn records_of_several_threads_arrive_whole_and_in_the_order_of_each_thread() {
        let ring = Ring::new(slots(64));
        let (threads, each) = (4, 20_000_u64);
        let mut last = [0; 4];
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let ring = &ring;
                scope.spawn(move || (1..=each).for_each(|number| push(ring, thread, number)));
            }
            let mut seen = 0;
            while seen < threads * each {
                let Some(record) = ring.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                assert!(record[1..].iter().all(|word| *word == record[1]), "{record:?}");
                let last = &mut last[usize::try_from(record[0]).unwrap()];
                assert_eq!(record[1], *last + 1);
                *last = record[1];
                seen += 1;
            }
        });
        assert_eq!((ring.pop(), ring.unread()), (None, 0));
    }

    #[test]
    fn a_full_ring_loses_the_newest_and_counts_them() {
        let ring = Ring::new(slots(4));
        let put = (0..10).filter(|number| ring.push([*number; WORDS])).count();
        assert_eq!((put, ring.lost(), ring.unread()), (4, 6, 4));
        let read: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|record| record[0]).collect();
        assert_eq!(read, [0, 1, 2, 3]);
        assert!(ring.push([11; WORDS]));
    }
}
