//! What a pool knows of a layer between it and the device: one that takes memory from the device
//! itself and keeps what is free, such as an arena.

use crate::error::DeviceError;
use crate::order::StealPolicy;
use std::collections::VecDeque;
use std::time::Duration;

/// What a pool promises its user about the device, handed down to the layer that calls the device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// A ceiling, in bytes, on what is taken from the device; `u64::MAX` for none.
    pub reserved_limit: u64,
    /// When a stream may take what another used last.
    pub steal: StealPolicy,
    /// How long free memory is kept.
    pub retention: Retention,
}

/// How long free memory is kept. What is older goes back to the device with the next
/// [`BucketPool::tick`](crate::BucketPool::tick).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Up to so many allocations after it came free; without end if `None`.
    pub allocations: Option<u64>,
    /// Up to so much time after it came free, as told by the ticks; without end if `None`.
    pub time: Option<Duration>,
}

/// When what came, by a count of its own that only rises, and when the ticks were.
#[derive(Debug, Default)]
pub(crate) struct Ticks(VecDeque<(Duration, u64)>);

impl Ticks {
    /// A tick at `now`, when the count was at `at`. Returns the count at which what has to go had
    /// come: all below it is too old. Time that runs backwards makes nothing older.
    pub(crate) fn tick(&mut self, now: Duration, at: u64, retention: Retention) -> u64 {
        let by_count = retention.allocations.map_or(0, |most| at.saturating_sub(most));
        let Some(age) = retention.time else { return by_count };
        if self.0.back().is_none_or(|(last, _)| *last <= now) {
            self.0.push_back((now, at));
        }
        let is_old = |(then, _): &(Duration, u64)| then.saturating_add(age) <= now;
        let old = self.0.iter().take_while(|tick| is_old(tick)).count();
        // The last old one is needed for the next tick; those before it are not.
        self.0.drain(..old.saturating_sub(1));
        let by_time = if old > 0 { self.0.front().map_or(0, |(_, at)| *at) } else { 0 };
        by_count.max(by_time)
    }
}

/// Bytes given back to the device, and its first refusal. The rest went back all the same.
pub type GivenBack = (u64, Option<DeviceError>);

/// A layer that keeps free memory itself.
pub trait Layer {
    /// What it holds at this moment.
    fn held(&self) -> Held;

    /// Gives free memory back to the device, at least `bytes` bytes or all that can go: the oldest
    /// first.
    fn give_back(&self, bytes: u64) -> GivenBack;

    /// Gives back what has been free for longer than the [`Retention`] says.
    fn tick(&self, now: Duration) -> GivenBack;

    /// The device refused, free memory goes back, and it is asked again.
    fn note_retry(&self);

    /// A request was refused in the end, whatever went back.
    fn note_refusal(&self);

    /// Free bytes that a taker on the stream of `lane` may not have under `steal`.
    fn stranded(&self, lane: u64, steal: StealPolicy) -> u64;

    /// Lets the peaks start again from what is held now.
    fn reset_peaks(&self);

    /// What is taken from the device, without looking at what is free.
    fn reserved_bytes(&self) -> u64;

    /// The ceiling on what is taken from the device.
    fn reserved_limit(&self) -> u64;
}

/// What a layer holds, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Taken from the device and not given back.
    pub reserved_bytes: u64,
    /// The most of that at once.
    pub reserved_peak_bytes: u64,
    /// Of the reserved bytes, those that nobody has.
    pub free_bytes: u64,
    /// Of the free bytes, those that a stream is not seen to have finished with.
    pub pending_bytes: u64,
    /// Of the free bytes, those behind work that has not been submitted.
    pub unsubmitted_bytes: u64,
    /// The largest free range.
    pub largest_free_bytes: u64,
    /// Taken from the device, which would not have it back.
    pub lost_bytes: u64,
    /// The free bytes by the lane of the stream that used them last; `None` for what no stream
    /// used, or several did.
    pub by_lane: Vec<(Option<u64>, u64)>,
}
