//! The state under the lock of the pages: it chooses the run for a request, and grows blocks in
//! place.

use super::PAGE;
use super::mapping::Mapping;
use super::need::Need;
use super::page::PageState;
use super::runs::{FreeSpan, Run, Runs};
use super::space::Space;
use std::ops::Range;

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

    /// Takes dirty pages.
    pub(super) fn take_dirty(&mut self, pages: u32, align: u32) -> Option<(u32, PageState)> {
        let first = self.runs.take(pages, align, PageState::Dirty)?;
        Some((first, PageState::Dirty))
    }

    /// Takes dirty and clean pages that follow each other, at a long dirty run.
    pub(super) fn take_span(
        &mut self,
        pages: u32,
        align: u32,
        mapping: &Mapping,
    ) -> Option<(u32, PageState)> {
        let (span, first) = self.runs.find_span(pages, align)?;
        self.open(first..first + pages, mapping).then(|| {
            self.runs.take_span(span, first, pages);
            (first, PageState::Dirty)
        })
    }

    /// Takes clean pages, and grows the range if necessary.
    ///
    /// If the range cannot grow, it takes pages of either state; the result tells which.
    pub(super) fn take_clean(
        &mut self,
        pages: u32,
        align: u32,
        mapping: &Mapping,
    ) -> Option<(u32, PageState)> {
        if let Some(first) = self.runs.take(pages, align, PageState::Clean) {
            return self.opened(first, pages, align, mapping);
        }
        let needed = pages.checked_add(align - 1)?;
        // The first page of the range is never free.
        let have = self.runs.clean_at_end().map_or(0, |run| run.pages);
        let lacking = needed.saturating_sub(have) + u32::from(self.runs.end() == 0);
        if self.grow(lacking, mapping).is_some()
            && let Some(run) = self.runs.clean_at_end().filter(|run| run.pages >= needed)
        {
            let first = self.runs.take_from(run, pages, align);
            return self.opened(first, pages, align, mapping);
        }
        // Last: a search of all runs of about this length, beyond the few that `take` examines.
        if let Some(first) = self.runs.take_any(pages, align, PageState::Dirty) {
            return Some((first, PageState::Dirty));
        }
        let first = self.runs.take_any(pages, align, PageState::Clean)?;
        self.opened(first, pages, align, mapping)
    }

    /// Opens clean pages that were just taken. If the system has too little memory, it frees them
    /// again and takes dirty ones, if there are any.
    fn opened(
        &mut self,
        first: u32,
        pages: u32,
        align: u32,
        mapping: &Mapping,
    ) -> Option<(u32, PageState)> {
        if self.open(first..first + pages, mapping) {
            return Some((first, PageState::Clean));
        }
        self.release_clean(first, pages, mapping);
        let first = self.runs.take_any(pages, align, PageState::Dirty)?;
        Some((first, PageState::Dirty))
    }

    /// Makes the memory of free pages accessible. Returns false if the system has too little.
    fn open(&mut self, pages: Range<u32>, mapping: &Mapping) -> bool {
        self.space.as_mut().is_some_and(|space| space.open(pages, mapping))
    }

    /// Frees a used run whose pages read as zeroes. What it makes whole is closed.
    pub(super) fn release_clean(&mut self, first: u32, pages: u32, mapping: &Mapping) {
        let clean = self.runs.release(Run { first, pages, state: PageState::Clean });
        if let Some(space) = &mut self.space {
            space.close(first..first + pages, clean, mapping);
        }
    }

    /// Shortens the range to `most` bytes, or as far as no block is in the way. `publish` gets its bytes
    /// before others can have what is left out. Returns whether any is.
    pub(super) fn shorten(&mut self, most: usize, publish: impl FnOnce(usize)) -> bool {
        let Some(space) = &mut self.space else { return false };
        let (end, clean) = (self.runs.end(), self.runs.clean_at_end());
        let needed = clean.map_or(end, |run| run.first) as usize * PAGE;
        let kept = needed.max(most).max(1).next_multiple_of(Space::CHUNK);
        if kept >= space.bytes {
            return false;
        }
        let first = u32::try_from(kept / PAGE).unwrap_or(u32::MAX);
        if let Some(run) = clean.filter(|_| first < end) {
            // They stay used for good.
            self.runs.take_span(FreeSpan { first: run.first, end }, first, end - first);
        }
        space.shorten(kept, publish);
        true
    }

    /// Extends the range by at least `pages` pages; does nothing for 0. Returns `None` if
    /// there are no addresses or no memory.
    fn grow(&mut self, pages: u32, mapping: &Mapping) -> Option<()> {
        if pages > 0 {
            let map = self.space.as_mut()?.grow(pages as usize, mapping)?;
            self.runs.extend(map);
        }
        Some(())
    }

    /// Grows a block in place, from `pages` to `wanted` pages, into the free pages behind it.
    ///
    /// Those are at most two runs, one of each state. With `grows`, it also grows the range if the
    /// free pages end there. Returns false, with the block unchanged, if that is not enough.
    pub(super) fn extend(
        &mut self,
        first: u32,
        pages: u32,
        wanted: u32,
        grows: bool,
        mapping: &Mapping,
    ) -> bool {
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
                && self.grow(lacking - free, mapping).is_some()
                && self.extend(first, pages, wanted, false, mapping);
        }
        if !self.open(first + pages..first + wanted, mapping) {
            return false;
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
