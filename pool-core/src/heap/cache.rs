//! A thread cache: blocks that one thread freed and is likely to request again, whole, by size and
//! stream. The book behind it has the rest; what is here is live as far as that can tell.
//!
//! **The hot path** of a pool is [`ThreadCache::take`] and [`ThreadCache::put`]. Both are a look in
//! a table and a few additions, behind a lock that the thread enters by a store
//! (`lock/biased.rs`). Bytes are bounded by the lease.

mod bins;
pub(crate) mod caches;
pub(crate) mod tally;

use crate::heap::block::record::RecordOwner;
use crate::heap::block::request::Key;
use crate::port::DeviceAllocator;
use crate::stream::LastUses;
use bins::Bins;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tally::{Changes, Tally};

/// Refusals after which a portion of the cache is to go: what is here is not what is requested.
pub(crate) const REFUSALS: u32 = 64;

/// Blocks taken and freed that tell whether a thread does both.
const LATELY: u64 = 1 << 13;

/// The blocks of one thread in one pool.
pub(crate) struct ThreadCache<A: DeviceAllocator> {
    bins: Bins<A>,
    tally: Arc<Tally>,
    /// Bytes that they may have.
    pub(crate) lease: u64,
    /// Allocations of all threads less those from this cache, when the book said so last.
    turn: u64,
    /// Blocks that there was no room for, since a portion went.
    pub(crate) refusals: u32,
    /// Blocks that the thread took, and that it freed, lately.
    pub(crate) taken: u64,
    pub(crate) freed: u64,
    closed: bool,
}

impl<A: DeviceAllocator> Default for ThreadCache<A> {
    fn default() -> Self {
        Self::new(Arc::default(), false)
    }
}

impl<A: DeviceAllocator> ThreadCache<A> {
    /// An empty cache that counts in `tally`. `limited`: under a bucket limit.
    pub(crate) fn new(tally: Arc<Tally>, limited: bool) -> Self {
        Self {
            bins: Bins::new(limited),
            tally,
            lease: 0,
            turn: 0,
            refusals: 0,
            taken: 0,
            freed: 0,
            closed: false,
        }
    }

    /// Bytes of its blocks.
    #[inline]
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.tally.cached()
    }

    /// Takes the newest block of a size and stream for `requested` bytes of it, if it is `ready`.
    #[inline]
    pub(crate) fn take(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        requested: u64,
        ready: impl FnOnce(&LastUses<A::Clock>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let bin = self.bins.find(key, bytes)?;
        if !ready(bin.top()?.marks.get_mut()) {
            return None;
        }
        let record = bin.take()?;
        self.tally.out(bytes, requested);
        Some(record)
    }

    /// Keeps a block that a buffer gives back. Returns it where the lease ends, and where there is
    /// no bin of its size with room yet. The pool had at least `turn` allocations so far.
    #[inline]
    pub(crate) fn put(
        &mut self,
        key: Key<A::Kind>,
        mut record: RecordOwner<A>,
        turn: u64,
    ) -> Result<(), RecordOwner<A>> {
        let cached = self.tally.cached() + record.bytes;
        if cached > self.lease {
            return Err(record);
        }
        let bin = self.bins.find(key, record.bytes).filter(|bin| bin.has_room());
        let Some(bin) = bin else { return Err(record) };
        self.tally.back(cached, record.requested);
        record.turn = turn.max(self.turn.wrapping_add(self.tally.takes()));
        record.stamp = self.tally.keep();
        bin.put(record);
        Ok(())
    }

    /// How the figures have changed since the last call, if they have. The book, whose lock the
    /// caller has, has had `turn` allocations until then.
    pub(crate) fn changes(&mut self, turn: u64) -> Option<Changes> {
        self.turn = turn.wrapping_sub(self.tally.told_takes());
        if self.tally.is_told() {
            return None;
        }
        let changes = self.tally.tell();
        self.taken += changes.live.total;
        self.freed += changes.live.total.saturating_sub_signed(changes.live.now);
        Some(changes)
    }

    /// Allocations so far, as far as this cache knows.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.wrapping_add(self.tally.takes())
    }

    /// Keeps a block that was counted elsewhere, in a bin that gets room for `more` blocks more.
    /// Returns it if there is no room, or no slot for the bin. Call [`ThreadCache::changes`]
    /// before.
    pub(crate) fn put_counted(
        &mut self,
        key: Key<A::Kind>,
        mut record: RecordOwner<A>,
        more: u32,
    ) -> Result<(), RecordOwner<A>> {
        let bin = self.bins.find_or_add(key, record.bytes, more).filter(|bin| bin.has_room());
        let Some(bin) = bin else { return Err(record) };
        record.stamp = self.tally.keep();
        self.tally.moved(self.tally.cached() + record.bytes);
        bin.put(record);
        Ok(())
    }

    /// Whether the book says how many blocks of a size there may be.
    pub(crate) fn is_limited(&self) -> bool {
        self.bins.are_limited()
    }

    /// Moves all blocks of a size to another cache. Returns their bytes. Call
    /// [`ThreadCache::changes`] of both before.
    pub(crate) fn hand_over(&mut self, to: &mut Self, key: Key<A::Kind>, bytes: u64) -> u64 {
        let blocks = self.bins.move_bin(&mut to.bins, key, bytes);
        self.tally.hand_over(&to.tally, blocks, blocks * bytes);
        blocks * bytes
    }

    /// How many blocks of a size there are, without a bucket limit.
    pub(crate) fn count(&mut self, key: Key<A::Kind>, bytes: u64) -> u64 {
        self.bins.count(key, bytes)
    }

    /// Whether a block of this size has room.
    pub(crate) fn has_room(&mut self, key: Key<A::Kind>, bytes: u64) -> bool {
        self.bins.find(key, bytes).is_some_and(|bin| bin.has_room())
    }

    /// Takes away the room that the bin of a size has from the book. Returns for how many blocks.
    pub(crate) fn take_bin_lease(&mut self, key: Key<A::Kind>, bytes: u64) -> u32 {
        self.bins.take_bin_lease(key, bytes)
    }

    /// Takes away the room that the bins of an empty cache have from the book. Calls `end` for each
    /// that had any.
    pub(crate) fn end_bin_leases(&mut self, end: impl FnMut(Key<A::Kind>, u64, u32)) {
        self.bins.end_bin_leases(end);
    }

    /// Whether 64 blocks were refused since a portion went.
    pub(crate) fn is_stale(&self) -> bool {
        self.refusals >= REFUSALS
    }

    /// Whether the thread took at least one block for each `most` that it freed, lately.
    pub(crate) fn takes_enough(&mut self, most: u64) -> bool {
        if self.taken + self.freed > LATELY {
            (self.taken, self.freed) = (self.taken / 2, self.freed / 2);
        }
        self.taken.saturating_mul(most) >= self.freed
    }

    /// Takes any block out; `None` if there is none. Call [`ThreadCache::changes`] before.
    pub(crate) fn pop(&mut self) -> Option<RecordOwner<A>> {
        self.refusals = 0;
        let record = self.bins.pop()?;
        self.leave(&record);
        Some(record)
    }

    /// Takes a block of one of these sizes and a kind out, of any stream. `from`: 0 at first, then
    /// for the calls that follow. Call [`ThreadCache::changes`] before.
    pub(crate) fn pop_like(
        &mut self,
        kind: A::Kind,
        sizes: &RangeInclusive<u64>,
        from: &mut usize,
    ) -> Option<RecordOwner<A>> {
        let record = self.bins.pop_like(kind, sizes, from)?;
        self.leave(&record);
        Some(record)
    }

    /// Counts a block that goes to the book.
    fn leave(&mut self, record: &RecordOwner<A>) {
        self.tally.leave();
        self.tally.moved(self.tally.cached() - record.bytes);
    }

    /// Looks at each block.
    pub(crate) fn each(&self, look: impl FnMut(&RecordOwner<A>)) {
        self.bins.each(look);
    }

    /// Keeps nothing from now on.
    pub(crate) fn close(&mut self) {
        (self.closed, self.lease) = (true, 0);
    }

    /// Blocks that were put here so far.
    pub(crate) fn kept(&self) -> u64 {
        self.tally.kept()
    }

    /// How many blocks there are.
    pub(crate) fn blocks(&self) -> u64 {
        self.tally.blocks()
    }

    /// Whether nothing is kept.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}
