//! More shards: a pool begins with one, and takes more where threads take turns in it often.

use crate::port::DeviceAllocator;
use crate::shard::{State, Sum};
use crate::size::MIB;
use crate::store::Store;
use crate::sys::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::sync::atomic::AtomicUsize;
use std::thread;

/// Reserved bytes for each shard of an arena: a small one stays one heap.
const BYTES_OF_SHARD: u64 = MIB;

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

/// How many shards a pool takes at most: twice the processors.
pub(super) fn most() -> usize {
    // No `OnceLock`: a forked child would wait for ever where a thread of its parent was in it.
    static PROCESSORS: AtomicUsize = AtomicUsize::new(0);
    let known = PROCESSORS.load(Relaxed);
    if known > 0 {
        return 2 * known;
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    PROCESSORS.store(processors, Relaxed);
    2 * processors
}

impl<A: DeviceAllocator> Store<A> {
    /// Ends the round of a shard, under its lock. Returns how many shards there are, if the pool should
    /// take more.
    pub(super) fn end_round(&self, state: &mut State<A>) -> Option<usize> {
        let is_crowded = state.end_round();
        self.keep_time(state);
        let count = self.shards.count();
        (is_crowded && count < self.shards.most()).then_some(count)
    }

    /// Brings the time of a shard and that of the pool to the later of the two.
    pub(super) fn keep_time(&self, state: &mut State<A>) {
        let latest = self.turn.fetch_max(state.turn, Relaxed);
        state.turn = state.turn.max(latest);
    }

    /// Takes twice as many shards as the pool had when it was crowded.
    #[cold]
    pub(super) fn spread(&self, crowded: usize) {
        let is_small =
            self.shape.is_arena() && self.ledger.reserved() < crowded as u64 * BYTES_OF_SHARD;
        if !is_small {
            self.spread_to(2 * crowded);
        }
    }

    /// Takes shards until there are `count`.
    pub(crate) fn spread_to(&self, count: usize) {
        let mut all = self.shards.lock_all();
        let (before, is_limited) = (all.len(), !self.is_unlimited());
        let count = count.min(self.shards.most());
        if count <= before {
            return;
        }
        let first = &mut *all[0];
        if before == 1 {
            self.begin_leases(first);
            first.publish_used(self.shards.published(0));
            if is_limited {
                // What it does not use is for the other shards.
                first.lease = first.lease.min(first.kept());
                self.leased.store(first.lease, SeqCst);
            }
            *self.peaks.lock() = Peaks {
                live: first.accounts.live.now().1,
                requested: first.accounts.requested.now().1,
                allocated: first.accounts.allocated.now().1,
                highest_allocated: first.highest_allocated(),
                cached: first.cached_peak(),
                used: first.ranges.used_peak,
            };
        }
        let (turn, leases_places) = (first.turn, first.leases_places);
        let (epoch, closed) = (first.epoch, first.closed);
        let lease = if is_limited { 0 } else { u64::MAX };
        self.shards.grow(count, |number| {
            let state = State::new(number, self.shape.split(), lease);
            State { turn, leases_places, epoch, closed, ..state }
        });
    }

    /// Takes the peaks of several shards from their sum, and gives it those that there were.
    pub(super) fn note_peaks(&self, sum: &mut Sum) {
        let peaks = &mut *self.peaks.lock();
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
    pub(super) fn watch_peaks(&self) {
        if self.shards.count() == 1 {
            return;
        }
        let (reserved, known) = (self.ledger.reserved(), self.summed.load(Relaxed));
        let passed = self.slow_requests.fetch_add(1, Relaxed).wrapping_add(1);
        let is_due = reserved > known + known / PART_OF_PEAK;
        if (is_due || passed.is_multiple_of(REQUESTS_OF_SUM)) && self.try_sum().is_some() {
            self.summed.store(reserved, Relaxed);
        }
    }

    /// Notes how much several shards use of ranges. Returns the most of that so far.
    pub(super) fn note_used(&self, used: u64) -> u64 {
        let peaks = &mut *self.peaks.lock();
        peaks.used = peaks.used.max(used);
        peaks.used
    }

    /// The most bytes that several shards lent at once, as of the sums so far.
    pub(super) fn last_allocated_peak(&self) -> u64 {
        let peaks = &*self.peaks.lock();
        if self.shape.is_arena() { peaks.used } else { peaks.highest_allocated }
    }

    /// Lets the peaks of several shards start again from the current figures.
    pub(super) fn reset_summed_peaks(&self) {
        {
            let peaks = &mut *self.peaks.lock();
            let Peaks { highest_allocated, used, .. } = *peaks;
            *peaks = Peaks { highest_allocated, used, ..Peaks::default() };
        }
        self.summed.store(self.ledger.reserved(), Relaxed);
        self.sum();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::blocks::tests::Nothing;
    use crate::pool::BucketPool;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_shard_that_is_behind_has_rounds_as_long_as_others() {
        let pool = BucketPool::builder(Nothing).shards(2).build();
        let (store, mut ends) = (pool.store(), Vec::new());
        let mut state = store.shards.lock(1);
        for request in 0..3 * 2048 {
            if request % 1000 == 0 {
                store.turn.fetch_add(1 << 20, Relaxed); // the other shard goes on
            }
            if request % 100 == 0 {
                store.keep_time(&mut state); // as each miss does
            }
            state.count_out(64, 64);
            if state.is_round_over() {
                ends.push(request);
                store.end_round(&mut state);
            }
            state.accounts.freed(64, 64);
            state.accounts.live.down(1);
        }
        assert_eq!(ends, [0, 2048, 4096]);
    }
}
