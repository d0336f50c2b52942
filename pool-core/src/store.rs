//! A pool behind its handles: its shards, its limits, and the rooms that a request and a free go through.
//!
//! ```text
//!   BucketPool::allocate       pool.rs
//!     Store::hit               hit.rs               one lock: a free block or range
//!     attempt::allocate        attempt.rs           the stages of a miss, in order
//!       search::search         search.rs, steal.rs  other streams, other shards, behind an event
//!       grow::grow             grow.rs              memory from the device (device.rs, pieces.rs)
//!       trim::trim             trim.rs              memory back to the device
//!       refusal::refuse        refusal.rs           the last look, and the error
//!   PooledBuffer::drop         buffer/freeing.rs
//!     free_plain               hit.rs               one lock: the block is free
//!     free::free               free.rs              what passes a limit goes back (trim.rs)
//! ```
//!
//! A room is a module of functions over a [`Store`], or a type; which may call which, the imports say, and no
//! two call each other. [`Store`] itself has what all of them ask.
//!
//! No lock is held across a call of the device, an observer or the program's own code. A function that takes
//! `&mut Heap` runs under the lock of a shard, and calls none of them. No lock of a
//! shard is waited for while another is held, but by cold calls that take all of them in their order: sums, the last
//! search before a refusal (refusal.rs), changed limits (leases.rs), more shards (spread.rs), and the end of a closed
//! pool (life.rs).

pub(crate) mod attempt;
mod bound;
#[cfg(all(test, not(any(loom, miri, shuttle))))] // broken pools are never freed
mod broken;
pub(crate) mod captures;
#[cfg(feature = "check")]
pub(crate) mod check;
pub(crate) mod device;
pub(crate) mod figures;
pub(crate) mod free;
mod grow;
pub(crate) mod hit;
mod layout;
mod leases;
pub(crate) mod life;
mod member;
#[cfg(all(test, loom))]
mod model;
mod pieces;
mod places;
pub(crate) mod refusal;
mod search;
pub(crate) mod spread;
mod steal;
pub(crate) mod sums;
pub(crate) mod trim;
mod visit;
pub(crate) mod warm;

use crate::block::PoolRequest;
use crate::block::guards::{GUARD_BYTES, Guards};
use crate::block::record::RecordOwner;
use crate::error::Figures;
use crate::invariant::{self, Scope};
use crate::limits::{
    Asker, Budget, CachedLimit, CachedLimitNow, DeviceId, InTransit, Ledger, Retention, Ticks,
    Transit,
};
use crate::observe::{DeviceStats, EventFields, EventKind, Observers, Reason};
use crate::port::{DeviceAllocator, DeviceError, StreamClock, StreamOf, Why, ZeroPolicy};
use crate::shard::{Heap, KeepRules, Removed, Shards};
use crate::size::SizeClasses;
use crate::store::bound::Totals;
use crate::store::captures::Privates;
use crate::store::device::Owned;
use crate::store::hit::{ARENA, BROKEN, CLOSED, Flags, LIMITED, OBSERVED, UNCACHED, ZEROES};
use crate::store::life::Owner;
use crate::store::places::Places;
use crate::store::sums::Peaks;
use crate::stream::{Requester, StealPolicy};
use crate::sys::atomic::Ordering::Relaxed;
use crate::sys::atomic::{AtomicU32, AtomicU64};
use crate::sys::{ForkCheck, Mutex};
use std::any::TypeId;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, OnceLock, Weak};

#[cfg(feature = "check")]
pub use check::{BlockSum, Checked};
pub(crate) use layout::Layout;

/// The settings of a pool. Its limits on cached memory may change while it runs.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) cached: CachedLimitNow,
    pub(crate) rules: KeepRules,
    pub(crate) statistics: bool,
    /// When blocks are zeroed.
    pub(crate) zero: ZeroPolicy,
    pub(crate) steal: StealPolicy,
    pub(crate) retention: Retention,
}

/// A function that the pool calls with the bytes that a request lacks, before it refuses the
/// request. It returns true if the pool should try again.
pub(crate) type OnShortage = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// All of a pool but its handles.
pub(crate) struct Store<A: DeviceAllocator> {
    pub(crate) allocator: A,
    pub(crate) classes: SizeClasses,
    pub(crate) settings: Settings,
    pub(crate) layout: Layout<A>,
    pub(crate) ledger: Ledger,
    /// Flags that send requests and frees the slow way.
    pub(crate) flags: Flags,
    /// Whether a block of a larger class may serve.
    larger_blocks_serve: bool,
    pub(crate) ticks: Mutex<Ticks>,
    /// Dropped when the pool is closed, because it may hold buffers, which keep the store alive.
    pub(crate) on_shortage: Mutex<Option<OnShortage>>,
    observers: Observers,
    pub(crate) guards: Option<Guards<A>>,
    forks: ForkCheck,
    /// The invariant that was found broken.
    broken: OnceLock<&'static str>,
    /// The latest time that a slow path has seen, by which shards know what is old.
    time: AtomicU64,
    /// Changes with the limits of the cache (`leases.rs`).
    epoch: AtomicU32,
    /// Bytes of the cached limit that shards have leased, where there are several.
    leased: AtomicU64,
    /// Bytes of the pool when its shards were last summed up for a peak, and requests that are no
    /// hits so far.
    summed: AtomicU64,
    slow_requests: AtomicU32,
    /// Peaks of the sums over several shards.
    peaks: Mutex<Peaks>,
    /// The calls to the device, and segments.
    calls: Mutex<DeviceStats>,
    /// The whole blocks that the pool has from the device.
    owned: Mutex<Owned>,
    /// By which shards are bounded.
    totals: Totals<A::Kind>,
    /// What shards have leased of the limits of buckets.
    places: Places<A::Kind>,
    /// Dropped before the shards, which own the slots of its records.
    pub(crate) privates: Privates<A>,
    pub(crate) shards: Shards<A>,
    /// The address of the box that it is in, once it is (`store/life.rs`).
    own: AtomicPtr<()>,
    /// Its owner, of which handles are counted.
    pub(crate) owner: OnceLock<Weak<Owner<A>>>,
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

impl<A: DeviceAllocator> Store<A> {
    pub(crate) fn new(
        (allocator, layout): (A, Layout<A>),
        classes: SizeClasses,
        settings: Settings,
        ledger: Ledger,
        (on_shortage, observers, guards): (Option<OnShortage>, Observers, Option<Guards<A>>),
        shards: Option<usize>,
    ) -> Self {
        allocator.prepare();
        // Of PyTorch's segments there is one list, of a bucket by stream one count.
        let is_one = layout.uncached
            || layout.is_torch()
            || settings.rules.limits_buckets && A::Clock::HAS_STREAMS;
        let most = if is_one { 1 } else { shards.unwrap_or_else(spread::most) };
        let first = Heap::new(0, layout.split(), settings.cached.get().bytes(0));
        let is_observed = observers.any_sees_hits() || guards.is_some();
        let flags = if settings.zero == ZeroPolicy::OnReturn { ZEROES } else { 0 }
            | if settings.rules.limits_buckets { LIMITED } else { 0 }
            | if layout.is_arena() { ARENA } else { 0 }
            | if layout.uncached { UNCACHED } else { 0 }
            | if is_observed { OBSERVED } else { 0 };
        let store = Self {
            shards: Shards::new(most, first),
            allocator,
            layout,
            larger_blocks_serve: classes.has_larger_blocks(),
            classes,
            settings,
            ledger,
            flags: Flags::new(flags),
            observers,
            guards,
            ticks: Mutex::default(),
            on_shortage: Mutex::new(on_shortage),
            forks: ForkCheck::new(),
            broken: OnceLock::new(),
            time: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            leased: AtomicU64::new(0),
            summed: AtomicU64::new(0),
            slow_requests: AtomicU32::new(0),
            peaks: Mutex::default(),
            calls: Mutex::default(),
            owned: Mutex::default(),
            totals: Totals::new(),
            places: Places::new(),
            privates: Privates::new(),
            own: AtomicPtr::default(),
            owner: OnceLock::new(),
        };
        if let Some(count) = shards {
            spread::spread_to(&store, count);
        }
        store
    }

    /// Returns the reason why no call can succeed: the device is lost, this process is a fork, or an
    /// invariant is broken.
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
    pub(crate) fn fault_of_device_or_fork(&self) -> Option<DeviceError> {
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
        Watch { store: self, wakes: true, _scope: Some(Scope::enter()) }
    }

    /// As [`Store::watch`], unless a call that this one is inside of has found an invariant broken. `wakes`: not
    /// for a caller that holds a lock of the store.
    #[inline]
    pub(crate) fn watch_plain(&self, wakes: bool) -> Option<Watch<'_, A>> {
        (!invariant::is_noted()).then(|| Watch { store: self, wakes, _scope: None })
    }

    /// Serves no more requests and takes no memory back, since an invariant is broken.
    #[cold]
    pub(crate) fn poison(&self, what: &'static str) {
        let _ = self.broken.set(what); // the first one stays
        self.flags.set(BROKEN, true);
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
        let may_be = self.is_broken() || self.fault_of_device_or_fork().is_some();
        may_be && self.is_forked_or_broken()
    }

    #[cold]
    #[inline(never)]
    fn is_forked_or_broken(&self) -> bool {
        self.fault().is_some_and(|fault| matches!(fault.why, Why::Forked | Why::Broken))
    }

    /// Returns whether any lock is held, except for those of single blocks.
    fn is_held(&self) -> bool {
        self.shards.is_any_locked()
            || self.privates.is_locked()
            || self.ticks.is_locked()
            || self.on_shortage.is_locked()
            || self.calls.is_locked()
            || self.owned.is_locked()
            || self.totals.is_locked()
            || self.places.is_locked()
            || self.peaks.is_locked()
            || self.ledger.budget.is_locked()
            || self.ledger.budget.has_waiters() // by a thread that does not exist in this process
    }

    /// Returns the address by which a budget tells its pools apart.
    pub(crate) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// Returns what a budget tells the devices of its pools apart by.
    pub(crate) fn device(&self) -> DeviceId {
        let address = std::ptr::from_ref(self.allocator.clock()).addr();
        // Memory without streams has a clock for each allocator.
        let address = if A::Clock::HAS_STREAMS { address } else { 0 };
        DeviceId { clock: TypeId::of::<A::Clock>(), address }
    }

    /// Returns what requests that wait are told apart by.
    pub(crate) fn asker(&self) -> Asker {
        Asker { pool: self.address().addr(), device: self.device() }
    }

    /// The shard that a request begins with.
    pub(super) fn home(&self, request: &PoolRequest<'_, A>) -> usize {
        self.shards.home(&request.key)
    }

    /// Brings the time of a shard and that of the pool to the later of the two.
    pub(super) fn keep_time(&self, heap: &mut Heap<A>) {
        let latest = self.time.fetch_max(heap.time, Relaxed);
        heap.time = heap.time.max(latest);
    }

    /// Whether free memory has no limit.
    #[inline]
    pub(super) fn is_unlimited(&self) -> bool {
        matches!(self.settings.cached.get(), CachedLimit::Unlimited)
    }

    /// Returns the stream that requests a block, with the rules for the blocks that it may take.
    #[inline]
    pub(crate) fn requester<'r>(&'r self, request: &PoolRequest<'r, A>) -> Requester<'r, A::Clock> {
        Requester { is_untold: request.is_untold, ..self.requester_on(request.on) }
    }

    /// As [`Store::requester`], for work on a stream.
    #[inline]
    pub(crate) fn requester_on<'r>(&'r self, on: &'r StreamOf<A>) -> Requester<'r, A::Clock> {
        let (clock, steal) = (self.allocator.clock(), self.settings.steal);
        let cpu_touches = A::MEMORY.cpu_touches;
        Requester { clock, on, steal, cpu_touches, is_untold: false, host_waits: false }
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
            self.observers.notify(kind, fields, None);
        }
    }

    /// Notifies the observers of a refusal with these figures.
    pub(crate) fn notify_refusal(&self, fields: EventFields, figures: &Figures) {
        if self.observers.has_any() {
            let kind = EventKind::Refuse(figures.cause.why);
            self.observers.notify(kind, fields, Some(figures));
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

    /// Returns the budget if a return of memory calls a request that waits under it. The caller asks
    /// after it has made memory available, and wakes the budget when it holds no lock.
    #[inline]
    pub(crate) fn awaited(&self) -> Option<Budget> {
        let budget = &self.ledger.budget;
        budget.has_calls().then(|| budget.clone())
    }

    /// Returns the memory that threads have outside of all lists, in all pools of the budget.
    pub(crate) fn transit(&self) -> &Transit {
        self.ledger.budget.transit()
    }

    /// Notes that memory leaves a list of a locked shard: it is on its way until the drop.
    pub(crate) fn leaves(&self, _from: &Heap<A>) -> InTransit<'_> {
        InTransit::new(self.transit())
    }

    /// Takes a whole block out of the pool's hands, under the lock of a shard.
    pub(crate) fn remove_block(
        &self,
        heap: &mut Heap<A>,
        record: RecordOwner<A>,
    ) -> Option<Removed<A>> {
        self.owned.lock().remove(&record);
        bound::note_gone(self, record.kind, record.bytes);
        heap.remove_block(record)
    }

    /// Closes the store when its owner is dropped: it keeps no more blocks.
    pub(crate) fn close(&self) {
        self.flags.set(CLOSED, true);
        // All at once: a thread that takes more shards meanwhile makes closed ones, or these are among all.
        self.shards.lock_all().iter_mut().for_each(|heap| heap.closed = true);
    }

    /// Drops the program's function for a shortage, which may hold buffers of any pool.
    pub(crate) fn drop_on_shortage(&self) {
        // The lock is released before the drop, which may return buffers to this store.
        let on_shortage = self.on_shortage.lock().take();
        drop(on_shortage);
    }
}

/// A call of a store under way.
pub(crate) struct Watch<'s, A: DeviceAllocator> {
    store: &'s Store<A>,
    /// Whether it wakes the requests that wait if it ends with a broken invariant.
    wakes: bool,
    /// Dropped after the store has taken the note of this call. `None` where no note is to be put aside.
    _scope: Option<Scope>,
}

impl<A: DeviceAllocator> Drop for Watch<'_, A> {
    #[inline]
    fn drop(&mut self) {
        if invariant::is_noted() {
            take_note(self.store, self.wakes);
        }
    }
}

impl<A: DeviceAllocator> Watch<'_, A> {
    /// Ends it. Returns whether it has found an invariant broken.
    #[inline]
    pub(crate) fn ends_broken(self) -> bool {
        let is_broken = invariant::is_noted();
        drop(self);
        is_broken
    }
}

/// Poisons a store with the note of this thread. (A call under way is not referred to, so that it needs no place on
/// the stack.)
#[cold]
#[inline(never)]
fn take_note<A: DeviceAllocator>(store: &Store<A>, wakes: bool) {
    let Some(what) = invariant::take() else { return };
    store.poison(what);
    // A request that waits for memory of this store may never get any.
    if wakes {
        store.ledger.budget.wake();
    }
}

impl<A: DeviceAllocator> Drop for Store<A> {
    fn drop(&mut self) {
        device::release_all(self);
    }
}
