//! Presets by their names in files and on command lines.

use super::{Caching, TileUse, embedding_on, ndarray_on, small_tensors_on, tiles_on};
use pool_core::port::Sliceable;
use pool_core::{DeviceAllocator, PoolBuilder};
use std::fmt;
use std::str::FromStr;

/// One of the presets of this module. Its text is the name of the function: `tile_pipeline`,
/// `embedding`, `ndarray`, `small_tensors` or `caching`.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, GIB, config::preset::Preset, sim::SimDevice};
///
/// let preset: Preset = "embedding".parse()?;
/// let pool = preset.set(BucketPool::builder(SimDevice::new())).reserved_limit(8 * GIB).build();
/// assert_eq!(pool.allocate(5000)?.allocated_size(), 16 << 10);
/// assert_eq!("embeding".parse::<Preset>().unwrap_err().to_string(), "no preset `embeding`; \
///     expected tile_pipeline, embedding, ndarray, small_tensors or caching");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preset {
    /// [`tile_pipeline`](super::tile_pipeline).
    TilePipeline,
    /// [`embedding`](super::embedding).
    Embedding,
    /// [`ndarray`](super::ndarray).
    Ndarray,
    /// [`small_tensors`](super::small_tensors).
    SmallTensors,
    /// [`caching`](super::caching).
    Caching,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 5] =
        [Self::TilePipeline, Self::Embedding, Self::Ndarray, Self::SmallTensors, Self::Caching];

    /// Sets what the preset sets. Call it first: it overrides what the builder has of these.
    pub fn set<A: Sliceable>(self, builder: PoolBuilder<A>) -> PoolBuilder<A> {
        match self {
            Self::Caching => builder.arena(Caching::default().arena()),
            blocks => blocks.set_blocks(builder),
        }
    }

    /// Sets what the preset sets but an arena, for a device whose blocks cannot be split. So
    /// [`Preset::Caching`] sets nothing.
    pub fn set_blocks<A: DeviceAllocator>(self, builder: PoolBuilder<A>) -> PoolBuilder<A> {
        match self {
            Self::TilePipeline => tiles_on(builder, TileUse::default()),
            Self::Embedding => embedding_on(builder),
            Self::Ndarray => ndarray_on(builder),
            Self::SmallTensors => small_tensors_on(builder),
            Self::Caching => builder,
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TilePipeline => "tile_pipeline",
            Self::Embedding => "embedding",
            Self::Ndarray => "ndarray",
            Self::SmallTensors => "small_tensors",
            Self::Caching => "caching",
        })
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        let is_it = |preset: &Self| preset.to_string() == name;
        Self::ALL.into_iter().find(is_it).ok_or_else(|| UnknownPreset(name.to_owned()))
    }
}

/// A name that no preset has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPreset(String);

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no preset `{}`; expected tile_pipeline, embedding, ndarray, small_tensors or caching",
            self.0
        )
    }
}

impl std::error::Error for UnknownPreset {}
