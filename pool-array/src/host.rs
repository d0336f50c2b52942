//! Arrays in host memory: slices, indices, and results from the same pool.

use super::{PooledArray, Shape};
use bytemuck::Pod;
use pool_core::port::HostMemory;
use pool_core::{AllocError, BucketPool, DeviceAllocator, DeviceError, Why};
use std::iter::Sum;
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

impl<T: Pod, A: DeviceAllocator> PooledArray<T, A> {
    /// Allocates an array and sets each element to `value`.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`].
    ///
    /// `bucketpool::host::PooledArray` has an example.
    pub fn from_elem(
        pool: &BucketPool<A>,
        shape: impl Into<Shape>,
        value: T,
    ) -> Result<Self, AllocError>
    where
        A: HostMemory,
    {
        let mut array = Self::new(pool, shape)?;
        array.checked()?.fill(value);
        Ok(array)
    }

    /// The elements of a new array. Size and alignment come from safe methods of the backend, which
    /// may be wrong.
    #[inline]
    pub(super) fn checked(&mut self) -> Result<&mut [T], AllocError>
    where
        A: HostMemory,
    {
        if size_of::<T>() > 0 && self.len() != self.elements() {
            return Err(self.misfit());
        }
        Ok(self)
    }

    #[cold]
    fn misfit(&self) -> AllocError {
        let call = "lay an array over a block that is shorter than requested, or not aligned as \
                    the backend says";
        let cause = DeviceError::new(Why::Unsupported, call);
        self.buffer.pool(self.settings).refusal(cause, self.buffer.size())
    }

    /// Returns an array of the same pool with `f` of each element.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`].
    ///
    /// See [`PooledArray::from_elem`] for an example.
    pub fn map<U: Pod>(&self, f: impl FnMut(&T) -> U) -> Result<PooledArray<U, A>, AllocError>
    where
        A: HostMemory,
    {
        let mut result = self.beside::<U>()?;
        let elements = result.checked()?.iter_mut().zip(self.iter().map(f));
        elements.for_each(|(to, value)| *to = value);
        Ok(result)
    }

    /// Returns an array of the same pool with `f` of each pair of elements.
    ///
    /// # Errors
    ///
    /// [`Why::ShapeMismatch`] for arrays of different shapes, or as for [`PooledArray::new`].
    ///
    /// See [`PooledArray::from_elem`] for an example.
    pub fn zip_with<U: Pod, V: Pod>(
        &self,
        other: &PooledArray<U, A>,
        mut f: impl FnMut(T, U) -> V,
    ) -> Result<PooledArray<V, A>, AllocError>
    where
        A: HostMemory,
    {
        if self.shape != other.shape {
            return Err(self.mismatch(&other.shape));
        }
        let mut result = self.beside::<V>()?;
        for ((to, a), b) in result.checked()?.iter_mut().zip(self.iter()).zip(other.iter()) {
            *to = f(*a, *b);
        }
        Ok(result)
    }

    #[cold]
    fn mismatch(&self, other: &Shape) -> AllocError {
        let text = format!(
            "arrays of shapes {:?} and {other:?}; expected two arrays of one shape",
            self.shape
        );
        let cause = DeviceError::new(Why::ShapeMismatch, "combine arrays");
        self.buffer.pool(self.settings).refusal(cause, self.buffer.size()).with_argument(text)
    }

    /// Returns the sum of all elements.
    #[must_use]
    pub fn sum(&self) -> T
    where
        T: Sum<T>,
        A: HostMemory,
    {
        self.iter().copied().sum()
    }

    /// Returns a copy from the same pool.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`].
    ///
    /// See [`PooledArray::from_elem`] for an example.
    pub fn try_clone(&self) -> Result<Self, AllocError>
    where
        A: HostMemory,
    {
        let mut copy = self.beside::<T>()?;
        copy.checked()?.copy_from_slice(self);
        Ok(copy)
    }
}

/// Derefs to the elements in row-major order.
impl<T: Pod, A: HostMemory> Deref for PooledArray<T, A> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // Empty for elements of 0 bytes, and over memory that is not as its backend says.
        bytemuck::try_cast_slice(&self.buffer).unwrap_or_default()
    }
}

impl<T: Pod, A: HostMemory> DerefMut for PooledArray<T, A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::try_cast_slice_mut(&mut self.buffer).unwrap_or_default()
    }
}

/// The element at an index of each axis.
///
/// # Panics
///
/// If the index is outside of the shape, as for a slice.
impl<T: Pod, A: HostMemory, const AXES: usize> Index<[usize; AXES]> for PooledArray<T, A> {
    type Output = T;

    fn index(&self, index: [usize; AXES]) -> &T {
        let at = self.position(&index);
        &(**self)[at]
    }
}

impl<T: Pod, A: HostMemory, const AXES: usize> IndexMut<[usize; AXES]> for PooledArray<T, A> {
    fn index_mut(&mut self, index: [usize; AXES]) -> &mut T {
        let at = self.position(&index);
        &mut (**self)[at]
    }
}

/// Implements the indices of a slice, in row-major order.
macro_rules! index_as_slice {
    ($($index:ty),*) => {$(
        impl<T: Pod, A: HostMemory> Index<$index> for PooledArray<T, A> {
            type Output = <[T] as Index<$index>>::Output;

            fn index(&self, at: $index) -> &Self::Output {
                &(**self)[at]
            }
        }

        impl<T: Pod, A: HostMemory> IndexMut<$index> for PooledArray<T, A> {
            fn index_mut(&mut self, at: $index) -> &mut Self::Output {
                &mut (**self)[at]
            }
        }
    )*};
}

index_as_slice!(
    usize,
    Range<usize>,
    RangeFrom<usize>,
    RangeTo<usize>,
    RangeInclusive<usize>,
    RangeToInclusive<usize>,
    RangeFull
);

impl<T: Pod, A: HostMemory> PooledArray<T, A> {
    #[expect(clippy::panic, reason = "an index outside is a fault of the program, as in a slice")]
    fn position(&self, index: &[usize]) -> usize {
        let Some(at) = self.shape.offset(index) else {
            panic!("index {index:?} is outside of an array of the shape {:?}", self.shape)
        };
        at
    }
}

/// # Panics
///
/// If the pool refuses the copy, as a `Vec` ends the program when memory is out;
/// [`PooledArray::try_clone`] returns the error.
impl<T: Pod, A: HostMemory> Clone for PooledArray<T, A> {
    #[expect(clippy::panic, reason = "`Clone` cannot fail")]
    fn clone(&self) -> Self {
        self.try_clone().unwrap_or_else(|error| panic!("clone of an array: {error}"))
    }
}
