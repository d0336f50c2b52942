//! What the settings of a builder amount to, and those that [`PoolBuilder::try_build`] refuses.

use crate::error::ConfigError;
use crate::limits::{BucketLimit, CachedLimit, FullBucket, FullPool};
use crate::pool::BucketPool;
use crate::pool::ahead::BlocksAhead;
use crate::pool::builder::PoolBuilder;
use crate::port::{DeviceAllocator, StreamClock};
use crate::size::{BucketPolicy, Bytes, SizeClasses};
use crate::store::Layout;
use std::ops::RangeInclusive;

/// The share of the peak that cached bytes may have. A larger number was meant in per cent.
const CACHED_SHARES: RangeInclusive<f64> = 0.0..=10.0;
/// The shards that a pool may have. (The tests compare it with those that a pool makes.)
const SHARDS: RangeInclusive<usize> = 1..=64;

impl<A: DeviceAllocator> PoolBuilder<A> {
    /// Makes the pool, or returns an error for a setting that is out of its range or contradicts
    /// another.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first such setting and what was expected. Out of its range is: a
    /// factor of [`BucketPolicy::Fit`] below 1, a [`BucketPolicy::Tiered`] without a class, a granule
    /// of 0, pages of an arena that are not a power of two from 4 KiB to 1 GiB, its granule if it is no
    /// power of two, a slack or a share of the peak outside of 0 to 10, another share outside of 0
    /// to 1, a window without a size, shards other than 1 to 64. These are the ranges of the policies
    /// and configurations that programs read as text.
    ///
    /// Settings contradict each other, if one of them would have no effect:
    ///
    /// - a bucket limit in a pool with an arena, or a bucket limit of 0 by which nothing is cached;
    /// - [`FullBucket::RefuseNewest`] without a bucket limit, [`FullPool::RefuseNewest`] without a cached
    ///   limit or with an arena;
    /// - a window, a granule or a policy by which every request bypasses the pool, or a
    ///   [`cached_limit`](Self::cached_limit) above 0 under which not even the smallest block is
    ///   cached;
    /// - blocks [`ahead`](Self::ahead) that no [`warm_up`](BucketPool::warm_up) could allocate, since
    ///   they bypass the pool or are more than a limit of this builder admits. (What the device has
    ///   and what a [`Budget`](crate::limits::Budget) leaves may change, and is not asked.)
    /// - several [`shards`](Self::shards) where the pool has one;
    /// - a [`memory_fraction`](Self::memory_fraction), or
    ///   [`gc_threshold`](crate::ArenaConfig::gc_threshold), over a device that does not report its
    ///   memory and without a `reserved_limit`; a `gc_threshold` of an arena in pages.
    ///
    /// [`PoolBuilder::build`] replaces most of these values by one that it can use, or ignores them.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{ArenaConfig, BucketPolicy, BucketPool, sim::SimDevice};
    ///
    /// let builder = BucketPool::builder(SimDevice::new());
    /// let error = builder.clone().policy(BucketPolicy::Fit { alpha: 0.5 }).try_build().unwrap_err();
    /// assert_eq!(error.to_string(), "`Fit { alpha: 0.5 }`; expected a factor of 1 or more");
    /// let error = builder.clone().arena(ArenaConfig::pages(3000, 0.05)).try_build().unwrap_err();
    /// assert_eq!(error.to_string(), "`pages` of 3000 B; expected a power of two, 4 KiB to 1 GiB");
    /// let error = builder.clone().reserved_limit(8192).ahead(&[(4096, 3)]).try_build().unwrap_err();
    /// assert_eq!(error.to_string(), "`ahead` of 3 blocks of 4.00 KiB: 12.00 KiB in all; \
    ///     expected at most the reserved limit of 8.00 KiB");
    /// assert!(builder.try_build().is_ok());
    /// ```
    pub fn try_build(self) -> Result<BucketPool<A>, ConfigError> {
        self.validate()?;
        Ok(self.build())
    }

    /// Checks the settings as [`PoolBuilder::try_build`] does, without making a pool.
    ///
    /// # Errors
    ///
    /// As for [`PoolBuilder::try_build`], which has an example.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_ranges()?;
        let layout = self.layout();
        let classes = self.size_classes(&layout);
        self.check_cache(&classes)?;
        self.check_shards_and_shares(&layout)?;
        BlocksAhead::check(self, &layout, &classes)
    }

    /// Refuses values that are out of their ranges, whatever the other settings are.
    fn check_ranges(&self) -> Result<(), ConfigError> {
        if let Some(policy) = &self.policy {
            check_policy(policy)?;
        }
        if self.granule == Some(0) {
            return Err(ConfigError::new("`granule` of 0 B", "1 or more"));
        }
        if let Some(share) = self.fraction.filter(|share| !(0.0..=1.0).contains(share)) {
            let setting = format!("`memory_fraction` of {share}");
            return Err(ConfigError::new(setting, "a share from 0 to 1; 0.25 is 25 %"));
        }
        self.cached_limit.map_or(Ok(()), check_cached_limit)?;
        if self.window.is_empty() {
            let setting = format!("`window` of {:?} B", self.window);
            return Err(ConfigError::new(setting, "its first size before its last"));
        }
        if let Some(count) = self.shards.filter(|count| !SHARDS.contains(count)) {
            return Err(ConfigError::new(format!("`shards` of {count}"), "1 to 64"));
        }
        self.arena.as_ref().map_or(Ok(()), |(arena, _)| arena.check())
    }

    /// Refuses limits on cached blocks that have no effect, or that admit no block at all.
    fn check_cache(&self, classes: &SizeClasses) -> Result<(), ConfigError> {
        let has_limit = self.bucket_limit != BucketLimit::NONE;
        if has_limit && self.arena.is_some() {
            let setting = "`bucket_limit` or `large_bucket_limit` with an arena";
            return Err(ConfigError::new(setting, "them in pools without an arena only"));
        }
        if self.full_bucket == FullBucket::RefuseNewest && !has_limit {
            let setting = "`full_bucket` of `RefuseNewest` without a limit of a bucket";
            return Err(ConfigError::new(setting, "`bucket_limit` or `large_bucket_limit` too"));
        }
        if self.full_pool == FullPool::RefuseNewest && self.arena.is_some() {
            let setting = "`full_pool` of `RefuseNewest` with an arena";
            return Err(ConfigError::new(setting, "it in pools without an arena only"));
        }
        let is_limited = !matches!(
            self.cached_limit,
            None | Some(CachedLimit::Unlimited | CachedLimit::Bytes(0))
        );
        if self.full_pool == FullPool::RefuseNewest && !is_limited {
            let setting = "`full_pool` of `RefuseNewest` without a cached limit";
            return Err(ConfigError::new(setting, "`cached_limit` above 0 too"));
        }
        let smallest = classes.of((*self.window.start()).max(1));
        let Some(smallest) = smallest.filter(|class| class.is_cached()) else {
            return Err(self.without_cache());
        };
        if let Some(CachedLimit::Bytes(limit @ 1..)) = self.cached_limit
            && self.arena.is_none()
            && smallest.bytes > self.full_pool.largest(limit)
        {
            let setting = format!("`cached_limit` of {}", Bytes(limit));
            let (parts, why) = match self.full_pool {
                FullPool::EvictOldest => {
                    (2, ", since larger blocks than half of it are not cached")
                }
                FullPool::RefuseNewest => (1, ""),
            };
            let least = Bytes(smallest.bytes.saturating_mul(parts));
            return Err(ConfigError::new(setting, format!("{least} or more{why}; or 0")));
        }
        self.check_bucket_limit(smallest.bytes, classes)
    }

    /// Refuses a limit of 0 blocks for all sizes that are cached.
    fn check_bucket_limit(&self, smallest: u64, classes: &SizeClasses) -> Result<(), ConfigError> {
        let limit = self.bucket_limit;
        // The largest class that is cached is that of the window's end, or the last of a list.
        let listed = match self.policy.as_ref() {
            Some(BucketPolicy::Tiered(classes)) => classes.iter().copied().max(),
            _ => None,
        };
        let end = (*self.window.end()).min(listed.unwrap_or(u64::MAX));
        let largest = classes.of(end).filter(|class| class.is_cached());
        let has_large = limit.large_min_bytes <= largest.map_or(u64::MAX, |class| class.bytes);
        let keeps_large = has_large && limit.of(limit.large_min_bytes) > 0;
        if limit.of(smallest) > 0 || (keeps_large && limit.large_min_bytes != u64::MAX) {
            return Ok(());
        }
        let setting = match limit.max_blocks {
            0 => "`bucket_limit` of 0".to_owned(),
            _ => format!("`large_bucket_limit` of 0 from {} on", Bytes(limit.large_min_bytes)),
        };
        Err(ConfigError::new(setting, "1 or more; `cached_limit` of 0 turns the cache off"))
    }

    /// The error of settings under which every request bypasses the pool.
    fn without_cache(&self) -> ConfigError {
        let policy = self.policy_or_default();
        let bypass = "; with this one, every request bypasses the pool";
        match self.granule {
            _ if self.window != (0..=u64::MAX) => {
                let setting = format!("`window` of {:?} B under `{policy}`", self.window);
                ConfigError::new(setting, format!("sizes that the policy caches{bypass}"))
            }
            Some(granule) => {
                let setting = format!("`granule` of {granule} B");
                ConfigError::new(setting, format!("less than the device's largest block{bypass}"))
            }
            None => {
                let expected = format!("a class up to the device's largest block{bypass}");
                ConfigError::new(format!("`{policy}`"), expected)
            }
        }
    }

    /// Refuses shards in a pool that has one, and shares of an unknown number of bytes.
    fn check_shards_and_shares(&self, layout: &Layout<A>) -> Result<(), ConfigError> {
        let arena = self.arena.as_ref().map(|(config, _)| config);
        if let Some(count @ 2..) = self.shards {
            let has_streams = <A::Clock as StreamClock>::HAS_STREAMS;
            let place = match arena {
                Some(config) if config.uncached => "an arena that is `uncached`",
                Some(config) if config.is_torch() => "`ArenaConfig::torch`",
                None if has_streams && self.bucket_limit != BucketLimit::NONE => {
                    "a limit of a bucket, over memory with streams"
                }
                _ => "",
            };
            if !place.is_empty() {
                let setting = format!("`shards` of {count} with {place}");
                return Err(ConfigError::new(setting, "1: such a pool has one"));
            }
        }
        let gc_threshold = arena.and_then(|config| config.gc_threshold);
        if let Some(share) = gc_threshold.filter(|_| layout.has_pages()) {
            let setting = format!("`gc_threshold` of {share} with an arena in pages");
            return Err(ConfigError::new(
                setting,
                "it with segments, such as `ArenaConfig::torch`",
            ));
        }
        let limit = arena.map_or(u64::MAX, |config| config.reserved_limit);
        if self.allocator.total_bytes().is_some() || limit.min(self.reserved_limit) < u64::MAX {
            return Ok(());
        }
        let setting = match (self.fraction, gc_threshold) {
            (Some(share), _) => format!("`memory_fraction` of {share}"),
            (None, Some(share)) => format!("`gc_threshold` of {share}"),
            (None, None) => return Ok(()),
        };
        let place = "over a device that does not report its memory";
        Err(ConfigError::new(format!("{setting} {place}"), "a `reserved_limit` there"))
    }
}

/// What several settings amount to together.
impl<A: DeviceAllocator> PoolBuilder<A> {
    /// How the memory of the pool is split.
    pub(super) fn layout(&self) -> Layout<A> {
        let arena = self.arena.as_ref();
        arena.map_or_else(Layout::of_blocks, |(config, make)| make(&self.allocator, config.clone()))
    }

    /// The policy of a pool of this builder.
    pub(super) fn policy_or_default(&self) -> BucketPolicy {
        self.policy.clone().unwrap_or(match &self.arena {
            Some(_) => BucketPolicy::Exact,
            None => BucketPolicy::PowerOfTwo,
        })
    }

    /// The size classes of a pool of this builder, whose memory is split so.
    pub(super) fn size_classes(&self, layout: &Layout<A>) -> SizeClasses {
        let (mut granule, mut largest) = (self.allocator.granule(), self.allocator.largest());
        if layout.is_arena() {
            granule = layout.granule();
            largest = if layout.has_pages() { u64::MAX } else { largest };
        }
        let policy = self.policy_or_default();
        let own = self.granule.or_else(|| {
            let aligned = || self.allocator.alignment_of(A::Kind::default());
            (policy == BucketPolicy::Exact).then(aligned)
        });
        SizeClasses::new(policy, own, granule, largest).within(self.window.clone())
    }

    /// The limit on reserved bytes of a pool of this builder alone; `u64::MAX` for none.
    pub(super) fn bound_on_reserved_bytes(&self) -> u64 {
        let of_arena = self.arena.as_ref().map_or(u64::MAX, |(config, _)| config.reserved_limit);
        self.reserved_limit.min(self.share_of_device()).min(of_arena)
    }

    /// The memory of the device in bytes; `u64::MAX` if it does not report it.
    pub(super) fn total_bytes(&self) -> u64 {
        self.allocator.total_bytes().unwrap_or(u64::MAX)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates, and the share is 0 to 1"
    )]
    fn share_of_device(&self) -> u64 {
        let total = self.allocator.total_bytes();
        let share = self
            .fraction
            .zip(total)
            .map(|(share, total)| (total as f64 * share.clamp(0.0, 1.0)) as u64);
        share.unwrap_or(u64::MAX)
    }
}

/// Refuses a share of the peak that is none.
pub(super) fn check_cached_limit(limit: CachedLimit) -> Result<(), ConfigError> {
    match limit {
        CachedLimit::OfPeak(share) if !CACHED_SHARES.contains(&share) => {
            let setting = format!("a cached limit of {share} times the peak");
            Err(ConfigError::new(setting, "a share from 0 to 10; 0.25 is 25 %"))
        }
        _ => Ok(()),
    }
}

fn check_policy(policy: &BucketPolicy) -> Result<(), ConfigError> {
    let is_valid = match policy {
        BucketPolicy::Fit { alpha } => alpha.is_finite() && *alpha >= 1.0,
        BucketPolicy::Tiered(classes) => classes.iter().any(|class| *class > 0),
        BucketPolicy::Exact | BucketPolicy::PowerOfTwo => true,
    };
    let expected = match policy {
        _ if is_valid => return Ok(()),
        BucketPolicy::Tiered(_) => {
            "at least one class; without one every request bypasses the pool"
        }
        _ => "a factor of 1 or more",
    };
    Err(ConfigError::new(format!("`{policy:?}`"), expected))
}
