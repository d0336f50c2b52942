//! Virtual memory: reserved addresses, at which pieces of memory are mapped when they are needed.
#![expect(unsafe_code, reason = "the driver is called through C")]

mod pieces;

use crate::abi::{Access, DeviceLocation, FABRIC_HANDLE, FILE_HANDLE, Properties};
use crate::block::CudaBlock;
use crate::device::CudaDevice;
use crate::driver::has;
use crate::events::PoolStream;
use crate::forks::forked;
use crate::memory::{CudaMemory, Source};
use crate::sizes::size;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use pieces::Pieces;
use pool_core::port::{Handles, MarkOf, Memory, PageCalls, VirtualMemory};
use pool_core::{DeviceError, StreamClock, Why};
use std::ops::Range;
use std::sync::Arc;

/// How many times the device's memory an arena may reserve addresses for. Addresses cost nothing
/// else.
const ADDRESSES_PER_BYTE: u64 = 8;

/// Device memory of one GPU in pieces that are mapped at reserved addresses, for an arena in pages
/// ([`PoolBuilder::arena`](pool_core::PoolBuilder::arena)).
///
/// Each growth of the arena is one piece, of what is missing and at least
/// [`ArenaConfig::least_growth`](pool_core::ArenaConfig::least_growth), in whole granules of the driver, most
/// often 2 MiB: the driver's calls cost time by their number and hardly by their size. Pieces go
/// back whole: by a trim, a limit, a tick, or where the device has no memory for a request, but not
/// to serve a request while it has.
///
/// Without an arena it hands out blocks of whole granules. Each block is one piece.
pub type CudaVmmAllocator = CudaMemory<Pages>;

/// How a [`CudaVmmAllocator`] makes its memory.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::cuda::VmmConfig;
///
/// let config = VmmConfig { peers: vec![1], ..VmmConfig::default() };
/// assert!(!config.rdma);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmmConfig {
    /// Ordinals of other devices that may use the memory. None by default.
    pub peers: Vec<usize>,
    /// The kinds of handle that the memory can be exported as. None by default. The kind is fixed
    /// when a piece is made, so a library that registers memory with a network card or passes it to
    /// another process fails, or copies through the host, if its kind is missing.
    ///
    /// `cuMemRetainAllocationHandle` of a buffer's address returns the handle of its piece, for
    /// `cuMemExportToShareableHandle`. In an arena a piece holds other blocks too, and the address
    /// has another piece once the arena has given the first one back: export blocks of a pool
    /// without an arena, or keep the buffer alive.
    pub exported_as: Vec<Exported>,
    /// Whether a network card can reach the memory (`gpuDirectRDMACapable`). Off by default.
    pub rdma: bool,
}

/// A kind of handle that memory can be exported as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exported {
    /// A POSIX file descriptor, for processes of the same machine.
    File,
    /// A fabric handle, for other machines of an `NVLink` domain.
    Fabric,
}

/// Memory by `cuMemCreate` and `cuMemMap`.
#[derive(Debug)]
pub struct Pages {
    device: CudaDevice,
    /// The driver's granule.
    granule: u64,
    pieces: Pieces,
}

impl CudaVmmAllocator {
    /// Creates an allocator of the memory of a device, for itself and for `peers`, the ordinals of
    /// devices that can reach it.
    ///
    /// # Errors
    ///
    /// As for [`CudaVmmAllocator::with`]. A peer that does not exist is refused by the first
    /// allocation only.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{ArenaConfig, BucketPool, MIB};
    /// use bucketpool::cuda::{CudaDevice, CudaVmmAllocator};
    ///
    /// let memory = CudaVmmAllocator::new(CudaDevice::new(0)?, &[1])?; // device 1 can use it too
    /// let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    /// let buffer = pool.allocate(48 * MIB)?;
    /// assert_eq!(pool.stats().reserved_bytes, 48 * MIB); // one piece
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(device: CudaDevice, peers: &[usize]) -> Result<Self, DeviceError> {
        Self::with(device, &VmmConfig { peers: peers.to_vec(), ..VmmConfig::default() })
    }

    /// Creates an allocator of the memory of a device.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the driver or the device has no virtual memory, cannot export it as
    /// the configuration demands or open it to RDMA; or the driver's refusal.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::Why;
    /// use bucketpool::cuda::{CudaDevice, CudaVmmAllocator, Exported, VmmConfig};
    ///
    /// let device = CudaDevice::new(0)?;
    /// let config = VmmConfig { exported_as: vec![Exported::File], ..VmmConfig::default() };
    /// let memory = CudaVmmAllocator::with(device.clone(), &config)?;
    /// let fabric = VmmConfig { exported_as: vec![Exported::Fabric], ..config };
    /// assert_eq!(CudaVmmAllocator::with(device, &fabric).unwrap_err().why, Why::Unsupported);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with(device: CudaDevice, config: &VmmConfig) -> Result<Self, DeviceError> {
        let needs = |attribute, what| match device.has_attribute(attribute)? {
            true => Ok(()),
            false => Err(DeviceError::new(Why::Unsupported, what)),
        };
        let supported = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        needs(supported, "virtual memory of the driver")?;
        if !has(&[b"cuMemAddressReserve\0", b"cuMemCreate\0", b"cuMemMap\0"]) {
            return Err(DeviceError::new(Why::Unsupported, "virtual memory of the driver"));
        }
        let mut properties = Properties::on(DeviceLocation::of(device.ordinal()));
        for kind in &config.exported_as {
            needs(kind.attribute(), kind.name())?;
            properties.export_as(kind.flag());
        }
        if config.rdma {
            let supported = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
            needs(supported, "virtual memory for RDMA")?;
            properties.allow_rdma();
        }
        let granule = granule(&device, &properties)?;
        let who = std::iter::once(device.ordinal()).chain(config.peers.iter().copied());
        let access = who.map(|ordinal| Access::of(DeviceLocation::of(ordinal))).collect();
        let pieces = Pieces::new(properties, access);
        Ok(Self::from(device.clone(), Pages { device, granule, pieces }))
    }

    /// Returns the bytes of pieces that the driver refused to take back. The next call that maps or
    /// unmaps, or [`DeviceAllocator::release_kept`](pool_core::DeviceAllocator::release_kept), offers
    /// them again.
    #[must_use]
    pub fn refused_bytes(&self) -> u64 {
        // In a forked child a thread that is not there may hold the lock.
        if forked().is_some() { 0 } else { self.source().pieces.refused_bytes() }
    }

    /// Calls `watcher` before a range of addresses loses its memory, which other memory may replace
    /// later. A library that has registered the range (a network card, NCCL) must end the
    /// registration there. The call runs on the thread that needs or frees memory, after the work
    /// that used the range, and must neither block nor panic.
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{ArenaConfig, BucketPool, MIB};
    /// use bucketpool::cuda::{CudaDevice, CudaVmmAllocator};
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use std::sync::Arc;
    ///
    /// let memory = CudaVmmAllocator::new(CudaDevice::new(0)?, &[])?;
    /// let unmapped = Arc::new(AtomicU64::new(0));
    /// let count = unmapped.clone();
    /// memory.on_unmap(move |range| {
    ///     count.fetch_add(range.end - range.start, Relaxed);
    /// });
    /// let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    /// drop(pool.allocate(64 * MIB)?);
    /// pool.clear()?;
    /// assert!(unmapped.load(Relaxed) >= 64 * MIB);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_unmap(&self, watcher: impl Fn(Range<u64>) + Send + Sync + 'static) {
        self.source().pieces.watch(Arc::new(watcher));
    }

    fn wait(&self, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        after.iter().try_for_each(|mark| self.device().clock().synchronize(*mark))
    }
}

impl Exported {
    fn attribute(self) -> Attribute {
        match self {
            Self::File => {
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            }
            Self::Fabric => Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::File => "virtual memory exported as a file descriptor",
            Self::Fabric => "virtual memory exported as a fabric handle",
        }
    }

    fn flag(self) -> u32 {
        match self {
            Self::File => FILE_HANDLE,
            Self::Fabric => FABRIC_HANDLE,
        }
    }
}

fn granule(device: &CudaDevice, properties: &Properties) -> Result<u64, DeviceError> {
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let mut granule = 0;
    device.driver().call("cuMemGetAllocationGranularity", || {
        // SAFETY: the properties have the driver's layout (abi.rs) and live through the call.
        unsafe { sys::cuMemGetAllocationGranularity(&raw mut granule, properties.as_ptr(), option) }
            .result()
    })?;
    Ok(granule as u64)
}

impl Pages {
    fn reserve(&self, bytes: usize) -> Result<sys::CUdeviceptr, DeviceError> {
        let mut at = 0;
        let reserved = self.device.driver().relaxed("cuMemAddressReserve", || {
            // SAFETY: requests addresses anywhere.
            unsafe { sys::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0) }.result()
        });
        // No memory is asked for, so no cached memory is in its way.
        let of_addresses = |refused: DeviceError| match refused.why {
            Why::OutOfMemory => DeviceError { why: Why::OutOfAddresses, ..refused },
            _ => refused,
        };
        reserved.map_err(of_addresses)?;
        Ok(at)
    }

    fn map(&self, at: u64, bytes: u64) -> Result<(), DeviceError> {
        let call = "cuMemCreate, cuMemMap or cuMemSetAccess";
        self.device.driver().relaxed(call, || self.pieces.map(at, bytes))
    }

    fn unmap(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.device.driver().relaxed("cuMemUnmap", || self.pieces.unmap(range))
    }

    /// Gives addresses back at which nothing is mapped. If the driver refuses, the next call offers
    /// them again.
    fn unreserve(&self, at: sys::CUdeviceptr, bytes: usize) {
        let free = || {
            // SAFETY: reserved with this length, and nothing is mapped there, as the callers
            // guarantee.
            unsafe { sys::cuMemAddressFree(at, bytes) }.result()
        };
        if self.device.driver().relaxed("cuMemAddressFree", free).is_err() {
            self.pieces.refused_addresses(at, bytes);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.pieces.refused_nothing() {
            // If the device is lost, so is its memory.
            let _ = self.release_kept();
        }
    }
}

impl Source for Pages {
    const MEMORY: Memory = Memory::DEVICE;

    fn granule(&self) -> u64 {
        self.granule
    }

    fn take(
        &self,
        _device: &CudaDevice,
        bytes: usize,
        _on: &PoolStream,
    ) -> Result<sys::CUdeviceptr, DeviceError> {
        let at = self.reserve(bytes)?;
        self.map(at, bytes as u64).inspect_err(|_| self.unreserve(at, bytes))?;
        Ok(at)
    }

    fn give(
        &self,
        device: &CudaDevice,
        block: &CudaBlock,
        after: &[MarkOf<CudaVmmAllocator>],
    ) -> Result<(), DeviceError> {
        // `cuMemUnmap` is not documented to wait for the work that uses the memory.
        after.iter().try_for_each(|mark| device.clock().synchronize(*mark))?;
        let (range, bytes) = (block.at..block.at + block.bytes, size(block.bytes)?);
        let unmap = || self.pieces.unmap_any(range.clone());
        let unmapped = device.driver().relaxed("cuMemUnmap", unmap);
        if let Err(refused) = unmapped {
            // A block whose unmap falls into a capture waits for the end of the capture.
            if refused.why != Why::NotSubmitted {
                self.pieces.refused_mapping(range, bytes);
            }
            return unmapped;
        }
        self.unreserve(block.at, bytes);
        Ok(())
    }

    fn held_bytes(&self, block: &CudaBlock) -> u64 {
        self.pieces.mapped_bytes(block.at..block.at + block.bytes)
    }

    fn release_kept(&self) -> Result<(), DeviceError> {
        self.device.driver().relaxed("cuMemRelease", || self.pieces.offer_again())
    }

    fn pages(memory: &CudaVmmAllocator) -> Option<PageCalls<CudaVmmAllocator>> {
        Some(PageCalls::of(memory))
    }
}

impl VirtualMemory for CudaVmmAllocator {
    fn page_bytes(&self) -> u64 {
        self.source().granule
    }

    fn handles(&self) -> Handles {
        Handles::Commit
    }

    fn address_space(&self) -> u64 {
        let wanted = self.device().total_bytes().saturating_mul(ADDRESSES_PER_BYTE);
        wanted.next_multiple_of(self.page_bytes())
    }

    fn reserve(&self, bytes: u64) -> Result<CudaBlock, DeviceError> {
        let at = self.source().reserve(size(bytes)?)?;
        Ok(CudaBlock { at, bytes, owner: self.owner() })
    }

    fn commit(&self, block: &CudaBlock, pages: Range<u64>) -> Result<(), DeviceError> {
        self.check(block, "cuMemMap of another allocator's addresses")?;
        let (at, bytes) = (block.at + pages.start, pages.end - pages.start);
        self.source().map(at, bytes)
    }

    fn decommit(
        &self,
        block: &CudaBlock,
        pages: Range<u64>,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        self.check(block, "cuMemUnmap of another allocator's addresses")?;
        self.wait(after)?;
        self.source().unmap(block.at + pages.start..block.at + pages.end)
    }

    fn release(&self, block: CudaBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.check(&block, "cuMemAddressFree of another allocator's addresses")?;
        self.free_or_wait(block, after)
    }
}
