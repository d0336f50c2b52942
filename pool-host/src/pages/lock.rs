//! A lock that is held during a fork, so that the child finds the value consistent.
//!
//! Only a thread that forks too waits for a lock that is held for a fork. The C library takes its
//! own locks for a fork after this one, such as that of the list of files, and a thread that has
//! one of them may allocate.
#![expect(unsafe_code, reason = "a lock hands out what it guards")]

mod gate;

pub(crate) use gate::Gate;

use crate::sync::atomic::{
    AtomicU32, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::SeqCst,
};
use crate::system;
use pool_core::forks;
use std::cell::UnsafeCell;

/// Looks at a held lock before the thread sleeps.
const LOOKS: u32 = 256;

/// Owner of a lock that is free.
const NOBODY: usize = 0;
/// Added to the number of a thread that holds the lock for a fork. Numbers of threads are even.
const FORKS: usize = 1;
/// Owner that stands for a thread of the parent, which had the lock and is not in the child. It has
/// the bit of [`FORKS`], so that no thread waits for it.
const LOST: usize = usize::MAX;

/// A value behind a lock that does not allocate.
///
/// Waiting for a thread that does not fork has no bound, so no code under the lock may call the
/// program.
///
/// A signal handler may fork while its own thread is inside. The handler's requests are refused then,
/// in the child too, where the interrupted code goes on once the handler returns.
///
/// What a fork writes to comes last.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ForkLock<T> {
    value: UnsafeCell<T>,
    /// Number of the thread that has the lock, or [`NOBODY`]. The exchange that takes the lock
    /// stores it, so a signal handler never finds its own thread's lock without it.
    ///
    /// With [`FORKS`] while the thread holds the lock for a fork. In the child that remains until
    /// `in_child` runs there. The thread may enter meanwhile, because other fork handlers allocate.
    /// [`LOST`] in a child that can never have the lock.
    owner: AtomicUsize,
    /// Forks that the thread which forks makes in its fork handlers, one inside the other.
    nested: AtomicUsize,
    /// 1 if a thread may sleep until the owner changes. Who stores that tries to take the lock
    /// afterwards, and who frees the lock reads it afterwards, so one of the two sees the other.
    awaited: AtomicU32,
    /// [`forks`] when a thread last entered; 0 before, and in a child that a handler has seen.
    generation: AtomicU32,
}

// SAFETY: only the thread that holds the lock reaches the value, in `enter` and `after_fork`;
// `T: Send` permits that it is another thread each time.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    /// The first byte that a fork writes to, in bytes from the start.
    #[cfg(not(pool_counts))]
    pub(super) const OWNER_AT: usize = std::mem::offset_of!(Self, owner);

    /// Creates an unlocked value.
    pub(crate) const fn new(value: T) -> Self {
        Self {
            owner: AtomicUsize::new(NOBODY),
            awaited: AtomicU32::new(0),
            nested: AtomicUsize::new(0),
            generation: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `work` on the value under the lock. Returns `None`, without waiting, if another thread
    /// holds the lock for a fork, and in a signal handler that has interrupted `work` of its own
    /// thread. `work` must not enter the lock again and must not panic: the lock would stay held.
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let own = system::thread_identity();
        self.note_process(own);
        let hold = if self.try_hold(own) { Hold::Taken } else { self.wait(own)? };
        // SAFETY: this thread holds the lock: it took it above and releases it below, or it took it
        // in `before_fork` and releases it in `after_fork`. So no other thread refers to the value.
        // No other reference of this thread exists, because `work` does not enter again, and a
        // signal handler that interrupts it is refused.
        let result = work(unsafe { &mut *self.value.get() });
        if hold == Hold::Taken {
            self.release();
        }
        Some(result)
    }

    /// Notes that threads of this process enter.
    #[inline]
    fn note_process(&self, own: usize) {
        let generation = forks();
        if self.generation.load(Acquire) != generation {
            self.enter_process(generation, own);
        }
    }

    /// In a child that no handler of a fork has seen, a lock that is held is lost, unless its owner
    /// made the child: another thread is not here.
    #[cold]
    fn enter_process(&self, generation: u32, own: usize) {
        let before = self.generation.load(Acquire);
        // Before the exchange: the threads of this process take the lock after it.
        let owner = self.owner.load(Acquire);
        let is_held = owner != NOBODY && owner & !FORKS != own;
        let is_first =
            self.generation.compare_exchange(before, generation, AcqRel, Relaxed).is_ok();
        if before != 0 && before != generation && is_first && is_held {
            self.owner.store(LOST, SeqCst);
            self.wake(i32::MAX);
        }
    }

    /// Tries to take the lock. Returns whether it did; it may fail spuriously.
    fn try_hold(&self, owner: usize) -> bool {
        self.owner.compare_exchange_weak(NOBODY, owner, SeqCst, Relaxed).is_ok()
    }

    /// Frees the lock, and wakes a thread that sleeps until then.
    fn release(&self) {
        self.owner.swap(NOBODY, SeqCst);
        self.wake(1);
    }

    /// Wakes threads that sleep until the owner changes, at most so many.
    fn wake(&self, threads: i32) {
        if self.awaited.load(SeqCst) != 0 && self.awaited.swap(0, SeqCst) != 0 {
            system::wake(&self.awaited, threads);
        }
    }

    /// Waits for the lock and takes it, unless this thread already holds it for a fork. Returns
    /// `None`, without waiting, if another thread does, and if this one has it otherwise.
    #[cold]
    fn wait(&self, own: usize) -> Option<Hold> {
        let ends = |owner: usize| owner == own || owner & FORKS != 0;
        let hold = |owner: usize| (owner == own | FORKS).then_some(Hold::ForFork);
        for _ in 0..LOOKS {
            if self.try_hold(own) {
                return Some(Hold::Taken);
            }
            match self.owner.load(Relaxed) {
                owner if ends(owner) => return hold(owner),
                _ => std::hint::spin_loop(),
            }
        }
        match self.sleep(own, ends) {
            Ok(()) => Some(Hold::Taken),
            Err(owner) => hold(owner),
        }
    }

    /// Sleeps until the lock is free, and takes it for `new`.
    ///
    /// # Errors
    ///
    /// The owner, at the first for which `ends` says that to wait has no use.
    fn sleep(&self, new: usize, ends: impl Fn(usize) -> bool) -> Result<(), usize> {
        loop {
            self.awaited.store(1, SeqCst);
            match self.owner.compare_exchange(NOBODY, new, SeqCst, SeqCst) {
                Ok(_) => return Ok(()),
                Err(owner) if ends(owner) => {
                    // Who freed the lock may have woken this thread alone, before the owner had it.
                    self.wake(i32::MAX);
                    return Err(owner);
                }
                Err(_) => system::wait(&self.awaited, 1, None),
            }
        }
    }

    /// Returns whether the caller is in `work`, or in a signal handler that has interrupted `work` of
    /// its own thread.
    pub(crate) fn is_inside(&self) -> bool {
        self.owner.load(Relaxed) == system::thread_identity()
    }

    /// Takes the lock before a fork, for the calling thread. Waits for forks of other threads, and for
    /// `work` of theirs if `waits` says so.
    ///
    /// Takes nothing in a signal handler that has interrupted `work` of its own thread: to wait for
    /// that would have no end. Nor may such a handler wait for another lock under which other threads
    /// enter this one.
    pub(crate) fn before_fork(&self, waits: bool) {
        let own = system::thread_identity();
        self.note_process(own);
        if !self.try_hold(own | FORKS) {
            let ends = |owner: usize| !waits || owner & !FORKS == own || owner == LOST;
            if let Err(owner) = self.sleep(own | FORKS, ends) {
                // A fork handler of this thread forks.
                self.nested.fetch_add(usize::from(owner == own | FORKS), Relaxed);
                return;
            }
        }
        // Whoever sleeps, or was about to, finds who forks.
        self.wake(i32::MAX);
    }

    /// Runs `work` on the value, and releases the lock after a fork, in parent and child. Does
    /// nothing if this thread did not take it for the fork, which happens if the handlers were
    /// registered, or the value was made known to them, during the fork, and if a signal handler
    /// forks.
    pub(crate) fn after_fork(&self, work: impl FnOnce(&mut T)) {
        let own = system::thread_identity();
        if self.owner.load(Relaxed) != own | FORKS {
            return;
        }
        if self.nested.load(Relaxed) > 0 {
            self.nested.fetch_sub(1, Relaxed);
        } else {
            // A signal handler that forks meanwhile must not enter.
            self.owner.store(own, Relaxed);
            // SAFETY: this thread took the lock in `before_fork` and releases it below, so no other
            // thread refers to the value. This thread is in no `work`.
            work(unsafe { &mut *self.value.get() });
            self.release();
        }
    }

    /// Does what [`ForkLock::after_fork`] does, in the child. If another thread of the parent had
    /// the lock, no thread of the child ever gets it.
    pub(crate) fn in_child(&self, work: impl FnOnce(&mut T)) {
        // No thread of this process has entered. To ask for the number of the process would copy a page.
        self.generation.store(0, Relaxed);
        let (own, owner) = (system::thread_identity(), self.owner.load(Relaxed));
        if owner == own | FORKS {
            self.after_fork(work);
        } else if owner != NOBODY && owner != own {
            self.owner.store(LOST, Relaxed);
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

#[cfg(all(test, not(any(miri, shuttle))))]
mod tests;
