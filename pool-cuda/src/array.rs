//! Typed arrays in VRAM that go straight into cudarc's calls.
#![expect(unsafe_code, reason = "cudarc takes addresses over")]

use crate::block::CudaView;
use crate::device::CudaDevice;
use crate::events::CudaDriver;
use crate::memory::{CudaMemory, Source};
use crate::pinned::CudaPinnedAllocator;
use crate::stream_ordered::CudaAsyncAllocator;
use bytemuck::Pod;
use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, SyncOnDrop, sys,
};
use pool_core::buffer::Detached;
use pool_core::stream::Timeline;
use pool_core::{DeviceAllocator, DeviceError, StreamClock, Why};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// An allocator of memory that streams of one GPU use: VRAM, or page-locked memory.
pub trait OfCuda: DeviceAllocator<Clock = Timeline<CudaDriver>> {
    /// Returns the device whose streams the memory is ordered with.
    fn cuda_device(&self) -> &CudaDevice;
}

impl<S: Source> OfCuda for CudaMemory<S> {
    fn cuda_device(&self) -> &CudaDevice {
        self.device()
    }
}

impl OfCuda for CudaPinnedAllocator {
    fn cuda_device(&self) -> &CudaDevice {
        self.device()
    }
}

/// An allocator of VRAM.
pub trait Vram: for<'b> OfCuda<View<'b> = CudaView<'b>> {}

impl<S: Source> Vram for CudaMemory<S> {}

/// The elements of an array in VRAM that is in use on a stream, as cudarc's copies and fills take
/// them. A copy on another stream waits for the use's stream, except in a capture
/// ([`CudaView`]); `PooledArray::on` with that stream is cheaper.
///
/// For a kernel, `builder.arg(&*array.on(&stream)?)`.
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub use pool_array as array; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, array::PooledArray, cuda::CudaAllocator};
///
/// let pool = BucketPool::new(CudaAllocator::new(0)?);
/// let stream = pool.allocator().device().context().new_stream()?;
/// let on = pool.allocator().device().stream(&stream)?;
/// let sums = PooledArray::<f32, _>::new_on(&pool, &on, [2, 3])?;
/// stream.memcpy_htod(&[1.5; 6], &mut sums.on(&on)?.typed::<f32>())?;
/// let shown = stream.clone_dtoh(&sums.read_on(&on)?.typed::<f32>())?;
/// assert_eq!((sums.shape(), shown), (&[2, 3][..], vec![1.5; 6]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TypedView<'u, T> {
    view: &'u CudaView<'u>,
    element: PhantomData<T>,
}

impl CudaView<'_> {
    /// Returns the bytes as elements, of which any bits are valid: the block has what its last user
    /// left in it. What is left over at the end is not among them.
    ///
    /// ```compile_fail,E0277
    /// # fn elements(view: &pool_cuda::CudaView<'_>) {
    /// view.typed::<bool>(); // a byte of 2 is no `bool`
    /// # }
    /// ```
    #[must_use]
    pub fn typed<T: Pod + DeviceRepr>(&self) -> TypedView<'_, T> {
        TypedView { view: self, element: PhantomData }
    }
}

impl<T> DeviceSlice<T> for TypedView<'_, T> {
    fn len(&self) -> usize {
        DeviceSlice::<u8>::len(self.view) / size_of::<T>().max(1)
    }
    fn stream(&self) -> &Arc<CudaStream> {
        DeviceSlice::<u8>::stream(self.view)
    }
}

impl<T> DevicePtr<T> for TypedView<'_, T> {
    fn device_ptr<'a>(&'a self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        DevicePtr::<u8>::device_ptr(self.view, on)
    }
}

impl<T> DevicePtrMut<T> for TypedView<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        DevicePtr::<u8>::device_ptr(self.view, on)
    }
}

/// Turns a whole block of a [`CudaAsyncAllocator`] into cudarc's `CudaSlice`, which frees it in the
/// order of `stream`. It no longer counts under the pool's limit.
///
/// Only memory of that allocator can become a slice: cudarc frees by `cuMemFreeAsync`, and memory of
/// `cuMemAlloc` that is freed so comes back at the next synchronisation of the program. On an H100 a
/// loop without one ran out of memory after 78 blocks of 1 GiB.
///
/// `stream` is ordered behind all uses of the block, and the slice's events are recorded there, so
/// that cudarc orders other streams behind them. cudarc orders no slice while the program has made
/// no stream through it, or has disabled its event tracking: order other streams behind `stream`
/// then.
///
/// # Errors
///
/// [`Why::Foreign`] for a stream that is not registered, [`Why::Unsupported`] for a buffer that is
/// no whole number of elements, is kept for a graph, or is a part of a segment of an arena,
/// [`Why::NotSubmitted`] for a stream under capture; or the driver's refusal. The block went back
/// to the pool then, as that of a dropped buffer does.
///
/// # Panics
///
/// In cudarc, if the driver refuses the two events that each `CudaSlice` has. The block goes back
/// to the pool then too.
///
/// # Examples
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, KIB, Why};
/// use bucketpool::cuda::{CudaAsyncAllocator, CudaDevice, into_slice};
///
/// # let device = CudaDevice::new(0)?;
/// let pool = BucketPool::new(CudaAsyncAllocator::new(device.clone(), 0)?);
/// # let stream = device.context().new_stream()?;
/// let on = device.stream(&stream)?;
/// let slice = into_slice::<f32>(pool.allocate_on(&on, KIB)?.detach(), &stream)?;
/// assert_eq!((slice.len(), pool.stats().reserved_bytes), (256, 0));
///
/// let six_bytes = pool.allocate_on(&on, 6)?.detach();
/// let refused = into_slice::<f32>(six_bytes, &stream).unwrap_err();
/// assert_eq!(refused.why, Why::Unsupported);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn into_slice<T: Pod + DeviceRepr>(
    block: Detached<CudaAsyncAllocator>,
    stream: &Arc<CudaStream>,
) -> Result<CudaSlice<T>, DeviceError> {
    let refused = |why| DeviceError::new(why, "into a CudaSlice");
    let device = block.allocator().device().clone();
    let known = device.known(stream).ok_or(refused(Why::Foreign))?;
    let element = size_of::<T>().max(1) as u64;
    if block.is_private() || !block.size().is_multiple_of(element) {
        return Err(refused(Why::Unsupported));
    }
    if !device.clock().takes_work(&known) || device.events().is_in_capture(known.raw())? {
        return Err(refused(Why::NotSubmitted));
    }
    let elements = crate::sizes::size(block.size() / element)?;
    let at = block.on(&known)?.as_ptr();
    // The pool owns the block until the slice is complete, and so gets it back if cudarc panics.
    // SAFETY: the block is a whole allocation of a call that matches the one by which a `CudaSlice` frees. It
    // holds `elements` elements, of which any bits are valid (`Pod`). The slice is dropped below
    // only when the pool has given the block up.
    let (slice, has_events) = unsafe { slice_at(&device, at, elements, stream) }?;
    let clock = device.clock();
    // Without its events, other streams are ordered by a wait of the host.
    let ordered = if has_events { Ok(()) } else { clock.synchronize(clock.mark(&known)) };
    let raw = |()| block.into_raw().map_err(|_part| refused(Why::Unsupported));
    match ordered.and_then(raw) {
        Ok(_raw) => Ok(ManuallyDrop::into_inner(slice)),
        Err(error) => {
            let give_up = || Ok(ManuallyDrop::into_inner(slice).leak());
            // On a lost device the events stay.
            let _ = device.driver().call("cuEventDestroy", give_up);
            Err(error)
        }
    }
}

/// Returns a slice of a block, and whether its events were recorded behind the work that `stream`
/// was given so far.
///
/// # Safety
///
/// The block lies at the address, is an allocation that a `CudaSlice` may free, and holds as many
/// elements. The slice is not dropped while a pool owns the block.
unsafe fn slice_at<T: Pod + DeviceRepr>(
    device: &CudaDevice,
    at: sys::CUdeviceptr,
    elements: usize,
    stream: &Arc<CudaStream>,
) -> Result<(ManuallyDrop<CudaSlice<T>>, bool), DeviceError> {
    let context = stream.context();
    device.driver().call("cuEventCreate", || {
        // An error that an earlier drop has left would make cudarc panic. cudarc tells it later.
        let left = context.check_err();
        // SAFETY: as the caller promises.
        let slice = unsafe { stream.upgrade_device_ptr(at, elements) };
        let mut slice = ManuallyDrop::new(slice);
        // The drops of these guards record the events.
        drop(slice.device_ptr_mut(stream));
        drop(slice.device_ptr(stream));
        let recorded = context.check_err();
        context.record_err(left.and(recorded));
        Ok((slice, recorded.is_ok()))
    })
}
