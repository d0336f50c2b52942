//! Blocks that are freed: which of them stay, and which go back to the device.

use crate::block::Key;
use crate::block::record::RecordOwner;
use crate::limits::{Buckets, FullBucket, FullPool};
use crate::port::DeviceAllocator;
use crate::port::MarkOf;
use crate::shard::Heap;
use crate::stream::Pending;

/// Blocks that are evicted for one at most.
pub(crate) const MAX_EVICTIONS: usize = 64;

/// What a shard needs of a pool's settings to keep a block or not.
#[derive(Debug)]
pub(crate) struct KeepRules {
    pub(crate) bucket: Buckets,
    /// Whether that is a limit.
    pub(crate) limits_buckets: bool,
    pub(crate) full_bucket: FullBucket,
    pub(crate) full_pool: FullPool,
    pub(crate) statistics: bool,
}

impl<A: DeviceAllocator> Heap<A> {
    /// Frees a part of a segment that a buffer gives back, if it stays without any other going. Returns it
    /// otherwise.
    #[inline]
    pub(crate) fn free_part(
        &mut self,
        clock: &A::Clock,
        record: RecordOwner<A>,
    ) -> Result<(), RecordOwner<A>> {
        let (bytes, requested) = (record.bytes, record.requested);
        if self.ranges.cached + bytes > self.lease {
            return Err(record);
        }
        self.free_range(clock, record);
        self.accounts.freed(bytes, requested);
        self.accounts.live.down(1);
        Ok(())
    }

    /// Makes the range of a block free.
    #[inline]
    pub(crate) fn free_range(&mut self, clock: &A::Clock, mut record: RecordOwner<A>) {
        let after: Pending<MarkOf<A>> = record.marks.get_mut().pending(A::MEMORY.cpu_touches);
        let (dirty, freed_at) = (!record.is_clean(), record.freed_at);
        let range = record.part().map(|part| part.range);
        invariant!(range.is_some(), "what a shard of ranges takes back is a part of a segment");
        let Some(range) = range else { return };
        // Before the range is free: from then on its slot may be another owner's.
        record.vacate();
        self.ranges.free(clock, range, after, (dirty, freed_at));
    }

    /// Keeps a whole block that has room in the lease and needs no other judgement.
    pub(crate) fn push(&mut self, key: Key<A::Kind>, record: RecordOwner<A>) {
        self.blocks.push(key, record);
        self.count_kept();
    }

    /// Keeps a whole block if the limits allow it, for which it evicts others; else defers its free.
    /// Returns whether it stays. `limit`: bytes that may be free in
    /// the pool.
    pub(crate) fn push_or_defer(
        &mut self,
        key: Key<A::Kind>,
        record: RecordOwner<A>,
        limit: u64,
        rules: &KeepRules,
    ) -> bool {
        let bytes = record.bytes;
        if self.closed || !record.is_pooled() {
            self.defer(record);
            return false;
        }
        let refuses = rules.full_pool == FullPool::RefuseNewest;
        let stays = bytes <= rules.full_pool.largest(limit).min(self.lease)
            && !(refuses && self.blocks.bytes > self.lease - bytes)
            && self.makes_room_in_bucket(key, bytes, rules)
            && self.evict_down_to(self.lease - bytes, rules);
        if stays {
            self.push(key, record);
        } else {
            self.evict(record, rules);
        }
        stays
    }

    /// Whether a whole block that is freed may stay if there is room for it.
    pub(crate) fn may_stay(
        &mut self,
        clock: &A::Clock,
        record: &mut RecordOwner<A>,
        limit: u64,
        rules: &KeepRules,
    ) -> bool {
        let (bytes, key) = (record.bytes, Self::key_of(clock, record));
        let refuses = rules.full_bucket == FullBucket::RefuseNewest;
        record.is_pooled()
            && !self.closed
            && bytes <= rules.full_pool.largest(limit)
            && !(refuses && self.is_bucket_full(key, bytes, rules))
    }

    /// Whether a bucket has as many blocks as its limit, or as its shard leased places.
    #[inline(never)]
    pub(crate) fn is_bucket_full(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        rules: &KeepRules,
    ) -> bool {
        match rules.bucket.of(bytes) {
            usize::MAX => false,
            _ if self.leases_places => self.blocks.table.has_no_place(key, bytes),
            most => self.blocks.count_of(key, bytes) >= most,
        }
    }

    /// Whether a bucket has room for one block more, or gets it.
    fn makes_room_in_bucket(&mut self, key: Key<A::Kind>, bytes: u64, rules: &KeepRules) -> bool {
        if !self.is_bucket_full(key, bytes, rules) {
            return true;
        }
        if rules.full_bucket == FullBucket::RefuseNewest {
            return false;
        }
        let oldest = self.blocks.pop_oldest_of(key, bytes);
        let found = oldest.is_some();
        if let Some(oldest) = oldest {
            self.evict(oldest, rules);
        }
        found
    }

    /// Evicts until free blocks have at most `bytes` bytes, of the oldest few the largest first. Evicts
    /// none and returns false if so many of the oldest as may go for one block are not enough.
    pub(crate) fn evict_down_to(&mut self, bytes: u64, rules: &KeepRules) -> bool {
        let excess = self.blocks.bytes.saturating_sub(bytes);
        if excess > 0 && excess > self.blocks.bytes_of_oldest(MAX_EVICTIONS) {
            return false;
        }
        while self.blocks.bytes > bytes
            && let Some(record) = self.blocks.pop_to_evict()
        {
            self.evict(record, rules);
        }
        true
    }

    /// Notes that a free block goes back to the device, since others need its room.
    pub(crate) fn evict(&mut self, record: RecordOwner<A>, rules: &KeepRules) {
        self.counts.evictions += u64::from(rules.statistics);
        self.defer(record);
    }

    /// Notes that a block is to go back to the device.
    pub(crate) fn defer(&mut self, record: RecordOwner<A>) {
        self.deferred_bytes += record.bytes;
        self.deferred.push(record);
    }

    /// Takes a deferred block out of which `goes` says that it may go now, of those below number `below`, which
    /// becomes its own: calls in a row look at each once, and not at what is deferred meanwhile.
    pub(crate) fn pop_deferred(
        &mut self,
        below: &mut usize,
        mut goes: impl FnMut(&mut RecordOwner<A>) -> bool,
    ) -> Option<RecordOwner<A>> {
        let end = self.deferred.len().min(*below);
        let at = self.deferred[..end].iter_mut().rposition(&mut goes)?;
        *below = at;
        let record = self.deferred.swap_remove(at);
        self.deferred_bytes -= record.bytes;
        Some(record)
    }
}
