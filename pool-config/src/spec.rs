//! A policy as text, for files and command lines: `tiered:4K+64K`, `arena:pages=64K:slack=5%`.
//!
//! The texts of policies alone are in `pool-core`, beside the table of policies; this is the only
//! place that reads or writes the rest.

use crate::preset::Preset;
use pool_core::port::Sliceable;
use pool_core::size::{BadPolicy, PolicyForm, ShareText, SizeText};
use pool_core::{ArenaConfig, BucketPolicy, DeviceAllocator, GIB, KIB, PoolBuilder};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// The default granule of an arena, in bytes.
const ARENA_GRANULE: u64 = 512;
/// The largest granule of an arena, in bytes.
const MAX_ARENA_GRANULE: u64 = 4 * KIB;
/// The default slack of `arena:pages=..`: the share that it may hold beyond the peak of live bytes.
const SLACK: f64 = 0.05;

/// A policy with its granule, an arena, or a preset: what `--policy` and the key `policy` of a
/// [`PoolConfig`](crate::PoolConfig) say.
///
/// ```text
/// exact[:round=1]  pow2[:min=512]  tiered:4K+16K+64K[:round=1]  fit:2[:round=512]  preset:NAME
/// arena[:round=512]  arena:pages=64K[:slack=5%][:round=512]  arena:torch[:round=512]
/// ```
///
/// Sizes are bytes, or have K, M or G (binary) behind them. `round` and `min` set the granule.
/// A policy that was read is printed so that it is read as the same one; a value that no text means,
/// such as a factor below 1, is not.
///
/// # Errors
///
/// [`BadPolicy`] for other text.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
/// use bucketpool::{BucketPolicy, BucketPool, config::PolicySpec, sim::SimDevice};
///
/// let spec: PolicySpec = "tiered:4096+65536".parse()?;
/// assert_eq!(spec.to_string(), "tiered:4K+64K");
/// let pool = spec.set(BucketPool::builder(SimDevice::new())).build();
/// assert_eq!(pool.allocate(5000)?.allocated_size(), 65536);
///
/// let error = "fit:0.5".parse::<PolicySpec>().unwrap_err().to_string();
/// assert!(error.starts_with("policy `fit:0.5`: `0.5` is no factor of 1 or more; expected fit:2"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicySpec {
    /// Whole blocks in size classes.
    Blocks {
        /// The rule of the classes.
        policy: BucketPolicy,
        /// Sizes of classes are multiples of this many bytes;
        /// [`BucketPolicy::default_granule`] if `None`.
        granule: Option<u64>,
    },
    /// Segments that are split and coalesced.
    Arena {
        /// How the arena takes memory from the device.
        growth: Growth,
        /// Requests are rounded up to a multiple of this many bytes, a power of two.
        granule: u64,
    },
    /// A preset, with all that it sets.
    Preset(Preset),
}

/// How an arena takes memory from the device.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Growth {
    /// [`ArenaConfig::grow`].
    Grow,
    /// [`ArenaConfig::torch`].
    Torch,
    /// [`ArenaConfig::pages`].
    Pages {
        /// Bytes of a page, a power of two from 4 KiB to 1 GiB.
        bytes: u64,
        /// The share of the peak of live bytes that may be held beyond it, 0 to 10.
        slack: f64,
    },
}

/// The forms of arenas, beside those of [`BucketPolicy::FORMS`] and of presets.
const ARENA_FORMS: [&str; 3] = ["arena[:round=512]", "arena:torch", "arena:pages=64K[:slack=5%]"];

impl PolicySpec {
    /// Sets the policy, and the arena if there is one. A preset sets its limits too.
    pub fn set<A: Sliceable>(&self, builder: PoolBuilder<A>) -> PoolBuilder<A> {
        match self {
            Self::Preset(preset) => preset.set(builder),
            Self::Blocks { .. } => self.set_blocks(builder),
            Self::Arena { growth, granule } => builder.arena(growth.config().granule(*granule)),
        }
    }

    /// Sets what [`PolicySpec::set`] sets but an arena, for a device whose blocks cannot be split.
    pub fn set_blocks<A: DeviceAllocator>(&self, builder: PoolBuilder<A>) -> PoolBuilder<A> {
        match self {
            Self::Preset(preset) => preset.set_blocks(builder),
            Self::Arena { .. } => builder,
            Self::Blocks { policy, granule } => {
                let builder = builder.policy(policy.clone());
                match granule {
                    Some(bytes) => builder.granule(*bytes),
                    None => builder,
                }
            }
        }
    }

    /// Returns whether a pool with this policy has an arena.
    #[must_use]
    pub fn has_arena(&self) -> bool {
        matches!(self, Self::Arena { .. } | Self::Preset(Preset::Caching))
    }
}

impl Growth {
    pub(crate) fn config(self) -> ArenaConfig {
        match self {
            Self::Grow => ArenaConfig::grow(),
            Self::Torch => ArenaConfig::torch(),
            Self::Pages { bytes, slack } => ArenaConfig::pages(bytes, slack),
        }
    }
}

impl FromStr for PolicySpec {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Self, BadPolicy> {
        read(text).map_err(|why| {
            let presets = Preset::ALL.map(|preset| format!("preset:{preset}"));
            let blocks = BucketPolicy::FORMS.iter().map(|form| form.form);
            let forms = blocks.chain(ARENA_FORMS).chain(presets.iter().map(String::as_str));
            BadPolicy::new(text, why, forms)
        })
    }
}

/// An argument: a value, or a value with its key.
type Argument<'t> = (Option<&'t str>, &'t str);

fn read(text: &str) -> Result<PolicySpec, String> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let arguments: Vec<Argument<'_>> = parts
        .map(|part| part.split_once('=').map_or((None, part), |(key, value)| (Some(key), value)))
        .collect();
    match (name, arguments.as_slice()) {
        ("arena", arguments) => read_arena(arguments),
        ("preset", [(None, name)]) => {
            name.parse().map(PolicySpec::Preset).map_err(|_| format!("there is no preset `{name}`"))
        }
        ("preset", _) => Err("it takes the name of a preset".into()),
        (name, arguments) => {
            let form = BucketPolicy::FORMS.iter().find(|form| form.name == name);
            read_blocks(form.ok_or("there is no policy of this name")?, arguments)
        }
    }
}

/// Reads a policy of whole blocks: its own argument if it has one, and at most a granule.
fn read_blocks(form: &PolicyForm, arguments: &[Argument<'_>]) -> Result<PolicySpec, String> {
    let (own, arguments) = match arguments {
        [(None, value), rest @ ..] => (Some(*value), rest),
        all => (None, all),
    };
    let policy = form.read(own)?;
    let mut granule = None;
    for (key, value) in arguments {
        match key {
            Some(key) if granule.is_some() => return Err(format!("`{key}` is there twice")),
            Some(key) if *key == form.granule_key => {
                let bytes = size(value).filter(|bytes| (1..=GIB).contains(bytes));
                granule = Some(bytes.ok_or_else(|| format!("`{value}` is no size, 1 to 1G"))?);
            }
            Some(key) => return Err(format!("there is no `{key}`")),
            None => return Err(format!("`{value}` has no place")),
        }
    }
    Ok(PolicySpec::Blocks { policy, granule })
}

fn read_arena(arguments: &[Argument<'_>]) -> Result<PolicySpec, String> {
    let (mut is_torch, mut pages, mut slack, mut granule) = (false, None, None, ARENA_GRANULE);
    for (at, (key, value)) in arguments.iter().enumerate() {
        if arguments[..at].iter().any(|(before, _)| before == key) {
            return Err(format!("`{}` is there twice", key.unwrap_or(value)));
        }
        match key {
            None if *value == "torch" => is_torch = true,
            None => return Err(format!("`{value}` has no place")),
            Some("pages") => {
                let bytes = size(value).filter(|bytes| bytes.is_power_of_two());
                let bytes = bytes.filter(|bytes| ArenaConfig::PAGES.contains(bytes));
                let no_page = || format!("`{value}` is no page: a power of two, 4K to 1G");
                pages = Some(bytes.ok_or_else(no_page)?);
            }
            Some("slack") => {
                let share = share(value).filter(|share| *share <= ArenaConfig::MAX_SLACK);
                let no_share = || format!("`{value}` is no share, 0% to 1000%");
                slack = Some(share.ok_or_else(no_share)?);
            }
            Some("round") => {
                let bytes = size(value).filter(|bytes| bytes.is_power_of_two());
                let bytes = bytes.filter(|bytes| *bytes <= MAX_ARENA_GRANULE);
                granule = bytes.ok_or_else(|| format!("`{value}` is no power of two, up to 4K"))?;
            }
            Some(key) => return Err(format!("there is no `{key}`")),
        }
    }
    let growth = match (is_torch, pages, slack) {
        (false, None, None) => Growth::Grow,
        (true, None, None) => Growth::Torch,
        (false, Some(bytes), slack) => Growth::Pages { bytes, slack: slack.unwrap_or(SLACK) },
        (false, None, Some(_)) => return Err("`slack` needs `pages`".into()),
        (true, _, _) => return Err("`torch` has no pages".into()),
    };
    Ok(PolicySpec::Arena { growth, granule })
}

fn size(text: &str) -> Option<u64> {
    text.parse().ok().map(|SizeText(bytes)| bytes)
}

fn share(text: &str) -> Option<f64> {
    text.parse().ok().map(|ShareText(share)| share)
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preset(preset) => write!(f, "preset:{preset}"),
            Self::Blocks { policy, granule } => {
                let key = policy.form().granule_key;
                write!(f, "{policy}")?;
                granule.map_or(Ok(()), |bytes| write!(f, ":{key}={}", SizeText(bytes)))
            }
            Self::Arena { growth, granule } => {
                f.write_str("arena")?;
                match growth {
                    Growth::Grow => {}
                    Growth::Torch => f.write_str(":torch")?,
                    Growth::Pages { bytes, slack } => {
                        write!(f, ":pages={}:slack={}", SizeText(*bytes), ShareText(*slack))?;
                    }
                }
                match *granule {
                    ARENA_GRANULE => Ok(()),
                    bytes => write!(f, ":round={}", SizeText(bytes)),
                }
            }
        }
    }
}

impl Serialize for PolicySpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PolicySpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
