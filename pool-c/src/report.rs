//! Figures and pictures of a pool, for C.

use crate::handle::Handle;
use crate::pool::Found;
use crate::status::{Failure, Status};
use pool_core::PoolStats;
use pool_core::observe::DeviceStats;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;

/// A block, for `bp_lookup`.
#[repr(C)]
#[derive(Debug)]
pub struct BlockDetails {
    /// `sizeof` of this struct, which the caller sets.
    pub size: usize,
    /// The address of its first byte.
    pub base: usize,
    /// The bytes that were asked for.
    pub bytes: u64,
    /// Those that it has.
    pub rounded_bytes: u64,
    /// The stream of its allocation.
    pub stream: usize,
    /// The ordinal of its device.
    pub device: i32,
    /// Not 0 for a block of the memory of graphs.
    pub is_private: i32,
}

impl BlockDetails {
    pub(crate) fn of(size: usize, found: &Found) -> Self {
        Self {
            size,
            base: found.base,
            bytes: found.bytes,
            rounded_bytes: found.rounded,
            stream: found.stream,
            device: found.device,
            is_private: found.is_private.into(),
        }
    }
}

/// The figures of a pool, in bytes and numbers of calls; `docs/statistics.md` tells of each.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Figures {
    /// `sizeof` of this struct, which the caller sets.
    pub size: usize,
    /// Requests.
    pub allocations: u64,
    /// Those that cached memory served.
    pub hits: u64,
    /// Those for which the device gave memory.
    pub misses: u64,
    /// Those that were refused.
    pub failures: u64,
    /// Blocks that C has now.
    pub live_blocks: u64,
    /// What live blocks have asked for.
    pub requested_bytes: u64,
    /// Its peak: the least that any pool must have.
    pub requested_peak_bytes: u64,
    /// What live blocks have.
    pub allocated_bytes: u64,
    /// Its peak.
    pub allocated_peak_bytes: u64,
    /// What the device has given.
    pub reserved_bytes: u64,
    /// Its peak.
    pub reserved_peak_bytes: u64,
    /// What no block has.
    pub cached_bytes: u64,
    /// Those of the cached bytes that wait for graphs.
    pub private_bytes: u64,
    /// What the device does not take back.
    pub lost_bytes: u64,
    /// The limit on reserved bytes; `UINT64_MAX` without one.
    pub limit_bytes: u64,
    /// Page-locked bytes that copies have beside the pool.
    pub staging_bytes: u64,
}

impl Figures {
    pub(crate) fn of(size: usize, pool: &Handle) -> Self {
        let stats = pool.pool().stats();
        Self {
            size,
            allocations: stats.allocations,
            hits: stats.hits,
            misses: stats.misses,
            failures: stats.failures,
            live_blocks: pool.pool().live() as u64,
            requested_bytes: stats.requested_bytes,
            requested_peak_bytes: stats.requested_peak_bytes,
            allocated_bytes: stats.allocated_bytes,
            allocated_peak_bytes: stats.allocated_peak_bytes,
            reserved_bytes: stats.reserved_bytes,
            reserved_peak_bytes: stats.reserved_peak_bytes,
            cached_bytes: stats.cached_bytes,
            private_bytes: stats.private_bytes,
            lost_bytes: stats.lost_bytes,
            limit_bytes: stats.reserved_limit_bytes.unwrap_or(u64::MAX),
            staging_bytes: pool.pool().staging_bytes(),
        }
    }
}

/// Refuses a struct of another version.
pub(crate) fn check_size(given: usize, expected: usize) -> Result<(), Failure> {
    if given >= expected {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "a struct of {given} bytes; expected its size, {expected}, in `size`"
    )))
}

#[derive(Serialize)]
struct AllFigures<'p> {
    memory: &'p str,
    pool: pool_core::observe::PoolStatsSnapshot,
    torch: BTreeMap<String, u64>,
    staging_bytes: u64,
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::new(Status::BpOther, error.to_string()))
}

/// All figures as JSON.
pub(crate) fn stats_json(pool: &Handle) -> Result<String, Failure> {
    let stats = pool.pool().stats();
    let torch = match pool.pool().device_stats() {
        Some(device) => device.named().into_iter().collect(),
        None => named(&stats, pool.pool().live() as u64),
    };
    json(&AllFigures {
        memory: pool.memory(),
        pool: stats.snapshot(),
        torch,
        staging_bytes: pool.pool().staging_bytes(),
    })
}

/// The figures of a pool without an arena by the names of PyTorch's `memory_stats`: all sizes in one.
fn named(stats: &PoolStats, live: u64) -> BTreeMap<String, u64> {
    let none = DeviceStats::default().named().into_iter().map(|(name, _)| (name, 0));
    let mut named: BTreeMap<_, _> = none.collect();
    let served = stats.allocations.saturating_sub(stats.failures);
    for (name, figure) in [
        ("allocated_bytes.all.current", stats.allocated_bytes),
        ("allocated_bytes.all.peak", stats.allocated_peak_bytes),
        ("requested_bytes.all.current", stats.requested_bytes),
        ("requested_bytes.all.peak", stats.requested_peak_bytes),
        ("reserved_bytes.all.current", stats.reserved_bytes),
        ("reserved_bytes.all.peak", stats.reserved_peak_bytes),
        ("active_bytes.all.current", stats.active_bytes),
        ("allocation.all.allocated", served),
        ("allocation.all.freed", stats.deallocations),
        ("allocation.all.current", live),
        ("num_ooms", stats.failures),
        ("num_device_alloc", stats.misses),
    ] {
        named.insert(name.to_owned(), figure);
    }
    named
}

/// Where the memory is, as JSON.
pub(crate) fn map_json(pool: &Handle) -> Result<String, Failure> {
    json(&pool.pool().map())
}

/// Writes figures and a picture to a file.
pub(crate) fn write(pool: &Handle, path: &str) -> Result<(), Failure> {
    if path.is_empty() {
        return Err(Failure::invalid("no path; expected that of a file"));
    }
    let text =
        format!("memory {}\n{}\n{}\n", pool.memory(), pool.pool().stats(), pool.pool().map());
    fs::write(path, text)
        .map_err(|error| Failure::new(Status::BpOther, format!("report to {path}: {error}")))
}
