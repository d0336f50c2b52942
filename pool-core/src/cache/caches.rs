//! The thread caches of a pool, by the numbers of the threads.
#![expect(unsafe_code, reason = "a thread is the owner of the cache of its number")]

use super::{Shown, ThreadCache};
use crate::device::DeviceAllocator;
use crate::lock::biased::{Biased, OtherGuard, OwnerGuard, Refused};
use crate::thread_number;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

/// A cache alone on its cache lines (two of them: processors fetch them in pairs).
#[repr(align(128))]
struct CacheLine<A: DeviceAllocator> {
    cache: Biased<ThreadCache<A>>,
    shown: Arc<Shown>,
}

/// All thread caches of a pool. A cache stays when its thread ends, and is the next thread's of the
/// same number.
pub(crate) struct ThreadCaches<A: DeviceAllocator> {
    /// Null where there is none yet.
    all: Box<[AtomicPtr<CacheLine<A>>]>,
    /// Caches of this number or a higher one do not exist.
    end: AtomicUsize,
    /// Whether there is a bucket limit.
    limited: bool,
    /// Whether caches keep nothing any more.
    closed: AtomicBool,
}

/// Inside a thread cache.
pub(crate) enum Inside<'c, A: DeviceAllocator> {
    Own(OwnerGuard<'c, ThreadCache<A>>),
    Other(OtherGuard<'c, ThreadCache<A>>),
}

impl<A: DeviceAllocator> Deref for Inside<'_, A> {
    type Target = ThreadCache<A>;
    fn deref(&self) -> &ThreadCache<A> {
        match self {
            Self::Own(cache) => cache,
            Self::Other(cache) => cache,
        }
    }
}

impl<A: DeviceAllocator> DerefMut for Inside<'_, A> {
    fn deref_mut(&mut self) -> &mut ThreadCache<A> {
        match self {
            Self::Own(cache) => cache,
            Self::Other(cache) => cache,
        }
    }
}

impl<A: DeviceAllocator> ThreadCaches<A> {
    /// A place for a cache of each thread, or none. `limited`: under a bucket limit.
    pub(crate) fn new(any: bool, limited: bool) -> Self {
        // Loom keeps account of each place.
        let most = if cfg!(loom) { 4 } else { thread_number::NONE };
        let numbers = if any { most } else { 0 };
        let all = (0..numbers).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Self { all, end: AtomicUsize::new(0), limited, closed: AtomicBool::new(false) }
    }

    /// Whether threads cache blocks in this pool.
    #[inline]
    pub(crate) fn are_on(&self) -> bool {
        !self.all.is_empty()
    }

    /// The cache of a number, if there is one.
    #[inline]
    fn line(&self, number: usize) -> Option<&CacheLine<A>> {
        // SAFETY: null, or from a box that lives as long as this.
        unsafe { self.all.get(number)?.load(Acquire).as_ref() }
    }

    /// This thread's cache, if it has one and no other thread is in it.
    #[inline]
    pub(crate) fn enter_own(&self) -> Option<OwnerGuard<'_, ThreadCache<A>>> {
        let line = self.line(thread_number::known())?;
        // SAFETY: two threads never have one number at once, and the number's lock orders what one
        // did before what the next does (thread_number.rs).
        unsafe { line.cache.enter_as_owner() }.ok()
    }

    /// This thread's cache, made if it is missing; `None` for a thread without a number.
    #[inline]
    pub(crate) fn wait_for_own(&self) -> Option<Inside<'_, A>> {
        if self.are_on() { self.wait_for_this() } else { None }
    }

    fn wait_for_this(&self) -> Option<Inside<'_, A>> {
        let number = thread_number::get();
        let line = match self.line(number) {
            Some(line) => line,
            None => self.make(number)?,
        };
        // SAFETY: as above.
        let mut own = match unsafe { line.cache.enter_as_owner() } {
            Ok(own) => Inside::Own(own),
            Err(Refused::Revoked) => Inside::Other(line.cache.enter()),
            Err(Refused::Inside) => return None,
        };
        // One that was made while the others were closed was not closed with them.
        if self.closed.load(SeqCst) {
            own.close();
        }
        Some(own)
    }

    /// Makes the cache of this thread's number, which no other thread does.
    #[cold]
    fn make(&self, number: usize) -> Option<&CacheLine<A>> {
        let place = self.all.get(number)?;
        let shown = Arc::new(Shown::default());
        let cache = Biased::new(ThreadCache::new(shown.clone(), self.limited));
        let line = Box::into_raw(Box::new(CacheLine { cache, shown }));
        place.store(line, Release);
        self.end.fetch_max(number + 1, SeqCst);
        self.line(number)
    }

    /// From now on no cache keeps a block, once it was entered.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    /// The numbers that a cache may have.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.end.load(SeqCst)
    }

    /// The numbers of the caches that had at least `bytes` bytes a moment ago.
    pub(crate) fn with(&self, bytes: u64) -> impl Iterator<Item = usize> {
        let has = move |line: &CacheLine<A>| line.shown.0.load(Relaxed) >= bytes;
        self.numbers().filter(move |number| self.line(*number).is_some_and(has))
    }

    /// The cache of a number, if there is one.
    pub(crate) fn enter(&self, number: usize) -> Option<Inside<'_, A>> {
        if number == thread_number::get() {
            return self.wait_for_own();
        }
        let mut other = self.line(number)?.cache.enter();
        if self.closed.load(SeqCst) {
            other.close();
        }
        Some(Inside::Other(other))
    }
}

impl<A: DeviceAllocator> Drop for ThreadCaches<A> {
    fn drop(&mut self) {
        for line in &self.all {
            let line = line.load(Relaxed);
            if !line.is_null() {
                // SAFETY: `make` got it from a box, and no thread is inside any more.
                drop(unsafe { Box::from_raw(line) });
            }
        }
    }
}
