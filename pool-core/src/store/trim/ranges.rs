//! Free ranges go back to the device: a lock is held for a portion of them at a time.

use crate::limits::GivenBack;
use crate::observe::Reason;
use crate::port::{DeviceAllocator, Handles};
use crate::ranges::returnable;
use crate::shard::{Heap, MAX_NODES};
use crate::store::pieces::{Piece, Pieces};
use crate::store::trim::First;
use crate::store::{Goal, Store, device, leases, pieces, sums};
use std::cmp::Reverse;

/// A free range that could go back, as it was when it was found.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    shard: usize,
    id: u32,
    freed_at: u64,
    bytes: u64,
}

/// Gives ranges back in an order. Where that is not enough, pages that several streams have used go too,
/// unless age decides.
pub(super) fn evict<A: DeviceAllocator>(store: &Store<A>, goal: Goal, first: First) -> GivenBack {
    if store.layout.pages.is_none() || matches!(first, First::Oldest(Some(_))) {
        return evict_in_order(store, goal, first);
    }
    let all = goal.bytes >= store.ledger.reserved();
    if all {
        coalesce_pages(store);
    }
    let mut given_back = evict_in_order(store, goal, first);
    if !all && given_back.bytes < goal.bytes {
        coalesce_pages(store);
        let bytes = goal.bytes - given_back.bytes;
        given_back += evict_in_order(store, Goal { bytes, ..goal }, first);
    }
    given_back
}

/// Gives back ranges that can go now, in an order, until at least the bytes of `goal` went.
fn evict_in_order<A: DeviceAllocator>(store: &Store<A>, goal: Goal, first: First) -> GivenBack {
    let mut given_back = GivenBack::default();
    if goal.bytes == 0 {
        return given_back;
    }
    let mut found = candidates(store);
    match first {
        First::Oldest(before) => {
            found.retain(|candidate| before.is_none_or(|before| candidate.freed_at < before));
            found.sort_unstable_by_key(|candidate| (candidate.freed_at, candidate.id));
        }
        First::Largest => found.sort_unstable_by_key(|candidate| Reverse(candidate.bytes)),
    }
    for Candidate { shard, id, freed_at, .. } in found {
        if given_back.bytes >= goal.bytes {
            break;
        }
        let rest = Goal { bytes: goal.bytes - given_back.bytes, ..goal };
        given_back += evict_one(store, shard, id, rest, Some(freed_at));
    }
    given_back
}

/// Gives back the smallest run of pages, or segment, that brings free bytes of a shard below the
/// cached limit; the largest if none does. One call to the device at most. `near`: a segment in
/// which memory was just freed, perhaps the last of it.
pub(in crate::store) fn evict_excess<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    near: Option<u32>,
) -> GivenBack {
    let (clock, limit) = (store.allocator.clock(), limit_of(store, at));
    let first = {
        let heap = &mut *store.shards.lock(at);
        let excess = excess(heap, limit);
        if excess == 0 {
            return GivenBack::default();
        }
        if let Some(mut segment) = near.filter(|_| store.layout.pages.is_none()) {
            let end = segment + 1;
            returnable::coalesce_free_segments(
                &mut heap.ranges,
                clock,
                &mut segment,
                end,
                MAX_NODES,
            );
        }
        let found = returnable::pick(&mut heap.ranges, excess);
        let mut ids = found.iter().map(|found| found.id);
        ids.find(|id| heap.ranges.is_submitted(clock, *id))
    };
    let Some(id) = first else { return GivenBack::default() };
    evict_one(store, at, id, Goal::all(Reason::Bound), None)
}

/// Bytes that may be free in a shard of an arena. What became free without a free, such as the rest
/// of a new segment, takes its lease here.
fn limit_of<A: DeviceAllocator>(store: &Store<A>, at: usize) -> u64 {
    let limit = sums::read_limit(store);
    if store.shards.count() == 1 || limit.bytes == u64::MAX {
        return limit.bytes;
    }
    let (kept, lease) = {
        let heap = store.shards.lock(at);
        (heap.kept(), heap.lease)
    };
    if kept <= lease {
        return lease;
    }
    leases::lease(store, at, kept - lease, limit);
    store.shards.lock(at).lease
}

/// Gives back all ranges that are above the cached limit: of all shards, or, for a request of the
/// shard `of`, of that and of those in which no thread is when they are looked at.
pub(in crate::store) fn evict_to_limit<A: DeviceAllocator>(
    store: &Store<A>,
    of: Option<usize>,
) -> GivenBack {
    let mut given_back = GivenBack::default();
    if !store.layout.is_arena() || store.is_unlimited() {
        return given_back; // no block is kept above it
    }
    for at in 0..store.shards.count() {
        if store.shards.lock_for(at, of).is_none() {
            continue;
        }
        let limit = limit_of(store, at);
        if excess(&store.shards.lock(at), limit) == 0 {
            continue;
        }
        coalesce_free_segments(store, at);
        // A call looks at a portion of the lists.
        let portions = store.shards.lock(at).ranges.lists.portions();
        let mut failed = 0;
        while failed <= portions {
            let went = evict_excess(store, at, None);
            given_back += went;
            failed = if went.bytes == 0 { failed + 1 } else { 0 };
        }
    }
    given_back
}

/// Gives a free segment back, or pages of a free range that hold `bytes` bytes, or all of them;
/// nothing if it is not free any more, or was freed at another time than `freed_at`. What is
/// behind work that is not submitted stays.
fn evict_one<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    id: u32,
    goal: Goal,
    freed_at: Option<u64>,
) -> GivenBack {
    let evicted = u64::from(store.settings.statistics);
    let Some(pages) = &store.layout.pages else {
        let (removed, _in_transit) = {
            let heap = &mut *store.shards.lock(at);
            if !may_go(heap, store.allocator.clock(), id, freed_at) {
                return GivenBack::default();
            }
            let Some(removed) = heap.remove_segment(id) else { return GivenBack::default() };
            heap.counts.evictions += evicted;
            (removed, store.leaves(heap))
        };
        return device::free(store, at, removed, Some(goal.reason));
    };
    let taken = {
        let heap = &mut *store.shards.lock(at);
        if !may_go(heap, store.allocator.clock(), id, freed_at) {
            return GivenBack::default();
        }
        let Some(piece) = take_pages(heap, id, goal.bytes) else { return GivenBack::default() };
        heap.counts.evictions += evicted;
        Pieces::new(store, heap, vec![piece])
    };
    // A limit is kept when the work is done; only want of memory and the program's call wait.
    let in_time = matches!(goal.reason, Reason::Bound | Reason::Age);
    let wait = !(in_time && pages.handles == Handles::Commit);
    pieces::decommit(store, pages, taken, wait, goal.reason)
}

/// Coalesces free neighbours that share a page, a portion under the lock at a time: what two
/// streams used of one page goes back with it.
fn coalesce_pages<A: DeviceAllocator>(store: &Store<A>) {
    let clock = store.allocator.clock();
    for at in 0..store.shards.count() {
        let mut next = Some(0);
        while let Some(from) = next {
            next = returnable::coalesce_pages(
                &mut store.shards.lock(at).ranges,
                clock,
                from,
                MAX_NODES / 8,
            );
        }
    }
}

/// Coalesces all segments of a shard that are wholly free, a portion under the lock at a time.
fn coalesce_free_segments<A: DeviceAllocator>(store: &Store<A>, at: usize) {
    let (clock, mut segment) = (store.allocator.clock(), 0);
    let mut more = store.layout.pages.is_none();
    while more {
        let ranges = &mut store.shards.lock(at).ranges;
        more = returnable::coalesce_free_segments(ranges, clock, &mut segment, u32::MAX, MAX_NODES);
    }
}

/// Finds the free ranges that can go back: with pages those that hold one, else whole segments.
fn candidates<A: DeviceAllocator>(store: &Store<A>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for shard in 0..store.shards.count() {
        coalesce_free_segments(store, shard);
        let mut next = Some(0);
        while let Some(from) = next {
            let heap = store.shards.lock(shard);
            let (aged, more) = returnable::aged(&heap.ranges, from, MAX_NODES);
            found.extend(aged.into_iter().map(|(freed_at, id)| {
                let bytes = heap.ranges.nodes[id].bytes;
                Candidate { shard, id, freed_at, bytes }
            }));
            next = more;
        }
    }
    found
}

/// Before `bytes` more are taken from the device: gives back segments that have been free for
/// as long as the average of those that are, or longer, until the pool holds at most its share
/// of the limit, or of the device's memory where that is less.
pub(in crate::store) fn collect_garbage<A: DeviceAllocator>(store: &Store<A>, bytes: u64) {
    let share = store.layout.arena.as_ref().and_then(|arena| arena.gc_threshold);
    let Some(share) = share else { return };
    let (limit, reserved) = (store.ledger.limit(), store.ledger.reserved());
    let limit = limit.min(store.allocator.total_bytes().unwrap_or(u64::MAX));
    if limit == u64::MAX {
        return; // nothing that it could be a share of
    }
    let wanted = reserved.saturating_add(bytes);
    if wanted as f64 <= limit as f64 * share {
        return;
    }
    let found = candidates(store);
    if found.is_empty() {
        return;
    }
    let sum: u64 = found.iter().map(|candidate| candidate.freed_at).sum();
    let average = sum / found.len() as u64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a limit, which saturates"
    )]
    let most = (limit as f64 * share) as u64;
    // The next device call reports a refusal.
    let goal = Goal { bytes: wanted.saturating_sub(most), reason: Reason::Shortage };
    let _ = evict_in_order(store, goal, First::Oldest(Some(average + 1)));
}

/// How far free ranges are above the limit.
fn excess<A: DeviceAllocator>(heap: &Heap<A>, limit: u64) -> u64 {
    heap.ranges.cached.saturating_sub(if heap.closed { 0 } else { limit })
}

/// Whether a range is free since `freed_at`, or at all, behind submitted work.
fn may_go<A: DeviceAllocator>(
    heap: &Heap<A>,
    clock: &A::Clock,
    id: u32,
    freed_at: Option<u64>,
) -> bool {
    let same = freed_at.is_none_or(|then| heap.ranges.nodes[id].freed_at == then);
    same && heap.ranges.is_free(id) && heap.ranges.is_submitted(clock, id)
}

/// Takes pages out of the end of a free range: as many as hold `bytes` bytes, or all.
fn take_pages<A: DeviceAllocator>(heap: &mut Heap<A>, id: u32, bytes: u64) -> Option<Piece<A>> {
    let part = returnable::end_of(&heap.ranges, id, bytes);
    if part.is_empty() {
        return None;
    }
    let id = heap.ranges.carve(id, &part)?;
    pieces::piece(heap, id)
}
