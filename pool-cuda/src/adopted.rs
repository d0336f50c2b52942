//! Captures that another library has begun: cudarc's `begin_capture`, `PyTorch`'s graphs.

use crate::array::Vram;
use crate::capturing::Counted;
use crate::device::CudaDevice;
use crate::events::PoolStream;
use crate::forks::forked;
use crate::graph::CudaCapture;
use pool_core::stream::EventDriver;
use pool_core::{BucketPool, DeviceError, PrivatePool, StreamClock, Why};
use std::fmt;

/// A capture that another library has begun, with the memory that its graph uses.
///
/// Without it, a pool refuses what the device would have to serve for a stream under such a capture,
/// and cannot see that a cached block goes into a graph. With it, requests on the stream come from a
/// [`PrivatePool`], which stays as long as the graph, as in a [`CudaCapture`].
///
/// The other library ends its capture first, and then [`AdoptedCapture::end`] gives the private pool.
/// Launch the graph inside of [`PrivatePool::launch`], and drop the private pool after the graph.
/// Dropping an `AdoptedCapture` gives the memory back to the pool: do so only where there will be no
/// graph.
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, DeviceError, MIB, Why};
/// use bucketpool::cuda::{CudaAllocator, CudaCapture};
/// use bucketpool::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode};
///
/// let pool = BucketPool::new(CudaAllocator::new(0)?);
/// let device = pool.allocator().device().clone();
/// let stream = device.context().new_stream()?;
/// let on = device.stream(&stream)?;
///
/// stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?; // cudarc's
/// assert_eq!(pool.allocate_on(&on, MIB).unwrap_err().why(), Why::NotSubmitted);
/// // SAFETY: the captured work uses memory of the capture only, and the graph goes first.
/// let mut adopted = unsafe { CudaCapture::adopt(&pool, &on) }?;
/// let scratch = pool.allocate_on(&on, MIB)?;
/// stream.memset_zeros(&mut &*scratch.on(&on)?)?;
/// drop(scratch);
/// let flags = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
/// let graph = stream.end_capture(flags)?.ok_or("a graph")?;
/// let memory = adopted.end()?;
/// let launch = || graph.launch().map_err(|_| DeviceError::new(Why::Other, "a launch"));
/// memory.launch(&on, launch)?;
/// memory.launch(&on, launch)?; // with the same memory
/// assert_eq!(memory.cached_bytes(), MIB);
/// drop(graph);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AdoptedCapture<A: Vram> {
    taken: TakenIn,
    /// Taken by its end.
    private: Option<PrivatePool<A>>,
}

/// The streams of a capture of another library whose requests come from a private pool.
#[derive(Debug)]
pub(crate) struct TakenIn {
    device: CudaDevice,
    streams: Vec<PoolStream>,
    /// Waits for the whole context would break the capture.
    _counted: Counted,
}

impl TakenIn {
    pub(crate) fn new(device: &CudaDevice) -> Self {
        let (device, streams) = (device.clone(), Vec::new());
        Self { _counted: device.driver().begin_capture(), device, streams }
    }

    /// Whether any stream was taken in.
    pub(crate) fn is_any(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Whether a stream was taken in.
    pub(crate) fn has(&self, on: &PoolStream) -> bool {
        self.streams.iter().any(|own| std::ptr::eq(own.raw(), on.raw()))
    }

    /// Takes a stream in, which the other library has under its capture.
    pub(crate) fn take_in<A: Vram>(
        &mut self,
        private: &PrivatePool<A>,
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        let (clock, refused) = (self.device.clock(), Why::NotSubmitted);
        on.raw().handle()?;
        if !clock.owns(on) {
            return Err(DeviceError::new(Why::Foreign, "adopt a capture of another device"));
        }
        if clock.is_capturing(on) {
            return Err(DeviceError::new(refused, "adopt a capture that a pool knows already"));
        }
        if !self.device.events().is_captured(on.raw())? {
            return Err(DeviceError::new(refused, "adopt a capture of a stream that is in none"));
        }
        clock.adopt_capture(on)?;
        private.bind(on).inspect_err(|_| drop(clock.end_capture(on)))?;
        self.streams.push(on.clone());
        Ok(())
    }

    /// Returns an error while the capture goes on.
    pub(crate) fn is_over(&self) -> Result<(), DeviceError> {
        for stream in &self.streams {
            stream.raw().handle()?; // of another thread's stream the driver says nothing
            if self.device.events().is_gone(stream.raw()) {
                continue; // its owner has destroyed it, and a capture with it
            }
            if self.device.events().is_captured(stream.raw())? {
                let call = "end a capture that the other library has not ended";
                return Err(DeviceError::new(Why::NotSubmitted, call));
            }
        }
        Ok(())
    }

    /// Ends the capture on the clock.
    pub(crate) fn leave<A: Vram>(&mut self, private: &PrivatePool<A>) {
        let clock = self.device.clock();
        let after: Vec<_> = self.streams.drain(..).flat_map(|on| clock.end_capture(&on)).collect();
        private.end(&after);
    }
}

impl<A: Vram> CudaCapture<A> {
    /// Takes up a capture of `on` that another library has begun.
    ///
    /// See [`AdoptedCapture`] for an example.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] for a stream that is under no capture, or under one that a pool knows
    /// already; [`Why::Foreign`] for a stream of another device; or the driver's refusal.
    ///
    /// # Safety
    ///
    /// As for [`CudaCapture::begin`]; the last launch of the graph is that of the other library.
    #[expect(
        unsafe_code,
        reason = "captured work keeps addresses, which the compiler does not know"
    )]
    pub unsafe fn adopt(
        pool: &BucketPool<A>,
        on: &PoolStream,
    ) -> Result<AdoptedCapture<A>, DeviceError> {
        let (taken, private) =
            (TakenIn::new(pool.allocator().cuda_device()), PrivatePool::new(pool));
        let mut adopted = AdoptedCapture { taken, private: Some(private) };
        // SAFETY: the caller names the capture by this stream.
        unsafe { adopted.take_in(on) }?;
        Ok(adopted)
    }
}

impl<A: Vram> AdoptedCapture<A> {
    /// Takes up another stream that the other library has joined to this capture. What it frees serves
    /// its own requests in the capture, and those of no other stream.
    ///
    /// # Errors
    ///
    /// As for [`CudaCapture::adopt`]; [`Why::Foreign`] also for the default stream of another thread.
    ///
    /// # Safety
    ///
    /// The stream is in this capture, and not in another one: the driver says of each stream only that
    /// it is in some capture.
    #[expect(unsafe_code, reason = "a stream of another capture would keep addresses of this one")]
    pub unsafe fn take_in(&mut self, on: &PoolStream) -> Result<(), DeviceError> {
        let ended = DeviceError::new(Why::Other, "adopt a capture that has ended");
        let private = self.private.as_ref().ok_or(ended)?;
        self.taken.take_in(private, on)
    }

    /// Gives the memory that the graph uses, after the other library has ended its capture.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] while the capture goes on, [`Why::Foreign`] on another thread than that of a
    /// per-thread default stream, or the driver's refusal: call it again then. [`Why::Other`] after the
    /// memory was given.
    pub fn end(&mut self) -> Result<PrivatePool<A>, DeviceError> {
        self.taken.is_over()?;
        let ended = DeviceError::new(Why::Other, "end a capture that has ended");
        let private = self.private.take().ok_or(ended)?;
        self.taken.leave(&private);
        Ok(private)
    }
}

impl<A: Vram> Drop for AdoptedCapture<A> {
    fn drop(&mut self) {
        // In a forked child a thread that is not there may hold a lock.
        if let Some(private) = self.private.as_ref().filter(|_| forked().is_none()) {
            self.taken.leave(private);
        }
    }
}

impl<A: Vram> fmt::Debug for AdoptedCapture<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptedCapture")
            .field("streams", &self.taken.streams)
            .field("private", &self.private)
            .finish_non_exhaustive()
    }
}
