//! The state under the lock of the pages: it chooses the run for a request, and grows blocks in
//! place.

use super::need::Need;
use super::runs::{PageState, Run, Runs};
use super::space::Space;

/// The reserved range, its runs, and the recent need for pages.
#[derive(Debug)]
pub(super) struct Heap {
    pub(super) space: Option<Space>,
    pub(super) runs: Runs,
    pub(super) need: Need,
}

impl Heap {
    /// Creates a heap without a range.
    pub(super) const fn new() -> Self {
        Self { space: None, runs: Runs::new(), need: Need::new() }
    }

    /// Takes dirty pages. With `roomy` they come from a long run, if there is one.
    pub(super) fn take_dirty(
        &mut self,
        pages: u32,
        align: u32,
        roomy: bool,
    ) -> Option<(u32, PageState)> {
        let long = if roomy { self.take_roomy(pages, align, PageState::Dirty) } else { None };
        let first = long.or_else(|| self.runs.take(pages, align, PageState::Dirty))?;
        Some((first, PageState::Dirty))
    }

    /// Takes clean pages, and grows the range if necessary. With `roomy` they come from a long run,
    /// if there is one.
    ///
    /// If the range cannot grow, it takes pages of either state; the result tells which.
    pub(super) fn take_clean(
        &mut self,
        pages: u32,
        align: u32,
        roomy: bool,
    ) -> Option<(u32, PageState)> {
        let long = if roomy { self.take_roomy(pages, align, PageState::Clean) } else { None };
        let found = long.or_else(|| self.runs.take(pages, align, PageState::Clean));
        if let Some(first) = found {
            return Some((first, PageState::Clean));
        }
        let needed = pages.checked_add(align - 1)?;
        // The first page of the range is never free.
        let have = self.runs.clean_at_end().map_or(0, |run| run.pages);
        let lacking = needed.saturating_sub(have) + u32::from(self.runs.end() == 0);
        if self.grow(lacking).is_some()
            && let Some(run) = self.runs.clean_at_end().filter(|run| run.pages >= needed)
        {
            return Some((self.runs.take_from(run, pages, align), PageState::Clean));
        }
        // Last: a search of all runs of about this length, beyond the few that `take` examines.
        [PageState::Dirty, PageState::Clean]
            .into_iter()
            .find_map(|state| self.runs.take_any(pages, align, state).map(|first| (first, state)))
    }

    /// Takes pages from the longest list of runs, if its first run is at least four times as long
    /// as the request.
    fn take_roomy(&mut self, pages: u32, align: u32, state: PageState) -> Option<u32> {
        let is_long = |run: &Run| run.pages / 4 >= pages.saturating_add(align);
        let run = self.runs.long_run(state).filter(is_long)?;
        Some(self.runs.take_from(run, pages, align))
    }

    /// Grows the usable range by at least `pages` pages; does nothing for 0. Returns `None` if
    /// there are no addresses or no memory.
    fn grow(&mut self, pages: u32) -> Option<()> {
        if pages > 0 {
            let map = self.space.as_mut()?.grow(pages as usize)?;
            self.runs.extend(map);
        }
        Some(())
    }

    /// Grows a block in place, from `pages` to `wanted` pages, into the free pages behind it.
    ///
    /// Those are at most two runs, one of each state. With `grows`, it also grows the range if the
    /// free pages end there. Returns false, with the block unchanged, if that is not enough.
    pub(super) fn extend(&mut self, first: u32, pages: u32, wanted: u32, grows: bool) -> bool {
        let mut lacking = wanted - pages;
        let [next, further] = self.free_behind(first);
        let end = further.or(next).map_or(first + pages, Run::end);
        let free = end - (first + pages);
        if free < lacking {
            // The new pages are clean: they coalesce with the last run, or are the second of two.
            let fits = further.is_none_or(|further| further.state == PageState::Clean);
            return grows
                && fits
                && end == self.runs.end()
                && self.grow(lacking - free).is_some()
                && self.extend(first, pages, wanted, false);
        }
        for run in [next, further].into_iter().flatten() {
            let taken = run.pages.min(lacking);
            if taken > 0 {
                self.runs.take_front(run, taken);
            }
            lacking -= taken;
        }
        self.runs.use_up(first, wanted);
        self.need.up(wanted - pages);
        true
    }

    /// Returns the free runs that follow a block, at most two.
    fn free_behind(&self, first: u32) -> [Option<Run>; 2] {
        let is_free = |run: &Run| run.state != PageState::Used;
        let next = self.runs.behind(self.runs.at(first)).filter(is_free);
        let further = next.and_then(|next| self.runs.behind(next)).filter(is_free);
        [next, further]
    }
}
