//! The part of a [`Tcache`] in the process: it owns the cache, passes through, or finds mistakes.

use super::checked::CHECKED;
use super::stats::{TcacheState, TcacheStats};
use super::thread::{CACHE, watch_ends, watch_forks};
use super::{Tcache, background};
use crate::limits::Memory;
use crate::settings::{Mode, Settings};
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::{stderr, system, tracing};
use std::alloc::GlobalAlloc;

/// No request or free has come yet.
pub(super) const UNDECIDED: u8 = 0;
/// It owns the cache.
pub(super) const SERVING: u8 = 1;
/// All goes to the inner allocator.
pub(super) const PASSING: u8 = 2;
/// It looks for mistakes, and caches nothing.
const CHECKING: u8 = 3;
/// It serves, and records each request and free.
const TRACING: u8 = 4;
/// All goes to the inner allocator, since another one has the cache.
const SECOND: u8 = 5;

/// Number of the `Tcache` that owns the cache; 0 for none yet.
static OWNER: AtomicUsize = AtomicUsize::new(0);
static NEXT_ID: AtomicUsize = AtomicUsize::new(1);

/// Prints the summary of the process's tcache; for the word `stats`.
extern "C" fn print_stats() {
    stderr::summarize(&CACHE.stats());
}

/// Prints that there is no cache; for the word `stats` beside `off`.
extern "C" fn print_off() {
    stderr::summarize(&TcacheStats::without_cache(TcacheState::Off));
}

/// Looks for writes to freed blocks before the process ends; for the word `check`.
extern "C" fn check_resting() {
    CHECKED.check_resting();
}

/// Has a line printed when the process ends, if the settings have the word `stats`.
fn tell_at_end(settings: &Settings, print: extern "C" fn()) {
    if settings.stats {
        stderr::keep();
        system::at_exit(print);
    }
}

impl<A: GlobalAlloc + Sync + 'static> Tcache<A> {
    /// Whether it is the cache of the process.
    #[inline]
    pub(super) fn serves(&self) -> bool {
        match self.role.load(Relaxed) {
            SERVING | TRACING => true,
            PASSING | CHECKING | SECOND => false,
            _ => self.decide(),
        }
    }

    /// Whether it records; known once [`Tcache::serves`] was asked.
    pub(super) fn traces(&self) -> bool {
        self.role.load(Relaxed) == TRACING
    }

    /// Whether it looks for mistakes; known once [`Tcache::serves`] was asked.
    pub(super) fn checks(&self) -> bool {
        self.role.load(Relaxed) == CHECKING
    }

    /// What its statistics say of one that does not serve.
    pub(super) fn state(&self) -> TcacheState {
        match self.role.load(Relaxed) {
            SECOND => TcacheState::Second,
            CHECKING => TcacheState::Checked,
            _ => TcacheState::Off,
        }
    }

    /// Decides what it is, once. Two threads that come here at once decide the same.
    #[cold]
    fn decide(&self) -> bool {
        let settings = self.settings.with_environment();
        let role = match self.set_up(&settings, print_stats) {
            SERVING => {
                CACHE.clocks.feel();
                if settings.mode == Mode::Checked {
                    system::at_exit(check_resting);
                    CHECKING
                } else if tracing::begin() {
                    TRACING
                } else {
                    SERVING
                }
            }
            other => other,
        };
        // What the first thread decided holds.
        match self.role.compare_exchange(UNDECIDED, role, Relaxed, Relaxed) {
            Ok(_) => [SERVING, TRACING].contains(&role),
            Err(first) => [SERVING, TRACING].contains(&first),
        }
    }

    /// Sets the cache up, if the settings want one and this one owns it. Returns its part in the process.
    /// `print_stats` runs when the process ends, with the word `stats`.
    pub(super) fn set_up(&self, settings: &Settings, print_stats: extern "C" fn()) -> u8 {
        if settings.is_off() {
            tell_at_end(settings, print_off);
            return PASSING;
        }
        if !self.take_cache() {
            return SECOND;
        }
        if !watch_forks() || !watch_ends() {
            tell_at_end(settings, print_off);
            return PASSING;
        }
        let of_thread = usize::try_from(settings.thread_limit).unwrap_or(usize::MAX);
        let now = system::coarse_milliseconds();
        let memory = Memory::read();
        CACHE.configure(settings.limit(memory), of_thread, settings.decay, now);
        CACHE.pages.start(settings, memory);
        if settings.huge_pages {
            CACHE.use_huge_pages();
        }
        if settings.background {
            background::request::<A>();
        }
        tell_at_end(settings, print_stats);
        SERVING
    }

    /// Whether this one owns the cache. The owner never changes: the blocks belong to one inner
    /// allocator.
    fn take_cache(&self) -> bool {
        if self.id.load(Relaxed) == 0 {
            let id = NEXT_ID.fetch_add(1, Relaxed);
            let _ = self.id.compare_exchange(0, id, Relaxed, Relaxed);
        }
        let id = self.id.load(Relaxed);
        match OWNER.compare_exchange(0, id, Relaxed, Relaxed) {
            Ok(_) => true,
            Err(owner) if owner == id => true,
            Err(_) => {
                stderr::say(&[b"bucketpool: a second Tcache in this process passes through\n"]);
                false
            }
        }
    }
}
