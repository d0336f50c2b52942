//! The map's entries of a page: what is known of the run that begins or ends there.

use crate::class::{CLASSES, Class};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The state of the pages of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageState {
    /// In use: the pages of a block, in a slot, or being returned to the system.
    Used = 0,
    /// Free, with old contents and memory behind them.
    Dirty,
    /// Free, without memory behind them. They read as zeroes.
    Clean,
}

/// The map's entry of a page that each free reads. It is alone in an array, so that a cache line has
/// those of 16 pages.
///
/// It is the length of the run that begins or ends at this page, shifted left by [`STATE_BITS`], and
/// its state: [`PageState`], or [`FREED`] at the first page of a used run that the program has freed.
/// In a span: [`SPAN`], the class, and how many pages of the span are before this one.
///
/// Without the lock, a thread uses only the tag of the first page of a run that it owns, to which no
/// other thread writes. Those of a span do not change while a block of the span is in use. All other
/// accesses are under the lock.
#[derive(Debug, Default)]
pub(super) struct Tag(AtomicU32);

/// The links of the run that begins at a page.
///
/// Without the lock, a thread uses only those of a run that it owns, when it frees it during a fork.
/// The links of a span belong to the free list of its class (`span.rs`). All other accesses are under
/// the lock.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Next run of the free list, if this is the first page of a free run.
    pub(super) next: AtomicU32,
    /// Previous run of the free list, if this is the first page of a free run.
    pub(super) previous: AtomicU32,
    /// Next older run, if this is the first page of a dirty run.
    pub(super) older: AtomicU32,
    /// Next newer run, if this is the first page of a dirty run. If it is that of a used run: the
    /// number of pages at its end that the program did not ask for ([`Links::room`]).
    pub(super) newer: AtomicU32,
}

/// The map of a range: as many tags as links. The links of the first page come last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    pub(super) tags: &'static [Tag],
    pub(super) links: &'static [Links],
}

impl Map {
    /// Of no pages.
    pub(super) const EMPTY: Self = Self { tags: &[], links: &[] };

    /// Returns the links of a page.
    pub(super) fn links_of(&self, page: u32) -> &'static Links {
        &self.links[self.links.len() - 1 - page as usize]
    }
}

/// State in a tag of a used run that the program has freed: in a slot, or deferred.
const FREED: u32 = 3;
/// State in the tag of a page of a span.
const SPAN: u32 = 4;
/// Bits of a tag that hold the state.
const STATE_BITS: u32 = 3;
const STATE: u32 = (1 << STATE_BITS) - 1;
/// Bits of the tag of a span's page that hold the class.
const CLASS_BITS: u32 = CLASSES.ilog2();

impl Tag {
    /// Returns the length and the state of the run that begins or ends at this page. A page of a span
    /// counts as a used run of its own.
    pub(super) fn run(&self) -> (u32, PageState) {
        let tag = self.0.load(Relaxed);
        if tag & STATE == SPAN {
            return (1, PageState::Used);
        }
        let state = match tag & STATE {
            1 => PageState::Dirty,
            2 => PageState::Clean,
            _ => PageState::Used,
        };
        (tag >> STATE_BITS, state)
    }

    /// Returns the length in pages of the run that begins or ends at this page.
    #[inline]
    pub(super) fn pages(&self) -> u32 {
        self.0.load(Relaxed) >> STATE_BITS
    }

    /// Returns the class of the span to which this page belongs, and how many of its pages are before
    /// this one; `None` for a page of no span.
    #[inline]
    pub(super) fn span(&self) -> Option<(Class, u32)> {
        let tag = self.0.load(Relaxed);
        let class = || Class::numbered((tag >> STATE_BITS) as usize % CLASSES);
        (tag & STATE == SPAN).then(|| (class(), tag >> (STATE_BITS + CLASS_BITS)))
    }

    /// Makes this the page of a span of that class behind so many others.
    #[expect(clippy::cast_possible_truncation, reason = "CLASSES fits")]
    pub(super) fn set_span(&self, class: Class, before: u32) {
        let class = class.number() as u32;
        self.0.store((before << CLASS_BITS | class) << STATE_BITS | SPAN, Relaxed);
    }

    /// Notes that the program frees the used run that begins at this page. Returns its length, or
    /// `None` if no block begins here or the program has freed it already. `last` returns the entry
    /// of the page so many pages further.
    ///
    /// It does not find all of that: old tags stay inside of runs.
    #[inline]
    pub(super) fn free<'p>(&self, last: impl FnOnce(u32) -> Option<&'p Self>) -> Option<u32> {
        let tag = self.0.load(Relaxed);
        let pages = tag >> STATE_BITS;
        let is_used = tag & STATE == PageState::Used as u32 && pages > 0;
        let is_whole = pages == 1 || is_used && last(pages - 1)?.0.load(Relaxed) == tag;
        (is_used && is_whole).then(|| {
            self.0.store(tag | FREED, Relaxed);
            pages
        })
    }

    /// Notes that the program has the used run of so many pages again that begins at this page. It
    /// may have room from its last use, which no more than keeps pages that could go.
    #[inline]
    pub(super) fn take(&self, pages: u32) {
        self.set(pages, PageState::Used);
    }

    /// Sets the length and the state of the run that begins or ends at this page.
    pub(super) fn set(&self, pages: u32, state: PageState) {
        self.0.store(pages << STATE_BITS | state as u32, Relaxed);
    }
}

impl Links {
    /// Returns the number of pages at the end of a block that the program did not ask for, or 0.
    pub(super) fn room(&self) -> u32 {
        self.newer.load(Relaxed)
    }

    /// Sets what [`Links::room`] returns, for the block that begins at this page.
    pub(super) fn set_room(&self, pages: u32) {
        self.newer.store(pages, Relaxed);
    }

    /// Links the used run that begins at this page to the next one of the list of deferred runs,
    /// with what is to be done with it. A used run is in no free list, so its links are free.
    pub(super) fn defer(&self, next: u32, what: u32) {
        self.next.store(next, Relaxed);
        self.previous.store(what, Relaxed);
    }

    /// Returns what [`Links::defer`] stored.
    pub(super) fn deferred(&self) -> (u32, u32) {
        (self.next.load(Relaxed), self.previous.load(Relaxed))
    }
}
