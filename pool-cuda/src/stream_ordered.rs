//! `cuMemAllocFromPoolAsync` and `cuMemFreeAsync`: memory in the order of streams, from a pool of
//! the driver's that is this allocator's own.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::abi::{Access, DeviceLocation, PoolProperties};
use crate::block::CudaBlock;
use crate::device::CudaDevice;
use crate::driver::has;
use crate::events::CudaStreamOf;
use crate::memory::{CudaMemory, Source, Whole};
use cudarc::driver::{result, sys};
use pool_core::{Allocating, DeviceError, MarkOf, Memory, Order, StreamClock, Why};
use std::ptr;

/// Device memory of one GPU from a private `cuMemPool`. Blocks come and go in the order of
/// streams, so neither stops the device.
pub type CudaAsyncAllocator = CudaMemory<StreamOrdered>;

/// Memory from a pool of the driver's.
pub struct StreamOrdered {
    pool: PoolHandle,
    /// Frees are given to this stream, behind the work that used the memory, so that they hold up
    /// nobody. The driver hands the memory on behind it.
    freeing: CudaStreamOf,
    device: CudaDevice,
}

struct PoolHandle(sys::CUmemoryPool);
// SAFETY: the driver lets any thread use a pool.
unsafe impl Send for PoolHandle {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for PoolHandle {}

impl CudaAsyncAllocator {
    /// A pool of the driver's on `device` that keeps up to `release_threshold` bytes of freed
    /// memory: 0 gives all of it back whenever something waits for the device, as the driver's own
    /// default does; `u64::MAX` keeps all.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the driver or the device has no memory pools, or what it said.
    pub fn new(device: CudaDevice, release_threshold: u64) -> Result<Self, DeviceError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        let supported = device.has_attribute(attribute)?
            && has(&[b"cuMemPoolCreate\0", b"cuMemAllocFromPoolAsync\0", b"cuMemFreeAsync\0"]);
        if !supported {
            return Err(DeviceError::new(Why::Unsupported, "memory pools of the driver", 0));
        }
        let stream = device.driver().call("cuStreamCreate", || device.context().new_stream())?;
        let freeing = device.stream(&stream)?;
        let properties = PoolProperties::on(DeviceLocation::of(device.ordinal()));
        let mut pool = ptr::null_mut();
        device.driver().call("cuMemPoolCreate", || {
            // SAFETY: the properties have the driver's layout (abi.rs) and live through the call.
            unsafe { sys::cuMemPoolCreate(&raw mut pool, properties.as_ptr()) }.result()
        })?;
        let source = StreamOrdered { pool: PoolHandle(pool), freeing, device: device.clone() };
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let mut value = release_threshold;
        device.driver().call("cuMemPoolSetAttribute", || {
            // SAFETY: the attribute is a 64-bit number, which the driver reads.
            unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()) }.result()
        })?;
        Ok(Self::from(device, source))
    }

    /// The driver's pool, for calls that are not here. It lives as long as the allocator.
    #[must_use]
    pub fn as_raw(&self) -> sys::CUmemoryPool {
        self.source().pool.0
    }

    /// Lets another device's work use this pool's memory, what is handed out already too
    /// (`cuMemPoolSetAccess`). Access between contexts
    /// ([`CudaDevice::enable_access_to`]) does not reach the driver's pools.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the device cannot reach this one, or what the driver said.
    pub fn let_use(&self, peer: &CudaDevice) -> Result<(), DeviceError> {
        peer.can_reach(self.device())?;
        let access = Access::of(DeviceLocation::of(peer.ordinal()));
        let pool = self.source().pool.0;
        self.device().driver().call("cuMemPoolSetAccess", || {
            // SAFETY: one description in the driver's layout (abi.rs), which lives through the
            // call; the pool lives as long as this allocator.
            unsafe { sys::cuMemPoolSetAccess(pool, access.as_ptr(), 1) }.result()
        })
    }

    /// What the driver's pool has taken from the device, in bytes, in use or kept.
    ///
    /// # Errors
    ///
    /// What the driver said.
    pub fn reserved_bytes(&self) -> Result<u64, DeviceError> {
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        let (pool, mut value) = (self.source().pool.0, 0_u64);
        self.device().driver().call("cuMemPoolGetAttribute", || {
            // SAFETY: the attribute is a 64-bit number, which the driver writes.
            unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) }.result()
        })?;
        Ok(value)
    }

    /// Gives back what the driver's pool keeps, but for `keep` bytes.
    ///
    /// # Errors
    ///
    /// What the driver said.
    pub fn trim_to(&self, keep: u64) -> Result<(), DeviceError> {
        let (pool, keep) = (self.source().pool.0, crate::memory::size(keep)?);
        self.device().driver().relaxed("cuMemPoolTrimTo", || {
            // SAFETY: the pool lives as long as this allocator.
            unsafe { sys::cuMemPoolTrimTo(pool, keep) }.result()
        })
    }
}

impl Source for StreamOrdered {
    const MEMORY: Memory = Memory { allocating: Allocating::InOrder, ..Memory::DEVICE };

    fn take(
        &self,
        device: &CudaDevice,
        bytes: usize,
        on: &CudaStreamOf,
    ) -> Result<sys::CUdeviceptr, DeviceError> {
        // In a capture the call would become a node of the graph, and the memory the graph's own.
        let captured = device.clock().is_capturing(on);
        let (mut at, on) = (0, if captured { &self.freeing } else { on });
        let stream = on.raw().handle()?;
        device.driver().relaxed("cuMemAllocFromPoolAsync", || {
            // SAFETY: the pool lives as long as `self`, the stream as long as it is borrowed.
            unsafe { sys::cuMemAllocFromPoolAsync(&raw mut at, bytes, self.pool.0, stream) }
                .result()?;
            if !captured {
                return Ok(());
            }
            // Waited for now, it is there for the graph, whenever that runs.
            // SAFETY: as above.
            let waited = unsafe { result::stream::synchronize(stream) };
            waited.inspect_err(|_| {
                // SAFETY: allocated above, on this stream, and nobody's yet.
                let _ = unsafe { result::free_async(at, stream) };
            })
        })?;
        Ok(at)
    }

    /// Waits for nothing: the free itself is behind `after`, on the device.
    fn give(
        &self,
        device: &CudaDevice,
        block: &CudaBlock,
        after: &[MarkOf<CudaAsyncAllocator>],
    ) -> Result<(), DeviceError> {
        if device.clock().order(&self.freeing, after)? == Order::NotYet {
            return Err(DeviceError::new(Why::NotSubmitted, "cuMemFreeAsync", 0));
        }
        device.driver().relaxed("cuMemFreeAsync", || {
            // SAFETY: a block is made in `allocate` only and moved into `free`, so it is freed
            // once; the stream is behind the work that used it, as just ordered.
            unsafe { result::free_async(block.at, self.freeing.raw().cu_stream()) }
        })
    }
}

impl Whole for StreamOrdered {}

impl Drop for StreamOrdered {
    fn drop(&mut self) {
        let pool = self.pool.0;
        // What is still being freed is finished by the driver; that the device is gone, or that the
        // process is a fork, leaves nothing to do.
        let _ = self.device.driver().relaxed("cuMemPoolDestroy", || {
            // SAFETY: made in `new` and destroyed once.
            unsafe { sys::cuMemPoolDestroy(pool) }.result()
        });
        let _ = self.device.retire(&self.freeing);
    }
}

impl std::fmt::Debug for StreamOrdered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamOrdered").field("device", &self.device).finish_non_exhaustive()
    }
}
