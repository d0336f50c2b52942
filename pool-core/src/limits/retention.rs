//! How long a pool keeps free memory, and which blocks are older than that.

use crate::port::DeviceError;
use std::collections::VecDeque;
use std::time::Duration;

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

/// The bytes that were released to the device, and the first error of the device. The pool releases
/// the other blocks in spite of an error.
pub(crate) type GivenBack = (u64, Option<DeviceError>);

#[cfg(test)]
mod tests {
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
