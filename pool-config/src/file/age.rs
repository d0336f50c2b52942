//! The age in a file up to which cached memory is kept.

use pool_core::limits::Retention;
use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serializer};
use std::fmt;
use std::time::Duration;

const ALLOCATIONS: &str = "allocations";
const TIME: &str = "time";
/// The units of a time, in milliseconds.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000)];

/// Reads `1000` allocations, `"30s"`, or `{ allocations = 1000, time = "30s" }`.
pub(super) fn read<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Retention>, D::Error> {
    Ok(Option::<Age>::deserialize(deserializer)?.map(|Age(retention)| retention))
}

/// Writes what [`read`] reads.
#[expect(clippy::ref_option, reason = "serde calls it so")]
pub(super) fn write<S: Serializer>(
    value: &Option<Retention>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Retention { allocations, time } = value.unwrap_or_default();
    match (allocations, time) {
        (Some(count), None) => serializer.serialize_u64(count),
        (None, Some(time)) => serializer.serialize_str(&text_of(time)),
        (allocations, time) => {
            let count = usize::from(allocations.is_some()) + usize::from(time.is_some());
            let mut map = serializer.serialize_map(Some(count))?;
            if let Some(count) = allocations {
                map.serialize_entry(ALLOCATIONS, &count)?;
            }
            if let Some(time) = time {
                map.serialize_entry(TIME, &text_of(time))?;
            }
            map.end()
        }
    }
}

/// A time as whole milliseconds or a larger unit, if that text means the same.
fn text_of(time: Duration) -> String {
    let milliseconds = time.as_millis();
    let is_whole = |(_, unit): &&(&str, u64)| {
        milliseconds > 0 && milliseconds.is_multiple_of(u128::from(*unit))
    };
    let (name, unit) = UNITS.iter().rev().find(is_whole).unwrap_or(&UNITS[0]);
    format!("{}{name}", milliseconds / u128::from(*unit))
}

fn time_of(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let (_, unit) = UNITS.iter().find(|(name, _)| *name == &text[digits.len()..])?;
    let count: u64 = digits.trim_end().parse().ok()?;
    count.checked_mul(*unit).map(Duration::from_millis)
}

struct Age(Retention);

impl<'de> Deserialize<'de> for Age {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AgeVisitor).map(Self)
    }
}

struct AgeVisitor;

impl<'de> Visitor<'de> for AgeVisitor {
    type Value = Retention;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "allocations such as 1000, a time such as \"30s\", or both: { allocations = 1000, time = \
             \"30s\" }",
        )
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<Retention, E> {
        Ok(Retention { allocations: Some(count), time: None })
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<Retention, E> {
        let wrong = |_| E::custom(format!("retention `{count}`; expected 0 allocations or more"));
        self.visit_u64(count.try_into().map_err(wrong)?)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Retention, E> {
        let wrong = || {
            E::custom(format!(
                "time `{text}`; expected a whole number with ms, s, min or h, such as 30s"
            ))
        };
        Ok(Retention { allocations: None, time: Some(time_of(text).ok_or_else(wrong)?) })
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Retention, M::Error> {
        let mut both = Retention::default();
        while let Some(key) = map.next_key::<String>()? {
            let Age(part) = map.next_value()?;
            match (key.as_str(), part.allocations, part.time) {
                (ALLOCATIONS, Some(count), None) => both.allocations = Some(count),
                (TIME, None, Some(time)) => both.time = Some(time),
                _ => {
                    let expected = "allocations = 1000 or time = \"30s\"";
                    return Err(M::Error::custom(format!(
                        "retention has `{key}`; expected {expected}"
                    )));
                }
            }
        }
        Ok(both)
    }
}
