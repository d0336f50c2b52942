//! `BucketPool`, the main type of the crate.

mod ahead;
pub(crate) mod builder;
pub(crate) mod pool_ref;
pub(crate) mod private_pool;
mod set_limits;
mod settings;
mod upkeep;
pub(crate) mod waiting;

use crate::block::record::RecordOwner;
use crate::block::request::{Key, PoolRequest};
use crate::buffer::PooledBuffer;
use crate::error::AllocError;
use crate::observe::{EventKind, Tag};
use crate::pool::pool_ref::HandleSettings;
use crate::pool::waiting::WakeAtEnd;
use crate::port::{DeviceAllocator, DeviceError, StreamClock, StreamOf, Why, ZeroPolicy, Zeroing};
use crate::shard::Grant;
use crate::store::Store;
use crate::store::flags::{ALWAYS, ARENA, AWAITED, OBSERVED, OF_HIT};
use crate::store::reference::{Handle, Owner};
use crate::store::stages::Short;
use std::fmt;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// A pool of blocks of one kind of memory, which caches freed blocks and reuses them.
///
/// Clones are handles to one pool. A pool may be dropped before its buffers: the pool gives its
/// cached blocks back to the device, and each buffer gives its block back when it is dropped.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{BucketPolicy, BucketPool, MIB, sim::SimDevice};
///
/// let pool = BucketPool::builder(SimDevice::new())
///     .policy(BucketPolicy::PowerOfTwo)
///     .cached_limit(64 * MIB)
///     .build();
/// drop(pool.allocate(3 * MIB)?);
/// let again = pool.allocate(4 * MIB)?; // the same block of 4 MiB
/// assert_eq!((again.size(), pool.stats().hits), (4 * MIB, 1));
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub struct BucketPool<A: DeviceAllocator> {
    handle: Handle<A>,
    settings: HandleSettings,
    /// The flags at which its requests are no hits.
    no_hit_at: u32,
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// Makes a pool over a store that has no owner yet.
    pub(crate) fn over(store: Store<A>) -> Self {
        let owner = Arc::new(Owner::new(store));
        let _ = owner.store().owner.set(Arc::downgrade(&owner));
        let (clock, budget) = (owner.store().allocator.clock(), &owner.store().ledger.budget);
        budget.join(&owner);
        clock.tell_of_submissions(budget.told_of_submissions());
        let no_hit_at = no_hit_at(owner.store().bounds.zero, false);
        Self { handle: Handle::new(owner), settings: HandleSettings::default(), no_hit_at }
    }

    /// Returns the pool's allocator.
    #[must_use]
    pub fn allocator(&self) -> &A {
        &self.store().allocator
    }

    /// Returns the name that [`PoolBuilder::name`](crate::PoolBuilder::name) gave the pool; empty
    /// if it has none.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).name("tiles").build();
    /// assert_eq!(pool.name(), "tiles");
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.store().name()
    }

    /// Returns the stream that requests without one are for.
    #[must_use]
    pub fn default_stream(&self) -> &StreamOf<A> {
        self.allocator().clock().default_stream()
    }

    /// Returns the granule: sizes of blocks are multiples of this many bytes, whatever the policy.
    #[must_use]
    pub fn granule(&self) -> u64 {
        match self.store().shape.is_arena() {
            false => self.allocator().granule(),
            true => self.store().shape.granule(),
        }
    }

    #[inline]
    pub(crate) fn store(&self) -> &Store<A> {
        self.handle.store()
    }

    /// Allocates a buffer of `bytes` bytes for the device's default stream. A buffer of 0 bytes is
    /// legal, and has a block of the smallest class.
    ///
    /// # Errors
    ///
    /// [`AllocError`] with the pool's figures: out of memory, over the limit, too large, or any
    /// other error of the device.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, Why, port::Limit, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB).build();
    /// let error = pool.allocate(5 * MIB).unwrap_err();
    /// assert_eq!((error.why(), error.figures().rounded_bytes), (Why::Limit(Limit::Reserved), 8 * MIB));
    /// ```
    #[inline]
    pub fn allocate(&self, bytes: u64) -> Result<PooledBuffer<A>, AllocError> {
        self.allocate_on(self.allocator().clock().default_stream(), bytes)
    }

    /// Allocates a buffer of `bytes` bytes for work on `stream`.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`], [`Why::Foreign`] for a stream of another device, and
    /// [`Why::NotSubmitted`] for a stream under a capture for which no [`PrivatePool`] of this pool
    /// is bound.
    ///
    /// [`PrivatePool`]: crate::PrivatePool
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let stream = pool.allocator().stream();
    /// let buffer = pool.allocate_on(&stream, 4096)?;
    /// pool.allocator().kernel(&stream, &*buffer.on(&stream)?);
    /// let foreign = SimDevice::new().stream();
    /// assert_eq!(pool.allocate_on(&foreign, 4096).unwrap_err().why(), Why::Foreign);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate_on(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
    ) -> Result<PooledBuffer<A>, AllocError> {
        self.allocate_kind(stream, bytes, A::Kind::default())
    }

    /// Allocates a buffer whose first `bytes` bytes are zero, whatever the pool's own policy.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, KIB, Why, port::Limit, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(KIB).build();
    /// let mut used = pool.allocate(4)?;
    /// used.write_at(0, b"1234")?;
    /// drop(used);
    /// assert_eq!(pool.allocate_zeroed(4)?.contents()?, [0; 4]); // the same block
    /// let stream = pool.allocator().stream();
    /// assert_eq!(pool.allocate_zeroed_on(&stream, 4)?.contents()?, [0; 4]);
    /// assert_eq!(pool.allocate_zeroed(2 * KIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate_zeroed(&self, bytes: u64) -> Result<PooledBuffer<A>, AllocError> {
        self.allocate_any(
            self.allocator().clock().default_stream(),
            bytes,
            A::Kind::default(),
            true,
        )
    }

    /// Allocates a buffer for work on `stream` whose first `bytes` bytes are zero.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    ///
    /// See [`BucketPool::allocate_zeroed`] for an example.
    pub fn allocate_zeroed_on(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
    ) -> Result<PooledBuffer<A>, AllocError> {
        self.allocate_any(stream, bytes, A::Kind::default(), true)
    }

    /// Allocates a buffer that starts at a multiple of `alignment` bytes.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`], and [`Why::Unsupported`] for an alignment that is not a
    /// power of two or that this memory does not offer.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let buffer = pool.allocate_aligned(100, 256)?;
    /// assert_eq!(buffer.on(pool.default_stream())?.bytes().start % 256, 0);
    /// assert_eq!(pool.allocate_aligned(100, 3).unwrap_err().why(), Why::Unsupported);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate_aligned(
        &self,
        bytes: u64,
        alignment: u64,
    ) -> Result<PooledBuffer<A>, AllocError> {
        let kind = self.kind_aligned(alignment, bytes)?;
        self.allocate_kind(self.allocator().clock().default_stream(), bytes, kind)
    }

    /// Allocates a buffer for work on `stream` that starts at a multiple of `alignment` bytes, such
    /// as the alignment of an element. If memory of the default kind has this alignment already,
    /// its cached blocks serve the request. Otherwise, and always in
    /// [`BucketPool::allocate_aligned`], the request is for the allocator's kind of memory with
    /// this alignment. `zeroed`: the first `bytes` bytes are zero.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`] and [`BucketPool::allocate_aligned`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// drop(pool.allocate(4096)?);
    /// let floats = pool.allocate_for(pool.default_stream(), 4096, align_of::<f32>() as u64, true)?;
    /// assert_eq!((floats.size(), pool.stats().hits), (4096, 1));
    /// let error = pool.allocate_for(pool.default_stream(), 4096, 3 << 20, false).unwrap_err();
    /// assert_eq!(error.why(), Why::Unsupported);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn allocate_for(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        alignment: u64,
        zeroed: bool,
    ) -> Result<PooledBuffer<A>, AllocError> {
        let mut kind = A::Kind::default();
        if alignment > self.allocator().alignment_of(kind) {
            kind = self.kind_aligned(alignment, bytes)?;
        }
        self.allocate_any(stream, bytes, kind, zeroed)
    }

    /// Returns the kind of memory whose blocks start at multiples of `alignment` bytes.
    #[cold]
    fn kind_aligned(&self, alignment: u64, bytes: u64) -> Result<A::Kind, AllocError> {
        self.store().aligned(A::Kind::default(), alignment).map_err(|cause| {
            let text = match cause {
                DeviceError { why: Why::Unsupported, expected: most @ 1.., .. } => {
                    format!("alignment of {alignment} B; expected a power of two up to {most}")
                }
                _ => format!("alignment of {alignment} B: {cause}"),
            };
            self.refusal(cause, bytes).with_argument(text)
        })
    }

    /// Allocates a buffer of a given kind of memory for work on `stream`. All other allocations are
    /// special cases of this call.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_on`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, DeviceAllocator, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::with_capacity(4096));
    /// let kind = pool.allocator().aligned(Default::default(), 256)?;
    /// let buffer = pool.allocate_kind(pool.default_stream(), 4096, kind)?;
    /// let error = pool.allocate_kind(pool.default_stream(), 4096, kind).unwrap_err();
    /// assert_eq!(error.why(), Why::OutOfMemory);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate_kind(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        kind: A::Kind,
    ) -> Result<PooledBuffer<A>, AllocError> {
        self.allocate_any(stream, bytes, kind, false)
    }

    #[inline]
    fn allocate_any(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        kind: A::Kind,
        zeroed: bool,
    ) -> Result<PooledBuffer<A>, AllocError> {
        if !zeroed && let Some(buffer) = self.hit(stream, bytes, kind) {
            if buffer.is_intact() {
                return Ok(buffer);
            }
            drop(buffer.detach()); // to the device
        }
        self.allocate_slow(stream, bytes, kind, zeroed)
    }

    /// Serves a request by one lock: a block of its stream that is free and ready. Returns `None` for
    /// requests that need more than that.
    #[inline]
    fn hit(&self, stream: &StreamOf<A>, requested: u64, kind: A::Kind) -> Option<PooledBuffer<A>> {
        let store = self.store();
        if store.flags.any(self.no_hit_at) {
            return self.hit_of_arena(stream, requested, kind);
        }
        if !store.is_plain_on(stream) {
            return None;
        }
        let bytes = match store.classes.fast(requested) {
            Some(bytes) => bytes,
            None => store.classes.slow_cached(requested)?,
        };
        let reuse = store.allocator.clock().reuse_of(stream);
        let on = reuse.as_ref().unwrap_or(stream);
        // Only sizes and kinds that the pool offers have free blocks.
        store.hit((stream, on), kind, (bytes, requested)).map(PooledBuffer::again)
    }

    /// As [`BucketPool::hit`], where a flag is set: a hit if that is [`ARENA`] alone.
    #[inline(never)]
    fn hit_of_arena(
        &self,
        stream: &StreamOf<A>,
        requested: u64,
        kind: A::Kind,
    ) -> Option<PooledBuffer<A>> {
        let store = self.store();
        if store.flags.get() & self.no_hit_at != ARENA || !store.is_plain_on(stream) {
            return None;
        }
        let bytes = match store.classes.fast(requested) {
            Some(bytes) => bytes,
            None => store.classes.slow_cached(requested)?,
        };
        let reuse = store.allocator.clock().reuse_of(stream);
        let on = reuse.as_ref().unwrap_or(stream);
        let watch = store.watch_plain(true)?;
        let found = store.hit_range((stream, on), kind, (bytes, requested));
        let buffer = found.map(PooledBuffer::again);
        drop(watch);
        if store.is_broken() { None } else { buffer }
    }

    /// Serves a request that is no plain hit.
    #[inline(never)]
    fn allocate_slow(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        kind: A::Kind,
        zeroed: bool,
    ) -> Result<PooledBuffer<A>, AllocError> {
        let wait_timeout = self.settings.wait_timeout();
        if let Some(timeout) = wait_timeout
            && self.budget().has_waiters()
        {
            // The request must not overtake the requests that wait already.
            return self.wait_for(stream, bytes, (kind, zeroed), timeout, None);
        }
        let joins_line = wait_timeout.is_some();
        let lent = self.try_allocate(stream, bytes, (kind, zeroed), joins_line);
        let short = match lent {
            Ok(buffer) => {
                // The request may have given more memory back than it needed.
                self.budget().wake();
                return Ok(buffer);
            }
            // A thread that does not exist in this process may hold the lock of the requests that
            // wait.
            Err(short) if short.cause.why == Why::Forked => short,
            Err(short) => {
                self.budget().wake();
                short
            }
        };
        if let Some(timeout) = wait_timeout
            && self.may_wait(&short)
        {
            return self.wait_for(stream, bytes, (kind, zeroed), timeout, Some(short));
        }
        Err(self.store().refuse(short, bytes, self.settings.tag()))
    }

    /// Serves a request, or returns why it cannot. Does not count a refusal. The caller wakes the
    /// requests that wait; after a panic this function wakes them. `joins_line`: the caller waits
    /// in the line if the request is refused.
    fn try_allocate(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        (kind, zeroed): (A::Kind, bool),
        joins_line: bool,
    ) -> Result<PooledBuffer<A>, Short> {
        let (watch, woken_by_panic) = (self.store().watch(), WakeAtEnd(self));
        let lent = self.allocate_now(stream, bytes, (kind, zeroed), joins_line);
        mem::forget(woken_by_panic);
        drop(watch);
        if self.store().is_broken()
            && let Some(fault) = self.store().fault()
        {
            return Err(Short::early(fault, bytes)); // the block may be another buffer's too
        }
        lent
    }

    fn allocate_now(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        (kind, zeroed): (A::Kind, bool),
        joins_line: bool,
    ) -> Result<PooledBuffer<A>, Short> {
        let clock = self.allocator().clock();
        // If zeroing runs ahead of the stream, the block must be ready ahead too.
        let zero = self.store().bounds.zero;
        let zeroes = zeroed || zero != ZeroPolicy::Never;
        let zeroes_ahead = zeroes && matches!(A::MEMORY.zeroing, Zeroing::Ahead);
        let other = match zeroes_ahead {
            true => Some(clock.ahead_of(stream)),
            false => clock.reuse_of(stream),
        };
        let on = other.as_ref().unwrap_or(stream);
        if zeroes && let Some((buffer, is_zeroed)) = self.hit_to_zero((stream, on), bytes, kind) {
            if buffer.is_intact() {
                return self.zeroed(buffer, is_zeroed, stream, (bytes, zeroed));
            }
            drop(buffer.detach()); // to the device
        }
        let Some(request) = self.pool_request((stream, on), bytes, kind) else {
            return Err(Short::early(self.cause((stream, on), bytes, kind), bytes));
        };
        let request = PoolRequest { joins_line, ..request };
        let (mut buffer, fresh, was_zeroed) = loop {
            let Grant { mut record, fresh } = self.store().allocate(&request)?;
            let was_zeroed = record.is_clean();
            if self.store().flags.any(OBSERVED) || (fresh && self.store().has_observers()) {
                self.notify_served(&request, &mut record, fresh);
            }
            invariant!(record.bytes >= request.class.bytes.min(bytes), "a block holds its request");
            invariant!(record.requested == bytes, "a block is counted with its request");
            invariant!(record.kind == kind, "a block is of the kind that was requested");
            let buffer = PooledBuffer::new(&self.handle, record);
            if fresh || buffer.is_intact() {
                break (buffer, fresh, was_zeroed);
            }
            drop(buffer.detach()); // to the device
        };
        let is_zeroed = buffer.check_freed(fresh, was_zeroed) && was_zeroed;
        self.zeroed(buffer, is_zeroed, stream, (bytes, zeroed))
    }

    /// The end of [`BucketPool::allocate_now`]: zeroes what must be.
    fn zeroed(
        &self,
        mut buffer: PooledBuffer<A>,
        is_zeroed: bool,
        stream: &StreamOf<A>,
        (bytes, zeroed): (u64, bool),
    ) -> Result<PooledBuffer<A>, Short> {
        let bytes_to_zero = match self.store().bounds.zero {
            _ if is_zeroed => 0,
            ZeroPolicy::Never if zeroed => bytes,
            ZeroPolicy::Never => 0,
            ZeroPolicy::OnAllocate | ZeroPolicy::OnReturn => buffer.allocated_size(),
        };
        if bytes_to_zero > 0
            && let Err(cause) = buffer.zero(bytes_to_zero, stream)
        {
            buffer.guard();
            // The block may be broken: it goes to the device, unless it is a part of a segment.
            drop(buffer.detach());
            return Err(Short::early(cause, bytes));
        }
        buffer.guard();
        Ok(buffer)
    }

    /// As [`BucketPool::hit`], of a block that is to be zeroed before a program has it. Returns also
    /// whether its bytes are zero already.
    fn hit_to_zero(
        &self,
        (stream, on): (&StreamOf<A>, &StreamOf<A>),
        requested: u64,
        kind: A::Kind,
    ) -> Option<(PooledBuffer<A>, bool)> {
        let store = self.store();
        if store.flags.get() & self.no_hit_at & !ALWAYS != 0 || !store.is_plain_on(stream) {
            return None;
        }
        let fast = store.classes.fast(requested);
        let bytes = fast.or_else(|| store.classes.slow_cached(requested))?;
        let (record, clean) = store.hit_to_zero((stream, on), kind, (bytes, requested))?;
        Some((PooledBuffer::again(record), clean))
    }

    /// Notifies the observers of a request that was served.
    #[cold]
    fn notify_served(
        &self,
        request: &PoolRequest<'_, A>,
        record: &mut RecordOwner<A>,
        fresh: bool,
    ) {
        record.tag = self.settings.tag();
        let kind = match (fresh, request.class.is_cached()) {
            (true, true) => EventKind::Miss,
            (true, false) => EventKind::Bypass,
            (false, _) => EventKind::Hit,
        };
        let own = record.marks.get_mut().own();
        self.store().notify(kind, record.event_fields(self.allocator().clock().stream_id(own)));
    }

    /// Returns a handle to this pool whose requests carry a tag for observers
    /// ([`PoolEvent::tag`](crate::observe::PoolEvent::tag)). Clones of the handle have the tag too. A
    /// process can have 65 535 tags; requests with further tags carry none.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, observe::PoolEvent, sim::SimDevice};
    /// use std::sync::{Arc, Mutex};
    ///
    /// let tags = Arc::new(Mutex::new(Vec::new()));
    /// let seen = tags.clone();
    /// let observer = move |event: &PoolEvent<'_>| seen.lock().unwrap().push(event.tag);
    /// let pool = BucketPool::builder(SimDevice::new()).observer(Arc::new(observer)).build();
    /// let loader = pool.tagged("loader");
    /// let batch = loader.allocate(4096)?;
    /// assert_eq!(*tags.lock().unwrap(), ["loader"]);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[must_use]
    pub fn tagged(&self, tag: &'static str) -> Self {
        Self { settings: self.settings.with_tag(Tag::new(tag)), ..self.clone() }
    }

    /// Returns a request with all data that a search needs; `None` if the pool refuses it before
    /// the search.
    #[inline]
    fn pool_request<'r>(
        &self,
        (stream, on): (&'r StreamOf<A>, &'r StreamOf<A>),
        requested: u64,
        kind: A::Kind,
    ) -> Option<PoolRequest<'r, A>> {
        let (store, clock) = (self.store(), self.allocator().clock());
        if store.fault().is_some() || !clock.owns(stream) || !store.offers(kind) {
            return None;
        }
        let class = store.classes.of(requested.checked_add(store.guard_bytes())?)?;
        let stream_id = clock.stream_id(clock.mark(on));
        let private = store.privates.of(stream_id);
        if private.is_none() && !clock.takes_work(on) {
            return None;
        }
        let (key, joins_line) = (Key { kind, stream_id }, false);
        Some(PoolRequest { on, stream, key, class, requested, private, joins_line })
    }

    /// Returns the reason why [`BucketPool::pool_request`] returned `None`.
    #[cold]
    fn cause(
        &self,
        (stream, on): (&StreamOf<A>, &StreamOf<A>),
        requested: u64,
        kind: A::Kind,
    ) -> DeviceError {
        let (store, clock) = (self.store(), self.allocator().clock());
        let because = |why, call| DeviceError::new(why, call);
        if let Some(fault) = store.fault() {
            fault
        } else if !clock.owns(stream) {
            because(Why::Foreign, "allocate on a stream that this device does not have")
        } else if store.classes.of(requested.saturating_add(store.guard_bytes())).is_none() {
            because(Why::TooLarge, "round up to a size class")
        } else if !store.offers(kind) {
            because(Why::Unsupported, "alignment above the granule")
        } else if !clock.takes_work(on) {
            // A graph's memory must not return to the pool before the graph is dropped.
            because(Why::NotSubmitted, "allocate on a stream that another pool's capture has")
        } else {
            because(Why::Other, "allocate while the stream changes")
        }
    }

    /// Returns an error of this pool for a request of `bytes` bytes that other code refuses, such
    /// as an array whose memory is not aligned. Counts as a refused request.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, DeviceError, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let cause = DeviceError::new(Why::Unsupported, "alignment of an element");
    /// let error = pool.refusal(cause, 4096);
    /// assert_eq!((error.why(), pool.stats().failures), (Why::Unsupported, 1));
    /// ```
    #[must_use]
    pub fn refusal(&self, cause: DeviceError, bytes: u64) -> AllocError {
        self.store().refuse(Short::early(cause, bytes), bytes, self.settings.tag())
    }

    /// Gives a buffer back to the pool that it came from. Dropping the buffer does the same.
    pub fn deallocate(&self, buffer: PooledBuffer<A>) {
        drop(buffer);
    }
}

/// The flags at which requests of a handle are no hits. A handle whose requests wait does not overtake
/// those that wait already.
fn no_hit_at(zero: ZeroPolicy, waits: bool) -> u32 {
    let zeroes = if zero == ZeroPolicy::Never { 0 } else { ALWAYS };
    OF_HIT | zeroes | if waits { AWAITED } else { 0 }
}

/// Unwind safe for the same reason as [`PooledBuffer`].
impl<A: DeviceAllocator> UnwindSafe for BucketPool<A> {}
impl<A: DeviceAllocator> RefUnwindSafe for BucketPool<A> {}

impl<A: DeviceAllocator> Clone for BucketPool<A> {
    fn clone(&self) -> Self {
        let Self { settings, no_hit_at, .. } = *self;
        Self { handle: self.handle.clone(), settings, no_hit_at }
    }
}

impl<A: DeviceAllocator> fmt::Debug for BucketPool<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketPool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
