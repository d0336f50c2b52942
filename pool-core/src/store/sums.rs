//! Sums over the shards of a pool, under all their locks, so that they are of one moment; the peaks of several
//! shards; and the limit that is a share of a peak.

use crate::limits::CachedLimit;
use crate::observe::{Accounts, PoolStats};
use crate::port::DeviceAllocator;
use crate::shard::Heap;
use crate::store::Store;
use crate::sys::LockGuard;
use crate::sys::atomic::Ordering::{Relaxed, SeqCst};

/// Returns the bound on free bytes at this moment.
pub(crate) fn cached_limit<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    match store.settings.cached.get() {
        share @ CachedLimit::OfPeak(_) => share.bytes(allocated_peak(store)),
        limit => limit.bytes(0),
    }
}

/// Bytes that the device did not take back; none while a thread has memory on its way, in any
/// pool of the budget, which counts as lost for as long.
pub(crate) fn lost_bytes<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    let lost = (0..store.shards.count()).map(|at| store.shards.lock(at).counts.lost_bytes).sum();
    if store.transit().has_pieces() { 0 } else { lost }
}

/// The figures of all shards together.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    pub(crate) accounts: Accounts,
    pub(crate) counts: PoolStats,
    pub(crate) untouched_hits: u64,
    pub(crate) not_kept: u64,
    /// Bytes of free memory that serves again, and of deferred frees.
    pub(crate) kept: u64,
    pub(crate) deferred: u64,
    pub(crate) cached_peak: u64,
    pub(crate) allocated_peak: u64,
    /// Bytes of live and private ranges, and the most of that.
    pub(crate) used: u64,
    pub(crate) used_peak: u64,
}

impl Sum {
    pub(crate) fn of_nothing() -> Self {
        Self {
            accounts: Accounts::new(false),
            counts: PoolStats::default(),
            untouched_hits: 0,
            not_kept: 0,
            kept: 0,
            deferred: 0,
            cached_peak: 0,
            allocated_peak: 0,
            used: 0,
            used_peak: 0,
        }
    }

    /// Adds a shard. Peaks are those of one shard where there is one.
    pub(crate) fn add<A: DeviceAllocator>(&mut self, heap: &Heap<A>, is_first: bool) {
        if is_first {
            self.accounts = heap.accounts.clone();
        } else {
            self.accounts.add(&heap.accounts);
        }
        self.counts.add_counts(&heap.counts);
        self.untouched_hits += heap.untouched_hits;
        self.not_kept += heap.not_kept;
        self.kept += heap.kept();
        self.deferred += heap.deferred_bytes;
        self.cached_peak += heap.cached_peak();
        self.allocated_peak += heap.highest_allocated();
        self.used += heap.ranges.used();
        self.used_peak += heap.ranges.used_peak;
    }
}

/// Peaks are summed up when the pool's bytes have grown by one part in this many, or after so many
/// requests that are no hits.
const PART_OF_PEAK: u64 = 32;
const REQUESTS_OF_SUM: u32 = 64;

/// Peaks of sums over several shards, in bytes but for `live`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peaks {
    live: u64,
    requested: u64,
    allocated: u64,
    /// Not reset: limits are a share of it.
    highest_allocated: u64,
    cached: u64,
    used: u64,
}

impl Peaks {
    /// The peaks of a pool that has had one shard until now.
    pub(super) fn of_one<A: DeviceAllocator>(heap: &Heap<A>) -> Self {
        Self {
            live: heap.accounts.live.now().1,
            requested: heap.accounts.requested.now().1,
            allocated: heap.accounts.allocated.now().1,
            highest_allocated: heap.highest_allocated(),
            cached: heap.cached_peak(),
            used: heap.ranges.used_peak,
        }
    }
}

/// Bytes of one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InUse {
    /// Of the blocks that buffers have, and as they were requested.
    pub(crate) allocated: u64,
    pub(crate) requested: u64,
    /// Of free memory.
    pub(crate) cached: u64,
    /// Bytes that the device did not take back.
    pub(crate) lost: u64,
}

/// Adds up all shards.
pub(super) fn sum<A: DeviceAllocator>(store: &Store<A>) -> Sum {
    sum_of(store, &store.shards.lock_all())
}

/// Adds up all shards if no thread is in any of them. A thread that waited for one with the locks
/// of others would stop all that need those.
pub(super) fn try_sum<A: DeviceAllocator>(store: &Store<A>) -> Option<Sum> {
    Some(sum_of(store, &store.shards.try_lock_all()?))
}

fn sum_of<A: DeviceAllocator>(store: &Store<A>, all: &[LockGuard<'_, Heap<A>>]) -> Sum {
    let mut sum = Sum::of_nothing();
    all.iter().enumerate().for_each(|(at, heap)| sum.add(heap, at == 0));
    if all.len() > 1 {
        note_peaks(store, &mut sum);
    }
    sum
}

/// Bytes that buffers and private pools have of ranges, and the most of that at once. Who grows
/// waits for no other shard: of several it is what each lets the others know.
pub(super) fn used<A: DeviceAllocator>(store: &Store<A>) -> (u64, u64) {
    let count = store.shards.count();
    if count == 1 {
        let sum = sum(store);
        return (sum.used, sum.used_peak);
    }
    let used = (0..count).map(|at| store.shards.used_of(at)).sum();
    (used, note_used(store, used))
}

/// The most bytes that were allocated at once.
pub(super) fn allocated_peak<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    if store.shards.count() > 1 {
        watch_peaks(store);
        return last_allocated_peak(store);
    }
    let sum = sum(store);
    if store.layout.is_arena() { sum.used_peak } else { sum.allocated_peak }
}

/// Bytes in buffers, in caches and lost, at one moment.
pub(crate) fn in_use<A: DeviceAllocator>(store: &Store<A>) -> InUse {
    let Sum { accounts, counts, kept, deferred, .. } = sum(store);
    InUse {
        allocated: accounts.allocated.now().0,
        requested: accounts.requested.now().0,
        cached: kept + deferred,
        lost: counts.lost_bytes,
    }
}

/// Bytes of free memory.
pub(crate) fn cached_bytes<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    if store.is_unusable() { 0 } else { in_use(store).cached }
}

/// Bytes of the blocks that buffers have.
pub(crate) fn allocated_bytes<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    if store.is_unusable() { 0 } else { in_use(store).allocated }
}

/// Buffers that were freed in all, also before counts were reset. It takes all locks.
pub(crate) fn freed_buffers<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    if store.is_unusable() { 0 } else { sum(store).accounts.live.freed() }
}

/// Sets all counts to 0.
pub(crate) fn reset_counts<A: DeviceAllocator>(store: &Store<A>) {
    (0..store.shards.count()).for_each(|at| store.shards.lock(at).reset_counts());
    store.calls.lock().reset_accumulated();
}

/// Lets the peaks start again from the current figures.
pub(crate) fn reset_peaks<A: DeviceAllocator>(store: &Store<A>) {
    (0..store.shards.count()).for_each(|at| store.shards.lock(at).reset_peaks());
    reset_summed_peaks(store);
    store.calls.lock().reset_peak();
    store.ledger.reset_peak();
}

/// Takes the peaks of several shards from their sum, and gives it those that there were.
pub(super) fn note_peaks<A: DeviceAllocator>(store: &Store<A>, sum: &mut Sum) {
    let peaks = &mut *store.peaks.lock();
    let higher = |peak: &mut u64, now: u64| {
        *peak = now.max(*peak);
        *peak
    };
    sum.accounts.live.set_peak(higher(&mut peaks.live, sum.accounts.live.now().0));
    let requested = sum.accounts.requested.now().0;
    sum.accounts.requested.set_peak(higher(&mut peaks.requested, requested));
    let allocated = sum.accounts.allocated.now().0;
    sum.accounts.allocated.set_peak(higher(&mut peaks.allocated, allocated));
    sum.allocated_peak = higher(&mut peaks.highest_allocated, allocated);
    sum.cached_peak = higher(&mut peaks.cached, sum.kept);
    sum.used_peak = higher(&mut peaks.used, sum.used);
}

/// Takes the peaks of several shards on a slow path, where they may be new ones: the pool has
/// more from the device than at the last sum, or some requests have passed since. A sum takes all
/// locks, so that not each request may make one; where another thread is in a shard, a later
/// request does.
pub(super) fn watch_peaks<A: DeviceAllocator>(store: &Store<A>) {
    if store.shards.count() == 1 {
        return;
    }
    let (reserved, known) = (store.ledger.reserved(), store.summed.load(Relaxed));
    let passed = store.slow_requests.fetch_add(1, Relaxed).wrapping_add(1);
    let is_due = reserved > known + known / PART_OF_PEAK;
    if (is_due || passed.is_multiple_of(REQUESTS_OF_SUM)) && try_sum(store).is_some() {
        store.summed.store(reserved, Relaxed);
    }
}

/// Notes how much several shards use of ranges. Returns the most of that so far.
pub(super) fn note_used<A: DeviceAllocator>(store: &Store<A>, used: u64) -> u64 {
    let peaks = &mut *store.peaks.lock();
    peaks.used = peaks.used.max(used);
    peaks.used
}

/// The most bytes that several shards lent at once, as of the sums so far.
pub(super) fn last_allocated_peak<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    let peaks = &*store.peaks.lock();
    if store.layout.is_arena() { peaks.used } else { peaks.highest_allocated }
}

/// Lets the peaks of several shards start again from the current figures.
pub(super) fn reset_summed_peaks<A: DeviceAllocator>(store: &Store<A>) {
    {
        let peaks = &mut *store.peaks.lock();
        let Peaks { highest_allocated, used, .. } = *peaks;
        *peaks = Peaks { highest_allocated, used, ..Peaks::default() };
    }
    store.summed.store(store.ledger.reserved(), Relaxed);
    sum(store);
}

/// The cached limit, as it was read in an epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitRead {
    pub(super) bytes: u64,
    pub(super) epoch: u32,
}

/// The cached limit and the epoch, which was read first: if it holds, so does the limit.
pub(super) fn read_limit<A: DeviceAllocator>(store: &Store<A>) -> LimitRead {
    let epoch = store.epoch.load(SeqCst);
    LimitRead { bytes: cached_limit(store), epoch }
}
