//! A lock that is taken by one swap and given up by a plain store: half of what a lock that can put
//! threads to sleep costs, for sections that are a few dozen instructions long and mostly alone.
//!
//! Absent: fairness. Who waits spins for a moment, then lets others run, and in the end sleeps.
#![expect(unsafe_code, reason = "`lock_api` asks for a promise")]

mod atomics;
mod barrier;
pub(crate) mod biased;

use parking_lot::lock_api::{self, GuardNoSend, RawMutex};
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::thread;
use std::time::Duration;

/// A value behind such a lock.
pub(crate) type Lock<T> = lock_api::Mutex<Swap, T>;
/// What holds it.
pub(crate) type LockGuard<'l, T> = lock_api::MutexGuard<'l, Swap, T>;

/// Pauses before the second look at a lock that is held. Each look after that waits twice as long,
/// up to the most; from then on others are let run in between.
const PAUSES: u32 = 4;
const PAUSES_MOST: u32 = 64;
/// How often others are let run, before the one who waits sleeps: on the same processor a thread of
/// higher priority would keep the one that has the lock from running for ever.
const TURNS: u32 = 256;
const SLEEP: Duration = Duration::from_micros(50);

pub(crate) struct Swap(AtomicBool);

// SAFETY: `lock` returns, and `try_lock` says true, only after a swap found the flag down and put
// it up; only `unlock` puts it down. Acquire and Release order what is done in between.
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

    /// The last thing that touches the lock, so whoever takes it next may free it
    /// (`hold.rs`).
    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }
}

impl Swap {
    /// Waits. A look takes the cache line from whoever has the lock, and with it what that thread
    /// writes next, so there are few.
    #[cold]
    fn wait(&self) {
        let (mut pauses, mut turns) = (PAUSES, 0);
        loop {
            for _ in 0..pauses {
                hint::spin_loop();
            }
            if !self.0.load(Relaxed) && !self.0.swap(true, Acquire) {
                return;
            }
            if pauses < PAUSES_MOST {
                pauses *= 2;
            } else if turns < TURNS {
                turns += 1;
                thread::yield_now();
            } else {
                thread::sleep(SLEEP);
            }
        }
    }
}
