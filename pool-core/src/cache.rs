//! What is done to a cache by hand, or when memory is short: filling, trimming, emptying it.

use crate::clock::StreamClock;
use crate::device::{DeviceAllocator, MarkOf};
use crate::error::{DeviceError, Why};
use crate::idle::Taken;
use crate::layer::{GivenBack, Layer, Retention};
use crate::shard::{Parcel, Shard, Want};
use crate::store::Store;
use std::time::Duration;

impl<A: DeviceAllocator> Store<A> {
    /// Takes `count` idle blocks from the device ahead of time.
    pub(crate) fn warm_up(&self, want: &Want<'_, A>, count: usize) -> Result<(), DeviceError> {
        let refuse = |why, call| Err(DeviceError::new(why, call, 0));
        if !want.class.pooled() {
            return refuse(Why::Unsupported, "warm up a size that goes past the pool");
        }
        let bytes = want.class.bytes;
        for _ in 0..count {
            let (limit, here) = {
                let mut shard = self.shards.own();
                (self.cached_limit(&mut shard), shard.idle.count_of(want.key, bytes))
            };
            if bytes > limit / 2 || self.cached_bytes().saturating_add(bytes) > limit {
                return refuse(Why::Limit, "cached limit");
            }
            if here >= self.bounds.bucket.of(bytes) {
                return refuse(Why::Limit, "bucket limit");
            }
            let mut parcel = self.take_from_device(want)?;
            parcel.used = false;
            parcel.dirty = self.bounds.zero_on_return && !A::MEMORY.fresh_is_zeroed;
            self.keep(&mut self.shards.own(), parcel);
        }
        Ok(())
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.idle.bytes() + shard.owed_bytes()).sum()
    }

    /// The cached bytes of blocks whose marks are not all as `is` says.
    pub(crate) fn cached_bytes_not(&self, is: impl Fn(MarkOf<A>) -> bool) -> u64 {
        let counts = |parcel: &&Parcel<A>| !parcel.marks.lock().all_are(&is);
        let of_shard = |shard: &Shard<A>| -> u64 {
            let idle = shard.idle.items().map(|(_, parcel)| &**parcel);
            let all = idle.chain(shard.owed.iter().map(|parcel| &**parcel));
            all.filter(counts).map(|parcel| parcel.bytes).sum()
        };
        self.shards.iter().map(|shard| of_shard(&shard)).sum()
    }

    /// Gives back what is owed.
    pub(crate) fn settle(&self) -> GivenBack {
        let owed = self.shards.iter().flat_map(|mut shard| std::mem::take(&mut shard.owed));
        self.pay(owed.collect())
    }

    /// Gives back what is owed, and idle blocks, oldest first, until at least `bytes` went.
    pub(crate) fn trim(&self, bytes: u64) -> GivenBack {
        let oldest = |shard: &Shard<A>| shard.idle.oldest_stamp().map(std::cmp::Reverse);
        let went = self.evict(bytes, oldest, |shard| shard.idle.take_oldest());
        self.through_layer(bytes, went)
    }

    /// What went from here may only have gone to a layer, which gives as much back to the device.
    fn through_layer(&self, bytes: u64, (went, refusal): GivenBack) -> GivenBack {
        let Some(layer) = self.allocator.layer() else { return (went, refusal) };
        let (went, refused) = layer.give_back(bytes);
        (went, refusal.or(refused))
    }

    /// What is taken from the device, by this pool or by the layer below it.
    pub(crate) fn reserved(&self) -> u64 {
        let layer = self.allocator.layer();
        layer.map_or_else(|| self.ledger.reserved(), Layer::reserved_bytes)
    }

    /// The ceiling on that.
    pub(crate) fn reserved_limit(&self) -> u64 {
        let layer = self.allocator.layer();
        layer.map_or_else(|| self.ledger.limit(), Layer::reserved_limit)
    }

    /// Idle blocks go to the layer below, where they can become one with their neighbours. Returns
    /// whether there were any.
    pub(crate) fn flush(&self) -> bool {
        let owed: Vec<_> =
            self.shards.iter().flat_map(|mut shard| shard.take_everything()).collect();
        let any = !owed.is_empty();
        self.pay(owed);
        any
    }

    /// Gives back what has been idle for too long at `now`.
    pub(crate) fn tick(&self, now: Duration) -> GivenBack {
        let retention = self.bounds.retention;
        let by_time = Retention { allocations: None, ..retention };
        let before = self.ticks.lock().tick(now, self.next_epoch(), by_time);
        let mut owed = Vec::new();
        for mut shard in self.shards.iter() {
            let turn = shard.turn;
            let is_old = |parcel: &Parcel<A>| {
                retention.allocations.is_some_and(|most| turn.saturating_sub(parcel.turn) > most)
            };
            let by_age = shard.idle.take_all(|parcel| is_old(parcel));
            for taken in by_age.into_iter().chain(shard.idle.take_before(before)) {
                shard.owe(taken.item);
            }
            owed.append(&mut shard.owed);
        }
        let went = self.pay(owed);
        let Some(layer) = self.allocator.layer() else { return went };
        let (bytes, refused) = layer.tick(now);
        (bytes, went.1.or(refused))
    }

    /// Gives back what is owed, and idle blocks, largest first, until at most `target` bytes are
    /// reserved or nothing is idle.
    pub(crate) fn shrink_to(&self, target: u64) -> GivenBack {
        let bytes = self.reserved().saturating_sub(target);
        let largest = |shard: &Shard<A>| Some(shard.idle.largest_bytes()).filter(|b| *b > 0);
        let went = self.evict(bytes, largest, |shard| shard.idle.take_largest());
        self.through_layer(bytes, went)
    }

    /// Evicts from the shard that ranks highest, until what goes back is at least `bytes`.
    fn evict<R: Ord>(
        &self,
        bytes: u64,
        rank: impl Fn(&Shard<A>) -> Option<R>,
        take: impl Fn(&mut Shard<A>) -> Option<Taken<Box<Parcel<A>>>>,
    ) -> GivenBack {
        let mut owed: Vec<Box<Parcel<A>>> = Vec::new();
        for mut shard in self.shards.iter() {
            owed.append(&mut shard.owed);
        }
        let mut sum: u64 = owed.iter().map(|o| o.bytes).sum();
        while sum < bytes {
            let ranked = self.shards.in_use().map(|at| (rank(&self.shards.at(at)), at));
            let Some((Some(_), at)) = ranked.max_by(|a, b| a.0.cmp(&b.0)) else { break };
            let mut shard = self.shards.at(at);
            let Some(taken) = take(&mut shard) else { break };
            sum += taken.bytes;
            shard.owe(taken.item);
            owed.append(&mut shard.owed);
        }
        self.pay(owed)
    }

    /// Gives back all idle blocks, after waiting for the work that used them. What is behind work
    /// that is not submitted stays where it is.
    pub(crate) fn clear(&self) -> GivenBack {
        let clock = self.allocator.clock();
        let submitted =
            |parcel: &Parcel<A>| parcel.marks.lock().all_are(|mark| clock.is_submitted(mark));
        let mut done = Vec::new();
        for mut shard in self.shards.iter() {
            for taken in shard.idle.take_all(|parcel| submitted(parcel)) {
                shard.owe(taken.item);
            }
            done.extend(shard.owed.extract_if(.., |parcel| submitted(parcel)));
        }
        // A free waits for the marks, where that is more than the device's own business.
        let went = self.pay(done);
        self.through_layer(u64::MAX, went)
    }
}
