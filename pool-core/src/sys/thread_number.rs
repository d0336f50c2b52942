//! Small numbers for live threads. A thread's number decides which shard of a pool it begins with.
//!
//! A thread that ends gives its number back, so programs with many short-lived threads use few
//! numbers.
//!
//! Threads take and release numbers without a lock, so a fork in the middle of that does no harm:
//! threads of the child can still take numbers.

#[cfg(not(any(loom, shuttle)))]
use std::cell::Cell;
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The number of a thread that has none of its own: all numbers were taken, or the thread is
/// ending.
pub(crate) const NONE: usize = NUMBERS;
/// Numbers that threads can have.
const NUMBERS: usize = 64 * WORDS - 1;
/// A thread moves on with one in this many shards that it finds locked. More often would leave the
/// blocks that it has warmed behind each time.
#[cfg(not(any(loom, shuttle)))]
const HOPS_TO_MOVE: u32 = 16;
/// Words of the bit set, which has one bit for each number.
const WORDS: usize = 16;
/// The value before the thread's first [`home`].
const UNKNOWN: usize = usize::MAX;

/// A bit for each number that a thread has. The last bit is [`NONE`], which no thread takes.
#[cfg(not(any(loom, shuttle)))]
static IN_USE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    // No destructors, so they can be read while a thread ends.
    static OWN: Own = const { Own { home: Cell::new(UNKNOWN), number: Cell::new(NONE) } };
    /// How many shards it has found locked.
    static HOPS: Cell<u32> = const { Cell::new(0) };
    static AT_EXIT: AtExit = const { AtExit };
}

/// What a thread knows of itself.
#[cfg(not(any(loom, shuttle)))]
struct Own {
    /// The number of the shard that the thread begins with: its own, and the steps that it moved on by.
    home: Cell<usize>,
    number: Cell<usize>,
}

#[cfg(not(any(loom, shuttle)))]
struct AtExit;

#[cfg(not(any(loom, shuttle)))]
impl Drop for AtExit {
    fn drop(&mut self) {
        let number = OWN.with(|own| own.number.get());
        set(NONE);
        release(number);
    }
}

/// A thread that has asked for its number.
#[derive(Clone, Copy)]
pub(crate) struct Thread {
    /// The number of the shard that it begins with, modulo the shards of the pool.
    pub(crate) home: usize,
    pub(crate) number: usize,
}

/// The number that a model gives to each thread. Threads of a checker are not threads of the
/// system.
#[cfg(any(loom, shuttle))]
pub(crate) mod modelled {
    crate::checker::thread_local! {
        static NUMBER: std::cell::Cell<usize> = std::cell::Cell::new(0);
    }
    pub(crate) fn get() -> usize {
        NUMBER.with(std::cell::Cell::get)
    }
    /// Gives the calling thread of a model its number.
    pub fn set(number: usize) {
        NUMBER.with(|own| own.set(number));
    }
}
/// A checker has its own threads.
#[cfg(all(feature = "check", any(loom, shuttle)))]
#[derive(Debug)]
pub struct TestThreads;
#[cfg(all(feature = "check", any(loom, shuttle)))]
impl TestThreads {
    /// Makes no threads: the checker has them.
    #[must_use]
    pub fn new(_: usize) -> Self {
        Self
    }
    /// Does `work` on the calling thread.
    pub fn as_thread<R>(&mut self, _: usize, work: impl FnOnce() -> R) -> R {
        work()
    }
}

#[cfg(any(loom, shuttle))]
pub(crate) use modelled::{get, get as home};

/// A thread of a model has a number from its beginning.
#[cfg(any(loom, shuttle))]
pub(crate) fn known() -> Option<Thread> {
    Some(Thread { home: home(), number: get() })
}

/// A thread of a model stays where it is.
#[cfg(any(loom, shuttle))]
pub(crate) fn hop_to(_: usize) {}

/// Returns this thread's number, the same for the thread's life, or [`NONE`] if it has none.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn get() -> usize {
    home();
    OWN.with(|own| own.number.get())
}

/// Returns the number of the shard that this thread begins with, modulo the shards of the pool.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn home() -> usize {
    let home = OWN.with(|own| own.home.get());
    if home == UNKNOWN { assign() } else { home }
}

/// As [`home`] and [`get`], if the thread has asked before.
#[cfg(not(any(loom, shuttle)))]
#[inline]
pub(crate) fn known() -> Option<Thread> {
    OWN.with(|own| {
        let home = own.home.get();
        (home != UNKNOWN).then(|| Thread { home, number: own.number.get() })
    })
}

/// Notes that this thread found its shard locked, and used that of another number. If that repeats, the
/// thread begins with that one from now on.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn hop_to(number: usize) {
    let hops = HOPS.get().wrapping_add(1);
    HOPS.set(hops);
    if hops.is_multiple_of(HOPS_TO_MOVE) {
        OWN.with(|own| own.home.set(number));
    }
}

#[cfg(not(any(loom, shuttle)))]
#[cold]
fn assign() -> usize {
    // The calls below may ask again; they then get `NONE`.
    set(NONE);
    if AT_EXIT.try_with(|_| ()).is_err() {
        return NONE;
    }
    // A thread without a number keeps `NONE` for its life: a search on each call would read all
    // words each time.
    set(acquire_lowest().unwrap_or(NONE))
}

/// Gives this thread a number, with whose shard it begins.
#[cfg(not(any(loom, shuttle)))]
fn set(number: usize) -> usize {
    OWN.with(|own| {
        own.number.set(number);
        own.home.set(number);
    });
    number
}

/// Takes the lowest number that no thread has.
#[cfg(not(any(loom, shuttle)))]
fn acquire_lowest() -> Option<usize> {
    IN_USE.iter().enumerate().find_map(|(word, taken)| {
        // The last bit stands for no number.
        let all = if word == WORDS - 1 { u64::MAX >> 1 } else { u64::MAX };
        let with_first_free = |bits: u64| (bits != all).then(|| bits | (bits + 1));
        let before = taken.fetch_update(Acquire, Relaxed, with_first_free).ok()?;
        Some(64 * word + before.trailing_ones() as usize)
    })
}

/// Gives a number back.
#[cfg(not(any(loom, shuttle)))]
fn release(number: usize) {
    if number < NUMBERS {
        // Release: this thread's work happens before the work of the next thread with this number,
        // which `acquire_lowest` acquires.
        IN_USE[number / 64].fetch_and(!(1 << (number % 64)), Release);
    }
}

/// Simulated threads for a test: one real thread acts as each of them in turn, so that a seed
/// decides which thread does what, and a failing test can be repeated.
///
/// In memory without streams, the number of the simulated thread decides which shard of a pool a
/// request begins with. Everything else that belongs to a thread, such as thread-local variables,
/// is that of the real thread.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, check::TestThreads, sim::SimDevice};
///
/// let pool = BucketPool::new(SimDevice::new());
/// let mut threads = TestThreads::new(2);
/// let buffer = threads.as_thread(0, || pool.allocate(4096))?;
/// threads.as_thread(1, || drop(buffer)); // freed by the second thread
/// assert_eq!(pool.stats().cached_bytes, 4096);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[cfg(all(feature = "check", not(any(loom, shuttle))))]
#[derive(Debug)]
pub struct TestThreads(Vec<usize>);

#[cfg(all(feature = "check", not(any(loom, shuttle))))]
impl TestThreads {
    /// Returns `count` simulated threads. If the process has more than about a thousand threads,
    /// real and simulated, the later ones have no number of their own.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| acquire_lowest().unwrap_or(NONE)).collect())
    }

    /// Runs `work` as the simulated thread `thread`, modulo the number of simulated threads; as the
    /// calling thread if there are none.
    ///
    /// `&mut self` makes this sound: no two threads have the same number at once.
    pub fn as_thread<R>(&mut self, thread: usize, work: impl FnOnce() -> R) -> R {
        /// Sets the thread's own number and home again, also when `work` panics.
        struct Before(usize, usize);
        impl Drop for Before {
            fn drop(&mut self) {
                set(self.0);
                OWN.with(|own| own.home.set(self.1));
            }
        }
        let Some(number) = self.0.get(thread % self.0.len().max(1)) else { return work() };
        let _before = Before(get(), home());
        set(*number);
        work()
    }
}

#[cfg(all(feature = "check", not(any(loom, shuttle))))]
impl Drop for TestThreads {
    fn drop(&mut self) {
        self.0.drain(..).for_each(release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_keeps_its_number_and_gives_it_back() {
        let own = get();
        assert_eq!(get(), own);
        for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
            let other = thread::spawn(|| (get(), get())).join().unwrap();
            assert_eq!(other.0, other.1);
            assert_ne!(other.0, own);
            assert_ne!(other.0, NONE, "a thousand threads, a few at a time");
        }
    }
}
