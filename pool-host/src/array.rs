//! Arrays of `ndarray` whose memory is a pool's.
#![expect(unsafe_code, reason = "views are made of a pointer and a shape")]

use bytemuck::Pod;
use ndarray::{ArrayView, ArrayViewMut, Dimension, IntoDimension, IxDyn};
use pool_core::{BucketPool, DeviceError, HostMemory, PooledBuffer, Why};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// An array in a pooled buffer, in standard layout. Dropping it gives the buffer back.
///
/// `ndarray` does not let others own the memory of its `Array`, so this one lends views, on which
/// all of its operations work; `Zip` and `assign` write results into it without a temporary.
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

/// Refusals are those of the pool below.
type Result<T> = std::result::Result<T, pool_core::AllocError>;

impl<T: Pod, D: Dimension, A: HostMemory> PooledArray<T, D, A> {
    /// An array that shows what the last user of its memory left there, or zeroes: for those who
    /// write all of it.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate_aligned`], and [`Why::TooLarge`](pool_core::Why::TooLarge) for
    /// a shape of more bytes than there are addresses.
    pub fn new(pool: &BucketPool<A>, shape: impl IntoDimension<Dim = D>) -> Result<Self> {
        Self::over(pool, shape.into_dimension(), |bytes| {
            pool.allocate_aligned(bytes, align_of::<T>() as u64)
        })
    }

    /// An array of zeroes.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`].
    pub fn zeros(pool: &BucketPool<A>, shape: impl IntoDimension<Dim = D>) -> Result<Self> {
        // Elements aligned to more than what a block has by default are cleared by hand.
        if align_of::<T>() as u64 > pool.allocator().alignment_of(A::Kind::default()) {
            return Self::from_elem(pool, shape, T::zeroed());
        }
        Self::over(pool, shape.into_dimension(), |bytes| pool.allocate_zeroed(bytes))
    }

    /// An array of one value.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`].
    pub fn from_elem(
        pool: &BucketPool<A>,
        shape: impl IntoDimension<Dim = D>,
        value: T,
    ) -> Result<Self> {
        let mut array = Self::new(pool, shape)?;
        array.fill(value);
        Ok(array)
    }

    /// An array in what `allocate` returns, once that is known to hold it.
    fn over(
        pool: &BucketPool<A>,
        shape: D,
        allocate: impl FnOnce(u64) -> Result<PooledBuffer<A>>,
    ) -> Result<Self> {
        // `ndarray` wants this of the axes that are not 0, even where another is.
        let axes = shape.slice().iter().filter(|axis| **axis > 0);
        let most = axes.copied().try_fold(size_of::<T>().max(1), usize::checked_mul);
        let fits = most.is_some_and(|bytes| bytes <= isize::MAX.unsigned_abs());
        let bytes = fits.then(|| shape.size() * size_of::<T>());
        // What no address space holds, the pool refuses in its own words.
        let buffer = allocate(bytes.map_or(u64::MAX, |bytes| bytes as u64))?;
        // Size and alignment come from safe methods of the backend, which may be wrong.
        let elements = bytemuck::try_cast_slice::<u8, T>(&buffer).map_or(0, <[T]>::len);
        if size_of::<T>() > 0 && elements != shape.size() {
            let call = "lay an array over a block that is shorter than requested, or not aligned \
                        as the backend says";
            return Err(pool.refusal(DeviceError::new(Why::Unsupported, call, 0), buffer.size()));
        }
        Ok(Self { buffer, shape, element: std::marker::PhantomData })
    }

    /// The array, to be read.
    #[must_use]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        // SAFETY: the buffer holds the elements of this shape one after the other, aligned: `over`
        // has checked the slice, and `HostMemory` promises that it does not change. It is borrowed
        // as long as the view lives.
        unsafe { ArrayView::from_shape_ptr(self.shape.clone(), self.as_ptr()) }
    }

    /// The array, to be written.
    #[must_use]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        // SAFETY: as above, and it is borrowed alone.
        unsafe { ArrayViewMut::from_shape_ptr(self.shape.clone(), self.as_mut_ptr()) }
    }

    /// How many elements each axis has.
    pub fn shape(&self) -> &[usize] {
        self.shape.slice()
    }
}

/// The elements in the order of rows.
impl<T: Pod, D: Dimension, A: HostMemory> Deref for PooledArray<T, D, A> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // The buffer is a whole number of elements, and aligned to one: `over` has checked it.
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

/// Arrays of a pool, for any number of axes.
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
    /// An array of this shape, as [`PooledArray::new`] makes it.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`].
    fn allocate_array<T: Pod>(&self, shape: &[usize]) -> Result<PooledArray<T, IxDyn, A>>;
}

impl<A: HostMemory> AllocateArray<A> for BucketPool<A> {
    fn allocate_array<T: Pod>(&self, shape: &[usize]) -> Result<PooledArray<T, IxDyn, A>> {
        PooledArray::new(self, shape)
    }
}
