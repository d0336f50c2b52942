//! The full check of a store: accounts, limits, lists and uses.
#![expect(clippy::panic, reason = "a check panics at what it finds")]

use crate::block::flags::{BYPASS, CLEAN, ELSEWHERE};
use crate::block::record::Record;
use crate::port::DeviceAllocator;
use crate::store::{Store, sums};
use crate::sys::atomic::Ordering::Relaxed;
use std::collections::HashMap;

/// What the full check of a pool found inside: figures that a pool does not report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// Blocks that buffers have.
    pub live: BlockSum,
    /// Free memory of each shard.
    pub free_by_shard: Vec<BlockSum>,
    /// Marks that all memory of some private pool is ordered after.
    pub marks_of_private_pools: usize,
    /// Streams that are bound to private pools: while there are any, each request looks for its own.
    pub bound_streams: usize,
    /// Kinds and sizes of whose bucket limit shards have leased places.
    pub leased_buckets: usize,
    /// The most ranges that a call looked at under one lock since the last check; 0 in a build
    /// without debug assertions, which does not count them.
    pub most_visits: usize,
}

/// A number of blocks, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two numbers")]
pub struct BlockSum {
    /// How many blocks.
    pub blocks: u64,
    /// The sum of their bytes.
    pub bytes: u64,
}

impl BlockSum {
    fn add(&mut self, blocks: u64, bytes: u64) {
        self.blocks += blocks;
        self.bytes += bytes;
    }
}

/// Sums over the heaps of all shards, in bytes.
#[derive(Default)]
struct Heaps {
    /// Of ranges.
    has: u64,
    private_ranges: u64,
    /// Of free whole blocks.
    kept: u64,
    leased: u64,
    closed: bool,
}

/// Panics at the first thing that is wrong, if no other thread is inside the store.
pub(crate) fn check<A: DeviceAllocator>(store: &Store<A>) -> Checked {
    let (marks_of_private_pools, bound_streams) = store.privates.count_marks_and_streams();
    let mut inside = Checked { marks_of_private_pools, bound_streams, ..Checked::default() };
    let (mut private, mut has) = (BlockSum::default(), 0);
    for (_, bytes) in store.owned.lock().iter() {
        inside.live.add(1, bytes); // those that are not live are taken out below
        has += bytes;
    }
    store.privates.each(|record| {
        private.add(1, record.bytes);
        if record.part().is_none() {
            inside.live.blocks -= 1;
            inside.live.bytes -= record.bytes;
        }
    });
    let limit = sums::cached_limit(store);
    let mut all = Heaps::default();
    for at in 0..store.shards.count() {
        check_heap(store, at, &mut inside, &mut all);
    }
    has += all.has;
    inside.leased_buckets = check_places(store);
    let sum = sums::sum(store);
    let (live, allocated) = (sum.accounts.live.now().0, sum.accounts.allocated.now().0);
    let expected = (inside.live.bytes, inside.live.blocks);
    assert_eq!((allocated, live), expected, "bytes and number of live buffers");
    let requested = sum.accounts.requested.now().0;
    assert!(requested <= inside.live.bytes, "{requested} of {} requested", inside.live.bytes);
    if store.layout.is_arena() {
        assert_eq!(all.private_ranges, private.bytes, "bytes of private pools");
    }
    let lost = sum.counts.lost_bytes;
    assert_eq!(has + lost, store.ledger.reserved(), "every reserved byte is accounted for");
    if let Err(wrong) = store.ledger.check() {
        panic!("{wrong}");
    }
    // With an arena, what exceeds the limit may be parts of segments that are in use.
    if !store.is_unlimited() && !all.closed {
        assert!(all.kept <= limit, "{} bytes free, of {limit}", all.kept);
        check_leases(store, all.leased, limit);
    }
    inside
}

/// Checks the heap of a shard, and adds it up.
fn check_heap<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    inside: &mut Checked,
    all: &mut Heaps,
) {
    let heap = store.shards.lock(at);
    all.closed |= heap.closed;
    #[cfg(debug_assertions)]
    {
        inside.most_visits = inside.most_visits.max(heap.ranges.most_visits());
    }
    let ranges = heap.ranges.check(store.allocator.clock());
    #[cfg(debug_assertions)]
    heap.ranges.most_visits(); // those of this check
    heap.blocks.check();
    let mut free = BlockSum { blocks: ranges.free_ranges, bytes: ranges.free };
    for record in heap.blocks.iter() {
        check_free(record, 0);
        free.add(1, record.bytes);
        inside.live.blocks -= 1;
        inside.live.bytes -= record.bytes;
    }
    let mut deferred = 0;
    for record in &heap.deferred {
        check_free(record, BYPASS);
        deferred += record.bytes;
        inside.live.blocks -= 1;
        inside.live.bytes -= record.bytes;
    }
    assert_eq!(deferred, heap.deferred_bytes, "deferred frees of shard {at}");
    inside.live.add(ranges.live_ranges, ranges.live);
    assert_eq!(ranges.moving, 0, "bytes on their way, and no thread is inside");
    all.has += ranges.live + ranges.private + ranges.free;
    all.private_ranges += ranges.private;
    all.kept += heap.blocks.bytes;
    all.leased += if store.is_unlimited() { 0 } else { heap.lease };
    inside.free_by_shard.push(free);
}

/// Returns of how many buckets places are leased.
fn check_places<A: DeviceAllocator>(store: &Store<A>) -> usize {
    let mut places = HashMap::new();
    for at in 0..store.shards.count() {
        for (class, of_class, count) in store.shards.lock(at).blocks.table.places_of_all() {
            assert!(count <= of_class, "{count} blocks of {class:?} in {of_class} places");
            *places.entry(class).or_default() += of_class;
        }
    }
    let leased = store.places.leased();
    for (class, leased) in &leased {
        let most = store.settings.rules.bucket.of(class.1);
        assert!(*leased as usize <= most, "{leased} places of {class:?}, of {most}");
    }
    assert_eq!(places, leased, "places that shards have leased");
    leased.len()
}

fn check_leases<A: DeviceAllocator>(store: &Store<A>, leased: u64, limit: u64) {
    if store.shards.count() > 1 && !store.layout.is_arena() {
        assert_eq!(leased, store.leased.load(Relaxed), "bytes that shards have leased");
        assert!(leased <= limit, "{leased} bytes leased, of {limit}");
    }
}

/// A free block is in use no more, and its flags say so; `may` be set are flags of where it is.
fn check_free<A: DeviceAllocator>(record: &Record<A>, may: u32) {
    let uses = record.marks.lock();
    assert!(!uses.has_open_uses(), "a free block is in use");
    assert!(record.private().is_none(), "a block of a private pool is free");
    let elsewhere = if uses.has_others() { ELSEWHERE } else { 0 };
    assert_eq!(record.flags.get() & !(CLEAN | may), elsewhere, "flags of a free block");
}
