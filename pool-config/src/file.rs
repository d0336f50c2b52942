//! The configuration of a pool as a file.

mod age;
mod keys;
mod number;
mod words;

use crate::preset::{Caching, Preset, TileUse, tiles_on};
use crate::spec::{Growth, PolicySpec};
pub use keys::ConfigKey;
use pool_core::error::ConfigError;
use pool_core::limits::{CachedLimit, FullBucket, FullPool, Retention};
use pool_core::port::Sliceable;
use pool_core::stream::StealPolicy;
use pool_core::{ArenaConfig, BucketPool, DeviceAllocator, MIB, PoolBuilder, ZeroPolicy};
use serde::{Deserialize, Serialize};

/// The configuration of a pool, as `cargo xtask advise` writes it: TOML or any other format of
/// serde that describes itself.
///
/// ```toml
/// policy = "tiered:4K+64K"      # any text of a `PolicySpec`
/// reserved_limit = "8G"         # or 8589934592 bytes
/// cached_share = "25%"          # of the peak, or 0.25
/// ahead = [["4K", 16]]          # blocks that are allocated ahead: bytes, count
/// ```
///
/// [`PoolConfig::KEYS`] and `docs/configuration.md` list all keys. A key that is left out, or null,
/// sets nothing. With `preset:NAME`, the other keys override what the preset sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PoolConfig {
    /// The policy; a preset, or an arena.
    pub policy: PolicySpec,
    /// The use whose limits [`Preset::TilePipeline`] has. Other policies have none.
    #[serde(
        default,
        deserialize_with = "words::read",
        serialize_with = "words::write",
        skip_serializing_if = "Option::is_none"
    )]
    pub tile_use: Option<TileUse>,
    /// The size in MiB above which free ranges are not split, with the constants of `PyTorch` only
    /// (`arena:torch`, `preset:caching`). 20 or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_split_size_mb: Option<u64>,
    /// The share of the limit above which an arena of segments gives segments back before it grows.
    #[serde(default, deserialize_with = "number::share", skip_serializing_if = "Option::is_none")]
    pub garbage_collection_threshold: Option<f64>,
    /// Whether an arena caches. Without one, a `cached_limit` of 0 turns the cache off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caching_allocator: Option<bool>,
    /// The name of the pool for observers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The limit on reserved bytes.
    #[serde(
        default,
        deserialize_with = "number::reserved_limit",
        skip_serializing_if = "Option::is_none"
    )]
    pub reserved_limit: Option<u64>,
    /// The limit on reserved bytes as a share of the device's memory. The lower one holds.
    #[serde(
        default,
        deserialize_with = "number::memory_fraction",
        skip_serializing_if = "Option::is_none"
    )]
    pub memory_fraction: Option<f64>,
    /// The limit on cached blocks in bytes.
    #[serde(
        default,
        deserialize_with = "number::cached_limit",
        skip_serializing_if = "Option::is_none"
    )]
    pub cached_limit: Option<u64>,
    /// The limit on cached blocks as a share of the allocated peak.
    #[serde(
        default,
        deserialize_with = "number::cached_share",
        skip_serializing_if = "Option::is_none"
    )]
    pub cached_share: Option<f64>,
    /// The limit on the number of cached blocks of one size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket_limit: Option<usize>,
    /// The limit on the number of cached blocks of one size, from a size in bytes on.
    #[serde(
        default,
        deserialize_with = "number::size_and_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub large_bucket_limit: Option<(u64, usize)>,
    /// Which block goes back when a limit of a bucket is reached.
    #[serde(
        default,
        deserialize_with = "words::read",
        serialize_with = "words::write",
        skip_serializing_if = "Option::is_none"
    )]
    pub full_bucket: Option<FullBucket>,
    /// Which block goes back when the cached limit leaves no room.
    #[serde(
        default,
        deserialize_with = "words::read",
        serialize_with = "words::write",
        skip_serializing_if = "Option::is_none"
    )]
    pub full_pool: Option<FullPool>,
    /// The first and the last size, in bytes, of requests that are cached.
    #[serde(
        default,
        deserialize_with = "number::two_sizes",
        skip_serializing_if = "Option::is_none"
    )]
    pub window: Option<(u64, u64)>,
    /// Blocks that are allocated when the pool is made: bytes, and how many.
    #[serde(default, deserialize_with = "number::blocks", skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Vec<(u64, usize)>>,
    /// When blocks are zeroed.
    #[serde(
        default,
        deserialize_with = "words::read",
        serialize_with = "words::write",
        skip_serializing_if = "Option::is_none"
    )]
    pub zero: Option<ZeroPolicy>,
    /// When a stream may take memory that another stream freed.
    #[serde(
        default,
        deserialize_with = "words::read",
        serialize_with = "words::write",
        skip_serializing_if = "Option::is_none"
    )]
    pub steal: Option<StealPolicy>,
    /// Whether requests are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<bool>,
    /// The number of shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<usize>,
    /// How old cached memory becomes before a tick gives it back. A time is written in whole
    /// milliseconds.
    #[serde(
        default,
        deserialize_with = "age::read",
        serialize_with = "age::write",
        skip_serializing_if = "Option::is_none"
    )]
    pub retention: Option<Retention>,
}

impl PoolConfig {
    /// Creates the configuration of a policy, with all else as a pool has it by itself.
    #[must_use]
    pub fn of(policy: PolicySpec) -> Self {
        Self {
            policy,
            tile_use: None,
            max_split_size_mb: None,
            garbage_collection_threshold: None,
            caching_allocator: None,
            name: None,
            reserved_limit: None,
            memory_fraction: None,
            cached_limit: None,
            cached_share: None,
            bucket_limit: None,
            large_bucket_limit: None,
            full_bucket: None,
            full_pool: None,
            window: None,
            ahead: None,
            zero: None,
            steal: None,
            statistics: None,
            shards: None,
            retention: None,
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
    /// [`ConfigError`] for both `cached_limit` and `cached_share`, for a key that needs another policy,
    /// and for what [`PoolBuilder::try_build`] refuses, set here or before.
    ///
    /// Over a device whose blocks cannot be split use [`PoolConfig::set_blocks`]. See
    /// [`PoolConfig::pool`] for an example.
    pub fn set<A: Sliceable>(
        &self,
        builder: PoolBuilder<A>,
    ) -> Result<PoolBuilder<A>, ConfigError> {
        let builder = self.policy.set(builder);
        let builder = match self.arena()? {
            Some(config) => builder.arena(config),
            None => builder,
        };
        self.set_settings(builder)
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
        self.arena()?; // its keys need a policy with an arena
        self.set_settings(self.policy.set_blocks(builder))
    }

    /// The arena of the policy with what the keys of arenas set; `None` if none of them is there.
    fn arena(&self) -> Result<Option<ArenaConfig>, ConfigError> {
        let keys = [
            ("max_split_size_mb", self.max_split_size_mb.is_some()),
            ("garbage_collection_threshold", self.garbage_collection_threshold.is_some()),
            ("caching_allocator", self.caching_allocator.is_some()),
        ];
        let Some((key, _)) = keys.into_iter().find(|(_, is_set)| *is_set) else { return Ok(None) };
        let refuse = |expected| {
            let setting = format!("`{key}` with the policy `{}`", self.policy);
            Err(ConfigError::new(setting, expected))
        };
        let (mut config, is_torch) = match &self.policy {
            PolicySpec::Arena { growth, granule } => {
                (growth.config().granule(*granule), *growth == Growth::Torch)
            }
            PolicySpec::Preset(Preset::Caching) => (Caching::default().arena(), true),
            _ => {
                return refuse("a policy with an arena, such as `arena:torch` or `preset:caching`");
            }
        };
        if let Some(mib) = self.max_split_size_mb {
            if !is_torch {
                return refuse("`arena:torch` or `preset:caching`");
            }
            if !Caching::MAX_SPLIT_MIB.contains(&mib) {
                let setting = format!("`max_split_size_mb` of {mib}");
                return Err(ConfigError::new(setting, "whole MiB, 20 or more"));
            }
            config = config.max_split(mib * MIB);
        }
        if let Some(share) = self.garbage_collection_threshold {
            config = config.gc_threshold(share);
        }
        if self.caching_allocator == Some(false) {
            config = config.uncached();
        }
        Ok(Some(config))
    }

    /// Sets all keys but those of arenas over what the policy sets, and checks the result.
    fn set_settings<A: DeviceAllocator>(
        &self,
        mut builder: PoolBuilder<A>,
    ) -> Result<PoolBuilder<A>, ConfigError> {
        if let Some(tiles) = self.tile_use {
            if self.policy != PolicySpec::Preset(Preset::TilePipeline) {
                let setting = format!("`tile_use` with the policy `{}`", self.policy);
                return Err(ConfigError::new(setting, "`preset:tile_pipeline`"));
            }
            builder = tiles_on(builder, tiles);
        }
        builder = self.set_limits(builder)?;
        if let Some(name) = &self.name {
            builder = builder.name(name);
        }
        if let Some((first, last)) = self.window {
            builder = builder.window(first..=last);
        }
        if let Some(blocks) = &self.ahead {
            builder = builder.ahead(blocks);
        }
        if let Some(zero) = self.zero {
            builder = builder.zero(zero);
        }
        if let Some(steal) = self.steal {
            builder = builder.steal(steal);
        }
        if let Some(on) = self.statistics {
            builder = builder.statistics(on);
        }
        if let Some(count) = self.shards {
            builder = builder.shards(count);
        }
        builder.validate()?;
        Ok(builder)
    }

    /// Sets the limits over those of the policy.
    fn set_limits<A: DeviceAllocator>(
        &self,
        mut builder: PoolBuilder<A>,
    ) -> Result<PoolBuilder<A>, ConfigError> {
        if self.cached_limit.is_some() && self.cached_share.is_some() {
            return Err(ConfigError::new("`cached_limit` and `cached_share`", "one of them"));
        }
        if let Some(bytes) = self.reserved_limit {
            builder = builder.reserved_limit(bytes);
        }
        if let Some(share) = self.memory_fraction {
            builder = builder.memory_fraction(share);
        }
        if let Some(bytes) = self.cached_limit {
            builder = builder.cached_limit(bytes);
        }
        if let Some(share) = self.cached_share {
            builder = builder.cached_limit(CachedLimit::OfPeak(share));
        }
        if let Some(blocks) = self.bucket_limit {
            builder = builder.bucket_limit(blocks);
        }
        if let Some((from_bytes, blocks)) = self.large_bucket_limit {
            builder = builder.large_bucket_limit(from_bytes, blocks);
        }
        if let Some(full_bucket) = self.full_bucket {
            builder = builder.full_bucket(full_bucket);
        }
        if let Some(full_pool) = self.full_pool {
            builder = builder.full_pool(full_pool);
        }
        if let Some(retention) = self.retention {
            builder = builder.retention(retention);
        }
        Ok(builder)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
