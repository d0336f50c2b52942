//! The recent need for pages, which bounds the dirty pages that are kept.
//!
//! `excess = live + dirty - (peak + peak / 4 + 1 MiB)`, where `peak` is the peak of `live` in this
//! window and the one before; at least `dirty - limit`, and between 0 and `dirty`. After four
//! windows in which no run was taken or freed it is `peak / 16`.

/// Divisor of the recent peak: `peak / SLACK_PART` pages are kept beyond it.
const SLACK_PART: u64 = 4;
/// The same, for a program that pauses.
const PAUSED_PART: u64 = 16;
/// Windows without a change after which a program pauses.
const PAUSED_FROM: u32 = 4;
/// Further pages that are kept: 1 MiB.
const FLOOR: u64 = (1 << 20) / super::PAGE as u64;
/// Bytes that may return to the system for each elapsed millisecond. This takes about 2 % of a
/// thread's time with pages of 4 KiB.
const PER_MILLISECOND: u64 = 160 << 10;
/// Most pages that one call returns to the system: 16 MiB, which takes about 2 ms.
///
/// A call that comes 100 ms after another may return that much, where no thread does that. With 10
/// calls in a second, 1 GiB must be returned within 12 s.
pub(super) const MOST: u64 = (16 << 20) / super::PAGE as u64;
/// Most pages that one call returns on account of the block that it takes or frees: 1 MiB, which
/// takes 15 us where one page in 64 was touched, and 130 us where all were.
///
/// Later calls return the rest, as time allows. Meanwhile no more than the peak is resident,
/// because requests take dirty pages first.
const MOST_OWN: u64 = (1 << 20) / super::PAGE as u64;
/// Milliseconds until the next look while there are pages to return.
const SOON: u64 = 4;

/// The number of live pages, and its peak in the last two windows.
#[derive(Debug)]
pub(super) struct Need {
    /// Pages of blocks, and of runs in slots.
    pub(super) live: u64,
    /// High-water mark of `live`.
    pub(super) most: u64,
    /// Peak of `live` in this window.
    peak: u64,
    /// Peak of `live` in the window before.
    before: u64,
    /// Whether `live` changed in this window.
    has_changed: bool,
    /// Windows before this one in which it did not.
    still: u32,
    /// Time in milliseconds at which this window began.
    window_began: u64,
    /// Time in milliseconds of the last call of [`Need::budget`].
    paid: u64,
    /// Length of a window in milliseconds. A peak counts in its window and in the next.
    window: u64,
    /// Divisor of the window while memory is short; at least 1.
    pub(super) haste: u64,
    /// Bound on the number of dirty pages.
    pub(super) limit: u64,
    /// How many there were beyond it at the last call of [`Need::stays_beyond`].
    beyond: u64,
    /// Whether a thread looks, so that calls which take or free pages return on account of these only.
    pub(super) is_watched: bool,
}

impl Need {
    /// Creates a need of no pages, with windows of 500 ms and without a bound.
    pub(super) const fn new() -> Self {
        Self {
            live: 0,
            most: 0,
            peak: 0,
            before: 0,
            has_changed: false,
            still: 0,
            window_began: 0,
            paid: 0,
            window: 500,
            haste: 1,
            limit: u64::MAX,
            beyond: 0,
            is_watched: false,
        }
    }

    /// Sets the bound in pages, and the retention time in milliseconds: two windows. With 0,
    /// windows practically never end.
    pub(super) fn configure(&mut self, limit: u64, decay: u64) {
        self.limit = limit;
        self.window = if decay == 0 { u64::MAX / 2 } else { decay.div_ceil(2) };
    }

    /// Adds live pages.
    pub(super) fn up(&mut self, pages: u32) {
        self.live += u64::from(pages);
        self.has_changed = true;
        self.peak = self.peak.max(self.live);
        self.most = self.most.max(self.live);
    }

    /// Subtracts live pages.
    pub(super) fn down(&mut self, pages: u32) {
        self.live -= u64::from(pages);
        self.has_changed = true;
    }

    /// Returns how many of the dirty pages exceed those to keep (the formula at the top).
    pub(super) fn excess(&self, dirty: u64) -> u64 {
        let peak = self.peak.max(self.before);
        let part = if self.still >= PAUSED_FROM { PAUSED_PART } else { SLACK_PART };
        let unneeded = (self.live + dirty).saturating_sub(peak + peak / part + FLOOR);
        unneeded.min(dirty).max(dirty.saturating_sub(self.limit))
    }

    /// Returns how many of the dirty pages are beyond the limit, and were at the last call.
    pub(super) fn stays_beyond(&mut self, dirty: u64) -> u64 {
        let beyond = dirty.saturating_sub(self.limit);
        beyond.min(std::mem::replace(&mut self.beyond, beyond))
    }

    /// Returns whether pages would return to the system if the peak were the current need.
    pub(super) fn is_wet(&self, dirty: u64) -> bool {
        dirty > (self.live / SLACK_PART + FLOOR).min(self.limit)
    }

    /// Returns whether the window is over.
    pub(super) fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(self.window_began) >= self.window / self.haste
    }

    /// Begins a new window. If another whole window has elapsed since the last one ended, the
    /// current need replaces its peak.
    pub(super) fn turn(&mut self, now: u64) {
        let passed = now.saturating_sub(self.window_began);
        self.before = if passed < 2 * self.window / self.haste { self.peak } else { self.live };
        (self.peak, self.window_began) = (self.live, now);
        self.still = if self.has_changed { 0 } else { self.still.saturating_add(1) };
        self.has_changed = false;
    }

    /// Returns how many pages this call may return to the system.
    ///
    /// `budget = min(MOST, max(elapsed * PER_MILLISECOND / PAGE, min(MOST_OWN, 2 * own)))`
    ///
    /// `elapsed` is the time since the last call in milliseconds, and `own` is the number of pages
    /// that this call takes or frees itself: 0 for a call that only looks. The time is for these alone
    /// while a thread looks.
    pub(super) fn budget(&mut self, now: u64, own: u32) -> u64 {
        if self.is_watched && own > 0 {
            return MOST_OWN.min(2 * u64::from(own));
        }
        let time = now.saturating_sub(std::mem::replace(&mut self.paid, now));
        let by_time = time.saturating_mul(PER_MILLISECOND) / super::PAGE as u64;
        by_time.max(MOST_OWN.min(2 * u64::from(own))).min(MOST)
    }

    /// Returns the time in milliseconds of the next look.
    pub(super) fn next_look(&self, now: u64, dirty: u64) -> u64 {
        now + if self.excess(dirty) > 0 { SOON } else { self.window / self.haste / 4 }
    }
}
