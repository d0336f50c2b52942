//! A spin lock that a swap takes and a plain store releases. It costs half as much as a lock that
//! can put threads to sleep. It is for sections of a few dozen instructions that are mostly
//! uncontended.
//!
//! The lock is not fair. A thread that waits spins for a moment, then yields, and finally sleeps.
#![expect(unsafe_code, reason = "`lock_api` asks for a promise")]

use crate::sys::sync::atomic::{
    AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use parking_lot::lock_api::{self, GuardNoSend, RawMutex};
use std::hint;
use std::thread;
use std::time::Duration;

/// A value behind a spin lock.
pub(crate) type Lock<T> = lock_api::Mutex<Swap, T>;
/// The guard of a [`Lock`].
pub(crate) type LockGuard<'l, T> = lock_api::MutexGuard<'l, Swap, T>;

/// Pauses before the second read of a lock that is held. The pauses double with each read, up to
/// [`MAX_PAUSES`]; from then on the waiting thread yields between reads.
const MIN_PAUSES: u32 = 4;
const MAX_PAUSES: u32 = 64;
/// Yields before the waiting thread sleeps. Without the sleep a waiting thread of higher priority
/// could prevent the lock's holder on the same processor from ever running.
const MAX_YIELDS: u32 = 256;
const SLEEP: Duration = Duration::from_micros(50);

pub(crate) struct Swap(AtomicBool);

// SAFETY: `lock` returns, and `try_lock` returns true, only after a swap found the flag false and
// set it to true; only `unlock` sets it to false. Acquire and Release order the accesses in
// between.
unsafe impl RawMutex for Swap {
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if self.0.swap(true, Acquire) {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        !self.0.swap(true, Acquire)
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Releases the lock. This store is the last access to the lock, so the thread that takes it
    /// next may free it (`reference.rs`).
    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }
}

impl Swap {
    /// Waits for the lock, and takes it. A read takes the cache line from the thread that holds the
    /// lock, together with the data that this thread writes next, so reads are few.
    #[cold]
    fn wait(&self) {
        let mut pace = Pace::START;
        loop {
            for _ in 0..pace.pauses {
                hint::spin_loop();
            }
            if !self.0.load(Relaxed) && !self.0.swap(true, Acquire) {
                return;
            }
            match pace.next() {
                Rest::None => {}
                Rest::Yield => thread::yield_now(),
                Rest::Sleep => thread::sleep(SLEEP),
            }
        }
    }
}

/// How long a thread waits between two reads of a lock.
struct Pace {
    pauses: u32,
    yields: u32,
}

/// The rest of a waiting thread after a read that found the lock held.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    None,
    Yield,
    /// Lets a thread of lower priority run, which a real-time thread that yields does not.
    Sleep,
}

impl Pace {
    const START: Self = Self { pauses: MIN_PAUSES, yields: 0 };

    fn next(&mut self) -> Rest {
        if self.pauses < MAX_PAUSES {
            self.pauses *= 2;
            Rest::None
        } else if self.yields < MAX_YIELDS {
            self.yields += 1;
            Rest::Yield
        } else {
            Rest::Sleep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread of real-time priority that only yields would starve the thread that has the lock.
    #[test]
    fn a_long_wait_sleeps() {
        let mut pace = Pace::START;
        let rests: Vec<Rest> = (0..=300).map(|_| pace.next()).collect();
        assert_eq!(rests[0], Rest::None);
        assert!(rests[300] == Rest::Sleep && pace.pauses == MAX_PAUSES, "{:?}", rests[300]);
    }
}
