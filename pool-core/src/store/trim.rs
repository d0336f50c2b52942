//! Free memory goes back to the device: deferred frees, by age, by size, for want of memory, and above a limit.
//! Whole blocks go one by one; ranges have a room of their own (`trim/ranges.rs`).

pub(super) mod ranges;

use crate::block::record::{Record, RecordOwner};
use crate::blocks::Effort;
use crate::limits::{CachedLimit, GivenBack};
use crate::observe::Reason;
use crate::port::{Allocating, DeviceAllocator, MarkOf, StreamClock};
use crate::store::{Goal, Store, device, leases};
use crate::sys::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Deferred frees of a shard that a miss asks about.
const MAX_ASKED: usize = 8;

/// Which free memory goes first.
#[derive(Clone, Copy, Debug)]
pub(super) enum First {
    /// The oldest, of what was freed before this time; of all that is free at the call without.
    Oldest(Option<u64>),
    /// The largest.
    Largest,
}

/// Does the frees that drops deferred, and gives back free memory, oldest first, until it has
/// given back the bytes of `goal`.
pub(crate) fn trim<A: DeviceAllocator>(store: &Store<A>, goal: Goal) -> GivenBack {
    let mut given_back = free_deferred_and_excess(store);
    let bytes = goal.bytes.saturating_sub(given_back.bytes);
    given_back += evict(store, Goal { bytes, ..goal }, First::Oldest(None));
    given_back
}

/// Gives back at least `bytes` bytes of cached memory, since a request needs them.
pub(crate) fn trim_short<A: DeviceAllocator>(store: &Store<A>, bytes: u64) -> u64 {
    trim(store, Goal { bytes, reason: Reason::Shortage }).bytes
}

/// Gives back memory that has been free for too long at `now`, does the frees that drops
/// deferred, and gives back cached memory above the cached limit.
pub(crate) fn tick<A: DeviceAllocator>(store: &Store<A>, now: Duration) -> GivenBack {
    let mut given_back = evict_old(store, now);
    given_back += free_deferred_and_excess(store);
    given_back
}

/// Does the frees that drops deferred, gives back cached memory above the cached limit, and
/// then free memory, largest first, until at most `target` bytes are reserved or none is free.
pub(crate) fn shrink_to<A: DeviceAllocator>(store: &Store<A>, target: u64) -> GivenBack {
    let bytes = store.ledger.reserved().saturating_sub(target);
    let mut given_back = free_deferred_and_excess(store);
    let bytes = bytes.saturating_sub(given_back.bytes);
    given_back += evict(store, Goal { bytes, reason: Reason::Asked }, First::Largest);
    given_back
}

/// Gives back all free memory, after waiting for the work that used it. Memory that waits for
/// work that is not submitted stays in the pool.
pub(crate) fn clear<A: DeviceAllocator>(store: &Store<A>, reason: Reason) -> GivenBack {
    // A free waits for the marks where the device does not do so itself.
    let mut given_back = free_deferred(store);
    given_back += evict(store, Goal::all(reason), First::Oldest(None));
    given_back
}

/// Sets the cached limit, and gives back what is above it.
pub(crate) fn set_cached_limit<A: DeviceAllocator>(
    store: &Store<A>,
    limit: CachedLimit,
) -> GivenBack {
    store.settings.cached.set(limit);
    leases::begin_epoch(store);
    free_deferred_and_excess(store)
}

/// Sets the limit on blocks of a size, for sizes below that of large ones or for those, and gives back
/// what is above it.
pub(crate) fn set_bucket_limit<A: DeviceAllocator>(
    store: &Store<A>,
    blocks: usize,
    large: bool,
) -> GivenBack {
    store.settings.rules.bucket.set(blocks, large);
    leases::begin_epoch(store);
    free_deferred(store)
}

/// Does the frees that drops deferred, and gives back cached memory above the cached limit.
pub(crate) fn free_deferred_and_excess<A: DeviceAllocator>(store: &Store<A>) -> GivenBack {
    let mut given_back = free_deferred(store);
    given_back += ranges::evict_to_limit(store, None);
    given_back
}

/// As [`free_deferred_and_excess`], for a request that needs the device. Where drops free
/// at once, the other shards have nothing of this as a rule, and their locks are left alone. Where
/// a free would wait for work, only what is done goes while the device may have memory.
pub(super) fn free_before_growing<A: DeviceAllocator>(
    store: &Store<A>,
    home: usize,
    effort: Effort,
) -> GivenBack {
    if A::MEMORY.free_in_drop && !store.layout.is_arena() && effort == Effort::Bounded {
        return free_deferred_of(store, home, true);
    }
    if A::MEMORY.allocating == Allocating::AtOnce && effort == Effort::Bounded {
        let mut given_back = free_deferred_done(store, home);
        given_back += ranges::evict_to_limit(store, Some(home));
        return given_back;
    }
    free_deferred_and_excess(store)
}

/// Executes the deferred frees of all shards.
pub(crate) fn free_deferred<A: DeviceAllocator>(store: &Store<A>) -> GivenBack {
    let mut given_back = GivenBack::default();
    for at in 0..store.shards.count() {
        given_back += free_deferred_of(store, at, true);
    }
    given_back
}

/// Executes the deferred frees that wait for no work: those that were seen done, or that queries
/// about the first few find done. Of the shards but `home`, those in which a thread is when
/// they are looked at are left to a later call.
fn free_deferred_done<A: DeviceAllocator>(store: &Store<A>, home: usize) -> GivenBack {
    let clock = store.allocator.clock();
    let mut given_back = GivenBack::default();
    for at in 0..store.shards.count() {
        let Some(asked) = marks_of_deferred(store, at, home) else { continue };
        for mark in asked.into_iter().filter(|mark| clock.is_submitted(*mark)) {
            // What a query finds done is seen done from then on. A refusal says nothing of it.
            let _ = clock.is_done(mark);
        }
        given_back += free_deferred_of(store, at, false);
    }
    given_back
}

/// The marks of the first few deferred frees of a shard. `None` if it has none, and if a thread is
/// in a shard that is not `home`.
fn marks_of_deferred<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    home: usize,
) -> Option<Vec<MarkOf<A>>> {
    let mut heap = store.shards.lock_for(at, Some(home))?;
    let mut asked = Vec::new();
    for record in heap.deferred.iter_mut().take(MAX_ASKED) {
        record.marks.get_mut().all_are(|mark| {
            asked.push(mark);
            true
        });
    }
    (!heap.deferred.is_empty()).then_some(asked)
}

/// Executes the deferred frees of a shard; without `wait`, those alone whose work was seen done.
/// What is behind work that is not submitted waits for a later call, unless it may be freed
/// anywhere, or the pool is closed.
pub(super) fn free_deferred_of<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    wait: bool,
) -> GivenBack {
    let (mut given_back, clock) = (GivenBack::default(), store.allocator.clock());
    let mut below = usize::MAX; // all that there are at the first look
    loop {
        let (removed, _in_transit) = {
            let heap = &mut *store.shards.lock(at);
            let any = A::MEMORY.free_in_drop || heap.closed;
            let goes = |record: &mut RecordOwner<A>| {
                let may = |mark| clock.is_submitted(mark) && (wait || clock.is_seen_done(mark));
                any || record.marks.get_mut().all_are(may)
            };
            let Some(record) = heap.pop_deferred(&mut below, goes) else { break };
            (store.remove_block(heap, record), store.leaves(heap))
        };
        let Some(removed) = removed else { continue };
        given_back += device::free(store, at, removed, Some(Reason::Bound));
    }
    given_back
}

/// Gives free memory back in an order, until at least the bytes of `goal` went. What is behind work that is
/// not submitted stays.
pub(super) fn evict<A: DeviceAllocator>(store: &Store<A>, goal: Goal, first: First) -> GivenBack {
    match store.layout.is_arena() {
        false => evict_blocks(store, goal, first),
        true => ranges::evict(store, goal, first),
    }
}

/// Gives back what has been free for longer than the retention of the pool.
fn evict_old<A: DeviceAllocator>(store: &Store<A>, now: Duration) -> GivenBack {
    let time = advance(store);
    // In its own statement, so that the lock is not held over the calls to the device.
    let (before, last) = {
        let ticks = &mut *store.ticks.lock();
        (ticks.tick(now, time, store.settings.retention), ticks.note_last(time))
    };
    // A shard knows the time of the others as of their last round, or as of the last tick.
    let before = if store.shards.count() > 1 { before.min(last) } else { before };
    match before {
        0 => GivenBack::default(),
        before => evict(store, Goal::all(Reason::Age), First::Oldest(Some(before))),
    }
}

/// Advances the time of all shards, by which they tell what is old. Returns the time.
fn advance<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    let times = (0..store.shards.count()).map(|at| store.shards.lock(at).time);
    let time = times.max().unwrap_or(0).max(store.time.load(Relaxed)) + 1;
    store.time.fetch_max(time, Relaxed);
    for at in 0..store.shards.count() {
        let heap = &mut *store.shards.lock(at);
        heap.time = heap.time.max(time);
    }
    time
}

/// [`evict`] of whole blocks: one after the other, of the shard that has the first.
fn evict_blocks<A: DeviceAllocator>(store: &Store<A>, goal: Goal, first: First) -> GivenBack {
    let first = match first {
        // Not what is freed meanwhile: other threads may free without end.
        First::Oldest(None) => First::Oldest(Some(advance(store))),
        first => first,
    };
    let clock = store.allocator.clock();
    let may = |record: &mut Record<A>| record.marks.get_mut().all_are(|it| clock.is_submitted(it));
    let mut given_back = GivenBack::default();
    let mut shards: Vec<usize> = (0..store.shards.count()).collect();
    while given_back.bytes < goal.bytes {
        shards.sort_by_cached_key(|at| {
            let blocks = &mut store.shards.lock(*at).blocks;
            match first {
                First::Oldest(_) => blocks.oldest().map_or(u64::MAX, |oldest| oldest.freed_at),
                First::Largest => u64::MAX - blocks.largest(),
            }
        });
        let taken = shards.iter().find_map(|at| {
            let heap = &mut *store.shards.lock(*at);
            let record = match first {
                First::Oldest(before) => heap.blocks.pop_oldest(before.unwrap_or(u64::MAX), may),
                First::Largest => heap.blocks.pop_largest(may),
            }?;
            heap.counts.evictions += u64::from(store.settings.statistics);
            let in_transit = store.leaves(heap);
            Some((*at, store.remove_block(heap, record), in_transit))
        });
        let Some((at, removed, _in_transit)) = taken else { break };
        let Some(removed) = removed else { continue };
        given_back += device::free(store, at, removed, Some(goal.reason));
    }
    given_back
}
