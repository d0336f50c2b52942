//! The full check of a store: accounts, limits, lists and uses.
#![expect(clippy::panic, reason = "a check panics at what it finds")]

use crate::heap::block::record::RecordOwner;
use crate::heap::store::Store;
use crate::heap::store::book::BookState;
use crate::limits::CachedLimit;
use crate::port::DeviceAllocator;
use std::collections::BTreeMap;

/// What the full check of a pool found inside: figures that a pool does not report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// Blocks that buffers have.
    pub live: BlockSum,
    /// Blocks that threads have put aside, which a request of theirs finds first.
    pub in_caches: BlockSum,
    /// Their number by size in bytes.
    pub cached_by_size: BTreeMap<u64, usize>,
    /// Bytes that threads may put aside, at most.
    pub leased_bytes: u64,
    /// Bytes of blocks that one thread freed for another to take.
    pub in_transfer_cache: u64,
    /// Marks that all memory of some private pool is ordered after.
    pub marks_of_private_pools: usize,
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

impl<A: DeviceAllocator> Store<A> {
    /// Panics at the first thing that is wrong, if no other thread is inside the store.
    pub(crate) fn check(&self) -> Checked {
        let mut inside = Checked::default();
        for number in self.caches.numbers() {
            let Some(cache) = self.caches.enter(number) else { continue };
            let (bytes, blocks) = (inside.in_caches.bytes, inside.in_caches.blocks);
            cache.each(|record| check_cached(record, &mut inside));
            let (bytes, blocks) =
                (inside.in_caches.bytes - bytes, inside.in_caches.blocks - blocks);
            assert_eq!((cache.cached_bytes(), cache.blocks()), (bytes, blocks), "cache {number}");
            assert!(bytes <= cache.lease, "{bytes} bytes in a lease of {}", cache.lease);
            inside.leased_bytes += cache.lease;
        }
        inside.marks_of_private_pools = self.privates.count_behind();
        let private_bytes = self.privates.all_idle_bytes();
        let mut state = self.book.lock();
        if let Some(transfer) = &state.transfer {
            let before = inside.in_caches.bytes;
            transfer.each(|record| check_cached(record, &mut inside));
            inside.in_transfer_cache = inside.in_caches.bytes - before;
            assert_eq!(transfer.lease, inside.in_transfer_cache, "the transfer cache's lease");
            assert_eq!(transfer.cached_bytes(), inside.in_transfer_cache, "the transfer cache");
            inside.leased_bytes += transfer.lease;
        }
        assert_eq!(state.leased, inside.leased_bytes, "the sum of leases");
        self.check_state(&mut state, private_bytes, &mut inside);
        inside
    }

    fn check_state(&self, state: &mut BookState<A>, private_bytes: u64, inside: &mut Checked) {
        #[cfg(debug_assertions)]
        {
            inside.most_visits = state.book.most_visits();
        }
        let by_state = state.book.check(self.allocator.clock());
        #[cfg(debug_assertions)]
        state.book.most_visits(); // those of this check
        let reading = self.reading(state);
        let BlockSum { bytes: cached, blocks } = inside.in_caches;
        let in_caches = i128::from(state.book.in_caches()) + i128::from(reading.cached);
        assert_eq!(in_caches, i128::from(cached), "bytes in caches, as the book counts them");
        inside.live.bytes = by_state.live - cached;
        inside.live.blocks = by_state.live_ranges - blocks;
        let live = (reading.figures.allocated.now().0, reading.figures.live.now().0);
        let expected = (inside.live.bytes, inside.live.blocks);
        assert_eq!(live, expected, "bytes and number of live buffers");
        let requested = reading.figures.requested.now().0;
        assert!(requested <= inside.live.bytes, "{requested} of {} requested", inside.live.bytes);
        assert_eq!(by_state.private, private_bytes, "bytes of private pools");
        assert_eq!(by_state.moving, 0, "bytes on their way, and no thread is inside");
        let has = by_state.live + by_state.private + by_state.free + by_state.deferred;
        let lost = state.counts.lost_bytes;
        assert_eq!(has + lost, self.ledger.reserved(), "every reserved byte is accounted for");
        if let Err(wrong) = self.ledger.check() {
            panic!("{wrong}");
        }
        // With an arena, what exceeds the limit may be parts of segments that are in use.
        let bounded = !matches!(self.bounds.cached, CachedLimit::Unlimited) && !state.closed;
        if bounded && self.book.is_blocks() {
            let limit = state.cached_limit(self.bounds.cached);
            let kept = by_state.free + inside.leased_bytes;
            assert!(kept <= limit, "{kept} bytes free or leased, of {limit}");
        }
    }
}

/// A block of a thread cache is free for any request of its size.
fn check_cached<A: DeviceAllocator>(record: &RecordOwner<A>, inside: &mut Checked) {
    assert!(!record.marks.lock().has_open_uses(), "a cached block is in use");
    assert!(record.private.is_none() && record.pooled, "no block for a thread cache");
    inside.in_caches.bytes += record.bytes;
    inside.in_caches.blocks += 1;
    *inside.cached_by_size.entry(record.bytes).or_default() += 1;
}
