//! A spin lock that a swap takes and a plain store releases. It costs half as much as a lock that
//! can put threads to sleep. It is for sections of a few dozen instructions that are mostly
//! uncontended.
//!
//! The lock is not fair. A thread that waits spins for a moment, yields, and then sleeps for moments,
//! each time twice as long, with spins in between.
#![expect(unsafe_code, reason = "`lock_api` asks for a promise")]

use crate::sys::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use parking_lot::lock_api::{self, GuardNoSend, RawMutex};
use std::hint;
use std::thread;
use std::time::Duration;

/// A value behind a spin lock.
pub(crate) type Lock<T> = lock_api::Mutex<Swap, T>;
/// The guard of a [`Lock`].
pub(crate) type LockGuard<'l, T> = lock_api::MutexGuard<'l, Swap, T>;

/// Pauses before the second try of a lock that is held. The pauses double with each try, up to
/// [`MAX_PAUSES`]; then the waiting thread yields a few times, and from then on it sleeps between
/// tries. More yields would do harm: where processors are idle they come back at once, so each unlock
/// meets a thread that takes the lock, and all memory under it, to its own processor
/// (`docs/decisions/041-shards.md` has figures). The sleep also lets a holder of lower priority run.
const MIN_PAUSES: u32 = 4;
const MAX_PAUSES: u32 = 256;
const MAX_YIELDS: u32 = 8;
const SLEEP: Duration = Duration::from_micros(50);
/// A thread that sleeps again sleeps twice as long, up to 3.2 ms. Where far more threads than
/// processors wait, those that look every 50 us take the processors from those that have a lock.
const MAX_DOUBLINGS: u32 = 6;

/// 1 while a thread has the lock, else 0. It is a word, so that nothing of a lock is padding: a function that
/// unlocks may not yet have returned when another thread frees the lock, and a guard that it was given refers to
/// all bytes of the lock outside of cells until then. [`has_no_padding`](super::has_no_padding) holds that.
pub(crate) struct Swap(AtomicU64);

// SAFETY: `lock` returns, and `try_lock` returns true, only after a swap found 0 and wrote 1; only `unlock`
// writes 0. Acquire and Release order the accesses in between.
unsafe impl RawMutex for Swap {
    const INIT: Self = Self(AtomicU64::new(0));
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if self.0.swap(1, Acquire) != 0 {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.swap(1, Acquire) == 0
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Releases the lock. This store is the last access to the lock, so the thread that takes it
    /// next may free it (`store/life.rs`).
    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(0, Release);
    }
}

impl Swap {
    /// Waits for the lock, and takes it. Each try takes the cache line from the thread that holds the
    /// lock, together with the data that this thread writes next, so tries are few. A read before
    /// the swap would save nothing, and lose the lock to a thread that locks it again at once.
    #[cold]
    fn wait(&self) {
        let mut tries = 0_u32;
        loop {
            match rest(tries) {
                Rest::Spin(pauses) => (0..pauses).for_each(|_| hint::spin_loop()),
                Rest::Yield => thread::yield_now(),
                Rest::Sleep(doublings) => thread::sleep(SLEEP * (1 << doublings)),
            }
            if self.0.swap(1, Acquire) == 0 {
                return;
            }
            tries = tries.wrapping_add(1); // after days of waiting it begins anew
        }
    }
}

/// What a waiting thread does before it tries again.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    Spin(u32),
    Yield,
    Sleep(u32),
}

/// What a thread does that has tried `tries` times in vain since it began to wait.
fn rest(tries: u32) -> Rest {
    const SPINS: u32 = (MAX_PAUSES / MIN_PAUSES).ilog2() + 1;
    const FIRST: u32 = SPINS + MAX_YIELDS;
    match tries {
        0..SPINS => Rest::Spin(MIN_PAUSES << tries),
        SPINS..FIRST => Rest::Yield,
        // A thread that locks again and again has the lock nearly always: one try after a sleep
        // would mostly be in vain.
        _ => match (tries - FIRST) % (1 + SPINS) {
            0 => Rest::Sleep(((tries - FIRST) / (1 + SPINS)).min(MAX_DOUBLINGS)),
            spun => Rest::Spin(MIN_PAUSES << (spun - 1)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread of real-time priority that only yields would starve the thread that has the lock.
    #[test]
    fn a_long_wait_sleeps() {
        let all: Vec<Rest> = (0..200).map(rest).collect();
        assert_eq!((&all[0], &all[6]), (&Rest::Spin(MIN_PAUSES), &Rest::Spin(MAX_PAUSES)));
        assert!(all[7..15].iter().all(|rest| *rest == Rest::Yield), "{all:?}");
        assert_eq!(all[15..17], [Rest::Sleep(0), Rest::Spin(MIN_PAUSES)]);
        assert_eq!(all[22..25], [Rest::Spin(MAX_PAUSES), Rest::Sleep(1), Rest::Spin(MIN_PAUSES)]);
        let longest = all.iter().filter(|rest| **rest == Rest::Sleep(MAX_DOUBLINGS));
        assert!(longest.count() > 10, "{all:?}");
        assert!((u32::MAX - 8..u32::MAX).map(rest).any(|rest| rest == Rest::Sleep(MAX_DOUBLINGS)));
    }

    #[test]
    fn threads_that_wait_all_get_the_lock() {
        let lock = Lock::new(0_u64);
        let turns = if cfg!(miri) { 20 } else { 20_000 };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..turns).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 4 * turns);
    }
}
