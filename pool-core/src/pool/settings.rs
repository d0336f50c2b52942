//! Settings of a pool that [`PoolBuilder::try_build`] refuses.

use crate::error::ConfigError;
use crate::limits::{BucketLimit, CachedLimit, FullPool};
use crate::pool::BucketPool;
use crate::pool::builder::PoolBuilder;
use crate::port::DeviceAllocator;
use crate::size::BucketPolicy;
use std::ops::RangeInclusive;

/// The share of the peak that cached bytes may have. A larger number was meant in per cent.
const CACHED_SHARES: RangeInclusive<f64> = 0.0..=10.0;

impl<A: DeviceAllocator> PoolBuilder<A> {
    /// Makes the pool, or returns an error for a setting that is out of its range or contradicts
    /// another.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first such setting and what was expected: a factor of
    /// [`BucketPolicy::Fit`] below 1, a [`BucketPolicy::Tiered`] without a class, a granule of 0,
    /// pages of an arena that are not a power of two from 4 KiB to 1 GiB, its granule if it is no
    /// power of two, a slack or a share of the peak outside of 0 to 10, another share outside of 0
    /// to 1, a window without a size, or a bucket limit in a pool with an arena. These are the
    /// ranges of the policies and configurations that programs read as text.
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
        let Some((arena, _)) = &self.arena else { return Ok(()) };
        if self.bucket_limit != BucketLimit::NONE {
            let setting = "`bucket_limit` or `large_bucket_limit` with an arena";
            return Err(ConfigError::new(setting, "them in pools without an arena only"));
        }
        if self.full_pool != FullPool::default() {
            let setting = "`full_pool` with an arena";
            return Err(ConfigError::new(setting, "it in pools without an arena only"));
        }
        arena.check()
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
