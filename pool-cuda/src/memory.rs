//! Device memory, however the driver is asked for it: what the three allocators of VRAM share.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::block::{CudaBlock, CudaView, Owner};
use crate::device::CudaDevice;
use crate::events::{CudaDriver, CudaStreamOf};
use cudarc::driver::{result, sys};
use pool_core::{
    DeviceAllocator, DeviceError, MarkOf, Memory, PageCalls, Request, Sliceable, Timeline,
    WholeBlocks, Why,
};
use std::fmt;
use std::ops::Range;

/// What device memory is aligned to at least (CUDA C Programming Guide, "Device Memory Accesses").
const ALIGNMENT: u64 = 256;
/// Sizes are rounded to this, as CUDA's and `PyTorch`'s allocators do.
pub(crate) const GRANULE: u64 = 512;

/// How the driver is asked for memory. Not to be implemented elsewhere; its module is private.
pub trait Source: Send + Sync + Sized + 'static {
    /// How this memory behaves.
    const MEMORY: Memory;

    /// Sizes are multiples of this many bytes.
    fn granule(&self) -> u64 {
        GRANULE
    }

    /// Takes memory, of a multiple of a granule, for work on `on`.
    ///
    /// # Errors
    ///
    /// What the driver said; nothing was taken then.
    fn take(
        &self,
        device: &CudaDevice,
        bytes: usize,
        on: &CudaStreamOf,
    ) -> Result<sys::CUdeviceptr, DeviceError>;

    /// Gives it back, after the work before `after`.
    ///
    /// # Errors
    ///
    /// What the driver said; the memory is lost then.
    fn give(
        &self,
        device: &CudaDevice,
        block: &CudaBlock,
        after: &[MarkOf<CudaMemory<Self>>],
    ) -> Result<(), DeviceError>;

    /// Gives back what it keeps for its next calls.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    fn release_kept(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The calls of virtual memory, where this is such.
    fn pages(_memory: &CudaMemory<Self>) -> Option<PageCalls<CudaMemory<Self>>> {
        None
    }
}

/// Memory that a `CudaSlice` of cudarc's may free: whole blocks, by calls that suit its own.
pub trait Whole: Source {}

impl<S: Whole> WholeBlocks for CudaMemory<S> {}

/// An allocator of the memory of one GPU: [`CudaAllocator`](crate::CudaAllocator),
/// [`CudaAsyncAllocator`](crate::CudaAsyncAllocator) or
/// [`CudaVmmAllocator`](crate::CudaVmmAllocator).
pub struct CudaMemory<S: Source> {
    device: CudaDevice,
    source: S,
    owner: Owner,
}

impl<S: Source> CudaMemory<S> {
    pub(crate) fn from(device: CudaDevice, source: S) -> Self {
        Self { device, source, owner: Owner::new() }
    }

    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn check(&self, block: &CudaBlock, call: &'static str) -> Result<(), DeviceError> {
        if block.owner == self.owner {
            return Ok(());
        }
        Err(DeviceError::new(Why::Foreign, call, 0))
    }

    /// The device that it is memory of.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    fn clear(
        &self,
        at: sys::CUdeviceptr,
        bytes: u64,
        on: &CudaStreamOf,
    ) -> Result<(), DeviceError> {
        let (bytes, stream) = (size(bytes)?, on.raw().handle()?);
        self.device.driver().call("cuMemsetD8Async", || {
            // SAFETY: the callers below vouch for the bytes.
            unsafe { result::memset_d8_async(at, 0, bytes, stream) }
        })
    }
}

pub(crate) fn size(bytes: u64) -> Result<usize, DeviceError> {
    usize::try_from(bytes).map_err(|_| DeviceError::new(Why::TooLarge, "a size on this machine", 0))
}

pub(crate) fn aligned(alignment: u64, most: u64) -> Result<(), DeviceError> {
    if alignment.is_power_of_two() && alignment <= most {
        return Ok(());
    }
    Err(DeviceError::new(Why::Unsupported, "alignment of CUDA memory", 0))
}

impl<S: Source> DeviceAllocator for CudaMemory<S> {
    type Block = CudaBlock;
    type View<'b> = CudaView<'b>;
    type Kind = ();
    type Clock = Timeline<CudaDriver>;
    const MEMORY: Memory = S::MEMORY;

    fn clock(&self) -> &Timeline<CudaDriver> {
        self.device.clock()
    }

    fn granule(&self) -> u64 {
        self.source.granule()
    }

    fn total_bytes(&self) -> Option<u64> {
        Some(self.device.total_bytes())
    }

    fn aligned(&self, _kind: (), alignment: u64) -> Result<(), DeviceError> {
        aligned(alignment, ALIGNMENT)
    }

    fn allocate(&self, request: Request<()>, on: &CudaStreamOf) -> Result<CudaBlock, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "round up to a granule", 0);
        let bytes = request.bytes.max(1).checked_next_multiple_of(self.source.granule());
        let bytes = bytes.ok_or(too_large)?;
        let at = self.source.take(&self.device, size(bytes)?, on)?;
        Ok(CudaBlock { at, bytes, owner: self.owner })
    }

    fn free(&self, block: CudaBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.check(&block, "free memory of another allocator")?;
        self.source.give(&self.device, &block, after)
    }

    fn release_kept(&self) -> Result<(), DeviceError> {
        self.source.release_kept()
    }

    fn view<'b>(
        &'b self,
        block: &'b CudaBlock,
        offset: u64,
        bytes: u64,
        on: &CudaStreamOf,
    ) -> CudaView<'b> {
        CudaView::new(block.at + offset, bytes, (**on.raw()).clone())
    }

    /// The pool clears no more than the block holds, and nobody else has the block.
    fn zero(
        &self,
        block: &mut CudaBlock,
        bytes: u64,
        on: &CudaStreamOf,
    ) -> Result<(), DeviceError> {
        self.clear(block.at, bytes.min(block.bytes), on)
    }
}

impl<S: Source> Sliceable for CudaMemory<S> {
    fn pages(&self) -> Option<PageCalls<Self>> {
        S::pages(self)
    }

    fn part_granule(&self) -> u64 {
        GRANULE
    }

    unsafe fn zero_part(
        &self,
        block: &CudaBlock,
        bytes: Range<u64>,
        on: &CudaStreamOf,
    ) -> Result<(), DeviceError> {
        self.clear(block.at + bytes.start, bytes.end - bytes.start, on)
    }
}

impl<S: Source> fmt::Debug for CudaMemory<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMemory").field("device", &self.device).finish_non_exhaustive()
    }
}
