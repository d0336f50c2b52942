//! The driver: its errors, and the events that stream order asks of it.
#![expect(unsafe_code, reason = "the driver is called through C")]

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use parking_lot::Mutex;
use pool_core::{DeviceError, EventDriver, Stream, Why};
use std::fmt;
use std::sync::Arc;

/// A CUDA stream that an allocator's clock knows.
pub type CudaStreamOf = Stream<CudaDriver>;

/// The driver's answer in the words of the port; the code is the driver's own.
pub(crate) fn error(call: &'static str, error: DriverError) -> DeviceError {
    let why = match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Why::OutOfMemory,
        CUresult::CUDA_ERROR_NO_DEVICE
        | CUresult::CUDA_ERROR_INVALID_DEVICE
        | CUresult::CUDA_ERROR_NOT_SUPPORTED => Why::Unsupported,
        // After these no call of the context succeeds any more.
        CUresult::CUDA_ERROR_DEINITIALIZED
        | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE => Why::Lost,
        _ => Why::Other,
    };
    DeviceError::new(why, call, i64::from(error.0 as u32))
}

/// Whether a driver library can be loaded. cudarc panics at the first call without one.
pub(crate) fn is_present() -> bool {
    // SAFETY: loads libraries by the driver's names, which run their initialisers; a driver's are
    // harmless, and whoever puts something else under that name is trusted by every CUDA program.
    unsafe { sys::is_culib_present() }
}

/// Makes the context current. Not by cudarc's own `bind_to_thread`, which first tells an error that
/// some earlier drop has left: nothing of ours.
pub(crate) fn bind(context: &CudaContext) -> Result<(), DeviceError> {
    let failed = |e| error("cuCtxSetCurrent", e);
    if result::ctx::get_current().map_err(failed)? == Some(context.cu_ctx()) {
        return Ok(());
    }
    // SAFETY: the context lives as long as it is borrowed, and its primary context with it.
    unsafe { result::ctx::set_current(context.cu_ctx()) }.map_err(failed)
}

/// Records events, waits for them, asks for them.
pub struct CudaDriver(Arc<Events>);

/// The events of a device. They are used again, so a steady program creates none; the last of the
/// driver and its events destroys them.
struct Events {
    context: Arc<CudaContext>,
    idle: Mutex<Vec<RawEvent>>,
}

/// An event of the driver.
#[derive(Clone, Copy, Debug)]
struct RawEvent(sys::CUevent);
// SAFETY: the driver lets any thread use an event whose context is current to it.
unsafe impl Send for RawEvent {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for RawEvent {}

/// An event. Dropping it makes it idle.
pub struct CudaEvent {
    raw: RawEvent,
    events: Arc<Events>,
}

impl CudaDriver {
    pub(crate) fn new(context: Arc<CudaContext>) -> Self {
        Self(Arc::new(Events { context, idle: Mutex::default() }))
    }

    fn event(&self) -> Result<CudaEvent, DeviceError> {
        let idle = self.0.idle.lock().pop();
        let raw = match idle {
            Some(raw) => raw,
            None => result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
                .map(RawEvent)
                .map_err(|e| error("cuEventCreate", e))?,
        };
        Ok(CudaEvent { raw, events: self.0.clone() })
    }
}

impl EventDriver for CudaDriver {
    type Raw = Arc<CudaStream>;
    type Event = CudaEvent;

    fn record(&self, on: &Arc<CudaStream>) -> Result<CudaEvent, DeviceError> {
        bind(&self.0.context)?;
        let event = self.event()?;
        // SAFETY: the event was created in this context and nobody else has it; the stream is kept
        // alive by its `Arc`.
        unsafe { result::event::record(event.raw.0, on.cu_stream()) }
            .map_err(|e| error("cuEventRecord", e))?;
        Ok(event)
    }

    fn wait(&self, on: &Arc<CudaStream>, event: &CudaEvent) -> Result<(), DeviceError> {
        bind(&self.0.context)?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event lives as long as it is borrowed, the stream as long as its `Arc`.
        unsafe { result::stream::wait_event(on.cu_stream(), event.raw.0, flags) }
            .map_err(|e| error("cuStreamWaitEvent", e))
    }

    fn query(&self, event: &CudaEvent) -> Result<bool, DeviceError> {
        bind(&self.0.context)?;
        // SAFETY: the event lives as long as it is borrowed.
        match unsafe { result::event::query(event.raw.0) } {
            Ok(()) => Ok(true),
            Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(e) => Err(error("cuEventQuery", e)),
        }
    }

    fn synchronize(&self, event: &CudaEvent) -> Result<(), DeviceError> {
        bind(&self.0.context)?;
        // SAFETY: the event lives as long as it is borrowed.
        unsafe { result::event::synchronize(event.raw.0) }
            .map_err(|e| error("cuEventSynchronize", e))
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.events.idle.lock().push(self.raw);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if bind(&self.context).is_err() {
            return; // the process ends, or the device is gone: there is nothing to destroy
        }
        for RawEvent(event) in self.idle.get_mut().drain(..) {
            // SAFETY: nobody holds an event any more, since each holds this list.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("device", &self.0.context.ordinal())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaEvent").field(&self.raw).finish_non_exhaustive()
    }
}
