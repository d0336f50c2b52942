//! Limits that change in a running pool.

use crate::error::AllocError;
use crate::limits::CachedLimit;
use crate::pool::BucketPool;
use crate::pool::settings::check_cached_limit;
use crate::port::{DeviceAllocator, DeviceError, Why};

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
            true => store.shrink_to(bytes),
            false => (0, None),
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
        self.release_and_report(|store| store.set_cached_limit(limit))
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
        let keeping = &self.store().bounds.keeping;
        let call = match large {
            _ if self.store().shape.is_arena() => "a limit on buckets in an arena",
            false => "a limit on buckets in a pool that was built without `bucket_limit`",
            true => {
                "a limit on large buckets in a pool that was built without `large_bucket_limit`"
            }
        };
        let has_large = keeping.bucket.has_large();
        if !keeping.limits_buckets || self.store().shape.is_arena() || (large && !has_large) {
            return Err(DeviceError::new(Why::Unsupported, call).into());
        }
        self.release_and_report(|store| store.set_bucket_limit(blocks, large))
    }
}
