//! Views of `ndarray` over arrays in host memory.
#![expect(unsafe_code, reason = "views are made of a pointer and a shape")]

use super::PooledArray;
use bytemuck::Pod;
use ndarray::{
    ArrayRef, ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Dimension, IntoNdProducer, IxDyn,
};
use pool_core::port::HostMemory;
use pool_core::{AllocError, BucketPool};

impl<T: Pod, A: HostMemory> PooledArray<T, A> {
    /// Allocates an array with the elements of a view, or of an array of `ndarray`.
    ///
    /// # Errors
    ///
    /// As for [`PooledArray::new`].
    ///
    /// See [`PooledArray::from_elem`] for an example of what fails.
    pub fn from_view<D: Dimension>(
        pool: &BucketPool<A>,
        view: &ArrayRef<T, D>,
    ) -> Result<Self, AllocError> {
        let mut array = Self::new(pool, view.shape())?;
        array.checked()?;
        array.view_mut().assign(&view.view().into_dyn());
        Ok(array)
    }

    /// Returns a read-only view, for all operations of `ndarray`. Its number of axes is not known
    /// when the program is compiled; [`PooledArray::view_as`] gives a view of two, or of three.
    #[must_use]
    pub fn view(&self) -> ArrayViewD<'_, T> {
        let shape = self.layout(self.len());
        // SAFETY: the slice holds exactly the elements of this shape (`layout`), is aligned and
        // initialised (`HostMemory`; `Pod` allows any bytes), and stays borrowed as long as the
        // view lives.
        unsafe { ArrayViewD::from_shape_ptr(shape, self.as_ptr()) }
    }

    /// Returns a mutable view.
    #[must_use]
    pub fn view_mut(&mut self) -> ArrayViewMutD<'_, T> {
        let shape = self.layout(self.len());
        // SAFETY: as in `view`. `&mut self` excludes other views of the buffer.
        unsafe { ArrayViewMutD::from_shape_ptr(shape, self.as_mut_ptr()) }
    }

    /// Returns a read-only view with as many axes as `D` has; `None` if the array has others.
    #[must_use]
    pub fn view_as<D: Dimension>(&self) -> Option<ArrayView<'_, T, D>> {
        self.view().into_dimensionality().ok()
    }

    /// Returns a mutable view with as many axes as `D` has; `None` if the array has others.
    #[must_use]
    pub fn view_mut_as<D: Dimension>(&mut self) -> Option<ArrayViewMut<'_, T, D>> {
        self.view_mut().into_dimensionality().ok()
    }

    /// The shape for a slice of `elements` elements: an empty one if the memory is not as its
    /// backend says.
    fn layout(&self, elements: usize) -> IxDyn {
        let fits = size_of::<T>() == 0 || elements == self.elements();
        if fits { IxDyn(&self.shape) } else { IxDyn(&[0]) }
    }
}

/// A read-only operand of `ndarray::Zip`.
impl<'a, T: Pod, A: HostMemory> IntoNdProducer for &'a PooledArray<T, A> {
    type Item = &'a T;
    type Dim = IxDyn;
    type Output = ArrayViewD<'a, T>;

    fn into_producer(self) -> ArrayViewD<'a, T> {
        self.view()
    }
}

/// An operand of `ndarray::Zip` that it writes.
impl<'a, T: Pod, A: HostMemory> IntoNdProducer for &'a mut PooledArray<T, A> {
    type Item = &'a mut T;
    type Dim = IxDyn;
    type Output = ArrayViewMutD<'a, T>;

    fn into_producer(self) -> ArrayViewMutD<'a, T> {
        self.view_mut()
    }
}
