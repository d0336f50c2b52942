//! THE HOT PATH: [`Store::take`] and [`Store::give_back`].
//!
//! ```text
//!   BucketPool::allocate        pool.rs
//!     ladder::allocate          ladder.rs   the rungs, in order
//!       Store::take             here        one lock, a pop from a stack
//!       Store::fresh            here        a miss: reserve by compare-and-swap, then the device
//!   PooledBuffer::drop          buffer.rs
//!     Store::give_back          here        one lock, a push; what passes a bound becomes a debt
//! ```
//!
//! What stays of the idle blocks, and what goes: `store/keep.rs`. No lock is held across a device
//! call. A hit writes to no cache line that another thread writes.

mod keep;

use crate::clock::{Order, StreamClock};
use crate::device::{DeviceAllocator, Request};
use crate::error::{DeviceError, Why};
use crate::gauge::{Gauge, Tally};
use crate::layer::{Retention, Ticks};
use crate::limit::{BucketLimit, CachedLimit, Leases, Ledger};
use crate::lock::LockGuard;
use crate::order::{StealPolicy, Taker};
use crate::policy::SizeClasses;
use crate::private::Privates;
use crate::shard::{Parcel, Shard, Want};
use crate::shards::Shards;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

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
    pub(crate) privates: Privates<A>,
}

/// A block on its way out.
pub(crate) struct Grant<A: DeviceAllocator> {
    pub(crate) parcel: Box<Parcel<A>>,
    pub(crate) fresh: bool,
}

impl<A: DeviceAllocator> Store<A> {
    pub(crate) fn new(
        allocator: A,
        classes: SizeClasses,
        bounds: Bounds,
        ledger: Ledger,
        on_shortage: Option<OnShortage>,
    ) -> Self {
        Self {
            allocator,
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
    pub(crate) fn take(&self, want: &Want<'_, A>) -> Option<Grant<A>> {
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
        let ready = |parcel: &mut Parcel<A>| parcel.marks.get_mut().is_ready(&taker);
        let parcel = self.privates.take(id, want, ready)?;
        Some(self.lend(&mut self.shards.own(), want, parcel))
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
        let parcel = self.take_from_device(want)?;
        let mut shard = self.shards.own();
        self.count_out(&mut shard, want.requested, parcel.bytes);
        if self.bounds.statistics {
            let counts = &mut shard.counts;
            *(if want.class.pooled() { &mut counts.misses } else { &mut counts.bypasses }) += 1;
            counts.from_device_bytes = counts.from_device_bytes.saturating_add(want.requested);
        }
        Ok(Grant { parcel, fresh: true })
    }

    /// A block from the device, of which nothing is counted but its reserved bytes.
    pub(crate) fn take_from_device(
        &self,
        want: &Want<'_, A>,
    ) -> Result<Box<Parcel<A>>, DeviceError> {
        let bytes = want.class.bytes;
        self.ledger.reserve(bytes)?;
        self.epoch.fetch_add(1, Relaxed);
        let request = Request { bytes, kind: want.key.kind };
        let block = self.allocator.allocate(request, want.on);
        let block = block.inspect_err(|_| self.ledger.cancel(bytes))?;
        self.ledger.took(bytes);
        let block = self.reserve_surplus(block, bytes, want)?;
        Ok(Box::new(self.parcel(block, want)))
    }

    /// Reserves what a fresh block holds beyond the `asked` bytes that are reserved. Where the
    /// limit leaves no room for that, the block goes back to the device.
    fn reserve_surplus(
        &self,
        block: A::Block,
        asked: u64,
        want: &Want<'_, A>,
    ) -> Result<A::Block, DeviceError> {
        let surplus = self.bytes_of(&block, asked) - asked;
        let Err(over) = self.ledger.reserve(surplus) else {
            self.ledger.took(surplus);
            return Ok(block);
        };
        let clock = self.allocator.clock();
        match self.allocator.free(block, &[clock.mark(want.on)]) {
            // The device still has it, so what was asked for stays reserved.
            Err(error) if !error.is_end_of_device() => self.lose(asked),
            _ => self.ledger.give_back(asked),
        }
        Err(over)
    }

    /// Bytes that a block of `asked` bytes holds: no fewer, whatever the device says.
    fn bytes_of(&self, block: &A::Block, asked: u64) -> u64 {
        self.allocator.size_of(block).map_or(asked, |bytes| bytes.max(asked))
    }

    /// A block that a layer below has free, without a call to the device.
    pub(crate) fn reuse(&self, want: &Want<'_, A>) -> Result<Option<Grant<A>>, DeviceError> {
        let bytes = want.class.bytes;
        let request = Request { bytes, kind: want.key.kind };
        let Some(block) = self.allocator.reuse(request, want.on)? else { return Ok(None) };
        let held = self.bytes_of(&block, bytes);
        // The layer holds the limit; the ledger's own is then the largest size that there is.
        let _ = self.ledger.reserve(held);
        self.ledger.took(held);
        let mut parcel = Box::new(self.parcel(block, want));
        parcel.dirty = true;
        let mut shard = self.shards.own();
        self.count_out(&mut shard, want.requested, parcel.bytes);
        if self.bounds.statistics {
            let counts = &mut shard.counts;
            *(if want.class.pooled() { &mut counts.hits } else { &mut counts.bypasses }) += 1;
            counts.from_pool_bytes = counts.from_pool_bytes.saturating_add(want.requested);
        }
        Ok(Some(Grant { parcel, fresh: false }))
    }

    /// A block that the pool has from now on, all of which is reserved.
    fn parcel(&self, block: A::Block, want: &Want<'_, A>) -> Parcel<A> {
        let bytes = self.bytes_of(&block, want.class.bytes);
        *self.taken.lock().entry(bytes).or_default() += 1;
        if let Some(id) = want.private {
            self.privates.count_out(id);
        }
        Parcel::new(block, bytes, want, self.allocator.clock())
    }

    /// Keeps a block that comes back, or owes it to the device. Returns the shard, locked, for the
    /// caller to give up its hold in.
    #[inline]
    pub(crate) fn give_back(
        &self,
        mut parcel: Box<Parcel<A>>,
        clean: bool,
    ) -> LockGuard<'_, Shard<A>> {
        let mut shard = self.shards.own();
        self.count_in(&mut shard, parcel.requested, parcel.bytes);
        (parcel.used, parcel.dirty, parcel.turn) = (true, !clean, shard.turn);
        if parcel.private.is_some() {
            match self.privates.keep(self.allocator.clock(), parcel) {
                Some(anybodys) => parcel = anybodys,
                None => return shard,
            }
        }
        self.keep_or_owe(&mut shard, parcel);
        if shard.owed.is_empty() || !(A::MEMORY.free_in_drop || shard.closed) {
            return shard;
        }
        let (owed, closed) = (std::mem::take(&mut shard.owed), shard.closed);
        drop(shard);
        self.pay(owed);
        if closed {
            self.empty_layer();
        }
        self.shards.own()
    }

    /// A block leaves the pool's accounts for good, not by way of the device.
    pub(crate) fn let_go(&self, requested: u64, bytes: u64) -> LockGuard<'_, Shard<A>> {
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
    pub(crate) fn forget(&self, requested: u64, bytes: u64) -> LockGuard<'_, Shard<A>> {
        let mut shard = self.shards.own();
        self.count_in(&mut shard, requested, bytes);
        shard
    }

    #[inline]
    fn lend(
        &self,
        shard: &mut Shard<A>,
        want: &Want<'_, A>,
        mut parcel: Box<Parcel<A>>,
    ) -> Grant<A> {
        parcel.requested = want.requested;
        self.count_out(shard, want.requested, parcel.bytes);
        if self.bounds.statistics {
            shard.counts.hits += 1;
            shard.counts.reuses += u64::from(parcel.used);
            let bytes = &mut shard.counts.from_pool_bytes;
            *bytes = bytes.saturating_add(want.requested);
        }
        Grant { parcel, fresh: false }
    }

    /// A reset of the statistics must not lower a bound that is a share of the peak.
    pub(crate) fn forget_peak(&self, allocated_peak: u64) {
        self.forgotten_peak.fetch_max(allocated_peak, Relaxed);
    }

    /// What the shards in use have not reported to the gauges: requested, allocated.
    pub(crate) fn tallies(&self) -> (Vec<Tally>, Vec<Tally>) {
        self.shards.iter().map(|shard| (shard.requested, shard.allocated)).unzip()
    }

    /// Nothing is kept by a layer below either.
    fn empty_layer(&self) {
        if let Some(layer) = self.allocator.layer() {
            // Nobody is left to be told.
            let _ = layer.give_back(u64::MAX);
        }
    }

    /// The owner goes: nothing is kept from here on, and what is idle goes back to the device.
    /// Returns how many buffers are out.
    pub(crate) fn close(&self) -> i64 {
        // Without the lock: its drop may return buffers to this store.
        let on_shortage = self.on_shortage.lock().take();
        drop(on_shortage);
        let (owed, buffers) = self.shards.close();
        self.pay(owed);
        self.empty_layer();
        buffers
    }
}

impl<A: DeviceAllocator> Drop for Store<A> {
    fn drop(&mut self) {
        let owed =
            self.shards.iter().flat_map(|mut shard| std::mem::take(&mut shard.owed)).collect();
        self.pay(owed);
    }
}
