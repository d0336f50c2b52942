//! A block of VRAM, and the view of it that cudarc's calls take.
#![expect(unsafe_code, reason = "a view is passed to kernels as its address")]

use crate::capturing::Captures;
use crate::driver::{CallersContext, refusal};
use crate::events::ViewStream;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError, LaunchArgs, PushKernelArg,
    SyncOnDrop, result, sys,
};
use pool_core::Why;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

/// A block of device memory.
#[derive(Debug)]
pub struct CudaBlock {
    pub(crate) at: sys::CUdeviceptr,
    pub(crate) bytes: u64,
    pub(crate) owner: Owner,
}

impl CudaBlock {
    /// Returns the address on the device, for a block that left its pool.
    #[must_use]
    pub fn as_ptr(&self) -> sys::CUdeviceptr {
        self.at
    }
}

/// The number of the allocator of a block. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// A range of device memory in use on a stream.
///
/// Give it to cudarc's calls on that stream, `stream.memcpy_dtoh(&*used, &mut host)`, where it is
/// written `stream.memcpy_htod(&host, &mut &*used)`, and to a kernel `builder.arg(&*used)`. Copies
/// on another stream still work, by a wait before and after;
/// [`PooledBuffer::on`](pool_core::PooledBuffer::on) with that stream is cheaper. Where one of the
/// two streams is under capture, there is no wait: cudarc's next call says
/// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION` ([`CudaCapture`](crate::CudaCapture)).
#[derive(Debug)]
pub struct CudaView<'b> {
    at: sys::CUdeviceptr,
    bytes: usize,
    stream: ViewStream,
    block: PhantomData<&'b CudaBlock>,
}

// SAFETY: pushes the address, which is a plain number, from the view, which is borrowed as long as
// the arguments.
unsafe impl<'a, 'b: 'a> PushKernelArg<&'b CudaView<'_>> for LaunchArgs<'a> {
    fn arg(&mut self, view: &'b CudaView<'_>) -> &mut Self {
        self.arg(&view.at)
    }
}

impl CudaView<'_> {
    pub(crate) fn new(at: sys::CUdeviceptr, bytes: u64, stream: ViewStream) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self { at, bytes, stream, block: PhantomData }
    }

    /// Returns the address on the device, which kernels take.
    #[must_use]
    pub fn as_ptr(&self) -> sys::CUdeviceptr {
        self.at
    }

    /// Returns the ordinal of the device.
    #[must_use]
    pub fn device_id(&self) -> usize {
        self.stream.stream.context().ordinal()
    }
}

/// Orders one of cudarc's calls on `on` behind the stream `own` that the memory is ordered on.
/// cudarc takes no error here: it tells a refusal with its next call. Between contexts, for the
/// default stream of another thread, or if the driver refuses, the host waits; but not for another
/// thread's stream while a capture of this crate goes on, which such a wait would break.
///
/// Where either stream is under capture, the call is ordered behind nothing. To wait for a captured
/// stream would take `on` into its capture, unknown to the clock, and the host must not wait for a
/// captured stream: each would break the capture.
///
/// cudarc has made the context of its call current already, and calls the driver next, so the same
/// context is current afterwards.
pub(crate) fn guard<'a>(own: &ViewStream, on: &'a CudaStream) -> SyncOnDrop<'a> {
    let of_thread = own.thread.is_none_or(|of| of == thread::current().id());
    let own = &own.stream;
    let same_context = on.context().cu_ctx() == own.context().cu_ctx();
    if of_thread && same_context && on.cu_stream() == own.cu_stream() {
        return SyncOnDrop::Sync(None);
    }
    let _callers = CallersContext::of_thread();
    if is_captured(on) || (of_thread && is_captured(own)) {
        let refused = DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        on.context().record_err::<()>(Err(refused));
        return SyncOnDrop::Sync(None);
    }
    // Each wait a second time, since the first may tell an error that some drop has left.
    let waited = if !of_thread {
        let context = own.context();
        let wait = || context.synchronize().or_else(|_| context.synchronize());
        let refused = DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        Captures::of(context).without(wait).unwrap_or(Err(refused))
    } else if same_context && on.join(own).is_ok() {
        Ok(())
    } else {
        own.synchronize().or_else(|_| own.synchronize())
    };
    on.context().record_err(waited);
    SyncOnDrop::Sync(Some(on))
}

/// Returns whether a stream is under capture, or is the legacy default stream beside a captured
/// stream that waits for it. Leaves its context current.
fn is_captured(stream: &CudaStream) -> bool {
    // The null handle is a stream of the current context.
    // SAFETY: the stream's `Arc` keeps its context alive.
    let bound = unsafe { result::ctx::set_current(stream.context().cu_ctx()) };
    // SAFETY: the stream lives as long as it is borrowed.
    let ask = || unsafe { result::stream::is_capturing(stream.cu_stream()) };
    match bound.and_then(|()| ask()) {
        Ok(status) => status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Err(error) => refusal("cuStreamIsCapturing", error).why == Why::NotSubmitted,
    }
}

impl DeviceSlice<u8> for CudaView<'_> {
    fn len(&self) -> usize {
        self.bytes
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream.stream
    }
}

impl DevicePtr<u8> for CudaView<'_> {
    fn device_ptr<'a>(&'a self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.at, guard(&self.stream, on))
    }
}

// What is written is given as `&mut &*used`: a `&mut CudaView` could be swapped with another use's.
impl DeviceSlice<u8> for &CudaView<'_> {
    fn len(&self) -> usize {
        self.bytes
    }
    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream.stream
    }
}

impl DevicePtrMut<u8> for &CudaView<'_> {
    fn device_ptr_mut<'a>(&'a mut self, on: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        (self.at, guard(&self.stream, on))
    }
}
