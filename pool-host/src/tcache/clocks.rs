//! When it is time for what `decay.rs` does.

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Steps of one decay time.
const STEPS: u64 = 10;
/// Milliseconds between two reads of the system's memory pressure.
const FEEL_EVERY: u64 = 1000;

/// Milliseconds after a look of the background thread in which calls of the program leave work to it. It
/// looks every half second at least.
const WATCHED_FOR: u64 = 600;

/// Times in milliseconds, and what was found then.
#[derive(Debug)]
pub(super) struct Clocks {
    /// From one step to the next; 0 for no decay.
    pub(super) every: AtomicU64,
    /// The last step.
    stepped_at: AtomicU64,
    /// Time at which parked threads were last visited, in milliseconds.
    visited_at: AtomicU64,
    /// Time until which calls of the program leave work to the background thread.
    watched_until: AtomicU64,
    /// Whether memory pressure is read, for which a file is opened.
    feels: AtomicBool,
    /// When it was last read.
    felt_at: AtomicU64,
    /// Factor by which decay is faster while memory is short; 1 otherwise.
    pub(super) haste: AtomicU64,
    /// Bytes of blocks in thread caches and in the depot at the last step.
    pub(super) small_bytes: AtomicUsize,
}

impl Clocks {
    pub(super) const fn new() -> Self {
        Self {
            every: AtomicU64::new(0),
            stepped_at: AtomicU64::new(0),
            visited_at: AtomicU64::new(0),
            watched_until: AtomicU64::new(0),
            feels: AtomicBool::new(false),
            felt_at: AtomicU64::new(0),
            haste: AtomicU64::new(1),
            small_bytes: AtomicUsize::new(0),
        }
    }

    /// Sets the decay time and the time now.
    pub(super) fn set(&self, decay: u64, now: u64) {
        self.every.store(decay.div_ceil(STEPS), Relaxed);
        self.stepped_at.store(now, Relaxed);
    }

    /// Has the memory pressure read from now on.
    pub(super) fn feel(&self) {
        self.feels.store(true, Relaxed);
    }

    /// Notes that the background thread looks.
    pub(super) fn watch(&self, now: u64) {
        self.watched_until.store(now + WATCHED_FOR, Relaxed);
    }

    /// Returns whether it has looked a short while ago.
    pub(super) fn is_watched(&self, now: u64) -> bool {
        now < self.watched_until.load(Relaxed)
    }

    /// Returns whether it is time for a step, for one caller.
    pub(super) fn steps(&self, now: u64) -> bool {
        self.is_due(&self.stepped_at, now)
    }

    /// Returns whether it is time to visit parked threads, for one caller. Threads at work take the steps,
    /// and they do not visit.
    pub(super) fn visits(&self, now: u64) -> bool {
        self.is_due(&self.visited_at, now)
    }

    fn is_due(&self, last: &AtomicU64, now: u64) -> bool {
        let every = self.every.load(Relaxed).div_ceil(self.haste.load(Relaxed));
        let before = last.load(Relaxed);
        every > 0
            && now.saturating_sub(before) >= every
            && last.compare_exchange(before, now, Relaxed, Relaxed).is_ok()
    }

    /// Returns whether it is time to read the memory pressure, for one caller.
    pub(super) fn feels(&self, now: u64) -> bool {
        let before = self.felt_at.load(Relaxed);
        self.feels.load(Relaxed)
            && self.every.load(Relaxed) > 0
            && now.saturating_sub(before) >= FEEL_EVERY
            && self.felt_at.compare_exchange(before, now, Relaxed, Relaxed).is_ok()
    }
}
