//! A lock that is held during a fork, so that the child finds the value consistent.
//!
//! Only a thread that forks too waits for a lock that is held for a fork. The C library takes its
//! own locks for a fork after this one, such as that of the list of files, and a thread that has
//! one of them may allocate.
#![expect(unsafe_code, reason = "a lock hands out what it guards")]

use crate::sync::atomic::{
    AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use crate::system;
use pool_core::forks;
use std::cell::UnsafeCell;

/// Looks at a held lock before the thread sleeps.
const LOOKS: u32 = 256;

// The states of the lock (Drepper, "Futexes Are Tricky", 2011).
const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may sleep until it is free.
const AWAITED: u32 = 2;

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
    /// [`FREE`], [`HELD`] or [`AWAITED`].
    state: AtomicU32,
    /// Number of the thread that holds the lock during a fork; [`NOBODY`] otherwise. In the child
    /// it remains until `in_child` runs there. That thread may enter meanwhile, because other fork
    /// handlers allocate. [`LOST`] in a child that can never have the lock.
    forking: AtomicUsize,
    /// Forks that the thread which forks makes in its fork handlers, one inside the other.
    nested: AtomicUsize,
    /// [`forks`] when a thread last entered; 0 before.
    generation: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock reaches the value, in `enter` and `after_fork`;
// `T: Send` permits that it is another thread each time.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    /// Creates an unlocked value.
    pub(crate) const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            forking: AtomicUsize::new(NOBODY),
            nested: AtomicUsize::new(0),
            generation: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `work` on the value under the lock. Returns `None`, without waiting, if another thread
    /// holds the lock for a fork. `work` must not enter the lock again and must not panic: the lock
    /// would stay held.
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.note_process();
        let hold = if self.try_hold() { Hold::Taken } else { self.wait()? };
        // SAFETY: this thread holds the lock: it took it above and releases it below, or it took it
        // in `before_fork` and releases it in `after_fork`. So no other thread refers to the value.
        // No other reference of this thread exists, because `work` does not enter again.
        let result = work(unsafe { &mut *self.value.get() });
        if hold == Hold::Taken {
            self.release();
        }
        Some(result)
    }

    /// Notes that threads of this process enter.
    #[inline]
    fn note_process(&self) {
        let generation = forks();
        if self.generation.load(Acquire) != generation {
            self.enter_process(generation);
        }
    }

    /// In a child that no handler of a fork has seen, a lock that is held is lost: the thread that
    /// had it is not here.
    #[cold]
    fn enter_process(&self, generation: u32) {
        let before = self.generation.load(Acquire);
        // Before the exchange: the threads of this process take the lock after it.
        let is_held = self.state.load(Acquire) != FREE
            && self.forking.load(Relaxed) != system::thread_identity();
        let is_first =
            self.generation.compare_exchange(before, generation, AcqRel, Relaxed).is_ok();
        if before != 0 && before != generation && is_first && is_held {
            self.forking.store(LOST, Relaxed);
        }
    }

    /// Tries to take the lock. Returns whether it did; it may fail spuriously.
    fn try_hold(&self) -> bool {
        self.state.compare_exchange_weak(FREE, HELD, Acquire, Relaxed).is_ok()
    }

    /// Frees the lock, and wakes a thread that sleeps until then.
    fn release(&self) {
        if self.state.swap(FREE, Release) == AWAITED {
            system::wake(&self.state, 1);
        }
    }

    /// Waits for the lock and takes it, unless this thread already holds it for a fork. Returns
    /// `None`, without waiting, if another thread does.
    #[cold]
    fn wait(&self) -> Option<Hold> {
        let own = system::thread_identity();
        for _ in 0..LOOKS {
            if self.try_hold() {
                return Some(Hold::Taken);
            }
            match self.forking.load(Relaxed) {
                NOBODY => std::hint::spin_loop(),
                forking => return (forking == own).then_some(Hold::ForFork),
            }
        }
        // AcqRel: a thread that reads the state which `before_fork` left sees who forks.
        while self.state.swap(AWAITED, AcqRel) != FREE {
            match self.forking.load(Relaxed) {
                NOBODY => system::wait(&self.state, AWAITED, None),
                forking => return (forking == own).then_some(Hold::ForFork),
            }
        }
        Some(Hold::Taken)
    }

    /// Takes the lock before a fork, for the calling thread. Waits for forks of other threads.
    pub(crate) fn before_fork(&self) {
        self.note_process();
        let own = system::thread_identity();
        // Only the first try may leave the state HELD: later, others may sleep.
        let is_held = self.try_hold();
        while !is_held && self.state.swap(AWAITED, AcqRel) != FREE {
            match self.forking.load(Relaxed) {
                LOST => return,
                forking if forking == own => {
                    // A fork handler of this thread forks.
                    self.nested.fetch_add(1, Relaxed);
                    return;
                }
                _ => system::wait(&self.state, AWAITED, None),
            }
        }
        self.forking.store(own, Relaxed);
        // Whoever was about to sleep finds another state, and then who forks.
        if self.state.swap(HELD, AcqRel) == AWAITED {
            system::wake(&self.state, i32::MAX);
        }
    }

    /// Runs `work` on the value, and releases the lock after a fork, in parent and child. Does
    /// nothing if this thread did not take it, which happens if the handlers were registered, or
    /// the value was made known to them, during the fork.
    pub(crate) fn after_fork(&self, work: impl FnOnce(&mut T)) {
        if self.forking.load(Relaxed) != system::thread_identity() {
            return;
        }
        if self.nested.load(Relaxed) > 0 {
            self.nested.fetch_sub(1, Relaxed);
        } else {
            // SAFETY: this thread took the lock in `before_fork` and releases it below, so no other
            // thread refers to the value. This thread is in no `work`.
            work(unsafe { &mut *self.value.get() });
            self.forking.store(NOBODY, Relaxed);
            self.release();
        }
    }

    /// Does what [`ForkLock::after_fork`] does, in the child. If another thread of the parent had
    /// the lock, no thread of the child ever gets it.
    pub(crate) fn in_child(&self, work: impl FnOnce(&mut T)) {
        self.generation.store(forks(), Relaxed);
        if self.forking.load(Relaxed) == system::thread_identity() {
            self.after_fork(work);
        } else if self.state.load(Relaxed) != FREE {
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
