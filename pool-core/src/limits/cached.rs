//! Limits on cached blocks: on their bytes, and on their number for each size.

use crate::size::Bytes;
use std::fmt;

/// The limit on the number of cached blocks in one free list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketLimit {
    pub(crate) max_blocks: usize,
    /// The size, in bytes, from which `max_large_blocks` is the limit.
    pub(crate) large_min_bytes: u64,
    pub(crate) max_large_blocks: usize,
}

impl BucketLimit {
    pub(crate) const NONE: Self =
        Self { max_blocks: usize::MAX, large_min_bytes: u64::MAX, max_large_blocks: usize::MAX };

    #[inline]
    pub(crate) fn of(self, bytes: u64) -> usize {
        if bytes < self.large_min_bytes { self.max_blocks } else { self.max_large_blocks }
    }
}

/// The action when a block is freed and its bucket has as many free blocks as its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullBucket {
    /// The pool keeps the block and gives the block that was freed first back to the device.
    #[default]
    EvictOldest,
    /// The pool gives the block itself back to the device.
    RefuseNewest,
}

/// The limit on the cached bytes of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CachedLimit {
    /// No limit. On recorded traces a pool of exact sizes then ends at many times the peak of
    /// allocated bytes.
    Unlimited,
    /// At most this many bytes.
    Bytes(u64),
    /// At most this share of the peak of allocated bytes so far; 0.25 bounds a pool to 1.25 times
    /// that peak.
    OfPeak(f64),
}

impl From<u64> for CachedLimit {
    fn from(bytes: u64) -> Self {
        Self::Bytes(bytes)
    }
}

impl fmt::Display for CachedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.pad("none"),
            Self::Bytes(bytes) => Bytes(*bytes).fmt(f),
            Self::OfPeak(share) => f.pad(&format!("{}%", 100.0 * share)),
        }
    }
}

impl CachedLimit {
    /// Returns the limit in bytes, given the peak of allocated bytes so far.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates; a negative or NaN share gives 0"
    )]
    #[must_use]
    pub fn bytes(self, allocated_peak: u64) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::Bytes(bytes) => bytes,
            Self::OfPeak(share) => (allocated_peak as f64 * share) as u64,
        }
    }
}
