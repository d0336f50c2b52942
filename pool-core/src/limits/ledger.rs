//! The bytes of one pool: reserved, in its own limit and in its budget.

use crate::limits::budget::Budget;
use crate::limits::{Bounded, subtract};
use crate::port::{DeviceError, Limit, Why};
use crate::size::LARGEST;
use crate::sys::modelled::AtomicU64;
use crate::sys::modelled::Ordering::{Relaxed, SeqCst};

/// Bytes taken from the device, never above the limit of the pool, nor above that of its budget. Changes on
/// misses only.
#[derive(Debug)]
pub(crate) struct Ledger {
    bytes: Bounded,
    /// Bytes that were allocated from the device.
    reserved: AtomicU64,
    peak: AtomicU64,
    /// 1 once the budget knows that the reserved bytes will never be freed, else 0.
    never_freed: AtomicU64,
    pub(crate) budget: Budget,
}

/// Bytes that must go back to the device before a request fits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortfall {
    /// In this pool, because of its own limit.
    pub(crate) of_pool: u64,
    /// In any pool of the budget, because of its limit.
    pub(crate) of_budget: u64,
}

impl Ledger {
    pub(crate) fn new(limit: u64, budget: Budget) -> Self {
        let [reserved, peak, never_freed] = [0; 3].map(AtomicU64::new);
        Self { bytes: Bounded::new(limit), reserved, peak, never_freed, budget }
    }

    /// Reserves `bytes` for a call to the device, or leaves everything as it is.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Reservation<'_>, DeviceError> {
        if let Err(claimed) = self.bytes.claim(bytes) {
            let is_possible = claimed.saturating_add(bytes) <= LARGEST;
            return Err(match is_possible {
                true => DeviceError::limit(Limit::Reserved),
                false => DeviceError::new(Why::TooLarge, "sum of reserved bytes"),
            });
        }
        // If the budget refuses the bytes, the drop of the reservation subtracts them again.
        let mut reservation = Reservation { ledger: self, bytes, in_budget: 0 };
        self.budget.reserve(bytes)?;
        reservation.in_budget = bytes;
        Ok(reservation)
    }

    /// Subtracts bytes that were freed to the device, also from the budget.
    pub(crate) fn note_freed(&self, bytes: u64) {
        let were_reserved = subtract(&self.reserved, bytes);
        let were_claimed = self.bytes.give_up(bytes);
        self.budget.unreserve(bytes);
        invariant!(were_reserved, "a pool gives back what it took from the device, once");
        invariant!(were_claimed, "what a pool has taken is counted with its claims");
    }

    /// Notes that what is reserved will never be freed: the pool is broken, and no member of its
    /// budget any more. Further calls do nothing.
    pub(crate) fn note_never_freed(&self) {
        if self.never_freed.swap(1, SeqCst) == 0 {
            self.budget.note_never_freed(self.reserved());
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.bytes.limit()
    }

    pub(crate) fn set_limit(&self, limit: u64) {
        self.bytes.set_limit(limit);
        self.budget.transit().note_return();
    }

    /// Returns the pool's own limit, or the bytes of the budget that the other pools leave to it,
    /// whichever is less.
    pub(crate) fn limit_now(&self) -> u64 {
        if self.budget.limit() == u64::MAX {
            return self.limit();
        }
        let others = self.budget.reserved_bytes().saturating_sub(self.claimed());
        self.limit().min(self.budget.limit().saturating_sub(others))
    }

    /// Returns how many bytes must be freed before `bytes` more can be reserved: by this pool for
    /// its own limit, and by any pools of the budget for the budget's limit.
    pub(crate) fn shortfall(&self, bytes: u64) -> Shortfall {
        let needed = self.reserved().saturating_add(bytes);
        Shortfall {
            of_pool: needed.saturating_sub(self.limit()),
            of_budget: bytes.saturating_sub(self.budget.available()),
        }
    }

    /// Whether both limits are large enough for a request of `bytes` bytes alone.
    pub(crate) fn could_hold(&self, bytes: u64) -> bool {
        bytes <= self.limit().min(self.budget.limit()).min(LARGEST)
    }

    /// Gives back cached memory of the other pools of the budget; `None` if there are none. `own`:
    /// the address of this pool's store. `to_device`: as for a member.
    pub(crate) fn trim_others(&self, own: *const (), bytes: u64, to_device: bool) -> Option<u64> {
        self.budget.trim_others(bytes, own, to_device)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    pub(crate) fn claimed(&self) -> u64 {
        self.bytes.claimed()
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Checks the counters. Returns the first inconsistency as the error. Call it while no device
    /// call is in progress.
    #[cfg(feature = "check")]
    pub(crate) fn check(&self) -> Result<(), String> {
        let (reserved, claimed) = (self.reserved(), self.claimed());
        if reserved != claimed {
            return Err(format!("{reserved} bytes reserved, {claimed} claimed, no call under way"));
        }
        let of_budget = self.budget.reserved_bytes();
        if of_budget < reserved {
            return Err(format!("{reserved} bytes reserved, {of_budget} of them in the budget"));
        }
        Ok(())
    }

    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.reserved(), Relaxed);
    }
}

/// The drop of a pool frees all its memory to the device, so this subtracts its bytes from the
/// budget.
impl Drop for Ledger {
    fn drop(&mut self) {
        self.budget.unreserve(self.reserved());
    }
}

/// Bytes that are reserved for a call to the device. The drop subtracts the bytes that the device
/// did not allocate, because it refused or panicked.
#[derive(Debug)]
pub(crate) struct Reservation<'l> {
    ledger: &'l Ledger,
    bytes: u64,
    /// Those of them that the budget has reserved.
    in_budget: u64,
}

impl Reservation<'_> {
    /// Counts `bytes` of the reservation as allocated by the device.
    pub(crate) fn note_allocated(&mut self, bytes: u64) {
        invariant!(bytes <= self.bytes, "the device gave at most what was reserved for it");
        invariant!(self.bytes == self.in_budget, "a pool and its budget reserve the same bytes");
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.in_budget -= bytes;
        let reserved = self.ledger.reserved.fetch_add(bytes, Relaxed) + bytes;
        self.ledger.peak.fetch_max(reserved, Relaxed);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let were_claimed = self.ledger.bytes.give_up(self.bytes);
        if self.in_budget > 0 {
            self.ledger.budget.unreserve(self.in_budget);
        } else if self.bytes > 0 {
            self.ledger.budget.transit().note_return();
        }
        invariant!(were_claimed, "a reservation is counted until it ends");
    }
}
