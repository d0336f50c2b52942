//! Work that calls left undone because another thread held the lock of the pages for a fork. The
//! next thread that has the lock does it.
//!
//! The runs are a list that is linked in the map. Pushing one exchanges the head; the thread that
//! has the lock takes the whole list. A block's own bytes would not do as links: the program may
//! have told the system to give a child none of them, or zeroes.
//!
//! The child of a fork finds the list as the parent does. The system copies memory while other
//! threads run, but no write of theirs reaches the child without the writes before it, so what a
//! child's head names is linked. A run that is in the child's list is free there, because the
//! thread that pushed it had freed it.

use super::mapping::Forgotten;
use super::page::{Links, PageState};
use crate::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

/// End of the list. No block has page 0.
const NONE: u32 = 0;

/// The reason why a used run is in the list, from which follows how it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Deferral {
    /// The program freed it.
    Freed,
    /// The program freed it, and its memory went back or elsewhere.
    Emptied,
    /// The same, and its addresses are closed.
    EmptiedClosed,
    /// It was free, and its memory went back.
    Returned,
    /// The same, and its addresses are closed.
    ReturnedClosed,
    /// It was free, and its memory was to go back, which the system refused.
    Refused,
}

impl Deferral {
    const ALL: [Self; 6] = [
        Self::Freed,
        Self::Emptied,
        Self::EmptiedClosed,
        Self::Returned,
        Self::ReturnedClosed,
        Self::Refused,
    ];

    /// Returns whether the run counts as used until it is released.
    pub(super) fn is_live(self) -> bool {
        matches!(self, Self::Freed | Self::Emptied | Self::EmptiedClosed)
    }

    /// Returns whether the pages are closed in a chunk that may be in use otherwise.
    pub(super) fn is_closed(self) -> bool {
        matches!(self, Self::EmptiedClosed | Self::ReturnedClosed)
    }

    /// Returns how a run that the program freed is released after this.
    pub(super) fn emptied(how: Forgotten) -> Self {
        match how {
            Forgotten::Open => Self::Emptied,
            Forgotten::Closed => Self::EmptiedClosed,
            Forgotten::Not => Self::Freed,
        }
    }

    /// Returns how a free run is released after this.
    pub(super) fn returned(how: Forgotten) -> Self {
        match how {
            Forgotten::Open => Self::Returned,
            Forgotten::Closed => Self::ReturnedClosed,
            Forgotten::Not => Self::Refused,
        }
    }

    /// Returns the state in which the run is to be released.
    pub(super) fn state(self) -> PageState {
        match self {
            Self::Freed | Self::Refused => PageState::Dirty,
            _ => PageState::Clean,
        }
    }
}

/// Runs to release, and settings to apply.
#[derive(Debug)]
pub(super) struct Deferred {
    /// First page of the run that was pushed last; [`NONE`] if there is none.
    newest: AtomicU32,
    has_settings: AtomicBool,
    limit: AtomicUsize,
    decay: AtomicU64,
    resets_peak: AtomicBool,
    /// The most bytes of addresses that the range may keep; `usize::MAX` for any.
    most: AtomicUsize,
}

impl Deferred {
    pub(super) const fn new() -> Self {
        Self {
            newest: AtomicU32::new(NONE),
            has_settings: AtomicBool::new(false),
            limit: AtomicUsize::new(0),
            decay: AtomicU64::new(0),
            resets_peak: AtomicBool::new(false),
            most: AtomicUsize::new(usize::MAX),
        }
    }

    /// Returns whether there is work. What another thread adds just now may be missed.
    pub(super) fn is_any(&self) -> bool {
        self.newest.load(Relaxed) != NONE
            || self.has_settings.load(Relaxed)
            || self.resets_peak.load(Relaxed)
            || self.most.load(Relaxed) != usize::MAX
    }

    /// Adds a used run with its first page and its links. The caller must own the run, and owns it no
    /// more.
    pub(super) fn push(&self, first: u32, links: &Links, what: Deferral) {
        let mut newest = self.newest.load(Relaxed);
        loop {
            links.defer(newest, what as u32);
            // Release: the link, and the owner's accesses, happen before those of the thread that
            // takes the list. Later exchanges keep that order, since each reads the value before
            // it.
            match self.newest.compare_exchange_weak(newest, first, Release, Relaxed) {
                Ok(_) => return,
                Err(other) => newest = other,
            }
        }
    }

    /// Takes all runs: the first page of each. `links` returns the links of one.
    pub(super) fn take<'p>(
        &self,
        links: impl Fn(u32) -> &'p Links,
    ) -> impl Iterator<Item = (u32, Deferral)> {
        let mut at = self.newest.swap(NONE, Acquire);
        std::iter::from_fn(move || {
            let first = Some(at).filter(|at| *at != NONE)?;
            let (next, what) = links(first).deferred();
            at = next;
            let all = Deferral::ALL;
            let what = all.into_iter().find(|one| *one as u32 == what);
            Some((first, what.unwrap_or(Deferral::Refused)))
        })
    }

    /// Stores settings to apply: the bound in bytes, and the retention time in milliseconds.
    pub(super) fn set(&self, limit: usize, decay: u64) {
        self.limit.store(limit, Relaxed);
        self.decay.store(decay, Relaxed);
        self.has_settings.store(true, Release);
    }

    /// Takes the settings.
    pub(super) fn take_settings(&self) -> Option<(usize, u64)> {
        let has = self.has_settings.swap(false, Acquire);
        has.then(|| (self.limit.load(Relaxed), self.decay.load(Relaxed)))
    }

    /// Has the range shortened to so many bytes.
    pub(super) fn shorten(&self, most: usize) {
        self.most.fetch_min(most, Relaxed);
    }

    /// Returns the bytes to which the range is to be shortened, and forgets them.
    pub(super) fn take_most(&self) -> Option<usize> {
        let most = self.most.swap(usize::MAX, Relaxed);
        (most != usize::MAX).then_some(most)
    }

    /// Has the high-water mark set to what is used when this is done.
    pub(super) fn reset_peak(&self) {
        self.resets_peak.store(true, Relaxed);
    }

    /// Returns whether the high-water mark is to be set, and forgets it.
    pub(super) fn take_reset_peak(&self) -> bool {
        self.resets_peak.swap(false, Relaxed)
    }
}
