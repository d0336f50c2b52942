//! Operations of a pool other than requests: allocate ahead of time, give memory back, and read its
//! figures.

use crate::block::request::{PoolRequest, Wanted};
use crate::error::AllocError;
use crate::limits::{Budget, GivenBack};
use crate::observe::{DeviceStats, MemoryMap, PoolStats, Reason};
use crate::pool::BucketPool;
use crate::pool::waiting::WakeAtEnd;
use crate::port::{DeviceAllocator, DeviceError, Limit, StreamClock, Why};
use crate::size::Bytes;
use crate::store::{Goal, Store};
use std::collections::BTreeMap;
use std::time::Duration;

/// Also releases the memory that the allocator itself caches, and adds its error if `refusal` is
/// `None`.
fn and_allocator_cache<A: DeviceAllocator>(
    store: &Store<A>,
    (bytes, refusal): GivenBack,
) -> GivenBack {
    let kept = store.allocator.release_kept();
    (bytes, refusal.or(kept.err()))
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
            let request = request.map(|request| PoolRequest { private: None, ..request });
            let warm = request.and_then(|request| self.store().warm_up(&request, *count));
            drop(woken);
            warm.map_err(|error| self.refusal_of_warm_up(error, (*bytes, *count)))?;
        }
        Ok(())
    }

    /// The error of a warm-up. A limit that keeps fewer blocks than the call asks for is an argument that
    /// is wrong, and no lack of memory.
    #[cold]
    fn refusal_of_warm_up(&self, cause: DeviceError, (bytes, count): (u64, usize)) -> AllocError {
        let error = self.store().error(cause, bytes, bytes, 0);
        let blocks = format!("{count} blocks of {} ahead", Bytes(bytes));
        match cause.why {
            Why::Limit(Limit::Cached) => error.with_argument(format!(
                "{blocks}: over the cached limit of {}; expected all cached blocks within it, and without \
                 an arena each of at most half of it",
                Bytes(self.store().cached_limit())
            )),
            Why::Limit(Limit::Bucket) => error.with_argument(format!(
                "{blocks}: over the bucket limit; expected at most {} cached blocks of one size",
                self.store().bounds.keeping.bucket.of(bytes)
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
        self.release_and_report(|store| and_allocator_cache(store, store.shrink_to(reserved)))
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
            0 => store.trim(goal),
            _ => and_allocator_cache(store, store.trim(goal)),
        })
    }

    /// Gives cached memory back, oldest first, until the device has `bytes` free bytes, for what takes
    /// its memory beside the pool: a library's workspace, a module, a graph. Returns the bytes given
    /// back; call [`BucketPool::device_free_bytes`] to see whether it was enough. Where the device does
    /// not report its free memory, at least `bytes` cached bytes go.
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
        while given_back < most {
            let missing = match self.device_free_bytes() {
                Some(free) => bytes.saturating_sub(free),
                None => bytes.saturating_sub(given_back),
            };
            let given = if missing > 0 { self.trim(missing) } else { Ok(0) };
            match given {
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
        self.release_and_report(|store| and_allocator_cache(store, store.clear()))
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
        self.release_and_report(|store| store.tick(now))
    }

    pub(super) fn release_and_report(
        &self,
        work: impl Fn(&Store<A>) -> GivenBack,
    ) -> Result<u64, AllocError> {
        let store = self.store();
        let (bytes, refusal) = match store.fault() {
            // Cached memory stays: a forked process and a broken pool cannot use it, and the memory
            // of a lost device is dropped with the pool.
            Some(fault) if matches!(fault.why, Why::Forked | Why::Broken) => (0, Some(fault)),
            fault => {
                let (_watch, _woken) = (store.watch(), WakeAtEnd(self));
                let (bytes, refusal) = work(store);
                (bytes, fault.or(refusal))
            }
        };
        refusal.map_or(Ok(bytes), |error| Err(self.store().error(error, 0, 0, bytes)))
    }

    /// Returns the bytes of the blocks of live buffers, after rounding. Cached blocks are not
    /// included; [`BucketPool::reserved_bytes`] includes them.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.store().allocated_bytes()
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
            limit => limit - store.ledger.reserved().min(limit) + store.cached_bytes(),
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
        self.store().survey().free
    }

    /// Returns the number of blocks in use of each size in bytes. After a program has cleared its
    /// pool, these are the blocks that it still holds.
    #[must_use]
    pub fn outstanding_buffers(&self) -> BTreeMap<u64, usize> {
        self.store().survey().live
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
        self.store().stats()
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
        (store.shape.is_arena() && !store.is_unusable()).then(|| store.device_stats())
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
        store.map()
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
            store.reset_counts();
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
            store.reset_peaks();
        }
    }

    /// Returns the store; `None` in a forked child that cannot use it, or if the pool is broken.
    fn store_to_reset(&self) -> Option<&Store<A>> {
        let store = self.store();
        (!store.is_unusable()).then_some(store)
    }
}
