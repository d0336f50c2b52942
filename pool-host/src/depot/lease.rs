//! Leases of bytes: the bound on the bytes of cached blocks.
//!
//! A thread cache or a free list caches at most the bytes that it has leased, and the sum of all
//! leases stays within the bound. Within its lease it works without a cache line that other threads
//! write to. [`Leases::take`] may exceed the bound.

use super::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use super::sync::const_unless_loom;

/// The leased bytes, their peak and their bound. Aligned to 128 bytes, so that the writes of all
/// threads to it invalidate no other data.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Leases {
    leased: AtomicUsize,
    peak: AtomicUsize,
    limit: AtomicUsize,
}

impl Leases {
    const_unless_loom! {
        /// Creates leases with a bound of `limit` bytes.
        pub(crate) fn new(limit: usize) -> Self {
            Self {
                leased: AtomicUsize::new(0),
                peak: AtomicUsize::new(0),
                limit: AtomicUsize::new(limit),
            }
        }
    }

    /// Sets the bound in bytes. Must be called before the first lease.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
    }

    /// Returns the bound in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Leases `bytes` more bytes if the sum stays within the bound. Returns whether it did.
    pub(crate) fn extend(&self, bytes: usize) -> bool {
        let limit = self.limit();
        let fits = |leased: usize| leased.checked_add(bytes).filter(|sum| *sum <= limit);
        // Relaxed: the count publishes no other data; blocks move between threads under locks.
        match self.leased.fetch_update(Relaxed, Relaxed, fits) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Leases `bytes` more bytes, even beyond the bound.
    pub(crate) fn take(&self, bytes: usize) {
        let before = self.leased.fetch_add(bytes, Relaxed);
        self.peak.fetch_max(before + bytes, Relaxed);
    }

    /// Gives back `bytes` leased bytes.
    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.leased.fetch_sub(bytes, Relaxed);
        }
    }

    /// Returns the leased bytes.
    pub(crate) fn leased(&self) -> usize {
        self.leased.load(Relaxed)
    }

    /// Returns the peak of the leased bytes.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }
}
