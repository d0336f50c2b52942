//! A pool by a buffer of it: requests for which nobody counts a handle.
#![expect(unsafe_code, reason = "a buffer keeps the pool's memory in place of a count")]

use crate::buffer::PooledBuffer;
use crate::error::AllocError;
use crate::observe::Tag;
use crate::pool::{BucketPool, no_hit_at};
use crate::port::{DeviceAllocator, DeviceError, StreamOf};
use crate::store::life::Handle;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// Nanoseconds of a handle whose requests do not wait.
const WAITS_NOT: u32 = u32::MAX;

/// How a handle makes its requests: their tag ([`BucketPool::tagged`]), and how long they wait
/// ([`BucketPool::with_timeout`]). The default has no tag and does not wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HandleSettings {
    wait_secs: u64,
    /// Or [`WAITS_NOT`]. (An `Option` would cost eight bytes more.)
    wait_nanos: u32,
    tag: Tag,
}

impl HandleSettings {
    #[inline]
    pub(super) fn tag(self) -> Tag {
        self.tag
    }

    #[inline]
    pub(super) fn wait_timeout(self) -> Option<Duration> {
        (self.wait_nanos != WAITS_NOT).then(|| Duration::new(self.wait_secs, self.wait_nanos))
    }

    pub(super) fn with_tag(self, tag: Tag) -> Self {
        Self { tag, ..self }
    }

    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { wait_secs: timeout.as_secs(), wait_nanos: timeout.subsec_nanos(), ..self }
    }
}

impl Default for HandleSettings {
    fn default() -> Self {
        Self { wait_secs: 0, wait_nanos: WAITS_NOT, tag: Tag::default() }
    }
}

impl fmt::Debug for HandleSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleSettings")
            .field("tag", &self.tag.name())
            .field("wait_timeout", &self.wait_timeout())
            .finish_non_exhaustive()
    }
}

/// A pool for as long as a buffer or a handle of it is borrowed. It costs no reference count, so
/// results can be allocated beside their operands ([`PooledBuffer::pool`]).
///
/// It serves requests after the last handle of the pool is dropped too. Nothing is cached then: the
/// memory comes from the device, and goes back to it when the buffer is dropped.
pub struct PoolRef<'p, A: DeviceAllocator> {
    /// Its handle counts nothing, and is not given away.
    pool: BucketPool<A>,
    borrowed: PhantomData<&'p PooledBuffer<A>>,
}

impl<A: DeviceAllocator> BucketPool<A> {
    /// Returns the pool, borrowed.
    #[inline]
    #[must_use]
    pub fn by_ref(&self) -> PoolRef<'_, A> {
        let Self { settings, no_hit_at, .. } = *self;
        // SAFETY: the handle that is borrowed keeps the store.
        let handle = unsafe { Handle::uncounted(self.handle.address()) };
        PoolRef { pool: Self { handle, settings, no_hit_at }, borrowed: PhantomData }
    }
}

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Returns the pool that the buffer came from, for requests with these settings.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let (operand, settings) = (pool.allocate(4096)?, pool.by_ref().settings());
    /// let beside = operand.pool(settings);
    /// let result = beside.allocate_for(pool.default_stream(), 4096, 4, false)?;
    /// assert_eq!((result.size(), pool.stats().allocations), (4096, 2));
    /// assert!(beside.handle().is_some());
    /// drop(pool);
    /// assert!(beside.handle().is_none(), "the last handle is gone");
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn pool(&self, settings: HandleSettings) -> PoolRef<'_, A> {
        let waits = settings.wait_timeout().is_some();
        let no_hit_at = no_hit_at(self.store().settings.zero, waits);
        // SAFETY: the buffer that is borrowed keeps the store.
        let handle = unsafe { Handle::uncounted(self.store_address()) };
        PoolRef { pool: BucketPool { handle, settings, no_hit_at }, borrowed: PhantomData }
    }
}

impl<A: DeviceAllocator> PoolRef<'_, A> {
    /// Returns how the requests are made.
    #[inline]
    #[must_use]
    pub fn settings(&self) -> HandleSettings {
        self.pool.settings
    }

    /// Returns the pool's allocator.
    #[inline]
    #[must_use]
    pub fn allocator(&self) -> &A {
        self.pool.allocator()
    }

    /// Returns a handle of the pool; `None` if the last one was dropped.
    #[must_use]
    pub fn handle(&self) -> Option<BucketPool<A>> {
        let owner = self.pool.store().owner.get()?.upgrade()?;
        let BucketPool { settings, no_hit_at, .. } = self.pool;
        Some(BucketPool { handle: Handle::new(owner), settings, no_hit_at })
    }

    /// Allocates a buffer as [`BucketPool::allocate_for`] does.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_for`].
    ///
    /// See [`PooledBuffer::pool`] for an example.
    #[inline]
    pub fn allocate_for(
        &self,
        stream: &StreamOf<A>,
        bytes: u64,
        alignment: u64,
        zeroed: bool,
    ) -> Result<PooledBuffer<A>, AllocError> {
        self.pool.allocate_for(stream, bytes, alignment, zeroed)
    }

    /// Returns an error of the pool, as [`BucketPool::refusal`] does.
    #[must_use]
    pub fn refusal(&self, cause: DeviceError, bytes: u64) -> AllocError {
        self.pool.refusal(cause, bytes)
    }
}

impl<A: DeviceAllocator> fmt::Debug for PoolRef<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolRef").field("pool", &self.pool).finish()
    }
}
