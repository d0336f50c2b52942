//! Calls of the driver: in the right context, not in a forked process, not on a lost device.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::capturing::{Captures, Counted};
use crate::forks::{forked, note_process};
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use pool_core::{DeviceError, Why};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The driver in one context of one device.
pub(crate) struct Driver {
    context: Kept<Arc<CudaContext>>,
    /// The code with which the device was lost; 0 while it works.
    lost: AtomicU32,
    /// A [`bit`] for each call that was refused with `CUDA_ERROR_UNKNOWN` and has not succeeded since.
    unknown: AtomicU64,
    captures: Arc<Captures>,
}

/// The context of the calling thread. Its drop makes the context current again, also when a panic
/// passes.
///
/// It may be another library's context, and broken. What the driver says of it is no fault of this
/// device, and is left to the caller's next CUDA call.
pub(crate) struct CallersContext(sys::CUcontext);

impl CallersContext {
    /// Returns `None` if the driver refuses the question.
    pub(crate) fn of_thread() -> Option<Self> {
        result::ctx::get_current().ok().map(Self::from)
    }
}

/// From what is current to the thread: a context, or none.
impl From<Option<sys::CUcontext>> for CallersContext {
    fn from(current: Option<sys::CUcontext>) -> Self {
        Self(current.unwrap_or(ptr::null_mut()))
    }
}

impl Drop for CallersContext {
    fn drop(&mut self) {
        // SAFETY: the context was current when the call began, so the caller keeps it alive during
        // the call.
        let _ = unsafe { result::ctx::set_current(self.0) };
    }
}

/// A value of cudarc's that a forked process must not drop, because its drop calls the driver.
pub(crate) struct Kept<T: OfContext>(ManuallyDrop<T>);

/// A value of cudarc's whose drop makes its context current and leaves it so.
pub(crate) trait OfContext {
    fn cu_ctx(&self) -> sys::CUcontext;
}

impl OfContext for Arc<CudaContext> {
    fn cu_ctx(&self) -> sys::CUcontext {
        CudaContext::cu_ctx(self)
    }
}

impl OfContext for Arc<CudaStream> {
    fn cu_ctx(&self) -> sys::CUcontext {
        self.context().cu_ctx()
    }
}

impl<T: OfContext> Kept<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: OfContext + Clone> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: OfContext> std::ops::Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: OfContext> Drop for Kept<T> {
    fn drop(&mut self) {
        if forked().is_some() {
            return;
        }
        // If the value's own context was current, it still is, or was destroyed with the value.
        let own = self.0.cu_ctx();
        let callers = result::ctx::get_current().ok().filter(|current| *current != Some(own));
        let _callers = callers.map(CallersContext::from);
        // SAFETY: this drop runs once, and nothing else drops the value.
        unsafe { ManuallyDrop::drop(&mut self.0) }
    }
}

impl Driver {
    pub(crate) fn new(context: Arc<CudaContext>) -> Self {
        note_process();
        let (lost, unknown) = (AtomicU32::new(0), AtomicU64::new(0));
        let captures = Captures::of(&context);
        Self { context: Kept::new(context), lost, unknown, captures }
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Returns why no call can succeed, or `None`.
    #[inline]
    pub(crate) fn fault(&self) -> Option<DeviceError> {
        if let Some(forked) = forked() {
            return Some(forked);
        }
        match self.lost.load(Relaxed) {
            0 => None,
            code => {
                Some(DeviceError::new(Why::Lost, "an earlier call to the driver").code(code.into()))
            }
        }
    }

    /// Makes a call in the context, and makes the caller's context current again afterwards.
    pub(crate) fn call<T>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DeviceError> {
        let done = self.in_context(work)?.map_err(|e| self.refusal(name, e));
        if done.is_ok() {
            self.has_succeeded(name);
        }
        done
    }

    /// Forgets that this call was refused with `CUDA_ERROR_UNKNOWN`.
    #[inline]
    fn has_succeeded(&self, call: &str) {
        if self.unknown.load(Relaxed) != 0 {
            self.unknown.fetch_and(!bit(call), Relaxed);
        }
    }

    /// Makes a call that names a context or an event of another device. If the driver says that a
    /// context is lost, it may be the other one: this device is not noted as lost. Where it is, its
    /// next call says so.
    pub(crate) fn call_naming_peer<T>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DeviceError> {
        self.in_context(work)?.map_err(|e| refusal(name, e))
    }

    /// Runs `work` in the context. The caller's context is current again afterwards, also when
    /// `work` panics.
    fn in_context<T>(&self, work: impl FnOnce() -> T) -> Result<T, DeviceError> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        // The answer is about the caller's context: no fault of this device, which has its memory.
        let callers = result::ctx::get_current().map_err(|error| DeviceError {
            why: Why::Other,
            ..refusal("cuCtxGetCurrent", error)
        })?;
        let own = self.context.cu_ctx();
        if callers == Some(own) {
            return Ok(work());
        }
        let _callers = CallersContext::from(callers);
        // SAFETY: its `Arc` keeps the context alive.
        let set = unsafe { result::ctx::set_current(own) };
        set.map_err(|e| self.refusal("cuCtxSetCurrent", e))?;
        self.has_succeeded("cuCtxSetCurrent");
        Ok(work())
    }

    /// Makes a call that a capture of this thread would forbid, in the relaxed capture mode: a call
    /// that takes memory, gives it back, or queries an event. The call is not captured.
    pub(crate) fn relaxed<T>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DeviceError> {
        self.call(name, || {
            let _callers = CallersMode::relaxed()?;
            work()
        })
    }

    /// As [`Driver::relaxed`], for a call that names a stream of another device.
    pub(crate) fn relaxed_naming_peer(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DeviceError> {
        self.call_naming_peer(name, || {
            let _callers = CallersMode::relaxed()?;
            work()
        })
    }

    /// Waits on the host for all work of the context.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] while a stream of the context is under capture: the driver would
    /// refuse the call and invalidate the capture (CUDA Programming Guide, "Prohibited and
    /// Unhandled Operations"). Captures that this crate has not begun are not known.
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        let wait = || self.relaxed("cuCtxSynchronize", result::ctx::synchronize);
        let refused = DeviceError::new(Why::NotSubmitted, "cuCtxSynchronize in a capture");
        self.captures.without(wait).unwrap_or(Err(refused))
    }

    /// Counts a capture that begins.
    pub(crate) fn begin_capture(&self) -> Counted {
        self.captures.begin()
    }

    /// Converts the driver's error, and notes it if the device is lost. `CUDA_ERROR_UNKNOWN` twice is a
    /// loss if the call has not succeeded between: so it is after an Xid error or a suspended machine.
    fn refusal(&self, call: &'static str, error: DriverError) -> DeviceError {
        let is_unknown = error.0 == CUresult::CUDA_ERROR_UNKNOWN;
        let mut error = refusal(call, error);
        if is_unknown && self.unknown.fetch_or(bit(call), Relaxed) & bit(call) != 0 {
            error.why = Why::Lost;
        }
        if error.why == Why::Lost {
            self.lost.store(u32::try_from(error.code).unwrap_or(u32::MAX), Relaxed);
        }
        error
    }
}

/// A bit for the name of a call. Few calls share one.
fn bit(name: &str) -> u64 {
    let number = name.bytes().fold(1, |sum: u32, byte| sum.rotate_left(5) ^ u32::from(byte));
    1 << (number % 64)
}

/// The capture mode of the calling thread. Its drop restores the mode, also when a panic passes.
struct CallersMode(sys::CUstreamCaptureMode);

impl CallersMode {
    /// Sets the relaxed mode.
    fn relaxed() -> Result<Self, DriverError> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        exchange_mode(&mut mode)?;
        Ok(Self(mode))
    }
}

impl Drop for CallersMode {
    fn drop(&mut self) {
        // The first exchange succeeded, and this one differs in the mode only.
        let _ = exchange_mode(&mut self.0);
    }
}

fn exchange_mode(mode: &mut sys::CUstreamCaptureMode) -> Result<(), DriverError> {
    // SAFETY: `mode` is a live reference, which the call reads and writes.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) }.result()
}

/// Converts the driver's error. The code stays the driver's.
pub(crate) fn refusal(call: &'static str, error: DriverError) -> DeviceError {
    use CUresult as R;
    let why = match error.0 {
        R::CUDA_ERROR_OUT_OF_MEMORY => Why::OutOfMemory,
        // Those from the stub on say what this machine lacks: a driver in place of the toolkit's stub, its
        // fabric manager, a driver as new as its parts, a server of MPS, a permission.
        R::CUDA_ERROR_NO_DEVICE
        | R::CUDA_ERROR_INVALID_DEVICE
        | R::CUDA_ERROR_NOT_SUPPORTED
        | R::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
        | R::CUDA_ERROR_STUB_LIBRARY
        | R::CUDA_ERROR_SYSTEM_NOT_READY
        | R::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        | R::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
        | R::CUDA_ERROR_MPS_CONNECTION_FAILED
        | R::CUDA_ERROR_MPS_SERVER_NOT_READY
        | R::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
        | R::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED
        | R::CUDA_ERROR_NOT_PERMITTED => Why::Unsupported,
        // After these no call of the context succeeds. The first comes at the end of the process,
        // when the driver is unloaded before our last drops.
        R::CUDA_ERROR_DEINITIALIZED
        | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | R::CUDA_ERROR_INVALID_CONTEXT
        | R::CUDA_ERROR_MPS_RPC_FAILURE
        | R::CUDA_ERROR_ILLEGAL_ADDRESS
        | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | R::CUDA_ERROR_MISALIGNED_ADDRESS
        | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | R::CUDA_ERROR_INVALID_PC
        | R::CUDA_ERROR_HARDWARE_STACK_ERROR
        | R::CUDA_ERROR_LAUNCH_FAILED
        | R::CUDA_ERROR_LAUNCH_TIMEOUT
        | R::CUDA_ERROR_ASSERT
        | R::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | R::CUDA_ERROR_CONTAINED
        | R::CUDA_ERROR_TENSOR_MEMORY_LEAK
        | R::CUDA_ERROR_MPS_CLIENT_TERMINATED
        | R::CUDA_ERROR_EXTERNAL_DEVICE
        | R::CUDA_ERROR_ECC_UNCORRECTABLE => Why::Lost,
        R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | R::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        | R::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | R::CUDA_ERROR_CAPTURED_EVENT => Why::NotSubmitted,
        _ => Why::Other,
    };
    DeviceError::new(why, call).code(i64::from(error.0 as u32))
}

/// Returns whether a driver library can be loaded. Without one, cudarc panics at the first call.
pub(crate) fn is_present() -> bool {
    // SAFETY: loads a library by the driver's names, which runs its initialisers. A driver's are
    // harmless. Every CUDA program trusts the files that have these names.
    unsafe { sys::is_culib_present() }
}

/// Returns whether the driver has all of these functions. cudarc panics at a call of a missing one.
pub(crate) fn has(names: &[&[u8]]) -> bool {
    // SAFETY: the library is loaded, because a context exists.
    let library = unsafe { sys::culib() };
    // SAFETY: looks the symbol up, and does not call it.
    names.iter().all(|name| unsafe { library.get::<unsafe extern "C" fn()>(*name) }.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_a_machine_that_lacks_something_are_no_loss() {
        let why = |code| refusal("a call", DriverError(code)).why;
        for code in [
            CUresult::CUDA_ERROR_STUB_LIBRARY,
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
            CUresult::CUDA_ERROR_MPS_SERVER_NOT_READY,
            CUresult::CUDA_ERROR_NOT_PERMITTED,
        ] {
            assert_eq!(why(code), Why::Unsupported, "{code:?}");
        }
        // Another process has the device for itself.
        assert_eq!(why(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE), Why::Other);
        // Another library has reset the device.
        assert_eq!(why(CUresult::CUDA_ERROR_INVALID_CONTEXT), Why::Lost);
        assert_eq!(why(CUresult::CUDA_ERROR_MPS_RPC_FAILURE), Why::Lost);
    }

    #[test]
    fn codes_of_captures_say_that_the_work_is_not_submitted() {
        for code in [
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            CUresult::CUDA_ERROR_CAPTURED_EVENT,
        ] {
            assert_eq!(refusal("a call", DriverError(code)).why, Why::NotSubmitted, "{code:?}");
        }
    }
}
