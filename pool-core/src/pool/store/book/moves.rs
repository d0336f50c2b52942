//! Blocks that go from thread caches to the book and back, many at once.

use super::BookState;
use super::lease::PORTION_LIKE;
use crate::block::record::RecordOwner;
use crate::block::request::{Key, Want};
use crate::book::BookRequest;
use crate::cache::ThreadCache;
use crate::device::DeviceAllocator;
use crate::pool::store::Bounds;
use crate::stream::clock::StreamClock;
use crate::stream::order::Taker;

/// Blocks that a thread which only takes gets at once, beyond the one that it requested.
const REFILL: usize = 32;
/// A thread that takes this many blocks for each that it frees only takes.
const TAKES_FOR_A_FREE: u64 = 8;

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
            let marks = record.marks.get_mut().after(A::MEMORY.cpu_touches);
            let when = (record.dirty, record.turn);
            let range = record.part.range;
            bytes += record.bytes;
            if cache.is_limited() {
                let lane = clock.lane(record.marks.get_mut().home());
                self.end_rooms(Key { kind: record.kind, lane }, record.bytes, 1);
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
        want: &Want<'_, A>,
    ) -> usize {
        let (kind, sizes, mut from) = (want.key.kind, want.sizes(), 0);
        self.take_back(clock, cache, PORTION_LIKE, |cache| cache.pop_like(kind, &sizes, &mut from))
    }

    /// Moves free blocks of the size of a request into the cache of a thread that only takes, so
    /// that it and those that free do not meet at the lock for each block.
    pub(super) fn refill(
        &mut self,
        cache: &mut ThreadCache<A>,
        want: &Want<'_, A>,
        (request, taker): (&BookRequest<A::Kind>, &Taker<'_, A::Clock>),
        bounds: &Bounds,
    ) {
        let bytes = want.class.bytes;
        let refills = cache.only_takes(TAKES_FOR_A_FREE)
            && !cache.is_limited()
            && request.up_to == bytes
            && cache.makes_bin(want.key, bytes);
        for _ in 0..if refills { REFILL } else { 0 } {
            if !self.lease_one_more(cache, bytes, bounds) {
                return;
            }
            let Some(id) = self.book.take(request, taker) else { return };
            self.book.move_to_cache(bytes);
            let freed_at = self.book.nodes[id].freed_at;
            let Some(mut record) = self.record(id, want, taker.clock) else { return };
            record.turn = freed_at;
            // There is a bin, and it has room.
            drop(cache.put_counted(want.key, record, 0));
        }
    }
}
