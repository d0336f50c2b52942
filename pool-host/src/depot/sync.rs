//! Atomics and a try-lock, built on the standard library, or on loom or shuttle in their models.
#![expect(unsafe_code, reason = "a lock hands out what it guards")]

#[cfg(not(any(loom, shuttle)))]
pub(crate) use crate::sync::atomic;
#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;

#[cfg(not(loom))]
use std::cell::UnsafeCell;

use atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::fmt;

/// Defines a constructor that is `const`, so that a `static` can hold the value.
///
/// Under loom, whose atomics are created at run time, the constructor is not `const`.
macro_rules! const_unless_loom {
    ($(#[$note:meta])* $vis:vis fn $name:ident($($args:tt)*) -> $of:ty $body:block) => {
        #[cfg(not(loom))]
        $(#[$note])* $vis const fn $name($($args)*) -> $of $body
        #[cfg(loom)]
        $(#[$note])* $vis fn $name($($args)*) -> $of $body
    };
}
pub(crate) use const_unless_loom;

/// A value behind a lock for which no thread waits without bound.
///
/// A caller that finds the lock held for too long gets `None`. If a process forks while a thread
/// holds the lock, the child loses access to the value but does not deadlock.
pub(crate) struct TryLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

/// True in a model. A model explores the interleavings itself, so one look and one turn suffice.
const MODELLED: bool = cfg!(any(loom, shuttle));
/// Looks at a held lock before each yield of the processor.
const LOOKS: u32 = 64;
/// Yields before [`TryLock::enter`] gives up.
const TURNS: u32 = 8;

impl<T> TryLock<T> {
    const_unless_loom! {
        /// Creates an unlocked value.
        pub(crate) fn new(value: T) -> Self {
            Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }
    }

    /// Runs `work` on the value under the lock. Returns `None` if the lock is held for too long, as
    /// it is for a re-entrant call. If `work` panics, the lock stays held.
    #[inline]
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        if !self.try_hold() && !self.wait() {
            return None;
        }
        #[cfg(not(loom))]
        // SAFETY: this thread's compare-exchange changed `held` from false to true, so no other
        // thread refers to the value until the store below. If `work` unwinds, `held` stays true,
        // and no thread refers to the value again. Acquire and Release order the accesses of
        // threads.
        let result = work(unsafe { &mut *self.value.get() });
        #[cfg(loom)]
        // SAFETY: as above; loom checks that no access is concurrent.
        let result = self.value.with_mut(|value| work(unsafe { &mut *value }));
        self.held.store(false, Release);
        Some(result)
    }

    /// Takes the lock if it is free. Returns whether it did.
    #[inline]
    fn try_hold(&self) -> bool {
        self.held.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    /// Waits for the lock and takes it. Returns false after a bounded number of looks and yields.
    #[cold]
    fn wait(&self) -> bool {
        for _ in 0..if MODELLED { 1 } else { TURNS } {
            for _ in 0..if MODELLED { 1 } else { LOOKS } {
                if !self.held.load(Relaxed) && self.try_hold() {
                    return true;
                }
                std::hint::spin_loop();
            }
            #[cfg(not(any(loom, shuttle)))]
            std::thread::yield_now();
        }
        false
    }
}

impl<T> fmt::Debug for TryLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryLock").finish_non_exhaustive()
    }
}

// SAFETY: only `enter` reaches the value, for one thread at a time; `T: Send` permits that it is
// another thread each time.
unsafe impl<T: Send> Sync for TryLock<T> {}
