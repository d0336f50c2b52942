//! What programs set: limits, times, and how the system is called.

use super::heap::Heap;
use super::space::Space;
use super::{PAGE, Pages};
use crate::limits::Memory;
use crate::settings::Settings;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release};
use crate::system;
use pool_core::is_vfork_child;
use std::time::Duration;

/// Divisor of a limit on addresses that a running program sets: the range keeps that part. The program has
/// its own plans for the rest, and the C library serves what has no place.
const PART_OF_NEW_LIMIT: u64 = 16;
/// The most milliseconds for which a thread that sets a limit waits for a fork.
const MOST_WAITS: u32 = 50;

impl Pages {
    /// Applies the settings that do not change after the start, and the limits of the process.
    pub(crate) fn start(&self, settings: &Settings, memory: Memory) {
        if settings.huge_pages {
            self.use_huge_pages();
        }
        if settings.unmaps {
            self.unmap_freed_blocks();
        }
        self.lend_from(memory.lent_from());
        self.heed_data_limit();
    }

    /// Sets the bound on dirty bytes, and the retention time in milliseconds.
    ///
    /// Dirty pages that no request needed for `decay` milliseconds return to the system; 0 turns
    /// this off.
    pub(crate) fn configure(&self, limit: usize, decay: u64) {
        let configure = |inside: &mut Heap| inside.need.configure((limit / PAGE) as u64, decay);
        if self.enter(configure).is_none() {
            self.deferred.set(limit, decay);
        }
        // It was computed with the retention time before this one.
        self.next_look.store(0, Relaxed);
    }

    /// Sets the high-water mark of the used bytes to what is used now.
    pub(crate) fn reset_peak(&self) {
        if self.enter(|inside| inside.need.most = inside.need.live).is_none() {
            self.deferred.reset_peak();
        }
    }

    /// Sets the bound on dirty bytes, and the factor by which the retention time is shortened.
    /// `haste` must be at least 1. `is_watched` says that a thread calls [`Pages::look`] several times
    /// a second. Callers call it again and again; while another thread forks it does nothing.
    pub(crate) fn adjust(&self, limit: usize, haste: u64, is_watched: bool) {
        if self.is_there() {
            self.enter(|inside| {
                inside.need.limit = (limit / PAGE) as u64;
                inside.need.haste = haste;
                inside.need.is_watched = is_watched;
            });
        }
    }

    /// Permits huge pages in what is taken from the system from now on.
    pub(crate) fn use_huge_pages(&self) {
        self.mapping.use_huge_pages();
    }

    /// Lets what the program did to pages stay when their memory goes back, as the C library does.
    pub(crate) fn keep_advice(&self) {
        self.mapping.keep_advice();
    }

    /// Calls the system by `mmap` and `munmap` only from now on, for a program that limits its
    /// calls to what another allocator needs.
    pub(crate) fn be_quiet(&self) {
        self.mapping.be_quiet();
    }

    /// Calls the system from now on only where there is no block for a request.
    pub(crate) fn be_silent(&self) {
        self.mapping.be_silent();
    }

    /// Returns whether the program limits its calls to what another allocator needs.
    pub(crate) fn is_quiet(&self) -> bool {
        self.mapping.is_quiet()
    }

    /// Gives the memory of a freed block back at once, and with it all that the program did to its
    /// pages.
    pub(crate) fn unmap_freed_blocks(&self) {
        self.is_unmapping.store(true, Relaxed);
    }

    /// Notes a limit on addresses that the program has set (`RLIMIT_AS`), for when the system may not be
    /// asked any more, and heeds it. `u64::MAX` is none.
    pub(crate) fn hear_address_limit(&self, bytes: u64) {
        self.mapping.hear_address_limit(bytes);
        self.expect_address_limit(bytes);
    }

    /// Gives reserved addresses up for a limit that the program is about to set. The range keeps
    /// [`PART_OF_NEW_LIMIT`] of it, or what blocks have. `u64::MAX` is no limit.
    ///
    /// While another thread forks it waits for that, [`MOST_WAITS`] milliseconds at most, since the program may
    /// hold a lock that a fork handler awaits; then it is done when the fork is.
    pub(crate) fn expect_address_limit(&self, bytes: u64) {
        if bytes == u64::MAX || !self.is_there() {
            return;
        }
        let most = usize::try_from(bytes / PART_OF_NEW_LIMIT).unwrap_or(usize::MAX);
        let nobody = AtomicU32::new(0);
        for _ in 0..MOST_WAITS {
            if self.try_shorten(most).is_some() {
                return;
            }
            system::wait(&nobody, 0, Some(Duration::from_millis(1)));
        }
        self.deferred.shorten(most);
    }

    /// Heeds limits that the program may have set since the last call.
    pub(crate) fn heed_limits(&self) {
        self.heed_data_limit();
        self.heed_address_limit();
    }

    /// Gives the memory of freed blocks back at once if the process may have so many bytes of data
    /// only (`RLIMIT_DATA`): what is cached would count, and the C library's `brk` be refused.
    fn heed_data_limit(&self) {
        let is_unmapping = self.is_unmapping.load(Relaxed);
        let is_limited =
            || !self.is_quiet() && system::data_limit_bytes().is_some() && !is_vfork_child();
        if !is_unmapping && is_limited() {
            self.unmap_freed_blocks();
            self.trim(usize::MAX);
        }
    }

    /// Gives reserved addresses up if the process may have few (`RLIMIT_AS`): the range keeps as many as
    /// one that begins under this limit, or those that blocks have.
    pub(crate) fn heed_address_limit(&self) {
        if self.is_there()
            && let Some(limit) = self.mapping.address_limit()
            && self.range.bytes.load(Relaxed) > Space::most_under(limit)
        {
            self.shorten(Space::most_under(limit));
        }
    }

    /// Gives up all reserved addresses that no block has, if the process may have few. Returns whether
    /// there were any.
    pub(crate) fn give_up_addresses(&self) -> bool {
        self.is_there() && self.mapping.address_limit().is_some() && self.shorten(0)
    }

    /// Shortens the range to so many bytes, or those that blocks have. Returns whether it did: not in a child
    /// of `vfork`, whose limits are its own, and whose memory is its parent's.
    fn shorten(&self, most: usize) -> bool {
        !is_vfork_child() && self.try_shorten(most).unwrap_or(false)
    }

    /// Does what [`Pages::shorten`] does in any process. `None` if another thread forks.
    fn try_shorten(&self, most: usize) -> Option<bool> {
        if self.range.bytes.load(Relaxed) <= most {
            return Some(false);
        }
        self.enter(|inside| self.shorten_inside(inside, most))
    }

    pub(super) fn shorten_inside(&self, inside: &mut Heap, most: usize) -> bool {
        inside.shorten(most, |bytes| self.range.bytes.store(bytes, Release))
    }

    /// Permits the system to take the memory of blocks that are freed from now on when it is short,
    /// while these pages have more than `bytes` bytes.
    pub(crate) fn lend_from(&self, bytes: u64) {
        self.lends_from.store(bytes / PAGE as u64, Relaxed);
    }

    /// Limits the addresses that are reserved. Has no effect after the first request.
    pub(crate) fn reserve_at_most(&self, bytes: usize) {
        self.most.store(bytes, Relaxed);
    }
}
