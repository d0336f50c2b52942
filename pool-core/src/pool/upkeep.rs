//! Operations of a pool other than requests: allocate ahead of time, give memory back, and read its
//! figures.

use crate::block::{PoolRequest, Wanted};
use crate::error::AllocError;
use crate::limits::{Budget, CachedLimit, GivenBack};
use crate::observe::{DeviceStats, MemoryMap, PoolStats, Reason};
use crate::pool::BucketPool;
use crate::pool::settings::check_cached_limit;
use crate::pool::waiting::WakeAtEnd;
use crate::port::{DeviceAllocator, DeviceError, Limit, StreamClock, Why};
use crate::size::Bytes;
use crate::store::{Goal, Store, figures, refusal, sums, trim, warm};
use std::collections::BTreeMap;
use std::time::Duration;

/// Also releases the memory that the allocator itself caches, and adds its error if `refusal` is
/// `None`.
fn and_allocator_cache<A: DeviceAllocator>(
    store: &Store<A>,
    mut given_back: GivenBack,
) -> GivenBack {
    given_back += GivenBack { bytes: 0, refusal: store.allocator.release_kept().err() };
    given_back
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// Allocates cached blocks from the device ahead of time: for each `(bytes, count)`, `count`
    /// blocks of the class of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Why::Limit`] if the blocks do not fit under the cached, the bucket or the reserved limit
    /// (a cached limit that is a share of the peak is 0 before the first allocation),
    /// [`Why::Unsupported`] for a size that bypasses the pool, or the error of the device. Blocks
    /// that were allocated before the error stay.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// pool.warm_up(&[(4 * MIB, 16)])?;
    /// pool.allocate(3 * MIB)?;
    /// assert_eq!(pool.stats().hit_rate(), 1.0);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn warm_up(&self, classes: &[(u64, usize)]) -> Result<(), AllocError> {
        let on = self.allocator().clock().default_stream();
        let guarded = self.store().guards.is_some();
        for (bytes, count) in classes {
            if guarded {
                // Guards expect the fill pattern of freed memory in a cached block, so the blocks
                // are allocated and freed as buffers.
                let buffers = std::iter::repeat_with(|| self.allocate(*bytes)).take(*count);
                buffers.collect::<Result<Vec<_>, _>>()?;
                continue;
            }
            // A request that waits may use one of the new blocks, or memory that was freed to make
            // room for them.
            let (_watch, woken) = (self.store().watch(), WakeAtEnd(self));
            let kind = A::Kind::default();
            let wanted = Wanted { stream: on, bytes: *bytes, kind, zeroed: false };
            let request = self.pool_request(wanted, on);
            let shared = |request| PoolRequest { private: None, is_untold: false, ..request };
            let request = request.map(shared);
            let warm = request.and_then(|request| warm::warm_up(self.store(), &request, *count));
            drop(woken);
            warm.map_err(|error| self.refusal_of_warm_up(error, (*bytes, *count)))?;
        }
        Ok(())
    }

    /// The error of a warm-up. A limit that keeps fewer blocks than the call asks for is an argument that
    /// is wrong, and no lack of memory.
    #[cold]
    fn refusal_of_warm_up(&self, cause: DeviceError, (bytes, count): (u64, usize)) -> AllocError {
        let error = refusal::error(self.store(), cause, bytes, bytes, 0);
        let blocks = format!("{count} blocks of {} ahead", Bytes(bytes));
        match cause.why {
            Why::Limit(Limit::Cached) => error.with_argument(format!(
                "{blocks}: over the cached limit of {}; expected all cached blocks within it, and without \
                 an arena each of at most half of it",
                Bytes(sums::cached_limit(self.store()))
            )),
            Why::Limit(Limit::Bucket) => error.with_argument(format!(
                "{blocks}: over the bucket limit; expected at most {} cached blocks of one size",
                self.store().settings.rules.bucket.of(bytes)
            )),
            _ => error,
        }
    }

    /// Gives cached blocks back, largest first, until at most `reserved` bytes are reserved or no
    /// block is cached. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// The first refusal of the device. The other blocks went back nevertheless. A block that the
    /// device refused is lost, and counted in [`PoolStats::lost_bytes`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, Why, sim::{SimCall, SimDevice}};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// drop([pool.allocate(MIB)?, pool.allocate(4 * MIB)?]);
    /// assert_eq!(pool.shrink_to(2 * MIB)?, 4 * MIB); // the largest first
    /// device.fail(SimCall::Free, 0, 1);
    /// assert_eq!(pool.shrink_to(0).unwrap_err().why(), Why::Other);
    /// assert_eq!(pool.stats().lost_bytes, MIB);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn shrink_to(&self, reserved: u64) -> Result<u64, AllocError> {
        self.release_and_report(|store| {
            and_allocator_cache(store, trim::shrink_to(store, reserved))
        })
    }

    /// Gives back at least `bytes` cached bytes, oldest first, or all if there are fewer. Returns
    /// the bytes given back. `trim(0)` only does the frees that drops deferred, and gives
    /// back what is above the cached limit.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, Why, sim::{SimCall, SimDevice}};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// drop(pool.allocate(MIB)?);
    /// drop(pool.allocate(4 * MIB)?);
    /// assert_eq!(pool.trim(1)?, MIB); // the oldest first
    /// device.fail(SimCall::Free, 0, 1);
    /// assert_eq!(pool.trim(1).unwrap_err().why(), Why::Other);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn trim(&self, bytes: u64) -> Result<u64, AllocError> {
        let goal = Goal { bytes, reason: Reason::Asked };
        self.release_and_report(|store| match bytes {
            0 => trim::trim(store, goal),
            _ => and_allocator_cache(store, trim::trim(store, goal)),
        })
    }

    /// Gives cached memory back, oldest first, until the device has `bytes` free bytes, for what takes
    /// its memory beside the pool: a library's workspace, a module, a graph. What a pool of the driver
    /// keeps of earlier frees goes first. Returns the cached bytes given back; call
    /// [`BucketPool::device_free_bytes`] to see whether it was enough. Where the device does not report
    /// its free memory, at least `bytes` cached bytes go.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::with_capacity(8 * MIB));
    /// let six = [(); 3].map(|()| pool.allocate(2 * MIB));
    /// drop(six);
    /// assert_eq!(pool.make_room(3 * MIB)?, 2 * MIB); // 2 MiB were free
    /// assert_eq!(pool.make_room(3 * MIB)?, 0);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn make_room(&self, bytes: u64) -> Result<u64, AllocError> {
        // What other threads free meanwhile is theirs to reuse.
        let (most, mut given_back) = (self.stats().cached_bytes, 0);
        let missing = |given_back| match self.device_free_bytes() {
            Some(free) => bytes.saturating_sub(free),
            None => bytes.saturating_sub(given_back),
        };
        while missing(given_back) > 0 {
            // What a pool of the driver keeps; what that refuses is missing still.
            let _ = self.allocator().give_all_back();
            let missing = missing(given_back);
            if missing == 0 || given_back >= most {
                break;
            }
            match self.trim(missing) {
                Ok(0) => break,
                Ok(given) => given_back += given,
                Err(refused) if given_back == 0 => return Err(refused),
                Err(_) => break,
            }
        }
        Ok(given_back)
    }

    /// Gives back all cached blocks, after waiting for the device to finish with them. Returns the
    /// bytes given back. Blocks that wait for work that is not submitted stay.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, Why, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::new(device.clone());
    /// drop(pool.allocate(MIB)?);
    /// assert_eq!((pool.clear()?, device.held_bytes()), (MIB, 0));
    /// drop(pool.allocate(MIB)?);
    /// device.lose_after(0);
    /// assert_eq!(pool.clear().unwrap_err().why(), Why::Lost);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn clear(&self) -> Result<u64, AllocError> {
        self.release_and_report(|store| {
            and_allocator_cache(store, trim::clear(store, Reason::Asked))
        })
    }

    /// Gives back memory that has been cached for longer than the pool's
    /// [`Retention`](crate::limits::Retention) allows. Returns the bytes given back.
    ///
    /// `now` is the caller's own time, such as the time since the program began, so that a test can
    /// advance it.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, limits::Retention, sim::SimDevice};
    /// use std::time::Duration;
    ///
    /// let minute = Retention { time: Some(Duration::from_secs(60)), ..Retention::default() };
    /// let pool = BucketPool::builder(SimDevice::new()).retention(minute).build();
    /// drop(pool.allocate(4096)?);
    /// assert_eq!(pool.tick(Duration::from_secs(10))?, 0);
    /// assert_eq!(pool.tick(Duration::from_secs(70))?, 4096);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    pub fn tick(&self, now: Duration) -> Result<u64, AllocError> {
        self.release_and_report(|store| trim::tick(store, now))
    }

    pub(super) fn release_and_report(
        &self,
        work: impl Fn(&Store<A>) -> GivenBack,
    ) -> Result<u64, AllocError> {
        let store = self.store();
        let given_back = match store.fault() {
            // Cached memory stays: a forked process and a broken pool cannot use it, and the memory
            // of a lost device is dropped with the pool.
            Some(fault) if matches!(fault.why, Why::Forked | Why::Broken) => {
                GivenBack { bytes: 0, refusal: Some(fault) }
            }
            fault => {
                let (_watch, _woken) = (store.watch(), WakeAtEnd(self));
                let mut given_back = GivenBack { bytes: 0, refusal: fault };
                given_back += work(store);
                given_back
            }
        };
        let GivenBack { bytes, refusal } = given_back;
        refusal.map_or(Ok(bytes), |error| Err(refusal::error(self.store(), error, 0, 0, bytes)))
    }

    /// Returns the bytes of the blocks of live buffers, after rounding. Cached blocks are not
    /// included; [`BucketPool::reserved_bytes`] includes them.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        sums::allocated_bytes(self.store())
    }

    /// Returns the bytes taken from the device and not given back: those of live buffers and of
    /// cached blocks.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, KIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// drop(pool.allocate(4 * KIB)?);
    /// assert_eq!((pool.allocated_bytes(), pool.reserved_bytes()), (0, 4 * KIB));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.store().ledger.reserved()
    }

    /// Returns the bytes that can still be handed out under the pool's limit and its budget's
    /// limit: the bytes that are not reserved, plus the bytes that the pool has cached. `u64::MAX`
    /// without a limit.
    #[must_use]
    pub fn available_bytes(&self) -> u64 {
        let store = self.store();
        match store.ledger.limit_now() {
            u64::MAX => u64::MAX,
            limit => limit - store.ledger.reserved().min(limit) + sums::cached_bytes(store),
        }
    }

    /// Returns the total memory of the device in bytes, or `None` if the device does not report it.
    #[must_use]
    pub fn device_total_bytes(&self) -> Option<u64> {
        self.allocator().total_bytes()
    }

    /// Returns the free memory of the device in bytes, or `None` if its driver does not report it.
    /// Calls the driver. For the driver, memory that the pool has cached is not free.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::with_capacity(8 * MIB));
    /// let _buffer = pool.allocate(2 * MIB)?;
    /// assert_eq!(pool.device_total_bytes(), Some(8 * MIB));
    /// assert_eq!(pool.device_free_bytes(), Some(6 * MIB));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[must_use]
    pub fn device_free_bytes(&self) -> Option<u64> {
        self.allocator().free_bytes()
    }

    /// Returns the number of cached blocks of each size in bytes.
    #[must_use]
    pub fn cached_buffers(&self) -> BTreeMap<u64, usize> {
        figures::survey(self.store(), None).free
    }

    /// Returns the number of blocks in use of each size in bytes. After a program has cleared its
    /// pool, these are the blocks that it still holds.
    #[must_use]
    pub fn outstanding_buffers(&self) -> BTreeMap<u64, usize> {
        figures::survey(self.store(), None).live
    }

    /// Returns the budget of the pool: the one that it was built with, or a budget for this pool
    /// alone.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.store().ledger.budget
    }

    /// Returns the current figures. They are exact when no thread is inside the pool; otherwise a
    /// figure may be off, in either direction, by the work of other threads during the call.
    ///
    /// Takes each lock of the pool for a moment, or for a portion of the ranges at a time. The cost is
    /// linear in the number of all blocks.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        figures::stats(self.store())
    }

    /// Returns the figures of the arena by the names of `PyTorch`'s `DeviceStats`; `None` in a pool
    /// without an arena.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{ArenaConfig, BucketPool, MIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::torch()).build();
    /// let _tensor = pool.allocate(4 * MIB)?;
    /// let stats = pool.device_stats().unwrap_or_default();
    /// assert_eq!(stats.reserved_bytes.all.current, 20 * MIB); // a segment
    /// assert_eq!(stats.inactive_split_bytes.large.current, 16 * MIB);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[must_use]
    pub fn device_stats(&self) -> Option<DeviceStats> {
        let store = self.store();
        (store.layout.is_arena() && !store.is_unusable()).then(|| figures::device_stats(store))
    }

    /// Returns a map of all memory of the pool as it is now: segments and their ranges, with state,
    /// stream and age. The cost is linear in the number of ranges.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{ArenaConfig, BucketPool, MIB, observe::RangeState, sim::SimDevice};
    ///
    /// let config = ArenaConfig::segments(2 * MIB);
    /// let pool = BucketPool::builder(SimDevice::new()).arena(config).build();
    /// let _buffer = pool.allocate(MIB)?;
    /// let ranges = &pool.map().segments[0].ranges;
    /// assert_eq!((ranges[0].range.clone(), ranges[0].state), (0..MIB, RangeState::Used));
    /// assert_eq!((ranges[1].range.clone(), ranges[1].state), (MIB..2 * MIB, RangeState::Free));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[must_use]
    pub fn map(&self) -> MemoryMap {
        let store = self.store();
        if store.is_unusable() {
            return MemoryMap::default();
        }
        figures::map(store)
    }

    /// Sets all counts to 0 and restarts the peaks from the current bytes:
    /// [`BucketPool::reset_counts`] and [`BucketPool::reset_peaks`].
    pub fn reset_stats(&self) {
        self.reset_counts();
        self.reset_peaks();
    }

    /// Sets all counts to 0: requests, hits, frees, evictions, calls of the device, and bytes
    /// served. Peaks stay. (`PyTorch`: `reset_accumulated_memory_stats`.)
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, KIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// drop(pool.allocate(4 * KIB)?);
    /// pool.reset_counts();
    /// let stats = pool.stats();
    /// assert_eq!((stats.allocations, stats.requested_peak_bytes), (0, 4 * KIB));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn reset_counts(&self) {
        if let Some(store) = self.store_to_reset() {
            sums::reset_counts(store);
        }
    }

    /// Restarts the peaks from the current bytes. Counts stay. (`PyTorch`:
    /// `reset_peak_memory_stats`.)
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, KIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// drop(pool.allocate(4 * KIB)?);
    /// pool.reset_peaks();
    /// let stats = pool.stats();
    /// assert_eq!((stats.allocations, stats.requested_peak_bytes), (1, 0));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn reset_peaks(&self) {
        if let Some(store) = self.store_to_reset() {
            sums::reset_peaks(store);
        }
    }

    /// Returns the store; `None` in a forked child that cannot use it, or if the pool is broken.
    fn store_to_reset(&self) -> Option<&Store<A>> {
        let store = self.store();
        (!store.is_unusable()).then_some(store)
    }
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// Changes the reserved limit, in bytes. Returns the bytes given back.
    ///
    /// A lower limit takes effect at once: cached memory goes back until at most `bytes` bytes are
    /// reserved. If buffers use more than that, the excess stays until they are dropped. A higher
    /// limit wakes the requests that wait.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`]; the new limit holds nevertheless.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, Why, port::Limit, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB).build();
    /// drop(pool.allocate(4 * MIB)?);
    /// assert_eq!(pool.set_reserved_limit(MIB)?, 4 * MIB);
    /// assert_eq!(pool.allocate(2 * MIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn set_reserved_limit(&self, bytes: u64) -> Result<u64, AllocError> {
        self.store().ledger.set_limit(bytes);
        self.release_and_report(|store| match store.ledger.reserved() > bytes {
            true => trim::shrink_to(store, bytes),
            false => GivenBack::default(),
        })
    }

    /// Changes the limit on cached memory. Returns the bytes given back.
    ///
    /// A lower limit takes effect at once: old blocks go back, of the 32 oldest the largest first, until
    /// what is cached is within it; with an arena whole pages and segments. A higher limit, or
    /// [`CachedLimit::Unlimited`], holds for what is freed from then on. Cost: linear in the number of
    /// blocks that go, times the number of [shards](crate::PoolBuilder::shards).
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`]; the new limit holds nevertheless. [`Why::OutOfRange`] for a share
    /// that is not from 0 to 10; the old limit holds then.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, limits::CachedLimit, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// drop([pool.allocate(4 * MIB)?, pool.allocate(MIB)?]);
    /// assert_eq!(pool.set_cached_limit(2 * MIB)?, 4 * MIB);
    /// assert_eq!(pool.stats().cached_bytes, MIB);
    /// pool.set_cached_limit(CachedLimit::Unlimited)?;
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn set_cached_limit(&self, limit: impl Into<CachedLimit>) -> Result<u64, AllocError> {
        let limit = limit.into();
        if let Err(error) = check_cached_limit(limit) {
            let refused =
                AllocError::from(DeviceError::new(Why::OutOfRange, "set the cached limit"));
            return Err(refused.with_argument(error.to_string()));
        }
        self.release_and_report(|store| trim::set_cached_limit(store, limit))
    }

    /// Changes the limit on the cached blocks of one size, kind and stream, of a pool that was built with
    /// one ([`PoolBuilder::bucket_limit`](crate::PoolBuilder::bucket_limit)). Returns the bytes given
    /// back.
    ///
    /// A lower limit takes effect at once: the oldest blocks of each size go. `usize::MAX` is no limit.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`]; the new limit holds nevertheless. [`Why::Unsupported`] for a pool
    /// that was built without such a limit: its shards do not count blocks of a size together.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).bucket_limit(3).build();
    /// drop([pool.allocate(MIB)?, pool.allocate(MIB)?, pool.allocate(MIB)?]);
    /// assert_eq!(pool.set_bucket_limit(1)?, 2 * MIB);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn set_bucket_limit(&self, blocks: usize) -> Result<u64, AllocError> {
        self.change_bucket_limit(blocks, false)
    }

    /// As [`BucketPool::set_bucket_limit`], for the sizes that
    /// [`PoolBuilder::large_bucket_limit`](crate::PoolBuilder::large_bucket_limit) named.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::set_bucket_limit`]; [`Why::Unsupported`] also for a pool that was built without
    /// a `large_bucket_limit`.
    pub fn set_large_bucket_limit(&self, blocks: usize) -> Result<u64, AllocError> {
        self.change_bucket_limit(blocks, true)
    }

    fn change_bucket_limit(&self, blocks: usize, large: bool) -> Result<u64, AllocError> {
        let rules = &self.store().settings.rules;
        let call = match large {
            _ if self.store().layout.is_arena() => "a limit on buckets in an arena",
            false => "a limit on buckets in a pool that was built without `bucket_limit`",
            true => {
                "a limit on large buckets in a pool that was built without `large_bucket_limit`"
            }
        };
        let has_large = rules.bucket.has_large();
        if !rules.limits_buckets || self.store().layout.is_arena() || (large && !has_large) {
            return Err(DeviceError::new(Why::Unsupported, call).into());
        }
        self.release_and_report(|store| trim::set_bucket_limit(store, blocks, large))
    }
}
