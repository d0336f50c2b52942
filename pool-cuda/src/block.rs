//! A block of VRAM, and what a program uses of it: an address that cudarc's calls take.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, sys};
use std::marker::PhantomData;
use std::sync::Arc;

/// A block of device memory.
#[derive(Debug)]
pub struct CudaBlock {
    pub(crate) at: sys::CUdeviceptr,
    pub(crate) device: usize,
}

impl CudaBlock {
    /// The address on the device, for a block that left its pool.
    #[must_use]
    pub fn as_ptr(&self) -> sys::CUdeviceptr {
        self.at
    }
}

/// A range of device memory in use on a stream.
///
/// Give it to cudarc's calls on that stream, `stream.memcpy_dtoh(&*used, &mut host)`, and where it
/// is written `stream.memcpy_htod(&host, &mut &*used)`. On another stream it still works, by a wait
/// before and after;
/// [`PooledBuffer::on`](pool_core::PooledBuffer::on) with that stream is cheaper.
#[derive(Debug)]
pub struct CudaView<'b> {
    at: sys::CUdeviceptr,
    bytes: usize,
    stream: Arc<CudaStream>,
    block: PhantomData<&'b CudaBlock>,
}

impl CudaView<'_> {
    pub(crate) fn new(at: sys::CUdeviceptr, bytes: usize, stream: Arc<CudaStream>) -> Self {
        Self { at, bytes, stream, block: PhantomData }
    }

    /// The address on the device; what a kernel takes.
    #[must_use]
    pub fn as_ptr(&self) -> sys::CUdeviceptr {
        self.at
    }

    /// The ordinal of the device.
    #[must_use]
    pub fn device_id(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// cudarc names the stream only here and takes no error. On another stream than the view's:
    /// slow and right.
    fn guard<'a>(&'a self, on: &'a CudaStream) -> SyncOnDrop<'a> {
        let same_context = on.context().cu_ctx() == self.stream.context().cu_ctx();
        if same_context && on.cu_stream() == self.stream.cu_stream() {
            return SyncOnDrop::Sync(None);
        }
        self.stream.context().record_err(on.join(&self.stream));
        SyncOnDrop::Sync(Some(on))
    }
}

impl DeviceSlice<u8> for CudaView<'_> {
    fn len(&self) -> usize {
        self.bytes
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl DevicePtr<u8> for CudaView<'_> {
    fn device_ptr<'a>(&'a self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.at, self.guard(on))
    }
}

// What is written is given as `&mut &*used`: a `&mut CudaView` could be swapped with another use's.
impl DeviceSlice<u8> for &CudaView<'_> {
    fn len(&self) -> usize {
        self.bytes
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl DevicePtrMut<u8> for &CudaView<'_> {
    fn device_ptr_mut<'a>(&'a mut self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.at, self.guard(on))
    }
}
