//! Limits on cached blocks: on their bytes, on their number for each size, and on how long they stay. The first two
//! change in a running pool, whose threads read them as they are.

use crate::port::DeviceError;
use crate::size::Bytes;
use crate::sys::atomic::Ordering::Relaxed;
use crate::sys::atomic::{AtomicU64, AtomicUsize};
use std::collections::VecDeque;
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

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

/// How long a pool keeps free memory. The next [`BucketPool::tick`](crate::BucketPool::tick)
/// releases older memory to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The pool keeps memory for this many of its allocations after the free; for ever if `None`. In
    /// a pool with several shards the allocations of one shard count, so it keeps memory longer, and
    /// what was freed since the last tick it keeps in any case.
    pub allocations: Option<u64>,
    /// The pool keeps memory for this time after the free, as measured by the times of its ticks;
    /// up to 1/64 longer if ticks are frequent. For ever if `None`.
    pub time: Option<Duration>,
}

/// The retention time is kept to within one part in this many.
const TICKS_PER_RETENTION: u32 = 64;

/// A tick that a pool remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tick {
    ticked_at: Duration,
    /// How many allocations the pool had served by then.
    allocation_count: u64,
}

/// Maps tick times to counts of allocations, so that `tick` can tell which memory is older than the
/// retention time.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    kept: VecDeque<Tick>,
    /// The count of allocations at the last tick.
    last: u64,
}

impl Ticks {
    /// Records a tick at the time `now`, when the pool had served `allocation_count` allocations.
    /// Returns a count of allocations: memory that was freed before that count is too old to keep.
    /// If time runs backwards, no memory becomes older.
    pub(crate) fn tick(
        &mut self,
        now: Duration,
        allocation_count: u64,
        retention: Retention,
    ) -> u64 {
        let too_old = |most| allocation_count.saturating_sub(most);
        let by_count = retention.allocations.map_or(0, too_old);
        let Some(age) = retention.time else { return by_count };
        let tick = Tick { ticked_at: now, allocation_count };
        self.note(tick, age / TICKS_PER_RETENTION);
        let is_old = |tick: &&Tick| tick.ticked_at.saturating_add(age) <= now;
        let old = self.kept.iter().take_while(is_old).count();
        // The last old one is needed for the next tick; those before it are not.
        self.kept.drain(..old.saturating_sub(1));
        invariant!(self.kept.iter().is_sorted(), "ticks are in the order of their time");
        let oldest = self.kept.front().filter(|_| old > 0);
        let by_time = oldest.map_or(0, |tick| tick.allocation_count);
        by_count.max(by_time)
    }

    /// Notes how many allocations there were at a tick. Returns how many at the one before.
    pub(crate) fn note_last(&mut self, allocation_count: u64) -> u64 {
        std::mem::replace(&mut self.last, allocation_count)
    }

    /// Adds a tick to the queue. Of ticks that are less than `min_spacing` apart it keeps only the
    /// first and the last, so that the queue stays short.
    fn note(&mut self, tick: Tick, min_spacing: Duration) {
        let now = tick.ticked_at;
        if self.kept.back().is_some_and(|last| last.ticked_at > now) {
            return;
        }
        let mut newest = self.kept.iter().rev().map(|tick| tick.ticked_at);
        if let (Some(last), before) = (newest.next(), newest.next())
            && (last == now
                || before.is_some_and(|before| now.saturating_sub(before) < min_spacing))
        {
            self.kept.pop_back();
        }
        self.kept.push_back(tick);
    }
}

/// Bytes that went back to the device, and its first refusal. The pool gives back what is left in spite
/// of a refusal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GivenBack {
    pub(crate) bytes: u64,
    pub(crate) refusal: Option<DeviceError>,
}

impl AddAssign for GivenBack {
    fn add_assign(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.refusal = self.refusal.or(more.refusal);
    }
}

#[cfg(test)]
mod retention_tests {
    use super::*;

    #[test]
    fn ticks_that_follow_each_other_closely_stay_few_and_keep_the_time() {
        let minute = Retention { time: Some(Duration::from_mins(1)), ..Retention::default() };
        let (mut ticks, mut most) = (Ticks::default(), 0);
        for tick in 0..200_000_u64 {
            let now = Duration::from_millis(tick);
            let before = Duration::from_millis(ticks.tick(now, tick, minute));
            most = most.max(ticks.kept.len());
            assert!(before + Duration::from_mins(1) <= now || before.is_zero(), "{now:?}");
            let late = now.saturating_sub(before + Duration::from_mins(1));
            assert!(now < Duration::from_secs(61) || late < Duration::from_secs(1), "{now:?}");
        }
        assert!(most < 2 * TICKS_PER_RETENTION as usize + 4, "{most} ticks");
    }

    #[test]
    fn a_tick_at_the_same_time_and_one_that_runs_backwards_add_none() {
        let never = Retention { time: Some(Duration::MAX), ..Retention::default() };
        let mut ticks = Ticks::default();
        for at in 0..1000 {
            assert_eq!(ticks.tick(Duration::from_secs(at % 2), at, never), 0);
        }
        assert!(ticks.kept.len() <= 2, "{ticks:?}");
    }
}
