//! Atomics and a lock, from the standard library, or from loom and shuttle where the protocols are
//! modelled.
#![expect(unsafe_code, reason = "a lock hands out what it guards")]

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic;

#[cfg(not(loom))]
use std::cell::UnsafeCell;

use atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::fmt;

/// Defines a constructor that is `const`, so that a `static` can hold the value; under loom, whose
/// atomics are made at run time, it is a plain function.
macro_rules! const_unless_loom {
    ($(#[$note:meta])* $vis:vis fn $name:ident($($args:tt)*) -> $of:ty $body:block) => {
        #[cfg(not(loom))]
        $(#[$note])* $vis const fn $name($($args)*) -> $of $body
        #[cfg(loom)]
        $(#[$note])* $vis fn $name($($args)*) -> $of $body
    };
}
pub(crate) use const_unless_loom;

/// A value behind a lock that nobody waits for without end: who finds it held for too long goes
/// another way. So a child process that was forked while it was held loses what is behind it, and
/// nothing more.
pub(crate) struct TryLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

/// A model tries every order anyway.
const MODELLED: bool = cfg!(any(loom, shuttle));
/// Looks at a lock that is held, before the thread that holds it is let run.
const LOOKS: u32 = 64;
/// How often it is let run.
const TURNS: u32 = 8;

impl<T> TryLock<T> {
    const_unless_loom! {
        pub(crate) fn new(value: T) -> Self {
            Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }
    }

    /// Works on the value, if the lock can be had. A re-entrant call gets `None`.
    #[inline]
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        if !self.try_hold() && !self.wait() {
            return None;
        }
        #[cfg(not(loom))]
        // SAFETY: an exchange found the flag down and put it up, so nobody else is here until it is
        // put down below. If `work` unwinds it stays up, and nobody comes here again.
        let result = work(unsafe { &mut *self.value.get() });
        #[cfg(loom)]
        // SAFETY: as above, and loom checks it.
        let result = self.value.with_mut(|value| work(unsafe { &mut *value }));
        self.held.store(false, Release);
        Some(result)
    }

    #[inline]
    fn try_hold(&self) -> bool {
        self.held.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

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

// SAFETY: the value is reached through `enter` only, by one thread at a time.
unsafe impl<T: Send> Sync for TryLock<T> {}
