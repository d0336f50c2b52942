//! Bytes: the units people write, and how a number of bytes is shown and read.

use std::fmt;
use std::str::FromStr;

/// Bytes in a kibibyte, 2^10.
pub const KIB: u64 = 1 << 10;
/// Bytes in a mebibyte, 2^20.
pub const MIB: u64 = 1 << 20;
/// Bytes in a gibibyte, 2^30.
pub const GIB: u64 = 1 << 30;

/// The largest block, in bytes: 2^63 - 1. Sums of live bytes are kept in signed words, since a
/// thread may free what another allocated.
pub(crate) const LARGEST: u64 = i64::MAX.unsigned_abs();

/// Shows a number of bytes in the unit that fits it.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{MIB, size::Bytes};
///
/// assert_eq!(Bytes(3 * MIB / 2).to_string(), "1.50 MiB");
/// assert_eq!(Bytes(512).to_string(), "512 B");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, name) = match self.0 {
            0..KIB => return f.pad(&format!("{} B", self.0)),
            KIB..MIB => (10, "KiB"),
            MIB..GIB => (20, "MiB"),
            n if n >> 40 == 0 => (30, "GiB"),
            n if n >> 60 == 0 => (40, "TiB"),
            _ => (60, "EiB"),
        };
        f.pad(&format!("{:.2} {name}", self.0 as f64 / (1_u64 << shift) as f64))
    }
}

/// A number of bytes as people type it: `4096`, `64K`, `1.5G`; K, M and G are binary.
///
/// # Errors
///
/// [`BadSize`] for other text, and for a number that does not fit in 64 bits.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{KIB, size::SizeText};
///
/// assert_eq!("1.5K".parse(), Ok(SizeText(1536)));
/// assert_eq!(SizeText(64 * KIB).to_string(), "64K");
/// let error = "64KB".parse::<SizeText>().unwrap_err();
/// assert_eq!(error.to_string(), "size `64KB`; expected bytes such as 4096, or with K, M or G \
///     (binary) such as 64K");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeText(pub u64);

/// A text that is no number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("size `{0}`; expected bytes such as 4096, or with K, M or G (binary) such as 64K")]
pub struct BadSize(String);

impl FromStr for SizeText {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        Self::read(text).ok_or_else(|| BadSize(text.to_owned()))
    }
}

impl SizeText {
    fn read(text: &str) -> Option<Self> {
        let (number, shift) = match text.char_indices().last()? {
            (at, 'K' | 'k') => (&text[..at], 10),
            (at, 'M' | 'm') => (&text[..at], 20),
            (at, 'G' | 'g') => (&text[..at], 30),
            _ => (text, 0),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(Self);
        }
        let part: f64 = number.parse().ok()?;
        let bytes = part * f64::from(1_u32 << shift);
        if shift == 0 || !(0.0..2_f64.powi(63)).contains(&bytes) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above"
        )]
        Some(Self(bytes.round() as u64))
    }
}

impl fmt::Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(GIB, 'G'), (MIB, 'M'), (KIB, 'K')];
        match units.into_iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A share as people type it: `5%` or `0.05`, not negative.
///
/// # Errors
///
/// [`BadShare`] for other text.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::size::ShareText;
///
/// assert_eq!("5%".parse(), Ok(ShareText(0.05)));
/// assert_eq!(ShareText(0.05).to_string(), "5%");
/// assert!("-5%".parse::<ShareText>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct ShareText(pub f64);

/// A text that is no share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("share `{0}`; expected a share such as 25% or 0.25")]
pub struct BadShare(String);

impl FromStr for ShareText {
    type Err = BadShare;

    fn from_str(text: &str) -> Result<Self, BadShare> {
        let share = match text.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse(),
        };
        let share = share.ok().filter(|share| share.is_finite() && *share >= 0.0);
        share.map(Self).ok_or_else(|| BadShare(text.to_owned()))
    }
}

impl fmt::Display for ShareText {
    /// Displays the share in per cent if that text parses to the same number, else as a fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_cent = (self.0 * 1e10).round() / 1e8;
        #[expect(clippy::float_cmp, reason = "read again, it must be the same number")]
        if per_cent / 100.0 == self.0 { write!(f, "{per_cent}%") } else { self.0.fmt(f) }
    }
}
