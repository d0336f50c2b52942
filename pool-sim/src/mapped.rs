//! Simulated memory that the CPU can touch as well as streams: what page-locked memory is.

use crate::device::{SimBlock, SimDevice, SimDriver, SimStream, SimView};
use pool_core::port::{
    Handles, MarkOf, Memory, PageCalls, Request, Sliceable, VirtualMemory, WholeBlocks,
};
use pool_core::stream::Timeline;
use pool_core::{DeviceAllocator, DeviceError};
use std::ops::Range;

/// Memory of a [`SimDevice`] that the CPU can touch without asking a stream, so that a pool may
/// hand it out only when it has seen the streams done with it.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
/// use bucketpool::{BucketPool, sim::{MappedSim, SimDevice}};
///
/// let device = SimDevice::new();
/// let pool = BucketPool::new(MappedSim(device.clone()));
/// let stream = device.stream();
/// let buffer = pool.allocate_on(&stream, 4096)?;
/// device.kernel(&stream, &*buffer.on(&stream)?); // queued, not done
/// drop(buffer);
/// let other = pool.allocate(4096)?;
/// device.touch(&*other.on(&stream)?);
/// assert_eq!((device.hazards(), pool.stats().misses), (0, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MappedSim(pub SimDevice);

impl DeviceAllocator for MappedSim {
    type Block = SimBlock;
    type View<'b> = SimView<'b>;
    type Kind = ();
    type Clock = Timeline<SimDriver>;
    const MEMORY: Memory = Memory { cpu_touches: true, ..Memory::DEVICE };

    fn clock(&self) -> &Timeline<SimDriver> {
        self.0.clock()
    }
    fn total_bytes(&self) -> Option<u64> {
        self.0.total_bytes()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.0.free_bytes()
    }
    fn aligned(&self, kind: (), alignment: u64) -> Result<(), DeviceError> {
        self.0.aligned(kind, alignment)
    }
    fn allocate(&self, request: Request<()>, on: &SimStream) -> Result<SimBlock, DeviceError> {
        self.0.allocate(request, on)
    }
    fn free(&self, block: SimBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.0.free(block, after)
    }
    fn view<'b>(&'b self, b: &'b SimBlock, at: u64, bytes: u64, on: &SimStream) -> SimView<'b> {
        self.0.view(b, at, bytes, on)
    }
    fn zero(&self, block: &mut SimBlock, bytes: u64, on: &SimStream) -> Result<(), DeviceError> {
        self.0.zero(block, bytes, on)
    }
}

impl WholeBlocks for MappedSim {}

impl Sliceable for MappedSim {
    fn pages(&self) -> Option<PageCalls<Self>> {
        Some(PageCalls::of(self))
    }

    #[expect(unsafe_code, reason = "the port's; nothing here is unsafe")]
    unsafe fn zero_part(
        &self,
        block: &SimBlock,
        bytes: Range<u64>,
        on: &SimStream,
    ) -> Result<(), DeviceError> {
        // SAFETY: nothing to vouch for: simulated memory is no memory of this process.
        unsafe { self.0.zero_part(block, bytes, on) }
    }
}

impl VirtualMemory for MappedSim {
    fn page_bytes(&self) -> u64 {
        self.0.page_bytes()
    }
    fn handles(&self) -> Handles {
        self.0.handles()
    }
    fn address_space(&self) -> u64 {
        self.0.address_space()
    }
    fn reserve(&self, bytes: u64) -> Result<SimBlock, DeviceError> {
        self.0.reserve(bytes)
    }
    fn commit(&self, block: &SimBlock, pages: Range<u64>) -> Result<(), DeviceError> {
        self.0.commit(block, pages)
    }
    fn decommit(
        &self,
        block: &SimBlock,
        pages: Range<u64>,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        self.0.decommit(block, pages, after)
    }
    fn release(&self, block: SimBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.0.release(block, after)
    }
}
