//! `cuMemAlloc` and `cuMemFree`: whole blocks of VRAM.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::block::CudaBlock;
use crate::device::CudaDevice;
use crate::events::PoolStream;
use crate::memory::{CudaMemory, Source, Whole};
use cudarc::driver::{result, sys};
use pool_core::port::{MarkOf, Memory};
use pool_core::{DeviceError, StreamClock};

/// Device memory of one GPU by `cuMemAlloc` and `cuMemFree`. Both calls may stop the device for a
/// moment; a pool keeps them rare.
pub type CudaAllocator = CudaMemory<Blocking>;

/// Memory by `cuMemAlloc`.
#[derive(Debug)]
pub struct Blocking(());

impl CudaAllocator {
    /// Opens a device by its ordinal, for its memory.
    ///
    /// # Errors
    ///
    /// As for [`CudaDevice::new`].
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, MIB, Why};
    /// use bucketpool::cuda::CudaAllocator;
    ///
    /// let pool = BucketPool::new(CudaAllocator::new(0)?);
    /// let buffer = pool.allocate(MIB)?;
    /// let missing = CudaAllocator::new(99).unwrap_err();
    /// assert_eq!(missing.why, Why::Unsupported); // there is no such device
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        CudaDevice::new(ordinal).map(Self::on)
    }

    /// Creates an allocator of the memory of a device.
    #[must_use]
    pub fn on(device: CudaDevice) -> Self {
        Self::from(device, Blocking(()))
    }
}

impl Source for Blocking {
    const MEMORY: Memory = Memory::DEVICE;

    fn take(
        &self,
        device: &CudaDevice,
        bytes: usize,
        _on: &PoolStream,
    ) -> Result<sys::CUdeviceptr, DeviceError> {
        // SAFETY: requests memory; the context is current.
        device.driver().relaxed("cuMemAlloc", || unsafe { result::malloc_sync(bytes) })
    }

    /// Waits for `after` on the host. `cuMemFree` itself may wait for the device.
    fn give(
        &self,
        device: &CudaDevice,
        block: &CudaBlock,
        after: &[MarkOf<CudaAllocator>],
    ) -> Result<(), DeviceError> {
        for mark in after {
            device.clock().synchronize(*mark)?;
        }
        // SAFETY: only `allocate` makes blocks, and `free` takes them by value, so each is freed
        // once. The work that used the block is done: the loop above waited for it.
        device.driver().relaxed("cuMemFree", || unsafe { result::free_sync(block.at) })
    }
}

impl Whole for Blocking {}
