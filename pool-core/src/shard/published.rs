//! What a shard lets other shards know, on a cache line of its own: which sizes it may have, and
//! which of them nobody used for an epoch. It is written under the lock of the shard, at the end of
//! a round and where a size comes that it did not have.

use crate::port::DeviceAllocator;
use crate::shard::State;
use crate::sys::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Requests of a round: after so many a shard counts what happened in it.
const ROUND: u64 = if cfg!(any(loom, shuttle)) { 8 } else { 2048 };
/// Rounds of any shard until a new epoch begins: longer than a class is used in turns.
const ROUNDS_OF_EPOCH: u32 = 16;
/// A shard goes from one thread to another with one request in this many: that is too often, and the
/// pool takes more shards. (A thread seldom finds a lock taken: it waits for the cache line.)
const PASSES_TO_SPREAD: u64 = 256;
/// Buffers that a shard lends in a round beyond those that it gets back, from which on others free
/// what its own threads take.
const LENT: i64 = if cfg!(any(loom, shuttle)) { 2 } else { 128 };

/// What others may know without the lock of the shard.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// A bit for each size, by a hash, that may have blocks; and those of them that were not used for
    /// an epoch.
    has: AtomicU64,
    spare: AtomicU64,
    /// The epoch in which the shard was last used.
    epoch: AtomicU32,
    /// Bytes that buffers and private pools have of its ranges, and the most of that lately.
    used: AtomicU64,
    used_lately: AtomicU64,
}

impl Published {
    /// Whether nobody has used the shard for an epoch, in epoch `now`.
    pub(crate) fn is_idle(&self, now: u32) -> bool {
        self.epoch.load(Relaxed).wrapping_add(2) <= now
    }

    /// Bytes that are used of ranges, and the most of that lately, as of the last round or growth.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.used.load(Relaxed), self.used_lately.load(Relaxed))
    }

    /// Whether the shard may have blocks of a size that a shard takes over in epoch `now`: any of
    /// them, if it is `eager`.
    pub(crate) fn may_have(&self, bytes: u64, now: u32, eager: bool) -> bool {
        let bit = bit_of(bytes);
        self.has.load(Relaxed) & bit != 0
            && (eager || self.spare.load(Relaxed) & bit != 0 || self.is_idle(now))
    }
}

/// The bit of a size.
#[inline]
fn bit_of(bytes: u64) -> u64 {
    1 << (bytes.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58)
}

/// The present round of a shard.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The time at which it ends, and the buffers that were lent when it began.
    ends: u64,
    lent: i64,
    /// The thread that took a block last, and how often that was another one than before.
    thread: usize,
    passes: u64,
    /// Rounds so far, of them those in the present epoch, and that.
    number: u32,
    of_epoch: u32,
    epoch: u32,
    /// Whether others freed what the shard lent, in the round before.
    is_drained: bool,
    /// The sizes that the others know of.
    has: u64,
}

/// What is to be done at the end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundEnd {
    /// Threads took turns often: the pool should take more shards.
    pub(crate) is_crowded: bool,
    /// A new epoch begins.
    pub(crate) ends_epoch: bool,
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
        self.turn >= self.round.ends
    }

    /// Begins a round. An epoch ends where a shard has had so many rounds in it.
    pub(crate) fn end_round(&mut self, epoch: u32) -> RoundEnd {
        let lent = self.accounts.live.signed();
        let round = &mut self.round;
        let is_first = round.number == 0;
        if round.epoch != epoch {
            (round.epoch, round.of_epoch) = (epoch, 0);
        }
        round.of_epoch += u32::from(!is_first);
        let end = RoundEnd {
            is_crowded: !is_first && round.passes * PASSES_TO_SPREAD > ROUND,
            ends_epoch: round.of_epoch >= ROUNDS_OF_EPOCH,
        };
        round.is_drained = !is_first && lent - round.lent > LENT;
        round.number = round.number.wrapping_add(1).max(1);
        (round.ends, round.lent, round.passes) = (self.turn + ROUND, lent, 0);
        end
    }

    /// Whether others free what the threads of this shard take.
    pub(crate) fn is_drained(&self) -> bool {
        self.round.is_drained || self.accounts.live.signed() - self.round.lent > LENT
    }

    /// Lets others know that the shard may have blocks of a size from now on.
    #[inline]
    pub(crate) fn publish(&mut self, published: &Published, bytes: u64) {
        let bit = bit_of(bytes);
        if self.round.has & bit == 0 {
            self.round.has |= bit;
            published.has.store(self.round.has, Relaxed);
        }
    }

    /// Lets others know how much of its ranges is used.
    pub(crate) fn publish_used(&self, published: &Published) {
        published.used.store(self.ranges.used(), Relaxed);
        published.used_lately.store(self.ranges.recent_peak(), Relaxed);
    }

    /// Lets others know what the shard has in an epoch.
    pub(crate) fn publish_all(&mut self, published: &Published, epoch: u32) {
        self.blocks.begin_epoch(epoch);
        self.ranges.begin_epoch(epoch);
        let (mut has, mut spare) = (0, 0);
        self.blocks.each_size(|bytes, unused| {
            has |= bit_of(bytes);
            spare |= if unused > 0 { bit_of(bytes) } else { 0 };
        });
        self.round.has = has;
        published.has.store(has, Relaxed);
        published.spare.store(spare, Relaxed);
        published.epoch.store(epoch, Relaxed);
        self.publish_used(published);
    }
}
