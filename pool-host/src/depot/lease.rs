//! The bound on what lies idle: fronts and stacks hold what they have leased, and no more is leased
//! than the bound. So they work within their leases without touching a line that others write.

use super::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use super::sync::const_unless_loom;

/// The bytes that are leased.
#[derive(Debug)]
pub(crate) struct Leases {
    leased: AtomicUsize,
    peak: AtomicUsize,
    limit: AtomicUsize,
}

impl Leases {
    const_unless_loom! {
        pub(crate) fn new(limit: usize) -> Self {
            Self {
                leased: AtomicUsize::new(0),
                peak: AtomicUsize::new(0),
                limit: AtomicUsize::new(limit),
            }
        }
    }

    /// Sets the bound, before anything is leased.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Leases `bytes` more, if the sum stays within the bound.
    pub(crate) fn extend(&self, bytes: usize) -> bool {
        let limit = self.limit();
        let fits = |leased: usize| leased.checked_add(bytes).filter(|sum| *sum <= limit);
        // Relaxed: the count orders nothing; who leases writes to nothing that others read by it.
        match self.leased.fetch_update(Relaxed, Relaxed, fits) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.leased.fetch_sub(bytes, Relaxed);
        }
    }

    pub(crate) fn leased(&self) -> usize {
        self.leased.load(Relaxed)
    }

    /// The most that was ever leased at once; never above the bound.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }
}
