//! Events of the driver, for stream order.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::driver::{Driver, Kept, has};
use crate::forks::forked;
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaStream, DriverError, result};
use parking_lot::Mutex;
use pool_core::stream::{EventDriver, Stream};
use pool_core::{DeviceError, Why};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, ThreadId};

/// The driver's handle `CU_STREAM_LEGACY` (`cuda.h`).
const LEGACY: usize = 1;

/// A CUDA stream that is registered with its device
/// ([`CudaDevice::stream`](crate::CudaDevice::stream)). Pools take these.
pub type PoolStream = Stream<CudaDriver>;

/// The driver's own stream.
pub struct RawStream {
    stream: Kept<Arc<CudaStream>>,
    /// The thread whose default stream it is, for a per-thread default stream: the driver's handle
    /// means a different stream on each thread.
    thread: Option<ThreadId>,
    /// The driver's number, for a stream whose owner may destroy it without a word: its handle may name another
    /// stream afterwards.
    number: Option<u64>,
}

/// The stream that the memory of a view is ordered on.
#[derive(Clone, Debug)]
pub(crate) struct ViewStream {
    pub(crate) stream: Arc<CudaStream>,
    /// As for [`RawStream`].
    pub(crate) thread: Option<ThreadId>,
}

impl RawStream {
    pub(crate) fn new(stream: Arc<CudaStream>, thread: Option<ThreadId>) -> Self {
        Self { stream: Kept::new(stream), thread, number: None }
    }

    /// A stream that its owner may destroy at any time.
    pub(crate) fn of_others(stream: Arc<CudaStream>, number: Option<u64>) -> Self {
        Self { number, ..Self::new(stream, None) }
    }

    /// Whether the driver's number of a stream says that it is another one.
    pub(crate) fn is_other_than(&self, number: Option<u64>) -> bool {
        self.number.is_some() && self.number != number
    }

    /// Returns the driver's handle, for work that this thread submits.
    pub(crate) fn handle(&self) -> Result<sys::CUstream, DeviceError> {
        let call = "the per-thread default stream of another thread";
        let refused = DeviceError::new(Why::Foreign, call);
        if self.is_reachable() { Ok(self.cu_stream()) } else { Err(refused) }
    }

    /// Returns whether it is the legacy default stream, which waits for all blocking streams.
    fn is_legacy(&self) -> bool {
        matches!(self.cu_stream().addr(), 0 | LEGACY)
    }

    /// Returns the stream for a view of memory that is ordered on it.
    pub(crate) fn of_view(&self) -> ViewStream {
        ViewStream { stream: (*self.stream).clone(), thread: self.thread }
    }

    /// Returns whether it is the default stream of a thread.
    pub(crate) fn is_of_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Returns whether this thread can submit work to it.
    pub(crate) fn is_reachable(&self) -> bool {
        self.thread.is_none_or(|of| of == thread::current().id())
    }
}

/// cudarc's stream. A per-thread default stream is a different stream on each thread.
impl std::ops::Deref for RawStream {
    type Target = Arc<CudaStream>;
    fn deref(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

/// Records events, waits for them, and queries them.
#[derive(Clone)]
pub struct CudaDriver(Arc<Events>);

/// The events of a device. They are reused, so a steady program creates none. They are destroyed
/// when the last owner is dropped.
struct Events {
    driver: Arc<Driver>,
    idle: Mutex<Vec<RawEvent>>,
    /// Whether a wait for a new event sleeps.
    sleeps: AtomicBool,
    /// Whether the driver numbers streams: from CUDA 12.0 on.
    numbers_streams: bool,
}

/// An event of the driver.
#[derive(Clone, Copy, Debug)]
struct RawEvent(sys::CUevent);
// SAFETY: the driver lets any thread use an event whose context is current to it.
unsafe impl Send for RawEvent {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for RawEvent {}

/// An event. Its drop makes the driver's event available for reuse.
pub struct CudaEvent {
    /// `None` if the work was done already.
    raw: Option<RawEvent>,
    events: Arc<Events>,
}

impl CudaDriver {
    pub(crate) fn new(driver: Arc<Driver>) -> Self {
        let (idle, sleeps) = (Mutex::default(), AtomicBool::new(false));
        let numbers_streams = has(&[b"cuStreamGetId\0"]);
        Self(Arc::new(Events { driver, idle, sleeps, numbers_streams }))
    }

    pub(crate) fn sleep_in_waits(&self, sleeps: bool) {
        self.0.sleeps.store(sleeps, Relaxed);
    }

    /// Returns an event that is not recorded yet.
    pub(crate) fn event(&self) -> Result<CudaEvent, DeviceError> {
        let idle = self.0.idle.lock().pop();
        let create = || {
            let mut flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            if self.0.sleeps.load(Relaxed) {
                flags |= sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
            }
            self.0.driver.call("cuEventCreate", || {
                let mut event = std::ptr::null_mut();
                // SAFETY: `event` is a live local variable, which the call writes.
                unsafe { sys::cuEventCreate(&raw mut event, flags) }.result()?;
                Ok(RawEvent(event))
            })
        };
        let raw = idle.map_or_else(create, Ok)?;
        Ok(CudaEvent { raw: Some(raw), events: self.0.clone() })
    }

    /// Records an event that was made before, by this thread's own means.
    pub(crate) fn record_as(
        &self,
        event: CudaEvent,
        on: &RawStream,
    ) -> Result<CudaEvent, DeviceError> {
        let call = "cuEventRecord on a stream that another library captures";
        self.spare_captures(on, call)?;
        self.record_raw(&event, on)?;
        // A capture may have begun meanwhile.
        let captured = self.is_in_capture(on);
        if captured != Ok(false) {
            event.destroy();
            captured?;
            return Err(DeviceError::new(Why::NotSubmitted, call));
        }
        Ok(event)
    }

    fn record_raw(&self, event: &CudaEvent, on: &RawStream) -> Result<(), DeviceError> {
        let Some(raw) = event.raw else { return Ok(()) };
        // SAFETY: the event was created in this context and has no other user; its `Arc` keeps the
        // stream alive.
        self.call("cuEventRecord", || unsafe { result::event::record(raw.0, on.cu_stream()) })
    }

    fn call(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DeviceError> {
        self.0.driver.call(name, work)
    }

    /// Asks the driver for the number of a stream, which no later one has. `None` if the driver numbers none.
    ///
    /// # Safety
    ///
    /// The handle is a live stream, or was one, which drivers tell.
    pub(crate) unsafe fn number_of(
        &self,
        handle: sys::CUstream,
    ) -> Result<Option<u64>, DeviceError> {
        if !self.0.numbers_streams {
            return self.fault().map_or(Ok(None), Err);
        }
        // What the driver says of a handle that is none is no fault of the device.
        self.0.driver.call_naming_peer("cuStreamGetId", || {
            let mut number = 0;
            // SAFETY: as the caller promises; the call writes the number.
            unsafe { sys::cuStreamGetId(handle, &raw mut number) }.result()?;
            Ok(Some(number))
        })
    }

    /// Whether the owner of a stream has destroyed it, which nobody was told of.
    pub(crate) fn is_gone(&self, on: &RawStream) -> bool {
        if on.number.is_none() {
            return false;
        }
        // SAFETY: the handle is that of a stream that was alive when it was registered.
        match unsafe { self.number_of(on.cu_stream()) } {
            Ok(number) => on.is_other_than(number),
            Err(_) => self.fault().is_none(), // a lost device says so at the next call
        }
    }

    /// Refuses what must not happen to a stream under capture, or to the legacy stream beside one.
    pub(crate) fn spare(&self, on: &RawStream, call: &'static str) -> Result<(), DeviceError> {
        if self.is_in_capture(on)? {
            Err(DeviceError::new(Why::NotSubmitted, call))
        } else {
            Ok(())
        }
    }

    /// Refuses work on the legacy stream while a stream that waits for it is under capture: the
    /// work would break the capture.
    pub(crate) fn spare_captures(
        &self,
        on: &RawStream,
        call: &'static str,
    ) -> Result<(), DeviceError> {
        if on.is_legacy() { self.spare(on, call) } else { Ok(()) }
    }

    /// Returns whether a stream is under capture, or is the legacy default stream beside a captured
    /// stream that waits for it. The driver answers without the device.
    pub(crate) fn is_in_capture(&self, on: &RawStream) -> Result<bool, DeviceError> {
        // SAFETY: the stream is kept alive by its `Arc`.
        let ask = || unsafe { result::stream::is_capturing(on.cu_stream()) };
        match self.0.driver.call("cuStreamIsCapturing", ask) {
            Ok(status) => Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
            Err(error) if error.why == Why::NotSubmitted => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl EventDriver for CudaDriver {
    type Raw = RawStream;
    type Event = CudaEvent;

    /// On the default stream of another thread no event can be recorded, nor on a stream that its owner has
    /// destroyed. The host then waits for the whole context, which is slow.
    fn record(&self, on: &RawStream) -> Result<CudaEvent, DeviceError> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        if !on.is_reachable() || self.is_gone(on) {
            self.0.driver.synchronize()?;
            return Ok(CudaEvent { raw: None, events: self.0.clone() });
        }
        self.record_as(self.event()?, on)
    }

    fn record_edge(&self, on: &RawStream) -> Result<CudaEvent, DeviceError> {
        let event = self.event()?;
        self.record_raw(&event, on)?;
        Ok(event)
    }

    fn wait(&self, on: &RawStream, event: &CudaEvent) -> Result<(), DeviceError> {
        if event.raw.is_none() {
            return Ok(());
        }
        if !on.is_reachable() {
            // The stream cannot be made to wait. What the host has seen done is before its work.
            return self.synchronize(event);
        }
        self.spare(on, "cuStreamWaitEvent in or beside a capture of another library")?;
        self.wait_edge(on, event)
    }

    fn wait_edge(&self, on: &RawStream, event: &CudaEvent) -> Result<(), DeviceError> {
        let Some(raw) = event.raw else { return Ok(()) };
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event lives as long as it is borrowed, the stream as long as its `Arc`.
        let wait = || unsafe { result::stream::wait_event(on.cu_stream(), raw.0, flags) };
        if Arc::ptr_eq(&self.0, &event.events) {
            self.call("cuStreamWaitEvent", wait)
        } else {
            self.0.driver.call_naming_peer("cuStreamWaitEvent", wait)
        }
    }

    fn query(&self, event: &CudaEvent) -> Result<bool, DeviceError> {
        let Some(raw) = event.raw else { return Ok(true) };
        let mut done = true;
        self.0.driver.relaxed("cuEventQuery", || {
            // SAFETY: the event lives as long as it is borrowed.
            match unsafe { result::event::query(raw.0) } {
                Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => {
                    done = false;
                    Ok(())
                }
                other => other,
            }
        })?;
        Ok(done)
    }

    fn synchronize(&self, event: &CudaEvent) -> Result<(), DeviceError> {
        let Some(raw) = event.raw else { return Ok(()) };
        // SAFETY: the event lives as long as it is borrowed.
        let synchronize = || unsafe { result::event::synchronize(raw.0) };
        self.0.driver.relaxed("cuEventSynchronize", synchronize)
    }

    fn is_captured(&self, on: &RawStream) -> Result<bool, DeviceError> {
        if !on.is_reachable() {
            return Ok(false); // the handle would mean a stream of this thread
        }
        // Beside a capture the legacy stream takes no work, but memory.
        Ok(!on.is_legacy() && self.is_in_capture(on)?)
    }

    fn may_record(&self, on: &RawStream) -> bool {
        on.is_reachable() && !self.is_gone(on)
    }

    fn fault(&self) -> Option<DeviceError> {
        self.0.driver.fault()
    }
}

impl CudaEvent {
    /// Destroys an event that must not be used again.
    fn destroy(mut self) {
        if let Some(RawEvent(event)) = self.raw.take() {
            // SAFETY: this was the only user of the event.
            let destroy = || unsafe { result::event::destroy(event) };
            // A refusal leaves one event behind.
            let _ = self.events.driver.call("cuEventDestroy", destroy);
        }
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if let Some(raw) = self.raw
            && forked().is_none()
        {
            self.events.idle.lock().push(raw);
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for RawEvent(event) in self.idle.get_mut().drain(..) {
            // If the device is lost, or the process is a fork, there is nothing to destroy.
            // SAFETY: no event has a user: each user holds this list.
            let _ = self.driver.call("cuEventDestroy", || unsafe { result::event::destroy(event) });
        }
    }
}

impl fmt::Debug for RawStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawStream")
            .field("handle", &self.cu_stream())
            .field("thread", &self.thread)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("device", &self.0.driver.context().ordinal())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaEvent").field(&self.raw).finish_non_exhaustive()
    }
}
