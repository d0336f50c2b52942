//! One shard of a store: its idle blocks, its debts and its counters, under one lock.
//!
//! A thread works on one shard, so the lock is seldom contended and the lines behind it stay in
//! that thread's core. Other threads enter to search, to trim and to close.

use crate::device::{DeviceAllocator, StreamOf};
use crate::gauge::Tally;
use crate::idle::{Idle, Loan, Taken};
use crate::marks::Marks;
use crate::order::{StealPolicy, Taker};
use crate::policy::Class;
use crate::stats::PoolStats;
use std::ops::RangeInclusive;

/// What must match besides the size: the kind of memory; and the stream that used it last, whose
/// own blocks are tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<K> {
    pub(crate) kind: K,
    pub(crate) lane: u64,
}

/// An idle block.
#[derive(Debug)]
pub(crate) struct Spare<A: DeviceAllocator> {
    pub(crate) block: A::Block,
    pub(crate) marks: Marks<A::Clock>,
    /// Whether somebody had it before; if not it comes from `warm_up`.
    pub(crate) used: bool,
    /// Whether its contents are owed a clearing (`ZeroPolicy::OnReturn`).
    pub(crate) dirty: bool,
    /// How many requests the shard had served when it came back.
    pub(crate) turn: u64,
}

/// A block that goes back to the device with the next call that may call it.
#[derive(Debug)]
pub(crate) struct Owed<A: DeviceAllocator> {
    pub(crate) block: A::Block,
    pub(crate) marks: Marks<A::Clock>,
    pub(crate) bytes: u64,
}

/// A request, with all that a search needs.
pub(crate) struct Want<'r, A: DeviceAllocator> {
    pub(crate) on: &'r StreamOf<A>,
    pub(crate) key: Key<A::Kind>,
    pub(crate) class: Class,
    pub(crate) requested: u64,
    pub(crate) steal: StealPolicy,
}

impl<'r, A: DeviceAllocator> Want<'r, A> {
    /// Who asks.
    #[inline]
    pub(crate) fn taker(&self, clock: &'r A::Clock) -> Taker<'r, A::Clock> {
        let cpu_touches = A::MEMORY.cpu_touches;
        Taker { clock, on: self.on, steal: self.steal, cpu_touches }
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
    pub(crate) idle: Idle<Key<A::Kind>, Spare<A>>,
    pub(crate) owed: Vec<Owed<A>>,
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
        }
    }

    /// An idle block that needs no device call: of the taker's own lane first.
    #[inline]
    pub(crate) fn take_ready(
        &mut self,
        want: &Want<'_, A>,
        clock: &A::Clock,
    ) -> Option<Taken<Spare<A>>> {
        let (sizes, taker) = (want.sizes(), want.taker(clock));
        let ready = |spare: &Spare<A>| spare.marks.is_ready(&taker);
        self.idle
            .take(want.key, &sizes, ready)
            .or_else(|| self.idle.take_among(|key| want.is_of_another_lane(key), &sizes, ready))
    }

    /// Lends an idle block that may serve once the device was asked: the oldest of the next lane,
    /// since that is the one most likely to be done.
    pub(crate) fn lend_pending(
        &mut self,
        want: &Want<'_, A>,
        shelf: &mut usize,
        taker: &Taker<'_, A::Clock>,
    ) -> Option<Loan<Spare<A>>> {
        let may = |spare: &Spare<A>| spare.marks.may_ask(taker);
        self.idle.lend(shelf, |key| key.kind == want.key.kind, &want.sizes(), may)
    }

    /// Puts what was evicted among the debts.
    pub(crate) fn owe(&mut self, evicted: Taken<Spare<A>>) {
        let Spare { block, marks, .. } = evicted.item;
        self.owed.push(Owed { block, marks, bytes: evicted.bytes });
        self.counts.evictions += u64::from(self.statistics);
    }

    /// All that is idle, and all debts.
    pub(crate) fn take_everything(&mut self) -> Vec<Owed<A>> {
        for taken in self.idle.take_all(|_| true) {
            let Spare { block, marks, .. } = taken.item;
            self.owed.push(Owed { block, marks, bytes: taken.bytes });
        }
        std::mem::take(&mut self.owed)
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
