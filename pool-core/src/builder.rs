//! How a pool is made.

use crate::device::DeviceAllocator;
use crate::limit::{CachedLimit, Ledger};
use crate::policy::{BucketPolicy, SizeClasses};
use crate::pool::BucketPool;
use crate::store::{Bounds, Store};
use crate::zero::ZeroPolicy;

/// How a pool is made.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct PoolBuilder<A> {
    allocator: A,
    policy: BucketPolicy,
    granule: Option<u64>,
    reserved_limit: u64,
    cached_limit: CachedLimit,
    bucket_limit: usize,
    zero: ZeroPolicy,
    statistics: bool,
}

impl<A: DeviceAllocator> PoolBuilder<A> {
    /// How requests are rounded to size classes. Powers of two unless set.
    pub fn policy(self, policy: BucketPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Requests are rounded up to a multiple of this many bytes before the policy is asked; under
    /// `PowerOfTwo` it is the smallest class. 0 counts as 1. Unless set, the policy's own
    /// ([`BucketPolicy::default_granule`]).
    pub fn granule(self, bytes: u64) -> Self {
        Self { granule: Some(bytes), ..self }
    }

    /// A hard ceiling, in bytes, on what is taken from the device. None unless set.
    pub fn reserved_limit(self, bytes: u64) -> Self {
        Self { reserved_limit: bytes, ..self }
    }

    /// A bound on idle blocks, in bytes (`4 * GIB`) or as a share of the peak
    /// ([`CachedLimit::OfPeak`]). The oldest go first. A block that alone is more than half the
    /// bound is not kept. None unless set.
    pub fn cached_limit(self, limit: impl Into<CachedLimit>) -> Self {
        Self { cached_limit: limit.into(), ..self }
    }

    /// The bound on idle blocks that a pool of this builder has.
    pub fn bound_on_idle_bytes(&self) -> CachedLimit {
        self.cached_limit
    }

    /// At most this many idle blocks of one size, kind and stream for each thread's shard. None
    /// unless set.
    pub fn bucket_limit(self, blocks: usize) -> Self {
        Self { bucket_limit: blocks, ..self }
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

    /// Makes the pool. Takes nothing from the device.
    #[must_use]
    pub fn build(self) -> BucketPool<A> {
        let (granule, largest) = (self.allocator.granule(), self.allocator.largest());
        let classes = SizeClasses::new(self.policy, self.granule, granule, largest);
        let bounds = Bounds {
            cached: self.cached_limit,
            bucket: self.bucket_limit,
            statistics: self.statistics,
            zero_on_return: self.zero == ZeroPolicy::OnReturn,
        };
        let ledger = Ledger::new(self.reserved_limit);
        BucketPool::over(Store::new(self.allocator, classes, bounds, ledger), self.zero)
    }
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// A pool of powers of two without bounds.
    #[must_use]
    pub fn new(allocator: A) -> Self {
        Self::builder(allocator).build()
    }

    /// A pool with bounds of your choice.
    pub fn builder(allocator: A) -> PoolBuilder<A> {
        PoolBuilder {
            allocator,
            policy: BucketPolicy::PowerOfTwo,
            granule: None,
            reserved_limit: u64::MAX,
            cached_limit: CachedLimit::Unlimited,
            bucket_limit: usize::MAX,
            zero: A::MEMORY.default_zero,
            statistics: true,
        }
    }
}
