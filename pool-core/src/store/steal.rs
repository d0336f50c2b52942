//! What a shard takes over from others, in memory whose blocks are cheap to make: what those did not
//! use for an epoch, or half of what they have of a size, if they free what its own threads take.
//! Else it asks the device: two threads with the same sizes would take single blocks from each other
//! for ever.

use crate::block::record::RecordOwner;
use crate::block::request::PoolRequest;
use crate::port::DeviceAllocator;
use crate::shard::State;
use crate::store::Store;
use crate::sys::atomic::Ordering::Relaxed;
use std::hint;

/// Blocks that are taken over at once.
const MOST: u32 = 32;
/// How often the shard that served last is tried again if its lock is busy.
const TRIES: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 256 };
/// Other shards that are looked at for one request at most: with all of them, threads that all lack
/// memory would hinder each other.
const LOOKS: u32 = 4;

impl<A: DeviceAllocator> Store<A> {
    /// Takes blocks over from another shard, and serves a request with one of them. The one that
    /// served last is waited for, if its threads free what this shard lends; the others are not.
    pub(super) fn steal(&self, request: &PoolRequest<'_, A>) -> Option<RecordOwner<A>> {
        let (home, bytes) = (self.home(request), request.class.bytes);
        let (count, now) = (self.shards.count(), self.epoch.load(Relaxed));
        let (eager, first) = {
            let own = self.shards.lock(home);
            (own.is_drained(), own.served_by)
        };
        let mut looks = 0;
        for at in (0..count).map(|step| (first + step) % count).filter(|at| *at != home) {
            if !self.shards.published(at).may_have(bytes, now, eager) {
                continue;
            }
            let tries = if eager && at == first { TRIES } else { 1 };
            let stolen = self.steal_from(at, home, request, (eager, tries));
            looks += 1;
            if stolen.is_some() || looks == LOOKS {
                return stolen;
            }
        }
        None
    }

    /// Takes blocks over from one shard. Both locks are held, so that each block is in one of the
    /// two; the second is tried, and not waited for, so that no two threads wait for each other.
    fn steal_from(
        &self,
        at: usize,
        home: usize,
        request: &PoolRequest<'_, A>,
        (eager, tries): (bool, u32),
    ) -> Option<RecordOwner<A>> {
        let bytes = request.class.bytes;
        for _ in 0..tries {
            let own = &mut *self.shards.lock(home);
            let Some(mut other) = self.shards.try_lock(at) else {
                hint::spin_loop();
                continue;
            };
            let unused = other.blocks.unused(bytes, request.key.kind, eager);
            let moved = self.move_blocks(&mut other, own, request, unused.min(MOST));
            #[cfg(pool_counts)]
            crate::sys::counts::look(moved > 0);
            if moved == 0 {
                let epoch = self.epoch.load(Relaxed);
                other.publish_all(self.shards.published(at), epoch);
                return None;
            }
            drop(other);
            own.served_by = at;
            own.publish(self.shards.published(home), bytes);
            let requester = self.requester(request);
            return own.take_block(request, &requester, self.bounds.statistics);
        }
        None
    }

    /// Moves at most `most` blocks of a request's size, with what of the cached limit they fill.
    /// Returns how many.
    fn move_blocks(
        &self,
        from: &mut State<A>,
        to: &mut State<A>,
        request: &PoolRequest<'_, A>,
        most: u32,
    ) -> u32 {
        let (key, bytes) = (request.key, request.class.bytes);
        let mut moved = 0;
        while moved < most {
            let Some(record) = from.blocks.take_oldest_of(key, bytes) else { break };
            to.keep(key, record);
            moved += 1;
        }
        if !self.is_unlimited() {
            let lease = (u64::from(moved) * bytes).min(from.lease);
            from.lease -= lease;
            to.lease += lease;
        }
        moved
    }
}
