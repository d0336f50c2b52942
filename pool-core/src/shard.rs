//! One shard of a store: its idle blocks, its debts and its counters, under one lock.
//!
//! A thread works on one shard, so the lock is seldom contended and the lines behind it stay in
//! that thread's core. Other threads enter to search, to trim and to close.

use crate::clock::StreamClock;
use crate::device::{DeviceAllocator, MarkOf, StreamOf};
use crate::gauge::Tally;
use crate::idle::{Idle, Loan};
use crate::marks::Marks;
use crate::order::Taker;
use crate::policy::Class;
use crate::stats::PoolStats;
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicPtr;

/// What must match besides the size: the kind of memory; and the stream that used it last, whose
/// own blocks are tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<K> {
    pub(crate) kind: K,
    pub(crate) lane: u64,
}

/// An address that a shard knows nothing about.
#[derive(Debug, Default)]
pub(crate) struct Home(pub(crate) AtomicPtr<()>);

/// A block, with what goes with it from hand to hand as long as the pool has it. It stays where it
/// is on the heap, so a hit moves a pointer, however large blocks and marks are.
pub(crate) struct Parcel<A: DeviceAllocator> {
    pub(crate) block: A::Block,
    pub(crate) marks: Mutex<Marks<A::Clock>>,
    pub(crate) kind: A::Kind,
    /// The way back to the store, while the block is out. `hold.rs` writes and reads it.
    pub(crate) home: Home,
    pub(crate) bytes: u64,
    /// What its present owner asked for.
    pub(crate) requested: u64,
    /// Whether the pool may keep it.
    pub(crate) pooled: bool,
    /// Whether somebody had it before; if not it comes from `warm_up`.
    pub(crate) used: bool,
    /// Whether its contents are owed a clearing (`ZeroPolicy::OnReturn`).
    pub(crate) dirty: bool,
    /// How many requests the shard had served when it came back.
    pub(crate) turn: u64,
    /// The private pool that it belongs to.
    pub(crate) private: Option<u32>,
}

impl<A: DeviceAllocator> Parcel<A> {
    pub(crate) fn new(block: A::Block, bytes: u64, want: &Want<'_, A>, clock: &A::Clock) -> Self {
        let marks = Mutex::new(Marks::new(clock.mark(want.on)));
        Self {
            block,
            marks,
            kind: want.key.kind,
            home: Home::default(),
            bytes,
            requested: want.requested,
            pooled: want.class.pooled(),
            used: true,
            dirty: false,
            turn: 0,
            private: want.private,
        }
    }

    /// It belongs to no private pool any more, and is behind what that was.
    pub(crate) fn leave_private(&mut self, clock: &A::Clock, behind: &[MarkOf<A>]) {
        self.private = None;
        let marks = self.marks.get_mut();
        for mark in behind {
            marks.end(clock, *mark);
        }
    }
}

/// A request, with all that a search needs.
pub(crate) struct Want<'r, A: DeviceAllocator> {
    pub(crate) on: &'r StreamOf<A>,
    pub(crate) key: Key<A::Kind>,
    pub(crate) class: Class,
    pub(crate) requested: u64,
    /// The private pool that the stream is bound to.
    pub(crate) private: Option<u32>,
}

impl<A: DeviceAllocator> Want<'_, A> {
    /// Whether a block has the size and the kind.
    pub(crate) fn is_served_by(&self, parcel: &Parcel<A>) -> bool {
        let kept = parcel.pooled == self.class.pooled(); // what was detached is not lent again
        kept && self.sizes().contains(&parcel.bytes) && parcel.kind == self.key.kind
    }

    /// The sizes of blocks that may serve.
    fn sizes(&self) -> RangeInclusive<u64> {
        self.class.bytes..=self.class.up_to
    }

    fn is_of_another_lane(&self, key: &Key<A::Kind>) -> bool {
        key.kind == self.key.kind && key.lane != self.key.lane
    }
}

pub(crate) struct Shard<A: DeviceAllocator> {
    pub(crate) idle: Idle<Key<A::Kind>, Box<Parcel<A>>>,
    /// What goes back to the device with the next call that may call it.
    pub(crate) owed: Vec<Box<Parcel<A>>>,
    /// Whether anything is counted.
    pub(crate) statistics: bool,
    /// What this shard has counted; the rest of it stays 0.
    pub(crate) counts: PoolStats,
    pub(crate) requested: Tally,
    pub(crate) allocated: Tally,
    /// Idle bytes that this shard may hold without asking.
    pub(crate) lease: u64,
    /// Buffers taken here less buffers returned here; the sum over all shards is how many live.
    pub(crate) holds: i64,
    /// Requests served here.
    pub(crate) turn: u64,
    /// The pool is closed: what comes back is not kept, and is counted by the store.
    pub(crate) closed: bool,
    /// Whether a thread has worked on it.
    pub(crate) in_use: bool,
    /// The peak for which the bound on idle bytes was reckoned last, and the bound.
    pub(crate) limit_at: (u64, u64),
}

impl<A: DeviceAllocator> Shard<A> {
    pub(crate) fn new(statistics: bool) -> Self {
        Self {
            statistics,
            idle: Idle::new(),
            owed: Vec::new(),
            counts: PoolStats::default(),
            requested: Tally::default(),
            allocated: Tally::default(),
            lease: 0,
            holds: 0,
            turn: 0,
            closed: false,
            in_use: false,
            limit_at: (u64::MAX, 0),
        }
    }

    /// An idle block that needs no device call: of the taker's own lane first.
    #[inline]
    pub(crate) fn take_ready(
        &mut self,
        want: &Want<'_, A>,
        taker: &Taker<'_, A::Clock>,
    ) -> Option<Box<Parcel<A>>> {
        let sizes = want.sizes();
        let ready = |parcel: &mut Box<Parcel<A>>| parcel.marks.get_mut().is_ready(taker);
        self.idle
            .take(want.key, &sizes, ready)
            .or_else(|| self.idle.take_among(|key| want.is_of_another_lane(key), &sizes, ready))
            .map(|taken| taken.item)
    }

    /// Lends an idle block that may serve once the device was asked: the oldest of the next lane,
    /// since that is the one most likely to be done.
    pub(crate) fn lend_pending(
        &mut self,
        want: &Want<'_, A>,
        shelf: &mut usize,
        taker: &Taker<'_, A::Clock>,
    ) -> Option<Loan<Box<Parcel<A>>>> {
        let may = |parcel: &mut Box<Parcel<A>>| parcel.marks.get_mut().may_ask(taker);
        self.idle.lend(shelf, |key| key.kind == want.key.kind, &want.sizes(), may)
    }

    /// Puts what was evicted among the debts.
    pub(crate) fn owe(&mut self, evicted: Box<Parcel<A>>) {
        self.owed.push(evicted);
        self.counts.evictions += u64::from(self.statistics);
    }

    /// All that is idle, and all debts.
    pub(crate) fn take_everything(&mut self) -> Vec<Box<Parcel<A>>> {
        let mut all = std::mem::take(&mut self.owed);
        all.extend(self.idle.take_all(|_| true).into_iter().map(|taken| taken.item));
        all
    }

    pub(crate) fn owed_bytes(&self) -> u64 {
        self.owed.iter().map(|owed| owed.bytes).sum()
    }

    /// Idle bytes that the lease covers and nothing uses.
    pub(crate) fn unused_lease(&mut self) -> u64 {
        let unused = self.lease.saturating_sub(self.idle.bytes());
        self.lease -= unused;
        unused
    }
}
