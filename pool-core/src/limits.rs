//! Limits: how much a pool, or several of them, may take from a device and keep, and the requests
//! that wait under a limit.

mod budget;
mod cached;
mod ledger;
mod transit;
mod waiters;

pub use budget::{Budget, Pressure};
pub(crate) use budget::{Member, WakeBudget};
pub(crate) use cached::{BucketLimit, Buckets, CachedLimitNow, GivenBack, Ticks};
pub use cached::{CachedLimit, FullBucket, FullPool, Retention};
pub(crate) use ledger::{Ledger, Shortfall};
pub(crate) use transit::{InShortage, InTransit, Transit};
pub(crate) use waiters::{Asker, DeviceId, Kind, Lacks, NextStep, Ticket};

use crate::size::LARGEST;
use crate::sys::modelled::AtomicU64;
use crate::sys::modelled::Ordering::{Relaxed, SeqCst};

/// Bytes that were allocated from devices or that calls in progress are about to allocate, never above a limit,
/// which may change at any time.
///
/// They are claimed by compare-and-swap BEFORE the device is called and given up if it refuses, so the limit
/// holds at each call, not only between calls.
#[derive(Debug)]
struct Bounded {
    limit: AtomicU64,
    claimed: AtomicU64,
}

impl Bounded {
    fn new(limit: u64) -> Self {
        Self { limit: AtomicU64::new(limit), claimed: AtomicU64::new(0) }
    }

    fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    fn set_limit(&self, limit: u64) {
        self.limit.store(limit, SeqCst);
    }

    fn claimed(&self) -> u64 {
        self.claimed.load(SeqCst)
    }

    /// Claims bytes unless that exceeds the limit. Returns what was claimed before, also as the error.
    fn claim(&self, bytes: u64) -> Result<u64, u64> {
        let limit = self.limit().min(LARGEST);
        let fits = |claimed: u64| claimed.checked_add(bytes).filter(|sum| *sum <= limit);
        self.claimed.fetch_update(SeqCst, SeqCst, fits)
    }

    /// Gives claimed bytes up. Returns false if fewer were claimed; none are then.
    fn give_up(&self, bytes: u64) -> bool {
        subtract(&self.claimed, bytes)
    }
}

/// Subtracts from a count, which stays at 0 or above. Returns false if it was too small.
fn subtract(count: &AtomicU64, bytes: u64) -> bool {
    let less = |count: u64| Some(count.saturating_sub(bytes));
    count.fetch_update(SeqCst, SeqCst, less).is_ok_and(|before| before >= bytes)
}
