//! A lock with an owner: one thread that enters often, by a plain store; others enter seldom, and
//! pay for both.
//!
//! ```text
//!   owner                        another thread, alone behind `turn`
//!     busy = true                  revoked = true
//!     (compiler fence)             barrier on all processors (barrier.rs)
//!     revoked? -> busy = false     wait until busy is false
//! ```
//!
//! One of the two sees the other: the barrier of the other thread falls before the owner's store,
//! and then the owner reads `revoked`, or after it, and then `busy` is seen. Where the system has
//! no such barrier, the owner's store is a swap, which is one itself.
#![expect(unsafe_code, reason = "a value that one thread at a time has")]

#[cfg(all(test, loom))]
#[path = "biased/model.rs"]
mod model;

use crate::heap::lock::atomics::{AtomicBool, Mutex, MutexGuard, fence, owners_fence, pause};
use crate::heap::lock::barrier;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// A value behind a lock of one owner.
pub(crate) struct Biased<T> {
    /// Whether the owner is inside.
    busy: AtomicBool,
    /// Whether another thread is inside, or waits for the owner to leave.
    revoked: AtomicBool,
    /// Whether the other thread's barrier reaches the owner.
    barrier: bool,
    /// Held by the other thread that is inside, or waits for the owner.
    turn: Mutex<()>,
    value: UnsafeCell<T>,
}

/// Why the owner is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is inside: its own code was called from there. Waiting would never end.
    Inside,
    /// Another thread is inside, or waits.
    Revoked,
}

// SAFETY: `value` is reached through a guard only, and there is one at a time, on one thread: the
// owner's exists while `busy` is true, others' while `revoked` is, and not both (see above).
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T> Biased<T> {
    pub(crate) fn new(value: T) -> Self {
        Self::with_barrier(value, barrier::is_available())
    }

    /// A lock whose others have a barrier that reaches the owner, or have none.
    fn with_barrier(value: T, barrier: bool) -> Self {
        Self {
            busy: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            barrier,
            turn: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// The owner's way in.
    ///
    /// # Errors
    ///
    /// [`Refused::Inside`] for a call from inside, [`Refused::Revoked`] while another thread is
    /// inside or waits.
    ///
    /// # Safety
    ///
    /// The caller is the owner: no two threads are in this function at once, and what one did here
    /// happens before what the next does.
    #[inline]
    pub(crate) unsafe fn enter_as_owner(&self) -> Result<OwnerGuard<'_, T>, Refused> {
        if self.busy.load(Relaxed) {
            return Err(Refused::Inside);
        }
        if self.barrier {
            self.busy.store(true, Relaxed);
            owners_fence();
        } else {
            self.busy.swap(true, SeqCst);
            fence(SeqCst);
        }
        if self.revoked.load(Acquire) {
            self.busy.store(false, Release);
            return Err(Refused::Revoked);
        }
        Ok(OwnerGuard { busy: &raw const self.busy, value: self.value.get(), lock: PhantomData })
    }

    /// Whether a thread is inside, or waits to be.
    pub(crate) fn is_entered(&self) -> bool {
        self.busy.load(Acquire) || self.revoked.load(Acquire) || self.turn.is_locked()
    }

    /// The way in of any thread that is not inside.
    #[cold]
    pub(crate) fn enter(&self) -> OtherGuard<'_, T> {
        let turn = self.turn.lock();
        self.revoked.store(true, SeqCst);
        if self.barrier {
            barrier::everywhere();
        } else {
            fence(SeqCst);
        }
        let mut looks = 0;
        while self.busy.load(Acquire) {
            pause(&mut looks);
        }
        OtherGuard { lock: self, _turn: turn }
    }
}

/// The owner is inside. It has addresses and no reference, since the lock may be freed while the
/// drop returns.
pub(crate) struct OwnerGuard<'l, T> {
    busy: *const AtomicBool,
    value: *mut T,
    lock: PhantomData<&'l Biased<T>>,
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock lives as long as it is borrowed, and the owner is inside, so no other
        // thread is (`Sync`, above).
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.value }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    /// Touches the lock for the last time: the thread that enters next may free it
    /// (`reference.rs`).
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the lock lives until `busy` is false.
        unsafe { &*self.busy }.store(false, Release);
    }
}

/// A thread is inside that need not be the owner.
pub(crate) struct OtherGuard<'l, T> {
    lock: &'l Biased<T>,
    /// Given up after `revoked` is down.
    _turn: MutexGuard<'l, ()>,
}

impl<T> Deref for OtherGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this thread is inside, so no other thread is (`Sync`, above).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for OtherGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for OtherGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.revoked.store(false, Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_call_from_inside_is_told_from_another_thread() {
        let lock = Biased::new(1);
        // SAFETY: this thread alone is the owner.
        let enter = || unsafe { lock.enter_as_owner() }.map(|inside| *inside);
        // SAFETY: as above.
        let inside = unsafe { lock.enter_as_owner() };
        assert_eq!((inside.is_ok(), enter()), (true, Err(Refused::Inside)));
        drop(inside);
        let other = lock.enter();
        assert_eq!((*other, enter()), (1, Err(Refused::Revoked)));
        drop(other);
        assert_eq!(enter(), Ok(1));
    }
}
