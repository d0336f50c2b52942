//! Policies as users type them: `exact:round=16,tiered:4K+16K,fit:2,arena:pages=64K:slack=5%`.

use crate::input::BadInput;
use crate::sizes;
use bucketpool::preset::{self, Preset};
use bucketpool::{ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, PoolBuilder, Sliceable};

const KNOWN: &str = "exact[:round=1], pow2[:min=512], tiered:4K+16K+64K, fit:2[:round=512], \
                     arena[:round=512], arena:torch, arena:pages=64K[:slack=5%], \
                     preset:tile_pipeline, preset:embedding, preset:caching, preset:ndarray or \
                     preset:small_tensors";

/// Default granule of an arena in bytes.
const ARENA_GRANULE: u64 = 512;
/// Default slack of `arena:pages=..`: the share that it may hold beyond the peak of live bytes.
const SLACK: f64 = 0.05;

/// A policy, with its text.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySpec {
    /// Text as the user typed it.
    pub text: String,
    /// Policy that the text means.
    pub policy: BucketPolicy,
    /// Granule, if one was given.
    pub granule: Option<u64>,
    /// Arena, if the policy has one.
    pub arena: Option<ArenaConfig>,
    /// Preset, if the text names one.
    preset: Option<Preset>,
}

impl PolicySpec {
    /// Returns a builder of pools with this policy, with its arena if it has one.
    pub fn builder<A: Sliceable>(&self, device: A) -> PoolBuilder<A> {
        let builder = self.without_arena(device);
        match &self.arena {
            Some(config) => builder.arena(config.clone()),
            None => builder,
        }
    }

    /// Returns a builder of pools with this policy over a device whose blocks cannot be split.
    pub fn without_arena<A: DeviceAllocator>(&self, device: A) -> PoolBuilder<A> {
        let builder = match self.preset {
            Some(preset) => preset.set_blocks(BucketPool::builder(device)),
            None => BucketPool::builder(device).policy(self.policy.clone()),
        };
        match self.granule {
            Some(bytes) => builder.granule(bytes),
            None => builder,
        }
    }
}

/// Parses a list of policies, separated by commas.
///
/// # Errors
///
/// Fails if a name is unknown, an argument is not accepted, or a required argument is missing.
pub fn list(text: &str) -> Result<Vec<PolicySpec>, BadInput> {
    text.split(',').map(|spec| one(spec.trim())).collect()
}

fn one(text: &str) -> Result<PolicySpec, BadInput> {
    let bad = |what: String| BadInput::new(format!("policy `{text}`: {what}"), KNOWN);
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    if name == "arena" {
        let (config, round) = arena(parts).map_err(bad)?;
        let (text, granule) = (text.to_owned(), Some(round));
        let policy = BucketPolicy::Exact;
        return Ok(PolicySpec { text, policy, granule, arena: Some(config), preset: None });
    }
    let mut values = Vec::new();
    let mut granule = None;
    let granule_key = if name == "pow2" { "min" } else { "round" };
    for part in parts {
        match part.split_once('=') {
            None => values.push(part),
            Some((key, value)) if key == granule_key && name != "tiered" => {
                let bytes = sizes::bytes(value).ok().filter(|bytes| *bytes > 0);
                granule = Some(bytes.ok_or_else(|| bad(format!("`{value}` is no size")))?);
            }
            Some((key, _)) => return Err(bad(format!("there is no `{key}`"))),
        }
    }
    let preset = match (name, values.as_slice()) {
        ("preset", names) => {
            let preset = if let [name] = names { name.parse::<Preset>().ok() } else { None };
            Some(preset.ok_or_else(|| bad("there is no preset of this name".into()))?)
        }
        _ => None,
    };
    let policy = match (name, values.as_slice()) {
        ("preset", _) if preset == Some(Preset::Embedding) => {
            BucketPolicy::tiered(&preset::BUCKET_SIZES)
        }
        ("preset", _) if preset == Some(Preset::SmallTensors) => {
            BucketPolicy::tiered(&preset::SMALL_BLOCKS.map(|(bytes, _)| bytes))
        }
        ("preset", _) if preset == Some(Preset::Ndarray) => BucketPolicy::Exact,
        ("exact", []) => BucketPolicy::Exact,
        ("preset", _) | ("pow2", []) => BucketPolicy::PowerOfTwo,
        ("tiered", [classes]) => {
            let classes: Result<Vec<u64>, _> = classes.split('+').map(sizes::bytes).collect();
            BucketPolicy::tiered(&classes.map_err(|_| bad("its classes are no sizes".into()))?)
        }
        ("fit", [alpha]) => match alpha.parse::<f64>() {
            Ok(alpha) if alpha.is_finite() && alpha >= 1.0 => BucketPolicy::Fit { alpha },
            _ => return Err(bad(format!("`{alpha}` is no factor of 1 or more"))),
        },
        ("exact" | "pow2", [value, ..]) => return Err(bad(format!("`{value}` has no place"))),
        ("tiered", _) => return Err(bad("it takes one list of classes".into())),
        ("fit", _) => return Err(bad("it takes one factor".into())),
        _ => return Err(bad("there is no policy of this name".into())),
    };
    let arena = (preset == Some(Preset::Caching)).then(|| preset::Caching::default().arena());
    Ok(PolicySpec { text: text.to_owned(), policy, granule, arena, preset })
}

/// Parses the arguments of an arena.
fn arena<'t>(parts: impl Iterator<Item = &'t str>) -> Result<(ArenaConfig, u64), String> {
    let (mut torch, mut pages, mut slack, mut round) = (false, None, None, ARENA_GRANULE);
    for part in parts {
        match part.split_once('=') {
            None if part == "torch" => torch = true,
            None => return Err(format!("`{part}` has no place")),
            Some(("pages", value)) => {
                let bytes = sizes::bytes(value).ok();
                let bytes = bytes.filter(|bytes| (4096..=1 << 30).contains(bytes));
                pages = Some(bytes.ok_or_else(|| format!("`{value}` is no page, 4K to 1G"))?);
            }
            Some(("slack", value)) => {
                let share = sizes::share(value).filter(|share| (0.0..=100.0).contains(share));
                let no_share = || format!("`{value}` is no share, 0% to 10000%");
                slack = Some(share.ok_or_else(no_share)?);
            }
            Some(("round", value)) => {
                let bytes = sizes::bytes(value).ok().filter(|bytes| bytes.is_power_of_two());
                let bytes = bytes.filter(|bytes| *bytes <= 4096);
                round = bytes.ok_or_else(|| format!("`{value}` is no power of two, up to 4K"))?;
            }
            Some((key, _)) => return Err(format!("there is no `{key}`")),
        }
    }
    let config = match (torch, pages, slack) {
        (false, None, None) => ArenaConfig::grow(),
        (true, None, None) => ArenaConfig::torch(),
        (false, Some(bytes), slack) => ArenaConfig::pages(bytes, slack.unwrap_or(SLACK)),
        (false, None, Some(_)) => return Err("`slack` needs `pages`".into()),
        (true, _, _) => return Err("`torch` has no pages".into()),
    };
    Ok((config.granule(round), round))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_and_its_arguments() {
        let specs = list("exact:round=16,pow2,tiered:4K+64K,fit:1.5:round=1K").unwrap();
        let read: Vec<_> = specs.iter().map(|s| (s.policy.clone(), s.granule)).collect();
        let expected = [
            (BucketPolicy::Exact, Some(16)),
            (BucketPolicy::PowerOfTwo, None),
            (BucketPolicy::tiered(&[4096, 65536]), None),
            (BucketPolicy::Fit { alpha: 1.5 }, Some(1024)),
        ];
        assert_eq!(read, expected);
        assert_eq!(specs[3].text, "fit:1.5:round=1K");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let bad = [
            "",
            "exakt",
            "exact:16",
            "exact:min=3",
            "pow2:min=0",
            "pow2:min=x",
            "tiered",
            "tiered:a",
            "tiered:1K:round=3",
            "fit",
            "fit:0.5",
            "fit:nan",
            "fit:2:3",
            "exact,,pow2",
            "arena:best",
            "arena:torch:pages=64K",
            "arena:pages=1",
            "arena:pages=64K:slack=-1%",
            "arena:slack=5%",
            "arena:segments=2M",
            "arena:round=48",
        ];
        let errors: Vec<_> = bad.map(|text| list(text).unwrap_err().to_string()).to_vec();
        insta::assert_snapshot!(errors.join("\n"));
    }
}
