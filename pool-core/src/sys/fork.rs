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
/// A thread of the process with the rest of the number looks. In a child of that process no such thread is.
const LOOKING: u32 = 1 << 31;

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
        !self.is_known_usable() && self.check(is_held)
    }

    /// One thread looks, and the others wait for its answer: a look itself may hold a lock for a moment.
    #[cold]
    fn check(&self, is_held: impl Fn() -> bool) -> bool {
        let here = forks();
        loop {
            let seen = self.forks_at_check.load(Acquire);
            if seen == here || seen == UNUSABLE {
                return seen == UNUSABLE;
            }
            let looks =
                || self.forks_at_check.compare_exchange(seen, here | LOOKING, Acquire, Acquire);
            if seen != here | LOOKING && looks().is_ok() {
                break;
            }
            std::thread::yield_now();
        }
        // A living thread releases a lock in a moment.
        let is_held = || {
            std::thread::yield_now();
            is_held()
        };
        // Other locks are taken only after the answer is stored.
        let answer = if (0..MAX_LOCK_CHECKS).all(|_| is_held()) { UNUSABLE } else { here };
        self.forks_at_check.store(answer, Release);
        answer == UNUSABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

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
        check.forks_at_check.store((forks() + 1) | LOOKING, Release); // by a thread of the parent
        assert!(!check.is_unusable_after_fork(|| false));
        let check = of_parent();
        assert!(check.is_unusable_after_fork(|| true));
        assert!(check.is_unusable_after_fork(|| false), "nobody will give it up");
    }

    /// A look may hold a lock itself: it tries that of private pools.
    #[test]
    fn a_thread_that_looks_is_not_taken_for_a_lock_that_is_held() {
        let check = ForkCheck { forks_at_check: AtomicU32::new(forks() + 1) };
        let [looks, other_asks] = [const { AtomicBool::new(false) }; 2];
        let until = |flag: &AtomicBool| {
            while !flag.load(Acquire) {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let is_unusable = check.is_unusable_after_fork(|| {
                    looks.store(true, Release);
                    until(&other_asks);
                    (0..1000).for_each(|_| thread::yield_now());
                    false
                });
                assert!(!is_unusable);
            });
            until(&looks);
            other_asks.store(true, Release);
            assert!(!check.is_unusable_after_fork(|| true), "it has the answer of the first");
        });
    }
}
