//! Requests that wait for memory instead of failing.

use crate::block::Wanted;
use crate::buffer::PooledBuffer;
use crate::error::AllocError;
use crate::limits::{Kind, Lacks, NextStep, Ticket};
use crate::observe::{EventFields, EventKind};
use crate::pool::{BucketPool, no_hit_at};
use crate::port::{DeviceAllocator, DeviceError, Limit, StreamClock, StreamOf, Why};
use crate::store::refusal::Unserved;
use crate::store::{attempt, refusal, sums};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

impl<A: DeviceAllocator> BucketPool<A> {
    /// Returns a buffer of `bytes` bytes for the device's default stream, and blocks for at most
    /// `timeout` until there is memory for it.
    ///
    /// Requests that wait are served in the order of their arrival, over all pools of the
    /// [`Budget`](crate::limits::Budget); those that lack bytes of their pool's own limit let
    /// requests of other pools pass, and those that lack memory of their device requests of pools over
    /// other devices. The first of them tries again when a buffer of these pools is
    /// dropped, when memory goes back to the device (`trim`, `shrink_to`, `clear`, `tick`, a pool
    /// that is dropped), and when a limit rises; after some tries in vain once in a millisecond.
    /// [`BucketPool::allocate`] does not wait, and may be served before them. So may requests behind a
    /// future that was called and is not polled.
    ///
    /// Where the pool has free memory that device work keeps, a thread that waits looks after 1 to 16
    /// milliseconds whether that has ended; a future does not, and is called by the next free or `tick`.
    ///
    /// # Errors
    ///
    /// [`Why::TimedOut`] with the pool's figures when the timeout ends. The errors of
    /// [`BucketPool::allocate`], without a wait, if no free in these pools could help the request:
    /// its size is above the limit, or above what lost bytes leave of it, or the device is out of
    /// memory although these pools have none of it. [`Why::Unsupported`] in a browser if the request would wait: a program must not block there.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, Why, sim::SimDevice};
    /// use std::time::Duration;
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(MIB).build();
    /// let first = pool.allocate(MIB)?;
    /// let refused = pool.allocate_timeout(MIB, Duration::from_millis(1)).unwrap_err();
    /// assert_eq!(refused.why(), Why::TimedOut);
    /// std::thread::scope(|scope| {
    ///     let second = scope.spawn(|| pool.allocate_timeout(MIB, Duration::MAX));
    ///     drop(first);
    ///     assert!(second.join().unwrap().is_ok());
    /// });
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn allocate_timeout(
        &self,
        bytes: u64,
        timeout: Duration,
    ) -> Result<PooledBuffer<A>, AllocError> {
        self.allocate_timeout_on(self.allocator().clock().default_stream(), bytes, timeout)
    }

    /// Returns a buffer for work on `stream`, and blocks for at most `timeout` until there is
    /// memory for it.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_timeout`] and [`BucketPool::allocate_on`].
    ///
    /// See [`BucketPool::allocate_timeout`] for an example.
    pub fn allocate_timeout_on(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        timeout: Duration,
    ) -> Result<PooledBuffer<A>, AllocError> {
        let wanted = Wanted { stream, bytes, kind: A::Kind::default(), zeroed: false };
        self.wait_for(wanted, timeout, None)
    }

    /// Blocks for at most `timeout` until there is memory. `refused`: the refusal of a try that the
    /// caller has made.
    pub(super) fn wait_for(
        &self,
        wanted: Wanted<'_, A>,
        timeout: Duration,
        refused: Option<Unserved>,
    ) -> Result<PooledBuffer<A>, AllocError> {
        let mut request = self.request(wanted);
        (request.refused, request.kind_of_waiter) = (refused, Kind::Thread);
        if let Polled::Done(done) = request.advance(Waker::noop()) {
            return done;
        }
        if cfg!(all(target_family = "wasm", target_os = "unknown")) {
            let call = "wait in a browser, where a program must not block: await the memory";
            return request.give_up(DeviceError::new(Why::Unsupported, call));
        }
        let began = Instant::now();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let (mut tries, mut for_work) = (0_u32, Duration::ZERO);
        loop {
            let step = request.advance(&waker);
            let looks_at_work = matches!(step, Polled::Wait) && request.is_behind_work();
            let nap = match step {
                Polled::Done(done) => return done,
                // Frees may call it in vain without end. Those of a millisecond call it once.
                Polled::Again if tries >= QUICK_TRIES => NAP,
                Polled::Again => Duration::ZERO,
                Polled::Yield => NAP,
                Polled::Wait if looks_at_work => {
                    for_work = (for_work * 2).clamp(NAP, NAP_FOR_WORK);
                    for_work
                }
                Polled::Wait => Duration::MAX,
            };
            tries = tries.saturating_add(1);
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return request.time_out(timeout);
            }
            thread::park_timeout(nap.min(left));
            if looks_at_work {
                request.look_again();
            }
        }
    }

    /// Returns a handle of this pool whose requests wait for at most `timeout` instead of failing
    /// for lack of memory, as [`BucketPool::allocate_timeout`] does. This includes requests for
    /// arrays, for zeroed or aligned memory, and requests of clones of the handle.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, sim::SimDevice};
    /// use std::time::Duration;
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(MIB).build();
    /// let patient = pool.with_timeout(Duration::MAX);
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| patient.allocate_zeroed(MIB).unwrap());
    ///     }
    /// });
    /// assert_eq!(pool.stats().failures, 0);
    /// ```
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        let no_hit_at = no_hit_at(self.store().settings.zero, true);
        Self { settings: self.settings.with_timeout(timeout), no_hit_at, ..self.clone() }
    }

    /// Returns a future of a buffer of `bytes` bytes for the device's default stream, for any
    /// executor. It waits as [`BucketPool::allocate_timeout`] does, without a time. Dropping it
    /// cancels the request.
    ///
    /// A poll makes the same calls to the device as [`BucketPool::allocate`].
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_timeout`], without [`Why::TimedOut`].
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, sim::SimDevice};
    ///
    /// # pollster::block_on(async {
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(2 * MIB).build();
    /// let tile = pool.allocate_async(MIB).await?;
    /// assert_eq!(tile.size(), MIB);
    /// # Ok::<(), pool_core::AllocError>(())
    /// # }).unwrap();
    /// ```
    pub fn allocate_async(&self, bytes: u64) -> AllocateAsync<A> {
        self.allocate_async_on(self.allocator().clock().default_stream(), bytes)
    }

    /// Returns a future of a buffer for work on `stream`.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_async`] and [`BucketPool::allocate_on`].
    pub fn allocate_async_on(&self, stream: &StreamOf<A>, bytes: u64) -> AllocateAsync<A> {
        self.request(Wanted { stream, bytes, kind: A::Kind::default(), zeroed: false })
    }

    /// Whether a return of memory could turn a refusal into success: to the limit that refused, or to
    /// the device.
    pub(super) fn may_wait(&self, unserved: &Unserved) -> bool {
        let (store, bytes) = (self.store(), unserved.rounded);
        // The pools may have freed all reserved memory since the failed search.
        let came_back = || {
            unserved.returned.is_some_and(|before| before != store.transit().returns_of_others())
        };
        unserved.cause.is_out_of_memory()
            && attempt::could_hold(store, bytes)
            && match lacks(unserved) {
                Lacks::Pool => refusal::could_give_back(store, bytes) || came_back(),
                Lacks::Any => self.budget().could_leave(bytes) || came_back(),
                Lacks::Device => self.budget().may_get_back_from(store.device()) || came_back(),
            }
    }

    fn request(&self, wanted: Wanted<'_, A>) -> AllocateAsync<A> {
        let Wanted { stream, bytes, kind, zeroed } = wanted;
        AllocateAsync {
            pool: self.clone(),
            stream: stream.clone(),
            bytes,
            kind,
            zeroed,
            kind_of_waiter: Kind::Task,
            ticket: None,
            freed_before: 0,
            refused: None,
        }
    }
}

/// What a request lacked that was refused for lack of memory.
fn lacks(unserved: &Unserved) -> Lacks {
    match unserved.cause.why {
        Why::Limit(limit) => match limit {
            Limit::Reserved => Lacks::Pool,
            Limit::Budget => Lacks::Any,
            Limit::Device | Limit::Cached | Limit::Bucket => Lacks::Device,
        },
        _ => Lacks::Device,
    }
}

/// Wakes the first request that waits when it is dropped, also by a panic: a request that fails or
/// panics may have given memory back.
pub(super) struct WakeAtEnd<'p, A: DeviceAllocator>(pub(super) &'p BucketPool<A>);

impl<A: DeviceAllocator> Drop for WakeAtEnd<'_, A> {
    fn drop(&mut self) {
        // A thread that does not exist in this process may hold the lock of the requests that wait.
        if self.0.budget().has_waiters() && !self.0.store().is_forked() {
            self.0.budget().wake();
        }
    }
}

/// A request that waits for memory: the future of [`BucketPool::allocate_async`].
#[must_use = "a request is made when it is polled"]
pub struct AllocateAsync<A: DeviceAllocator> {
    pool: BucketPool<A>,
    stream: StreamOf<A>,
    bytes: u64,
    kind: A::Kind,
    zeroed: bool,
    kind_of_waiter: Kind,
    /// Its ticket for the line; `None` before it joins.
    ticket: Option<Ticket>,
    /// Buffers that the pool had freed when it joined.
    freed_before: u64,
    /// The refusal of its last try.
    refused: Option<Unserved>,
}

impl<A: DeviceAllocator> AllocateAsync<A> {
    fn wanted(&self) -> Wanted<'_, A> {
        let Self { bytes, kind, zeroed, .. } = *self;
        Wanted { stream: &self.stream, bytes, kind, zeroed }
    }

    /// The bytes of the class of the request, if the pool has one and searches for it.
    fn class_bytes(&self) -> Option<u64> {
        let request = self.pool.pool_request(self.wanted(), &self.stream);
        request.ok().map(|request| request.class.bytes)
    }

    /// Joins the line, and tries to allocate once if it is its turn.
    fn advance(&mut self, waker: &Waker) -> Polled<A> {
        let ticket = if let Some(ticket) = self.ticket {
            ticket
        } else {
            let tries = self.tries_before_it_waits();
            if tries && let Some(done) = self.try_now() {
                // The try may have freed more memory than it used, which may serve a request that
                // waits.
                drop(WakeAtEnd(&self.pool));
                return Polled::Done(done);
            }
            let budget = self.pool.budget();
            self.freed_before = sums::freed_buffers(self.pool.store());
            let ticket = {
                let _watch = self.pool.store().watch();
                budget.begin_waiting(self.kind_of_waiter, self.pool.store().asker())
            };
            self.ticket = Some(ticket);
            if tries {
                // Memory that the try has freed may serve a request that began to wait meanwhile.
                budget.wake();
            }
            refusal::count_wait(self.pool.store());
            let clock = self.pool.allocator().clock();
            let stream = clock.stream_id(clock.mark(&self.stream));
            let (tag, requested) = (self.pool.settings.tag(), self.bytes);
            let fields = EventFields { tag, stream, requested, ..EventFields::default() };
            self.pool.store().notify(EventKind::Wait, fields);
            ticket
        };
        let lacks = self.refused.as_ref().map_or(Lacks::Any, lacks);
        match self.pool.budget().waiters().next_step(ticket, lacks, waker) {
            NextStep::Wait => return Polled::Wait,
            NextStep::Yield => return Polled::Yield,
            NextStep::Try => {}
        }
        let done = self.try_now();
        if done.is_some() {
            self.leave();
        }
        // The try may have had more memory given back than it used, and those ahead of it, whom it has passed, may
        // have come and found nothing meanwhile.
        if done.is_some() || self.refused.as_ref().is_some_and(|refused| refused.given_back > 0) {
            drop(WakeAtEnd(&self.pool));
        }
        done.map_or(Polled::Again, Polled::Done)
    }

    /// Whether free memory waited for device work at its last try: nobody tells when that ends.
    fn is_behind_work(&self) -> bool {
        // One that has not tried yet waits behind others, of which nobody knows.
        let Some(unserved) = &self.refused else { return true };
        unserved.figures.as_ref().is_some_and(|figures| figures.pending_bytes > 0)
    }

    /// Lets it try, and those ahead of it, although no memory came back that anybody told of.
    fn look_again(&self) {
        self.pool.budget().waiters().wake(false);
    }

    /// Returns whether the request tries before it joins the queue. It does so if no other request
    /// waits and the caller has not tried yet, or if the pool would refuse it at once.
    fn tries_before_it_waits(&self) -> bool {
        if !self.pool.budget().has_waiters() {
            return self.refused.is_none();
        }
        self.class_bytes().is_none_or(|bytes| !attempt::could_hold(self.pool.store(), bytes))
    }

    /// Allocates, or returns `None` if a return of memory could serve the request.
    fn try_now(&mut self) -> Option<Result<PooledBuffer<A>, AllocError>> {
        match self.pool.serve(self.wanted(), true) {
            Ok(buffer) => Some(Ok(buffer)),
            Err(unserved) if self.pool.may_wait(&unserved) => {
                self.refused = Some(unserved);
                None
            }
            Err(unserved) => Some(Err(self.refuse(unserved))),
        }
    }

    /// Handles the end of the timeout. The first request of the queue tries once more, because work
    /// that its last try could not wait for may have been submitted since.
    fn time_out(mut self, timeout: Duration) -> Result<PooledBuffer<A>, AllocError> {
        let is_first =
            self.ticket.is_some_and(|ticket| self.pool.budget().waiters().is_first(ticket));
        if is_first && let Some(done) = self.try_now() {
            self.leave();
            drop(WakeAtEnd(&self.pool));
            return done;
        }
        let timeout = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        self.give_up(DeviceError::new(Why::TimedOut, "wait for memory").code(timeout))
    }

    /// Leaves the line, with this reason.
    fn give_up(mut self, cause: DeviceError) -> Result<PooledBuffer<A>, AllocError> {
        self.leave();
        let unserved = self
            .refused
            .take()
            .unwrap_or_else(|| Unserved::early(cause, self.class_bytes().unwrap_or(self.bytes)));
        let freed = sums::freed_buffers(self.pool.store()).wrapping_sub(self.freed_before);
        let unserved = Unserved { cause, freed_meanwhile: Some(freed), ..unserved };
        Err(self.refuse(unserved))
    }

    fn refuse(&self, unserved: Unserved) -> AllocError {
        refusal::refuse(self.pool.store(), unserved, self.bytes, self.pool.settings.tag())
    }

    fn leave(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let _watch = self.pool.store().watch();
            self.pool.budget().end_waiting(ticket);
        }
    }
}

impl<A: DeviceAllocator> Future for AllocateAsync<A> {
    type Output = Result<PooledBuffer<A>, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A poll tries twice at most: code that frees in a try would let it try again without end.
        for _ in 0..2 {
            match self.advance(context.waker()) {
                Polled::Done(done) => return Poll::Ready(done),
                Polled::Wait => return Poll::Pending,
                Polled::Yield => break,
                // The next step keeps the waker, or sees that memory came back during the try.
                Polled::Again => {}
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Nothing in it is pinned.
impl<A: DeviceAllocator> Unpin for AllocateAsync<A> {}

impl<A: DeviceAllocator> Drop for AllocateAsync<A> {
    fn drop(&mut self) {
        if !self.pool.store().is_forked() {
            self.leave();
        }
    }
}

impl<A: DeviceAllocator> fmt::Debug for AllocateAsync<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = self.ticket.is_some();
        f.debug_struct("AllocateAsync")
            .field("bytes", &self.bytes)
            .field("waits", &waits)
            .finish_non_exhaustive()
    }
}

/// What came of a step of a request that waits.
enum Polled<A: DeviceAllocator> {
    Done(Result<PooledBuffer<A>, AllocError>),
    /// It has tried. The next step tells whether memory came back meanwhile.
    Again,
    /// Tasks ahead of it were called and have not come. It comes again soon, by itself.
    Yield,
    /// Its waker is called when it is its turn.
    Wait,
}

/// How long a thread rests between two tries in vain.
const NAP: Duration = Duration::from_millis(1);
/// How long it rests at most while device work keeps memory.
const NAP_FOR_WORK: Duration = Duration::from_millis(16);
/// Tries without a rest between them.
const QUICK_TRIES: u32 = 8;

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
