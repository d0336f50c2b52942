//! The state of a pool, and what is not the business of its book (`store/book.rs`).
//!
//! ```text
//!   BucketPool::allocate        pool.rs
//!     Store::hit                here           a pop in the thread cache (cache.rs)
//!     Store::allocate           stages.rs      the stages, in order
//!       Store::take_from_book   store/book.rs  one lock, a free range
//!       Store::grow             store/book     a miss: reserve the bytes, then the device
//!   PooledBuffer::drop          buffer.rs
//!     put                       hold.rs        a push in the thread cache
//!     Store::free_to_book       store/book.rs  one lock; what passes a bound goes back
//! ```
//!
//! No lock is held across a device call.

mod book;

use crate::block::flags::{Flags, OBSERVED, ZEROES};
use crate::block::private::{PrivateId, Privates};
use crate::block::record::{Record, RecordOwner};
use crate::block::request::Want;
use crate::budget::Budget;
use crate::budget::ledger::Ledger;
use crate::cache::caches::ThreadCaches;
use crate::device::{DeviceAllocator, StreamOf};
use crate::error::{DeviceError, Why};
use crate::fork::ForkCheck;
use crate::observe::{About, EventKind, Observers, Reason};
use crate::policy::SizeClasses;
use crate::policy::limit::{BucketLimit, CachedLimit, FullBucket};
use crate::policy::retention::{Retention, Ticks};
use crate::pool::guards::{GUARD_BYTES, Guards};
use crate::pool::hold::Holds;
use crate::stream::clock::StreamClock;
use crate::stream::order::{StealPolicy, Taker};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

pub(crate) use book::{BookState, Effort, PoolBook};

/// What a pool was built with, and that does not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) cached: CachedLimit,
    pub(crate) bucket: BucketLimit,
    pub(crate) full_bucket: FullBucket,
    pub(crate) statistics: bool,
    /// Blocks are cleared when they come back.
    pub(crate) zero_on_return: bool,
    pub(crate) steal: StealPolicy,
    pub(crate) retention: Retention,
}

/// Called when a request would be refused, with the bytes that it lacks; true to try again.
pub(crate) type OnShortage = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// The blocks of one pool.
pub(crate) struct Store<A: DeviceAllocator> {
    pub(crate) allocator: A,
    pub(crate) classes: SizeClasses,
    pub(crate) bounds: Bounds,
    pub(crate) ledger: Ledger,
    /// Flags that send allocations and frees past the thread caches.
    pub(crate) flags: Flags,
    /// Blocks that a thread holds between the book and the device. Moves on cold paths only.
    in_transit: AtomicUsize,
    /// Misses that are still to come without a look into other threads' caches, and how many looks
    /// in a row found nothing.
    blind: AtomicU32,
    in_vain: AtomicU32,
    pub(crate) ticks: Mutex<Ticks>,
    /// Dropped when the pool is closed: it may hold buffers, which hold the store.
    pub(crate) on_shortage: Mutex<Option<OnShortage>>,
    observers: Observers,
    pub(crate) guards: Option<Guards<A>>,
    pub(crate) holds: Holds,
    forks: ForkCheck,
    /// Dropped before the book, which has the slots of their records.
    pub(crate) caches: ThreadCaches<A>,
    /// Before the book, which has the slots of their records.
    pub(crate) privates: Privates<A>,
    pub(crate) book: PoolBook<A>,
}

/// How much cached memory is to go back, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) bytes: u64,
    pub(crate) reason: Reason,
}

impl Goal {
    /// All of it.
    pub(crate) fn all(reason: Reason) -> Self {
        Self { bytes: u64::MAX, reason }
    }
}

/// A block on its way out.
pub(crate) struct Grant<A: DeviceAllocator> {
    pub(crate) record: RecordOwner<A>,
    /// Whether the device served the request.
    pub(crate) fresh: bool,
    /// Whether all of it reads as zeroes.
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
                    | if observers.see_hits() || guards.is_some() { OBSERVED } else { 0 },
            ),
            observers,
            guards,
            in_transit: AtomicUsize::new(0),
            blind: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
            ticks: Mutex::default(),
            on_shortage: Mutex::new(on_shortage),
            holds: Holds::new(),
            forks: ForkCheck::new(),
            privates: Privates::new(),
        }
    }

    /// A hit in the thread's own cache. `None` for all that needs a closer look, and if any of the
    /// flags `passes_cache` is set.
    #[inline]
    pub(crate) fn hit(
        &self,
        stream: &StreamOf<A>,
        requested: u64,
        kind: A::Kind,
        passes_cache: u8,
    ) -> Option<RecordOwner<A>> {
        let clock = self.allocator.clock();
        let plain = clock.owns(stream) && clock.fault().is_none() && clock.takes_work(stream);
        if !plain || self.flags.any(passes_cache) {
            return None;
        }
        // A bin has only sizes and kinds that the pool offers.
        self.take_cached(stream, kind, (self.classes.quick(requested)?, requested))
    }

    /// Why no call can succeed that needs more than the thread's own cache.
    #[inline]
    pub(crate) fn fault(&self) -> Option<DeviceError> {
        let broken = || {
            let call = "use a pool in which threads of the parent process were at the fork";
            self.forks.is_broken(|| self.is_held()).then(|| DeviceError::new(Why::Forked, call, 0))
        };
        self.allocator.clock().fault().or_else(broken)
    }

    /// Whether this process is a fork of the one that made the device's handles.
    #[inline]
    pub(crate) fn has_lost_handles(&self) -> bool {
        self.allocator.clock().fault().is_some_and(|fault| fault.why == Why::Forked)
    }

    /// Whether this process is a fork of one that had the device's handles, or the locks.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fault().is_some_and(|fault| fault.why == Why::Forked)
    }

    /// Whether any lock is held, but for those of single blocks.
    fn is_held(&self) -> bool {
        self.book.is_locked()
            || self.privates.is_locked()
            || self.ticks.is_locked()
            || self.on_shortage.is_locked()
            || self.caches.is_any_entered()
            || self.ledger.budget.is_locked()
            || self.ledger.budget.is_awaited() // by a thread that is not here any more
    }

    /// The address by which a budget tells its pools apart.
    pub(crate) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// Who asks.
    #[inline]
    pub(crate) fn taker<'r>(&'r self, want: &Want<'r, A>) -> Taker<'r, A::Clock> {
        let (clock, steal) = (self.allocator.clock(), self.bounds.steal);
        Taker { clock, on: want.on, steal, cpu_touches: A::MEMORY.cpu_touches }
    }

    /// Bytes that are requested beyond those of a buffer.
    #[inline]
    pub(crate) fn guard_bytes(&self) -> u64 {
        if self.guards.is_some() { GUARD_BYTES } else { 0 }
    }

    /// Whether there are observers. Those that do not see hits have no flag.
    pub(crate) fn has_observers(&self) -> bool {
        self.observers.are_any()
    }

    /// Tells the observers of an event, if there are any. Call it with no lock held.
    #[inline]
    pub(crate) fn tell(&self, kind: EventKind, about: About) {
        if self.observers.are_any() {
            self.observers.tell(kind, about);
        }
    }

    /// Tells the observers that cached memory went back to the device.
    pub(crate) fn tell_eviction(&self, reason: Reason, bytes: u64) {
        self.tell(EventKind::Evict(reason), About { bytes, ..About::default() });
    }

    /// The budget, if a request waits under it. Ask after memory was made available, and wake it
    /// when no lock is held.
    #[inline]
    pub(crate) fn awaited(&self) -> Option<Budget> {
        let budget = &self.ledger.budget;
        budget.is_awaited().then(|| budget.clone())
    }

    /// A block of the private pool that the stream is bound to: a hit in stream order.
    pub(crate) fn take_private(&self, want: &Want<'_, A>, id: PrivateId) -> Option<Grant<A>> {
        let taker = self.taker(want);
        let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(&taker);
        let record = self.privates.take(id, want, ready)?;
        Some(self.lend_private(want, record))
    }

    /// Whether another thread holds blocks that may come free in a moment.
    pub(crate) fn is_in_transit(&self) -> bool {
        self.in_transit.load(Relaxed) > 0
    }

    /// The owner goes: nothing is kept from here on, and what is free goes back to the device.
    /// Returns how many buffers are out.
    pub(crate) fn close(&self) -> i64 {
        // Without the lock: its drop may return buffers to this store.
        let on_shortage = self.on_shortage.lock().take();
        drop(on_shortage);
        self.caches.close();
        let buffers = self.close_book();
        // No caller is left to be told.
        let (_, _) = (self.pay(), self.trim_book(Goal::all(Reason::Closed)));
        buffers
    }
}

impl<A: DeviceAllocator> Drop for Store<A> {
    fn drop(&mut self) {
        self.release_segments();
    }
}
