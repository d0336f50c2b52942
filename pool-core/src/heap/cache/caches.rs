//! The thread caches of a pool, by the numbers of the threads.
#![expect(unsafe_code, reason = "a thread is the owner of the cache of its number")]

#[cfg(any(loom, shuttle))]
use crate::checker::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};
use crate::heap::cache::ThreadCache;
use crate::heap::cache::tally::{Changes, Tally};
use crate::heap::lock::biased::{Biased, OtherGuard, OwnerGuard, Refused};
use crate::port::DeviceAllocator;
#[cfg(not(any(loom, shuttle)))]
use crate::sys::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};
use crate::sys::thread_number;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// A cache alone on its cache lines (two of them: processors fetch them in pairs).
#[repr(align(128))]
struct CacheLine<A: DeviceAllocator> {
    cache: Biased<ThreadCache<A>>,
    tally: Arc<Tally>,
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
    /// Blocks of more bytes are in no cache.
    pub(crate) largest: u64,
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
    /// A place for a cache of each thread, or none, for blocks of at most `largest` bytes.
    /// `limited`: under a bucket limit.
    pub(crate) fn new(any: bool, limited: bool, largest: u64) -> Self {
        // A checker keeps account of each place.
        let most = if cfg!(any(loom, shuttle)) { 4 } else { thread_number::NONE };
        let numbers = if any { most } else { 0 };
        let all = (0..numbers).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Self { all, end: AtomicUsize::new(0), limited, largest, closed: AtomicBool::new(false) }
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
        let tally = Arc::new(Tally::default());
        let cache = Biased::new(ThreadCache::new(tally.clone(), self.limited));
        let line = Box::into_raw(Box::new(CacheLine { cache, tally }));
        place.store(line, Release);
        self.end.fetch_max(number + 1, SeqCst);
        // `enter_each` may not see this cache: then this thread sees what was written before that.
        fence(SeqCst);
        self.line(number)
    }

    /// From now on no cache keeps a block, once it was entered.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Enters each cache once, so that every section that a thread was in has ended, and what this
    /// thread wrote before is seen in each section that begins later.
    pub(crate) fn enter_each(&self) {
        fence(SeqCst);
        self.numbers().for_each(|number| drop(self.enter(number)));
    }

    /// Whether a thread is inside any cache, or waits to be.
    pub(crate) fn is_any_entered(&self) -> bool {
        let is = |line: &CacheLine<A>| line.cache.is_entered();
        self.numbers().any(|number| self.line(number).is_some_and(is))
    }

    /// The numbers that a cache may have.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.end.load(SeqCst)
    }

    /// The numbers of the caches that had at least `bytes` bytes a moment ago.
    pub(crate) fn with(&self, bytes: u64) -> impl Iterator<Item = usize> {
        let has = move |line: &CacheLine<A>| line.tally.cached() >= bytes;
        self.numbers().filter(move |number| self.line(*number).is_some_and(has))
    }

    /// The changes of each cache that the book does not know, and how many blocks the cache has,
    /// for a thread that has the book's lock. Enters none: a thread that is inside may have counted
    /// a part of its call.
    pub(crate) fn untold(&self) -> impl Iterator<Item = (Changes, u64)> {
        let lines = self.numbers().filter_map(|number| self.line(number));
        lines.map(|line| (line.tally.untold(), line.tally.blocks()))
    }

    /// Blocks that were put into any cache so far. Enters none.
    pub(crate) fn kept(&self) -> u64 {
        let lines = self.numbers().filter_map(|number| self.line(number));
        lines.fold(0, |sum, line| sum.wrapping_add(line.tally.kept()))
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
