//! Limits on cached blocks: on their bytes, and on their number for each size. Both change in a running
//! pool, whose threads read them as they are.

use crate::size::Bytes;
use crate::sys::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
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

    /// The limit on blocks of this size; `usize::MAX` for none.
    pub(crate) fn of(self, bytes: u64) -> usize {
        if bytes < self.large_min_bytes { self.max_blocks } else { self.max_large_blocks }
    }
}

/// The limit on blocks in one free list of a running pool.
#[derive(Debug)]
pub(crate) struct Buckets {
    max_blocks: AtomicUsize,
    large_min_bytes: u64,
    max_large_blocks: AtomicUsize,
}

impl Buckets {
    pub(crate) fn new(limit: BucketLimit) -> Self {
        Self {
            max_blocks: AtomicUsize::new(limit.max_blocks),
            large_min_bytes: limit.large_min_bytes,
            max_large_blocks: AtomicUsize::new(limit.max_large_blocks),
        }
    }

    /// The limit on blocks of this size; `usize::MAX` for none.
    #[inline]
    pub(crate) fn of(&self, bytes: u64) -> usize {
        match bytes < self.large_min_bytes {
            true => self.max_blocks.load(Relaxed),
            false => self.max_large_blocks.load(Relaxed),
        }
    }

    /// Whether some sizes are large.
    pub(crate) fn has_large(&self) -> bool {
        self.large_min_bytes < u64::MAX
    }

    /// Sets the limit for all sizes that the large ones are not, or for those.
    pub(crate) fn set(&self, blocks: usize, large: bool) {
        if large { &self.max_large_blocks } else { &self.max_blocks }.store(blocks, Relaxed);
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

/// The action when a whole block is freed and no room is left for it under the cached limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullPool {
    /// The pool keeps the block and gives old blocks back to the device, of the 32 oldest the largest
    /// first. A block above half of the limit, or one that would displace more than 64 others, goes back
    /// itself.
    #[default]
    EvictOldest,
    /// The pool gives the block itself back to the device. A block may have all of the limit.
    RefuseNewest,
}

impl FullPool {
    /// The bytes of the largest block that is kept under a limit of this many.
    #[inline]
    pub(crate) fn largest(self, limit: u64) -> u64 {
        if self == Self::RefuseNewest { limit } else { limit / 2 }
    }
}

/// A [`CachedLimit`] that changes in a running pool: the bytes, or with the top bit the bits of a share,
/// which has no sign.
#[derive(Debug)]
pub(crate) struct CachedLimitNow(AtomicU64);

/// Marks a share in [`CachedLimitNow`].
const SHARE: u64 = 1 << 63;

impl CachedLimitNow {
    pub(crate) fn new(limit: CachedLimit) -> Self {
        let now = Self(AtomicU64::new(u64::MAX));
        now.set(limit);
        now
    }

    pub(crate) fn set(&self, limit: CachedLimit) {
        let bits = match limit {
            CachedLimit::Unlimited => u64::MAX,
            CachedLimit::Bytes(bytes) => bytes.min(SHARE - 1),
            CachedLimit::OfPeak(share) if share > 0.0 => SHARE | share.min(f64::MAX).to_bits(),
            CachedLimit::OfPeak(_) => SHARE,
        };
        self.0.store(bits, Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> CachedLimit {
        match self.0.load(Relaxed) {
            u64::MAX => CachedLimit::Unlimited,
            bits if bits >= SHARE => CachedLimit::OfPeak(f64::from_bits(bits - SHARE)),
            bytes => CachedLimit::Bytes(bytes),
        }
    }
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
