//! The limit on cached bytes over several shards: each leases a part of it, and the parts are never
//! more than the limit. A free that has no room in the lease of its shard takes more of the limit,
//! then what others leased and do not use, then what the oldest blocks of all fill.

use crate::limits::CachedLimit;
use crate::port::DeviceAllocator;
use crate::shard::State;
use crate::store::Store;
use crate::sys::atomic::Ordering::SeqCst;

/// A lease grows by one part of the limit in this many, or by a block.
const PARTS: u64 = 160;
/// Blocks that are evicted for one at most.
const EVICTIONS: usize = 64;

impl<A: DeviceAllocator> Store<A> {
    /// Whether free memory has no limit.
    #[inline]
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.bounds.cached, CachedLimit::Unlimited)
    }

    /// Gives a shard room for `bytes` bytes more under the cached limit, if it can. The caller adds
    /// what is returned to its lease.
    fn lease(&self, at: usize, bytes: u64, limit: u64) -> u64 {
        let step = bytes.max(limit / PARTS);
        if let Some(leased) = [step, bytes].into_iter().find(|step| self.lease_more(*step, limit)) {
            return leased;
        }
        let mut got = 0;
        for other in (0..self.shards.count()).filter(|other| *other != at) {
            if got >= bytes {
                return got;
            }
            let state = &mut *self.shards.lock(other);
            let spare = (state.lease - state.blocks.bytes.min(state.lease)).min(step);
            state.lease -= spare;
            got += spare;
        }
        for _ in 0..EVICTIONS {
            if got >= bytes {
                break;
            }
            let Some(freed) = self.evict_oldest(at) else { break };
            got += freed;
        }
        got
    }

    fn lease_more(&self, bytes: u64, limit: u64) -> bool {
        let fits = |leased: u64| leased.checked_add(bytes).filter(|sum| *sum <= limit);
        self.leased.try_update(SeqCst, SeqCst, fits).is_ok()
    }

    /// Gives a shard room for a block of `bytes` bytes under the cached limit, if it can.
    pub(super) fn make_lease(&self, at: usize, bytes: u64, limit: u64) {
        let missing = {
            let state = &mut *self.shards.lock(at);
            let count = self.shards.count() as u64;
            state.largest = limit / 2;
            if count == 1 || self.shape.is_arena() || self.is_unlimited() {
                state.lease = if count == 1 || limit == u64::MAX { limit } else { limit / count };
                return;
            }
            self.keep_time(state);
            (state.blocks.bytes + bytes).saturating_sub(state.lease)
        };
        if missing > 0 && bytes <= limit / 2 {
            let got = self.lease(at, missing, limit);
            let state = &mut *self.shards.lock(at);
            self.keep_time(state); // what is freed now is younger than all that was compared
            state.lease += got;
        }
    }

    /// Lets other shards know of a block of this size.
    #[inline]
    pub(super) fn publish(&self, state: &mut State<A>, bytes: u64) {
        if self.shards.count() > 1 {
            state.publish(self.shards.published(state.number as usize), bytes);
        }
    }

    /// Evicts the oldest block of all shards, of equally old ones one that is not in the shard `of`.
    /// Returns its bytes, which its shard does not lease any more.
    fn evict_oldest(&self, of: usize) -> Option<u64> {
        let age = |at: &usize| {
            let state = &mut *self.shards.lock(*at);
            self.keep_time(state);
            (state.blocks.oldest().map_or(u64::MAX, |record| record.freed_at), *at == of)
        };
        let oldest = (0..self.shards.count()).min_by_key(age)?;
        let bytes = {
            let state: &mut State<A> = &mut self.shards.lock(oldest);
            let record = state.blocks.take_oldest(u64::MAX, |_| true)?;
            let bytes = record.bytes;
            state.evict(record, &self.bounds.keeping);
            state.lease -= bytes.min(state.lease);
            bytes
        };
        if A::MEMORY.free_in_drop {
            let _ = self.free_deferred_of(oldest); // what the device refuses is counted as lost
        }
        Some(bytes)
    }
}
