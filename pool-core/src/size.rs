//! Bytes: the units people write, and how a number of bytes is shown and read.

use std::fmt;

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
/// # use pool_core as bucketpool;
/// use bucketpool::{Bytes, MIB};
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
