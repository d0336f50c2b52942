//! Bounds in bytes: what is taken from the device, and what may lie idle.

use crate::error::{DeviceError, Why};
use crate::size::{Bytes, LARGEST};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes taken from the device, never above a ceiling.
///
/// Bytes are reserved by compare-and-swap BEFORE the device is called and given back if it
/// refuses, so the ceiling holds at each call, not only between calls. Moves on misses only.
#[derive(Debug)]
pub(crate) struct Ledger {
    limit: u64,
    /// Taken, and about to be.
    reserved: AtomicU64,
    taken: AtomicU64,
    peak: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(limit: u64) -> Self {
        let (reserved, taken, peak) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { limit, reserved, taken, peak }
    }

    /// Reserves `bytes` for a call to the device, or leaves everything as it is.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Reservation<'_>, DeviceError> {
        let limit = self.limit.min(LARGEST);
        let fits = |reserved: u64| reserved.checked_add(bytes).filter(|sum| *sum <= limit);
        match self.reserved.try_update(Relaxed, Relaxed, fits) {
            Ok(_) => Ok(Reservation { ledger: self, bytes }),
            Err(_) => Err(DeviceError::new(Why::Limit, "reserved limit", 0)),
        }
    }

    /// The device has it back.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Relaxed);
        self.reserved.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.reserved(), Relaxed);
    }
}

/// Bytes that are reserved for a call to the device. Those that the device did not give when it is
/// dropped, since it refused or panicked, are not reserved any more.
#[derive(Debug)]
pub(crate) struct Reservation<'l> {
    ledger: &'l Ledger,
    bytes: u64,
}

impl Reservation<'_> {
    /// The device gave this many of them.
    pub(crate) fn took(&mut self, bytes: u64) {
        self.bytes -= bytes;
        let taken = self.ledger.taken.fetch_add(bytes, Relaxed) + bytes;
        self.ledger.peak.fetch_max(taken, Relaxed);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.ledger.reserved.fetch_sub(self.bytes, Relaxed);
    }
}

/// How many idle blocks of one size may lie on one shelf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketLimit {
    pub(crate) most: usize,
    /// From so many bytes on it is another number.
    pub(crate) large_from: u64,
    pub(crate) most_large: usize,
}

impl BucketLimit {
    pub(crate) const NONE: Self =
        Self { most: usize::MAX, large_from: u64::MAX, most_large: usize::MAX };

    #[inline]
    pub(crate) fn of(self, bytes: u64) -> usize {
        if bytes < self.large_from { self.most } else { self.most_large }
    }
}

/// What happens to a block that is freed where a bucket has as many free blocks as its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullBucket {
    /// It is kept, and the block that was freed first goes back to the device.
    #[default]
    EvictOldest,
    /// It goes back to the device itself.
    RefuseNewest,
}

/// How many bytes may lie idle in a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CachedLimit {
    /// No bound. On recorded traces a pool of exact sizes then ends at many times the live peak.
    Unlimited,
    /// At most this many bytes.
    Bytes(u64),
    /// At most this share of the most bytes that were ever allocated at once so far; 0.25 bounds
    /// a pool to 1.25 times its live peak.
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
    /// The bound in bytes, given the most bytes allocated at once so far.
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
