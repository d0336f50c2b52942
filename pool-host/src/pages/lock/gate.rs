//! A gate before many locks, which a fork shuts in place of taking each: it reads the locks and writes to
//! none, so it copies no page of theirs.
//!
//! A thread takes its lock and then looks at the gate; a fork shuts the gate and then looks at the locks.
//! All of that is in one order (`SeqCst`), so one of the two sees the other (Dekker's algorithm): the
//! thread leaves its lock, or the fork waits until the lock is free. A thread may have a lock for a moment
//! while the gate is shut, and does no work under it. So a lock that a child finds held is free there.
#![expect(unsafe_code, reason = "a lock hands out what it guards")]

use super::{FORKS, ForkLock, LOOKS, LOST, NOBODY};
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use crate::system;

/// A gate before locks, which belong to no other gate. Whoever forks has it.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(super) lock: ForkLock<()>,
    /// Whether no other thread was at work under one of the locks when the fork began for which the gate
    /// is shut.
    is_empty: AtomicBool,
}

impl Gate {
    /// Creates an open gate.
    pub(crate) const fn new() -> Self {
        Self { lock: ForkLock::new(()), is_empty: AtomicBool::new(false) }
    }

    /// Runs `work` on the value of a lock as [`ForkLock::enter`] does. Returns `None` if another thread
    /// has shut the gate, and in a signal handler that has interrupted `work` of its own thread.
    pub(crate) fn enter<T, R>(
        &self,
        lock: &ForkLock<T>,
        work: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let own = system::thread_identity();
        lock.note_process(own);
        if !lock.try_hold(own) {
            lock.wait(own)?;
        }
        let owner = self.lock.owner.load(SeqCst);
        let is_open = owner & FORKS == 0 || owner == own | FORKS;
        // SAFETY: this thread took the lock above and releases it below, and no other takes it
        // meanwhile, so no other thread refers to the value. No other reference of this thread exists,
        // because `work` does not enter again, and a signal handler that interrupts it is refused.
        let result = is_open.then(|| work(unsafe { &mut *lock.value.get() }));
        lock.release();
        result
    }

    /// Shuts the gate before a fork, for the calling thread. Waits for forks of other threads, and until no
    /// other thread has one of the locks, if `waits` says so.
    pub(crate) fn before_fork<'l, T: 'l>(
        &self,
        locks: impl Iterator<Item = &'l ForkLock<T>>,
        waits: bool,
    ) {
        self.lock.before_fork(waits);
        let own = system::thread_identity();
        if self.lock.owner.load(Relaxed) == own | FORKS {
            self.is_empty.store(waits, Relaxed);
        }
        if waits {
            locks.for_each(|lock| lock.wait_until_free(own));
        }
    }

    /// Opens the gate after a fork, in the parent.
    pub(crate) fn after_fork(&self) {
        self.lock.after_fork(|()| ());
    }

    /// Opens the gate in the child. What a thread of the parent has locked is free if the fork waited for
    /// those threads; else no thread of the child ever gets it.
    pub(crate) fn in_child<'l, T: 'l>(&self, locks: impl Iterator<Item = &'l ForkLock<T>>) {
        let own = system::thread_identity();
        let is_shut = self.lock.owner.load(Relaxed) == own | FORKS;
        let is_free = is_shut && self.is_empty.load(Relaxed);
        for lock in locks {
            // A read copies no page.
            if ![NOBODY, own, LOST].contains(&lock.owner.load(Relaxed)) {
                lock.owner.store(if is_free { NOBODY } else { LOST }, Relaxed);
            }
        }
        self.lock.in_child(|()| ());
    }
}

impl<T> ForkLock<T> {
    /// Waits until no other thread has the lock, which a gate keeps others from using.
    fn wait_until_free(&self, own: usize) {
        let is_free = || [NOBODY, own, LOST].contains(&self.owner.load(SeqCst));
        if is_free() {
            return;
        }
        // The owner may be a thread that this process does not have.
        self.note_process(own);
        for _ in 0..LOOKS {
            if is_free() {
                return;
            }
            std::hint::spin_loop();
        }
        loop {
            self.awaited.store(1, SeqCst);
            if is_free() {
                break;
            }
            system::wait(&self.awaited, 1, None);
        }
        // Others may sleep, and this thread has taken their turn.
        self.wake(i32::MAX);
    }
}
