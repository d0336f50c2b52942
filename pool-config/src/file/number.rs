//! Sizes and shares in a file: a number, or text as people type it.
//!
//! A limit may be given as a size by one key and as a share by another. Text for the other one is
//! refused with the name of its key.

use pool_core::size::{ShareText, SizeText};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// Reads the reserved limit: `1073741824` or `"1G"`.
pub(super) fn reserved_limit<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_option(OrNone(SizeVisitor { share: Some("memory_fraction") }))
}

/// Reads the cached limit: `1073741824` or `"1G"`.
pub(super) fn cached_limit<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_option(OrNone(SizeVisitor { share: Some("cached_share") }))
}

/// Reads the cached limit as a share: `0.25` or `"25%"`.
pub(super) fn cached_share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    from.deserialize_option(OrNone(ShareVisitor { size: Some("cached_limit") }))
}

/// Reads the reserved limit as a share: `0.25` or `"25%"`.
pub(super) fn memory_fraction<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    from.deserialize_option(OrNone(ShareVisitor { size: Some("reserved_limit") }))
}

/// Reads a share of which there is no size: `0.25` or `"25%"`.
pub(super) fn share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    from.deserialize_option(OrNone(ShareVisitor { size: None }))
}

/// Reads sizes with a count: `[[64, 16], ["4K", 2]]`.
pub(super) fn blocks<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<(u64, usize)>>, D::Error> {
    let blocks = Option::<Vec<(Size, usize)>>::deserialize(deserializer)?;
    let in_bytes = |(Size(bytes), count)| (bytes, count);
    Ok(blocks.map(|blocks| blocks.into_iter().map(in_bytes).collect()))
}

/// Reads a size with a count: `["1M", 2]`.
pub(super) fn size_and_count<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<(u64, usize)>, D::Error> {
    let pair = Option::<(Size, usize)>::deserialize(deserializer)?;
    Ok(pair.map(|(Size(bytes), count)| (bytes, count)))
}

/// Reads two sizes: `[1, "64M"]`.
pub(super) fn two_sizes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<(u64, u64)>, D::Error> {
    let pair = Option::<(Size, Size)>::deserialize(deserializer)?;
    Ok(pair.map(|(Size(first), Size(last))| (first, last)))
}

/// A value, or none.
struct OrNone<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for OrNone<V> {
    type Value = Option<V::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<Self::Value, D::Error> {
        some.deserialize_any(self.0).map(Some)
    }
}

/// A size in a list.
struct Size(u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor { share: None }).map(Self)
    }
}

struct SizeVisitor {
    /// The key that takes a share in its place.
    share: Option<&'static str>,
}

impl Visitor<'_> for SizeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes such as 4096, or text such as \"64K\"")
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<u64, E> {
        Ok(bytes)
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<u64, E> {
        let wrong = |_| E::custom(format!("size `{bytes}`; expected bytes such as 4096"));
        bytes.try_into().map_err(wrong)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        let read = text.parse().map(|SizeText(bytes)| bytes);
        let is_share = text.ends_with('%') && text.parse::<ShareText>().is_ok();
        read.map_err(|wrong| match self.share.filter(|_| is_share) {
            Some(key) => E::custom(format!("{wrong}; `{key}` takes a share")),
            None => E::custom(wrong),
        })
    }
}

struct ShareVisitor {
    /// The key that takes a size in its place.
    size: Option<&'static str>,
}

#[expect(clippy::cast_precision_loss, reason = "a share that is a whole number is small")]
impl Visitor<'_> for ShareVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a share such as 0.25, or text such as \"25%\"")
    }

    fn visit_f64<E: Error>(self, share: f64) -> Result<f64, E> {
        Ok(share)
    }

    fn visit_u64<E: Error>(self, share: u64) -> Result<f64, E> {
        Ok(share as f64)
    }

    fn visit_i64<E: Error>(self, share: i64) -> Result<f64, E> {
        Ok(share as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        let read = text.parse().map(|ShareText(share)| share);
        let is_size = text.parse::<SizeText>().is_ok();
        read.map_err(|wrong| match self.size.filter(|_| is_size) {
            Some(key) => E::custom(format!("{wrong}; `{key}` takes a size")),
            None => E::custom(wrong),
        })
    }
}
