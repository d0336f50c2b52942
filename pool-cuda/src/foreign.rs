//! Streams of libraries that never say that one ends: known by handle and number.
#![expect(unsafe_code, reason = "streams of other libraries come as handles")]

use crate::device::{CudaDevice, DEFAULT, PER_THREAD, Registered};
use crate::events::{PoolStream, RawStream};
use cudarc::driver::sys;
use pool_core::{DeviceError, StreamClock, Why};

impl CudaDevice {
    /// Returns the registration of a stream of another library, and makes one at the first call for it. For code
    /// that gets a handle with each call and is never told that a stream ends, as a C interface.
    ///
    /// The small handles mean what they mean for [`CudaDevice::wrap_stream`]: null and 1 are the legacy default
    /// stream, 2 is that of the calling thread.
    ///
    /// The owner may destroy the stream when its calls have returned, and another stream may have its handle
    /// afterwards: the driver numbers streams (`cuStreamGetId`, from CUDA 12.0 on), and each call asks for the
    /// number, as does each event that is recorded on such a stream. Where the stream is gone, no event tells of
    /// its work any more, and the host waits once for all work of the device. [`CudaDevice::retire_handle`] before
    /// the end of the stream spares that. With an older driver the owner must make that call.
    ///
    /// Cost: one call of the driver and a look into a table without a lock. `CU_STREAM_PER_THREAD` takes a lock.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another context, [`Why::NotSubmitted`] if the wait for an old stream would
    /// break a capture, [`Why::Lost`] and [`Why::Forked`] as for every call, or the driver's refusal.
    ///
    /// # Safety
    ///
    /// The handle is a live stream, or one of the driver's small handles, during this call and while the
    /// registration is used: by the call that is given it next.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, MIB, Why};
    /// use bucketpool::cuda::{CudaAllocator, CudaDevice};
    ///
    /// let device = CudaDevice::new(0)?;
    /// let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    /// for _ in 0..3 {
    ///     let theirs = device.context().new_stream()?; // of another library
    ///     // SAFETY: it lives until the end of this turn.
    ///     let on = unsafe { device.stream_by_handle(theirs.cu_stream()) }?;
    ///     drop(pool.allocate_on(&on, MIB)?);
    /// } // nobody tells that it has ended
    /// assert!(pool.stats().reserved_bytes <= 2 * MIB);
    /// # let other = CudaDevice::new(1)?.context().new_stream()?;
    /// // SAFETY: the stream lives until the end.
    /// let refused = unsafe { device.stream_by_handle(other.cu_stream()) }; // of another device
    /// assert_eq!(refused.unwrap_err().why, Why::Foreign);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn stream_by_handle(
        &self,
        handle: sys::CUstream,
    ) -> Result<PoolStream, DeviceError> {
        match handle.addr() {
            // Both handles of the legacy default stream.
            at if at == DEFAULT.0 || at == DEFAULT.0 + 1 => {
                self.driver().fault().map_or(Ok(()), Err)?;
                Ok(self.clock().default_stream().clone())
            }
            PER_THREAD => self.stream(&self.context().per_thread_stream()),
            at => {
                // SAFETY: as the caller promises.
                let number = unsafe { self.events().number_of(handle) }?;
                match self.handles().get(at, number) {
                    Some(on) => Ok(on),
                    // SAFETY: as the caller promises.
                    None => unsafe { self.register_handle(handle, number) },
                }
            }
        }
    }

    /// Ends the registration of a stream by its handle, as [`CudaDevice::retire`] does. Call it before the owner
    /// destroys the stream: afterwards the host waits for all work of the device. Does nothing for a handle that
    /// [`CudaDevice::stream_by_handle`] does not know.
    ///
    /// # Errors
    ///
    /// As for [`CudaDevice::retire`], and the stream stays registered then: call it again.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, MIB};
    /// use bucketpool::cuda::{CudaAllocator, CudaDevice};
    ///
    /// let device = CudaDevice::new(0)?;
    /// let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    /// let theirs = device.context().new_stream()?;
    /// // SAFETY: the stream lives through the next call.
    /// let on = unsafe { device.stream_by_handle(theirs.cu_stream()) }?;
    /// drop(pool.allocate_on(&on, MIB)?);
    /// device.retire_handle(theirs.cu_stream())?;
    /// drop(theirs); // its owner destroys it
    /// pool.allocate(MIB)?;
    /// assert_eq!(pool.stats().misses, 1); // its block, behind its last event
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retire_handle(&self, handle: sys::CUstream) -> Result<(), DeviceError> {
        match self.handles().last(handle.addr()) {
            Some(on) => self.retire(&on),
            None => Ok(()),
        }
    }

    /// Blocks the host until the work of a stream has passed, that of another device too. For memory that streams of
    /// several devices use: the pool of one orders nothing behind a stream of another.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] for a stream under capture, or the driver's refusal.
    ///
    /// # Safety
    ///
    /// The handle is a live stream, or one of the driver's small handles.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::cuda::CudaDevice;
    ///
    /// let device = CudaDevice::new(0)?;
    /// # let other = CudaDevice::new(1)?.context().new_stream()?;
    /// // SAFETY: the stream, of another device, lives until the end.
    /// unsafe { device.wait_for_handle(other.cu_stream()) }?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn wait_for_handle(&self, handle: sys::CUstream) -> Result<(), DeviceError> {
        let is_captured = self.driver().call_naming_peer("cuStreamIsCapturing", || {
            let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            // SAFETY: the stream lives, as the caller promises, and `status` through the call.
            unsafe { sys::cuStreamIsCapturing(handle, &raw mut status) }.result()?;
            Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
        })?;
        if is_captured {
            return Err(DeviceError::new(Why::NotSubmitted, "wait for a stream under capture"));
        }
        self.driver().relaxed_naming_peer("cuStreamSynchronize", || {
            // SAFETY: as above.
            unsafe { sys::cuStreamSynchronize(handle) }.result()
        })
    }

    /// Registers a stream that the table does not have.
    ///
    /// # Safety
    ///
    /// As for [`CudaDevice::stream_by_handle`].
    #[cold]
    unsafe fn register_handle(
        &self,
        handle: sys::CUstream,
        number: Option<u64>,
    ) -> Result<PoolStream, DeviceError> {
        // SAFETY: as the caller promises.
        unsafe { self.check_context(handle) }?;
        let (at, key) = (handle.addr(), (handle.addr(), None));
        // Not one that another thread has registered meanwhile.
        if let Some(gone) = self.handles().earlier(at, number) {
            self.end_gone(&gone)?;
        }
        let mut streams = self.streams().lock();
        if let Some(on) = self.handles().get(at, number) {
            return Ok(on); // by another thread meanwhile
        }
        let kept = streams.get(&key).filter(|known| !known.on.raw().is_other_than(number));
        let on = if let Some(known) = kept {
            known.on.clone() // its owner keeps it until it is retired
        } else {
            // SAFETY: as the caller promises; a stream that is gone is given no work (`is_gone`).
            let stream = unsafe { self.context().wrap_borrowed_stream(handle) };
            let on = self.clock().register(RawStream::of_others(stream, number));
            streams.insert(key, Registered { on: on.clone(), borrowers: 0, stays: None });
            on
        };
        self.handles().insert(at, number, &on);
        Ok(on)
    }

    /// Refuses a stream of another context.
    ///
    /// # Safety
    ///
    /// The handle is a live stream.
    unsafe fn check_context(&self, handle: sys::CUstream) -> Result<(), DeviceError> {
        let context = self.driver().call("cuStreamGetCtx", || {
            let mut context = std::ptr::null_mut();
            // SAFETY: the stream lives, as the caller promises, and `context` through the call.
            unsafe { sys::cuStreamGetCtx(handle, &raw mut context) }.result()?;
            Ok(context)
        })?;
        let own = context == self.context().cu_ctx();
        if own {
            Ok(())
        } else {
            Err(DeviceError::new(Why::Foreign, "a stream of another context"))
        }
    }
}
