//! The builder of pools.

use crate::block::guards::Guards;
use crate::limits::{
    BucketLimit, Buckets, Budget, CachedLimit, CachedLimitNow, FullBucket, FullPool, Ledger,
    Retention,
};
use crate::observe::{Damage, Observer, Observers};
use crate::pool::BucketPool;
use crate::port::{DeviceAllocator, HostMemory, Sliceable, ZeroPolicy};
use crate::ranges::arena::ArenaConfig;
use crate::shard::KeepRules;
use crate::size::BucketPolicy;
use crate::store::{Layout, OnShortage, Settings, Store};
use crate::stream::StealPolicy;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The settings of a pool that is to be made.
#[derive(Clone)]
#[must_use = "a builder makes nothing until `build`"]
pub struct PoolBuilder<A: DeviceAllocator> {
    pub(super) allocator: A,
    pub(super) policy: Option<BucketPolicy>,
    pub(super) granule: Option<u64>,
    pub(super) reserved_limit: u64,
    pub(super) cached_limit: Option<CachedLimit>,
    pub(super) bucket_limit: BucketLimit,
    pub(super) full_bucket: FullBucket,
    pub(super) full_pool: FullPool,
    pub(super) window: RangeInclusive<u64>,
    pub(super) ahead: Vec<(u64, usize)>,
    zero: ZeroPolicy,
    statistics: bool,
    steal: StealPolicy,
    retention: Retention,
    pub(super) fraction: Option<f64>,
    on_shortage: Option<OnShortage>,
    /// The budget that the pool shares with others; `None` if each pool that is built gets its own.
    budget: Option<Budget>,
    observers: Observers,
    guards: Option<Guards<A>>,
    pub(super) shards: Option<usize>,
    pub(super) arena: Option<MakeShape<A>>,
}

/// The configuration of an arena, and the function that makes its layout. [`PoolBuilder::arena`]
/// stores the function, because only there `A` is known to be [`Sliceable`].
pub(super) type MakeShape<A> = (ArenaConfig, fn(&A, ArenaConfig) -> Layout<A>);

impl<A: DeviceAllocator> PoolBuilder<A> {
    /// Sets how requests are rounded to size classes. Unless set, powers of two without an arena,
    /// and exact sizes with an arena, which uses the rest of a range for other requests.
    pub fn policy(self, policy: BucketPolicy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Gives the pool an arena, which splits blocks out of large ones and coalesces free
    /// neighbours.
    ///
    /// The pool then splits all its memory: free ranges are its cached blocks, and
    /// [`PoolBuilder::cached_limit`] bounds their sum. Memory above that bound goes back in whole
    /// pages or segments. Blocks are parts of segments, so
    /// [`Detached::into_raw`](crate::buffer::Detached::into_raw) returns them as an error.
    /// [`PoolBuilder::bucket_limit`] has no effect, which [`PoolBuilder::try_build`] refuses.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{ArenaConfig, BucketPool, MIB, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::builder(device.clone()).arena(ArenaConfig::grow()).build();
    /// let tensors = [pool.allocate(3 * MIB)?, pool.allocate(5 * MIB)?];
    /// drop(tensors);
    /// let merged = pool.allocate(8 * MIB)?; // both, and nothing more from the device
    /// assert_eq!(device.calls().commits, 2);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn arena(self, config: ArenaConfig) -> Self
    where
        A: Sliceable,
    {
        Self { arena: Some((config, Layout::of_arena)), ..self }
    }

    /// Detects writes beyond the end of a buffer, and writes to freed memory.
    ///
    /// Each buffer has at least 16 bytes more, whose contents are checked when it is freed. Freed
    /// memory is filled with 0xDD and checked when it is handed out again. (With an arena it is not
    /// checked, because the arena splits blocks.) The pool calls `report` with the damage, on the
    /// thread that frees or requests; a panic in `report` is caught.
    ///
    /// It is for tests, because each request and each free touches all bytes of the block.
    pub fn guards(self, report: impl Fn(&Damage) + Send + Sync + 'static) -> Self
    where
        A: HostMemory,
    {
        Self { guards: Some(Guards::new(Arc::new(report))), ..self }
    }

    /// Sets the granule in bytes: requests are rounded up to a multiple of it before the policy
    /// applies.
    ///
    /// Under `PowerOfTwo` it is the smallest class. 0 counts as 1. Unless set, it is the policy's
    /// own ([`BucketPolicy::default_granule`]); for exact sizes it is the alignment of blocks
    /// ([`DeviceAllocator::alignment_of`]). On the host this is 64 bytes, where the bytes up to the
    /// next multiple of 64 cannot serve another request.
    pub fn granule(self, bytes: u64) -> Self {
        Self { granule: Some(bytes), ..self }
    }

    /// Sets the limit, in bytes, on memory that is taken from the device. No limit unless set.
    pub fn reserved_limit(self, bytes: u64) -> Self {
        Self { reserved_limit: bytes, ..self }
    }

    /// Names the pool, for observers and in its `Debug` output. Empty unless set.
    pub fn name(mut self, name: &str) -> Self {
        self.observers.name = name.into();
        self
    }

    /// Adds an observer, which is notified of each request, free and eviction.
    ///
    /// The pool keeps the observer until the last buffer is dropped. An observer that holds a clone
    /// of the pool keeps the pool open.
    pub fn observer(mut self, observer: Arc<impl Observer>) -> Self {
        self.observers.add(observer);
        self
    }

    /// Sets a limit that the pool shares with other pools, and that may change while it is used.
    /// The pool's own limits hold as well.
    pub fn budget(self, budget: &Budget) -> Self {
        Self { budget: Some(budget.clone()), ..self }
    }

    /// Sets a limit on cached bytes, in bytes (`4 * GIB`) or as a share of the peak
    /// ([`CachedLimit::OfPeak`]). No limit unless set.
    ///
    /// Without an arena the pool evicts the oldest blocks first, and does not keep a block that
    /// alone is more than half the limit. With an arena the limit applies to free ranges. The pool
    /// releases the excess in whole pages or segments, beginning with the smallest run of pages or
    /// segment that is enough.
    pub fn cached_limit(self, limit: impl Into<CachedLimit>) -> Self {
        Self { cached_limit: Some(limit.into()), ..self }
    }

    /// Returns the limit on cached bytes of a pool of this builder.
    pub fn bound_on_cached_bytes(&self) -> CachedLimit {
        self.cached_limit.unwrap_or(CachedLimit::Unlimited)
    }

    /// Sets the limit on memory that is taken from the device as a share, 0 to 1, of all memory of
    /// the device. The lower of this and [`PoolBuilder::reserved_limit`] holds. If the device does
    /// not report its memory, only the latter holds. (`PyTorch`:
    /// `set_per_process_memory_fraction`.)
    pub fn memory_fraction(self, share: f64) -> Self {
        Self { fraction: Some(share), ..self }
    }

    /// Sets when a stream may steal memory that another stream freed. [`StealPolicy::Wait`] unless
    /// set.
    pub fn steal(self, steal: StealPolicy) -> Self {
        Self { steal, ..self }
    }

    /// Sets how long cached memory is kept; [`BucketPool::tick`] gives back what is older. Without
    /// end unless set.
    pub fn retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// Sets a function that the pool calls with the bytes of a request that would otherwise be
    /// refused. The program may drop buffers in it. It returns whether the pool should try again.
    ///
    /// The pool calls it at most eight times for a request, on the thread that made the request,
    /// with no lock held. For a request that waits ([`BucketPool::allocate_timeout`]), the pool
    /// calls it at most eight times at each of its tries. It is not called for requests that it makes
    /// itself, of any pool: those are refused.
    ///
    /// The pool drops the closure when its last clone is dropped, and with it the buffers that the
    /// closure holds. A closure that holds a clone of the pool keeps the pool open.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, sim::SimDevice};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let spare = Arc::new(Mutex::new(None));
    /// let dropped = spare.clone();
    /// let pool = BucketPool::builder(SimDevice::with_capacity(4096))
    ///     .on_shortage(move |_bytes| dropped.lock().unwrap().take().is_some())
    ///     .build();
    /// *spare.lock().unwrap() = Some(pool.allocate(4096)?);
    /// assert!(pool.allocate(4096).is_ok());
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn on_shortage(self, call: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        Self { on_shortage: Some(Arc::new(call)), ..self }
    }

    /// Sets the limit on the number of cached blocks of one size, kind and stream in the whole
    /// pool. [`PoolBuilder::full_bucket`] sets what happens to further blocks. No limit unless set.
    pub fn bucket_limit(mut self, blocks: usize) -> Self {
        self.bucket_limit.max_blocks = blocks;
        self
    }

    /// Sets what happens to a freed block when [`PoolBuilder::bucket_limit`] is reached.
    /// [`FullBucket::EvictOldest`] unless set. Without a limit of a bucket it has no effect.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, limits::FullBucket, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pool = BucketPool::builder(device.clone())
    ///     .bucket_limit(1)
    ///     .full_bucket(FullBucket::RefuseNewest)
    ///     .build();
    /// drop([pool.allocate(4096)?, pool.allocate(4096)?]);
    /// pool.trim(0)?; // what a drop may not give back
    /// assert_eq!((pool.cached_buffers()[&4096], device.calls().frees), (1, 1));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn full_bucket(self, full_bucket: FullBucket) -> Self {
        Self { full_bucket, ..self }
    }

    /// Sets what happens to a freed block for which [`PoolBuilder::cached_limit`] leaves no room.
    /// [`FullPool::EvictOldest`] unless set. An arena has no whole blocks, so [`PoolBuilder::try_build`]
    /// refuses the two together.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, limits::FullPool, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new())
    ///     .cached_limit(4 * MIB)
    ///     .full_pool(FullPool::RefuseNewest)
    ///     .build();
    /// drop([pool.allocate(4 * MIB)?, pool.allocate(MIB)?]);
    /// assert_eq!(pool.cached_buffers(), [(4 * MIB, 1)].into(), "the last one found the pool full");
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn full_pool(self, full_pool: FullPool) -> Self {
        Self { full_pool, ..self }
    }

    /// Sets how many shards the pool has: parts with a lock each, of which a thread (or a stream, for
    /// memory that has them) begins with one. 1 to 64; 0 counts as 1, and more as 64. Pools under
    /// [`ArenaConfig::torch`] and [`ArenaConfig::uncached`] have one, and over memory with streams
    /// those with a [`bucket_limit`](Self::bucket_limit).
    ///
    /// Several shards of host memory reserve at most 1.5 times what one would need, and a block for
    /// each thread that asked the device at once (`docs/policies.md`, Shards, has the exceptions).
    ///
    /// With one shard, the pool is one heap whose figures and limits are exact at each moment.
    pub fn shards(self, count: usize) -> Self {
        Self { shards: Some(count), ..self }
    }

    /// Sets the limit on cached blocks for sizes from `from_bytes` on, whatever
    /// [`PoolBuilder::bucket_limit`] says.
    pub fn large_bucket_limit(mut self, from_bytes: u64, blocks: usize) -> Self {
        self.bucket_limit = BucketLimit {
            large_min_bytes: from_bytes,
            max_large_blocks: blocks,
            ..self.bucket_limit
        };
        self
    }

    /// Sets the request sizes, in bytes, that the pool caches. Other requests bypass the pool and
    /// go to the device, within the reserved limit. All sizes unless set. A pool with an arena
    /// serves all requests from its segments, and counts the others as bypasses.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).window(1..=64 * MIB).build();
    /// drop(pool.allocate(65 * MIB)?);
    /// assert_eq!((pool.stats().bypasses, pool.cached_buffers().len()), (1, 0));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn window(self, bytes: RangeInclusive<u64>) -> Self {
        Self { window: bytes, ..self }
    }

    /// Sets the blocks that the pool allocates when it is made: for each `(bytes, count)`, `count`
    /// cached blocks of the class of `bytes`. A block that the device or a limit refuses is
    /// allocated when it is requested; [`BucketPool::warm_up`] returns the reason of a refusal.
    /// [`PoolBuilder::try_build`] refuses blocks for which other settings leave no room.
    pub fn ahead(self, blocks: &[(u64, usize)]) -> Self {
        Self { ahead: blocks.to_vec(), ..self }
    }

    /// Sets when blocks are zeroed. Unless set, it is what the users of the memory expect
    /// ([`Memory::default_zero`](crate::port::Memory::default_zero)).
    pub fn zero(self, zero: ZeroPolicy) -> Self {
        Self { zero, ..self }
    }

    /// Turns counts of requests on or off. Bytes are always counted, because the limits need them.
    /// On unless set.
    pub fn statistics(self, on: bool) -> Self {
        Self { statistics: on, ..self }
    }

    /// Makes the pool. Takes no memory from the device except for [`PoolBuilder::ahead`].
    ///
    /// Replaces a setting that is out of its range by one that can be used, such as a fraction of 7
    /// by 1, or ignores it; [`PoolBuilder::try_build`] returns it as an error.
    #[must_use]
    pub fn build(self) -> BucketPool<A> {
        let (cached, limit) = (self.bound_on_cached_bytes(), self.bound_on_reserved_bytes());
        let layout = self.layout();
        let classes = self.size_classes(&layout);
        let of_arena = self.arena.as_ref().map(|(config, _)| config.steal);
        let steal = of_arena.map_or(self.steal, |steal| steal.min(self.steal));
        let settings = Settings {
            cached: CachedLimitNow::new(cached),
            rules: KeepRules {
                bucket: Buckets::new(self.bucket_limit),
                limits_buckets: self.bucket_limit != BucketLimit::NONE,
                full_bucket: self.full_bucket,
                full_pool: self.full_pool,
                statistics: self.statistics,
            },
            statistics: self.statistics,
            zero: self.zero,
            steal,
            retention: self.retention,
        };
        let ledger = Ledger::new(limit, self.budget.unwrap_or_default());
        let store = Store::new(
            (self.allocator, layout),
            classes,
            settings,
            ledger,
            (self.on_shortage, self.observers, self.guards),
            self.shards.map(|count| count.max(1)),
        );
        let pool = BucketPool::over(store);
        for blocks in self.ahead {
            // If a block is refused, the first request of that size reports it, unless it succeeds
            // then.
            let _ = pool.warm_up(&[blocks]);
        }
        pool
    }
}

impl<A: DeviceAllocator> fmt::Debug for PoolBuilder<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// Makes a pool with the default settings of the builder.
    #[must_use]
    pub fn new(allocator: A) -> Self {
        Self::builder(allocator).build()
    }

    /// Returns a builder of a pool with other settings.
    pub fn builder(allocator: A) -> PoolBuilder<A> {
        PoolBuilder {
            allocator,
            policy: None,
            granule: None,
            reserved_limit: u64::MAX,
            cached_limit: None,
            bucket_limit: BucketLimit::NONE,
            full_bucket: FullBucket::default(),
            full_pool: FullPool::default(),
            window: 0..=u64::MAX,
            ahead: Vec::new(),
            zero: A::MEMORY.default_zero,
            statistics: true,
            steal: StealPolicy::default(),
            retention: Retention::default(),
            fraction: None,
            on_shortage: None,
            budget: None,
            observers: Observers::default(),
            guards: None,
            shards: None,
            arena: None,
        }
    }
}
