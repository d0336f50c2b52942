//! Bytes alive, and the most at once, without a cache line that all threads write.
//!
//! A shard counts in a [`Tally`] of its own and reports to the pool's [`Gauge`] when what it has
//! not reported passes 1/64 of the peak and 256 KiB. On one thread current and peak are exact; on
//! `n` threads the peak may be off by `n` times that.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Unreported bytes are allowed up to the peak divided by 2 to this power.
const UNREPORTED_SHIFT: u32 = 6;
/// Unreported bytes are always allowed up to this.
const UNREPORTED_LEAST: i64 = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct Gauge {
    sum: AtomicI64,
    peak: AtomicI64,
}

/// What one shard has not reported yet: the change so far, and its highest point.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    change: i64,
    highest: i64,
    /// Up to here nothing has to be reported.
    allowed: i64,
}

impl Tally {
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64, gauge: &Gauge) {
        // Neither can pass 2^63: no more is ever reserved (`Ledger::reserve`).
        self.change = self.change.wrapping_add_unsigned(bytes);
        self.highest = self.highest.max(self.change);
        if self.change > self.allowed {
            self.report(gauge);
        }
    }

    #[inline]
    pub(crate) fn subtract(&mut self, bytes: u64, gauge: &Gauge) {
        self.change = self.change.wrapping_sub_unsigned(bytes);
        if self.change < -self.allowed {
            self.report(gauge);
        }
    }

    #[cold]
    fn report(&mut self, gauge: &Gauge) {
        gauge.peak.fetch_max(self.peak(gauge), Relaxed);
        gauge.sum.fetch_add(self.change, Relaxed);
        *self = Self { allowed: gauge.unreported_limit(), ..Self::default() };
    }

    /// The peak as far as this shard can tell.
    #[inline]
    pub(crate) fn peak_so_far(&self, gauge: &Gauge) -> u64 {
        u64::try_from(self.peak(gauge).max(gauge.peak.load(Relaxed))).unwrap_or(0)
    }

    #[inline]
    fn peak(&self, gauge: &Gauge) -> i64 {
        gauge.sum.load(Relaxed).saturating_add(self.highest)
    }
}

impl Gauge {
    #[inline]
    fn unreported_limit(&self) -> i64 {
        (self.peak.load(Relaxed) >> UNREPORTED_SHIFT).max(UNREPORTED_LEAST)
    }

    /// Current and peak bytes, given the tallies of all shards.
    pub(crate) fn read(&self, tallies: &[Tally]) -> (u64, u64) {
        let sum = self.sum.load(Relaxed);
        let change: i64 = tallies.iter().map(|tally| tally.change).sum();
        let of_one = |tally: &Tally| sum + change - tally.change + tally.highest;
        let highest = tallies.iter().map(of_one).max().unwrap_or(sum);
        let positive = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        (positive(sum + change), positive(highest.max(self.peak.load(Relaxed))))
    }

    /// Lets the peak start again from the current bytes.
    pub(crate) fn reset_peak<'t>(&self, tallies: impl Iterator<Item = &'t mut Tally>) {
        for tally in tallies {
            self.sum.fetch_add(tally.change, Relaxed);
            *tally = Tally::default();
        }
        self.peak.store(self.sum.load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests;
