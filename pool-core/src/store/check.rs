//! The full check of a store: accounts, limits, lists and uses.
#![expect(clippy::panic, reason = "a check panics at what it finds")]

use crate::block::flags::{BYPASS, CLEAN, ELSEWHERE};
use crate::block::record::Record;
use crate::port::DeviceAllocator;
use crate::store::Store;
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

impl<A: DeviceAllocator> Store<A> {
    /// Panics at the first thing that is wrong, if no other thread is inside the store.
    pub(crate) fn check(&self) -> Checked {
        let (marks_of_private_pools, bound_streams) = self.privates.count_marks_and_streams();
        let mut inside = Checked { marks_of_private_pools, bound_streams, ..Checked::default() };
        let (mut private, mut has) = (BlockSum::default(), 0);
        for (_, bytes) in self.owned.lock().iter() {
            inside.live.add(1, bytes); // those that are not live are taken out below
            has += bytes;
        }
        self.privates.each(|record| {
            private.add(1, record.bytes);
            if record.part().is_none() {
                inside.live.blocks -= 1;
                inside.live.bytes -= record.bytes;
            }
        });
        let limit = self.cached_limit();
        let (mut private_ranges, mut kept, mut leased, mut closed) = (0, 0, 0, false);
        for at in 0..self.shards.count() {
            let state = self.shards.lock(at);
            closed |= state.closed;
            #[cfg(debug_assertions)]
            {
                inside.most_visits = inside.most_visits.max(state.ranges.most_visits());
            }
            let ranges = state.ranges.check(self.allocator.clock());
            #[cfg(debug_assertions)]
            state.ranges.most_visits(); // those of this check
            state.blocks.check();
            let mut free = BlockSum { blocks: ranges.free_ranges, bytes: ranges.free };
            for record in state.blocks.iter() {
                check_free(record, 0);
                free.add(1, record.bytes);
                inside.live.blocks -= 1;
                inside.live.bytes -= record.bytes;
            }
            let mut deferred = 0;
            for record in &state.deferred {
                check_free(record, BYPASS);
                deferred += record.bytes;
                inside.live.blocks -= 1;
                inside.live.bytes -= record.bytes;
            }
            assert_eq!(deferred, state.deferred_bytes, "deferred frees of shard {at}");
            inside.live.add(ranges.live_ranges, ranges.live);
            assert_eq!(ranges.moving, 0, "bytes on their way, and no thread is inside");
            has += ranges.live + ranges.private + ranges.free;
            private_ranges += ranges.private;
            kept += state.blocks.bytes;
            leased += if self.is_unlimited() { 0 } else { state.lease };
            inside.free_by_shard.push(free);
        }
        inside.leased_buckets = self.check_places();
        let sum = self.sum();
        let (live, allocated) = (sum.accounts.live.now().0, sum.accounts.allocated.now().0);
        let expected = (inside.live.bytes, inside.live.blocks);
        assert_eq!((allocated, live), expected, "bytes and number of live buffers");
        let requested = sum.accounts.requested.now().0;
        assert!(requested <= inside.live.bytes, "{requested} of {} requested", inside.live.bytes);
        if self.shape.is_arena() {
            assert_eq!(private_ranges, private.bytes, "bytes of private pools");
        }
        let lost = sum.counts.lost_bytes;
        assert_eq!(has + lost, self.ledger.reserved(), "every reserved byte is accounted for");
        if let Err(wrong) = self.ledger.check() {
            panic!("{wrong}");
        }
        // With an arena, what exceeds the limit may be parts of segments that are in use.
        if !self.is_unlimited() && !closed {
            assert!(kept <= limit, "{kept} bytes free, of {limit}");
            self.check_leases(leased, limit);
        }
        inside
    }

    /// Returns of how many buckets places are leased.
    fn check_places(&self) -> usize {
        let mut places = HashMap::new();
        for at in 0..self.shards.count() {
            for (class, of_class, count) in self.shards.lock(at).blocks.places_of_all() {
                assert!(count <= of_class, "{count} blocks of {class:?} in {of_class} places");
                *places.entry(class).or_default() += of_class;
            }
        }
        let leased = self.places.leased();
        for (class, leased) in &leased {
            let most = self.bounds.keeping.bucket.of(class.1);
            assert!(*leased as usize <= most, "{leased} places of {class:?}, of {most}");
        }
        assert_eq!(places, leased, "places that shards have leased");
        leased.len()
    }

    fn check_leases(&self, leased: u64, limit: u64) {
        if self.shards.count() > 1 && !self.shape.is_arena() {
            assert_eq!(leased, self.leased.load(Relaxed), "bytes that shards have leased");
            assert!(leased <= limit, "{leased} bytes leased, of {limit}");
        }
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
