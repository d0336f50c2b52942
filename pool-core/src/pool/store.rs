//! The state of a pool, and **the hot path** of a pool without an arena: [`Store::take`] and
//! [`Store::give_back`]. With an arena the hot path is in `store/book.rs`.
//!
//! ```text
//!   BucketPool::allocate        pool.rs
//!     Store::allocate           stages.rs   the stages, in order
//!       Store::take             here        one lock, a pop from a stack
//!       Store::fresh            here        a miss: reserve by compare-and-swap, then the device
//!   PooledBuffer::drop          buffer.rs
//!     Store::give_back          here        one lock, a push; what passes a bound becomes a debt
//! ```
//!
//! What stays of the idle blocks, and what goes: `store/keep.rs`. No lock is held across a device
//! call. A hit without an arena writes to no cache line that another thread writes.

mod book;
mod keep;

use crate::block::private::Privates;
use crate::block::record::{Record, RecordOwner};
use crate::block::request::Want;
use crate::device::{DeviceAllocator, Request};
use crate::error::{DeviceError, Why};
use crate::lock::LockGuard;
use crate::policy::SizeClasses;
use crate::policy::limit::{BucketLimit, CachedLimit, Leases, Ledger};
use crate::policy::retention::{Retention, Ticks};
use crate::shard::Shard;
use crate::shard::gauge::{Gauge, Tally};
use crate::shard::shards::Shards;
use crate::stream::clock::{Order, StreamClock};
use crate::stream::marks::Marks;
use crate::stream::order::{StealPolicy, Taker};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use book::BookState;
pub(crate) use book::{Effort, PoolBook};

/// What a pool was built with, and that does not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) cached: CachedLimit,
    pub(crate) bucket: BucketLimit,
    pub(crate) statistics: bool,
    /// Blocks are cleared when they come back.
    pub(crate) zero_on_return: bool,
    pub(crate) steal: StealPolicy,
    pub(crate) retention: Retention,
}

/// Called when a request would be refused, with the bytes that it lacks; true to try again.
pub(crate) type OnShortage = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// The blocks of one pool.
pub(crate) struct Store<A: DeviceAllocator> {
    pub(crate) allocator: A,
    pub(crate) classes: SizeClasses,
    pub(crate) bounds: Bounds,
    pub(crate) ledger: Ledger,
    pub(crate) requested: Gauge,
    pub(crate) allocated: Gauge,
    /// The most allocated bytes that a reset of the statistics has forgotten.
    forgotten_peak: AtomicU64,
    /// Blocks taken from the device and not given back, by size. Moves on misses only.
    taken: Mutex<BTreeMap<u64, usize>>,
    leases: Leases,
    /// Moves with each miss; what came back in one epoch counts as equally old across shards.
    epoch: AtomicU64,
    /// Blocks that a thread holds between a shard and the device. Moves on cold paths only.
    in_transit: AtomicUsize,
    pub(crate) ticks: Mutex<Ticks>,
    /// Dropped when the pool is closed: it may hold buffers, which hold the store.
    pub(crate) on_shortage: Mutex<Option<OnShortage>>,
    pub(crate) shards: Shards<A>,
    /// Before the book, which has the slots of their records.
    pub(crate) privates: Privates<A>,
    /// Where the pool has an arena: then no block is in a shard.
    pub(crate) book: Option<PoolBook<A>>,
}

/// The part of a store that a free has worked on, still locked. It counts buffers: allocated there
/// less freed there. The sum over all parts is how many live.
pub(crate) enum Locked<'s, A: DeviceAllocator> {
    Shard(LockGuard<'s, Shard<A>>),
    Book(LockGuard<'s, BookState<A>>),
}

impl<A: DeviceAllocator> Locked<'_, A> {
    /// Counts a buffer out; returns false in a closed store, which has one count for all.
    #[inline]
    pub(crate) fn give_up(&mut self) -> bool {
        match self {
            Self::Shard(shard) => {
                shard.holds -= i64::from(!shard.closed);
                !shard.closed
            }
            Self::Book(state) => state.give_up(),
        }
    }
}

/// A block on its way out.
pub(crate) struct Grant<A: DeviceAllocator> {
    pub(crate) record: RecordOwner<A>,
    /// Whether all of it reads as zeroes.
    pub(crate) zeroed: bool,
}

impl<A: DeviceAllocator> Store<A> {
    pub(crate) fn new(
        (allocator, book): (A, Option<PoolBook<A>>),
        classes: SizeClasses,
        bounds: Bounds,
        ledger: Ledger,
        on_shortage: Option<OnShortage>,
    ) -> Self {
        Self {
            allocator,
            book,
            classes,
            bounds,
            ledger,
            requested: Gauge::default(),
            allocated: Gauge::default(),
            forgotten_peak: AtomicU64::new(0),
            taken: Mutex::default(),
            leases: Leases::default(),
            epoch: AtomicU64::new(0),
            in_transit: AtomicUsize::new(0),
            ticks: Mutex::default(),
            on_shortage: Mutex::new(on_shortage),
            shards: Shards::new(bounds.statistics),
            privates: Privates::new(),
        }
    }

    /// A hit: an idle block of this thread's shard that needs no device call.
    #[inline]
    pub(crate) fn take(&self, want: Want<'_, A>) -> Option<Grant<A>> {
        let want = &want;
        let mut shard = self.shards.own();
        let taken = shard.take_ready(want, &self.taker(want))?;
        Some(self.lend(&mut shard, want, taken))
    }

    /// Whether this process is a fork of the one that made the device's handles.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.allocator.clock().fault().is_some_and(|fault| fault.why == Why::Forked)
    }

    /// Who asks.
    #[inline]
    pub(crate) fn taker<'r>(&'r self, want: &Want<'r, A>) -> Taker<'r, A::Clock> {
        let (clock, steal) = (self.allocator.clock(), self.bounds.steal);
        Taker { clock, on: want.on, steal, cpu_touches: A::MEMORY.cpu_touches }
    }

    /// A hit on another thread's shard; still no device call.
    #[cold]
    pub(crate) fn take_elsewhere(&self, want: &Want<'_, A>) -> Option<Grant<A>> {
        let taker = self.taker(want);
        let taken = self.shards.others().find_map(|mut shard| shard.take_ready(want, &taker))?;
        Some(self.lend(&mut self.shards.own(), want, taken))
    }

    /// A hit on a block behind an event, or of which only the device knows whether it is done.
    /// Instead of a call for fresh memory, and without blocking the host. One block of each lane
    /// is tried; it stays in its place while the device is asked.
    #[cold]
    pub(crate) fn take_behind_event(
        &self,
        want: &Want<'_, A>,
    ) -> Result<Option<Grant<A>>, DeviceError> {
        let taker = self.taker(want);
        for at in self.shards.in_use() {
            let mut shelf = 0;
            while let Some(mut loan) = { self.shards.at(at).lend_pending(want, &mut shelf, &taker) }
            {
                self.in_transit.fetch_add(1, Relaxed);
                let order = loan.item.marks.get_mut().make_ready(&taker);
                let mut shard = self.shards.at(at);
                self.in_transit.fetch_sub(1, Relaxed);
                if order != Ok(Order::Ordered) {
                    shard.idle.put_back(loan);
                    order?;
                } else if let Some(taken) = shard.idle.take_lent(loan) {
                    drop(shard);
                    return Ok(Some(self.lend(&mut self.shards.own(), want, taken.item)));
                }
            }
        }
        Ok(None)
    }

    /// A block of the private pool that the stream is bound to: a hit in stream order.
    pub(crate) fn take_private(&self, want: &Want<'_, A>, id: u32) -> Option<Grant<A>> {
        let taker = self.taker(want);
        let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(&taker);
        let record = self.privates.take(id, want, ready)?;
        if let Some(book) = &self.book {
            return Some(self.lend_private(book, want, record));
        }
        Some(self.lend(&mut self.shards.own(), want, record))
    }

    /// Moves the epoch on, so that what comes back from here on counts as younger.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Relaxed) + 1
    }

    /// Whether another thread holds blocks that may come free in a moment.
    pub(crate) fn is_in_transit(&self) -> bool {
        self.in_transit.load(Relaxed) > 0
    }

    /// Takes a block from the device: reserved first, given back if the device refuses.
    #[cold]
    pub(crate) fn fresh(&self, want: &Want<'_, A>) -> Result<Grant<A>, DeviceError> {
        let record = self.take_from_device(want)?;
        let mut shard = self.shards.own();
        self.count_out(&mut shard, want.requested, record.bytes);
        if self.bounds.statistics {
            let counts = &mut shard.counts;
            *(if want.class.pooled() { &mut counts.misses } else { &mut counts.bypasses }) += 1;
            counts.from_device_bytes = counts.from_device_bytes.saturating_add(want.requested);
        }
        Ok(Grant { record, zeroed: A::MEMORY.fresh_is_zeroed })
    }

    /// A block from the device, of which nothing is counted but its reserved bytes.
    pub(crate) fn take_from_device(
        &self,
        want: &Want<'_, A>,
    ) -> Result<RecordOwner<A>, DeviceError> {
        let bytes = want.class.bytes;
        let mut reservation = self.ledger.reserve(bytes)?;
        self.epoch.fetch_add(1, Relaxed);
        let request = Request { bytes, kind: want.key.kind };
        let block = self.allocator.allocate(request, want.on)?;
        reservation.took(bytes);
        Ok(RecordOwner::new(self.record(block, want)))
    }

    /// The record of a block that the pool has from now on.
    fn record(&self, block: A::Block, want: &Want<'_, A>) -> Record<A> {
        let bytes = want.class.bytes;
        *self.taken.lock().entry(bytes).or_default() += 1;
        if let Some(id) = want.private {
            self.privates.count_out(id);
        }
        Record::new(block, bytes, want, self.allocator.clock())
    }

    /// Keeps a block that comes back, or owes it to the device. Returns the shard, locked, for the
    /// caller to give up its hold in.
    #[inline]
    pub(crate) fn give_back(&self, mut record: RecordOwner<A>, zeroed: bool) -> Locked<'_, A> {
        if let Some(book) = &self.book {
            return Locked::Book(self.free_to_book(book, record, zeroed));
        }
        let mut shard = self.shards.own();
        self.count_in(&mut shard, record.requested, record.bytes);
        let dirty = self.bounds.zero_on_return && !zeroed;
        (record.used, record.dirty, record.turn) = (true, dirty, shard.turn);
        if record.private.is_some() {
            match self.privates.keep(self.allocator.clock(), record) {
                Some(anybodys) => record = anybodys,
                None => return Locked::Shard(shard),
            }
        }
        self.keep_or_owe(&mut shard, record);
        if shard.owed.is_empty() || !(A::MEMORY.free_in_drop || shard.closed) {
            return Locked::Shard(shard);
        }
        let owed = std::mem::take(&mut shard.owed);
        drop(shard);
        self.pay(owed);
        Locked::Shard(self.shards.own())
    }

    /// A block leaves the pool's accounts for good, not by way of the device.
    pub(crate) fn let_go(&self, requested: u64, bytes: u64) -> Locked<'_, A> {
        self.untaken(bytes);
        self.ledger.give_back(bytes);
        self.forget(requested, bytes)
    }

    /// Counts a block out of the pool's hands.
    fn count_out(&self, shard: &mut Shard<A>, requested: u64, bytes: u64) {
        shard.turn += 1;
        shard.holds += 1;
        shard.requested.add(requested, &self.requested);
        shard.allocated.add(bytes, &self.allocated);
    }

    /// Counts a block that comes back.
    fn count_in(&self, shard: &mut Shard<A>, requested: u64, bytes: u64) {
        shard.requested.subtract(requested, &self.requested);
        shard.allocated.subtract(bytes, &self.allocated);
        shard.counts.deallocations += u64::from(self.bounds.statistics);
    }

    /// Counts a block that comes back to somebody else than the pool. Returns the shard, locked,
    /// for the caller to give up its hold in.
    pub(crate) fn forget(&self, requested: u64, bytes: u64) -> Locked<'_, A> {
        let mut shard = self.shards.own();
        self.count_in(&mut shard, requested, bytes);
        Locked::Shard(shard)
    }

    #[inline]
    fn lend(
        &self,
        shard: &mut Shard<A>,
        want: &Want<'_, A>,
        mut record: RecordOwner<A>,
    ) -> Grant<A> {
        record.requested = want.requested;
        self.count_out(shard, want.requested, record.bytes);
        if self.bounds.statistics {
            shard.counts.hits += 1;
            shard.counts.reuses += u64::from(record.used);
            let bytes = &mut shard.counts.from_pool_bytes;
            *bytes = bytes.saturating_add(want.requested);
        }
        *record.marks.get_mut() = Marks::new(self.allocator.clock().mark(want.stream));
        let zeroed = self.bounds.zero_on_return && !record.dirty;
        Grant { record, zeroed }
    }

    /// A reset of the statistics must not lower a bound that is a share of the peak.
    pub(crate) fn forget_peak(&self, allocated_peak: u64) {
        self.forgotten_peak.fetch_max(allocated_peak, Relaxed);
    }

    /// What the shards in use have not reported to the gauges: requested, allocated.
    pub(crate) fn tallies(&self) -> (Vec<Tally>, Vec<Tally>) {
        self.shards.iter().map(|shard| (shard.requested, shard.allocated)).unzip()
    }

    /// The owner goes: nothing is kept from here on, and what is idle goes back to the device.
    /// Returns how many buffers are out.
    pub(crate) fn close(&self) -> i64 {
        // Without the lock: its drop may return buffers to this store.
        let on_shortage = self.on_shortage.lock().take();
        drop(on_shortage);
        let (owed, mut buffers) = self.shards.close();
        self.pay(owed);
        if let Some(book) = &self.book {
            buffers += book.lock().close(self.allocator.clock());
            // Nobody is left to be told.
            let _ = self.trim_book(book, u64::MAX);
        }
        buffers
    }
}

impl<A: DeviceAllocator> Drop for Store<A> {
    fn drop(&mut self) {
        let owed =
            self.shards.iter().flat_map(|mut shard| std::mem::take(&mut shard.owed)).collect();
        self.pay(owed);
        if let Some(book) = &self.book {
            self.release_segments(book);
        }
    }
}
