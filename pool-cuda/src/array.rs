//! Typed arrays in VRAM that go straight into cudarc's calls.
#![expect(unsafe_code, reason = "cudarc takes addresses over")]

use crate::block::{CudaView, guard};
use crate::device::CudaDevice;
use crate::events::{CudaDriver, PoolStream};
use crate::memory::{CudaMemory, Source, Whole};
use bytemuck::Pod;
use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, DriverError,
    SyncOnDrop, sys,
};
use pool_core::{
    AllocError, BucketPool, Detached, DeviceAllocator, DeviceError, PooledBuffer, StreamClock,
    Timeline, Use, Why,
};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// An allocator of VRAM.
pub trait Vram:
    for<'b> DeviceAllocator<Clock = Timeline<CudaDriver>, View<'b> = CudaView<'b>>
{
    /// Returns the device of this memory.
    fn cuda_device(&self) -> &CudaDevice;
}

impl<S: Source> Vram for CudaMemory<S> {
    fn cuda_device(&self) -> &CudaDevice {
        self.device()
    }
}

/// An array in a pooled buffer of VRAM. cudarc's copies and fills take it as they take a
/// `CudaSlice`; each orders its stream behind the array's earlier uses, and is recorded as a use.
/// Register the stream with the device ([`CudaDevice::stream`]). For one that is not registered,
/// the host waits at each use.
///
/// For a kernel, `builder.arg(&*array.on(&stream)?)`.
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// use pool_core::BucketPool;
/// use pool_cuda::{AllocateCudaArray, CudaAllocator};
///
/// let pool = BucketPool::new(CudaAllocator::new(0)?);
/// let stream = pool.allocator().device().context().new_stream()?;
/// let on = pool.allocator().device().stream(&stream)?;
/// let mut sums = pool.allocate_array_on::<f32>(&on, &[2, 3])?;
/// stream.memcpy_htod(&[1.5; 6], &mut sums)?;
/// assert_eq!((sums.shape(), stream.clone_dtoh(&sums)?), (&[2, 3][..], vec![1.5; 6]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CudaArray<T, A: Vram> {
    buffer: PooledBuffer<A>,
    at: sys::CUdeviceptr,
    home: PoolStream,
    shape: Box<[usize]>,
    element: PhantomData<T>,
}

/// Allocation of arrays from a pool.
pub trait AllocateCudaArray<A: Vram> {
    /// Allocates an array of this shape for the device's default stream. It contains whatever the
    /// previous user of its memory left there, unless the pool zeroes it.
    ///
    /// # Errors
    ///
    /// As for [`BucketPool::allocate`], and [`Why::TooLarge`] for a shape of more bytes than there
    /// are addresses.
    fn allocate_array<T: Pod + DeviceRepr>(
        &self,
        shape: &[usize],
    ) -> Result<CudaArray<T, A>, AllocError>;

    /// Allocates an array of this shape for work on `stream`.
    ///
    /// # Errors
    ///
    /// As for [`AllocateCudaArray::allocate_array`] and [`BucketPool::allocate_on`].
    fn allocate_array_on<T: Pod + DeviceRepr>(
        &self,
        stream: &PoolStream,
        shape: &[usize],
    ) -> Result<CudaArray<T, A>, AllocError>;
}

impl<A: Vram> AllocateCudaArray<A> for BucketPool<A> {
    fn allocate_array<T: Pod + DeviceRepr>(
        &self,
        shape: &[usize],
    ) -> Result<CudaArray<T, A>, AllocError> {
        self.allocate_array_on(self.allocator().clock().default_stream(), shape)
    }

    fn allocate_array_on<T: Pod + DeviceRepr>(
        &self,
        stream: &PoolStream,
        shape: &[usize],
    ) -> Result<CudaArray<T, A>, AllocError> {
        let bytes = shape.iter().try_fold(size_of::<T>(), |bytes, axis| bytes.checked_mul(*axis));
        // The pool refuses a size that no address space holds, with its own error.
        let buffer = self.allocate_on(stream, bytes.map_or(u64::MAX, |bytes| bytes as u64))?;
        // The first use, on its own stream, orders nothing, so only a lost device refuses it.
        let at = buffer.on(stream).map_or(0, |used| used.as_ptr());
        let (home, shape) = (stream.clone(), shape.into());
        Ok(CudaArray { buffer, at, home, shape, element: PhantomData })
    }
}

impl<T, A: Vram> CudaArray<T, A> {
    /// Returns the number of elements of each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the memory for work on `stream` while the [`Use`] lives, such as a kernel.
    ///
    /// # Errors
    ///
    /// As for [`PooledBuffer::on`].
    pub fn on<'b>(&'b self, stream: &'b PoolStream) -> Result<Use<'b, A>, DeviceError> {
        self.buffer.on(stream)
    }

    /// Returns the buffer, without its type.
    #[must_use]
    pub fn into_buffer(self) -> PooledBuffer<A> {
        self.buffer
    }

    /// Records a use by one of cudarc's calls, which takes no error. For a stream that is not
    /// registered, or of another device, the host waits before and after. If the use is refused
    /// (the device is lost, or the work is in a capture that cannot have it), the context's next
    /// call reports it.
    fn used_on<'a>(&'a self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        let known = self.buffer.allocator().cuda_device().known(on);
        // cudarc does not tell when its work is given to the stream: the use lasts to the drop.
        let Ok(()) = self.buffer.use_until_drop(known.as_ref().unwrap_or(&self.home)) else {
            let why = sys::CUresult::CUDA_ERROR_INVALID_HANDLE;
            on.context().record_err(Err::<(), _>(DriverError(why)));
            return (self.at, SyncOnDrop::Sync(None));
        };
        let guard = match known {
            Some(_) => SyncOnDrop::Sync(None),
            None => guard(self.home.raw(), on),
        };
        (self.at, guard)
    }
}

impl<T, A: Vram> DeviceSlice<T> for CudaArray<T, A> {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }
    fn stream(&self) -> &Arc<CudaStream> {
        self.home.raw()
    }
}

impl<T, A: Vram> DevicePtr<T> for CudaArray<T, A> {
    fn device_ptr<'a>(&'a self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.used_on(on)
    }
}

impl<T, A: Vram> DevicePtrMut<T> for CudaArray<T, A> {
    fn device_ptr_mut<'a>(&'a mut self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.used_on(on)
    }
}

impl<T, A: Vram> fmt::Debug for CudaArray<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, buffer) = (&self.shape, &self.buffer);
        f.debug_struct("CudaArray")
            .field("shape", shape)
            .field("buffer", buffer)
            .finish_non_exhaustive()
    }
}

/// Turns a whole block of [`CudaAllocator`](crate::CudaAllocator) or
/// [`CudaAsyncAllocator`](crate::CudaAsyncAllocator) into cudarc's `CudaSlice`, which frees it in
/// the order of `stream`. It no longer counts under the pool's limit.
///
/// # Errors
///
/// [`Why::Foreign`] for a stream that is not registered, [`Why::Unsupported`] for a buffer that is
/// no whole number of elements, is kept for a graph, or is a part of a segment of an arena; or the
/// driver's refusal. The block went back to the device's pool then.
///
/// # Panics
///
/// In cudarc, if the driver refuses the two events that each `CudaSlice` has.
pub fn into_slice<T: Pod + DeviceRepr, S: Whole>(
    block: Detached<CudaMemory<S>>,
    stream: &Arc<CudaStream>,
) -> Result<CudaSlice<T>, DeviceError> {
    let refused = |why| DeviceError::new(why, "into a CudaSlice", 0);
    let known = block.allocator().device().known(stream).ok_or(refused(Why::Foreign))?;
    let element = size_of::<T>().max(1) as u64;
    if block.is_private() || !block.size().is_multiple_of(element) {
        return Err(refused(Why::Unsupported));
    }
    let elements = crate::memory::size(block.size() / element)?;
    drop(block.on(&known)?);
    let (block, _) = block.into_raw().map_err(|_part| refused(Why::Unsupported))?;
    // SAFETY: the block is a whole allocation of a call that a `CudaSlice` may free. It holds
    // `elements` elements, of which any bits are valid. The stream was just ordered behind its
    // uses.
    Ok(unsafe { stream.upgrade_device_ptr(block.as_ptr(), elements) })
}
