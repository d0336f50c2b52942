//! Atomics and the mutex of the biased lock: the processor's, or those that loom and shuttle know.

#[cfg(any(loom, shuttle))]
use crate::checker::sync;
#[cfg(any(loom, shuttle))]
pub(super) use crate::checker::sync::atomic::{AtomicBool, fence};
#[cfg(not(any(loom, shuttle)))]
pub(super) use crate::sys::atomic::{AtomicBool, fence};
#[cfg(any(loom, shuttle))]
pub(super) use modelled::*;
#[cfg(not(any(loom, shuttle)))]
use std::sync;
use std::sync::{PoisonError, TryLockError};

/// A mutex whose threads sleep without a table that all mutexes share: in a child of `fork` a lock
/// of that table could be held by a thread that is not there.
pub(super) struct Mutex<T>(sync::Mutex<T>, crate::sys::Word);
pub(super) type MutexGuard<'l, T> = sync::MutexGuard<'l, T>;

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value), crate::sys::Word::NEW)
    }

    pub(super) fn is_locked(&self) -> bool {
        matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.1.written();
        guard
    }
}

/// Keeps the compiler from moving the owner's load before its store. The processor may still, until
/// another thread's barrier.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(super) fn owners_fence() {
    sync::atomic::compiler_fence(sync::atomic::Ordering::SeqCst);
}

/// Looks before others are let run.
#[cfg(not(any(loom, shuttle)))]
const LOOKS: u32 = 64;

/// Waits for a moment: the owner is inside for a few dozen instructions, unless it was preempted.
#[cfg(not(any(loom, shuttle)))]
pub(super) fn pause(looks: &mut u32) {
    *looks += 1;
    if looks.is_multiple_of(LOOKS) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

/// A checker has no barrier that reaches other threads. One fence on each side has the same
/// outcomes.
#[cfg(any(loom, shuttle))]
mod modelled {
    use std::sync::atomic::Ordering::SeqCst;

    pub(in super::super) fn owners_fence() {
        checker::sync::atomic::fence(SeqCst);
    }

    pub(in super::super) fn pause(_looks: &mut u32) {
        checker::thread::yield_now();
    }
}
