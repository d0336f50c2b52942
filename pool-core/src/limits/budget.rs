//! One limit for several pools, and the threads and tasks that wait for memory under it.

use super::transit::Transit;
use super::waiters::{Asker, DeviceId, Joined, Kind, Ticket, Waiters};
use crate::limits::Bounded;
use crate::port::{DeviceError, Limit};
use crate::size::Bytes;
use crate::sys::Lock;
use crate::sys::atomic::AtomicU64;
use crate::sys::atomic::Ordering::{Relaxed, SeqCst};
use crate::sys::modelled::fence;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

/// A limit on the bytes that one or several pools take from their devices, which may change at any
/// time. Clones are the same budget. Every pool has one; unless
/// [`PoolBuilder::budget`](crate::PoolBuilder::budget) is called, one without a limit that it
/// shares with no other pool.
///
/// If a request would exceed the budget, the other pools release cached memory to their devices.
/// Requests that wait ([`BucketPool::allocate_timeout`](crate::BucketPool::allocate_timeout)) are
/// served in the order of their arrival, over all pools of the budget.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, MIB, Why, limits::Budget, port::Limit, sim::SimDevice};
///
/// let budget = Budget::new(8 * MIB);
/// let [weights, scratch] =
///     [(); 2].map(|()| BucketPool::builder(SimDevice::new()).budget(&budget).build());
/// let layer = weights.allocate(4 * MIB)?;
/// drop(scratch.allocate(4 * MIB)?); // cached
/// let next = weights.allocate(4 * MIB)?; // `scratch` gives its 4 MiB back
/// assert_eq!(scratch.allocate(MIB).unwrap_err().why(), Why::Limit(Limit::Budget));
/// budget.set_limit(12 * MIB);
/// assert!(scratch.allocate(MIB).is_ok());
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    bytes: Bounded,
    /// Those of the reserved bytes that broken pools had which are gone: nobody will free them.
    never_freed: AtomicU64,
    /// The lowest high-water mark in bytes. Below it no callback is due, so `marks` need not be
    /// read.
    lowest_mark_bytes: AtomicU64,
    marks: Lock<Vec<HighWaterMark>>,
    waiters: Waiters,
    transit: Transit,
    pools: Lock<Vec<Weak<dyn Member>>>,
    /// What clocks call when work was submitted.
    told: OnceLock<Arc<dyn Fn() + Send + Sync>>,
}

/// A pool of a budget.
pub(crate) trait Member: Send + Sync {
    /// Notes whether a request waits, whom each free wakes then. The change holds for each free that
    /// begins after this call returns.
    fn set_awaited(&self, on: bool);

    /// Looks whether this process is a fork that cannot use the pool. The caller holds no lock.
    fn look_for_forks(&self);

    /// Gives cached memory back, at least `bytes` bytes or all. Returns the bytes given back.
    /// `to_device`: also what a pool of the driver keeps, which counts for no limit.
    fn trim_short(&self, bytes: u64, to_device: bool) -> u64;

    /// Returns the bytes that the pool's device failed to free. They never become available again.
    fn lost_bytes(&self) -> u64;

    /// Returns the bytes that the pool has from its device, and those of calls in progress.
    fn claimed_bytes(&self) -> u64;

    fn device(&self) -> DeviceId;

    /// Returns the address of the pool's store, which identifies the pool.
    fn address(&self) -> *const ();
}

/// A high-water mark: a callback at a share of the limit.
struct HighWaterMark {
    share: f64,
    call: Arc<OnPressure>,
    /// Whether reserved bytes have been below the mark since its last call.
    armed: bool,
}

type OnPressure = dyn Fn(&Pressure<'_>) + Send + Sync;

/// The state of a [`Budget`] when its reserved bytes reach a high-water mark.
#[derive(Debug)]
#[non_exhaustive]
pub struct Pressure<'b> {
    /// Bytes that the pools have taken from their devices, those of this request among them.
    pub reserved_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// Bytes that are about to be taken from a device.
    pub requested_bytes: u64,
    budget: &'b Budget,
}

impl Pressure<'_> {
    /// Gives back at least `bytes` bytes of cached memory of the budget's pools, or all there is.
    /// Returns the bytes given back.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn trim(&self, bytes: u64) -> u64 {
        self.budget.trim(bytes)
    }
}

impl Budget {
    /// A budget of `limit` bytes. `u64::MAX` is no limit.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Shared {
            bytes: Bounded::new(limit),
            never_freed: AtomicU64::new(0),
            lowest_mark_bytes: AtomicU64::new(u64::MAX),
            marks: Lock::new(Vec::new()),
            waiters: Waiters::new(),
            transit: Transit::default(),
            pools: Lock::new(Vec::new()),
            told: OnceLock::new(),
        }))
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.bytes.limit()
    }

    /// Returns the bytes that the pools have taken from their devices, and are about to take.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.0.bytes.claimed()
    }

    /// Returns how many requests wait for memory.
    #[must_use]
    pub fn waiter_count(&self) -> usize {
        self.0.waiters.count()
    }

    /// Changes the limit. A lower limit takes effect at once: the pools release cached memory to
    /// their devices until at most `limit` bytes are reserved. The memory of buffers stays reserved
    /// until they are dropped. A higher limit wakes the requests that wait. Returns the bytes
    /// released.
    ///
    /// Calls the devices of the pools.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn set_limit(&self, limit: u64) -> u64 {
        self.0.bytes.set_limit(limit);
        {
            let mut marks = self.0.marks.lock();
            self.update_lowest_mark(&marks);
            self.arm(&mut marks);
        }
        fence(SeqCst);
        self.0.transit.note_return();
        self.trim(self.reserved_bytes().saturating_sub(limit))
    }

    /// Gives back at least `bytes` bytes of cached memory of the pools, or all there is. Returns
    /// the bytes given back.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn trim(&self, bytes: u64) -> u64 {
        let _woken = WakeBudget(self.clone());
        self.trim_others(bytes, std::ptr::null(), true).unwrap_or(0)
    }

    /// Registers `call`. A pool calls it when a request would raise the reserved bytes to `share`
    /// of the limit, 0 to 1, or above: on the thread of the request, before the device is called or
    /// the request is refused, and with no lock held. `call` may drop buffers, trim, or tell the
    /// program to use less. After a call, the pools do not call it again until the reserved bytes
    /// have been below the mark, because memory was freed or the limit changed. Without a limit
    /// they never call it.
    ///
    /// A `call` that panics unwinds through the request, which takes nothing then. The budget keeps
    /// `call` as long as it lives, so `call` must not hold a pool of this budget, or buffers of
    /// one: use [`Pressure::trim`].
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, limits::Budget, sim::SimDevice};
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering::Relaxed}};
    ///
    /// let (budget, seen) = (Budget::new(10 * MIB), Arc::new(AtomicU64::new(0)));
    /// let note = seen.clone();
    /// budget.on_high_water(0.9, move |pressure| note.store(pressure.reserved_bytes, Relaxed));
    /// let pool = BucketPool::builder(SimDevice::new()).budget(&budget).build();
    /// let buffers = [pool.allocate(8 * MIB)?, pool.allocate(MIB)?];
    /// assert_eq!(seen.load(Relaxed), 9 * MIB);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn on_high_water(&self, share: f64, call: impl Fn(&Pressure<'_>) + Send + Sync + 'static) {
        let mut marks = self.0.marks.lock();
        marks.push(HighWaterMark { share, call: Arc::new(call), armed: true });
        self.update_lowest_mark(&marks);
    }

    fn update_lowest_mark(&self, marks: &[HighWaterMark]) {
        let limit = self.limit();
        let lowest = marks.iter().map(|mark| mark.bytes(limit)).min();
        self.0.lowest_mark_bytes.store(lowest.unwrap_or(u64::MAX), Relaxed);
    }

    /// Reserves bytes for a call to a device, or leaves everything as it is.
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), DeviceError> {
        match self.0.bytes.claim(bytes) {
            Ok(before) => {
                // The bytes are given back if a call panics.
                let back = UnreserveOnDrop { budget: self, bytes };
                self.run_high_water_callbacks(before + bytes, bytes);
                std::mem::forget(back);
                // Another thread may have freed bytes and run `arm_passed` before `run_high_water_callbacks`
                // disarmed the marks.
                self.arm_passed();
                Ok(())
            }
            Err(before) => {
                // The call may make room.
                self.run_high_water_callbacks(before.saturating_add(bytes), bytes);
                let refused = |_| DeviceError::limit(Limit::Budget);
                self.0.bytes.claim(bytes).map(drop).map_err(refused)
            }
        }
    }

    /// Runs the callbacks of the armed high-water marks that `reserved` bytes reach, and disarms
    /// them.
    fn run_high_water_callbacks(&self, reserved: u64, requested: u64) {
        if reserved < self.0.lowest_mark_bytes.load(Relaxed) {
            return;
        }
        let limit = self.limit();
        let due: Vec<_> = {
            let mut marks = self.0.marks.lock();
            let reached = marks.iter_mut().filter(|mark| mark.bytes(limit) <= reserved);
            let due = reached
                .filter_map(|mark| std::mem::take(&mut mark.armed).then(|| mark.call.clone()));
            due.collect()
        };
        let (reserved_bytes, limit_bytes, requested_bytes) = (reserved, limit, requested);
        let pressure = Pressure { reserved_bytes, limit_bytes, requested_bytes, budget: self };
        for call in due {
            call(&pressure);
        }
    }

    /// Subtracts bytes that were freed to a device, or that were reserved and not allocated.
    pub(super) fn unreserve(&self, bytes: u64) {
        let were_reserved = self.0.bytes.give_up(bytes);
        self.0.transit.note_return();
        self.arm_passed();
        invariant!(were_reserved, "a budget counts each reserved byte of its pools once");
    }

    /// Arms the marks above the reserved bytes, if there are any marks.
    fn arm_passed(&self) {
        if self.0.lowest_mark_bytes.load(Relaxed) < u64::MAX {
            let mut marks = self.0.marks.lock();
            self.arm(&mut marks);
        }
    }

    /// Arms the marks above a number of reserved bytes.
    fn arm(&self, marks: &mut [HighWaterMark]) {
        let (limit, reserved) = (self.limit(), self.0.bytes.claimed());
        let passed = marks.iter_mut().filter(|mark| reserved < mark.bytes(limit));
        passed.for_each(|mark| mark.armed = true);
    }

    /// Bytes that may still be reserved.
    pub(super) fn available(&self) -> u64 {
        self.limit().saturating_sub(self.reserved_bytes())
    }

    /// Trims the pools other than the one at the address `but`, by `bytes` bytes in all. Returns
    /// the bytes released; `None` if there are no other pools. `to_device`: as for a member.
    pub(super) fn trim_others(&self, bytes: u64, but: *const (), to_device: bool) -> Option<u64> {
        let pools = self.members();
        let mut others = pools.iter().filter(|pool| pool.address() != but).peekable();
        others.peek()?;
        Some(others.fold(0, |given_back, pool| {
            let more = bytes.saturating_sub(given_back);
            given_back + if more > 0 { pool.trim_short(more, to_device) } else { 0 }
        }))
    }

    /// Whether the limit leaves `bytes` bytes to a pool once all pools have given back what they can.
    pub(crate) fn could_leave(&self, bytes: u64) -> bool {
        let lost: u64 = self.members().iter().map(|pool| pool.lost_bytes()).sum();
        let gone = lost.saturating_add(self.0.never_freed.load(SeqCst));
        bytes <= self.limit().saturating_sub(gone)
    }

    /// Whether the pools over a device have memory of it that could still be freed, by dropping
    /// buffers or by trimming caches.
    pub(crate) fn may_get_back_from(&self, device: DeviceId) -> bool {
        let pools = self.members();
        let mut on_it = pools.iter().filter(|pool| pool.device() == device);
        on_it.any(|pool| pool.claimed_bytes() > pool.lost_bytes())
    }

    fn members(&self) -> Vec<Arc<dyn Member>> {
        self.0.pools.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes that nobody will free `bytes` of the reserved bytes: their pool was broken and is gone.
    pub(super) fn note_never_freed(&self, bytes: u64) {
        self.0.never_freed.fetch_add(bytes, SeqCst);
        self.0.transit.note_return();
    }

    /// Adds a pool.
    pub(crate) fn join(&self, pool: &Arc<impl Member + 'static>) {
        let weak = Arc::downgrade(pool);
        let mut pools = self.0.pools.lock();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(weak);
        pool.set_awaited(self.waiter_count() > 0);
    }

    /// Tells all pools whether a request waits.
    fn set_awaited_of_pools(&self) {
        let pools = {
            let pools = self.0.pools.lock();
            let members: Vec<_> = pools.iter().filter_map(Weak::upgrade).collect();
            let on = self.waiter_count() > 0;
            for pool in &members {
                pool.set_awaited(on);
            }
            members
        };
        // This may be the last reference to a pool, whose drop takes the lock.
        drop(pools);
    }

    /// Adds a request to the end of the queue of waiting requests, and returns its ticket. After this
    /// call returns, every free calls those that it may serve.
    ///
    /// `from`: the request's pool.
    pub(crate) fn begin_waiting(&self, kind: Kind, from: Asker) -> Ticket {
        // In a forked child the pools look at their locks once. That is before this request is in the line, and its
        // thread holds a lock of the budget, which they would take for those of the parent.
        self.members().iter().for_each(|pool| pool.look_for_forks());
        let Joined { ticket, is_only } = self.0.waiters.join(kind, from);
        if is_only {
            let joined = LeaveOnDrop { budget: self, ticket };
            self.set_awaited_of_pools();
            std::mem::forget(joined);
        }
        ticket
    }

    /// Removes a request from those that wait: it was served, refused or given up.
    pub(crate) fn end_waiting(&self, ticket: Ticket) {
        let left = self.0.waiters.leave(ticket);
        if left.was_last {
            self.set_awaited_of_pools();
        }
    }

    /// The memory of all its pools that is on its way to or from a device.
    pub(crate) fn transit(&self) -> &Transit {
        &self.0.transit
    }

    /// The requests that wait.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.0.waiters
    }

    /// Returns whether a request waits. A thread that has just made memory available calls this.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.0.waiters.has_any()
    }

    /// Whether a return of memory is to be followed by [`Budget::wake`] ([`Waiters::has_calls`]).
    #[inline]
    pub(crate) fn has_calls(&self) -> bool {
        self.0.waiters.has_calls()
    }

    /// Returns what a clock calls when work was submitted: requests may wait for memory behind it.
    pub(crate) fn told_of_submissions(&self) -> Weak<dyn Fn() + Send + Sync> {
        let told = self.0.told.get_or_init(|| {
            let shared = Arc::downgrade(&self.0);
            Arc::new(move || {
                if let Some(shared) = shared.upgrade() {
                    Self(shared).wake();
                }
            })
        });
        Arc::downgrade(told)
    }

    /// Calls the requests that may be served now, if any wait. Call it with no lock held.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.has_calls() {
            self.0.waiters.wake(false);
        }
    }

    /// Returns whether any lock of the budget is held.
    pub(crate) fn is_locked(&self) -> bool {
        self.0.marks.is_locked() || self.0.pools.is_locked() || self.0.waiters.is_locked()
    }
}

/// Wakes the first request that waits when it is dropped, also by a panic.
pub(crate) struct WakeBudget(pub(crate) Budget);

impl Drop for WakeBudget {
    fn drop(&mut self) {
        if self.0.has_calls() {
            self.0.0.waiters.wake(true);
        }
    }
}

/// A request that the drop removes from those that wait: a pool could not be told of it.
struct LeaveOnDrop<'b> {
    budget: &'b Budget,
    ticket: Ticket,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        drop(self.budget.0.waiters.leave(self.ticket));
    }
}

/// Reserved bytes that the drop subtracts from the budget again.
struct UnreserveOnDrop<'b> {
    budget: &'b Budget,
    bytes: u64,
}

impl Drop for UnreserveOnDrop<'_> {
    fn drop(&mut self) {
        self.budget.unreserve(self.bytes);
    }
}

impl HighWaterMark {
    /// Returns the mark in bytes. Without a limit it is `u64::MAX`, which reserved bytes never
    /// reach.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates; a negative or NaN share gives 0"
    )]
    fn bytes(&self, limit: u64) -> u64 {
        if limit == u64::MAX { u64::MAX } else { (limit as f64 * self.share) as u64 }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reserved, limit) = (Bytes(self.reserved_bytes()), Bytes(self.limit()));
        f.debug_struct("Budget")
            .field("reserved", &format_args!("{reserved}"))
            .field("limit", &format_args!("{limit}"))
            .field("waiting", &self.waiter_count())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A forked child checks this, because a lock that another thread of its parent held stays
    /// locked.
    #[test]
    fn each_lock_of_a_budget_is_seen() {
        let budget = Budget::new(1);
        assert!(!budget.is_locked());
        {
            let _held = budget.0.marks.lock();
            assert!(budget.is_locked());
        }
        {
            let _held = budget.0.pools.lock();
            assert!(budget.is_locked());
        }
        assert!(!budget.is_locked());
    }
}
