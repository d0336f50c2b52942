//! Page-locked host memory, which the device copies from and to without the CPU.
#![expect(unsafe_code, reason = "the driver is called through C, and memory comes as a pointer")]

use crate::block::Owner;
use crate::device::CudaDevice;
use crate::events::{CudaDriver, PoolStream, ViewStream};
use crate::forks::forked;
use crate::sizes::{GRANULE, size};
use crate::waiting::Waiting;
use cudarc::driver::{CudaStream, HostSlice, SyncOnDrop, result, sys};
use pool_core::port::{Lent, MarkOf, Memory, PageCalls, Request, Sliceable, WholeBlocks, Zeroing};
use pool_core::stream::{Mark, Timeline};
use pool_core::{DeviceAllocator, DeviceError, PooledBuffer, StreamClock, Why};
use std::alloc::{self, Layout};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Bytes that page-locked memory is aligned to: a page of the host.
const PAGE: usize = 4096;
/// Parts of it are aligned to [`GRANULE`].
const ALIGNMENT: u64 = GRANULE;

/// Host memory that the driver has page-locked, for all contexts, so that copies between it and a
/// device need no CPU. The CPU caches it (it is not write-combined), so the CPU reads it as fast as
/// any memory.
///
/// The CPU can touch it, so a buffer that a stream has used serves again only once a query has
/// found that use done. Page-locking takes milliseconds, and the system limits it. An
/// [`arena`](pool_core::PoolBuilder::arena) splits blocks to size, where powers of two waste up to
/// half.
///
/// ```
/// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
/// # double::stand_in(); // in the place of the driver
/// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
/// use bucketpool::{BucketPool, KIB};
/// use bucketpool::cuda::{CudaAllocator, CudaDevice, CudaPinnedAllocator, PinnedBytes};
///
/// let device = CudaDevice::new(0)?;
/// let stream = device.context().new_stream()?;
/// let on = device.stream(&stream)?;
/// let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
/// let vram = BucketPool::new(CudaAllocator::on(device));
///
/// let mut source = host.allocate(KIB)?;
/// source.bytes_mut()?.fill(7);
/// let target = vram.allocate_on(&on, KIB)?;
/// stream.memcpy_htod(&*source.read_on(&on)?, &mut &*target.on(&on)?)?;
/// drop(source); // its copy has not run yet, so the CPU gets another block
/// host.allocate(KIB)?;
/// assert_eq!(host.stats().misses, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CudaPinnedAllocator {
    device: CudaDevice,
    by: Locking,
    owner: Owner,
    /// Blocks that wait for the end of another library's capture.
    waiting: Waiting<PinnedBlock>,
}

/// The call that makes the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locking {
    /// The driver: `cuMemHostAlloc`.
    Driver,
    /// This program; the driver locks it: `cuMemHostRegister`.
    Registration,
}

/// A block of page-locked memory.
#[derive(Debug)]
pub struct PinnedBlock {
    at: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

// SAFETY: the memory behind the pointer has no other owner.
unsafe impl Send for PinnedBlock {}
// SAFETY: as above; a shared block does not touch the memory.
unsafe impl Sync for PinnedBlock {}

impl CudaPinnedAllocator {
    /// Creates an allocator of memory by `cuMemHostAlloc`.
    #[must_use]
    pub fn on(device: CudaDevice) -> Self {
        Self { device, by: Locking::Driver, owner: Owner::new(), waiting: Waiting::default() }
    }

    /// Creates an allocator of this program's memory, which `cuMemHostRegister` locks: for memory
    /// that must come from the program's own allocator.
    #[must_use]
    pub fn registered(device: CudaDevice) -> Self {
        Self { device, by: Locking::Registration, owner: Owner::new(), waiting: Waiting::default() }
    }

    /// Returns the device whose streams the memory is ordered with.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    fn take(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        match self.by {
            Locking::Driver => self.device.driver().relaxed("cuMemHostAlloc", || {
                // SAFETY: requests memory. It is not write-combined: the CPU may read it.
                let at = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) }?;
                NonNull::new(at.cast()).ok_or(NO_MEMORY)
            }),
            Locking::Registration => self.register(bytes),
        }
    }

    /// Gives a block back, which the callers have taken by value and drop if this succeeds.
    fn give(&self, block: &PinnedBlock, after: &[Mark]) -> Result<(), DeviceError> {
        after.iter().try_for_each(|mark| self.device.clock().synchronize(*mark))?;
        let (driver, at) = (self.device.driver(), block.at.as_ptr());
        match self.by {
            Locking::Driver => driver.relaxed("cuMemFreeHost", || {
                // SAFETY: only `allocate` makes blocks, and `free` takes them by value, so each is
                // freed once. The work that used the block is done, as just waited for.
                unsafe { result::free_host(at.cast()) }
            }),
            Locking::Registration => {
                driver.relaxed("cuMemHostUnregister", || {
                    // SAFETY: as above.
                    unsafe { sys::cuMemHostUnregister(at.cast()) }.result()
                })?;
                let layout = layout(block.bytes)?;
                // SAFETY: `register` allocated it with this layout, and it is unlocked.
                unsafe { alloc::dealloc(at, layout) };
                Ok(())
            }
        }
    }

    fn register(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        let layout = layout(bytes)?;
        // SAFETY: the layout has a size: sizes are rounded up to a granule.
        let at = NonNull::new(unsafe { alloc::alloc_zeroed(layout) });
        let at = at.ok_or(DeviceError::new(Why::OutOfMemory, "host memory to register"))?;
        let register = || {
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
            // SAFETY: the memory was just allocated, and stays until it is unregistered.
            unsafe { sys::cuMemHostRegister_v2(at.as_ptr().cast(), bytes, flags) }.result()
        };
        let registered = self.device.driver().relaxed("cuMemHostRegister", register);
        registered.inspect_err(|_| {
            // SAFETY: allocated above with this layout, and not registered.
            unsafe { alloc::dealloc(at.as_ptr(), layout) }
        })?;
        Ok(at)
    }
}

const NO_MEMORY: cudarc::driver::DriverError =
    cudarc::driver::DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);

fn layout(bytes: usize) -> Result<Layout, DeviceError> {
    let too_large = |_| DeviceError::new(Why::TooLarge, "host memory to register");
    Layout::from_size_align(bytes, PAGE).map_err(too_large)
}

impl DeviceAllocator for CudaPinnedAllocator {
    type Block = PinnedBlock;
    type View<'b> = PinnedRange<'b>;
    type Kind = ();
    type Clock = Timeline<CudaDriver>;
    const MEMORY: Memory = Memory { cpu_touches: true, zeroing: Zeroing::AtOnce, ..Memory::DEVICE };

    fn clock(&self) -> &Timeline<CudaDriver> {
        self.device.clock()
    }

    fn granule(&self) -> u64 {
        GRANULE
    }

    fn aligned(&self, _kind: (), alignment: u64) -> Result<(), DeviceError> {
        DeviceError::check_alignment(alignment, ALIGNMENT)
    }

    fn allocate(&self, request: Request<()>, _on: &PoolStream) -> Result<PinnedBlock, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "cuMemHostAlloc");
        let bytes = request.bytes.max(1).checked_next_multiple_of(GRANULE).ok_or(too_large)?;
        let bytes = size(bytes)?;
        forked().map_or(Ok(()), Err)?;
        let give = |block: &PinnedBlock, after: &[MarkOf<Self>]| self.give(block, after);
        self.waiting.free_done(self.clock(), give);
        let at = self.waiting.or_free_all(give, || self.take(bytes))?;
        Ok(PinnedBlock { at, bytes, owner: self.owner })
    }

    /// Waits for `after` on the host. The driver's call may wait for the device.
    fn free(&self, block: PinnedBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        if block.owner != self.owner {
            return Err(DeviceError::new(Why::Foreign, "free memory of another allocator"));
        }
        forked().map_or(Ok(()), Err)?;
        self.waiting.free(block, after, |block, after| self.give(block, after))
    }

    fn release_kept(&self) -> Result<(), DeviceError> {
        forked().map_or(Ok(()), Err)?;
        self.waiting.free_all(|block, after| self.give(block, after))
    }

    fn view<'b>(
        &'b self,
        block: &'b PinnedBlock,
        offset: u64,
        bytes: u64,
        on: &PoolStream,
    ) -> PinnedRange<'b> {
        let whole = 0..block.bytes as u64;
        let end = offset.checked_add(bytes).filter(|end| *end <= whole.end);
        let part = end.map_or(0..0, |end| offset..end);
        let inside = |bytes: u64| usize::try_from(bytes).unwrap_or(0);
        // SAFETY: the part lies inside the block, as just checked.
        let at = unsafe { block.at.add(inside(part.start)) };
        let bytes = inside(part.end - part.start);
        PinnedRange { at, bytes, lent: None, stream: on.raw().of_view(), block: PhantomData }
    }

    /// A copy that `to` does not cover panics: the CPU may have the bytes ([`PinnedBytes`]).
    fn lend(view: Self::View<'_>, to: Lent) -> Self::View<'_> {
        PinnedRange { lent: Some(to), ..view }
    }

    /// Zeroes by the CPU: a query has found all uses of a block done before it is handed out.
    fn zero(
        &self,
        block: &mut PinnedBlock,
        bytes: u64,
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        let part = 0..bytes.min(block.bytes as u64);
        // SAFETY: the block is borrowed alone.
        unsafe { self.zero_part(block, part, on) }
    }
}

impl Sliceable for CudaPinnedAllocator {
    fn pages(&self) -> Option<PageCalls<Self>> {
        None
    }

    unsafe fn zero_part(
        &self,
        block: &PinnedBlock,
        bytes: Range<u64>,
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        let part = self.view(block, bytes.start, bytes.end - bytes.start, on);
        // SAFETY: inside the block, as the view has checked; the caller guarantees that these bytes
        // have no other user.
        unsafe { part.at.write_bytes(0, part.bytes) };
        Ok(())
    }
}

impl WholeBlocks for CudaPinnedAllocator {}

impl Drop for CudaPinnedAllocator {
    fn drop(&mut self) {
        // In a forked child a thread that is not there may hold the lock.
        if forked().is_none() {
            // A block that still waits stays page-locked: no later call could free it.
            let _ = self.waiting.free_all(|block, after| self.give(block, after));
        }
    }
}

impl fmt::Debug for CudaPinnedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaPinnedAllocator")
            .field("device", &self.device)
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}

/// Access of the CPU to page-locked buffers.
pub trait PinnedBytes {
    /// Waits until every copy to the buffer is done, and returns the requested bytes. Copies from the
    /// buffer may go on, if they use it through [`PooledBuffer::read_on`].
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, KIB};
    /// use bucketpool::cuda::{CudaAllocator, CudaPinnedAllocator, PinnedBytes};
    ///
    /// # let vram = BucketPool::new(CudaAllocator::new(0)?);
    /// # let device = vram.allocator().device().clone();
    /// # let stream = device.context().new_stream()?;
    /// # let on = device.stream(&stream)?;
    /// # let host = BucketPool::new(CudaPinnedAllocator::on(device));
    /// let source = vram.allocate_on(&on, KIB)?;
    /// let mut target = host.allocate(KIB)?;
    /// # stream.memset_zeros(&mut &*source.on(&on)?)?;
    /// stream.memcpy_dtoh(&*source.read_on(&on)?, &mut &*target.on(&on)?)?;
    /// assert_eq!(target.bytes()?, [0; 1024]); // waits for the copy
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn bytes(&mut self) -> Result<&[u8], DeviceError>;

    /// Waits until every copy from or to the buffer is done, and returns the requested bytes, to
    /// write them.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    ///
    /// See [`CudaPinnedAllocator`] for an example.
    fn bytes_mut(&mut self) -> Result<&mut [u8], DeviceError>;
}

impl<A> PinnedBytes for PooledBuffer<A>
where
    A: for<'b> DeviceAllocator<View<'b> = PinnedRange<'b>>,
{
    fn bytes(&mut self) -> Result<&[u8], DeviceError> {
        let PinnedRange { at, bytes, .. } = self.read_on_cpu()?;
        // SAFETY: inside the block (`CudaPinnedAllocator::view`); the buffer is borrowed alone, no
        // stream is writing it any more, and none can be given work with it while it is borrowed;
        // the memory is the driver's, or was zeroed when it was allocated.
        Ok(unsafe { slice::from_raw_parts(at.as_ptr(), bytes) })
    }

    fn bytes_mut(&mut self) -> Result<&mut [u8], DeviceError> {
        let PinnedRange { at, bytes, .. } = self.on_cpu()?;
        // SAFETY: as above, and no stream is reading it any more.
        Ok(unsafe { slice::from_raw_parts_mut(at.as_ptr(), bytes) })
    }
}

/// A range of page-locked memory in use on a stream. cudarc's copies on that stream take it:
/// `stream.memcpy_htod(&*used, &mut device)`, and `stream.memcpy_dtoh(&device, &mut &*used)`.
///
/// The CPU does not read or write through it, since a copy may be going on;
/// [`PinnedBytes::bytes`](crate::PinnedBytes::bytes) waits for the copies.
///
/// # Panics
///
/// A copy into a range from [`PooledBuffer::read_on`] panics, because the CPU may read the bytes
/// meanwhile; so does each copy of a range from [`PooledBuffer::on_cpu`] or `read_on_cpu`.
#[derive(Debug)]
pub struct PinnedRange<'b> {
    at: NonNull<u8>,
    bytes: usize,
    /// What it was lent for; `None` for all work on its stream.
    lent: Option<Lent>,
    stream: ViewStream,
    block: PhantomData<&'b PinnedBlock>,
}

// SAFETY: as for the block that it borrows.
unsafe impl Send for PinnedRange<'_> {}
// SAFETY: as above.
unsafe impl Sync for PinnedRange<'_> {}

impl PinnedRange<'_> {
    /// Returns the address of the bytes. It is the same on the device; for memory that the program
    /// has registered only where the device can use the host's pointer
    /// (`CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`).
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.at
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// cudarc takes no error here, and the copy must not begin.
    fn check_write(&self) {
        self.check_read();
        let is_to_read = self.lent == Some(Lent::ToRead);
        assert!(!is_to_read, "a copy into page-locked memory that `read_on` lent; take `on`");
    }

    fn check_read(&self) {
        let is_to_cpu = self.lent == Some(Lent::ToCpu);
        assert!(
            !is_to_cpu,
            "a copy of page-locked memory that the CPU has; take `on` or `read_on`"
        );
    }

    /// Orders a call of cudarc's on another stream than the use's, which is slow. cudarc takes no
    /// error here.
    fn guard<'a>(&'a self, on: &'a CudaStream) -> SyncOnDrop<'a> {
        crate::block::guard(&self.stream, on)
    }
}

impl HostSlice<u8> for PinnedRange<'_> {
    fn len(&self) -> usize {
        self.bytes
    }

    unsafe fn stream_synced_slice<'a>(
        &'a self,
        stream: &'a CudaStream,
    ) -> (&'a [u8], SyncOnDrop<'a>) {
        self.check_read();
        // SAFETY: inside the block (`CudaPinnedAllocator::view`), which is borrowed; the memory is
        // the driver's, or was zeroed when it was allocated. The caller gives it to `stream` only.
        (unsafe { slice::from_raw_parts(self.at.as_ptr(), self.bytes) }, self.guard(stream))
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [u8], SyncOnDrop<'a>) {
        self.check_write();
        // SAFETY: as above.
        (unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }, self.guard(stream))
    }
}

// What is written is given as `&mut &*used`, as for `CudaView`.
impl HostSlice<u8> for &PinnedRange<'_> {
    fn len(&self) -> usize {
        self.bytes
    }

    unsafe fn stream_synced_slice<'a>(
        &'a self,
        stream: &'a CudaStream,
    ) -> (&'a [u8], SyncOnDrop<'a>) {
        // SAFETY: as above.
        unsafe { PinnedRange::stream_synced_slice(self, stream) }
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [u8], SyncOnDrop<'a>) {
        self.check_write();
        // SAFETY: the bytes are not part of the range but what it points to; the caller gives them
        // to `stream` only, whose copies run one after the other.
        (unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }, self.guard(stream))
    }
}
