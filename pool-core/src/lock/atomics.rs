//! Atomics and the mutex of the biased lock: the processor's, or those that loom knows.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicBool, fence};
#[cfg(loom)]
pub(super) use modelled::*;
#[cfg(not(loom))]
pub(super) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, fence};

/// Keeps the compiler from moving the owner's load before its store. The processor may still, until
/// another thread's barrier.
#[cfg(not(loom))]
#[inline]
pub(super) fn owners_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Looks before others are let run.
#[cfg(not(loom))]
const LOOKS: u32 = 64;

/// Waits for a moment: the owner is inside for a few dozen instructions, unless it was preempted.
#[cfg(not(loom))]
pub(super) fn pause(looks: &mut u32) {
    *looks += 1;
    if looks.is_multiple_of(LOOKS) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

/// Loom has no barrier that reaches other threads. One fence on each side has the same outcomes.
#[cfg(loom)]
mod modelled {
    use std::sync::PoisonError;
    use std::sync::atomic::Ordering::SeqCst;

    pub(in super::super) use loom::sync::MutexGuard;

    pub(in super::super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(in super::super) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
        pub(in super::super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    pub(in super::super) fn owners_fence() {
        loom::sync::atomic::fence(SeqCst);
    }

    pub(in super::super) fn pause(_looks: &mut u32) {
        loom::thread::yield_now();
    }
}
