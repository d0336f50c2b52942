//! Virtual memory: addresses first, pages behind them when they are needed.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::abi::{Access, DeviceLocation, Properties};
use crate::block::CudaBlock;
use crate::device::CudaDevice;
use crate::driver::has;
use crate::events::CudaStreamOf;
use crate::memory::{CudaMemory, Source, size};
use cudarc::driver::{DriverError, sys};
use parking_lot::Mutex;
use pool_core::{DeviceError, MarkOf, Memory, PageCalls, StreamClock, VirtualMemory, Why};
use std::collections::BTreeSet;
use std::ops::Range;

/// How many times the device's memory an arena may have addresses for: holes cost nothing else.
const ADDRESSES_PER_BYTE: u64 = 8;

/// Device memory of one GPU in pages, most of 2 MiB, that are put behind reserved addresses and
/// taken from behind them: for an arena in pages
/// ([`PoolBuilder::arena`](pool_core::PoolBuilder::arena)).
///
/// As an allocator of whole blocks it hands out whole pages.
pub type CudaVmmAllocator = CudaMemory<Pages>;

/// Memory by `cuMemCreate` and `cuMemMap`.
#[derive(Debug)]
pub struct Pages {
    device: CudaDevice,
    page: u64,
    /// Whose memory it is, and who may use it: the device itself and its peers.
    location: DeviceLocation,
    access: Vec<DeviceLocation>,
    /// Pages that have memory behind them, by address.
    mapped: Mutex<BTreeSet<u64>>,
    /// What the driver would not take back, to be offered again with the next call.
    astray: Mutex<Vec<Astray>>,
}

/// What a refused step left behind.
#[derive(Clone, Copy, Debug)]
enum Astray {
    /// Memory whose own handle was not released; what maps it keeps it.
    Handle(u64),
    /// Mapped pages: where, and how many bytes.
    Mapped(u64, u64),
    /// Reserved addresses: where, and how many bytes.
    Addresses(u64, usize),
}

impl CudaVmmAllocator {
    /// The memory of a device, for itself and for `peers`, the ordinals of devices that can reach
    /// it.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if the driver or the device has no virtual memory, or what it said.
    pub fn new(device: CudaDevice, peers: &[usize]) -> Result<Self, DeviceError> {
        let attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let supported = device.has_attribute(attribute)?
            && has(&[b"cuMemAddressReserve\0", b"cuMemCreate\0", b"cuMemMap\0"]);
        if !supported {
            return Err(DeviceError::new(Why::Unsupported, "virtual memory of the driver", 0));
        }
        let location = DeviceLocation::of(device.ordinal());
        let properties = Properties::on(location);
        let mut page = 0;
        device.driver().call("cuMemGetAllocationGranularity", || {
            let option =
                sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
            // SAFETY: the properties have the driver's layout (abi.rs) and live through the call.
            unsafe {
                sys::cuMemGetAllocationGranularity(&raw mut page, properties.as_ptr(), option)
            }
            .result()
        })?;
        let peers = peers.iter().map(|peer| DeviceLocation::of(*peer));
        let access = [location].into_iter().chain(peers).collect();
        let (page, mapped) = (page as u64, Mutex::default());
        let (whose, astray) = (device.clone(), Mutex::default());
        let pages = Pages { device: whose, page, location, access, mapped, astray };
        Ok(Self::from(device, pages))
    }
}

impl Pages {
    /// One piece of memory behind an address. The memory is the mapping's from then on, and goes
    /// with it.
    fn put(&self, at: sys::CUdeviceptr, page: usize) -> Result<(), DriverError> {
        let (properties, mut memory) = (Properties::on(self.location), 0);
        // SAFETY: the properties have the driver's layout (abi.rs) and live through the call.
        unsafe { sys::cuMemCreate(&raw mut memory, page, properties.as_ptr(), 0) }.result()?;
        // SAFETY: the address is reserved, and nothing is behind it, as `commit` is promised.
        let mapped = unsafe { sys::cuMemMap(at, page, 0, memory, 0) }.result();
        // SAFETY: made above; what maps it keeps it.
        let released = unsafe { sys::cuMemRelease(memory) }.result();
        if released.is_err() {
            self.astray.lock().push(Astray::Handle(memory));
        }
        mapped
    }

    /// Offers what the driver would not take back once more.
    fn offer_again(&self) {
        let offers = std::mem::take(&mut *self.astray.lock());
        for astray in offers {
            let taken = match astray {
                // SAFETY: made by `put`, and not released yet.
                Astray::Handle(memory) => unsafe { sys::cuMemRelease(memory) }.result(),
                Astray::Mapped(at, bytes) => Self::unmap(at, bytes),
                // SAFETY: reserved with so many bytes; the driver refuses while something is behind
                // them, and pages are offered before their addresses.
                Astray::Addresses(at, n) => unsafe { sys::cuMemAddressFree(at, n) }.result(),
            };
            if taken.is_err() {
                self.astray.lock().push(astray);
            }
        }
    }

    fn unmap(at: sys::CUdeviceptr, bytes: u64) -> Result<(), DriverError> {
        let bytes = usize::try_from(bytes).unwrap_or(0);
        // SAFETY: all of it is mapped, in whole pages, as the callers say, and no work uses it.
        unsafe { sys::cuMemUnmap(at, bytes) }.result()
    }

    /// Takes the memory behind a range, all of which has some.
    fn take_all(&self, pages: Range<u64>) -> Result<(), DriverError> {
        self.offer_again();
        Self::unmap(pages.start, pages.end - pages.start)?;
        let mut mapped = self.mapped.lock();
        let gone: Vec<u64> = mapped.range(pages).copied().collect();
        for page in gone {
            mapped.remove(&page);
        }
        Ok(())
    }

    /// Takes whatever memory is behind a range, in as few calls as it lies in pieces.
    fn take_any(&self, range: &Range<u64>) -> Result<(), DriverError> {
        let mut pieces: Vec<Range<u64>> = Vec::new();
        for page in self.mapped.lock().range(range.clone()) {
            match pieces.last_mut() {
                Some(last) if last.end == *page => last.end += self.page,
                _ => pieces.push(*page..page + self.page),
            }
        }
        pieces.into_iter().try_for_each(|piece| self.take_all(piece))
    }

    /// Memory behind all of a range, in pieces of so many bytes, or behind none of it.
    fn put_all(&self, at: sys::CUdeviceptr, bytes: u64, piece: u64) -> Result<(), DriverError> {
        self.offer_again();
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut behind = 0;
        let mut all = || {
            while behind < bytes {
                self.put(at + behind, size(piece))?;
                behind += piece;
            }
            self.access.iter().try_for_each(|who| {
                let access = Access::of(*who);
                // SAFETY: all of it is mapped by now; the description has the driver's layout.
                unsafe { sys::cuMemSetAccess(at, size(bytes), access.as_ptr(), 1) }.result()
            })
        };
        let done = all();
        if done.is_err() && behind > 0 && Self::unmap(at, behind).is_err() {
            self.astray.lock().push(Astray::Mapped(at, behind));
        }
        done
    }

    /// Gives addresses back behind which there is nothing; what the driver would not take it is
    /// offered again.
    fn unreserve(&self, at: sys::CUdeviceptr, bytes: usize) {
        let free = || {
            // SAFETY: reserved with so many bytes, and nothing is behind them, as the callers say.
            unsafe { sys::cuMemAddressFree(at, bytes) }.result()
        };
        if self.device.driver().relaxed("cuMemAddressFree", free).is_err() {
            self.astray.lock().push(Astray::Addresses(at, bytes));
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.astray.get_mut().is_empty() {
            let again = || {
                self.offer_again();
                Ok(())
            };
            // Where the device is gone, so is what it would not take back.
            let _ = self.device.driver().relaxed("cuMemRelease", again);
        }
    }
}

/// The calls that put memory behind addresses, as a refusal names them.
const PUTTING: &str = "cuMemCreate, cuMemMap or cuMemSetAccess";

impl CudaVmmAllocator {
    fn wait(&self, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        after.iter().try_for_each(|mark| self.device().clock().synchronize(*mark))
    }
}

fn reserve(device: &CudaDevice, bytes: usize) -> Result<sys::CUdeviceptr, DeviceError> {
    let mut at = 0;
    device.driver().relaxed("cuMemAddressReserve", || {
        // SAFETY: asks for addresses anywhere.
        unsafe { sys::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0) }.result()
    })?;
    Ok(at)
}

impl Source for Pages {
    const MEMORY: Memory = Memory::DEVICE;

    fn granule(&self) -> u64 {
        self.page
    }

    fn take(
        &self,
        device: &CudaDevice,
        bytes: usize,
        _on: &CudaStreamOf,
    ) -> Result<sys::CUdeviceptr, DeviceError> {
        let at = reserve(device, bytes)?;
        let put = || self.put_all(at, bytes as u64, bytes as u64);
        if let Err(refused) = device.driver().relaxed(PUTTING, put) {
            self.unreserve(at, bytes);
            return Err(refused);
        }
        Ok(at)
    }

    fn give(
        &self,
        device: &CudaDevice,
        block: &CudaBlock,
        after: &[MarkOf<CudaVmmAllocator>],
    ) -> Result<(), DeviceError> {
        // Unmapping waits for nothing.
        after.iter().try_for_each(|mark| device.clock().synchronize(*mark))?;
        let bytes = size(block.bytes)?;
        let range = block.at..block.at + block.bytes;
        device.driver().relaxed("cuMemUnmap", || self.take_all(range))?;
        self.unreserve(block.at, bytes);
        Ok(())
    }

    fn pages(memory: &CudaVmmAllocator) -> Option<PageCalls<CudaVmmAllocator>> {
        Some(PageCalls::of(memory))
    }
}

impl VirtualMemory for CudaVmmAllocator {
    fn page_bytes(&self) -> u64 {
        self.source().page
    }

    fn address_space(&self) -> u64 {
        let wanted = self.device().total_bytes().saturating_mul(ADDRESSES_PER_BYTE);
        wanted.next_multiple_of(self.page_bytes())
    }

    fn reserve(&self, bytes: u64) -> Result<CudaBlock, DeviceError> {
        let at = reserve(self.device(), size(bytes)?)?;
        Ok(CudaBlock { at, bytes, owner: self.owner() })
    }

    fn commit(&self, block: &CudaBlock, pages: Range<u64>) -> Result<(), DeviceError> {
        self.check(block, "cuMemMap of another allocator's addresses")?;
        let (at, bytes) = (block.at + pages.start, pages.end - pages.start);
        let (pages, page) = (self.source(), self.page_bytes());
        let put = || pages.put_all(at, bytes, page);
        self.device().driver().relaxed(PUTTING, put)?;
        let mut mapped = pages.mapped.lock();
        mapped.extend((at..at + bytes).step_by(usize::try_from(page).unwrap_or(usize::MAX)));
        Ok(())
    }

    fn decommit(
        &self,
        block: &CudaBlock,
        pages: Range<u64>,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        self.check(block, "cuMemUnmap of another allocator's addresses")?;
        self.wait(after)?;
        let range = block.at + pages.start..block.at + pages.end;
        self.device().driver().relaxed("cuMemUnmap", || self.source().take_all(range))
    }

    fn release(&self, block: CudaBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.check(&block, "cuMemAddressFree of another allocator's addresses")?;
        self.wait(after)?;
        let range = block.at..block.at + block.bytes;
        let take = || {
            self.source().offer_again();
            self.source().take_any(&range)
        };
        self.device().driver().relaxed("cuMemUnmap", take)?;
        self.source().unreserve(block.at, size(block.bytes)?);
        Ok(())
    }
}
