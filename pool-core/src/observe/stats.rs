//! Statistics of a pool: the counted figures, and their forms as text and for serde.

use crate::size::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The figures of a pool at one moment. All sizes are bytes.
///
/// The figures are exact when no thread is inside the pool. Counts, and bytes of buffers and cached
/// blocks, are sums over all shards under all their locks, so they are of one moment. The pool reads
/// `keys`, `cached_buffers`, `active_bytes`, `private_bytes` and the reserved bytes apart from that:
/// they may be off by what other threads do meanwhile.
///
/// The peak of reserved bytes is exact, and with one shard all peaks are. A pool with several shards
/// adds them up when figures are read, and when it takes memory from the device while no thread is in
/// a shard, so its other peaks may miss what lay between two such calls.
///
/// At rest, `requested <= allocated <= active <= reserved` holds. The peaks hold
/// `requested <= allocated <= reserved`.
///
/// All figures are 0 in a forked child that cannot use the pool
/// ([`Why::Forked`](crate::Why::Forked)), and for a broken pool ([`Why::Broken`](crate::Why::Broken)).
///
/// A pool built without [`statistics`](crate::PoolBuilder::statistics) leaves the counts at 0.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, sim::SimDevice};
///
/// let pool = BucketPool::new(SimDevice::new());
/// for _ in 0..4 {
///     pool.allocate(1000)?;
/// }
/// let stats = pool.stats();
/// assert_eq!((stats.hits, stats.misses), (3, 1));
/// assert_eq!(stats.hit_rate(), 0.75);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Requests: `allocations = hits + misses + bypasses + failures`.
    pub allocations: u64,
    /// Requests served without taking memory from the device.
    pub hits: u64,
    /// Requests of a size class that the device served.
    pub misses: u64,
    /// Requests that fit no size class and bypassed the pool to the device.
    pub bypasses: u64,
    /// Requests that were refused, those whose timeout ended included.
    pub failures: u64,
    /// Requests that waited for memory: those that were served later, that timed out or were
    /// cancelled, and that wait now.
    pub waits: u64,
    /// Requests that waited until their timeout ended: a part of `failures`.
    pub timeouts: u64,
    /// Buffers that were dropped, or that left the pool for good after `detach`.
    pub deallocations: u64,
    /// Deallocations whose block the pool cached at first.
    pub returns: u64,
    /// Hits on memory that may contain bytes other than zero: a buffer had it before, or the device
    /// does not zero it.
    pub reuses: u64,
    /// Hits and misses that the request's own bucket did not serve, by stage.
    pub served_by: Stages,
    /// Cached blocks that went back to the device, for whatever reason, and blocks that a full
    /// bucket refused.
    pub evictions: u64,
    /// Sizes that have cached blocks now.
    pub keys: u64,
    /// Cached blocks now.
    pub cached_buffers: u64,
    /// Bytes that live buffers requested.
    pub requested_bytes: u64,
    /// Peak of `requested_bytes`: the live peak, the least that any pool must reserve.
    pub requested_peak_bytes: u64,
    /// Bytes of live buffers after rounding.
    pub allocated_bytes: u64,
    /// Peak of `allocated_bytes`.
    pub allocated_peak_bytes: u64,
    /// Allocated bytes, plus freed bytes whose last uses were not yet seen done.
    pub active_bytes: u64,
    /// Bytes of cached blocks, deferred frees included.
    pub cached_bytes: u64,
    /// The part of the cached bytes that goes back with the next call that may call the device.
    pub deferred_bytes: u64,
    /// Peak of the cached bytes that the pool keeps, without deferred frees.
    pub peak_cached_bytes: u64,
    /// Bytes taken from the device.
    pub reserved_bytes: u64,
    /// Peak of `reserved_bytes`.
    pub reserved_peak_bytes: u64,
    /// Requested bytes that the device served, over all requests.
    pub from_device_bytes: u64,
    /// Requested bytes that cached blocks served, over all requests.
    pub from_pool_bytes: u64,
    /// Bytes that the pool tried to free and that the device refused to take. They stay reserved
    /// and cannot be reused.
    pub lost_bytes: u64,
    /// The limit on reserved bytes: that of the pool, or of its budget where that is lower; `None`
    /// without a limit.
    pub reserved_limit_bytes: Option<u64>,
    /// The limit on cached bytes, at the current peak where it is a share of that; `None` without a
    /// limit.
    pub cached_limit_bytes: Option<u64>,
    /// Reserved bytes that are cached for graphs ([`PrivatePool`](crate::PrivatePool)).
    pub private_bytes: u64,
}

/// Requests by the stage that served them, without those served by the free lists of their own
/// shard and stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Stages {
    /// A ready block of another stream, or of another shard.
    pub elsewhere: u64,
    /// A block behind an event, after a wait on the device or a query.
    pub behind_event: u64,
    /// A free range of an arena, after neighbours of several streams had coalesced.
    pub coalesced: u64,
    /// The device.
    pub device: u64,
    /// The device, after the missing amount of cached memory was given back.
    pub trimmed: u64,
    /// The device, after all cached memory was given back.
    pub cleared: u64,
    /// The device, after the program released something.
    pub spared: u64,
    /// The private pool that the stream is bound to.
    pub private: u64,
}

/// The stage that served a request: the counter of [`Stages`] for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Elsewhere,
    BehindEvent,
    Coalesced,
    Device,
    Trimmed,
    Cleared,
    Spared,
    Private,
}

impl PoolStats {
    /// Adds the cold counts of another shard.
    pub(crate) fn add_counts(&mut self, other: &Self) {
        self.misses += other.misses;
        self.bypasses += other.bypasses;
        self.failures += other.failures;
        self.waits += other.waits;
        self.timeouts += other.timeouts;
        self.evictions += other.evictions;
        self.from_device_bytes = self.from_device_bytes.saturating_add(other.from_device_bytes);
        self.lost_bytes += other.lost_bytes;
        self.served_by.add(&other.served_by);
    }
}

impl Stages {
    fn add(&mut self, other: &Self) {
        self.elsewhere += other.elsewhere;
        self.behind_event += other.behind_event;
        self.coalesced += other.coalesced;
        self.device += other.device;
        self.trimmed += other.trimmed;
        self.cleared += other.cleared;
        self.spared += other.spared;
        self.private += other.private;
    }

    /// Counts a request that this stage served.
    pub(crate) fn count(&mut self, stage: Stage) {
        *match stage {
            Stage::Elsewhere => &mut self.elsewhere,
            Stage::BehindEvent => &mut self.behind_event,
            Stage::Coalesced => &mut self.coalesced,
            Stage::Device => &mut self.device,
            Stage::Trimmed => &mut self.trimmed,
            Stage::Cleared => &mut self.cleared,
            Stage::Spared => &mut self.spared,
            Stage::Private => &mut self.private,
        } += 1;
    }
}

impl PoolStats {
    /// Returns `hits / allocations`, 0 to 1; 0 before the first allocation.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        share(self.hits, self.allocations)
    }

    /// Returns the bytes served by cached blocks divided by all bytes served, 0 to 1.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        share(self.from_pool_bytes, self.from_pool_bytes + self.from_device_bytes)
    }

    /// Returns the figures with the two rates, for serde.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{PoolStats, observe::PoolStatsSnapshot};
    ///
    /// let snapshot: PoolStatsSnapshot = PoolStats::default().snapshot();
    /// let json = serde_json::to_string(&snapshot)?;
    /// assert_eq!(serde_json::from_str::<PoolStatsSnapshot>(&json)?, snapshot);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> PoolStatsSnapshot {
        PoolStatsSnapshot { stats: *self, hit_rate: self.hit_rate(), efficiency: self.efficiency() }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A number of things, with their name in the singular.
struct Plural(u64, &'static str);

impl fmt::Display for Plural {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, name) = self;
        write!(f, "{count} {name}{}", if *count == 1 { "" } else { "s" })
    }
}

impl PoolStats {
    /// What is cached, without the limit.
    fn write_cached(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cached       {}", Bytes(self.cached_bytes))?;
        if self.cached_buffers > 0 {
            write!(f, " in {}", Plural(self.cached_buffers, "block"))?;
        }
        if self.cached_buffers > 0 && self.keys > 0 {
            write!(f, " of {}", Plural(self.keys, "size"))?;
        }
        if self.deferred_bytes > 0 {
            write!(f, ", {} of it to be freed", Bytes(self.deferred_bytes))?;
        }
        Ok(())
    }
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |rate: f64| format!("{:.1} %", 100.0 * rate);
        writeln!(f, "allocations  {} ({} hits)", self.allocations, percent(self.hit_rate()))?;
        writeln!(
            f,
            "  hits {}, misses {}, bypasses {}, refused {}",
            self.hits, self.misses, self.bypasses, self.failures
        )?;
        if self.waits > 0 {
            writeln!(f, "waits        {}, {} of them timed out", self.waits, self.timeouts)?;
        }
        writeln!(
            f,
            "frees        {}: {} kept, {} reused, {} evicted",
            self.deallocations, self.returns, self.reuses, self.evictions
        )?;
        let of_limit = |f: &mut fmt::Formatter<'_>, bytes, limit: Option<u64>| match limit {
            Some(limit) => {
                let used = percent(share(bytes, limit));
                write!(f, ", {used} of the limit of {}", Bytes(limit))
            }
            None => Ok(()),
        };
        for (name, now, peak, limit) in [
            ("requested", self.requested_bytes, self.requested_peak_bytes, None),
            ("allocated", self.allocated_bytes, self.allocated_peak_bytes, None),
            ("reserved", self.reserved_bytes, self.reserved_peak_bytes, self.reserved_limit_bytes),
        ] {
            write!(f, "{name:<12} {}, peak {}", Bytes(now), Bytes(peak))?;
            of_limit(f, now, limit)?;
            writeln!(f)?;
        }
        let kept = self.cached_bytes.saturating_sub(self.deferred_bytes);
        self.write_cached(f)?;
        of_limit(f, kept, self.cached_limit_bytes)?;
        writeln!(f)?;
        write!(
            f,
            "served       {} by the pool, {} by the device ({} reused)",
            Bytes(self.from_pool_bytes),
            Bytes(self.from_device_bytes),
            percent(self.efficiency())
        )?;
        if self.lost_bytes > 0 {
            write!(
                f,
                "\nlost         {} that the device would not take back",
                Bytes(self.lost_bytes)
            )?;
        }
        Ok(())
    }
}

/// [`PoolStats`] with its rates, for programs to write and read: one flat object in JSON. What is read
/// equals what was written: the rates are computed from the figures that are read. A figure that the text
/// lacks is 0, or no limit, and one that it has beyond these is passed over, so that each version reads
/// what others wrote.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "PoolStats")]
#[non_exhaustive]
pub struct PoolStatsSnapshot {
    /// The figures.
    #[serde(flatten)]
    pub stats: PoolStats,
    /// [`PoolStats::hit_rate`].
    pub hit_rate: f64,
    /// [`PoolStats::efficiency`].
    pub efficiency: f64,
}

impl From<PoolStats> for PoolStatsSnapshot {
    fn from(stats: PoolStats) -> Self {
        stats.snapshot()
    }
}
