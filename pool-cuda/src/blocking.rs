//! `cuMemAlloc` and `cuMemFree`: whole blocks of VRAM.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::block::CudaBlock;
use crate::device::CudaDevice;
use crate::events::CudaStreamOf;
use crate::memory::{CudaMemory, Source, Whole};
use cudarc::driver::{result, sys};
use pool_core::{DeviceError, MarkOf, Memory, StreamClock};

/// Device memory of one GPU by `cuMemAlloc`. Taking a block stops the device for a moment and so
/// does giving one back; a pool is what keeps both rare.
pub type CudaAllocator = CudaMemory<Blocking>;

/// Memory by `cuMemAlloc`.
#[derive(Debug)]
pub struct Blocking(());

impl CudaAllocator {
    /// The memory of the device with this ordinal.
    ///
    /// # Errors
    ///
    /// As for [`CudaDevice::new`].
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        CudaDevice::new(ordinal).map(Self::on)
    }

    /// The memory of a device that the program has opened.
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
        _on: &CudaStreamOf,
    ) -> Result<sys::CUdeviceptr, DeviceError> {
        // SAFETY: asks the driver for memory; the context is current.
        device.driver().relaxed("cuMemAlloc", || unsafe { result::malloc_sync(bytes) })
    }

    /// Waits for `after`, and then for the device, since `cuMemFree` does.
    fn give(
        &self,
        device: &CudaDevice,
        block: &CudaBlock,
        after: &[MarkOf<CudaAllocator>],
    ) -> Result<(), DeviceError> {
        for mark in after {
            device.clock().synchronize(*mark)?;
        }
        // SAFETY: a block is made in `allocate` only and moved into `free`, so it is freed once;
        // the work that used it is done, as just waited for.
        device.driver().relaxed("cuMemFree", || unsafe { result::free_sync(block.at) })
    }
}

impl Whole for Blocking {}
