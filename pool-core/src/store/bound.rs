//! What a pool has from the device of each size, and how much of it was ever needed at once: by that
//! its shards are bounded where memory is cheap to make. Below 1.5 times what was needed ([`Rule`]) a miss
//! asks the device alone; above it the miss takes over what other shards have free (`steal.rs`).
//!
//! What is needed rises when a search of all shards found nothing, or a count found little free: one heap would have
//! taken that much too. Where a block serves its own size only, a size is a class; where larger ones serve,
//! sizes between two powers of two are one class; an arena is one class.

use crate::block::PoolRequest;
use crate::port::{DeviceAllocator, StreamClock};
use crate::store::{Store, sums};
use crate::sys::Mutex;
use std::collections::HashMap;

/// Whether a shard of an arena takes memory from the device rather than from shards that are in
/// use. Where the arena bounds what it has from the device: within the bounds, or while the shard
/// has less than its part of that. What others have too much goes back then.
pub(super) fn may_grow_alone<A: DeviceAllocator>(
    store: &Store<A>,
    home: usize,
    request: &PoolRequest<'_, A>,
) -> bool {
    let Some(arena) = &store.layout.arena else { return false };
    let bytes = request.class.bytes;
    let Some(page) = store.layout.page_bytes() else {
        return may_take_segment(store, home, arena.segment_bytes(bytes).unwrap_or(bytes));
    };
    let missing = store.layout.bytes_to_grow(bytes);
    let own = store.shards.lock(home).ranges.committed();
    let used = sums::used(store).1;
    let most = arena.committed_limit(used, page, split_apart(store));
    // Beside the slack, which is free when all is used.
    let free = most.saturating_sub(used) + used / PART_FREE;
    store.ledger.reserved().saturating_add(missing) <= most
        || takes_its_part(store, home, (own, missing), most, free)
}

/// Whether a shard of an arena takes a segment without a look at the others.
pub(super) fn may_take_segment<A: DeviceAllocator>(
    store: &Store<A>,
    home: usize,
    segment: u64,
) -> bool {
    if store.shards.count() == 1 {
        return false;
    }
    let own = || store.shards.lock(home).ranges.committed();
    let most = arena_most(store);
    arena_may_buy(store, segment)
        || takes_its_part(store, home, (own(), segment), most, most / PART_FREE)
}

/// How many shards of an arena are split each by itself and need slack for that. In memory with
/// streams a part of the slack is for pages that these still use.
pub(super) fn split_apart<A: DeviceAllocator>(store: &Store<A>) -> usize {
    if A::Clock::HAS_STREAMS { 1 } else { store.shards.count() }
}

/// The share of its memory that an arena may have free beside its slack while a shard still takes its
/// part from the device.
const PART_FREE: u64 = 4;

/// The figures of a class.
struct Rule {
    /// What shards may have together without a search, as a multiple of what was needed at once.
    slack: f64,
    /// At one take-over in this many the free blocks of the class are counted.
    takes_to_count: u32,
    /// Blocks by which a count raises what is needed at most.
    most_at_once: u64,
}

/// Where a block serves its own size.
const ONE_SIZE: Rule = Rule { slack: 1.5, takes_to_count: 4, most_at_once: 8 };
/// Where larger blocks serve. A class has many sizes to count, and blocks of it that serve smaller ones
/// count as needed, where one heap would have smaller blocks.
const MANY_SIZES: Rule = Rule { slack: 1.35, takes_to_count: 32, most_at_once: 1 };

/// Bytes of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    owned: u64,
    /// Of them those that were needed at once.
    needed: u64,
    /// The shard that gave blocks last, and how often any did.
    from: usize,
    takes: u32,
}

/// Whether `bytes` more are within `slack` times what was needed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates"
)]
fn within(slack: f64, owned: u64, bytes: u64, needed: u64) -> bool {
    owned.saturating_add(bytes) <= (needed as f64 * slack) as u64
}

/// The classes of a pool. The lock of a shard may be held where this one is taken, not the other way.
#[derive(Debug)]
pub(crate) struct Totals<K>(Mutex<HashMap<(K, u64), Total>>);

impl<K> Totals<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

/// How a miss goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// It asks the device.
    Buys,
    /// It searches the other shards, from this one on; with `counts`, after it has counted what is free.
    Searches { first: usize, counts: bool },
}

/// Whether whole blocks move between shards, and are bounded by what was needed.
pub(super) fn moves_blocks<A: DeviceAllocator>(store: &Store<A>) -> bool {
    A::MEMORY.is_cheap && !store.layout.is_arena() && store.shards.most() > 1
}

fn class_of<A: DeviceAllocator>(store: &Store<A>, kind: A::Kind, bytes: u64) -> (A::Kind, u64) {
    match store.larger_blocks_serve {
        true => (kind, u64::from(bytes.max(1).ilog2())),
        false => (kind, bytes),
    }
}

/// Counts a whole block that came from the device.
pub(super) fn note_owned<A: DeviceAllocator>(store: &Store<A>, kind: A::Kind, bytes: u64) {
    if moves_blocks(store) {
        let mut totals = store.totals.0.lock();
        totals.entry(class_of(store, kind, bytes)).or_default().owned += bytes;
    }
}

/// Counts a whole block that goes back.
pub(super) fn note_gone<A: DeviceAllocator>(store: &Store<A>, kind: A::Kind, bytes: u64) {
    if !moves_blocks(store) {
        return;
    }
    let (class, totals) = (class_of(store, kind, bytes), &mut *store.totals.0.lock());
    let total = totals.entry(class).or_default();
    invariant!(total.owned >= bytes, "the bytes of a class are counted until they go back");
    total.owned = total.owned.saturating_sub(bytes);
    total.needed = total.needed.min(total.owned);
    if total.owned == 0 {
        totals.remove(&class);
    }
}

/// Notes that a search of all shards found nothing for a request.
pub(super) fn note_needed<A: DeviceAllocator>(store: &Store<A>, request: &PoolRequest<'_, A>) {
    let bytes = request.class.bytes;
    let mut totals = store.totals.0.lock();
    let total = totals.entry(class_of(store, request.key.kind, bytes)).or_default();
    // By one block: other sizes of the class may be free, or blocks on their way between shards.
    total.needed = (total.needed + bytes).min(total.owned + bytes);
}

/// Forgets a class of which the device gave nothing.
pub(super) fn forget_refused<A: DeviceAllocator>(store: &Store<A>, request: &PoolRequest<'_, A>) {
    if moves_blocks(store) {
        let class = class_of(store, request.key.kind, request.class.bytes);
        let mut totals = store.totals.0.lock();
        if totals.get(&class).is_some_and(|total| total.owned == 0) {
            totals.remove(&class);
        }
    }
}

/// What a miss does. It takes no lock of a shard.
pub(super) fn miss<A: DeviceAllocator>(store: &Store<A>, request: &PoolRequest<'_, A>) -> Miss {
    let bytes = request.class.bytes;
    let class = class_of(store, request.key.kind, bytes);
    let total = store.totals.0.lock().get(&class).copied().unwrap_or_default();
    // With a limit on buckets what other shards have goes first: a block more would go back with
    // the next free.
    let first = total.from;
    if store.settings.rules.limits_buckets {
        return Miss::Searches { first, counts: false };
    }
    if may_buy(store, total, bytes) {
        return Miss::Buys;
    }
    let counts = total.takes.is_multiple_of(rule(store).takes_to_count);
    Miss::Searches { first, counts }
}

/// Notes which shard gave blocks.
pub(super) fn note_taken<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    from: usize,
) {
    let class = class_of(store, request.key.kind, request.class.bytes);
    if let Some(total) = store.totals.0.lock().get_mut(&class) {
        (total.from, total.takes) = (from, total.takes.wrapping_add(1));
    }
}

/// Counts the free blocks of a size in all shards: the others are needed. Returns whether the miss
/// may ask the device by that; not where a thread is in a shard, or has blocks on their way.
pub(super) fn counts_enough<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
) -> bool {
    let (bytes, kind) = (request.class.bytes, request.key.kind);
    let sizes = match store.larger_blocks_serve {
        true => 1 << bytes.max(1).ilog2()..=u64::MAX >> bytes.max(1).leading_zeros(),
        false => bytes..=bytes,
    };
    let mut free = 0;
    for at in 0..store.shards.count() {
        let Some(mut heap) = store.shards.try_lock(at) else { return false };
        free += heap.blocks.bytes_of(kind, &sizes);
    }
    // What a thread has on its way to another shard is in none.
    if store.transit().has_pieces() {
        return false;
    }
    let mut totals = store.totals.0.lock();
    let total = totals.entry(class_of(store, kind, bytes)).or_default();
    // One shard after the other is no snapshot: a block that moved meanwhile is counted nowhere.
    let most = total.needed.saturating_add(bytes.saturating_mul(rule(store).most_at_once));
    let needed = (total.owned.saturating_sub(free) + bytes).min(total.owned).min(most);
    total.needed = total.needed.max(needed);
    may_buy(store, *total, bytes)
}

fn may_buy<A: DeviceAllocator>(store: &Store<A>, total: Total, bytes: u64) -> bool {
    within(rule(store).slack, total.owned, bytes, total.needed)
}

fn rule<A: DeviceAllocator>(store: &Store<A>) -> Rule {
    if store.larger_blocks_serve { MANY_SIZES } else { ONE_SIZE }
}

/// Whether an arena of segments may have so many bytes more without a look at other shards.
pub(super) fn arena_may_buy<A: DeviceAllocator>(store: &Store<A>, missing: u64) -> bool {
    within(ONE_SIZE.slack, store.ledger.reserved(), missing, arena_needs(store))
}

/// What an arena of segments may have in all.
pub(super) fn arena_most<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    let needed = arena_needs(store);
    needed.saturating_add(needed / 2)
}

fn arena_needs<A: DeviceAllocator>(store: &Store<A>) -> u64 {
    let class = (A::Kind::default(), 0);
    let needed = store.totals.0.lock().get(&class).map_or(0, |total| total.needed);
    needed.min(store.ledger.reserved())
}

/// Notes that a search of all shards of an arena found nothing, so that it takes a segment.
pub(super) fn note_arena_needs<A: DeviceAllocator>(store: &Store<A>, segment: u64) {
    let reserved = store.ledger.reserved();
    let mut totals = store.totals.0.lock();
    let total = totals.entry((A::Kind::default(), 0)).or_default();
    total.needed = (total.needed + segment).min(reserved + segment);
}

/// Whether a shard of an arena that has `own` bytes takes its part of `most` from the device, though
/// the pool has that much: others use theirs, and have less free than `free` or than what is
/// missing.
pub(super) fn takes_its_part<A: DeviceAllocator>(
    store: &Store<A>,
    home: usize,
    (own, missing): (u64, u64),
    most: u64,
    free: u64,
) -> bool {
    let others = (0..store.shards.count()).filter(|at| *at != home);
    let used: Vec<u64> = others.map(|at| store.shards.used_of(at)).collect();
    let in_use = used.iter().filter(|used| **used > 0).count() + 1;
    let of_others = store.ledger.reserved().saturating_sub(own + used.iter().sum::<u64>());
    own.saturating_add(missing) <= most / in_use as u64 && of_others < free.max(missing)
}
