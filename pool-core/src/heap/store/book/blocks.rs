//! Blocks that are lent whole, in a pool without an arena: which of the freed ones stay, and how
//! the others go back to the device.
#![expect(unsafe_code, reason = "the block of a segment leaves its box")]

use crate::heap::block::record::RecordOwner;
use crate::heap::block::request::{Key, PoolRequest};
use crate::heap::cache::ThreadCache;
use crate::heap::store::book::BookState;
use crate::heap::store::book::give_back::RemovedSegment;
use crate::heap::store::{Bounds, Store};
use crate::limits::{FullBucket, GivenBack, InTransit};
use crate::observe::Reason;
use crate::port::{DeviceAllocator, DeviceError, Limit, MarkOf, StreamClock};
use crate::stream::Pending;
use crate::sys::LockGuard;

/// Blocks that are evicted for one at most.
const EVICTIONS: usize = 64;
/// Room for more blocks than there can be.
const MANY: u32 = 1 << 30;

impl<A: DeviceAllocator> BookState<A> {
    /// Whether a live block of a pool without an arena may stay when it is freed. Evicts for it.
    pub(super) fn makes_room(
        &mut self,
        key: Key<A::Kind>,
        bytes: u64,
        pooled: bool,
        bounds: &Bounds,
    ) -> bool {
        if !pooled || self.closed {
            return false;
        }
        let limit = self.cached_limit(bounds.cached);
        let fits = bytes <= limit / 2
            && self.makes_room_in_bucket(key, bytes, bounds)
            && self.evict_down_to(limit - bytes, bounds);
        self.counts.evictions += u64::from(bounds.statistics && !fits);
        fits
    }

    /// Whether a bucket has room for one block more, or gets it.
    fn makes_room_in_bucket(&mut self, key: Key<A::Kind>, bytes: u64, bounds: &Bounds) -> bool {
        let most = bounds.bucket.of(bytes);
        if most == usize::MAX {
            return true;
        }
        let most = most.saturating_sub(self.bin_leases_of(key, bytes));
        let (count, oldest) = self.book.count_of((key.kind, key.stream_id), bytes);
        if count < most {
            return true;
        }
        if bounds.full_bucket == FullBucket::EvictOldest {
            self.evict(oldest, bounds);
            return oldest.is_some();
        }
        false
    }

    /// Grants the bin of a thread cache room for blocks of a size, half of what is left. Returns
    /// for how many blocks; 0 if it has room, or there is none.
    pub(super) fn grant_bin_leases(
        &mut self,
        cache: &mut ThreadCache<A>,
        key: Key<A::Kind>,
        bytes: u64,
        bounds: &Bounds,
    ) -> u32 {
        if !cache.is_limited() || cache.has_room(key, bytes) {
            return 0;
        }
        let most = bounds.bucket.of(bytes);
        if most == usize::MAX {
            return MANY;
        }
        let leased = self.bin_leases_of(key, bytes);
        let (free, _) = self.book.count_of((key.kind, key.stream_id), bytes);
        let granted = most.saturating_sub(leased + free).div_ceil(2).min(MANY as usize);
        *self.bin_leases.entry((key, bytes)).or_default() += granted;
        u32::try_from(granted).unwrap_or(MANY)
    }

    /// Takes back room that a bin had for blocks of a size.
    pub(super) fn end_bin_leases(&mut self, key: Key<A::Kind>, bytes: u64, room: u32) {
        if let Some(leased) = self.bin_leases.get_mut(&(key, bytes)) {
            *leased = leased.saturating_sub(room as usize);
            if *leased == 0 {
                self.bin_leases.remove(&(key, bytes));
            }
        }
    }

    /// Blocks of a size that thread caches may have.
    fn bin_leases_of(&self, key: Key<A::Kind>, bytes: u64) -> usize {
        self.bin_leases.get(&(key, bytes)).copied().unwrap_or(0)
    }

    /// Evicts, oldest first, until free blocks and leases have at most `bytes` bytes. Evicts none
    /// and returns false if a bounded number of evictions is not enough.
    pub(super) fn evict_down_to(&mut self, bytes: u64, bounds: &Bounds) -> bool {
        let held = |state: &Self| state.book.cached + state.leased;
        if held(self) > bytes && held(self) - bytes > self.book.bytes_of_oldest(EVICTIONS) {
            return false;
        }
        while held(self) > bytes {
            self.evict(self.book.oldest(), bounds);
        }
        true
    }

    /// Notes that a free block is to go back to the device.
    fn evict(&mut self, block: Option<u32>, bounds: &Bounds) {
        if let Some(block) = block {
            self.book.defer_cached(block);
            self.counts.evictions += u64::from(bounds.statistics);
        }
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// After a free: executes the deferred frees, if a drop may.
    #[inline]
    pub(super) fn free_deferred_in_drop<'s>(
        &'s self,
        state: LockGuard<'s, BookState<A>>,
    ) -> LockGuard<'s, BookState<A>> {
        if state.book.deferred.is_empty() || !(A::MEMORY.free_in_drop || state.closed) {
            return state;
        }
        drop(state);
        // What the device refuses is counted as lost.
        let _ = self.free_deferred();
        self.book.lock()
    }

    /// Executes the deferred frees. What is behind work that is not submitted waits for a later
    /// call, unless it may be freed anywhere, or the pool is closed.
    pub(crate) fn free_deferred(&self) -> GivenBack {
        let (mut given_back, mut refusal, clock) = (0, None, self.allocator.clock());
        loop {
            let mut state = self.book.lock();
            let any = A::MEMORY.free_in_drop || state.closed;
            let goes = |after: &Pending<MarkOf<A>>| {
                any || after.marks().iter().all(|mark| clock.is_submitted(*mark))
            };
            let Some((number, segment, after)) = state.book.pop_deferred(goes) else { break };
            let Some(removed) = state.removed(number, &segment, after) else { continue };
            let _in_transit = InTransit::new(self.transit());
            drop(state);
            let (went, refused) = self.free_segment(removed, Some(Reason::Bound));
            given_back += went;
            refusal = refusal.or(refused);
        }
        (given_back, refusal)
    }

    /// Bytes that the device did not take back; none while a thread has memory on its way, in any
    /// pool of the budget, which counts as lost for as long.
    pub(crate) fn lost_bytes(&self) -> u64 {
        let state = self.book.lock();
        if self.transit().has_pieces() { 0 } else { state.counts.lost_bytes }
    }

    /// Frees a detached block on the device now. Returns its refusal.
    pub(crate) fn free_detached(&self, record: RecordOwner<A>) -> Option<DeviceError> {
        let (removed, _in_transit) = self.remove_live(record)?;
        self.free_segment(removed, Some(Reason::Bound)).1
    }

    /// A detached block leaves the pool's figures for good, not by way of the device. Returns it,
    /// and what it is behind.
    pub(crate) fn take_raw(&self, record: RecordOwner<A>) -> Option<(A::Block, Vec<MarkOf<A>>)> {
        let (RemovedSegment { block, bytes, after, .. }, _in_transit) = self.remove_live(record)?;
        self.book.lock().counts.lost_bytes -= bytes;
        self.ledger.note_freed(bytes);
        // SAFETY: `remove_live` took the only range of the segment out of the book, and its record
        // with it.
        Some((unsafe { block.into_inner() }, after.marks().to_vec()))
    }

    /// Takes a live block out of the book.
    fn remove_live(
        &self,
        mut record: RecordOwner<A>,
    ) -> Option<(RemovedSegment<A>, InTransit<'_>)> {
        let after = record.marks.get_mut().pending(A::MEMORY.cpu_touches);
        let (range, bytes, requested) = (record.part.range, record.bytes, record.requested);
        let mut state = self.with_own_counts();
        record.vacate();
        state.figures.freed(bytes, requested);
        state.not_kept += 1;
        let (number, segment) = state.book.remove_live(range)?;
        let removed = state.removed(number, &segment, after)?;
        Some((removed, InTransit::new(self.transit())))
    }

    /// Takes free blocks from the device ahead of time.
    pub(crate) fn warm_up_blocks(
        &self,
        request: &PoolRequest<'_, A>,
        count: usize,
    ) -> Result<(), DeviceError> {
        let (bytes, clock) = (request.class.bytes, self.allocator.clock());
        let refuse = |limit| Err(DeviceError::limit(limit));
        self.collect();
        for _ in 0..count {
            {
                let mut state = self.book.lock();
                let limit = state.cached_limit(self.bounds.cached);
                let held = state.book.cached + state.leased;
                if bytes > limit / 2 || held.saturating_add(bytes) > limit {
                    return refuse(Limit::Cached);
                }
            }
            if self.is_bucket_full(request, false) {
                return refuse(Limit::Bucket);
            }
            let _in_transit = InTransit::new(self.transit()); // until it is free memory
            let id = self.grow_range(request)?;
            let mut state = self.book.lock();
            let marks = self.fresh_marks(request.on);
            let unzeroed = state.book.nodes[id].unzeroed;
            state.book.count_out(bytes);
            // Other threads may have filled the room while the device was called.
            let fits = state.makes_room(request.key, bytes, true, &self.bounds);
            match fits {
                true => state.book.free(clock, id, marks, unzeroed),
                false => state.book.defer_live(id, marks),
            }
            drop(self.free_deferred_in_drop(state));
            if !fits {
                // One of the two, which other threads have reached meanwhile.
                let bucket = self.is_bucket_full(request, true);
                return refuse(if bucket { Limit::Bucket } else { Limit::Cached });
            }
        }
        Ok(())
    }

    /// Whether there are as many free blocks of a request's size as the pool keeps, those included
    /// that thread caches have room for if `with_leases` is true.
    fn is_bucket_full(&self, request: &PoolRequest<'_, A>, with_leases: bool) -> bool {
        let (key, bytes) = (request.key, request.class.bytes);
        let most = self.bounds.bucket.of(bytes);
        if most == usize::MAX {
            return false;
        }
        let state = self.book.lock();
        let leased = if with_leases { state.bin_leases_of(key, bytes) } else { 0 };
        state.book.count_of((key.kind, key.stream_id), bytes).0 + leased >= most
    }
}
