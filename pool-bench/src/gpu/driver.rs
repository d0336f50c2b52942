//! The driver's own allocation calls, as contenders.
#![expect(unsafe_code, reason = "the driver is called through C")]

use super::contender::{Allocator, Refused};
use bucketpool::cuda::cudarc::driver::{CudaStream, result, sys};
use bucketpool::cuda::{CudaAsyncAllocator, CudaDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Returns the driver's version number: 12080 for 12.8.
pub(super) fn driver_version() -> Option<i32> {
    let mut version = 0;
    // SAFETY: the driver writes a number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().ok()?;
    Some(version)
}

/// A device with streams, and writes to its memory.
pub(super) struct Gpu {
    pub(super) device: CudaDevice,
    pub(super) streams: Vec<Arc<CudaStream>>,
}

impl Gpu {
    pub(super) fn new() -> Result<Self, Refused> {
        let device = CudaDevice::new(0)?;
        let streams: Result<_, _> = (0..17).map(|_| device.context().new_stream()).collect();
        Ok(Self { streams: streams?, device })
    }

    pub(super) fn write(&self, at: u64, bytes: u64, stream: usize) -> Result<(), Refused> {
        let (bytes, on) = (usize::try_from(bytes).unwrap_or(0), &self.streams[stream]);
        // SAFETY: the callers own a block of at least `bytes` bytes there, for work on this stream.
        Ok(unsafe { result::memset_d8_async(at, 1, bytes, on.cu_stream()) }?)
    }

    pub(super) fn wait(&self) -> Result<(), Refused> {
        Ok(self.streams[0].synchronize()?)
    }
}

/// `cuMemAlloc` and `cuMemFree` for each block.
///
/// CUDA does not guarantee that `cuMemFree` waits for work that uses the block. Therefore `give`
/// first waits for the device if a stream has work.
pub(super) struct Direct {
    gpu: Gpu,
    /// Whether a stream was given work since the last wait.
    has_work: AtomicBool,
}

impl Direct {
    pub(super) fn new() -> Result<Self, Refused> {
        Ok(Self { gpu: Gpu::new()?, has_work: AtomicBool::new(false) })
    }
}

impl Allocator for Direct {
    type Block = u64;

    fn take(&self, bytes: u64, _stream: usize) -> Result<u64, Refused> {
        // SAFETY: asks the driver for memory.
        Ok(unsafe { result::malloc_sync(usize::try_from(bytes).unwrap_or(usize::MAX)) }?)
    }
    fn give(&self, block: u64, _stream: usize) -> Result<(), Refused> {
        if self.has_work.swap(false, Relaxed) {
            self.gpu.device.context().synchronize()?;
        }
        // SAFETY: allocated above and freed once; no work that uses it is left.
        Ok(unsafe { result::free_sync(block) }?)
    }
    fn record(&self, _: &u64) -> Result<(), Refused> {
        Ok(()) // `give` waits for all streams
    }
    fn write(&self, block: &u64, bytes: u64, stream: usize) -> Result<(), Refused> {
        self.has_work.store(true, Relaxed);
        self.gpu.write(*block, bytes, stream)
    }
    fn wait(&self) -> Result<(), Refused> {
        self.gpu.wait()
    }
    fn device(&self) -> &CudaDevice {
        &self.gpu.device
    }
    fn reserved_peak(&self) -> u64 {
        0 // the driver does not report it
    }
    fn reset(&mut self) -> Result<(), Refused> {
        Ok(())
    }
}

/// `cuMemAllocFromPoolAsync` and `cuMemFreeAsync` on the stream that uses the block.
///
/// The driver's pool keeps up to `threshold` bytes: 0 is the driver's default; `u64::MAX` keeps
/// all, which a program gets by setting one attribute.
pub(super) struct Ordered {
    gpu: Gpu,
    /// Owner of the driver's pool; keeps it alive.
    pool: CudaAsyncAllocator,
    event: sys::CUevent,
}

// SAFETY: the driver lets any thread use an event.
unsafe impl Sync for Ordered {}

impl Ordered {
    pub(super) fn new(threshold: u64) -> Result<Self, Refused> {
        let gpu = Gpu::new()?;
        let pool = CudaAsyncAllocator::new(gpu.device.clone(), threshold)?;
        gpu.device.context().bind_to_thread()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Self { gpu, pool, event })
    }
}

impl Allocator for Ordered {
    type Block = u64;

    fn take(&self, bytes: u64, stream: usize) -> Result<u64, Refused> {
        let (stream, bytes) = (self.gpu.streams[stream].cu_stream(), usize::try_from(bytes));
        let (bytes, mut at) = (bytes.unwrap_or(usize::MAX), 0);
        // SAFETY: asks the driver for memory; the stream and the pool are kept alive here.
        unsafe { sys::cuMemAllocFromPoolAsync(&raw mut at, bytes, self.pool.as_raw(), stream) }
            .result()?;
        Ok(at)
    }
    fn give(&self, block: u64, stream: usize) -> Result<(), Refused> {
        // SAFETY: allocated above and freed once, in the order of the stream that used it.
        Ok(unsafe { result::free_async(block, self.gpu.streams[stream].cu_stream()) }?)
    }
    /// Makes the free wait for the other stream, as a program without recorded uses does.
    fn record(&self, _: &u64) -> Result<(), Refused> {
        let (home, other) = (self.gpu.streams[0].cu_stream(), self.gpu.streams[1].cu_stream());
        // SAFETY: the event and the streams are kept alive here.
        unsafe { result::event::record(self.event, other) }?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        Ok(unsafe { result::stream::wait_event(home, self.event, flags) }?)
    }
    fn write(&self, block: &u64, bytes: u64, stream: usize) -> Result<(), Refused> {
        self.gpu.write(*block, bytes, stream)
    }
    fn wait(&self) -> Result<(), Refused> {
        self.gpu.wait()
    }
    fn device(&self) -> &CudaDevice {
        &self.gpu.device
    }
    fn reserved_peak(&self) -> u64 {
        let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        let (pool, mut value) = (self.pool.as_raw(), 0_u64);
        // SAFETY: the attribute is a 64-bit number, which the driver writes.
        let read = unsafe { sys::cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()) };
        read.result().map_or(0, |()| value)
    }
    fn reset(&mut self) -> Result<(), Refused> {
        self.pool.trim_to(0)?;
        let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        let (pool, mut none) = (self.pool.as_raw(), 0_u64);
        // SAFETY: the attribute is a 64-bit number, which the driver reads. It resets the peak.
        unsafe { sys::cuMemPoolSetAttribute(pool, which, (&raw mut none).cast()) }.result()?;
        Ok(())
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and used only by `self`.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
