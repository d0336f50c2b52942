//! What is done to a cache by hand, or when memory is short: filling, trimming, emptying it.

use crate::block::record::{Record, RecordOwner};
use crate::block::request::Want;
use crate::device::{DeviceAllocator, MarkOf};
use crate::error::{DeviceError, Why};
use crate::policy::retention::{GivenBack, Retention};
use crate::pool::store::Store;
use crate::shard::Shard;
use crate::shard::idle::Taken;
use crate::stream::clock::StreamClock;
use std::time::Duration;

impl<A: DeviceAllocator> Store<A> {
    /// Takes `count` idle blocks from the device ahead of time.
    pub(crate) fn warm_up(&self, want: &Want<'_, A>, count: usize) -> Result<(), DeviceError> {
        let refuse = |why, call| Err(DeviceError::new(why, call, 0));
        if !want.class.pooled() {
            return refuse(Why::Unsupported, "warm up a size that goes past the pool");
        }
        if let Some(book) = &self.book {
            return self.warm_up_book(book, want, count);
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
            let mut record = self.take_from_device(want)?;
            record.used = false;
            record.dirty = self.bounds.zero_on_return && !A::MEMORY.fresh_is_zeroed;
            self.keep(&mut self.shards.own(), record);
        }
        Ok(())
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        if let Some(book) = &self.book {
            return book.lock().cached_bytes();
        }
        self.shards.iter().map(|shard| shard.idle.bytes() + shard.owed_bytes()).sum()
    }

    /// The cached bytes of blocks whose marks are not all as `is` says.
    pub(crate) fn cached_bytes_not(&self, is: impl Fn(MarkOf<A>) -> bool) -> u64 {
        let counts = |record: &&Record<A>| !record.marks.lock().all_are(&is);
        let of_shard = |shard: &Shard<A>| -> u64 {
            let idle = shard.idle.items().map(|(_, record)| &**record);
            let all = idle.chain(shard.owed.iter().map(|record| &**record));
            all.filter(counts).map(|record| record.bytes).sum()
        };
        self.shards.iter().map(|shard| of_shard(&shard)).sum()
    }

    /// Gives back what is owed.
    pub(crate) fn settle(&self) -> GivenBack {
        if let Some(book) = &self.book {
            return self.trim_to_cached_limit(book);
        }
        let owed = self.shards.iter().flat_map(|mut shard| std::mem::take(&mut shard.owed));
        self.pay(owed.collect())
    }

    /// Gives back what is owed, and idle blocks, oldest first, until at least `bytes` went.
    pub(crate) fn trim(&self, bytes: u64) -> GivenBack {
        if let Some(book) = &self.book {
            let (paid, refused) = self.trim_to_cached_limit(book);
            let (went, refusal) = self.trim_book(book, bytes.saturating_sub(paid));
            return (paid + went, refused.or(refusal));
        }
        let oldest = |shard: &Shard<A>| shard.idle.oldest_stamp().map(std::cmp::Reverse);
        self.evict(bytes, oldest, |shard| shard.idle.take_oldest())
    }

    /// Gives back what has been idle for too long at `now`.
    pub(crate) fn tick(&self, now: Duration) -> GivenBack {
        if let Some(book) = &self.book {
            return self.tick_book(book, now);
        }
        let retention = self.bounds.retention;
        let by_time = Retention { allocations: None, ..retention };
        let before = self.ticks.lock().tick(now, self.next_epoch(), by_time);
        let mut owed = Vec::new();
        for mut shard in self.shards.iter() {
            let turn = shard.turn;
            let is_old = |record: &Record<A>| {
                retention.allocations.is_some_and(|most| turn.saturating_sub(record.turn) > most)
            };
            let by_age = shard.idle.take_all(|record| is_old(record));
            for taken in by_age.into_iter().chain(shard.idle.take_before(before)) {
                shard.owe(taken.item);
            }
            owed.append(&mut shard.owed);
        }
        self.pay(owed)
    }

    /// Gives back what is owed, and idle blocks, largest first, until at most `target` bytes are
    /// reserved or nothing is idle.
    pub(crate) fn shrink_to(&self, target: u64) -> GivenBack {
        let bytes = self.ledger.reserved().saturating_sub(target);
        if let Some(book) = &self.book {
            return self.shrink_book(book, bytes);
        }
        let largest = |shard: &Shard<A>| Some(shard.idle.largest_bytes()).filter(|b| *b > 0);
        self.evict(bytes, largest, |shard| shard.idle.take_largest())
    }

    /// Evicts from the shard that ranks highest, until what goes back is at least `bytes`.
    fn evict<R: Ord>(
        &self,
        bytes: u64,
        rank: impl Fn(&Shard<A>) -> Option<R>,
        take: impl Fn(&mut Shard<A>) -> Option<Taken<RecordOwner<A>>>,
    ) -> GivenBack {
        let mut owed: Vec<RecordOwner<A>> = Vec::new();
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
        if let Some(book) = &self.book {
            return self.trim_book(book, u64::MAX);
        }
        let clock = self.allocator.clock();
        let submitted =
            |record: &Record<A>| record.marks.lock().all_are(|mark| clock.is_submitted(mark));
        let mut done = Vec::new();
        for mut shard in self.shards.iter() {
            for taken in shard.idle.take_all(|record| submitted(record)) {
                shard.owe(taken.item);
            }
            done.extend(shard.owed.extract_if(.., |record| submitted(record)));
        }
        // A free waits for the marks, where that is more than the device's own business.
        self.pay(done)
    }
}
