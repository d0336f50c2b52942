//! A caching allocator like `PyTorch`'s: its constants, its settings, its uncached mode.

use crate::arena::{Arena, ArenaConfig};
use crate::builder::PoolBuilder;
use crate::device::{DeviceAllocator, Sliceable};
use crate::policy::BucketPolicy;
use crate::pool::BucketPool;
use crate::size::MIB;
use std::fmt;
use std::str::FromStr;

/// The settings of [`caching`](super::caching), which can also be read from a string in the shape
/// of the environment variable `PYTORCH_CUDA_ALLOC_CONF`.
///
/// | key | value | default |
/// |---|---|---|
/// | `max_split_size_mb` | whole MiB, above 20 | no bound |
/// | `garbage_collection_threshold` | a share of the limit, above 0 and below 1 | off |
/// | `per_process_memory_fraction` | a share of the device's memory, above 0 and up to 1 | 1 |
/// | `caching_allocator` | `True` or `False` | `True` |
///
/// ```
/// use pool_core::preset::Caching;
///
/// let text = "max_split_size_mb:256,garbage_collection_threshold:0.8,caching_allocator:False";
/// let settings: Caching = text.parse()?;
/// assert_eq!((settings.max_split_mib, settings.caching), (Some(256), false));
/// let error = "max_split_size_mb:big".parse::<Caching>().unwrap_err();
/// assert_eq!(error.to_string(), "max_split_size_mb: `big`; expected whole MiB above 20");
/// # Ok::<(), pool_core::preset::BadSetting>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Caching {
    /// Free ranges above so many MiB are not split.
    pub max_split_mib: Option<u64>,
    /// Free segments go back before the arena grows beyond this share of its limit.
    pub gc_threshold: Option<f64>,
    /// The share of the device's memory that is the limit.
    pub memory_fraction: Option<f64>,
    /// Whether anything is cached; if not, each request goes to the device and each free too.
    pub caching: bool,
}

impl Default for Caching {
    fn default() -> Self {
        Self { max_split_mib: None, gc_threshold: None, memory_fraction: None, caching: true }
    }
}

/// A setting that cannot be: which, what it was, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting {
    key: String,
    value: String,
    expected: &'static str,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`; expected {}", self.key, self.value, self.expected)
    }
}

impl std::error::Error for BadSetting {}

const KEYS: &str = "max_split_size_mb, garbage_collection_threshold, per_process_memory_fraction \
                    or caching_allocator, each with a colon and a value";

impl FromStr for Caching {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        let mut settings = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once(':').unwrap_or((part, ""));
            settings.set(key.trim(), value.trim())?;
        }
        Ok(settings)
    }
}

impl Caching {
    fn set(&mut self, key: &str, value: &str) -> Result<(), BadSetting> {
        let bad = |expected| BadSetting { key: key.into(), value: value.into(), expected };
        let share = |most: f64| {
            let share = value.parse::<f64>().ok();
            share.filter(|share| *share > 0.0 && *share <= most)
        };
        match key {
            "max_split_size_mb" => {
                let mib = value.parse().ok().filter(|mib| (21..=u64::MAX / MIB).contains(mib));
                self.max_split_mib = Some(mib.ok_or_else(|| bad("whole MiB above 20"))?);
            }
            "garbage_collection_threshold" => {
                let share = share(1.0).filter(|share| *share < 1.0);
                let expected = "a share above 0 and below 1, such as 0.8";
                self.gc_threshold = Some(share.ok_or_else(|| bad(expected))?);
            }
            "per_process_memory_fraction" => {
                let expected = "a share above 0 and up to 1, such as 0.5";
                self.memory_fraction = Some(share(1.0).ok_or_else(|| bad(expected))?);
            }
            "caching_allocator" => {
                self.caching = match value {
                    "True" | "true" | "1" => true,
                    "False" | "false" | "0" => false,
                    _ => return Err(bad("True or False")),
                };
            }
            _ => return Err(bad(KEYS)),
        }
        Ok(())
    }

    /// The arena of these settings.
    #[must_use = "an arena is made with it"]
    pub fn arena(&self) -> ArenaConfig {
        let mut config = ArenaConfig::torch();
        if let Some(mib) = self.max_split_mib {
            config = config.max_split(mib * MIB);
        }
        if let Some(share) = self.gc_threshold {
            config = config.gc_threshold(share);
        }
        if self.caching { config } else { config.uncached() }
    }

    /// A pool of these settings over an arena of them, or over any allocator. It keeps nothing
    /// itself.
    pub fn pool<A: DeviceAllocator>(&self, allocator: A) -> PoolBuilder<A> {
        let builder = BucketPool::builder(allocator).policy(BucketPolicy::Exact).cached_limit(0);
        match self.memory_fraction {
            Some(share) => builder.memory_fraction(share),
            None => builder,
        }
    }

    /// The whole system over a device.
    pub fn over<A: Sliceable>(&self, device: A) -> PoolBuilder<Arena<A>> {
        self.pool(Arena::new(device, self.arena()))
    }
}
