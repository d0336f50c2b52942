//! Pools and buffers without the type of their memory, for programs that choose it when they run.
#![expect(unsafe_code, reason = "a buffer is one pointer, whose type is known by its calls")]

use pool_core::limits::Budget;
use pool_core::{AllocError, BucketPool, DeviceError, PoolStats, PooledBuffer, Transfer, Why};
use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;

/// A [`BucketPool`] of any memory. Clones are the same pool.
///
/// A hit costs 25 instructions more than in a pool of a known memory. Requests are for the device's
/// default stream; [`AnyPool::downcast_ref`] gives the pool with its streams.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, KIB, config::AnyPool, sim::{MappedSim, SimDevice}};
///
/// let mapped = std::env::args().count() > 5;
/// let pool: AnyPool = match mapped {
///     true => BucketPool::new(MappedSim::new(SimDevice::new())).into(),
///     false => BucketPool::new(SimDevice::new()).into(),
/// };
/// let mut buffer = pool.allocate(KIB)?;
/// buffer.write_at(0, b"any")?;
/// assert_eq!(&buffer.contents()?[..3], b"any");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AnyPool {
    pool: Arc<dyn Erased>,
}

/// A buffer of an [`AnyPool`]. Dropping it gives the block back, as [`PooledBuffer`] does.
pub struct AnyBuffer {
    /// A [`PooledBuffer`] of the memory that `calls` are for.
    buffer: NonNull<()>,
    calls: &'static BufferCalls,
}

/// The calls of a [`PooledBuffer`] of one memory. Each takes the `buffer` of an [`AnyBuffer`] with
/// these calls.
struct BufferCalls {
    memory: fn() -> TypeId,
    name: fn() -> &'static str,
    drop: unsafe fn(NonNull<()>),
    size: unsafe fn(&NonNull<()>) -> u64,
    allocated_size: unsafe fn(&NonNull<()>) -> u64,
    write: WriteCall,
    read: ReadCall,
}

type WriteCall = unsafe fn(&mut NonNull<()>, u64, &[u8]) -> Result<(), DeviceError>;
type ReadCall = unsafe fn(&NonNull<()>, u64, &mut [u8]) -> Result<(), DeviceError>;

/// A pool, as its own type knows it.
trait Erased: Send + Sync + 'static {
    fn allocate(&self, bytes: u64) -> Result<AnyBuffer, AllocError>;
    fn allocate_zeroed(&self, bytes: u64) -> Result<AnyBuffer, AllocError>;
    fn warm_up(&self, classes: &[(u64, usize)]) -> Result<(), AllocError>;
    fn shrink_to(&self, reserved: u64) -> Result<u64, AllocError>;
    fn trim(&self, bytes: u64) -> Result<u64, AllocError>;
    fn clear(&self) -> Result<u64, AllocError>;
    fn stats(&self) -> PoolStats;
    fn budget(&self) -> &Budget;
    fn memory(&self) -> &'static str;
    fn as_any(&self) -> &dyn Any;
}

impl<A: Transfer> Erased for BucketPool<A> {
    #[inline]
    fn allocate(&self, bytes: u64) -> Result<AnyBuffer, AllocError> {
        Self::allocate(self, bytes).map(AnyBuffer::from)
    }
    fn allocate_zeroed(&self, bytes: u64) -> Result<AnyBuffer, AllocError> {
        Self::allocate_zeroed(self, bytes).map(AnyBuffer::from)
    }
    fn warm_up(&self, classes: &[(u64, usize)]) -> Result<(), AllocError> {
        Self::warm_up(self, classes)
    }
    fn shrink_to(&self, reserved: u64) -> Result<u64, AllocError> {
        Self::shrink_to(self, reserved)
    }
    fn trim(&self, bytes: u64) -> Result<u64, AllocError> {
        Self::trim(self, bytes)
    }
    fn clear(&self) -> Result<u64, AllocError> {
        Self::clear(self)
    }
    fn stats(&self) -> PoolStats {
        Self::stats(self)
    }
    fn budget(&self) -> &Budget {
        Self::budget(self)
    }
    fn memory(&self) -> &'static str {
        type_name::<A>()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// As for [`PooledBuffer`].
impl UnwindSafe for AnyPool {}
impl RefUnwindSafe for AnyPool {}
impl UnwindSafe for AnyBuffer {}
impl RefUnwindSafe for AnyBuffer {}

impl<A: Transfer> From<BucketPool<A>> for AnyPool {
    fn from(pool: BucketPool<A>) -> Self {
        Self { pool: Arc::new(pool) }
    }
}

impl AnyPool {
    /// Returns a buffer, as [`BucketPool::allocate`] does.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, KIB, Why, config::AnyPool, port::Limit, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(KIB).build();
    /// let pool = AnyPool::from(pool);
    /// let buffer = pool.allocate(100)?;
    /// assert_eq!(buffer.size(), 100);
    /// let zeroed = pool.allocate_zeroed(100)?;
    /// assert_eq!(zeroed.contents()?, [0; 100]);
    /// assert_eq!(pool.allocate(2 * KIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate(&self, bytes: u64) -> Result<AnyBuffer, AllocError> {
        self.pool.allocate(bytes)
    }

    /// Returns a buffer that reads as zeroes, as [`BucketPool::allocate_zeroed`] does.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`].
    ///
    /// See [`AnyPool::allocate`] for an example.
    pub fn allocate_zeroed(&self, bytes: u64) -> Result<AnyBuffer, AllocError> {
        self.pool.allocate_zeroed(bytes)
    }

    /// Takes cached blocks from the device ahead of time, as [`BucketPool::warm_up`] does.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::warm_up`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, MIB, Why, config::AnyPool, port::Limit, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(8 * MIB).build();
    /// let pool = AnyPool::from(pool);
    /// pool.warm_up(&[(MIB, 4), (4 * MIB, 1)])?;
    /// assert_eq!(pool.trim(1)?, MIB); // one block is enough
    /// assert_eq!(pool.shrink_to(3 * MIB)?, 4 * MIB); // the largest first
    /// assert_eq!(pool.clear()?, 3 * MIB);
    /// assert_eq!(pool.warm_up(&[(MIB, 9)]).unwrap_err().why(), Why::Limit(Limit::Reserved));
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn warm_up(&self, classes: &[(u64, usize)]) -> Result<(), AllocError> {
        self.pool.warm_up(classes)
    }

    /// Gives cached blocks back, as [`BucketPool::shrink_to`] does. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    ///
    /// See [`AnyPool::warm_up`] for an example.
    pub fn shrink_to(&self, reserved: u64) -> Result<u64, AllocError> {
        self.pool.shrink_to(reserved)
    }

    /// Gives cached blocks back, as [`BucketPool::trim`] does. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    ///
    /// See [`AnyPool::warm_up`] for an example.
    pub fn trim(&self, bytes: u64) -> Result<u64, AllocError> {
        self.pool.trim(bytes)
    }

    /// Gives all cached blocks back, as [`BucketPool::clear`] does. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::shrink_to`].
    ///
    /// See [`AnyPool::warm_up`] for an example.
    pub fn clear(&self) -> Result<u64, AllocError> {
        self.pool.clear()
    }

    /// Returns the figures of this moment, as [`BucketPool::stats`] does.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.pool.stats()
    }

    /// Returns the budget of the pool.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        self.pool.budget()
    }

    /// Returns the name of the allocator's type.
    #[must_use]
    pub fn memory(&self) -> &'static str {
        self.pool.memory()
    }

    /// Returns the pool, if it is one of this memory.
    #[must_use]
    pub fn downcast_ref<A: Transfer>(&self) -> Option<&BucketPool<A>> {
        self.pool.as_any().downcast_ref()
    }
}

impl fmt::Debug for AnyPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyPool")
            .field("memory", &self.memory())
            .field("stats", &self.stats())
            .finish()
    }
}

/// The calls for a memory.
struct CallsOf<A>(std::marker::PhantomData<A>);

impl<A: Transfer> CallsOf<A> {
    const CALLS: BufferCalls = BufferCalls {
        memory: TypeId::of::<A>,
        name: type_name::<A>,
        // SAFETY: of a buffer of this memory, whose owner goes.
        drop: |buffer| drop(unsafe { PooledBuffer::<A>::from_raw(buffer) }),
        // SAFETY: as for each of these, the buffer is one of this memory.
        size: |buffer| unsafe { PooledBuffer::<A>::ref_of_raw(buffer) }.size(),
        // SAFETY: as above.
        allocated_size: |buffer| unsafe { PooledBuffer::<A>::ref_of_raw(buffer) }.allocated_size(),
        write: |buffer, offset, bytes| {
            // SAFETY: as above, and borrowed alone.
            unsafe { PooledBuffer::<A>::mut_of_raw(buffer) }.write_at(offset, bytes)
        },
        read: |buffer, offset, to| {
            // SAFETY: as above.
            unsafe { PooledBuffer::<A>::ref_of_raw(buffer) }.read_at(offset, to)
        },
    };
}

impl<A: Transfer> From<PooledBuffer<A>> for AnyBuffer {
    #[inline]
    fn from(buffer: PooledBuffer<A>) -> Self {
        Self { buffer: buffer.into_raw(), calls: const { &CallsOf::<A>::CALLS } }
    }
}

impl AnyBuffer {
    /// Returns the bytes that were requested.
    #[must_use]
    pub fn size(&self) -> u64 {
        // SAFETY: the calls are those of the buffer (`From<PooledBuffer>`).
        unsafe { (self.calls.size)(&self.buffer) }
    }

    /// Returns the bytes that the block holds, after rounding.
    #[must_use]
    pub fn allocated_size(&self) -> u64 {
        // SAFETY: as in `size`.
        unsafe { (self.calls.allocated_size)(&self.buffer) }
    }

    /// Copies bytes into the buffer, as [`PooledBuffer::write_at`] does.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::write_at`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, config::AnyPool, sim::SimDevice};
    ///
    /// let pool = AnyPool::from(BucketPool::new(SimDevice::new()));
    /// let mut buffer = pool.allocate(4)?;
    /// buffer.write_at(0, b"1234")?;
    /// let mut middle = [0; 2];
    /// buffer.read_at(1, &mut middle)?;
    /// assert_eq!((&middle, &buffer.contents()?[..]), (b"23", &b"1234"[..]));
    /// assert_eq!(buffer.write_at(3, b"56").unwrap_err().why, Why::OutOfRange);
    /// assert_eq!(buffer.read_at(3, &mut middle).unwrap_err().why, Why::OutOfRange);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: as in `size`.
        unsafe { (self.calls.write)(&mut self.buffer, offset, bytes) }
    }

    /// Copies bytes of the buffer out, as [`PooledBuffer::read_at`] does.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::read_at`].
    ///
    /// See [`AnyBuffer::write_at`] for an example.
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: as in `size`.
        unsafe { (self.calls.read)(&self.buffer, offset, to) }
    }

    /// Returns all bytes of the buffer.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::read_at`].
    ///
    /// See [`AnyBuffer::write_at`] for an example.
    pub fn contents(&self) -> Result<Vec<u8>, DeviceError> {
        let too_large = |_| DeviceError::new(Why::TooLarge, "read from a buffer");
        let mut bytes = vec![0; usize::try_from(self.size()).map_err(too_large)?];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the name of the allocator's type.
    #[must_use]
    pub fn memory(&self) -> &'static str {
        (self.calls.name)()
    }

    fn is_of<A: Transfer>(&self) -> bool {
        (self.calls.memory)() == TypeId::of::<A>()
    }

    /// Returns the buffer, if it is one of this memory.
    #[must_use]
    pub fn downcast_ref<A: Transfer>(&self) -> Option<&PooledBuffer<A>> {
        // SAFETY: the buffer is one of this memory.
        self.is_of::<A>().then(|| unsafe { PooledBuffer::ref_of_raw(&self.buffer) })
    }

    /// Returns the buffer, if it is one of this memory.
    #[must_use]
    pub fn downcast_mut<A: Transfer>(&mut self) -> Option<&mut PooledBuffer<A>> {
        // SAFETY: as above, and borrowed alone.
        self.is_of::<A>().then(|| unsafe { PooledBuffer::mut_of_raw(&mut self.buffer) })
    }

    /// Returns the buffer with its type.
    ///
    /// # Errors
    ///
    /// Itself, if it is one of another memory.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, config::AnyPool, sim::{MappedSim, SimDevice}};
    ///
    /// let pool = AnyPool::from(BucketPool::new(SimDevice::new()));
    /// let buffer = pool.allocate(8)?;
    /// let same = buffer.downcast::<MappedSim>().unwrap_err(); // the buffer, as it was
    /// let buffer = same.downcast::<SimDevice>().unwrap();
    /// assert_eq!(buffer.allocator().calls().allocations, 1);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    pub fn downcast<A: Transfer>(self) -> Result<PooledBuffer<A>, Self> {
        if !self.is_of::<A>() {
            return Err(self);
        }
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the buffer is one of this memory, and its owner is not dropped.
        Ok(unsafe { PooledBuffer::from_raw(this.buffer) })
    }
}

impl Drop for AnyBuffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the calls are those of the buffer, which is dropped once.
        unsafe { (self.calls.drop)(self.buffer) }
    }
}

// SAFETY: it is a `PooledBuffer`, which is `Send` and `Sync` for each memory (checked below).
unsafe impl Send for AnyBuffer {}
// SAFETY: as above.
unsafe impl Sync for AnyBuffer {}

/// Compiles only if buffers of each memory can be sent and shared.
const fn _buffers_can_be_sent<A: Transfer>() {
    const fn check<T: Send + Sync>() {}
    check::<PooledBuffer<A>>();
}

impl fmt::Debug for AnyBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyBuffer")
            .field("memory", &self.memory())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
