//! Sizes and shares in a file: a number, or text as people type it.

use pool_core::size::{ShareText, SizeText};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// Reads a size in bytes: `1073741824` or `"1G"`.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Size>::deserialize(deserializer)?.map(|Size(bytes)| bytes))
}

/// Reads sizes with a count: `[[64, 16], ["4K", 2]]`.
pub(super) fn blocks<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<(u64, usize)>>, D::Error> {
    let blocks = Option::<Vec<(Size, usize)>>::deserialize(deserializer)?;
    let in_bytes = |(Size(bytes), count)| (bytes, count);
    Ok(blocks.map(|blocks| blocks.into_iter().map(in_bytes).collect()))
}

/// Reads a share: `0.25` or `"25%"`.
pub(super) fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::<Share>::deserialize(deserializer)?.map(|Share(share)| share))
}

struct Size(u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor).map(Self)
    }
}

struct Share(f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShareVisitor).map(Self)
    }
}

struct SizeVisitor;

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
        text.parse().map(|SizeText(bytes)| bytes).map_err(E::custom)
    }
}

struct ShareVisitor;

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
        text.parse().map(|ShareText(share)| share).map_err(E::custom)
    }
}
