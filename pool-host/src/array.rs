//! `ndarray` arrays in pooled host memory.
#![expect(unsafe_code, reason = "views are made of a pointer and a shape")]

use bytemuck::Pod;
use ndarray::{ArrayView, ArrayViewMut, Dimension, IntoDimension, IxDyn};
use pool_core::{BucketPool, DeviceError, HostMemory, PooledBuffer, Why};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// An array in a pooled buffer, in standard layout.
///
/// Dropping the array returns the buffer to its pool. The memory of `ndarray`'s `Array` cannot
/// belong to another type, so this array gives out views, which support all operations of
/// `ndarray`. `Zip` and `assign` write results into it without a temporary.
///
/// ```
/// use ndarray::Zip;
/// use pool_host::{PooledArray, global};
///
/// let a = PooledArray::from_elem(global(), (3, 4), 2.0_f32)?;
/// let b = PooledArray::from_elem(global(), (3, 4), 0.5_f32)?;
/// let mut sum = PooledArray::<f32, _, _>::zeros(global(), (3, 4))?;
/// Zip::from(sum.view_mut()).and(a.view()).and(b.view()).for_each(|s, a, b| *s = a + b);
/// assert_eq!(sum.view().sum(), 30.0);
/// assert_eq!(sum[5], 2.5); // derefs to a slice
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub struct PooledArray<T, D, A: HostMemory> {
    buffer: PooledBuffer<A>,
    shape: D,
    element: std::marker::PhantomData<T>,
}

/// Result with the error of the pool that refused the request.
type Result<T> = std::result::Result<T, pool_core::AllocError>;

impl<T: Pod, D: Dimension, A: HostMemory> PooledArray<T, D, A> {
    /// Allocates an array without initialising its elements.
    ///
    /// It contains what the previous user of its block left there, or zeroes. Use it if you write
    /// all elements, and [`PooledArray::zeros`] otherwise.
    ///
    /// # Errors
    ///
    /// The errors of [`BucketPool::allocate_aligned`], and
    /// [`Why::TooLarge`](pool_core::Why::TooLarge) for a shape of more than `isize::MAX` bytes.
    pub fn new(pool: &BucketPool<A>, shape: impl IntoDimension<Dim = D>) -> Result<Self> {
        Self::over(pool, shape.into_dimension(), |bytes| {
            pool.allocate_aligned(bytes, align_of::<T>() as u64)
        })
    }

    /// Allocates an array whose elements are zero.
    ///
    /// # Errors
    ///
    /// The errors of [`PooledArray::new`].
    pub fn zeros(pool: &BucketPool<A>, shape: impl IntoDimension<Dim = D>) -> Result<Self> {
        // `allocate_zeroed` returns the default alignment. Elements that need a larger one are
        // filled here.
        if align_of::<T>() as u64 > pool.allocator().alignment_of(A::Kind::default()) {
            return Self::from_elem(pool, shape, T::zeroed());
        }
        Self::over(pool, shape.into_dimension(), |bytes| pool.allocate_zeroed(bytes))
    }

    /// Allocates an array and sets each element to `value`.
    ///
    /// # Errors
    ///
    /// The errors of [`PooledArray::new`].
    pub fn from_elem(
        pool: &BucketPool<A>,
        shape: impl IntoDimension<Dim = D>,
        value: T,
    ) -> Result<Self> {
        let mut array = Self::new(pool, shape)?;
        array.fill(value);
        Ok(array)
    }

    /// Builds an array in the buffer that `allocate` returns, after a check of the buffer's size
    /// and alignment.
    fn over(
        pool: &BucketPool<A>,
        shape: D,
        allocate: impl FnOnce(u64) -> Result<PooledBuffer<A>>,
    ) -> Result<Self> {
        // `ndarray` limits the product of the axes that are not 0, even if another axis is 0.
        let axes = shape.slice().iter().filter(|axis| **axis > 0);
        let most = axes.copied().try_fold(size_of::<T>().max(1), usize::checked_mul);
        let fits = most.is_some_and(|bytes| bytes <= isize::MAX.unsigned_abs());
        let bytes = fits.then(|| shape.size() * size_of::<T>());
        // For a shape that is too large, the pool refuses `u64::MAX` bytes with its own error.
        let buffer = allocate(bytes.map_or(u64::MAX, |bytes| bytes as u64))?;
        // Size and alignment come from safe methods of the backend, so unsafe code must not trust
        // them.
        let elements = bytemuck::try_cast_slice::<u8, T>(&buffer).map_or(0, <[T]>::len);
        if size_of::<T>() > 0 && elements != shape.size() {
            let call = "lay an array over a block that is shorter than requested, or not aligned \
                        as the backend says";
            return Err(pool.refusal(DeviceError::new(Why::Unsupported, call, 0), buffer.size()));
        }
        Ok(Self { buffer, shape, element: std::marker::PhantomData })
    }

    /// Returns a read-only view of the array.
    #[must_use]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        // SAFETY: `over` checked that the buffer's slice is aligned for `T` and holds exactly the
        // elements of this shape, and `HostMemory` guarantees that the slice stays the same. `Pod`
        // allows any bytes. `&self` keeps the buffer borrowed as long as the view lives.
        unsafe { ArrayView::from_shape_ptr(self.shape.clone(), self.as_ptr()) }
    }

    /// Returns a mutable view of the array.
    #[must_use]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        // SAFETY: size and alignment as in `view`. `&mut self` excludes other views of the buffer.
        unsafe { ArrayViewMut::from_shape_ptr(self.shape.clone(), self.as_mut_ptr()) }
    }

    /// Returns the number of elements of each axis.
    pub fn shape(&self) -> &[usize] {
        self.shape.slice()
    }
}

/// Derefs to the elements in row-major order.
impl<T: Pod, D: Dimension, A: HostMemory> Deref for PooledArray<T, D, A> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // The cast succeeds: `over` checked that the buffer holds whole elements and is aligned.
        // For elements of 0 bytes the slice is empty.
        bytemuck::try_cast_slice(&self.buffer).unwrap_or_default()
    }
}

impl<T: Pod, D: Dimension, A: HostMemory> DerefMut for PooledArray<T, D, A> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::try_cast_slice_mut(&mut self.buffer).unwrap_or_default()
    }
}

impl<T, D: fmt::Debug, A: HostMemory> fmt::Debug for PooledArray<T, D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, buffer) = (&self.shape, &self.buffer);
        f.debug_struct("PooledArray").field("shape", shape).field("buffer", buffer).finish()
    }
}

/// Allocation of arrays of any number of axes from a pool.
///
/// ```
/// use pool_host::{AllocateArray, global};
///
/// let mut points = global().allocate_array::<f32>(&[100, 3])?;
/// points.fill(1.0);
/// assert_eq!(points.view().sum(), 300.0);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub trait AllocateArray<A: HostMemory> {
    /// Allocates an array of this shape without initialising it, like [`PooledArray::new`].
    ///
    /// # Errors
    ///
    /// The errors of [`PooledArray::new`].
    fn allocate_array<T: Pod>(&self, shape: &[usize]) -> Result<PooledArray<T, IxDyn, A>>;
}

impl<A: HostMemory> AllocateArray<A> for BucketPool<A> {
    fn allocate_array<T: Pod>(&self, shape: &[usize]) -> Result<PooledArray<T, IxDyn, A>> {
        PooledArray::new(self, shape)
    }
}
