//! A device: its context, its clock, its streams. All allocators of a device share one.
#![expect(unsafe_code, reason = "streams of other libraries come as handles")]

use crate::driver::{Driver, forked, is_present, refusal};
use crate::events::{CudaDriver, CudaStreamOf, RawStream};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use parking_lot::Mutex;
use pool_core::{DeviceError, StreamClock, Timeline, Why};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::{self, ThreadId};

/// `CU_STREAM_LEGACY`: the null stream by its other name.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: a handle that means another stream on each thread.
const PER_THREAD: usize = 2;

/// A GPU, with the clock of its streams. Clones are the same device; allocators that are to share
/// streams and buffers' order share one.
///
/// Its context is current while a pool works, and the caller's own again when the call returns.
#[derive(Clone)]
pub struct CudaDevice(Arc<Inner>);

struct Inner {
    driver: Arc<Driver>,
    events: CudaDriver,
    clock: Timeline<CudaDriver>,
    /// Registered streams. The clock keeps each, so its handle is not used again.
    streams: Mutex<HashMap<StreamKey, CudaStreamOf>>,
    total_bytes: u64,
}

type StreamKey = (usize, Option<ThreadId>);

/// What a stream is known by. The per-thread default stream is its thread's.
fn key(stream: &CudaStream) -> StreamKey {
    match stream.cu_stream().addr() {
        LEGACY => (0, None),
        PER_THREAD => (PER_THREAD, Some(thread::current().id())),
        handle => (handle, None),
    }
}

impl CudaDevice {
    /// The device with this ordinal, by its primary context.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if no driver library can be loaded or there is no such device, or what
    /// the driver said.
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        if !is_present() {
            return Err(DeviceError::new(Why::Unsupported, "no driver library (libcuda)", 0));
        }
        if let Some(forked) = forked() {
            return Err(forked);
        }
        let failed = |e| refusal("cuDevicePrimaryCtxRetain", e);
        let before = result::init().and_then(|()| result::ctx::get_current());
        let before = before.map_err(|e| refusal("cuInit", e))?;
        // cudarc makes the new context current; the caller's stays so.
        let context = CudaContext::new(ordinal).map_err(failed)?;
        if let Some(before) = before {
            // SAFETY: it was current a moment ago, so it is alive.
            unsafe { result::ctx::set_current(before) }.map_err(failed)?;
        }
        Self::in_context(context)
    }

    /// The device of a context that the program has already.
    ///
    /// # Errors
    ///
    /// What the driver said when it was asked how much memory there is.
    pub fn in_context(context: Arc<CudaContext>) -> Result<Self, DeviceError> {
        if let Some(forked) = forked() {
            return Err(forked);
        }
        let default = context.default_stream();
        let total = context.total_mem().map_err(|e| refusal("cuDeviceTotalMem", e))?;
        let driver = Arc::new(Driver::new(context));
        let (raw, events) =
            (RawStream::new(default.clone(), None), CudaDriver::new(driver.clone()));
        let clock = Timeline::new(events.clone(), raw);
        let streams = HashMap::from([(key(&default), clock.default_stream().clone())]);
        let (streams, total_bytes) = (Mutex::new(streams), total as u64);
        Ok(Self(Arc::new(Inner { driver, events, clock, streams, total_bytes })))
    }

    /// Makes one of the program's streams known, once; it is kept alive until it is retired. The
    /// legacy default stream is known from the start, and gets events like any other: its implicit
    /// order does not cover non-blocking streams, which cudarc's are.
    ///
    /// The per-thread default stream is the calling thread's. It can be waited for from other
    /// threads, but only by stopping the host: prefer streams that have a handle of their own.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another context.
    pub fn stream(&self, stream: &Arc<CudaStream>) -> Result<CudaStreamOf, DeviceError> {
        if let Some(fault) = self.driver().fault() {
            return Err(fault);
        }
        if stream.context().cu_ctx() != self.context().cu_ctx() {
            return Err(DeviceError::new(Why::Foreign, "a stream of another context", 0));
        }
        let key = key(stream);
        let mut streams = self.0.streams.lock();
        let known = streams
            .entry(key)
            .or_insert_with(|| self.clock().register(RawStream::new(stream.clone(), key.1)));
        Ok(known.clone())
    }

    /// A stream that another library owns, by its handle.
    ///
    /// # Errors
    ///
    /// [`Why::Other`] if the handle is known already.
    ///
    /// # Safety
    ///
    /// The handle is a stream of this device's context, and its owner keeps it until
    /// [`PoolStream::retire`] has returned. No thread allocates, uses a buffer or launches a graph
    /// on the stream while it is retired.
    pub unsafe fn wrap_stream(&self, handle: sys::CUstream) -> Result<PoolStream, DeviceError> {
        if let Some(fault) = self.driver().fault() {
            return Err(fault);
        }
        // SAFETY: as the caller says; after its retirement nothing is called with it.
        let stream = unsafe { self.context().wrap_borrowed_stream(handle) };
        if self.0.streams.lock().contains_key(&key(&stream)) {
            return Err(DeviceError::new(Why::Other, "wrap a stream that is known already", 0));
        }
        Ok(PoolStream { on: self.stream(&stream)?, device: self.clone() })
    }

    /// A stream ends, as far as the device's pools go: what it was given still runs, and memory
    /// that it used serves others behind its last event. Its thread calls this for a per-thread
    /// default stream.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream that is not known (any more), [`Why::Unsupported`] for the
    /// legacy default stream, or what the driver said; the stream goes on then.
    pub fn retire(&self, stream: &CudaStreamOf) -> Result<(), DeviceError> {
        self.clock().retire(stream)?;
        let mut streams = self.0.streams.lock();
        streams.retain(|_, known| !std::ptr::eq(known.raw(), stream.raw()));
        Ok(())
    }

    /// The stream of this device that a stream of cudarc's is known as.
    pub(crate) fn known(&self, stream: &CudaStream) -> Option<CudaStreamOf> {
        let ours = forked().is_none() && stream.context().cu_ctx() == self.context().cu_ctx();
        ours.then(|| self.0.streams.lock().get(&key(stream)).cloned()).flatten()
    }

    pub(crate) fn has_attribute(
        &self,
        attribute: sys::CUdevice_attribute,
    ) -> Result<bool, DeviceError> {
        let context = self.context();
        self.driver().call("cuDeviceGetAttribute", || Ok(context.attribute(attribute)? > 0))
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.0.driver
    }

    pub(crate) fn events(&self) -> &CudaDriver {
        &self.0.events
    }

    /// The clock that all allocators of the device share.
    #[must_use]
    pub fn clock(&self) -> &Timeline<CudaDriver> {
        &self.0.clock
    }

    /// The context that all calls are made in.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        self.0.driver.context()
    }

    /// The ordinal of the device.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context().ordinal()
    }

    /// All the memory that the device has, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.0.total_bytes
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice").field("ordinal", &self.ordinal()).finish_non_exhaustive()
    }
}

/// A stream of another library. It must be retired before its owner destroys it.
#[derive(Debug)]
#[must_use = "it must be retired before its owner destroys the stream"]
pub struct PoolStream {
    on: CudaStreamOf,
    device: CudaDevice,
}

impl PoolStream {
    /// Records the stream's last event; its owner may destroy it once this has returned `Ok`.
    ///
    /// # Errors
    ///
    /// As for [`CudaDevice::retire`], with the stream, which goes on.
    pub fn retire(self) -> Result<(), (Self, DeviceError)> {
        match self.device.retire(&self.on) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

/// The stream, as pools take it.
impl Deref for PoolStream {
    type Target = CudaStreamOf;
    fn deref(&self) -> &CudaStreamOf {
        &self.on
    }
}
