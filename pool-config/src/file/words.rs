//! Settings in a file that are one of several words.

use crate::preset::TileUse;
use pool_core::ZeroPolicy;
use pool_core::limits::{FullBucket, FullPool};
use pool_core::stream::StealPolicy;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// A setting that is one of several words.
pub(super) trait Words: Copy + PartialEq + 'static {
    /// The key that takes the words.
    const KEY: &'static str;
    /// Each value with its word.
    const WORDS: &'static [(&'static str, Self)];
}

impl Words for FullBucket {
    const KEY: &'static str = "full_bucket";
    const WORDS: &'static [(&'static str, Self)] =
        &[("evict_oldest", Self::EvictOldest), ("refuse_newest", Self::RefuseNewest)];
}

impl Words for FullPool {
    const KEY: &'static str = "full_pool";
    const WORDS: &'static [(&'static str, Self)] =
        &[("evict_oldest", Self::EvictOldest), ("refuse_newest", Self::RefuseNewest)];
}

impl Words for ZeroPolicy {
    const KEY: &'static str = "zero";
    const WORDS: &'static [(&'static str, Self)] =
        &[("never", Self::Never), ("on_allocate", Self::OnAllocate), ("on_return", Self::OnReturn)];
}

impl Words for StealPolicy {
    const KEY: &'static str = "steal";
    const WORDS: &'static [(&'static str, Self)] =
        &[("never", Self::Never), ("ordered", Self::Ordered), ("wait", Self::Wait)];
}

impl Words for TileUse {
    const KEY: &'static str = "tile_use";
    const WORDS: &'static [(&'static str, Self)] = &[
        ("small_tiles", Self::SmallTiles),
        ("medium_tiles", Self::MediumTiles),
        ("large_tiles", Self::LargeTiles),
        ("batch", Self::Batch),
        ("limited_vram", Self::LimitedVram),
        ("high_vram", Self::HighVram),
    ];
}

/// Reads one of the words.
pub(super) fn read<'de, D: Deserializer<'de>, W: Words>(
    deserializer: D,
) -> Result<Option<W>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    if let Some((_, value)) = W::WORDS.iter().find(|(word, _)| *word == text) {
        return Ok(Some(*value));
    }
    let words: Vec<&str> = W::WORDS.iter().map(|(word, _)| *word).collect();
    let (last, others) = words.split_last().unwrap_or((&"", &[]));
    let others = others.join(", ");
    Err(D::Error::custom(format!("{} `{text}`; expected {others} or {last}", W::KEY)))
}

/// Writes the word of a value.
#[expect(clippy::ref_option, reason = "serde calls it so")]
pub(super) fn write<S: Serializer, W: Words>(
    value: &Option<W>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let word = W::WORDS.iter().find(|(_, other)| Some(*other) == *value);
    match word {
        Some((word, _)) => serializer.serialize_str(word),
        None => serializer.serialize_none(),
    }
}
