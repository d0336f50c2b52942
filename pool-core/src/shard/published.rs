//! What a shard lets other shards know without its lock; and its rounds, by which a pool knows that it
//! has too few shards. A round counts what the shard has served: its time may be that of another one.

use crate::port::DeviceAllocator;
use crate::shard::State;
// Not a word that a build counts: its line is that of the lock.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buffers of a round: when it has served so many, a shard counts what happened in it.
const ROUND: u64 = if cfg!(any(loom, shuttle)) { 8 } else { 2048 };
/// A shard goes from one thread to another with one request in this many: that is too often, and the
/// pool takes more shards. (A thread seldom finds a lock taken: it waits for the cache line.)
const PASSES_TO_SPREAD: u64 = 256;

/// What others may know without the lock of the shard. It is written under the lock and lies beside it
/// (`shards.rs`), so that a hit writes one cache line for both.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Bytes that buffers and private pools have of its ranges.
    used: AtomicU64,
}

impl Published {
    /// Bytes that are used of ranges.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }
}

/// The present round of a shard.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// It ends when the shard has served so many buffers; 0 before the first.
    ends: u64,
    /// The thread that took a block last, and how often that was another one than before.
    thread: usize,
    passes: u64,
}

impl<A: DeviceAllocator> State<A> {
    /// Counts a request of a thread.
    #[inline]
    pub(crate) fn note_thread(&mut self, thread: usize) {
        if self.round.thread != thread {
            self.round.thread = thread;
            self.round.passes += 1;
        }
    }

    /// Whether a round has ended.
    #[inline]
    pub(crate) fn is_round_over(&self) -> bool {
        self.accounts.live.total() >= self.round.ends
    }

    /// Begins a round. Returns whether threads took turns so often in the one before that the pool
    /// should take more shards.
    pub(crate) fn end_round(&mut self) -> bool {
        let round = &mut self.round;
        let is_crowded = round.ends > 0 && round.passes * PASSES_TO_SPREAD > ROUND;
        (round.ends, round.passes) = (self.accounts.live.total() + ROUND, 0);
        is_crowded
    }

    /// Lets others know how much of its ranges is used.
    #[inline]
    pub(crate) fn publish_used(&self, published: &Published) {
        published.used.store(self.ranges.used(), Relaxed);
    }
}
