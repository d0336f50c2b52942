//! Counts of what threads hand to each other, for builds with `--cfg pool_counts`
//! (`cargo xtask bench --threads` and `--counts` make one; no other build has this).
//!
//! On one core nothing shows what a shared word costs on sixteen. So such a build counts: each
//! atomic and each lock knows which thread wrote it last. A *transfer* is the first access of a
//! thread since another thread wrote: where threads run on cores of their own, the cache line has
//! to come from there. With threads that take turns in a fixed order, the count is the same in
//! each run.
#![expect(unsafe_code, reason = "`lock_api` asks for a promise")]

use parking_lot::lock_api;
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{self as std_atomic, Ordering, Ordering::Relaxed};

/// Threads that can be told apart.
pub const MAX_THREADS: u8 = 64;

static TRANSFERS: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);
static LOOKS: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);
static FAILED_LOOKS: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);
static BARRIERS: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);
static MILLISECONDS: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);

thread_local! {
    /// The number of this thread from 1; 0 for one that is not counted.
    static THREAD: Cell<u8> = const { Cell::new(0) };
}

/// Counts since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharingCounts {
    /// Accesses to a lock or a shared word whose last writer was another thread, the first of each
    /// thread since then.
    pub transfers: u64,
    /// Times that a pool tried to take blocks over from another shard, or that the tcache looked at
    /// what another thread's cache holds.
    pub looks: u64,
    /// Those that found nothing to take.
    pub failed_looks: u64,
    /// Calls of `membarrier`, which the tcache makes.
    pub barriers: u64,
}

/// Returns the counts so far.
#[must_use]
pub fn now() -> SharingCounts {
    SharingCounts {
        transfers: TRANSFERS.load(Relaxed),
        looks: LOOKS.load(Relaxed),
        failed_looks: FAILED_LOOKS.load(Relaxed),
        barriers: BARRIERS.load(Relaxed),
    }
}

/// Counts this thread's accesses from now on as those of thread `number`, below [`MAX_THREADS`];
/// not at all with `None`.
pub fn count_as(number: Option<u8>) {
    THREAD.set(number.map_or(0, |number| number % MAX_THREADS + 1));
}

/// Returns the number of this thread from 1; 0 for one that is not counted.
#[must_use]
pub fn thread() -> usize {
    THREAD.get().into()
}

/// Counts a look at what another shard, or another thread's cache of the tcache, holds.
pub fn look(found: bool) {
    if THREAD.get() > 0 {
        LOOKS.fetch_add(1, Relaxed);
        FAILED_LOOKS.fetch_add(u64::from(!found), Relaxed);
    }
}

/// Counts a call of `membarrier`.
pub fn barrier() {
    if THREAD.get() > 0 {
        BARRIERS.fetch_add(1, Relaxed);
    }
}

/// Returns the milliseconds of the clock that such a build has instead of the system's.
#[must_use]
pub fn milliseconds() -> u64 {
    MILLISECONDS.load(Relaxed)
}

/// Advances the clock of such a build.
pub fn advance(milliseconds: u64) {
    MILLISECONDS.fetch_add(milliseconds, Relaxed);
}

/// Who wrote a word last, and who has read it since.
#[derive(Debug, Default)]
pub(crate) struct LineState {
    writer: std_atomic::AtomicU8,
    readers: std_atomic::AtomicU64,
}

impl LineState {
    #[expect(clippy::declare_interior_mutable_const, reason = "each use is a new line")]
    pub(crate) const NEW: Self =
        Self { writer: std_atomic::AtomicU8::new(0), readers: std_atomic::AtomicU64::new(0) };

    fn read(&self) {
        let thread = THREAD.get();
        let writer = self.writer.load(Relaxed);
        if thread == 0 || writer == 0 || writer == thread {
            return;
        }
        let bit = 1 << (thread - 1);
        if self.readers.fetch_or(bit, Relaxed) & bit == 0 {
            TRANSFERS.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn written(&self) {
        self.read();
        self.writer.store(THREAD.get(), Relaxed);
        self.readers.store(0, Relaxed);
    }
}

/// An atomic of the standard library, counted.
pub struct Counted<A> {
    value: A,
    line: LineState,
}

impl<A: fmt::Debug> fmt::Debug for Counted<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<A: Default> Default for Counted<A> {
    fn default() -> Self {
        Self { value: A::default(), line: LineState::NEW }
    }
}

impl Counted<std::sync::atomic::AtomicU32> {
    /// Returns the address of the word, for the system. What is done there is not counted.
    pub fn as_ptr(&self) -> *mut u32 {
        self.value.as_ptr()
    }
}

/// Atomics as in the standard library.
pub mod atomic {
    use super::Counted;
    pub use std::sync::atomic::{Ordering, compiler_fence, fence};

    /// Counted.
    pub type AtomicBool = Counted<std::sync::atomic::AtomicBool>;
    /// Counted.
    pub type AtomicU8 = Counted<std::sync::atomic::AtomicU8>;
    /// Counted.
    pub type AtomicU16 = Counted<std::sync::atomic::AtomicU16>;
    /// Counted.
    pub type AtomicU32 = Counted<std::sync::atomic::AtomicU32>;
    /// Counted.
    pub type AtomicU64 = Counted<std::sync::atomic::AtomicU64>;
    /// Counted.
    pub type AtomicI64 = Counted<std::sync::atomic::AtomicI64>;
    /// Counted.
    pub type AtomicUsize = Counted<std::sync::atomic::AtomicUsize>;
    /// Counted.
    pub type AtomicPtr<T> = Counted<std::sync::atomic::AtomicPtr<T>>;
}

/// The methods that all atomics have. A refused exchange counts as a write, since it takes the
/// cache line as one.
macro_rules! atomics {
    ($([$($of:tt)*] $atomic:ty, $value:ty;)*) => { $(
        #[expect(missing_docs, reason = "as in the standard library")]
        impl $($of)* Counted<$atomic> {
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self { value: <$atomic>::new(value), line: LineState::NEW }
            }
            pub fn load(&self, order: Ordering) -> $value {
                self.line.read();
                self.value.load(order)
            }
            pub fn store(&self, value: $value, order: Ordering) {
                self.line.written();
                self.value.store(value, order);
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.line.written();
                self.value.swap(value, order)
            }
            pub fn get_mut(&mut self) -> &mut $value {
                self.value.get_mut()
            }
            pub fn into_inner(self) -> $value {
                self.value.into_inner()
            }
            #[expect(clippy::missing_errors_doc, reason = "as in the standard library")]
            pub fn compare_exchange(
                &self, old: $value, new: $value, set: Ordering, fetch: Ordering,
            ) -> Result<$value, $value> {
                self.line.written();
                self.value.compare_exchange(old, new, set, fetch)
            }
            #[expect(clippy::missing_errors_doc, reason = "as in the standard library")]
            pub fn compare_exchange_weak(
                &self, old: $value, new: $value, set: Ordering, fetch: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, set, fetch)
            }
            #[expect(clippy::missing_errors_doc, reason = "as in the standard library")]
            pub fn fetch_update(
                &self, set: Ordering, fetch: Ordering, with: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.line.written();
                self.value.fetch_update(set, fetch, with)
            }
            pub fn update(
                &self, set: Ordering, fetch: Ordering, mut with: impl FnMut($value) -> $value,
            ) -> $value {
                let old = self.fetch_update(set, fetch, |old| Some(with(old)));
                old.unwrap_or_else(|old| old) // never refused
            }
            #[expect(clippy::missing_errors_doc, reason = "as in the standard library")]
            pub fn try_update(
                &self, set: Ordering, fetch: Ordering, with: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.fetch_update(set, fetch, with)
            }
        }
    )* };
}

atomics! {
    [] std_atomic::AtomicBool, bool;
    [] std_atomic::AtomicU8, u8;
    [] std_atomic::AtomicU16, u16;
    [] std_atomic::AtomicU32, u32;
    [] std_atomic::AtomicU64, u64;
    [] std_atomic::AtomicI64, i64;
    [] std_atomic::AtomicUsize, usize;
    [<T>] std_atomic::AtomicPtr<T>, *mut T;
}

/// The methods of numbers.
macro_rules! numbers {
    ($($atomic:ty, $value:ty;)*) => { $(
        #[expect(missing_docs, reason = "as in the standard library")]
        impl Counted<$atomic> {
            numbers!(each $value: fetch_add fetch_sub fetch_max fetch_min fetch_and fetch_or);
        }
    )* };
    (each $value:ty: $($method:ident)*) => { $(
        pub fn $method(&self, value: $value, order: Ordering) -> $value {
            self.line.written();
            self.value.$method(value, order)
        }
    )* };
}

numbers! {
    std_atomic::AtomicU8, u8;
    std_atomic::AtomicU16, u16;
    std_atomic::AtomicU32, u32;
    std_atomic::AtomicU64, u64;
    std_atomic::AtomicI64, i64;
    std_atomic::AtomicUsize, usize;
}

/// A lock of `parking_lot`, whose word is written by each that takes it, for reading too.
#[expect(missing_debug_implementations, reason = "it is inside a lock that has one")]
pub struct CountedLock<R> {
    lock: R,
    line: LineState,
}

/// A mutex, counted.
pub type Mutex<T> = lock_api::Mutex<CountedLock<parking_lot::RawMutex>, T>;
/// A lock for readers and writers, counted.
pub type RwLock<T> = lock_api::RwLock<CountedLock<parking_lot::RawRwLock>, T>;

// SAFETY: the lock inside does all; beside it only counts change.
unsafe impl lock_api::RawMutex for CountedLock<parking_lot::RawMutex> {
    const INIT: Self = Self { lock: parking_lot::RawMutex::INIT, line: LineState::NEW };
    type GuardMarker = <parking_lot::RawMutex as lock_api::RawMutex>::GuardMarker;

    fn lock(&self) {
        self.lock.lock();
        self.line.written();
    }
    fn try_lock(&self) -> bool {
        let taken = self.lock.try_lock();
        self.line.written();
        taken
    }
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { self.lock.unlock() };
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLock for CountedLock<parking_lot::RawRwLock> {
    const INIT: Self = Self { lock: parking_lot::RawRwLock::INIT, line: LineState::NEW };
    type GuardMarker = <parking_lot::RawRwLock as lock_api::RawRwLock>::GuardMarker;

    fn lock_shared(&self) {
        self.lock.lock_shared();
        self.line.written();
    }
    fn try_lock_shared(&self) -> bool {
        let taken = self.lock.try_lock_shared();
        self.line.written();
        taken
    }
    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller holds the lock for reading.
        unsafe { self.lock.unlock_shared() };
    }
    fn lock_exclusive(&self) {
        self.lock.lock_exclusive();
        self.line.written();
    }
    fn try_lock_exclusive(&self) -> bool {
        let taken = self.lock.try_lock_exclusive();
        self.line.written();
        taken
    }
    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { self.lock.unlock_exclusive() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_counts_once_after_another_thread_wrote() {
        let word = atomic::AtomicU64::new(0);
        let counted = |thread, access: &dyn Fn()| {
            count_as(Some(thread));
            let before = now().transfers;
            access();
            count_as(None);
            now().transfers - before
        };
        let read = || drop(word.load(Relaxed));
        let write = || word.store(1, Relaxed);
        assert_eq!(counted(0, &read), 0, "nobody wrote it");
        assert_eq!((counted(0, &write), counted(0, &write), counted(0, &read)), (0, 0, 0));
        assert_eq!((counted(1, &read), counted(1, &read), counted(2, &read)), (1, 0, 1));
        assert_eq!((counted(1, &write), counted(0, &read), counted(0, &write)), (0, 1, 0));
        let lock = Mutex::new(0);
        let enter = || drop(lock.lock());
        assert_eq!((counted(0, &enter), counted(1, &enter), counted(0, &enter)), (0, 1, 1));
    }
}
