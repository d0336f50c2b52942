//! Idle blocks: which stay, which go for them, and how they go back to the device.

use super::Store;
use crate::block::record::{BlockMemory, Record, RecordOwner};
use crate::block::request::Key;
use crate::device::DeviceAllocator;
use crate::error::DeviceError;
use crate::shard::Shard;
use crate::stream::clock::StreamClock;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

impl<A: DeviceAllocator> Store<A> {
    /// Keeps an idle block, if the pool may.
    #[inline]
    pub(crate) fn keep_or_owe(&self, shard: &mut Shard<A>, record: RecordOwner<A>) {
        if record.pooled && !shard.closed {
            self.keep(shard, record);
        } else {
            shard.owed.push(record);
        }
    }

    /// Adds an idle block as the newest and makes room for it, oldest first.
    #[inline]
    pub(crate) fn keep(&self, shard: &mut Shard<A>, mut record: RecordOwner<A>) {
        // Within half of its lease, which is within the bound, there is nothing to reckon.
        if record.bytes > shard.lease / 2 && record.bytes > self.cached_limit(shard) / 2 {
            return shard.owe(record);
        }
        let lane = self.allocator.clock().lane(record.marks.get_mut().home());
        let key = Key { kind: record.kind, lane };
        let (bytes, stamp) = (record.bytes, self.epoch.load(Relaxed));
        shard.counts.returns += u64::from(self.bounds.statistics && record.used);
        shard.idle.push(key, bytes, stamp, record);
        let most = self.bounds.bucket.of(bytes);
        if most < usize::MAX
            && shard.idle.count_of(key, bytes) > most
            && let Some(oldest) = shard.idle.take_oldest_of(key, bytes)
        {
            shard.owe(oldest.item);
        }
        if shard.idle.bytes() > shard.lease {
            self.make_room(shard);
        }
    }

    /// Extends the shard's lease over what it has, or evicts.
    #[cold]
    fn make_room(&self, shard: &mut Shard<A>) {
        let limit = self.cached_limit(shard);
        while shard.idle.bytes() > shard.lease {
            let more = shard.idle.bytes() - shard.lease;
            // As much again, so that the next one need not come here.
            let twice = more.saturating_add(shard.idle.bytes());
            if self.leases.extend(twice, limit) {
                shard.lease += twice;
            } else if self.leases.extend(more, limit) {
                shard.lease += more;
            } else if !self.reclaim_unused_leases() {
                self.evict_oldest(shard);
            }
        }
    }

    /// The bound on idle bytes, as far as this shard can tell.
    #[inline]
    pub(crate) fn cached_limit(&self, shard: &mut Shard<A>) -> u64 {
        let peak = shard.allocated.peak_so_far(&self.allocated);
        let peak = peak.max(self.forgotten_peak.load(Relaxed));
        if shard.limit_at.0 != peak {
            shard.limit_at = (peak, self.bounds.cached.bytes(peak));
        }
        shard.limit_at.1
    }

    fn reclaim_unused_leases(&self) -> bool {
        let unused: u64 = self.shards.try_iter().map(|mut shard| shard.unused_lease()).sum();
        self.leases.give_back(unused);
        unused > 0
    }

    /// Evicts the oldest idle block of all shards that can be entered. In doubt it is this shard's,
    /// unless that would be the newcomer itself.
    fn evict_oldest(&self, shard: &mut Shard<A>) {
        let own = shard.idle.oldest_stamp().unwrap_or(u64::MAX);
        let others = self.shards.try_iter().filter_map(|s| Some((s.idle.oldest_stamp()?, s)));
        let older = others
            .min_by_key(|(stamp, _)| *stamp)
            .filter(|(stamp, _)| *stamp < own || (*stamp == own && shard.idle.len() == 1));
        let evicted = match older {
            Some((_, mut other)) => {
                let evicted = other.idle.take_oldest();
                self.leases.give_back(other.unused_lease());
                evicted
            }
            None => shard.idle.take_oldest(),
        };
        if let Some(evicted) = evicted {
            shard.owe(evicted.item);
        }
    }

    /// Gives blocks back to the device. Returns the bytes that went, and the first refusal.
    pub(crate) fn pay(&self, owed: Vec<RecordOwner<A>>) -> (u64, Option<DeviceError>) {
        let (mut given_back, mut refusal) = (0, None);
        let count = owed.len();
        self.in_transit.fetch_add(count, Relaxed);
        for record in owed {
            let Record { memory, marks, bytes, .. } = record.into_inner();
            let BlockMemory::Whole(block) = memory else { continue };
            self.untaken(bytes);
            let after = marks.into_inner().after(A::MEMORY.cpu_touches);
            let freed = self.allocator.free(block, after.marks());
            refusal = refusal.or(freed.err());
            match freed {
                // The device still has it, so it stays reserved; a lost device has nothing.
                Err(error) if !error.is_end_of_device() => self.lose(bytes),
                freed => {
                    given_back += if freed.is_ok() { bytes } else { 0 };
                    self.ledger.give_back(bytes);
                }
            }
        }
        self.in_transit.fetch_sub(count, Relaxed);
        (given_back, refusal)
    }

    pub(super) fn lose(&self, bytes: u64) {
        self.shards.own().counts.lost_bytes += bytes;
    }

    /// Blocks that the device has handed out, by size.
    pub(crate) fn taken(&self) -> BTreeMap<u64, usize> {
        self.taken.lock().clone()
    }

    /// A block of this size is no longer the pool's.
    pub(super) fn untaken(&self, bytes: u64) {
        let mut taken = self.taken.lock();
        if let Some(count) = taken.get_mut(&bytes) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&bytes);
            }
        }
    }
}
