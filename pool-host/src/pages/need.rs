//! How much free memory stays: as much as was needed lately.

/// A peak counts for this window and the next, in milliseconds.
const WINDOW: u64 = 500;
/// The part of the recent peak that stays beyond it.
const SLACK_PART: u64 = 8;
/// Pages that stay beyond that.
const FLOOR: u64 = (4 << 20) / super::PAGE as u64;
/// Bytes that may go back for each millisecond that went by: about 2 % of the time of a thread,
/// with pages of 4 KiB.
const PER_MILLISECOND: u64 = 160 << 10;
/// Pages that go back in one call at most.
const MOST: u64 = (32 << 20) / super::PAGE as u64;
/// Milliseconds to the next look while there is something to give back.
const SOON: u64 = 4;

/// Pages in use, and the most of them lately.
#[derive(Debug)]
pub(super) struct Need {
    pub(super) live: u64,
    peak: u64,
    /// The peak of the window before.
    before: u64,
    window_began: u64,
    /// When pages went back last.
    paid: u64,
}

impl Need {
    pub(super) const fn new() -> Self {
        Self { live: 0, peak: 0, before: 0, window_began: 0, paid: 0 }
    }

    pub(super) fn up(&mut self, pages: u32) {
        self.live += u64::from(pages);
        self.peak = self.peak.max(self.live);
    }

    pub(super) fn down(&mut self, pages: u32) {
        self.live -= u64::from(pages);
    }

    /// How many dirty pages are more than stays.
    pub(super) fn excess(&self, dirty: u64) -> u64 {
        let peak = self.peak.max(self.before);
        (self.live + dirty).saturating_sub(peak + peak / SLACK_PART + FLOOR).min(dirty)
    }

    /// Whether the window is over.
    pub(super) fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(self.window_began) >= WINDOW
    }

    /// Begins a new window.
    pub(super) fn turn(&mut self, now: u64) {
        let gone = now.saturating_sub(self.window_began);
        self.before = if gone < 2 * WINDOW { self.peak } else { self.live };
        (self.peak, self.window_began) = (self.live, now);
    }

    /// How many pages this call may give back: twice what it is about itself, or what the time
    /// since the last one allows.
    pub(super) fn budget(&mut self, now: u64, own: u32) -> u64 {
        let time = now.saturating_sub(std::mem::replace(&mut self.paid, now));
        let by_time = time.saturating_mul(PER_MILLISECOND) / super::PAGE as u64;
        by_time.max(2 * u64::from(own)).min(MOST)
    }

    /// When the next call should look, in milliseconds.
    pub(super) fn next_look(&self, now: u64, dirty: u64) -> u64 {
        now + if self.excess(dirty) > 0 { SOON } else { WINDOW / 4 }
    }
}
