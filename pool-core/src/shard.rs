//! One shard of a store: its idle blocks, its debts and its counters, under one lock.
//!
//! A thread works on one shard, so the lock is seldom contended and the lines behind it stay in
//! that thread's core. Other threads enter to search, to trim and to close.

pub(crate) mod gauge;
pub(crate) mod idle;
pub(crate) mod shards;

use crate::block::record::RecordOwner;
use crate::block::request::{Key, Want};
use crate::device::DeviceAllocator;
use crate::shard::gauge::Tally;
use crate::shard::idle::{Idle, Loan};
use crate::stats::PoolStats;
use crate::stream::order::Taker;

pub(crate) struct Shard<A: DeviceAllocator> {
    pub(crate) idle: Idle<Key<A::Kind>, RecordOwner<A>>,
    /// What goes back to the device with the next call that may call it.
    pub(crate) owed: Vec<RecordOwner<A>>,
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
    ) -> Option<RecordOwner<A>> {
        let sizes = want.sizes();
        let ready = |record: &mut RecordOwner<A>| record.marks.get_mut().is_ready(taker);
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
    ) -> Option<Loan<RecordOwner<A>>> {
        let may = |record: &mut RecordOwner<A>| record.marks.get_mut().may_ask(taker);
        self.idle.lend(shelf, |key| key.kind == want.key.kind, &want.sizes(), may)
    }

    /// Puts what was evicted among the debts.
    pub(crate) fn owe(&mut self, evicted: RecordOwner<A>) {
        self.owed.push(evicted);
        self.counts.evictions += u64::from(self.statistics);
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
