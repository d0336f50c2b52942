//! Returns dirty pages to the system: beyond the recent need, beyond the limit, and on `trim`.
//!
//! Calls of the program do this work, and a background thread if there is one: a bounded number of
//! pages in a call, without the lock during the system call.
#![expect(unsafe_code, reason = "pages are returned by their addresses")]

use super::deferred::Deferral;
use super::heap::Heap;
use super::mapping::Forgotten;
use super::need::{MOST, Need};
use super::page::PageState;
use super::runs::Run;
use super::{PAGE, Pages};
use crate::system;
use std::sync::atomic::Ordering::Relaxed;

/// Refusals by the system after which [`Pages::trim`] stops. The system refuses a run of which the
/// program has locked a page.
const REFUSALS: u32 = 64;
/// Pages of a run whose entries in the map have enough memory to be given back: 40 KiB.
const LONG: u32 = 2048;
/// The most runs that a forked child gives back when it begins. Each takes three calls of the system.
const CHILD_RUNS: usize = 64;
/// The fewest pages of such a run, 256 KiB: the fork itself has taken about as long to copy their
/// entries of the page table as these calls take.
#[expect(clippy::cast_possible_truncation, reason = "64, or 4 with pages of 64 KiB")]
const CHILD_PAGES: u32 = ((256 << 10) / PAGE) as u32;

impl Pages {
    /// Gives dirty pages back to the system, the oldest first. Returns the number of bytes.
    ///
    /// It stops when at least `bytes` bytes are given back, no dirty page is left, another thread
    /// forks, or the system has refused 64 times because the program has locked the pages.
    pub(crate) fn trim(&self, bytes: usize) -> usize {
        let there = self.enter(|inside| {
            self.sweep(inside);
            usize::try_from(inside.runs.dirty).unwrap_or(usize::MAX).saturating_mul(PAGE)
        });
        let Some(there) = there else { return 0 };
        // Bytes that other threads free meanwhile are not for this call, or it might not end.
        let bytes = bytes.min(there);
        let (mut went, mut refusals) = (0, 0);
        while went < bytes && refusals < REFUSALS {
            match self.give_back_some((bytes - went).div_ceil(PAGE) as u64, |dirty, _| dirty) {
                None => break,
                Some(0) => refusals += 1,
                Some(some) => went += some as usize * PAGE,
            }
        }
        self.enter(|inside| self.note(inside, system::coarse_milliseconds()));
        went
    }

    /// Gives the longest dirty runs back to the system: at most [`CHILD_RUNS`], of at least
    /// [`CHILD_PAGES`].
    ///
    /// For a forked child, which has the memory of its parent and may end at once.
    pub(super) fn trim_in_child(&self) {
        self.enter(|inside| self.sweep(inside));
        for _ in 0..CHILD_RUNS {
            let longest = self.enter(|inside| inside.runs.take_longest(CHILD_PAGES));
            let Some((first, pages)) = longest.flatten() else { break };
            // SAFETY: `take_longest` returned pages of the range that were free, and marked them as
            // used under the lock.
            unsafe { self.return_run(first, pages) };
        }
        self.enter(|inside| self.note(inside, system::coarse_milliseconds()));
    }

    /// Gives back the memory of the map where it has the entries of long free runs, which no code
    /// needs: 20 bytes for each page of the most that was used at once.
    pub(crate) fn trim_map(&self) {
        self.enter(|inside| {
            let Some(space) = &mut inside.space else { return };
            for run in inside.runs.long_clean(LONG) {
                space.empty_map(run.first + 1..run.end() - 1, &self.mapping);
            }
        });
    }

    /// Frees a run after its memory has gone back, or moved to another run, and with it all that the
    /// program did to the pages.
    #[cold]
    pub(super) fn give_emptied(&self, first: u32, pages: u32) {
        // SAFETY: the program freed the run, and this thread owns it until `release` below.
        let how = unsafe { self.mapping.forget(self.address(first), pages as usize * PAGE) };
        self.release_later(first, Deferral::emptied(how));
    }

    /// Releases a run, now or if another thread forks later.
    pub(super) fn release_later(&self, first: u32, what: Deferral) {
        if self.enter(|inside| self.release(inside, first, what)).is_none() {
            self.defer(first, what);
        }
    }

    /// Returns pages beyond the recent need to the system, if it is time to.
    ///
    /// Callers call it now and then from outside this module, so that pages return to the system
    /// while the program takes and frees no block on pages. Without work it costs one clock
    /// reading.
    pub(crate) fn look(&self) {
        if system::coarse_milliseconds() >= self.next_look.load(Relaxed) {
            self.look_now();
        }
    }

    /// Returns pages beyond the recent need to the system, a bounded number in a call.
    #[cold]
    fn look_now(&self) {
        if !self.is_there() {
            return;
        }
        let now = system::coarse_milliseconds();
        let budget = self.enter(|inside| self.turn(inside, now, 0));
        self.give_back(budget.unwrap_or(0));
    }

    /// Publishes what the lock guards, for those who only want to know.
    pub(super) fn note(&self, inside: &Heap, now: u64) {
        self.dirty.store(inside.runs.dirty, Relaxed);
        self.used.store(inside.need.live, Relaxed);
        self.used_peak.store(inside.need.most, Relaxed);
        let is_wet = inside.need.is_wet(inside.runs.dirty) && !inside.need.is_watched;
        self.is_wet.store(is_wet, Relaxed);
        self.next_look.store(inside.need.next_look(now, inside.runs.dirty), Relaxed);
    }

    /// Gives back what is more than the limit and was at the last call, however much that is, in steps of 16 MiB
    /// without the lock: for a thread that no call of the program waits for. What a program takes again between
    /// two calls stays.
    pub(crate) fn keep_to_limit(&self) {
        if !self.is_there() {
            return;
        }
        let beyond = self.enter(|inside| inside.need.stays_beyond(inside.runs.dirty));
        let mut left = beyond.unwrap_or(0);
        while left > 0 {
            let went =
                self.give_back_some(left.min(MOST), |dirty, need| dirty.saturating_sub(need.limit));
            let Some(went) = went.filter(|went| *went > 0) else { break };
            left = left.saturating_sub(went.into());
        }
    }

    /// Frees the runs in slots, so that they count as free, and gives back what is more than the
    /// limit, at most `most` bytes.
    ///
    /// For a caller that freed about as many bytes since the last call: it pays for its own.
    #[cold]
    pub(crate) fn give_back_beyond_limit(&self, most: usize) {
        let now = system::coarse_milliseconds();
        let beyond = self.enter(|inside| {
            self.sweep(inside);
            self.note(inside, now);
            inside.runs.dirty.saturating_sub(inside.need.limit)
        });
        let budget = beyond.unwrap_or(0).min((most / PAGE) as u64);
        self.give_back_at_most(budget, |dirty, need| dirty.saturating_sub(need.limit));
        self.enter(|inside| self.note(inside, now));
    }

    /// Frees the runs in slots, so that they count as free, and gives back what is more than the
    /// limit or the recent need, a bounded number of pages.
    #[cold]
    pub(crate) fn give_back_slots(&self) {
        let now = system::coarse_milliseconds();
        let budget = self.enter(|inside| {
            self.sweep(inside);
            self.turn(inside, now, u32::MAX)
        });
        self.give_back(budget.unwrap_or(0));
    }

    /// Updates the window and the lock-free figures. Returns how many pages this call, which takes
    /// or frees `own` pages itself, should return to the system.
    pub(super) fn turn(&self, inside: &mut Heap, now: u64, own: u32) -> u64 {
        if inside.need.is_over(now) {
            // Runs in slots are not needed, so they must not count as live in the next window.
            self.sweep(inside);
            inside.need.turn(now);
        }
        self.note(inside, now);
        inside.need.budget(now, own).min(inside.need.excess(inside.runs.dirty))
    }

    /// Frees all runs in slots, so that they coalesce and can return to the system. Returns whether
    /// there were any.
    pub(super) fn sweep(&self, inside: &mut Heap) -> bool {
        let mut any = false;
        let lends = inside.need.live + inside.runs.dirty >= self.lends_from.load(Relaxed);
        for (first, pages) in self.slots.drain() {
            any = true;
            if lends {
                // SAFETY: the program freed the run, and `drain` made it this thread's, until
                // `release` below.
                unsafe { self.mapping.lend(self.address(first), pages as usize * PAGE) };
            }
            inside.need.down(pages);
            inside.runs.release(Run { first, pages, state: PageState::Dirty });
        }
        any
    }

    /// Returns pages beyond the recent need to the system, at most `budget`.
    pub(super) fn give_back(&self, budget: u64) {
        self.give_back_at_most(budget, |dirty, need| need.excess(dirty));
    }

    /// Returns the pages that `excess` computes to the system, at most `budget`, until the system
    /// refuses some.
    fn give_back_at_most(&self, mut budget: u64, excess: impl Fn(u64, &Need) -> u64) {
        while budget > 0 {
            let went = self.give_back_some(budget, &excess);
            let Some(went) = went.filter(|went| *went > 0) else { return };
            budget = budget.saturating_sub(went.into());
        }
    }

    /// Returns pages at the end of the oldest dirty run to the system, without holding the lock.
    ///
    /// At most `most` pages, and at most as many as `excess` computes. The result is the number of
    /// pages: 0 if the system refuses them, which makes their run the newest; `None` if there is no
    /// page to return, and if another thread forks.
    fn give_back_some(&self, most: u64, excess: impl Fn(u64, &Need) -> u64) -> Option<u32> {
        let oldest = self.enter(|inside| {
            let excess = excess(inside.runs.dirty, &inside.need);
            inside.runs.take_oldest(u32::try_from(excess.min(most)).unwrap_or(u32::MAX))
        });
        let (first, pages) = oldest??;
        // SAFETY: `take_oldest` returned pages of the range that were free, and marked them as used
        // under the lock.
        Some(unsafe { self.return_run(first, pages) })
    }

    /// Returns a run to the system. The result is the number of pages, or 0 if the system refuses them.
    ///
    /// # Safety
    ///
    /// The pages were free, and the caller has marked them as a used run.
    unsafe fn return_run(&self, first: u32, pages: u32) -> u32 {
        // SAFETY: as the caller says, so no other thread takes them until `release_later`.
        let how = unsafe { self.mapping.forget(self.address(first), pages as usize * PAGE) };
        self.release_later(first, Deferral::returned(how));
        if how == Forgotten::Not {
            return 0;
        }
        self.returned.fetch_add(pages.into(), Relaxed);
        pages
    }
}
