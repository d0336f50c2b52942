//! The configuration of a pool as a file.

use crate::book::arena::ArenaConfig;
use crate::device::Sliceable;
use crate::policy::BucketPolicy;
use crate::policy::limit::CachedLimit;
use crate::pool::BucketPool;
use crate::pool::builder::PoolBuilder;
use crate::preset::{Preset, UnknownPreset};
use crate::size::GIB;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The smallest page of an arena, in bytes: what the command line takes.
const PAGE_LEAST: u64 = 4 << 10;
/// The policies of a file, as an error names them.
const POLICIES: &str = "one of exact, pow2, tiered, fit, arena, or preset:NAME";
/// The largest share: one that is meant in per cent is refused.
const SHARE_MOST: f64 = 10.0;

/// The configuration of a pool, as `cargo xtask advise` writes it: TOML or any other format of
/// serde.
///
/// ```toml
/// policy = "tiered"             # exact, pow2, tiered, fit, arena, or preset:NAME
/// classes = [4096, 65536]       # of `tiered`, in bytes
/// # granule = 512               # sizes are multiples of it, in bytes
/// # alpha = 2.0                 # of `fit`
/// # page_bytes = 65536          # of `arena`: memory comes and goes in pages
/// # slack = 0.05                # of `arena` in pages: the share beyond the peak that may stay
/// cached_share = 0.25           # of the peak; or
/// # cached_limit = 67108864     # in bytes
/// # reserved_limit = 8589934592 # in bytes
/// # bucket_limit = 20           # cached blocks of one size
/// # ahead = [[64, 16]]          # blocks that are allocated ahead: bytes, count
/// ```
///
/// `preset:NAME` is a [`Preset`](crate::preset::Preset); the other keys override what it sets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct PoolConfig {
    /// `exact`, `pow2`, `tiered`, `fit`, `arena`, or `preset:` and the name of a preset.
    pub policy: String,
    /// The classes of `tiered` in bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<u64>,
    /// The factor of `fit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Sizes are multiples of this many bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granule: Option<u64>,
    /// The page of an arena in bytes; an arena without one takes the device's page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<u64>,
    /// The share of the peak that an arena in pages may hold beyond it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slack: Option<f64>,
    /// The limit on cached blocks in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_limit: Option<u64>,
    /// The limit on cached blocks as a share of the allocated peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_share: Option<f64>,
    /// The limit on reserved bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_limit: Option<u64>,
    /// The limit on the number of cached blocks of one size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_limit: Option<usize>,
    /// Blocks that are allocated when the pool is made: bytes, and how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Vec<(u64, usize)>>,
}

/// A configuration that contradicts itself: what it says, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

fn wrong(what: impl fmt::Display, expected: &'static str) -> ConfigError {
    ConfigError(format!("{what}; expected {expected}"))
}

impl PoolConfig {
    /// Creates the configuration of a policy by its name, with all else as a pool has it by itself.
    #[must_use]
    pub fn of(policy: &str) -> Self {
        Self { policy: policy.into(), ..Self::default() }
    }

    fn preset(&self) -> Result<Option<Preset>, ConfigError> {
        let Some(name) = self.policy.strip_prefix("preset:") else { return Ok(None) };
        let unknown = |error: UnknownPreset| ConfigError(error.to_string());
        name.parse().map(Some).map_err(unknown)
    }

    fn policy(&self) -> Result<BucketPolicy, ConfigError> {
        let alpha = self.alpha.unwrap_or(2.0);
        match self.policy.as_str() {
            "tiered" if self.classes.iter().all(|class| *class == 0) => {
                Err(wrong("`tiered` without classes", "`classes = [4096, ..]`, in bytes"))
            }
            "fit" if !(alpha.is_finite() && alpha >= 1.0) => {
                Err(wrong(format!("`alpha = {alpha}`"), "a factor of 1 or more"))
            }
            "exact" | "arena" => Ok(BucketPolicy::Exact),
            "pow2" => Ok(BucketPolicy::PowerOfTwo),
            "tiered" => Ok(BucketPolicy::tiered(&self.classes)),
            "fit" => Ok(BucketPolicy::Fit { alpha }),
            "" => Err(wrong("no `policy`", POLICIES)),
            other => Err(wrong(format!("policy `{other}`"), POLICIES)),
        }
    }

    /// Refuses keys that the policy does not use, so that none is ignored.
    fn check(&self) -> Result<(), ConfigError> {
        let belongs = |is_set: bool, key: &str, policy: &str, expected| match is_set {
            true if self.policy != policy => {
                Err(wrong(format!("`{key}` with policy `{}`", self.policy), expected))
            }
            _ => Ok(()),
        };
        belongs(!self.classes.is_empty(), "classes", "tiered", "it with `tiered` only")?;
        belongs(self.alpha.is_some(), "alpha", "fit", "it with `fit` only")?;
        belongs(self.page_bytes.is_some(), "page_bytes", "arena", "it with `arena` only")?;
        belongs(self.slack.is_some(), "slack", "arena", "it with `arena` only")?;
        let is_arena = matches!(self.policy.as_str(), "arena" | "preset:caching");
        if self.bucket_limit.is_some() && is_arena {
            let found = format!("`bucket_limit` with policy `{}`", self.policy);
            return Err(wrong(found, "it with policies without an arena only"));
        }
        if self.granule.is_some() && self.policy == "preset:caching" {
            let expected = "another policy: this one has PyTorch's granule, 512 bytes";
            return Err(wrong("`granule` with policy `preset:caching`", expected));
        }
        if self.slack.is_some() && self.page_bytes.is_none() {
            return Err(wrong("`slack` without `page_bytes`", "both"));
        }
        if self.cached_limit.is_some() && self.cached_share.is_some() {
            return Err(wrong("`cached_limit` and `cached_share`", "one of them"));
        }
        for (key, share) in [("cached_share", self.cached_share), ("slack", self.slack)] {
            if share.is_some_and(|share| !(0.0..=SHARE_MOST).contains(&share)) {
                let found = format!("`{key} = {}`", share.unwrap_or_default());
                return Err(wrong(found, "a share from 0 to 10; 0.25 is 25 %"));
            }
        }
        if let Some(bytes) = self.granule.filter(|bytes| !(1..=GIB).contains(bytes)) {
            return Err(wrong(format!("`granule = {bytes}`"), "bytes, from 1 to 1 GiB"));
        }
        let is_page = |bytes: u64| bytes.is_power_of_two() && (PAGE_LEAST..=GIB).contains(&bytes);
        if let Some(bytes) = self.page_bytes.filter(|bytes| !is_page(*bytes)) {
            let expected = "a power of two from 4096 to 1 GiB";
            return Err(wrong(format!("`page_bytes = {bytes}`"), expected));
        }
        Ok(())
    }

    fn arena(&self) -> Option<ArenaConfig> {
        let config = match self.page_bytes {
            _ if self.policy != "arena" => return None,
            Some(bytes) => ArenaConfig::pages(bytes, self.slack.unwrap_or(0.05)),
            None => ArenaConfig::grow(),
        };
        Some(config.granule(self.granule.unwrap_or(512)))
    }
}

impl<A: Sliceable> PoolBuilder<A> {
    /// Sets what a configuration sets.
    ///
    /// # Errors
    ///
    /// A policy that is unknown, a key that belongs to another policy, or a value out of its range.
    ///
    /// See [`BucketPool::from_config`] for an example.
    pub fn config(self, config: &PoolConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let mut builder = match config.preset()? {
            Some(preset) => preset.set(self),
            None => self.policy(config.policy()?),
        };
        if let Some(bytes) = config.granule {
            builder = builder.granule(bytes);
        }
        if let Some(arena) = config.arena() {
            builder = builder.arena(arena);
        }
        if let Some(bytes) = config.cached_limit {
            builder = builder.cached_limit(bytes);
        }
        if let Some(share) = config.cached_share {
            builder = builder.cached_limit(CachedLimit::OfPeak(share));
        }
        if let Some(bytes) = config.reserved_limit {
            builder = builder.reserved_limit(bytes);
        }
        if let Some(blocks) = config.bucket_limit {
            builder = builder.bucket_limit(blocks);
        }
        if let Some(blocks) = &config.ahead {
            builder = builder.ahead(blocks);
        }
        Ok(builder)
    }
}

impl<A: Sliceable> BucketPool<A> {
    /// Creates a pool with a configuration, such as `cargo xtask advise` writes it.
    ///
    /// # Errors
    ///
    /// As for [`PoolBuilder::config`].
    ///
    /// ```
    /// # use pool_core as bucketpool;
    /// use bucketpool::{BucketPool, PoolConfig, sim::SimDevice};
    ///
    /// let config: PoolConfig = toml::from_str("policy = 'tiered'\nclasses = [4096, 65536]")?;
    /// let pool = BucketPool::from_config(SimDevice::new(), &config)?;
    /// assert_eq!(pool.allocate(5000)?.allocated_size(), 65536);
    ///
    /// let wrong: PoolConfig = toml::from_str("policy = 'pow2'\nalpha = 2.0")?;
    /// let error = BucketPool::from_config(SimDevice::new(), &wrong).unwrap_err();
    /// assert_eq!(error.to_string(), "`alpha` with policy `pow2`; expected it with `fit` only");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_config(device: A, config: &PoolConfig) -> Result<Self, ConfigError> {
        Ok(Self::builder(device).config(config)?.build())
    }
}

#[cfg(all(test, feature = "sim", feature = "conformance", not(any(loom, shuttle))))]
mod tests;
