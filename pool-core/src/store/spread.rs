//! More shards: a pool begins with one, and takes more where threads take turns in it often.

use crate::port::DeviceAllocator;
use crate::shard::Heap;
use crate::size::MIB;
use crate::store::sums::Peaks;
use crate::store::{Store, places};
use crate::sys::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::AtomicUsize;
use std::thread;

/// Reserved bytes for each shard of an arena: a small one stays one heap.
const BYTES_OF_SHARD: u64 = MIB;

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

/// Ends the round of a shard, under its lock. Returns how many shards there are, if the pool should
/// take more.
pub(super) fn end_round<A: DeviceAllocator>(store: &Store<A>, heap: &mut Heap<A>) -> Option<usize> {
    let is_crowded = heap.end_round();
    store.keep_time(heap);
    let count = store.shards.count();
    (is_crowded && count < store.shards.most()).then_some(count)
}

/// Takes twice as many shards as the pool had when it was crowded.
#[cold]
pub(super) fn spread<A: DeviceAllocator>(store: &Store<A>, crowded: usize) {
    let is_small =
        store.layout.is_arena() && store.ledger.reserved() < crowded as u64 * BYTES_OF_SHARD;
    if !is_small {
        spread_to(store, 2 * crowded);
    }
}

/// Takes shards until there are `count`.
pub(crate) fn spread_to<A: DeviceAllocator>(store: &Store<A>, count: usize) {
    let mut all = store.shards.lock_all();
    let (before, is_limited) = (all.len(), !store.is_unlimited());
    let count = count.min(store.shards.most());
    if count <= before {
        return;
    }
    let first = &mut *all[0];
    if before == 1 {
        places::begin_leases(store, first);
        store.shards.publish(first);
        if is_limited {
            // What it does not use is for the other shards.
            first.lease = first.lease.min(first.kept());
            store.leased.store(first.lease, SeqCst);
        }
        *store.peaks.lock() = Peaks::of_one(first);
    }
    let (time, leases_places) = (first.time, first.leases_places);
    let (epoch, closed) = (first.epoch, first.closed);
    let lease = if is_limited { 0 } else { u64::MAX };
    store.shards.grow(count, |number| {
        let heap = Heap::new(number, store.layout.split(), lease);
        Heap { time, leases_places, epoch, closed, ..heap }
    });
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
        let mut heap = store.shards.lock(1);
        for request in 0..3 * 2048 {
            if request % 1000 == 0 {
                store.time.fetch_add(1 << 20, Relaxed); // the other shard goes on
            }
            if request % 100 == 0 {
                store.keep_time(&mut heap); // as each miss does
            }
            heap.count_out(64, 64);
            if heap.is_round_over() {
                ends.push(request);
                super::end_round(store, &mut heap);
            }
            heap.accounts.freed(64, 64);
            heap.accounts.live.down(1);
        }
        assert_eq!(ends, [0, 2048, 4096]);
    }
}
