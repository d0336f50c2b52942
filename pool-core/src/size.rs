//! Bytes: the units people write, and how a number of bytes is shown and read.

use std::fmt;

/// Bytes in a kibibyte, 2^10.
pub const KIB: u64 = 1 << 10;
/// Bytes in a mebibyte, 2^20.
pub const MIB: u64 = 1 << 20;
/// Bytes in a gibibyte, 2^30.
pub const GIB: u64 = 1 << 30;

/// Shows a number of bytes in the unit that fits it.
///
/// ```
/// use pool_core::{Bytes, MIB};
///
/// assert_eq!(Bytes(3 * MIB / 2).to_string(), "1.50 MiB");
/// assert_eq!(Bytes(512).to_string(), "512 B");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            u64::MAX => return f.pad("unlimited"),
            n if n >= GIB => (GIB, "GiB"),
            n if n >= MIB => (MIB, "MiB"),
            n if n >= KIB => (KIB, "KiB"),
            n => return f.pad(&format!("{n} B")),
        };
        f.pad(&format!("{:.2} {name}", self.0 as f64 / unit as f64))
    }
}
