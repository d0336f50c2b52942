//! Counts of a thread cache: sums since the cache was made, and how much of them the book knows.
//! The thread inside the cache writes them, and any thread may read them, so figures are read while
//! threads go on.

use crate::heap::change::Change;
// Under shuttle each count is a point at which another thread may run.
#[cfg(shuttle)]
use crate::checker::sync::atomic::AtomicU64;
#[cfg(not(shuttle))]
use crate::sys::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A number that one thread at a time changes.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    #[inline]
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    #[inline]
    fn set(&self, to: u64) {
        self.0.store(to, Relaxed);
    }

    /// Adds, and returns the sum. It wraps, so that differences stay right.
    #[inline]
    fn add(&self, by: u64) -> u64 {
        let sum = self.get().wrapping_add(by);
        self.set(sum);
        sum
    }

    #[inline]
    fn subtract(&self, by: u64) {
        self.add(by.wrapping_neg());
    }
}

/// The counts of one cache, alone on their cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    /// Blocks that buffers took, their bytes, and the bytes that were requested.
    takes: Counter,
    bytes_out: Counter,
    requested_out: Counter,
    /// Blocks that were put here, and that left other than to buffers.
    kept: Counter,
    left: Counter,
    /// Buffers that were taken here less those that came back here, and bytes requested.
    live: Counter,
    requested: Counter,
    /// Bytes of the blocks here.
    cached: Counter,
    /// The most of `live` and `requested`, and the least and most of `cached`, since the book was
    /// told.
    live_peak: Counter,
    requested_peak: Counter,
    least: Counter,
    most: Counter,
    told: Told,
}

/// The sums that the book knows. The thread that changes them has the book's lock.
#[derive(Debug, Default)]
struct Told {
    takes: Counter,
    bytes_out: Counter,
    requested_out: Counter,
    live: Counter,
    requested: Counter,
    cached: Counter,
}

/// How buffers, bytes requested and bytes allocated have changed.
pub(crate) struct Changes {
    pub(crate) live: Change,
    pub(crate) requested: Change,
    pub(crate) allocated: Change,
}

impl Tally {
    /// Counts a block that a buffer has from now on.
    #[inline]
    pub(super) fn out(&self, bytes: u64, requested: u64) {
        self.takes.add(1);
        self.bytes_out.add(bytes);
        self.requested_out.add(requested);
        let live = self.live.add(1);
        if live.cast_signed() > self.live_peak.get().cast_signed() {
            self.live_peak.set(live);
        }
        let requested = self.requested.add(requested);
        if requested.cast_signed() > self.requested_peak.get().cast_signed() {
            self.requested_peak.set(requested);
        }
        let cached = self.cached.add(bytes.wrapping_neg());
        if cached < self.least.get() {
            self.least.set(cached);
        }
    }

    /// Counts a block that a buffer gave back. `cached`: bytes in the cache after that.
    #[inline]
    pub(super) fn back(&self, cached: u64, requested: u64) {
        self.live.subtract(1);
        self.requested.subtract(requested);
        self.cached.set(cached);
        if cached > self.most.get() {
            self.most.set(cached);
        }
    }

    /// Counts a block that the book counted as free already, or that goes to it. Call
    /// [`Tally::tell`] before.
    pub(super) fn moved(&self, cached: u64) {
        for bytes in [&self.cached, &self.told.cached, &self.least, &self.most] {
            bytes.set(cached);
        }
    }

    /// Counts a block that was put here. Returns how many were before.
    #[inline]
    pub(super) fn keep(&self) -> u64 {
        self.kept.add(1).wrapping_sub(1)
    }

    /// Counts a block that left, other than to a buffer.
    pub(super) fn leave(&self) {
        self.left.add(1);
    }

    /// Counts blocks of `bytes` bytes together that go from here to another cache. Call
    /// [`Tally::tell`] of both before.
    pub(super) fn hand_over(&self, to: &Self, blocks: u64, bytes: u64) {
        self.left.add(blocks);
        self.moved(self.cached() - bytes);
        to.kept.add(blocks);
        to.moved(to.cached() + bytes);
    }

    /// Blocks that buffers took.
    #[inline]
    pub(super) fn takes(&self) -> u64 {
        self.takes.get()
    }

    /// Bytes of the blocks here.
    #[inline]
    pub(crate) fn cached(&self) -> u64 {
        self.cached.get()
    }

    /// How many blocks are here.
    pub(crate) fn blocks(&self) -> u64 {
        // The thread inside may have changed one of them and not the other.
        let out = self.takes.get().wrapping_add(self.left.get());
        self.kept.get().wrapping_sub(out).cast_signed().max(0).cast_unsigned()
    }

    /// Blocks that were put here. It never falls.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.get()
    }

    /// Blocks that buffers took, as the book knows it.
    pub(super) fn told_takes(&self) -> u64 {
        self.told.takes.get()
    }

    /// Whether the book knows all.
    #[inline]
    pub(super) fn is_told(&self) -> bool {
        self.takes.get() == self.told.takes.get() && self.live.get() == self.told.live.get()
    }

    /// Returns the changes that the book does not know. From now on it does: call this under its
    /// lock.
    pub(super) fn tell(&self) -> Changes {
        let (changes, told) = (self.untold(), &self.told);
        told.takes.set(self.takes.get());
        told.bytes_out.set(self.bytes_out.get());
        told.requested_out.set(self.requested_out.get());
        for live in [&told.live, &self.live_peak] {
            live.set(self.live.get());
        }
        for requested in [&told.requested, &self.requested_peak] {
            requested.set(self.requested.get());
        }
        self.moved(self.cached.get());
        changes
    }

    /// Returns the changes that the book does not know, to a thread that has its lock.
    pub(crate) fn untold(&self) -> Changes {
        let since = |now: &Counter, before: &Counter| now.get().wrapping_sub(before.get());
        let change = |now: &Counter, before: &Counter| since(now, before).cast_signed();
        let told = &self.told;
        Changes {
            live: Change {
                now: change(&self.live, &told.live),
                peak: change(&self.live_peak, &told.live),
                low: 0,
                total: since(&self.takes, &told.takes),
            },
            requested: Change {
                now: change(&self.requested, &told.requested),
                peak: change(&self.requested_peak, &told.requested),
                low: 0,
                total: since(&self.requested_out, &told.requested_out),
            },
            // What the cache has more, buffers have less.
            allocated: Change {
                now: change(&told.cached, &self.cached),
                peak: change(&told.cached, &self.least),
                low: change(&told.cached, &self.most),
                total: since(&self.bytes_out, &told.bytes_out),
            },
        }
    }
}
