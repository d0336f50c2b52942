//! How a pool is made.

use crate::book::arena::ArenaConfig;
use crate::budget::Budget;
use crate::budget::ledger::Ledger;
use crate::device::zero::ZeroPolicy;
use crate::device::{DeviceAllocator, Sliceable};
use crate::observe::{Observer, Observers};
use crate::policy::limit::{BucketLimit, CachedLimit, FullBucket};
use crate::policy::retention::Retention;
use crate::policy::{BucketPolicy, SizeClasses};
use crate::pool::BucketPool;
use crate::pool::guards::{Damage, Guards};
use crate::pool::host_memory::HostMemory;
use crate::pool::store::{Bounds, OnShortage, PoolBook, Store};
use crate::stream::order::StealPolicy;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// How a pool is made.
#[derive(Clone)]
#[must_use = "a builder makes nothing until `build`"]
pub struct PoolBuilder<A: DeviceAllocator> {
    allocator: A,
    policy: Option<BucketPolicy>,
    granule: Option<u64>,
    reserved_limit: u64,
    cached_limit: Option<CachedLimit>,
    bucket_limit: BucketLimit,
    full_bucket: FullBucket,
    window: RangeInclusive<u64>,
    ahead: Vec<(u64, usize)>,
    zero: ZeroPolicy,
    statistics: bool,
    steal: StealPolicy,
    retention: Retention,
    fraction: Option<f64>,
    on_shortage: Option<OnShortage>,
    budget: Budget,
    observers: Observers,
    guards: Option<Guards<A>>,
    book: Option<MakeBook<A>>,
}

/// Makes the book of an arena: where the device is known to be sliceable.
type MakeBook<A> = (ArenaConfig, fn(&A, ArenaConfig) -> PoolBook<A>);

impl<A: Sliceable> PoolBuilder<A> {
    /// The pool splits blocks out of large ones, and coalesces free neighbours.
    ///
    /// The pool has one book of all its memory then: free ranges are its cached blocks, and
    /// [`PoolBuilder::cached_limit`] bounds their sum. What exceeds it goes back in whole pages or
    /// segments. Blocks are parts of segments, so
    /// [`Detached::into_raw`](crate::Detached::into_raw) returns them as an error.
    /// [`PoolBuilder::bucket_limit`] has no effect.
    ///
    /// ```
    /// # use pool_core as bucketpool;
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
    pub fn arena(self, config: ArenaConfig) -> Self {
        Self { book: Some((config, PoolBook::new)), ..self }
    }
}

impl<A: HostMemory> PoolBuilder<A> {
    /// Finds writes behind the end of a buffer, and to memory that was freed: each buffer has at
    /// least 16 bytes more, whose contents are checked when it is freed, and freed memory is filled
    /// with 0xDD and checked when it is handed out again (with an arena it is not checked, since
    /// blocks are split). `report` is told what was found, on the thread that frees or requests; a
    /// panic in it is caught.
    ///
    /// For tests: each request and free touches all bytes of the block.
    pub fn guards(self, report: impl Fn(&Damage) + Send + Sync + 'static) -> Self {
        Self { guards: Some(Guards::new(Arc::new(report))), ..self }
    }
}

impl<A: DeviceAllocator> PoolBuilder<A> {
    /// How requests are rounded to size classes. Unless set, powers of two without an arena, and
    /// exact sizes with one, which uses the rest of a range for other requests.
    pub fn policy(self, policy: BucketPolicy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Requests are rounded up to a multiple of this many bytes before the policy is asked; under
    /// `PowerOfTwo` it is the smallest class. 0 counts as 1. Unless set, the policy's own
    /// ([`BucketPolicy::default_granule`]); for exact sizes what blocks are aligned to
    /// ([`DeviceAllocator::alignment_of`]): 64 bytes on the host, where the bytes up to the next
    /// such multiple serve nobody else.
    pub fn granule(self, bytes: u64) -> Self {
        Self { granule: Some(bytes), ..self }
    }

    /// A hard ceiling, in bytes, on what is taken from the device. None unless set.
    pub fn reserved_limit(self, bytes: u64) -> Self {
        Self { reserved_limit: bytes, ..self }
    }

    /// Names the pool, for observers and in its `Debug` output. Empty unless set.
    pub fn name(mut self, name: &str) -> Self {
        self.observers.name = name.into();
        self
    }

    /// Adds an observer, which is told of each request, free and eviction.
    ///
    /// The pool keeps the observer until the last buffer is dropped. An observer that holds a clone
    /// of the pool keeps the pool open.
    pub fn observer(mut self, observer: Arc<impl Observer>) -> Self {
        self.observers.all.push(observer);
        self
    }

    /// A limit that the pool shares with others, and that may change while it is used. The pool's
    /// own limits hold as well.
    pub fn budget(self, budget: &Budget) -> Self {
        Self { budget: budget.clone(), ..self }
    }

    /// A bound on cached bytes, in bytes (`4 * GIB`) or as a share of the peak
    /// ([`CachedLimit::OfPeak`]). None unless set.
    ///
    /// Without an arena the oldest blocks go first, and a block that alone is more than half the
    /// bound is not kept. With an arena free ranges count, and what exceeds the bound goes back in
    /// whole pages or segments, the smallest that is enough first.
    pub fn cached_limit(self, limit: impl Into<CachedLimit>) -> Self {
        Self { cached_limit: Some(limit.into()), ..self }
    }

    /// The bound on cached bytes that a pool of this builder has.
    pub fn bound_on_cached_bytes(&self) -> CachedLimit {
        self.cached_limit.unwrap_or(CachedLimit::Unlimited)
    }

    /// A ceiling on what is taken from the device as a share of all that it has, 0 to 1. The lower
    /// of this and [`PoolBuilder::reserved_limit`] holds; where the device does not say what it
    /// has, only the latter. (`PyTorch`: `set_per_process_memory_fraction`.)
    pub fn memory_fraction(self, share: f64) -> Self {
        Self { fraction: Some(share.clamp(0.0, 1.0)), ..self }
    }

    /// When a stream may take what another used last. [`StealPolicy::Wait`] unless set.
    pub fn steal(self, steal: StealPolicy) -> Self {
        Self { steal, ..self }
    }

    /// How long idle memory is kept; [`BucketPool::tick`] gives back what is older. Without end
    /// unless set.
    pub fn retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// Called when all else has failed and a request would be refused, with its bytes: a program
    /// may drop buffers here, and says whether it is worth another try. It is asked at most eight
    /// times for a request, on the thread that made it, with no lock held; for a request that waits
    /// ([`BucketPool::allocate_timeout`]), at most eight times at each of its tries.
    ///
    /// The pool drops the closure when its last clone is dropped, and with it the buffers that the
    /// closure holds. A closure that holds a clone of the pool keeps the pool open.
    ///
    /// ```
    /// # use pool_core as bucketpool;
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

    /// At most this many idle blocks of one size, kind and stream in the whole pool; what happens
    /// to others [`PoolBuilder::full_bucket`] says. No limit unless set. Thread caches lease their
    /// part, so a block may be refused, or the oldest evicted, although another thread's cache has
    /// room that it does not use.
    pub fn bucket_limit(mut self, blocks: usize) -> Self {
        self.bucket_limit.most = blocks;
        self
    }

    /// What happens to a freed block where [`PoolBuilder::bucket_limit`] is reached.
    /// [`FullBucket::EvictOldest`] unless set.
    ///
    /// ```
    /// # use pool_core as bucketpool;
    /// use bucketpool::{BucketPool, FullBucket, sim::SimDevice};
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

    /// The same limit for sizes from `from_bytes` on, whatever [`PoolBuilder::bucket_limit`] says.
    pub fn large_bucket_limit(mut self, from_bytes: u64, blocks: usize) -> Self {
        self.bucket_limit =
            BucketLimit { large_from: from_bytes, most_large: blocks, ..self.bucket_limit };
        self
    }

    /// The requests, in bytes, that the pool is for. Others go past it to the device, within the
    /// reserved limit. All unless set. A pool with an arena serves all of them from its segments,
    /// and counts the others as bypasses.
    ///
    /// ```
    /// # use pool_core as bucketpool;
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

    /// Idle blocks that the pool takes from the device when it is made: for each `(bytes, count)`,
    /// `count` blocks of the class of `bytes`. What the device or a bound refuses is taken when it
    /// is asked for; [`BucketPool::warm_up`] says why.
    pub fn ahead(self, blocks: &[(u64, usize)]) -> Self {
        Self { ahead: blocks.to_vec(), ..self }
    }

    /// When blocks are cleared. Unless set, what the memory's users expect
    /// ([`Memory::default_zero`](crate::Memory::default_zero)).
    pub fn zero(self, zero: ZeroPolicy) -> Self {
        Self { zero, ..self }
    }

    /// Whether requests are counted. Bytes always are: the bounds need them. On unless set.
    pub fn statistics(self, on: bool) -> Self {
        Self { statistics: on, ..self }
    }

    /// Makes the pool. Takes nothing from the device but what [`PoolBuilder::ahead`] says.
    #[must_use]
    pub fn build(self) -> BucketPool<A> {
        let cached = self.bound_on_cached_bytes();
        let limit = self.reserved_limit.min(self.share_of_device());
        let (mut granule, mut largest) = (self.allocator.granule(), self.allocator.largest());
        let (mut limit, mut steal) = (limit, self.steal);
        let policy = self.policy.unwrap_or(match &self.book {
            Some(_) => BucketPolicy::Exact,
            None => BucketPolicy::PowerOfTwo,
        });
        let book = match self.book {
            Some((config, make)) => {
                (limit, steal) = (limit.min(config.reserved_limit), steal.min(config.steal));
                let book = make(&self.allocator, config);
                granule = book.granule();
                largest = if book.has_pages() { u64::MAX } else { largest };
                book
            }
            None => PoolBook::of_blocks(self.bucket_limit != BucketLimit::NONE),
        };
        let own = self.granule.or_else(|| {
            let aligned = || self.allocator.alignment_of(A::Kind::default());
            (policy == BucketPolicy::Exact).then(aligned)
        });
        let classes = SizeClasses::new(policy, own, granule, largest).within(self.window);
        let bounds = Bounds {
            cached,
            bucket: self.bucket_limit,
            full_bucket: self.full_bucket,
            statistics: self.statistics,
            zero_on_return: self.zero == ZeroPolicy::OnReturn,
            steal,
            retention: self.retention,
        };
        let ledger = Ledger::new(limit, self.budget);
        let store = Store::new(
            (self.allocator, book),
            classes,
            bounds,
            ledger,
            (self.on_shortage, self.observers, self.guards),
        );
        let pool = BucketPool::over(store, self.zero);
        for blocks in self.ahead {
            // Refused: the first request of that size says so, if it is still so then.
            let _ = pool.warm_up(&[blocks]);
        }
        pool
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates, and the share is 0 to 1"
    )]
    fn share_of_device(&self) -> u64 {
        let total = self.allocator.total_bytes();
        let share = self.fraction.zip(total).map(|(share, total)| (total as f64 * share) as u64);
        share.unwrap_or(u64::MAX)
    }
}

impl<A: DeviceAllocator> fmt::Debug for PoolBuilder<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// A pool as a builder makes it on which nothing was set.
    #[must_use]
    pub fn new(allocator: A) -> Self {
        Self::builder(allocator).build()
    }

    /// A pool with bounds of your choice.
    pub fn builder(allocator: A) -> PoolBuilder<A> {
        PoolBuilder {
            allocator,
            policy: None,
            granule: None,
            reserved_limit: u64::MAX,
            cached_limit: None,
            bucket_limit: BucketLimit::NONE,
            full_bucket: FullBucket::default(),
            window: 0..=u64::MAX,
            ahead: Vec::new(),
            zero: A::MEMORY.default_zero,
            statistics: true,
            steal: StealPolicy::default(),
            retention: Retention::default(),
            fraction: None,
            on_shortage: None,
            budget: Budget::default(),
            observers: Observers::default(),
            guards: None,
            book: None,
        }
    }
}
