//! A lock that is held during a fork, so that the child finds the value consistent.
//!
//! Only a thread that forks too waits for a lock that is held for a fork. The C library takes its
//! own locks for a fork after this one, such as that of the list of files, and a thread that has
//! one of them may allocate.
#![expect(unsafe_code, reason = "a lock hands out what it guards")]

use crate::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use crate::system;
use std::cell::UnsafeCell;

/// Looks at a held lock before the first yield of the processor.
const LOOKS: u32 = 64;
/// Yields before the thread sleeps. Without sleep, a waiting thread of higher priority could keep
/// the thread that holds the lock from ever running on the same processor.
const TURNS: u32 = 64;
/// Duration of one sleep in nanoseconds.
const SLEEP_NS: i64 = 50_000;

/// Thread number that stands for no thread.
const NOBODY: usize = 0;
/// Thread number that stands for a thread of the parent, which had the lock and is not in the
/// child.
const LOST: usize = usize::MAX;

/// A value behind a lock that does not allocate.
///
/// Waiting for a thread that does not fork has no bound, so no code under the lock may call the
/// program.
#[derive(Debug)]
pub(crate) struct ForkLock<T> {
    held: AtomicBool,
    /// Number of the thread that holds the lock during a fork; [`NOBODY`] otherwise. In the child
    /// it remains until `in_child` runs there. That thread may enter meanwhile, because other fork
    /// handlers allocate. [`LOST`] in a child that can never have the lock.
    forking: AtomicUsize,
    /// Forks that the thread which forks makes in its fork handlers, one inside the other.
    nested: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock reaches the value, in `enter` and `after_fork`;
// `T: Send` permits that it is another thread each time.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    /// Creates an unlocked value.
    pub(crate) const fn new(value: T) -> Self {
        let (forking, nested) = (AtomicUsize::new(NOBODY), AtomicUsize::new(0));
        Self { held: AtomicBool::new(false), forking, nested, value: UnsafeCell::new(value) }
    }

    /// Runs `work` on the value under the lock. Returns `None`, without waiting, if another thread
    /// holds the lock for a fork. `work` must not enter the lock again and must not panic: the lock
    /// would stay held.
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let hold = if self.try_hold() { Hold::Taken } else { self.wait()? };
        // SAFETY: this thread holds the lock: it took it above and releases it below, or it took it
        // in `before_fork` and releases it in `after_fork`. So no other thread refers to the value.
        // No other reference of this thread exists, because `work` does not enter again.
        let result = work(unsafe { &mut *self.value.get() });
        if hold == Hold::Taken {
            self.held.store(false, Release);
        }
        Some(result)
    }

    /// Tries to take the lock. Returns whether it did; it may fail spuriously.
    fn try_hold(&self) -> bool {
        self.held.compare_exchange_weak(false, true, Acquire, Relaxed).is_ok()
    }

    /// Waits for the lock and takes it, unless this thread already holds it for a fork. Returns
    /// `None`, without waiting, if another thread does.
    #[cold]
    fn wait(&self) -> Option<Hold> {
        let (own, mut looks) = (own_number(), 0_u32);
        loop {
            if self.try_hold() {
                return Some(Hold::Taken);
            }
            match self.forking.load(Relaxed) {
                NOBODY => pause(&mut looks),
                forking => return (forking == own).then_some(Hold::ForFork),
            }
        }
    }

    /// Takes the lock before a fork, for the calling thread. Waits for forks of other threads.
    pub(crate) fn before_fork(&self) {
        let (own, mut looks) = (own_number(), 0);
        while !self.try_hold() {
            match self.forking.load(Relaxed) {
                LOST => return,
                forking if forking == own => {
                    // A fork handler of this thread forks.
                    self.nested.fetch_add(1, Relaxed);
                    return;
                }
                _ => pause(&mut looks),
            }
        }
        self.forking.store(own, Relaxed);
    }

    /// Runs `work` on the value, and releases the lock after a fork, in parent and child. Does
    /// nothing if this thread did not take it, which happens if the handlers were registered, or
    /// the value was made known to them, during the fork.
    pub(crate) fn after_fork(&self, work: impl FnOnce(&mut T)) {
        if self.forking.load(Relaxed) != own_number() {
            return;
        }
        if self.nested.load(Relaxed) > 0 {
            self.nested.fetch_sub(1, Relaxed);
        } else {
            // SAFETY: this thread took the lock in `before_fork` and releases it below, so no other
            // thread refers to the value. This thread is in no `work`.
            work(unsafe { &mut *self.value.get() });
            self.forking.store(NOBODY, Relaxed);
            self.held.store(false, Release);
        }
    }

    /// Does what [`ForkLock::after_fork`] does, in the child. If another thread of the parent had
    /// the lock, no thread of the child ever gets it.
    pub(crate) fn in_child(&self, work: impl FnOnce(&mut T)) {
        if self.forking.load(Relaxed) == own_number() {
            self.after_fork(work);
        } else if self.held.load(Relaxed) {
            self.forking.store(LOST, Relaxed);
        }
    }
}

/// How a thread holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// It took the lock, and releases it after its work.
    Taken,
    /// It forks, and releases the lock after that.
    ForFork,
}

/// Waits for a moment, the longer the more `looks` there were.
fn pause(looks: &mut u32) {
    *looks = looks.saturating_add(1);
    match *looks {
        ..=LOOKS => std::hint::spin_loop(),
        looks if looks <= LOOKS + TURNS => std::thread::yield_now(),
        _ => sleep(),
    }
}

/// Returns a number of this thread. The thread's copy in a forked child has the same number.
fn own_number() -> usize {
    // SAFETY: `pthread_self` has no preconditions.
    let number = unsafe { libc::pthread_self() };
    usize::try_from(number).unwrap_or(NOBODY)
}

/// Sleeps for [`SLEEP_NS`] nanoseconds, or until a signal arrives.
fn sleep() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: SLEEP_NS };
    let rest = std::ptr::null_mut::<libc::timespec>();
    // Not the function `nanosleep`: a thread that is to be cancelled would end in it, and `malloc`
    // must not end a thread.
    // SAFETY: `time` is a valid `timespec` during the call, and the second pointer may be null.
    let sleep = || unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, rest) };
    system::keeping_errno(sleep);
}
