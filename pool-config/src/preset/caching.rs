//! A caching allocator like `PyTorch`'s: its constants, its settings, its uncached mode.

use pool_core::port::Sliceable;
use pool_core::{ArenaConfig, BucketPool, DeviceAllocator, MIB, PoolBuilder};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The settings of [`caching`](super::caching), which can also be read from a string in the shape
/// of the environment variable `PYTORCH_CUDA_ALLOC_CONF` ([`Caching::from_env`]).
///
/// | key | value | default |
/// |---|---|---|
/// | `max_split_size_mb` | whole MiB, 20 or more | 512 |
/// | `garbage_collection_threshold` | a share above 0 and below 1 | off |
/// | `per_process_memory_fraction` | a share of the device's memory, above 0 and up to 1 | 1 |
/// | `caching_allocator` | `True` or `False` | `True` |
///
/// The threshold is a share of the limit, or of the device's memory where that is less.
///
/// Other keys, such as `trace_malloc_mode`, have no effect and are no error: programs share one
/// variable. [`Caching::warnings`] names them. A list in brackets is one value:
/// `roundup_power2_divisions:[256:1,512:2,>:8]` is one such key.
///
/// # Errors
///
/// [`BadSetting`] for a value that its key does not take.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
/// use bucketpool::config::preset::Caching;
///
/// let text = "max_split_size_mb:256,trace_malloc_mode:1,caching_allocator:False";
/// let settings: Caching = text.parse()?;
/// assert_eq!((settings.max_split_mib, settings.caching), (Some(256), false));
/// assert_eq!(settings.warnings(), ["trace_malloc_mode:1 has no effect"]);
/// let error = "max_split_size_mb:big".parse::<Caching>().unwrap_err();
/// assert_eq!(error.to_string(), "max_split_size_mb: `big`; expected whole MiB, 20 or more");
/// # Ok::<(), pool_config::preset::BadSetting>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Caching {
    /// Free ranges above this many MiB are not split. `None` for no bound.
    pub max_split_mib: Option<u64>,
    /// Free segments go back before the arena grows beyond this share of its limit, or of the
    /// device's memory.
    pub gc_threshold: Option<f64>,
    /// The share of the device's memory that is the limit.
    pub memory_fraction: Option<f64>,
    /// Whether blocks are cached. If not, each request and each free goes to the device.
    pub caching: bool,
    /// Settings with keys that have no effect here, as they were written.
    pub unknown: Vec<String>,
}

/// The default bound on ranges that are split, in MiB.
const DEFAULT_MAX_SPLIT_MIB: u64 = 512;

impl Default for Caching {
    fn default() -> Self {
        Self {
            max_split_mib: Some(DEFAULT_MAX_SPLIT_MIB),
            gc_threshold: None,
            memory_fraction: None,
            caching: true,
            unknown: Vec::new(),
        }
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

impl FromStr for Caching {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        let mut settings = Self::default();
        for part in parts(text).into_iter().map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once(':').unwrap_or((part, ""));
            settings.set(key.trim(), value.trim())?;
        }
        Ok(settings)
    }
}

/// Divides a text at the commas that are outside of brackets. A bracket that is not closed extends to the
/// end.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

impl Caching {
    /// The bounds, in MiB, that `max_split_size_mb` takes. 20 is the least of `PyTorch`'s newer parser
    /// (the older one wanted more than 20).
    pub(crate) const MAX_SPLIT_MIB: RangeInclusive<u64> = 20..=u64::MAX / MIB;

    /// Reads the settings from an environment variable; the defaults if it is not set.
    ///
    /// # Errors
    ///
    /// [`BadSetting`] for a value that its key does not take, or for text that is not UTF-8.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
    /// use bucketpool::config::preset::Caching;
    ///
    /// let settings = Caching::from_env("MY_PROGRAM_ALLOC_CONF")?; // not set here
    /// assert_eq!(settings, Caching::default());
    /// # Ok::<(), pool_config::preset::BadSetting>(())
    /// ```
    pub fn from_env(variable: &str) -> Result<Self, BadSetting> {
        let Some(text) = std::env::var_os(variable) else { return Ok(Self::default()) };
        match text.to_str() {
            Some(text) => text.parse(),
            None => Err(BadSetting {
                key: variable.to_owned(),
                value: text.to_string_lossy().into_owned(),
                expected: "UTF-8, such as max_split_size_mb:256",
            }),
        }
    }

    /// Settings that have no effect, one line each: keys that are not known here.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.unknown.iter().map(|setting| format!("{setting} has no effect")).collect()
    }

    /// As [`Caching::warnings`], and settings that have no effect over this device: a collection
    /// threshold or a fraction, where the device does not tell how much memory it has.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
    /// use bucketpool::{GIB, config::preset::Caching, sim::SimDevice};
    ///
    /// let settings: Caching = "garbage_collection_threshold:0.8".parse()?;
    /// assert_eq!(settings.warnings_over(&SimDevice::with_capacity(GIB)), [""; 0]);
    /// let told = settings.warnings_over(&SimDevice::new()); // it has no capacity
    /// assert!(told[0].starts_with("garbage_collection_threshold:0.8 has no effect"));
    /// # Ok::<(), pool_config::preset::BadSetting>(())
    /// ```
    #[must_use]
    pub fn warnings_over(&self, device: &impl DeviceAllocator) -> Vec<String> {
        let unknown_total = device.total_bytes().is_none();
        let shares = [
            ("garbage_collection_threshold", self.gc_threshold),
            ("per_process_memory_fraction", self.memory_fraction),
        ];
        let set = shares.into_iter().filter_map(|(key, share)| Some((key, share?)));
        let without_total = set.filter(|_| unknown_total).map(|(key, share)| {
            format!(
                "{key}:{share} has no effect, since the device does not tell its memory; set the \
                 reserved_limit of the pool"
            )
        });
        self.warnings().into_iter().chain(without_total).collect()
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), BadSetting> {
        let bad = |expected| BadSetting { key: key.into(), value: value.into(), expected };
        let share = |most: f64| {
            let share = value.parse::<f64>().ok();
            share.filter(|share| *share > 0.0 && *share <= most)
        };
        match key {
            "max_split_size_mb" => {
                let mib = value.parse().ok().filter(|mib| Self::MAX_SPLIT_MIB.contains(mib));
                self.max_split_mib = Some(mib.ok_or_else(|| bad("whole MiB, 20 or more"))?);
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
            _ if value.is_empty() => self.unknown.push(key.into()),
            _ => self.unknown.push(format!("{key}:{value}")),
        }
        Ok(())
    }

    /// The arena of these settings.
    #[must_use = "an arena is made with it"]
    pub fn arena(&self) -> ArenaConfig {
        let mut config = ArenaConfig::torch();
        if let Some(mib) = self.max_split_mib {
            config = config.max_split(mib.saturating_mul(MIB));
        }
        if let Some(share) = self.gc_threshold {
            config = config.gc_threshold(share);
        }
        if self.caching { config } else { config.uncached() }
    }

    /// A pool of these settings over a device.
    pub fn over<A: Sliceable>(&self, device: A) -> PoolBuilder<A> {
        let builder = BucketPool::builder(device).arena(self.arena());
        match self.memory_fraction {
            Some(share) => builder.memory_fraction(share),
            None => builder,
        }
    }
}
