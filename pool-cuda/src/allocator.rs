//! `cuMemAlloc` and `cuMemFree`: whole blocks of VRAM.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::block::{CudaBlock, CudaView};
use crate::driver::{CudaDriver, CudaStreamOf, bind, error, is_present};
use cudarc::driver::{CudaContext, CudaStream, result};
use parking_lot::Mutex;
use pool_core::{
    DeviceAllocator, DeviceError, MarkOf, Memory, Request, Sliceable, StreamClock, Timeline,
    WholeBlocks, Why,
};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What `cuMemAlloc` aligns to at least (CUDA C Programming Guide, "Device Memory Accesses").
const ALIGNMENT: u64 = 256;
/// `CU_STREAM_PER_THREAD`, a handle that is not one stream.
const PER_THREAD: usize = 2;
/// Sizes are rounded to this, as CUDA's and `PyTorch`'s allocators do.
const GRANULE: u64 = 512;

/// Device memory of one GPU by `cuMemAlloc`. Taking a block stops the device for a moment and so
/// does giving one back; a pool is what keeps both rare.
pub struct CudaAllocator {
    context: Arc<CudaContext>,
    clock: Timeline<CudaDriver>,
    /// Registered streams by handle. The clock keeps the stream, so its handle is not used again.
    streams: Mutex<HashMap<usize, CudaStreamOf>>,
}

impl CudaAllocator {
    /// The memory of the device with this ordinal.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if no driver library can be loaded or there is no such device, or what
    /// the driver said.
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        if !is_present() {
            return Err(DeviceError::new(Why::Unsupported, "no driver library (libcuda)", 0));
        }
        let context =
            CudaContext::new(ordinal).map_err(|e| error("cuDevicePrimaryCtxRetain", e))?;
        Ok(Self::in_context(context))
    }

    /// The memory of the device of a context that the program has already.
    #[must_use]
    pub fn in_context(context: Arc<CudaContext>) -> Self {
        let clock = Timeline::new(CudaDriver::new(context.clone()), context.default_stream());
        let default = clock.default_stream().clone();
        let streams = HashMap::from([(key(default.raw()), default)]);
        Self { context, clock, streams: Mutex::new(streams) }
    }

    /// Makes one of the program's streams known, once; it is kept alive from here on.
    ///
    /// # Errors
    ///
    /// [`Why::Foreign`] for a stream of another context, [`Why::Unsupported`] for the per-thread
    /// default stream: its handle means another stream on each thread.
    pub fn stream(&self, stream: &Arc<CudaStream>) -> Result<CudaStreamOf, DeviceError> {
        let refuse = |why, call| Err(DeviceError::new(why, call, 0));
        if stream.context().cu_ctx() != self.context.cu_ctx() {
            return refuse(Why::Foreign, "a stream of another context");
        }
        if key(stream) == PER_THREAD {
            return refuse(Why::Unsupported, "the per-thread default stream");
        }
        let mut streams = self.streams.lock();
        let known = streams.entry(key(stream));
        Ok(known.or_insert_with(|| self.clock.register(stream.clone())).clone())
    }

    /// The context that all calls are made in.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The ordinal of the device.
    #[must_use]
    pub fn device_id(&self) -> usize {
        self.context.ordinal()
    }
}

fn key(stream: &CudaStream) -> usize {
    stream.cu_stream().addr()
}

fn size(bytes: u64) -> Result<usize, DeviceError> {
    usize::try_from(bytes).map_err(|_| DeviceError::new(Why::TooLarge, "cuMemAlloc", 0))
}

impl DeviceAllocator for CudaAllocator {
    type Block = CudaBlock;
    type View<'b> = CudaView<'b>;
    type Kind = ();
    type Clock = Timeline<CudaDriver>;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &Timeline<CudaDriver> {
        &self.clock
    }

    fn granule(&self) -> u64 {
        GRANULE
    }

    fn aligned(&self, _kind: (), alignment: u64) -> Result<(), DeviceError> {
        if alignment.is_power_of_two() && alignment <= ALIGNMENT {
            return Ok(());
        }
        Err(DeviceError::new(Why::Unsupported, "alignment of device memory", 0))
    }

    fn allocate(&self, request: Request<()>, _on: &CudaStreamOf) -> Result<CudaBlock, DeviceError> {
        let bytes = size(request.bytes)?;
        bind(&self.context)?;
        // SAFETY: asks the driver for memory; the context is current.
        let at = unsafe { result::malloc_sync(bytes) }.map_err(|e| error("cuMemAlloc", e))?;
        Ok(CudaBlock { at, device: self.device_id() })
    }

    /// Waits for `after`, and then for the device, since `cuMemFree` does.
    fn free(&self, block: CudaBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        if block.device != self.device_id() {
            let code = i64::try_from(block.device).unwrap_or(-1);
            return Err(DeviceError::new(Why::Foreign, "cuMemFree on another device", code));
        }
        bind(&self.context)?;
        for mark in after {
            self.clock.synchronize(*mark)?;
        }
        // SAFETY: a block is made in `allocate` only and moved in here, so it is freed once; the
        // work that used it is done, as just waited for.
        unsafe { result::free_sync(block.at) }.map_err(|e| error("cuMemFree", e))
    }

    fn view<'b>(
        &'b self,
        block: &'b CudaBlock,
        offset: u64,
        bytes: u64,
        on: &CudaStreamOf,
    ) -> CudaView<'b> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        CudaView::new(block.at + offset, bytes, on.raw().clone())
    }

    fn zero(
        &self,
        block: &mut CudaBlock,
        bytes: u64,
        on: &CudaStreamOf,
    ) -> Result<(), DeviceError> {
        let bytes = size(bytes)?;
        bind(&self.context)?;
        // SAFETY: the pool clears no more than the block holds, and nobody else has the block.
        unsafe { result::memset_d8_async(block.at, 0, bytes, on.raw().cu_stream()) }
            .map_err(|e| error("cuMemsetD8Async", e))
    }
}

impl WholeBlocks for CudaAllocator {}

impl Sliceable for CudaAllocator {
    unsafe fn zero_part(
        &self,
        block: &CudaBlock,
        bytes: Range<u64>,
        on: &CudaStreamOf,
    ) -> Result<(), DeviceError> {
        let size = size(bytes.end - bytes.start)?;
        bind(&self.context)?;
        // SAFETY: the caller vouches for the bytes, and that nobody else uses them.
        unsafe { result::memset_d8_async(block.at + bytes.start, 0, size, on.raw().cu_stream()) }
            .map_err(|e| error("cuMemsetD8Async", e))
    }
}

impl fmt::Debug for CudaAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaAllocator").field("device", &self.device_id()).finish_non_exhaustive()
    }
}
