//! The configuration of a pool as a file.

mod number;

use crate::spec::PolicySpec;
use pool_core::error::ConfigError;
use pool_core::limits::CachedLimit;
use pool_core::port::Sliceable;
use pool_core::{BucketPool, DeviceAllocator, PoolBuilder};
use serde::{Deserialize, Serialize};

/// The configuration of a pool, as `cargo xtask advise` writes it: TOML or any other format of
/// serde that describes itself.
///
/// ```toml
/// policy = "tiered:4K+64K"      # any text of a `PolicySpec`
/// cached_share = 0.25           # of the peak, or "25%"; or
/// # cached_limit = "64M"        # or 67108864 bytes
/// # reserved_limit = "8G"
/// # bucket_limit = 20           # cached blocks of one size
/// # ahead = [["4K", 16]]        # blocks that are allocated ahead: bytes, count
/// ```
///
/// With `preset:NAME`, the other keys override what the preset sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PoolConfig {
    /// The policy; a preset, or an arena.
    pub policy: PolicySpec,
    /// The limit on cached blocks in bytes.
    #[serde(default, deserialize_with = "number::size", skip_serializing_if = "Option::is_none")]
    pub cached_limit: Option<u64>,
    /// The limit on cached blocks as a share of the allocated peak.
    #[serde(default, deserialize_with = "number::share", skip_serializing_if = "Option::is_none")]
    pub cached_share: Option<f64>,
    /// The limit on reserved bytes.
    #[serde(default, deserialize_with = "number::size", skip_serializing_if = "Option::is_none")]
    pub reserved_limit: Option<u64>,
    /// The limit on the number of cached blocks of one size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket_limit: Option<usize>,
    /// Blocks that are allocated when the pool is made: bytes, and how many.
    #[serde(default, deserialize_with = "number::blocks", skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Vec<(u64, usize)>>,
}

impl PoolConfig {
    /// Creates the configuration of a policy, with all else as a pool has it by itself.
    #[must_use]
    pub fn of(policy: PolicySpec) -> Self {
        Self {
            policy,
            cached_limit: None,
            cached_share: None,
            reserved_limit: None,
            bucket_limit: None,
            ahead: None,
        }
    }

    /// Makes a pool with this configuration.
    ///
    /// # Errors
    ///
    /// As for [`PoolConfig::set`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
    /// use bucketpool::{config::PoolConfig, sim::SimDevice};
    ///
    /// let config: PoolConfig = toml::from_str("policy = 'tiered:4K+64K'")?;
    /// let pool = config.pool(SimDevice::new())?;
    /// assert_eq!(pool.allocate(5000)?.allocated_size(), 65536);
    ///
    /// let wrong: PoolConfig = toml::from_str("policy = 'arena'\nbucket_limit = 8")?;
    /// let error = wrong.pool(SimDevice::new()).unwrap_err().to_string();
    /// assert!(error.starts_with("`bucket_limit` or `large_bucket_limit` with an arena; "), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pool<A: Sliceable>(&self, device: A) -> Result<BucketPool<A>, ConfigError> {
        Ok(self.set(BucketPool::builder(device))?.build())
    }

    /// Makes a pool with this configuration over a device whose blocks cannot be split, such as
    /// `WgpuAllocator`.
    ///
    /// # Errors
    ///
    /// As for [`PoolConfig::set_blocks`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
    /// use bucketpool::{config::PoolConfig, sim::SimDevice};
    ///
    /// let config: PoolConfig = toml::from_str("policy = 'pow2'\nreserved_limit = '1G'")?;
    /// let pool = config.pool_of_blocks(SimDevice::new())?;
    /// assert_eq!(pool.stats().reserved_limit_bytes, Some(1 << 30));
    ///
    /// let arena: PoolConfig = toml::from_str("policy = 'arena'")?;
    /// let error = arena.pool_of_blocks(SimDevice::new()).unwrap_err();
    /// assert!(error.to_string().starts_with("policy `arena`; expected one without an arena"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pool_of_blocks<A: DeviceAllocator>(
        &self,
        device: A,
    ) -> Result<BucketPool<A>, ConfigError> {
        Ok(self.set_blocks(BucketPool::builder(device))?.build())
    }

    /// Sets what this configuration sets.
    ///
    /// # Errors
    ///
    /// Both a limit and a share, and what [`PoolBuilder::try_build`] refuses, set here or before.
    ///
    /// Over a device whose blocks cannot be split use [`PoolConfig::set_blocks`]. See
    /// [`PoolConfig::pool`] for an example.
    pub fn set<A: Sliceable>(
        &self,
        builder: PoolBuilder<A>,
    ) -> Result<PoolBuilder<A>, ConfigError> {
        self.set_limits(self.policy.set(builder))
    }

    /// Sets what this configuration sets, for a device whose blocks cannot be split.
    ///
    /// # Errors
    ///
    /// As for [`PoolConfig::set`], and for a policy with an arena.
    ///
    /// See [`PoolConfig::pool_of_blocks`] for an example.
    pub fn set_blocks<A: DeviceAllocator>(
        &self,
        builder: PoolBuilder<A>,
    ) -> Result<PoolBuilder<A>, ConfigError> {
        if self.policy.has_arena() {
            let found = format!("policy `{}`", self.policy);
            return Err(ConfigError::new(
                found,
                "one without an arena: these blocks are not split",
            ));
        }
        self.set_limits(self.policy.set_blocks(builder))
    }

    /// Sets the limits over those of the policy, and checks the result.
    fn set_limits<A: DeviceAllocator>(
        &self,
        mut builder: PoolBuilder<A>,
    ) -> Result<PoolBuilder<A>, ConfigError> {
        if self.cached_limit.is_some() && self.cached_share.is_some() {
            return Err(ConfigError::new("`cached_limit` and `cached_share`", "one of them"));
        }
        if let Some(bytes) = self.cached_limit {
            builder = builder.cached_limit(bytes);
        }
        if let Some(share) = self.cached_share {
            builder = builder.cached_limit(CachedLimit::OfPeak(share));
        }
        if let Some(bytes) = self.reserved_limit {
            builder = builder.reserved_limit(bytes);
        }
        if let Some(blocks) = self.bucket_limit {
            builder = builder.bucket_limit(blocks);
        }
        if let Some(blocks) = &self.ahead {
            builder = builder.ahead(blocks);
        }
        builder.validate()?;
        Ok(builder)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
