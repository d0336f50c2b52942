//! Runs of pages: the free runs by length, and the dirty runs also by age.
//!
//! A range is divided into runs. Two neighbours are never both dirty, nor both clean, because they
//! coalesce at once. The map has one entry for each page. A run's length and state are in the
//! entries of its first and its last page, so a run is found from its first page, and its
//! neighbours from it, in constant time. Nothing here touches the pages themselves, allocates, or
//! calls the system.

use super::page::{Links, Map, PageState, Tag};
use crate::sync::atomic::Ordering::Relaxed;

/// End of a list. Page 0 is always used and no block has it, so no free run begins there.
const NONE: u32 = 0;
/// Number of free lists of one state: eight for each doubling of the length.
const LISTS: usize = 256;
const WORDS: usize = LISTS / 64;
/// Runs of a list that [`Runs::take`] examines for the shortest that serves, and long dirty runs
/// that [`Runs::find_span`] does.
const LOOKS: usize = 8;

/// Consecutive pages of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) pages: u32,
    pub(super) state: PageState,
}

/// Consecutive pages of free runs, of either state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeSpan {
    pub(super) first: u32,
    pub(super) end: u32,
}

impl Run {
    /// Returns the number of the page behind the last one.
    pub(super) fn end(self) -> u32 {
        self.first + self.pages
    }

    fn used(first: u32, pages: u32) -> Self {
        Self { first, pages, state: PageState::Used }
    }
}

/// The free lists of one state.
#[derive(Debug)]
struct Lists {
    heads: [u32; LISTS],
    /// One bit for each list, set if the list is not empty.
    filled: [u64; WORDS],
}

impl Lists {
    const EMPTY: Self = Self { heads: [NONE; LISTS], filled: [0; WORDS] };

    /// Returns the first list from `from` on that is not empty.
    fn next_filled(&self, from: usize) -> Option<usize> {
        (from / 64..WORDS).find_map(|word| {
            let hidden = if word == from / 64 { from % 64 } else { 0 };
            let filled = self.filled[word] & (u64::MAX << hidden);
            (filled != 0).then(|| 64 * word + filled.trailing_zeros() as usize)
        })
    }

    /// Returns the lists that are not empty, the last one first.
    fn filled_from_last(&self) -> impl Iterator<Item = usize> {
        (0..WORDS).rev().flat_map(|word| {
            let next = |left: &u64| left.checked_ilog2().map(|top| left & !(1 << top));
            let left = std::iter::successors(Some(self.filled[word]), next);
            left.map_while(u64::checked_ilog2).map(move |top| 64 * word + top as usize)
        })
    }
}

/// Returns the list of runs of a length. All runs of a later list are longer.
fn list_of(pages: u32) -> usize {
    if pages < 8 {
        return pages as usize;
    }
    let doubling = pages.ilog2() - 3;
    (doubling * 8 + (pages >> doubling)) as usize
}

/// The runs of a range.
#[derive(Debug)]
pub(super) struct Runs {
    map: Map,
    dirty_lists: Lists,
    clean_lists: Lists,
    /// First page of the oldest dirty run.
    oldest: u32,
    /// First page of the newest dirty run.
    newest: u32,
    /// Number of dirty pages.
    pub(super) dirty: u64,
}

impl Runs {
    /// Creates runs of a range without pages.
    pub(super) const fn new() -> Self {
        Self {
            map: Map::EMPTY,
            dirty_lists: Lists::EMPTY,
            clean_lists: Lists::EMPTY,
            oldest: NONE,
            newest: NONE,
            dirty: 0,
        }
    }

    /// Grows the range to as many pages as `map` has entries.
    ///
    /// `map` must begin with the entries of the current map. The new pages are clean, except page
    /// 0, which is a used run that no block has.
    pub(super) fn extend(&mut self, map: Map) {
        let before = self.end().max(1);
        if self.map.tags.is_empty()
            && let Some(first) = map.tags.first()
        {
            first.set(1, PageState::Used);
        }
        self.map = map;
        if self.end() > before {
            self.release(Run {
                first: before,
                pages: self.end() - before,
                state: PageState::Clean,
            });
        }
    }

    /// Returns the number of pages.
    #[expect(clippy::cast_possible_truncation, reason = "a map has fewer entries than 2^30")]
    pub(super) fn end(&self) -> u32 {
        self.map.tags.len() as u32
    }

    fn tag(&self, page: u32) -> &'static Tag {
        &self.map.tags[page as usize]
    }

    fn links(&self, first: u32) -> &'static Links {
        self.map.links_of(first)
    }

    /// Returns the run that begins at a page.
    pub(super) fn at(&self, first: u32) -> Run {
        let (pages, state) = self.tag(first).run();
        Run { first, pages, state }
    }

    /// Returns the run that ends with a page.
    fn ending_at(&self, last: u32) -> Run {
        let (pages, state) = self.tag(last).run();
        Run { first: last + 1 - pages, pages, state }
    }

    /// Returns the run behind another; `None` at the end of the range.
    pub(super) fn behind(&self, run: Run) -> Option<Run> {
        (run.end() < self.end()).then(|| self.at(run.end()))
    }

    /// Returns the run at the end of the range, if it is clean.
    pub(super) fn clean_at_end(&self) -> Option<Run> {
        let last = self.end().checked_sub(1).map(|last| self.ending_at(last));
        last.filter(|run| run.state == PageState::Clean)
    }

    fn lists(&self, state: PageState) -> Option<&Lists> {
        match state {
            PageState::Used => None,
            PageState::Dirty => Some(&self.dirty_lists),
            PageState::Clean => Some(&self.clean_lists),
        }
    }

    fn lists_mut(&mut self, state: PageState) -> Option<&mut Lists> {
        match state {
            PageState::Used => None,
            PageState::Dirty => Some(&mut self.dirty_lists),
            PageState::Clean => Some(&mut self.clean_lists),
        }
    }

    /// Writes a run into the map.
    fn set(&self, run: Run) {
        self.tag(run.first).set(run.pages, run.state);
        self.tag(run.end() - 1).set(run.pages, run.state);
    }

    /// Marks pages as one used run, without room. They must be in no list.
    pub(super) fn use_up(&self, first: u32, pages: u32) {
        self.set(Run::used(first, pages));
        self.links(first).set_room(0);
    }

    /// Adds a free run that has no neighbour of the same state.
    ///
    /// A dirty run becomes the oldest with `as_oldest`, for the rest of the oldest run; else it
    /// becomes the newest.
    fn insert(&mut self, run: Run, as_oldest: bool) {
        self.set(run);
        let list = list_of(run.pages);
        let Some(lists) = self.lists_mut(run.state) else { return };
        let head = std::mem::replace(&mut lists.heads[list], run.first);
        lists.filled[list / 64] |= 1 << (list % 64);
        let links = self.links(run.first);
        links.next.store(head, Relaxed);
        links.previous.store(NONE, Relaxed);
        if head != NONE {
            self.links(head).previous.store(run.first, Relaxed);
        }
        if run.state == PageState::Dirty {
            self.dirty += u64::from(run.pages);
            self.insert_by_age(run.first, as_oldest);
        }
    }

    /// Adds a dirty run to the list by age, at one of its ends.
    fn insert_by_age(&mut self, first: u32, as_oldest: bool) {
        let (older, newer) = if as_oldest { (NONE, self.oldest) } else { (self.newest, NONE) };
        self.links(first).older.store(older, Relaxed);
        self.links(first).newer.store(newer, Relaxed);
        self.link(older, newer, (first, first));
    }

    /// Links `older` to `to_newer`, and `newer` to `to_older`, in the list by age. [`NONE`] stands
    /// for the end of the list.
    fn link(&mut self, older: u32, newer: u32, (to_newer, to_older): (u32, u32)) {
        match older {
            NONE => self.oldest = to_newer,
            older => self.links(older).newer.store(to_newer, Relaxed),
        }
        match newer {
            NONE => self.newest = to_older,
            newer => self.links(newer).older.store(to_older, Relaxed),
        }
    }

    /// Unlinks a free run from its lists. The caller must then mark its pages as used, or insert
    /// them again.
    pub(super) fn remove(&mut self, run: Run) {
        let list = list_of(run.pages);
        let links = self.links(run.first);
        let (next, previous) = (links.next.load(Relaxed), links.previous.load(Relaxed));
        let (older, newer) = (links.older.load(Relaxed), links.newer.load(Relaxed));
        if next != NONE {
            self.links(next).previous.store(previous, Relaxed);
        }
        if previous != NONE {
            self.links(previous).next.store(next, Relaxed);
        } else if let Some(lists) = self.lists_mut(run.state) {
            lists.heads[list] = next;
            if next == NONE {
                lists.filled[list / 64] &= !(1 << (list % 64));
            }
        }
        if run.state == PageState::Dirty {
            self.dirty -= u64::from(run.pages);
            self.link(older, newer, (newer, older));
        }
    }

    /// Frees a run, coalesced with its neighbours of the same state, and returns the whole. A dirty
    /// run becomes the newest.
    pub(super) fn release(&mut self, mut run: Run) -> Run {
        let below = self.ending_at(run.first - 1);
        if below.state == run.state {
            self.remove(below);
            // A free of the block that began here is an error from now on.
            self.tag(run.first).set(0, run.state);
            run = Run { first: below.first, pages: below.pages + run.pages, ..run };
        }
        if let Some(above) = self.behind(run).filter(|above| above.state == run.state) {
            self.remove(above);
            run.pages += above.pages;
        }
        self.insert(run, false);
        run
    }

    /// Takes `pages` pages at a multiple of `align` pages from a free run of this state, and marks
    /// them as used. Returns the first.
    ///
    /// It examines at most [`LOOKS`] runs of each list of about this length, so it can miss one
    /// that serves; [`Runs::take_any`] does not.
    pub(super) fn take(&mut self, pages: u32, align: u32, state: PageState) -> Option<u32> {
        let run = self.find(pages, align, state, LOOKS)?;
        Some(self.take_from(run, pages, align))
    }

    /// Takes pages like [`Runs::take`], but examines all runs. For a request that would otherwise
    /// be refused.
    pub(super) fn take_any(&mut self, pages: u32, align: u32, state: PageState) -> Option<u32> {
        let run = self.find(pages, align, state, usize::MAX)?;
        Some(self.take_from(run, pages, align))
    }

    /// Takes pages from a free run that has enough of them for this alignment, and marks them as
    /// used. Returns the first. The pages before and behind them stay free, as the newest runs if
    /// dirty.
    pub(super) fn take_from(&mut self, run: Run, pages: u32, align: u32) -> u32 {
        self.remove(run);
        let first = run.first.next_multiple_of(align);
        self.use_up(first, pages);
        let before = Run { pages: first - run.first, ..run };
        let after = Run { first: first + pages, pages: run.end() - (first + pages), ..run };
        for rest in [before, after].into_iter().filter(|rest| rest.pages > 0) {
            self.insert(rest, false);
        }
        first
    }

    /// Takes the first pages of a free run. The caller must then mark them as used.
    pub(super) fn take_front(&mut self, run: Run, pages: u32) {
        self.remove(run);
        let rest = Run { first: run.first + pages, pages: run.pages - pages, ..run };
        if rest.pages > 0 {
            self.insert(rest, false);
        }
    }

    /// Takes pages of a free span, as [`Runs::find_span`] found it, and marks them as used.
    pub(super) fn take_span(&mut self, span: FreeSpan, first: u32, pages: u32) {
        let mut at = span.first;
        while at < span.end {
            let run = self.at(at);
            self.remove(run);
            at = run.end();
            let before = Run { pages: first.min(run.end()).saturating_sub(run.first), ..run };
            let behind = (first + pages).max(run.first);
            let after = Run { first: behind, pages: run.end().saturating_sub(behind), ..run };
            for rest in [before, after].into_iter().filter(|rest| rest.pages > 0) {
                self.insert(rest, false);
            }
        }
        self.use_up(first, pages);
    }

    /// Returns free pages around one of the longest dirty runs, and the first of `pages` pages among
    /// them that begin at a multiple of `align`.
    ///
    /// A block that is freed when much is cached loses the memory of its end, so that neither its
    /// dirty nor its clean part can serve the next block of its length. Together they can.
    pub(super) fn find_span(&self, pages: u32, align: u32) -> Option<(FreeSpan, u32)> {
        let long = self.dirty_lists.filled_from_last().take(LOOKS);
        let long = long.flat_map(|list| self.list(self.dirty_lists.heads[list])).take(LOOKS);
        long.map(|run| (self.span_of(run), run)).find_map(|(span, dirty)| {
            let last = span.end.checked_sub(pages)? / align * align;
            // Near the start of the dirty run, so that most of it serves.
            let down = dirty.first / align * align;
            let starts = [down, down + align].map(|first| first.min(last));
            let serves = |first: &u32| {
                *first >= span.first && *first < dirty.end() && first + pages > dirty.first
            };
            starts.into_iter().find(serves).map(|first| (span, first))
        })
    }

    /// Returns the free runs around a free run, at most [`LOOKS`] on each side.
    fn span_of(&self, run: Run) -> FreeSpan {
        let (mut first, mut end) = (run, run);
        for _ in 0..LOOKS {
            let below = self.ending_at(first.first - 1);
            let above = self.behind(end).filter(|above| above.state != PageState::Used);
            if below.state == PageState::Used && above.is_none() {
                break;
            }
            first = if below.state == PageState::Used { first } else { below };
            end = above.unwrap_or(end);
        }
        FreeSpan { first: first.first, end: end.end() }
    }

    /// Returns a free run that has `pages` pages at a multiple of `align`.
    ///
    /// That is the shortest one that serves among the first `looks` runs of a list of about this
    /// length, or the first run of a list whose runs are all long enough.
    fn find(&self, pages: u32, align: u32, state: PageState, looks: usize) -> Option<Run> {
        let lists = self.lists(state)?;
        let serves = |run: &Run| {
            run.first.next_multiple_of(align).checked_add(pages).is_some_and(|end| end <= run.end())
        };
        let sure = pages.checked_add(align - 1)?;
        let mut near = list_of(pages)..=list_of(sure);
        let best = near.find_map(|list| {
            let runs = self.list(lists.heads[list]).take(looks);
            runs.filter(serves).min_by_key(|run| run.pages)
        });
        best.or_else(|| {
            let further = lists.next_filled(list_of(sure) + 1)?;
            Some(self.at(lists.heads[further]))
        })
    }

    /// Returns the free runs of a list.
    fn list(&self, head: u32) -> impl Iterator<Item = Run> {
        let next = |at: &u32| Some(self.links(*at).next.load(Relaxed)).filter(|next| *next != NONE);
        std::iter::successors(Some(head).filter(|head| *head != NONE), next).map(|at| self.at(at))
    }

    /// Returns the clean runs that are at least about twice as long as `pages`.
    pub(super) fn long_clean(&self, pages: u32) -> impl Iterator<Item = Run> {
        let filled = self.clean_lists.filled_from_last();
        let long = filled.take_while(move |list| *list > list_of(pages) + 8);
        long.flat_map(|list| self.list(self.clean_lists.heads[list]))
    }

    /// Takes one of the longest dirty runs, if it has at least about `pages` pages, and marks it as
    /// used. Returns the first page and the number of pages.
    pub(super) fn take_longest(&mut self, pages: u32) -> Option<(u32, u32)> {
        let list = self.dirty_lists.filled_from_last().next()?;
        let run = self.at(self.dirty_lists.heads[list]);
        (run.pages >= pages).then(|| {
            self.remove(run);
            self.use_up(run.first, run.pages);
            (run.first, run.pages)
        })
    }

    /// Takes at most `most` pages at the end of the oldest dirty run, and marks them as used.
    /// Returns the first page and the number of pages. The rest of the run stays the oldest.
    pub(super) fn take_oldest(&mut self, most: u32) -> Option<(u32, u32)> {
        let run = (self.oldest != NONE && most > 0).then(|| self.at(self.oldest))?;
        self.remove(run);
        let pages = run.pages.min(most);
        let rest = Run { pages: run.pages - pages, ..run };
        if rest.pages > 0 {
            self.insert(rest, true);
        }
        self.use_up(rest.end(), pages);
        Some((rest.end(), pages))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
