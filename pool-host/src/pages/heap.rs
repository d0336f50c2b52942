//! All that the lock of the pages guards: which run a request gets, and where a block can grow.

use super::need::Need;
use super::runs::{PageState, Run, Runs};
use super::space::Space;

/// The range, its runs, and how many of their pages are needed.
#[derive(Debug)]
pub(super) struct Heap {
    pub(super) space: Option<Space>,
    pub(super) runs: Runs,
    pub(super) need: Need,
}

impl Heap {
    /// No range yet.
    pub(super) const fn new() -> Self {
        Self { space: None, runs: Runs::new(), need: Need::new() }
    }

    /// Takes pages with old contents. `roomy`: out of a long run, if there is one.
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

    /// Takes clean pages; the range grows if it must.
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
        let have = self.runs.clean_at_end().map_or(0, |run| run.pages);
        if self.grow(needed.saturating_sub(have)).is_some()
            && let Some(run) = self.runs.clean_at_end().filter(|run| run.pages >= needed)
        {
            return Some((self.runs.take_from(run, pages, align), PageState::Clean));
        }
        // The last resort: runs of its length that were not looked at.
        [PageState::Dirty, PageState::Clean]
            .into_iter()
            .find_map(|state| self.runs.take_any(pages, align, state).map(|first| (first, state)))
    }

    /// Takes pages out of a run that is four times as long.
    fn take_roomy(&mut self, pages: u32, align: u32, state: PageState) -> Option<u32> {
        let is_long = |run: &Run| run.pages / 4 >= pages.saturating_add(align);
        let run = self.runs.long_run(state).filter(is_long)?;
        Some(self.runs.take_from(run, pages, align))
    }

    /// Makes the range longer by at least `pages`; nothing for 0.
    fn grow(&mut self, pages: u32) -> Option<()> {
        if pages > 0 {
            let map = self.space.as_mut()?.grow(pages as usize)?;
            self.runs.extend(map);
        }
        Some(())
    }

    /// Makes a block longer by the free pages behind it: one run of each state at most. `grows`:
    /// also by new ones at the end of the range.
    pub(super) fn extend(&mut self, first: u32, pages: u32, wanted: u32, grows: bool) -> bool {
        let mut lacking = wanted - pages;
        let [next, further] = self.free_behind(first);
        let end = further.or(next).map_or(first + pages, Run::end);
        let free = end - (first + pages);
        if free < lacking {
            // New pages must be joined to the last run, or be the second.
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

    /// The free runs that follow a block, at most two.
    fn free_behind(&self, first: u32) -> [Option<Run>; 2] {
        let is_free = |run: &Run| run.state != PageState::Used;
        let next = self.runs.behind(self.runs.at(first)).filter(is_free);
        let further = next.and_then(|next| self.runs.behind(next)).filter(is_free);
        [next, further]
    }
}
