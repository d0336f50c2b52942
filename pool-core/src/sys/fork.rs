//! Forks of the process. A child has the memory of its parent, and of the threads only the one that
//! forked: what another thread had locked stays locked for ever.
//!
//! A pool is looked at once in each child, by the first call that could wait: if no lock of it is
//! held it works, else that call and all later ones say [`Why::Forked`](crate::Why::Forked).
#![cfg_attr(
    all(unix, not(any(miri, loom, shuttle))),
    expect(unsafe_code, reason = "the system calls back around a fork")
)]

use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Forks between the process that first made a pool and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the process that first called this, or made a pool, and this one. A
/// backend whose memory or handles do not survive a fork compares it with what it was when they
/// were made.
///
/// A child that is made without the C library's `fork` (a bare `clone`) is not noticed.
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Relaxed)
}

/// From now on forks are counted.
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub fn watch_forks() {
    use std::sync::atomic::AtomicBool;

    extern "C" fn in_child() {
        FORKS.fetch_add(1, Relaxed);
    }
    // Once, and without a lock, which could be held for ever in a child.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Relaxed) {
        // SAFETY: registers a function that adds to a word, which is legal in a forked child. If
        // the system refuses for want of memory, a fork is not noticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// Nothing forks here, or the system cannot say so.
#[cfg(not(all(unix, not(any(miri, loom, shuttle)))))]
pub fn watch_forks() {}

/// The answer of a pool in this process: whether it can be used.
#[derive(Debug)]
pub(crate) struct ForkCheck {
    /// The number of forks when it was looked at last; [`BROKEN`] if it cannot be used here.
    looked_at: AtomicU32,
}

/// How often a lock is looked at that may be a living thread's.
const LOOKS: u32 = 100;
/// A lock was held when the process was forked.
const BROKEN: u32 = u32::MAX;

impl ForkCheck {
    pub(crate) fn new() -> Self {
        watch_forks();
        Self { looked_at: AtomicU32::new(forks()) }
    }

    /// Whether the pool cannot be used in this process. `is_held`: whether any of its locks is held
    /// now; asked for in each child until there is an answer.
    #[inline]
    pub(crate) fn is_broken(&self, is_held: impl Fn() -> bool) -> bool {
        let looked_at = self.looked_at.load(Acquire);
        looked_at != forks() && self.look(looked_at, is_held)
    }

    #[cold]
    fn look(&self, looked_at: u32, is_held: impl Fn() -> bool) -> bool {
        if looked_at == BROKEN {
            return true;
        }
        // What a living thread holds, in its own cache, it gives up in a moment.
        let is_held = || {
            std::thread::yield_now();
            is_held()
        };
        let now = if (0..LOOKS).all(|_| is_held()) { BROKEN } else { forks() };
        // Other locks are taken only after the answer is stored, and the first answer stands.
        match self.looked_at.compare_exchange(looked_at, now, Release, Acquire) {
            Ok(_) => now == BROKEN,
            Err(stored) => stored == BROKEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_looked_at_once_in_each_child() {
        let of_parent = || ForkCheck { looked_at: AtomicU32::new(forks() + 1) };
        let check = of_parent();
        assert!(!check.is_broken(|| false));
        assert!(!check.is_broken(|| true), "a lock that is held now is held by a living thread");
        let check = of_parent();
        assert!(check.is_broken(|| true));
        assert!(check.is_broken(|| false), "nobody will give it up");
    }
}
