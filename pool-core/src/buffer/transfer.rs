//! Bytes into buffers and out of them, the same on every backend.
#![expect(unsafe_code, reason = "the port's copies, whose ranges are checked here")]

use crate::buffer::PooledBuffer;
use crate::port::{
    DeviceAllocator, DeviceError, HostMemory, StreamClock, StreamOf, Transfer, TransferLater, Why,
};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

fn saturated(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Checks that `bytes` bytes from `offset` on are the buffer's.
    fn holds(&self, offset: u64, bytes: usize, call: &'static str) -> Result<(), DeviceError> {
        let end = offset.saturating_add(bytes as u64);
        if end <= self.size() {
            return Ok(());
        }
        Err(DeviceError::new(Why::OutOfRange, call)
            .code(saturated(end))
            .expected(saturated(self.size())))
    }
}

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Copies `bytes` into the buffer from byte `offset` on, on the device's default stream.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::write_at_on`].
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let mut buffer = pool.allocate(8)?;
    /// buffer.write_at(0, b"12345678")?;
    /// buffer.write_at(2, b"ab")?;
    /// assert_eq!(buffer.contents()?, b"12ab5678");
    /// assert_eq!(buffer.write_at(7, b"ab").unwrap_err().why, Why::OutOfRange);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>
    where
        A: Transfer,
    {
        let on = self.allocator().clock().default_stream().clone();
        self.write_at_on(&on, offset, bytes)
    }

    /// Copies `bytes` into the buffer from byte `offset` on, in the order of `stream`. `bytes` may
    /// be used again when the call returns.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfRange`] if the bytes do not fit, the errors of [`PooledBuffer::on`], or the
    /// error of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let stream = pool.allocator().stream();
    /// let mut buffer = pool.allocate_on(&stream, 4)?;
    /// buffer.write_at_on(&stream, 0, b"1234")?;
    /// let mut middle = [0; 2];
    /// buffer.read_at_on(&stream, 1, &mut middle)?;
    /// assert_eq!(&middle, b"23");
    /// let foreign = SimDevice::new().stream();
    /// assert_eq!(buffer.write_at_on(&foreign, 0, b"5").unwrap_err().why, Why::Foreign);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_at_on(
        &mut self,
        stream: &StreamOf<A>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError>
    where
        A: Transfer,
    {
        self.holds(offset, bytes.len(), "write to a buffer")?;
        let used = self.on(stream)?;
        // SAFETY: inside of the buffer, as just checked; it is borrowed alone, and `on` has ordered
        // the stream behind its earlier uses.
        unsafe { self.allocator().write(&used, offset, bytes, stream) }
    }

    /// Copies bytes of the buffer from byte `offset` on into `to`, on the device's default stream.
    /// Blocks until they are there.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::read_at_on`].
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let mut buffer = pool.allocate(8)?;
    /// buffer.write_at(0, b"12345678")?;
    /// let mut middle = [0; 3];
    /// buffer.read_at(2, &mut middle)?;
    /// assert_eq!(&middle, b"345");
    /// assert_eq!(buffer.read_at(6, &mut middle).unwrap_err().why, Why::OutOfRange);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<(), DeviceError>
    where
        A: Transfer,
    {
        self.read_at_on(self.allocator().clock().default_stream(), offset, to)
    }

    /// Copies bytes of the buffer from byte `offset` on into `to`, after all work that `stream` was
    /// given. Blocks until the bytes are in `to`.
    ///
    /// # Errors
    ///
    /// [`Why::OutOfRange`] if the buffer has fewer bytes, the errors of [`PooledBuffer::on`], or
    /// the error of the device.
    ///
    /// See [`PooledBuffer::write_at_on`] for an example.
    pub fn read_at_on(
        &self,
        stream: &StreamOf<A>,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), DeviceError>
    where
        A: Transfer,
    {
        self.holds(offset, to.len(), "read from a buffer")?;
        let used = self.read_on(stream)?;
        // SAFETY: inside of the buffer, as just checked; it is borrowed, so the program does not
        // write it, and `read_on` has ordered the stream behind its earlier writes.
        unsafe { self.allocator().read(&used, offset, to, stream) }
    }

    /// Returns all bytes of the buffer, on the device's default stream.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::read_at_on`].
    ///
    /// See [`PooledBuffer::write_at`] for an example.
    pub fn contents(&self) -> Result<Vec<u8>, DeviceError>
    where
        A: Transfer,
    {
        let too_large = |_| DeviceError::new(Why::TooLarge, "read from a buffer");
        let mut bytes = vec![0; usize::try_from(self.size()).map_err(too_large)?];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl<A: DeviceAllocator> PooledBuffer<A> {
    /// Copies `bytes` into the buffer from byte `offset` on, in the order of `stream`, through
    /// staging memory: does not wait for the device.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::write_at_on`], or for want of staging memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, port::Arrival, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let stream = pool.allocator().stream();
    /// let mut buffer = pool.allocate_on(&stream, 4)?;
    /// buffer.write_later(&stream, 0, b"1234")?;
    /// let arrival = buffer.read_later(&stream, 1, 2)?;
    /// assert!(!arrival.is_here()?); // the stream has not run yet
    /// assert_eq!(arrival.wait()?, b"23");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_later(
        &mut self,
        stream: &StreamOf<A>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError>
    where
        A: TransferLater,
    {
        self.holds(offset, bytes.len(), "write to a buffer")?;
        let used = self.on(stream)?;
        // SAFETY: as in `write_at_on`.
        unsafe { self.allocator().write_later(&used, offset, bytes, stream) }
    }

    /// Copies `bytes` bytes of the buffer from byte `offset` on to staging memory, after all work
    /// that `stream` was given, and does not wait for the device:
    /// [`Arrival::wait`](crate::port::Arrival::wait) returns them. The buffer may be dropped before.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::read_at_on`], or for want of staging memory.
    ///
    /// See [`PooledBuffer::write_later`] for an example.
    pub fn read_later(
        &self,
        stream: &StreamOf<A>,
        offset: u64,
        bytes: usize,
    ) -> Result<A::Arrival, DeviceError>
    where
        A: TransferLater,
    {
        self.holds(offset, bytes, "read from a buffer")?;
        let used = self.read_on(stream)?;
        // SAFETY: as in `read_at_on`.
        unsafe { self.allocator().read_later(&used, offset, bytes as u64, stream) }
    }
}

// Here and not in the host crate: the orphan rule wants it beside `PooledBuffer`.
impl<A: HostMemory> Deref for PooledBuffer<A> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `HostMemory` promises valid, initialised bytes that no other block has until the
        // block is freed, and the block is not freed while the buffer is borrowed.
        unsafe { bytes(self).as_ref() }
    }
}

impl<A: HostMemory> DerefMut for PooledBuffer<A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed alone.
        unsafe { bytes(self).as_mut() }
    }
}

/// For code that asks for `AsRef<[u8]>`, such as `bytes::Bytes::from_owner`, by which tokio, hyper and
/// tonic pass memory on without a copy. The buffer goes back to its pool with the last clone. An
/// example is at `HostAllocator`.
impl<A: HostMemory> AsRef<[u8]> for PooledBuffer<A> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[inline]
fn bytes<A: HostMemory>(buffer: &PooledBuffer<A>) -> NonNull<[u8]> {
    A::bytes(&buffer.view(&()))
}
