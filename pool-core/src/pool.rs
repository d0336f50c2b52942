//! `BucketPool`, the main type of the crate.

mod ahead;
pub(crate) mod builder;
pub(crate) mod pool_ref;
pub(crate) mod private_pool;
mod serve;
mod settings;
mod upkeep;
pub(crate) mod waiting;

use crate::buffer::PooledBuffer;
use crate::error::AllocError;
use crate::observe::Tag;
use crate::pool::pool_ref::HandleSettings;
use crate::port::{DeviceAllocator, DeviceError, StreamClock, StreamOf, Why, ZeroPolicy};
use crate::store::hit::{ALWAYS, ARENA, AWAITED, OF_HIT};
use crate::store::life::{Handle, Owner};
use crate::store::refusal::Unserved;
use crate::store::{Store, device, refusal};
use std::fmt;
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
        let no_hit_at = no_hit_at(owner.store().settings.zero, false);
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
        match self.store().layout.is_arena() {
            false => self.allocator().granule(),
            true => self.store().layout.granule(),
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
        self.hit_or_slow(stream, bytes, A::Kind::default())
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
        self.allocate_zeroed_on(self.allocator().clock().default_stream(), bytes)
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
        self.allocate_slow(stream, bytes, A::Kind::default(), true)
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
        match zeroed {
            true => self.allocate_slow(stream, bytes, kind, true),
            false => self.allocate_kind(stream, bytes, kind),
        }
    }

    /// Returns the kind of memory whose blocks start at multiples of `alignment` bytes.
    #[cold]
    fn kind_aligned(&self, alignment: u64, bytes: u64) -> Result<A::Kind, AllocError> {
        device::aligned(self.store(), A::Kind::default(), alignment).map_err(|cause| {
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
        self.hit_or_slow(stream, bytes, kind)
    }

    /// In each of its callers, so that the default kind is a constant where a program names none.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn hit_or_slow(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        kind: A::Kind,
    ) -> Result<PooledBuffer<A>, AllocError> {
        if let Some(buffer) = self.hit(stream, bytes, kind) {
            if buffer.is_intact() {
                return Ok(buffer);
            }
            drop(buffer.detach()); // to the device
        }
        self.allocate_slow(stream, bytes, kind, false)
    }

    /// Serves a request by one lock: a block of its stream that is free and ready. Returns `None` for
    /// requests that need more than that.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn hit(&self, stream: &StreamOf<A>, requested: u64, kind: A::Kind) -> Option<PooledBuffer<A>> {
        let store = self.store();
        let flags = store.flags.get() & self.no_hit_at;
        if flags != 0 {
            return self.hit_of_arena(flags, stream, requested, kind);
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
        flags: u32,
        stream: &StreamOf<A>,
        requested: u64,
        kind: A::Kind,
    ) -> Option<PooledBuffer<A>> {
        let store = self.store();
        if flags != ARENA || !store.is_plain_on(stream) {
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
        let buffer = found.map(PooledBuffer::again); // which keeps the memory of a broken pool
        if watch.ends_broken() { None } else { buffer }
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
        refusal::refuse(self.store(), Unserved::early(cause, bytes), bytes, self.settings.tag())
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
