//! Sums over the shards of a pool.

use crate::observe::{Accounts, PoolStats};
use crate::port::DeviceAllocator;
use crate::shard::State;

/// The figures of all shards together.
#[derive(Clone, Debug)]
pub(crate) struct Sum {
    pub(crate) accounts: Accounts,
    pub(crate) counts: PoolStats,
    pub(crate) untouched_hits: u64,
    pub(crate) not_kept: u64,
    /// Bytes of free memory that serves again, and of deferred frees.
    pub(crate) kept: u64,
    pub(crate) deferred: u64,
    pub(crate) cached_peak: u64,
    pub(crate) allocated_peak: u64,
    /// Bytes of live and private ranges, and the most of that.
    pub(crate) used: u64,
    pub(crate) used_peak: u64,
}

impl Sum {
    pub(crate) fn of_nothing() -> Self {
        Self {
            accounts: Accounts::new(false),
            counts: PoolStats::default(),
            untouched_hits: 0,
            not_kept: 0,
            kept: 0,
            deferred: 0,
            cached_peak: 0,
            allocated_peak: 0,
            used: 0,
            used_peak: 0,
        }
    }

    /// Adds a shard. Peaks are those of one shard where there is one.
    pub(crate) fn add<A: DeviceAllocator>(&mut self, state: &State<A>, is_first: bool) {
        if is_first {
            self.accounts = state.accounts.clone();
        } else {
            self.accounts.add(&state.accounts);
        }
        self.counts.add_counts(&state.counts);
        self.untouched_hits += state.untouched_hits;
        self.not_kept += state.not_kept;
        self.kept += state.kept();
        self.deferred += state.deferred_bytes;
        self.cached_peak += state.cached_peak();
        self.allocated_peak += state.highest_allocated();
        self.used += state.ranges.used();
        self.used_peak += state.ranges.used_peak;
    }
}
