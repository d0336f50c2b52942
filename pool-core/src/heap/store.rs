//! The state of a pool, and the operations that do not belong to its book (`store/book.rs`).
//!
//! ```text
//!   BucketPool::allocate        pool.rs
//!     Store::hit                here           a pop in the thread cache (cache.rs)
//!     Store::allocate           stages.rs      the stages, in order
//!       Store::take_from_book   store/book.rs  one lock, a free range
//!       Store::grow             store/book     a miss: reserve the bytes, then the device
//!   PooledBuffer::drop          freeing.rs
//!     put                       reference.rs   a push in the thread cache
//!     Store::free_to_book       store/book.rs  one lock; what passes a bound goes back
//! ```
//!
//! No lock is held across a call of the device, an observer or the program's own code.

mod book;

use crate::heap::block::flags::{BROKEN, Flags, OBSERVED, ZEROES};
use crate::heap::block::private::{PrivateId, Privates};
use crate::heap::block::record::{Record, RecordOwner};
use crate::heap::block::request::PoolRequest;
use crate::heap::cache::caches::ThreadCaches;
use crate::heap::guards::{GUARD_BYTES, Guards};
use crate::heap::reference::ReferenceCount;
use crate::invariant::{self, Scope};
use crate::limits::{
    BucketLimit, Budget, CachedLimit, FullBucket, Ledger, Retention, Ticks, Transit,
};
use crate::observe::{EventFields, EventKind, Observers, Reason};
use crate::port::{DeviceAllocator, DeviceError, MarkOf, StreamClock, StreamOf, Why};
use crate::size::SizeClasses;
use crate::stream::{Requester, StealPolicy};
use crate::sys::atomic::AtomicU32;
use crate::sys::{ForkCheck, Mutex};
use std::sync::{Arc, OnceLock};

#[cfg(feature = "check")]
pub use book::{BlockSum, Checked};
pub(crate) use book::{BookState, Effort, PoolBook, Returned};

/// The settings of a pool that do not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) cached: CachedLimit,
    pub(crate) bucket: BucketLimit,
    pub(crate) full_bucket: FullBucket,
    pub(crate) statistics: bool,
    /// True if blocks are zeroed when they are freed.
    pub(crate) zero_on_return: bool,
    pub(crate) steal: StealPolicy,
    pub(crate) retention: Retention,
}

/// A function that the pool calls with the bytes that a request lacks, before it refuses the
/// request. It returns true if the pool should try again.
pub(crate) type OnShortage = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// The blocks of one pool.
pub(crate) struct Store<A: DeviceAllocator> {
    pub(crate) allocator: A,
    pub(crate) classes: SizeClasses,
    pub(crate) bounds: Bounds,
    pub(crate) ledger: Ledger,
    /// Flags that send allocations and frees past the thread caches.
    pub(crate) flags: Flags,
    /// `blind` is the number of further misses that do not look into the caches of other threads.
    /// `in_vain` is the number of such looks in a row that found no block.
    blind: AtomicU32,
    in_vain: AtomicU32,
    pub(crate) ticks: Mutex<Ticks>,
    /// Dropped when the pool is closed, because it may hold buffers, which keep the store alive.
    pub(crate) on_shortage: Mutex<Option<OnShortage>>,
    observers: Observers,
    pub(crate) guards: Option<Guards<A>>,
    pub(crate) references: ReferenceCount,
    forks: ForkCheck,
    /// The invariant that was found broken.
    broken: OnceLock<&'static str>,
    /// Dropped before the book, which owns the slots of its records.
    pub(crate) caches: ThreadCaches<A>,
    /// Dropped before the book, which owns the slots of its records.
    pub(crate) privates: Privates<A>,
    pub(crate) book: PoolBook<A>,
}

/// The bytes of cached memory that are to be given back, and the reason.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) bytes: u64,
    pub(crate) reason: Reason,
}

impl Goal {
    /// Returns the goal to give back all cached memory.
    pub(crate) fn all(reason: Reason) -> Self {
        Self { bytes: u64::MAX, reason }
    }
}

/// A block that serves a request.
pub(crate) struct Grant<A: DeviceAllocator> {
    pub(crate) record: RecordOwner<A>,
    /// True if the block is fresh from the device.
    pub(crate) fresh: bool,
    /// True if all bytes of the block are zero.
    pub(crate) zeroed: bool,
}

impl<A: DeviceAllocator> Store<A> {
    pub(crate) fn new(
        (allocator, book): (A, PoolBook<A>),
        classes: SizeClasses,
        bounds: Bounds,
        ledger: Ledger,
        (on_shortage, observers, guards): (Option<OnShortage>, Observers, Option<Guards<A>>),
    ) -> Self {
        let limited = book.is_blocks() && bounds.bucket != BucketLimit::NONE;
        Self {
            caches: ThreadCaches::new(book.has_caches(), limited, book.lease_most()),
            allocator,
            book,
            classes,
            bounds,
            ledger,
            flags: Flags::new(
                if bounds.zero_on_return { ZEROES } else { 0 }
                    | if observers.any_sees_hits() || guards.is_some() { OBSERVED } else { 0 },
            ),
            observers,
            guards,
            blind: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
            ticks: Mutex::default(),
            on_shortage: Mutex::new(on_shortage),
            references: ReferenceCount::new(),
            forks: ForkCheck::new(),
            broken: OnceLock::new(),
            privates: Privates::new(),
        }
    }

    /// Serves a request from the thread's own cache. Returns `None` for requests that need the slow
    /// path, and if any of the flags `bypass_flags` is set.
    #[inline]
    pub(crate) fn hit(
        &self,
        stream: &StreamOf<A>,
        requested: u64,
        kind: A::Kind,
        bypass_flags: u8,
    ) -> Option<RecordOwner<A>> {
        let clock = self.allocator.clock();
        let plain = clock.owns(stream)
            && clock.fault().is_none()
            && clock.takes_work(stream)
            && !clock.reuses_ahead(stream);
        if !plain || self.flags.any(bypass_flags) {
            return None;
        }
        let bytes = match self.classes.fast(requested) {
            Some(bytes) => bytes,
            None => self.classes.slow_cached(requested)?,
        };
        // A bin contains only sizes and kinds that the pool offers.
        self.take_cached(stream, kind, (bytes, requested))
    }

    /// Returns the reason why no call can succeed that needs more than the thread's own cache.
    #[inline]
    pub(crate) fn fault(&self) -> Option<DeviceError> {
        let fault = self.fault_of_device_or_fork();
        if !self.is_broken() {
            return fault;
        }
        let what = self.broken.get().copied().unwrap_or_default();
        // In a forked child not even the waiting requests may be touched.
        let forked = fault.filter(|fault| fault.why == Why::Forked);
        forked.or(Some(DeviceError::new(Why::Broken, what)))
    }

    #[inline]
    fn fault_of_device_or_fork(&self) -> Option<DeviceError> {
        let forked = || {
            let call = "use a pool in which threads of the parent process were at the fork";
            self.forks
                .is_unusable_after_fork(|| self.is_held())
                .then(|| DeviceError::new(Why::Forked, call))
        };
        self.allocator.clock().fault().or_else(forked)
    }

    /// Returns whether an invariant was found broken.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.flags.any(BROKEN)
    }

    /// Poisons the store when it is dropped if the thread has found an invariant broken until then.
    #[inline]
    pub(crate) fn watch(&self) -> Watch<'_, A> {
        Watch { store: self, _scope: Scope::enter() }
    }

    /// Serves no more requests and takes no memory back, since an invariant is broken.
    #[cold]
    pub(crate) fn poison(&self, what: &'static str) {
        let _ = self.broken.set(what); // the first one stays
        self.flags.set(BROKEN, true);
    }

    /// Returns whether this process is a fork of the one that made the device's handles.
    #[inline]
    pub(crate) fn has_lost_handles(&self) -> bool {
        self.allocator.clock().fault().is_some_and(|fault| fault.why == Why::Forked)
    }

    /// Returns whether this process is a fork of one that had the device's handles, or the locks.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fault_of_device_or_fork().is_some_and(|fault| fault.why == Why::Forked)
    }

    /// Returns whether no call may touch the store: this process is a fork of one that had the
    /// device's handles, or the locks, or an invariant is broken.
    #[inline]
    pub(crate) fn is_unusable(&self) -> bool {
        self.fault().is_some_and(|fault| matches!(fault.why, Why::Forked | Why::Broken))
    }

    /// Returns whether any lock is held, except for those of single blocks.
    fn is_held(&self) -> bool {
        self.book.is_locked()
            || self.privates.is_locked()
            || self.ticks.is_locked()
            || self.on_shortage.is_locked()
            || self.caches.is_any_entered()
            || self.ledger.budget.is_locked()
            || self.ledger.budget.has_waiters() // by a thread that does not exist in this process
    }

    /// Returns the address by which a budget tells its pools apart.
    pub(crate) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// Returns the stream that requests a block, with the rules for the blocks that it may take.
    #[inline]
    pub(crate) fn requester<'r>(&'r self, request: &PoolRequest<'r, A>) -> Requester<'r, A::Clock> {
        let (clock, steal) = (self.allocator.clock(), self.bounds.steal);
        Requester { clock, on: request.on, steal, cpu_touches: A::MEMORY.cpu_touches }
    }

    /// Returns the bytes that each request needs in addition to those of the buffer.
    #[inline]
    pub(crate) fn guard_bytes(&self) -> u64 {
        if self.guards.is_some() { GUARD_BYTES } else { 0 }
    }

    /// Returns whether there are observers. Observers that do not see hits set no flag.
    pub(crate) fn has_observers(&self) -> bool {
        self.observers.has_any()
    }

    /// Notifies the observers of an event, if there are any. The caller holds no lock.
    #[inline]
    pub(crate) fn notify(&self, kind: EventKind, fields: EventFields) {
        if self.observers.has_any() {
            self.observers.notify(kind, fields);
        }
    }

    /// Returns the name that the builder gave the pool.
    pub(crate) fn name(&self) -> &str {
        &self.observers.name
    }

    /// Notifies the observers that cached memory went back to the device.
    pub(crate) fn notify_eviction(&self, reason: Reason, bytes: u64) {
        self.notify(EventKind::Evict(reason), EventFields { bytes, ..EventFields::default() });
    }

    /// Returns the budget if a request waits under it. The caller asks after it has made memory
    /// available, and wakes the budget when it holds no lock.
    #[inline]
    pub(crate) fn awaited(&self) -> Option<Budget> {
        let budget = &self.ledger.budget;
        budget.has_waiters().then(|| budget.clone())
    }

    /// Takes a block of the private pool that the stream is bound to: a hit in stream order.
    pub(crate) fn take_private(
        &self,
        request: &PoolRequest<'_, A>,
        id: PrivateId,
    ) -> Option<Grant<A>> {
        let requester = self.requester(request);
        // What the CPU touches, it may touch only when no launch uses it.
        let is_done = |mark: &MarkOf<A>| requester.clock.is_done(*mark) == Ok(true);
        if requester.cpu_touches && !self.privates.behind(id).iter().all(is_done) {
            return None;
        }
        let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(&requester);
        let record = self.privates.take(id, request, ready)?;
        Some(self.lend_private(request, record))
    }

    /// Returns the memory that threads have outside of all lists, in all pools of the budget.
    pub(crate) fn transit(&self) -> &Transit {
        self.ledger.budget.transit()
    }

    /// Closes the store when its owner is dropped: the store caches no more blocks. Returns the
    /// number of buffers in use. Calls no foreign code.
    pub(crate) fn close(&self) -> i64 {
        self.caches.close();
        self.close_book()
    }

    /// Drops the program's function for a shortage, which may hold buffers of any pool.
    pub(crate) fn drop_on_shortage(&self) {
        // The lock is released before the drop, which may return buffers to this store.
        let on_shortage = self.on_shortage.lock().take();
        drop(on_shortage);
    }

    /// Gives all free memory of a closed store back to the device.
    pub(crate) fn give_all_back(&self) {
        self.drop_on_shortage();
        // The errors are ignored because no caller could receive them.
        let (_, _) = (self.free_deferred(), self.trim_book(Goal::all(Reason::Closed)));
    }
}

/// A call of a store under way, on a thread that holds none of its locks.
pub(crate) struct Watch<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    /// Dropped after the store has taken the note of this call.
    _scope: Scope,
}

impl<A: DeviceAllocator> Drop for Watch<'_, A> {
    #[inline]
    fn drop(&mut self) {
        if let Some(what) = invariant::take() {
            self.store.poison(what);
            // A request that waits for memory of this store may never get any.
            self.store.ledger.budget.wake();
        }
    }
}

impl<A: DeviceAllocator> Drop for Store<A> {
    fn drop(&mut self) {
        self.release_segments();
    }
}
