//! Blocks that go from thread caches to the book, and from one cache to another, many at once.

use crate::heap::block::record::RecordOwner;
use crate::heap::block::request::{Key, PoolRequest};
use crate::heap::cache::ThreadCache;
use crate::heap::store::book::BookState;
use crate::heap::store::book::lease::PORTION_LIKE;
use crate::port::{DeviceAllocator, StreamClock};

/// Fewer blocks of a size do not go to the transfer cache.
const TRANSFER_LEAST: u64 = if cfg!(shuttle) { 2 } else { 16 };
/// Nor do more than these, which a look at the transfer cache would take one by one.
const TRANSFER_MOST: u64 = 1024;
/// Blocks of a size in the transfer cache from which on no more are put there.
const TRANSFER_FULL: u64 = if cfg!(shuttle) { 4 } else { 256 };

impl<A: DeviceAllocator> BookState<A> {
    /// Moves at most `most` of the blocks of a cache into the book, as `pop` takes them out.
    /// Returns how many.
    pub(super) fn take_back(
        &mut self,
        clock: &A::Clock,
        cache: &mut ThreadCache<A>,
        most: usize,
        mut pop: impl FnMut(&mut ThreadCache<A>) -> Option<RecordOwner<A>>,
    ) -> usize {
        let mut records: Vec<_> = std::iter::from_fn(|| pop(cache)).take(most).collect();
        records.sort_unstable_by_key(|record| record.stamp);
        let (count, mut bytes) = (records.len(), 0);
        for mut record in records {
            let marks = record.marks.get_mut().pending(A::MEMORY.cpu_touches);
            let when = (record.unzeroed, record.turn);
            let range = record.part.range;
            bytes += record.bytes;
            if cache.is_limited() {
                let stream_id = clock.stream_id(record.marks.get_mut().own());
                self.end_bin_leases(Key { kind: record.kind, stream_id }, record.bytes, 1);
            }
            // Before the range is free: from then on its slot may be another owner's.
            record.vacate();
            self.book.free_cached(clock, range, marks, when);
        }
        if self.book.config.is_blocks() {
            // The cached limit counts them as free from now on.
            let lease = cache.lease.saturating_sub(bytes);
            self.leased -= std::mem::replace(&mut cache.lease, lease) - lease;
        }
        count
    }

    /// Moves a bounded number of blocks of a cache into the book that may serve a request.
    /// Returns how many.
    pub(super) fn take_back_like(
        &mut self,
        clock: &A::Clock,
        cache: &mut ThreadCache<A>,
        request: &PoolRequest<'_, A>,
    ) -> usize {
        let (kind, sizes, mut from) = (request.key.kind, request.sizes(), 0);
        self.take_back(clock, cache, PORTION_LIKE, |cache| cache.pop_like(kind, &sizes, &mut from))
    }

    /// Puts all blocks of a size in the transfer cache, with the lease for them, where a thread
    /// finds them that takes such blocks: so neither it nor the one that frees them has a step
    /// under the lock for each. Returns whether they went.
    pub(super) fn put_in_transfer_cache(
        &mut self,
        cache: &mut ThreadCache<A>,
        (key, bytes): (Key<A::Kind>, u64),
    ) -> bool {
        if cache.is_limited() {
            return false;
        }
        let transfer = self.transfer.get_or_insert_with(Box::default);
        let (here, there) = (cache.count(key, bytes), transfer.count(key, bytes));
        let is_worth = (TRANSFER_LEAST..=TRANSFER_MOST).contains(&here);
        let goes = !cache.is_closed() && is_worth && there < TRANSFER_FULL;
        let moved = if goes { cache.hand_over(transfer, key, bytes) } else { 0 };
        (transfer.lease, cache.lease) = (transfer.lease + moved, cache.lease - moved);
        moved > 0
    }

    /// Takes all blocks of a size from the transfer cache into a cache that has none. Returns
    /// whether there were any.
    pub(super) fn take_from_transfer_cache(
        &mut self,
        cache: &mut ThreadCache<A>,
        (key, bytes): (Key<A::Kind>, u64),
    ) -> bool {
        let Some(transfer) = self.transfer.as_mut().filter(|transfer| transfer.cached_bytes() > 0)
        else {
            return false;
        };
        if cache.is_closed() || cache.count(key, bytes) > 0 {
            return false;
        }
        let moved = transfer.hand_over(cache, key, bytes);
        let lease = cache.lease.max(cache.cached_bytes());
        transfer.lease -= moved;
        self.leased = self.leased - moved + lease - cache.lease;
        cache.lease = lease;
        moved > 0
    }

    /// Moves blocks of the transfer cache into the book, as `move_some` does it. Returns how many.
    pub(super) fn drain_transfer_cache(
        &mut self,
        move_some: impl FnOnce(&mut Self, &mut ThreadCache<A>) -> usize,
    ) -> usize {
        let Some(mut transfer) = self.transfer.take() else { return 0 };
        let blocks = move_some(self, &mut transfer);
        self.transfer = Some(transfer);
        blocks
    }
}
