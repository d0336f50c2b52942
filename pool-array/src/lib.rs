//! Typed arrays in pooled buffers, the same on every backend.
#![deny(unsafe_code)]

mod arithmetic;
mod host;
mod shape;
#[cfg(feature = "ndarray")]
mod views;

pub use bytemuck::Pod;
/// The `ndarray` crate whose views [`PooledArray`] returns.
#[cfg(feature = "ndarray")]
pub use ndarray;
use pool_core::buffer::Use;
use pool_core::{
    AllocError, BucketPool, DeviceAllocator, DeviceError, HandleSettings, PoolRef, PooledBuffer,
    StreamClock, StreamOf, Transfer, Why,
};
pub use shape::Shape;
use std::fmt;
use std::marker::PhantomData;

/// An array of elements in a pooled buffer, in row-major order. Dropping it returns the buffer.
///
/// On every backend a program writes and reads the elements, and [`PooledArray::on`] lends the
/// memory to a stream, as [`PooledBuffer::on`] does: to kernels and copies of cudarc, or as a
/// binding of wgpu. In host memory the array derefs to a slice, has `a[[row, column]]`, operators
/// whose results come from the same pool, and with the feature `ndarray` views and `Zip`.
///
/// Results of operations come from the pool of their first operand, as requests of the handle that
/// made it: with its tag and its timeout. An array counts no handle. Once the last one is dropped,
/// the memory of results comes from the device, and goes back to it with them.
///
/// Cost: an array with up to four axes has 64 bytes and takes a few instructions more than its buffer.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, Transfer, array::PooledArray};
///
/// /// On any device.
/// fn negate<A: Transfer>(pool: &BucketPool<A>) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
///     let mut array = PooledArray::from_slice(pool, [2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?;
///     let values: Vec<f32> = array.to_vec()?.iter().map(|value| -value).collect();
///     array.write(&values)?;
///     Ok(array.to_vec()?)
/// }
/// let pool = BucketPool::new(bucketpool::sim::SimDevice::new());
/// assert_eq!(negate(&pool)?, [-1.0, -2.0, -3.0, -4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PooledArray<T, A: DeviceAllocator> {
    buffer: PooledBuffer<A>,
    /// Those of the handle that made it.
    settings: HandleSettings,
    shape: Shape,
    element: PhantomData<T>,
}

impl<T: Pod, A: DeviceAllocator> PooledArray<T, A> {
    /// Allocates an array for the device's default stream, without initialising its elements: it
    /// contains what the previous user of its memory left there. Use it if all elements are written
    /// next, and [`PooledArray::zeros`] otherwise.
    ///
    /// # Errors
    ///
    /// The errors of [`BucketPool::allocate_aligned`], and [`Why::TooLarge`] for a shape of more
    /// than `isize::MAX` bytes.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, array::PooledArray, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let points = PooledArray::<f32, _>::new(&pool, [100, 3])?;
    /// assert_eq!((points.shape(), points.elements()), (&[100, 3][..], 300));
    /// let too_large = PooledArray::<f32, _>::new(&pool, [usize::MAX, 3]);
    /// assert_eq!(too_large.unwrap_err().why(), Why::TooLarge);
    /// # Ok::<(), pool_core::AllocError>(())
    /// ```
    #[inline]
    pub fn new(pool: &BucketPool<A>, shape: impl Into<Shape>) -> Result<Self, AllocError> {
        Self::new_on(pool, pool.allocator().clock().default_stream(), shape)
    }

    /// Allocates an array for work on `stream`, without initialising its elements.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`], and [`Why::Foreign`] for a stream of another device.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, array::PooledArray, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let stream = pool.allocator().stream();
    /// let mut array = PooledArray::<u32, _>::new_on(&pool, &stream, [2])?;
    /// array.write_on(&stream, &[1, 2])?;
    /// let mut elements = [0; 2];
    /// array.read_into_on(&stream, &mut elements)?;
    /// assert_eq!(elements, [1, 2]);
    /// let foreign = SimDevice::new().stream();
    /// assert_eq!(array.write_on(&foreign, &[3, 4]).unwrap_err().why, Why::Foreign);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn new_on(
        pool: &BucketPool<A>,
        stream: &StreamOf<A>,
        shape: impl Into<Shape>,
    ) -> Result<Self, AllocError> {
        Self::make(pool, stream, shape.into(), false)
    }

    /// Allocates an array for the device's default stream whose elements are zero.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, array::PooledArray, port::Limit, sim::SimDevice};
    ///
    /// let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4096).build();
    /// let stream = pool.allocator().stream();
    /// assert_eq!(PooledArray::<f32, _>::zeros(&pool, [2, 2])?.to_vec()?, [0.0; 4]);
    /// assert_eq!(PooledArray::<f32, _>::zeros_on(&pool, &stream, [2, 2])?.to_vec()?, [0.0; 4]);
    /// let too_many = PooledArray::<f32, _>::zeros(&pool, [2000]);
    /// assert_eq!(too_many.unwrap_err().why(), Why::Limit(Limit::Reserved));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn zeros(pool: &BucketPool<A>, shape: impl Into<Shape>) -> Result<Self, AllocError> {
        Self::zeros_on(pool, pool.allocator().clock().default_stream(), shape)
    }

    /// Allocates an array for work on `stream` whose elements are zero.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new_on`].
    ///
    /// See [`PooledArray::zeros`] for an example.
    #[inline]
    pub fn zeros_on(
        pool: &BucketPool<A>,
        stream: &StreamOf<A>,
        shape: impl Into<Shape>,
    ) -> Result<Self, AllocError> {
        Self::make(pool, stream, shape.into(), true)
    }

    /// Allocates an array beside this one: from its pool, of its shape, on the default stream.
    #[inline]
    fn beside<U: Pod>(&self) -> Result<PooledArray<U, A>, AllocError> {
        let (pool, settings) = (self.buffer.pool(self.settings), self.settings);
        let Some(bytes) = PooledArray::<U, A>::bytes(self.elements()) else {
            return Err(PooledArray::<U, A>::too_large(&pool, &self.shape));
        };
        let stream = pool.allocator().clock().default_stream();
        let buffer = pool.allocate_for(stream, bytes, align_of::<U>() as u64, false)?;
        Ok(PooledArray { buffer, settings, shape: self.shape.clone(), element: PhantomData })
    }

    #[expect(clippy::inline_always, reason = "most of it is known where a shape is written")]
    #[inline(always)]
    fn make(
        pool: &BucketPool<A>,
        stream: &StreamOf<A>,
        shape: Shape,
        zeroed: bool,
    ) -> Result<Self, AllocError> {
        let Some(bytes) = shape.elements().and_then(Self::bytes) else {
            return Err(Self::too_large(&pool.by_ref(), &shape));
        };
        let buffer = pool.allocate_for(stream, bytes, align_of::<T>() as u64, zeroed)?;
        Ok(Self { buffer, settings: pool.by_ref().settings(), shape, element: PhantomData })
    }

    /// The bytes of so many elements; `None` above `isize::MAX`.
    #[inline]
    fn bytes(elements: usize) -> Option<u64> {
        let bytes = elements.checked_mul(size_of::<T>())?;
        (bytes <= isize::MAX.unsigned_abs()).then_some(bytes as u64)
    }

    #[cold]
    fn too_large(pool: &PoolRef<'_, A>, shape: &Shape) -> AllocError {
        let text = format!(
            "shape {shape:?} of elements of {} B; expected at most {} B in all",
            size_of::<T>(),
            isize::MAX
        );
        let cause = DeviceError::new(Why::TooLarge, "a shape").code(isize::MAX as i64);
        pool.refusal(cause, u64::MAX).with_argument(text)
    }

    /// Returns the number of elements of each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of all elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.product()
    }

    /// Returns a handle of the pool that the array came from, as the one that made it; `None` if the
    /// last handle was dropped.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, array::PooledArray, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let array = PooledArray::from_slice(&pool, [3], &[1, 2, 3])?;
    /// assert_eq!(array.pool().map(|pool| pool.stats().allocations), Some(1));
    /// drop(pool);
    /// assert!(array.pool().is_none());
    /// assert_eq!(array.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pool(&self) -> Option<BucketPool<A>> {
        self.buffer.pool(self.settings).handle()
    }

    /// Returns the buffer.
    #[must_use]
    pub fn buffer(&self) -> &PooledBuffer<A> {
        &self.buffer
    }

    /// Returns the buffer, without its type.
    #[must_use]
    pub fn into_buffer(self) -> PooledBuffer<A> {
        self.buffer
    }

    /// Returns the memory for work on `stream` while the [`Use`] lives, such as a kernel.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::on`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, array::PooledArray, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let stream = pool.allocator().stream();
    /// let array = PooledArray::<f32, _>::new(&pool, [1024])?;
    /// pool.allocator().kernel(&stream, &*array.on(&stream)?);
    /// let foreign = SimDevice::new().stream();
    /// assert_eq!(array.on(&foreign).unwrap_err().why, Why::Foreign);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on<'b>(&'b self, stream: &'b StreamOf<A>) -> Result<Use<'b, A>, DeviceError> {
        self.buffer.on(stream)
    }

    /// Returns the memory for work on `stream` that only reads it: streams that read one array do not
    /// wait for each other ([`PooledBuffer::read_on`]).
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::read_on`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, array::PooledArray, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let streams = [pool.allocator().stream(), pool.allocator().stream()];
    /// let weights = PooledArray::<f32, _>::new(&pool, [1024])?;
    /// for stream in &streams {
    ///     pool.allocator().reading_kernel(stream, &*weights.read_on(stream)?);
    /// }
    /// assert_eq!(pool.allocator().calls().waits, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_on<'b>(&'b self, stream: &'b StreamOf<A>) -> Result<Use<'b, A>, DeviceError> {
        self.buffer.read_on(stream)
    }
}

impl<T: Pod, A: DeviceAllocator> PooledArray<T, A> {
    /// Allocates an array with these elements, in row-major order, for the device's default stream.
    ///
    /// # Errors
    ///
    /// [`Why::WrongLength`] for another number of elements than the shape has, or as for
    /// [`PooledArray::new`] and [`PooledArray::write`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, array::PooledArray, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let stream = pool.allocator().stream();
    /// let array = PooledArray::from_slice(&pool, [3], &[1, 2, 3])?;
    /// let on_stream = PooledArray::from_slice_on(&pool, &stream, [3], &[1, 2, 3])?;
    /// assert_eq!(array.to_vec()?, on_stream.to_vec()?);
    /// let too_few = PooledArray::from_slice(&pool, [3], &[1, 2]);
    /// let error = too_few.unwrap_err();
    /// assert_eq!(error.why(), Why::WrongLength);
    /// assert_eq!(error.to_string(), "2 elements for shape [3]; expected 3");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_slice(
        pool: &BucketPool<A>,
        shape: impl Into<Shape>,
        elements: &[T],
    ) -> Result<Self, AllocError>
    where
        A: Transfer,
    {
        Self::from_slice_on(pool, pool.allocator().clock().default_stream(), shape, elements)
    }

    /// Allocates an array with these elements, in row-major order, for work on `stream`.
    ///
    /// # Errors
    ///
    /// [`Why::WrongLength`] for another number of elements than the shape has, or as for
    /// [`PooledArray::new_on`] and [`PooledArray::write_on`].
    ///
    /// See [`PooledArray::from_slice`] for an example.
    pub fn from_slice_on(
        pool: &BucketPool<A>,
        stream: &StreamOf<A>,
        shape: impl Into<Shape>,
        elements: &[T],
    ) -> Result<Self, AllocError>
    where
        A: Transfer,
    {
        let shape = shape.into();
        if let Some(expected) = shape.elements().filter(|expected| *expected != elements.len()) {
            return Err(Self::wrong_length(pool, &shape, expected, elements.len()));
        }
        let mut array = Self::new_on(pool, stream, shape)?;
        let written = array.write_on(stream, elements);
        written.map_err(|cause| pool.refusal(cause, array.buffer.size()))?;
        Ok(array)
    }

    #[cold]
    fn wrong_length(
        pool: &BucketPool<A>,
        shape: &Shape,
        expected: usize,
        given: usize,
    ) -> AllocError {
        let text = format!("{given} elements for shape {shape:?}; expected {expected}");
        let bytes = expected.saturating_mul(size_of::<T>());
        let cause = wrong_length("fill an array", given, expected);
        pool.refusal(cause, bytes as u64).with_argument(text)
    }

    /// Overwrites all elements, on the device's default stream.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::write_on`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, array::PooledArray, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let mut array = PooledArray::new(&pool, [2, 2])?;
    /// array.write(&[1, 2, 3, 4])?;
    /// assert_eq!(array.to_vec()?, [1, 2, 3, 4]);
    /// let error = array.write(&[1, 2]).unwrap_err();
    /// assert_eq!(error.why, Why::WrongLength);
    /// assert_eq!(error.to_string(), "write to an array: wrong number of elements: 2, expected 4");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&mut self, elements: &[T]) -> Result<(), DeviceError>
    where
        A: Transfer,
    {
        let on = self.buffer.allocator().clock().default_stream().clone();
        self.write_on(&on, elements)
    }

    /// Overwrites all elements, in the order of `stream`.
    ///
    /// # Errors
    ///
    /// [`Why::WrongLength`] for another number of elements than the array has, or as for
    /// [`PooledBuffer::write_at_on`].
    ///
    /// See [`PooledArray::new_on`] for an example.
    pub fn write_on(&mut self, stream: &StreamOf<A>, elements: &[T]) -> Result<(), DeviceError>
    where
        A: Transfer,
    {
        self.check(elements.len(), "write to an array")?;
        self.buffer.write_at_on(stream, 0, bytemuck::cast_slice(elements))
    }

    /// Reads all elements, on the device's default stream. Blocks until they are there.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::read_into_on`].
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub use pool_sim as sim; }
    /// use bucketpool::{BucketPool, Why, array::PooledArray, sim::SimDevice};
    ///
    /// let pool = BucketPool::new(SimDevice::new());
    /// let array = PooledArray::from_slice(&pool, [3], &[1, 2, 3])?;
    /// let mut elements = [0; 3];
    /// array.read_into(&mut elements)?;
    /// assert_eq!(elements, [1, 2, 3]);
    /// assert_eq!(array.read_into(&mut [0; 2]).unwrap_err().why, Why::WrongLength);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_into(&self, to: &mut [T]) -> Result<(), DeviceError>
    where
        A: Transfer,
    {
        self.read_into_on(self.buffer.allocator().clock().default_stream(), to)
    }

    /// Reads all elements, after all work that `stream` was given. Blocks until they are there.
    ///
    /// # Errors
    ///
    /// [`Why::WrongLength`] for another number of elements than the array has, or as for
    /// [`PooledBuffer::read_at_on`].
    ///
    /// See [`PooledArray::new_on`] for an example.
    pub fn read_into_on(&self, stream: &StreamOf<A>, to: &mut [T]) -> Result<(), DeviceError>
    where
        A: Transfer,
    {
        self.check(to.len(), "read from an array")?;
        self.buffer.read_at_on(stream, 0, bytemuck::cast_slice_mut(to))
    }

    /// Returns all elements in row-major order, on the device's default stream.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::read_into`].
    ///
    /// See [`PooledArray::write`] for an example.
    pub fn to_vec(&self) -> Result<Vec<T>, DeviceError>
    where
        A: Transfer,
    {
        let mut elements = vec![T::zeroed(); self.elements()];
        self.read_into(&mut elements)?;
        Ok(elements)
    }

    fn check(&self, elements: usize, call: &'static str) -> Result<(), DeviceError> {
        match self.elements() {
            expected if expected == elements => Ok(()),
            expected => Err(wrong_length(call, elements, expected)),
        }
    }
}

fn wrong_length(call: &'static str, given: usize, expected: usize) -> DeviceError {
    let [given, expected] = [given, expected].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    DeviceError::new(Why::WrongLength, call).code(given).expected(expected)
}

impl<T, A: DeviceAllocator> fmt::Debug for PooledArray<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, buffer) = (&self.shape, &self.buffer);
        f.debug_struct("PooledArray")
            .field("shape", shape)
            .field("buffer", buffer)
            .finish_non_exhaustive()
    }
}
