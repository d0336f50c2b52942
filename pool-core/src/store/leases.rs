//! The limit on cached bytes over several shards: each leases a part of it, and the parts are never
//! more than the limit. A free that has no room in the lease of its shard takes more of the limit,
//! then what others leased and do not use, then what the oldest blocks of all fill. What an arena has
//! above its leases goes back.

use crate::block::record::RecordOwner;
use crate::limits::{CachedLimit, FullPool};
use crate::port::DeviceAllocator;
use crate::shard::{EVICTIONS, State};
use crate::store::Store;
use crate::store::limits::LimitRead;
use crate::sys::atomic::Ordering::SeqCst;

/// A lease grows by one part of the limit in this many, or by a block.
const PARTS: u64 = 160;

impl<A: DeviceAllocator> Store<A> {
    /// Whether free memory has no limit.
    #[inline]
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.bounds.cached.get(), CachedLimit::Unlimited)
    }

    /// Finds room for `bytes` bytes more under the cached limit, as far as there is any, and adds it to the
    /// lease of a shard, unless limits have changed since this one was read. Returns whether blocks were
    /// evicted for it.
    pub(super) fn lease(&self, at: usize, bytes: u64, limit: LimitRead) -> bool {
        let step = bytes.max(limit.bytes / PARTS);
        let missing = {
            let state = &mut *self.shards.lock(at);
            if state.epoch != limit.epoch {
                return false;
            }
            let leased = self.lease_more(bytes, step, limit.bytes);
            state.lease += leased;
            bytes.saturating_sub(leased)
        };
        if missing == 0 {
            return false;
        }
        let (mut got, mut evicted) = (self.spare_leases(at, missing, step, limit.epoch), false);
        let refuses = self.bounds.keeping.full_pool == FullPool::RefuseNewest;
        let evictions = if self.shape.is_arena() || refuses { 0 } else { EVICTIONS };
        for _ in 0..evictions {
            if got >= missing {
                break;
            }
            let Some(room) = self.evict_oldest(at, limit.epoch) else { break };
            got += room;
            evicted = true;
        }
        let state = &mut *self.shards.lock(at);
        if state.epoch == limit.epoch {
            state.lease += got;
        }
        evicted
    }

    /// Takes what other shards leased and do not use until it is `bytes` bytes, at most `step` of each,
    /// first of those in which no thread is.
    fn spare_leases(&self, at: usize, bytes: u64, step: u64, epoch: u32) -> u64 {
        let (mut got, mut seen) = (0, 1_u64 << at);
        for of in [Some(at), None] {
            for other in 0..self.shards.count() {
                if got >= bytes {
                    return got;
                }
                if seen & 1 << other != 0 {
                    continue;
                }
                let Some(mut state) = self.shards.lock_for(other, of) else { continue };
                seen |= 1 << other;
                if state.epoch != epoch {
                    return 0;
                }
                let spare = (state.lease - state.kept().min(state.lease)).min(step);
                state.lease -= spare;
                got += spare;
            }
        }
        got
    }

    /// Takes a part of the limit that no shard has leased: `step` bytes if there are as many, else
    /// `bytes`, else all that are left.
    fn lease_more(&self, bytes: u64, step: u64, limit: u64) -> u64 {
        let part = |leased: u64| match limit.saturating_sub(leased) {
            room if room >= step => step,
            room => room.min(bytes),
        };
        part(self.leased.update(SeqCst, SeqCst, |leased| leased + part(leased)))
    }

    /// Gives a shard room for a block under the cached limit, if it can and the block may stay. Returns
    /// whether blocks of any shard were evicted for it: they are deferred frees.
    pub(super) fn make_lease(
        &self,
        at: usize,
        record: &mut RecordOwner<A>,
        limit: LimitRead,
    ) -> bool {
        let bytes = record.bytes;
        let missing = {
            let state = &mut *self.shards.lock(at);
            if state.epoch != limit.epoch {
                return false;
            }
            let limit = limit.bytes;
            state.largest = self.bounds.keeping.full_pool.largest(limit);
            if self.shards.count() == 1 || self.is_unlimited() {
                state.lease = limit;
                return false;
            }
            if record.part().is_none()
                && !state.may_stay(self.allocator.clock(), record, limit, &self.bounds.keeping)
            {
                return false;
            }
            (state.kept() + bytes).saturating_sub(state.lease)
        };
        if missing == 0 {
            return false;
        }
        self.lease(at, missing, limit)
    }

    /// Evicts a block of the shard that has the oldest of all, of equally old ones one that is not in the
    /// shard `of`: the largest of its oldest few. Returns the room that its shard does not lease any more.
    fn evict_oldest(&self, of: usize, epoch: u32) -> Option<u64> {
        let age = |at: &usize| {
            let state = &mut *self.shards.lock(*at);
            self.keep_time(state); // what is freed next is younger than all that is compared
            (state.blocks.oldest().map_or(u64::MAX, |record| record.freed_at), *at == of)
        };
        let oldest = (0..self.shards.count()).min_by_key(age)?;
        let state: &mut State<A> = &mut self.shards.lock(oldest);
        if state.epoch != epoch {
            return None;
        }
        let record = state.blocks.take_to_evict()?;
        let room = record.bytes.min(state.lease);
        state.evict(record, &self.bounds.keeping);
        state.lease -= room;
        Some(room)
    }
}
