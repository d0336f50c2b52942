//! The lock of the pages: it is held over a fork, so a child finds what it guards whole.
#![expect(unsafe_code, reason = "a lock hands out what it guards")]

use std::cell::UnsafeCell;
use std::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Looks at a lock that is held, before the thread that holds it is let run.
const LOOKS: u32 = 64;
/// How often it is let run, before this thread sleeps: a thread of higher priority, on the same
/// processor, would keep it from running for ever.
const TURNS: u32 = 64;
/// For so long.
const SLEEP_NS: i64 = 50_000;

/// No thread.
const NOBODY: usize = 0;

/// A value behind a lock that does not allocate. Waiting has no end, so nothing under it may call
/// the program.
#[derive(Debug)]
pub(super) struct ForkLock<T> {
    held: AtomicBool,
    /// The thread that holds it over a fork, also in the child, before the handler that gives it up
    /// has run. What other handlers of the fork allocate comes in.
    forking: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through `enter` only, by one thread at a time.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    pub(super) const fn new(value: T) -> Self {
        let (held, forking) = (AtomicBool::new(false), AtomicUsize::new(NOBODY));
        Self { held, forking, value: UnsafeCell::new(value) }
    }

    /// Works on the value. The work does not come here again.
    pub(super) fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let is_forking = !self.try_hold() && self.wait();
        // SAFETY: this thread took the lock, here or before the fork that it is in the middle of,
        // and gives it up below or after that fork.
        let result = work(unsafe { &mut *self.value.get() });
        if !is_forking {
            self.held.store(false, Release);
        }
        result
    }

    fn try_hold(&self) -> bool {
        self.held.compare_exchange_weak(false, true, Acquire, Relaxed).is_ok()
    }

    /// Takes the lock, unless this thread holds it over a fork: true if so.
    #[cold]
    fn wait(&self) -> bool {
        let (own, mut looks) = (own_number(), 0_u32);
        loop {
            if self.try_hold() {
                return false;
            }
            if self.forking.load(Relaxed) == own {
                return true;
            }
            looks = looks.saturating_add(1);
            match looks {
                ..=LOOKS => std::hint::spin_loop(),
                _ if looks <= LOOKS + TURNS => std::thread::yield_now(),
                _ => sleep(),
            }
        }
    }

    /// Takes the lock before a fork.
    pub(super) fn before_fork(&self) {
        if !self.try_hold() {
            self.wait();
        }
        self.forking.store(own_number(), Relaxed);
    }

    /// Gives it up after that, in parent and child; nothing if this thread did not take it, since
    /// the handlers were registered in the middle of a fork.
    pub(super) fn after_fork(&self) {
        if self.forking.load(Relaxed) == own_number() {
            self.forking.store(NOBODY, Relaxed);
            self.held.store(false, Release);
        }
    }
}

/// A number of this thread that its copy in a forked child has as well.
fn own_number() -> usize {
    // SAFETY: asks for a number.
    let number = unsafe { libc::pthread_self() };
    usize::try_from(number).unwrap_or(NOBODY)
}

fn sleep() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: SLEEP_NS };
    // SAFETY: reads the time, and need not tell what is left of it.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}
