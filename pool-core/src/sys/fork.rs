//! A pool after a fork. A child has the memory of its parent, but only the thread that forked: a
//! lock that another thread held stays locked for ever.
//!
//! In each child, the first call of a pool that could block checks the pool's locks once. If none
//! is held, the pool works in the child. Otherwise this call and all later ones fail with
//! [`Why::Forked`](crate::Why::Forked).

use crate::sys::process::{forks, forks_seen, watch_forks};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};

/// The answer of a pool in this process: whether it can be used.
#[derive(Debug)]
pub(crate) struct ForkCheck {
    /// The number of the process (`forks`) in which it was looked at last; [`UNUSABLE`] if it cannot be
    /// used here.
    forks_at_check: AtomicU32,
}

/// The maximum number of checks whether a lock is held, since a living thread may hold it for a
/// moment.
const MAX_LOCK_CHECKS: u32 = 100;
/// A lock was held when the process was forked.
const UNUSABLE: u32 = u32::MAX;

impl ForkCheck {
    pub(crate) fn new() -> Self {
        watch_forks();
        Self { forks_at_check: AtomicU32::new(forks()) }
    }

    /// Whether it was looked at in this process, and the pool can be used.
    #[inline]
    pub(crate) fn is_known_usable(&self) -> bool {
        self.forks_at_check.load(Acquire) == forks_seen()
    }

    /// Returns whether the pool cannot be used in this process. `is_held` returns whether any lock
    /// of the pool is held now. It is called in a child only, until the result is stored.
    #[inline]
    pub(crate) fn is_unusable_after_fork(&self, is_held: impl Fn() -> bool) -> bool {
        // Read once: an answer that another thread stores meanwhile stands.
        let forks_at_check = self.forks_at_check.load(Acquire);
        forks_at_check != forks_seen() && self.check(forks_at_check, is_held)
    }

    #[cold]
    fn check(&self, forks_at_check: u32, is_held: impl Fn() -> bool) -> bool {
        if forks_at_check == UNUSABLE {
            return true;
        }
        // A living thread releases a lock in a moment.
        let is_held = || {
            std::thread::yield_now();
            is_held()
        };
        let now = if (0..MAX_LOCK_CHECKS).all(|_| is_held()) { UNUSABLE } else { forks() };
        // Other locks are taken only after the answer is stored, and the first answer stands.
        match self.forks_at_check.compare_exchange(forks_at_check, now, Release, Acquire) {
            Ok(_) => now == UNUSABLE,
            Err(stored) => stored == UNUSABLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_looked_at_once_in_each_child() {
        let of_parent = || ForkCheck { forks_at_check: AtomicU32::new(forks() + 1) };
        let check = of_parent();
        assert!(!check.is_unusable_after_fork(|| false));
        assert!(
            !check.is_unusable_after_fork(|| true),
            "a lock that is held now is held by a living thread"
        );
        let check = of_parent();
        assert!(check.is_unusable_after_fork(|| true));
        assert!(check.is_unusable_after_fork(|| false), "nobody will give it up");
    }
}
