//! Device memory: the code that the three allocators of VRAM share.
#![expect(unsafe_code, reason = "the driver is called through C")]

use crate::block::{CudaBlock, CudaView, Owner};
use crate::device::CudaDevice;
use crate::events::{CudaDriver, PoolStream};
use crate::forks::forked;
use crate::pinned::CudaPinnedAllocator;
use crate::sizes::{GRANULE, size};
use crate::waiting::Waiting;
use cudarc::driver::{result, sys};
use parking_lot::{Condvar, Mutex};
use pool_core::port::{MarkOf, Memory, PageCalls, Request, Sliceable, WholeBlocks};
use pool_core::stream::{Mark, Timeline};
use pool_core::{BucketPool, DeviceAllocator, DeviceError, MIB, StreamClock, Why};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

/// Bytes that device memory is aligned to (CUDA C Programming Guide, "Device Memory Accesses").
const ALIGNMENT: u64 = 256;

/// Bytes of idle page-locked memory that an allocator keeps for copies from the device. Copies to it
/// keep what they may have in flight, since a chunk that was evicted would be locked anew.
const STAGING_KEPT: u64 = 64 * MIB;
/// Bytes of page-locked memory that copies to the device may have in flight.
const IN_FLIGHT: u64 = 256 * MIB;

/// The driver calls of one kind of device memory. Its module is private: only this crate implements
/// it.
pub trait Source: Send + Sync + Sized + 'static {
    /// Properties of this memory.
    const MEMORY: Memory;

    /// Returns the bytes that sizes are multiples of.
    fn granule(&self) -> u64 {
        GRANULE
    }

    /// Takes memory, of a multiple of a granule, for work on `on`.
    ///
    /// # Errors
    ///
    /// The driver's refusal; nothing was taken then.
    fn take(
        &self,
        device: &CudaDevice,
        bytes: usize,
        on: &PoolStream,
    ) -> Result<sys::CUdeviceptr, DeviceError>;

    /// Gives memory back, after the work before `after`.
    ///
    /// # Errors
    ///
    /// The driver's refusal; the memory is lost then.
    fn give(
        &self,
        device: &CudaDevice,
        block: &CudaBlock,
        after: &[MarkOf<CudaMemory<Self>>],
    ) -> Result<(), DeviceError>;

    /// Returns the bytes of device memory behind a block. Addresses need not have any.
    fn held_bytes(&self, block: &CudaBlock) -> u64 {
        block.bytes
    }

    /// Returns the bytes of memory that it could not give back yet, and will offer again.
    fn kept_bytes(&self) -> u64 {
        0
    }

    /// Gives back what it keeps for its next calls.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    fn release_kept(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Gives the device what the driver keeps of freed memory.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    fn give_all_back(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns the calls of virtual memory, for memory that has them.
    fn pages(_memory: &CudaMemory<Self>) -> Option<PageCalls<CudaMemory<Self>>> {
        None
    }
}

/// Memory whose blocks the driver hands out and takes back whole.
pub trait Whole: Source {}

impl<S: Whole> WholeBlocks for CudaMemory<S> {}

/// An allocator of the memory of one GPU: [`CudaAllocator`](crate::CudaAllocator),
/// [`CudaAsyncAllocator`](crate::CudaAsyncAllocator) or
/// [`CudaVmmAllocator`](crate::CudaVmmAllocator).
pub struct CudaMemory<S: Source> {
    device: CudaDevice,
    source: S,
    owner: Owner,
    /// Blocks that wait for the end of a capture. An allocation frees some of those whose work is
    /// done. [`DeviceAllocator::release_kept`], and an allocation for which the device has no
    /// memory, free all.
    waiting: Waiting<CudaBlock>,
    /// Page-locked memory for copies that the host does not wait for, to the device and from it; made
    /// by the first of them. [`DeviceAllocator::release_kept`] gives back what no copy to come has,
    /// after the copies.
    for_writes: OnceLock<BucketPool<CudaPinnedAllocator>>,
    for_reads: OnceLock<BucketPool<CudaPinnedAllocator>>,
    /// The copies to the device that are in flight.
    writes: Mutex<Writes>,
    /// Signalled when a copy has been given to its stream, or was not.
    has_begun: Condvar,
}

/// Copies to the device in flight.
#[derive(Default)]
struct Writes {
    /// Bytes of those that are not given to their streams yet.
    beginning: u64,
    /// Those that are, oldest first, by their bytes.
    given: VecDeque<(u64, Mark)>,
}

/// A copy to the device that is not given to its stream yet.
pub(crate) struct Beginning<'m, S: Source> {
    memory: &'m CudaMemory<S>,
    bytes: u64,
}

impl<S: Source> Beginning<'_, S> {
    /// Notes that a stream has it.
    pub(crate) fn given(self, mark: Mark) {
        self.memory.writes.lock().given.push_back((self.bytes, mark));
    }
}

impl<S: Source> Drop for Beginning<'_, S> {
    fn drop(&mut self) {
        self.memory.writes.lock().beginning -= self.bytes;
        self.memory.has_begun.notify_all();
    }
}

impl<S: Source> CudaMemory<S> {
    pub(crate) fn from(device: CudaDevice, source: S) -> Self {
        let (owner, waiting) = (Owner::new(), Waiting::default());
        let (for_writes, for_reads) = (OnceLock::new(), OnceLock::new());
        let (writes, has_begun) = (Mutex::default(), Condvar::new());
        Self { device, source, owner, waiting, for_writes, for_reads, writes, has_begun }
    }

    /// Returns the page-locked memory for copies to the device.
    pub(crate) fn for_writes(&self) -> &BucketPool<CudaPinnedAllocator> {
        self.for_writes.get_or_init(|| self.staging(IN_FLIGHT))
    }

    /// Waits for the oldest copies to the device until `bytes` more, of a chunk, may be in flight.
    pub(crate) fn begin_write(&self, bytes: u64) -> Result<Beginning<'_, S>, DeviceError> {
        loop {
            let oldest = {
                let mut writes = self.writes.lock();
                let is_done = |(_, mark): &mut (u64, Mark)| self.clock().is_seen_done(*mark);
                while writes.given.pop_front_if(is_done).is_some() {}
                let given: u64 = writes.given.iter().map(|(bytes, _)| bytes).sum();
                if given + writes.beginning + bytes <= IN_FLIGHT {
                    writes.beginning += bytes;
                    return Ok(Beginning { memory: self, bytes });
                }
                let oldest = writes.given.front().map(|(_, mark)| *mark);
                if oldest.is_none() {
                    self.has_begun.wait(&mut writes);
                }
                oldest
            };
            let Some(oldest) = oldest else { continue };
            match self.clock().synchronize(oldest) {
                Ok(()) => {}
                // A capture of its stream has begun since: the copy cannot be waited for.
                Err(error) if error.why == Why::NotSubmitted => {
                    self.writes.lock().given.retain(|(_, mark)| *mark != oldest);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the page-locked memory for copies from the device, which the program has until it has
    /// taken the bytes.
    pub(crate) fn for_reads(&self) -> &BucketPool<CudaPinnedAllocator> {
        self.for_reads.get_or_init(|| self.staging(STAGING_KEPT))
    }

    fn staging(&self, kept: u64) -> BucketPool<CudaPinnedAllocator> {
        let memory = CudaPinnedAllocator::on(self.device.clone());
        BucketPool::builder(memory).cached_limit(kept).build()
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
        Err(DeviceError::new(Why::Foreign, call))
    }

    /// Returns the device of this memory.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Returns the bytes that pools gave back and the device still holds, because another library
    /// captures a stream that used them. Pools do not count them as reserved.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        if forked().is_some() {
            return 0;
        }
        let waiting = self.waiting.sum(|block| self.source.held_bytes(block));
        waiting + self.source.kept_bytes()
    }

    /// Returns the bytes of page-locked host memory that copies have, or that are kept for copies to come:
    /// of writes at most 256 MiB, and of reads 64 MiB besides what the program has not taken yet. Beside
    /// what pools have reserved. [`DeviceAllocator::release_kept`] gives back what no copy has, as a pool's
    /// [`clear`](pool_core::BucketPool::clear) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod double { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/double/stand_in.rs")); }
    /// # double::stand_in(); // in the place of the driver
    /// # mod bucketpool { pub use pool_core::*; pub mod cuda { pub use pool_cuda::*; } }
    /// use bucketpool::{BucketPool, MIB};
    /// use bucketpool::cuda::CudaAllocator;
    ///
    /// let pool = BucketPool::new(CudaAllocator::new(0)?);
    /// let on = pool.default_stream().clone();
    /// let mut buffer = pool.allocate(MIB)?;
    /// buffer.write_later(&on, 0, &vec![1; 1 << 20])?;
    /// assert_eq!(pool.allocator().staging_bytes(), MIB);
    /// pool.clear()?;
    /// assert_eq!(pool.allocator().staging_bytes(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn staging_bytes(&self) -> u64 {
        let staging = [&self.for_writes, &self.for_reads].into_iter().filter_map(OnceLock::get);
        staging.map(BucketPool::reserved_bytes).sum()
    }

    fn give(&self, block: &CudaBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.source.give(&self.device, block, after)
    }

    /// Frees a block of this allocator, or lets it wait for the end of another library's capture.
    pub(crate) fn free_or_wait(
        &self,
        block: CudaBlock,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        // In a forked child a thread that is not there may hold a lock.
        forked().map_or(Ok(()), Err)?;
        self.waiting.free(block, after, |block, after| self.give(block, after))
    }

    fn zero_at(
        &self,
        at: sys::CUdeviceptr,
        bytes: u64,
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        let (bytes, stream) = (size(bytes)?, on.raw().handle()?);
        let call = "cuMemsetD8Async on the legacy stream beside a capture";
        self.device.events().spare_captures(on.raw(), call)?;
        self.device.driver().call("cuMemsetD8Async", || {
            // SAFETY: the callers below guarantee that the bytes are in a block.
            unsafe { result::memset_d8_async(at, 0, bytes, stream) }
        })
    }
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

    fn free_bytes(&self) -> Option<u64> {
        self.device.free_bytes().ok()
    }

    fn aligned(&self, _kind: (), alignment: u64) -> Result<(), DeviceError> {
        DeviceError::check_alignment(alignment, ALIGNMENT)
    }

    fn allocate(&self, request: Request<()>, on: &PoolStream) -> Result<CudaBlock, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "round up to a granule");
        let bytes = request.bytes.max(1).checked_next_multiple_of(self.source.granule());
        let bytes = bytes.ok_or(too_large)?;
        forked().map_or(Ok(()), Err)?;
        let give = |block: &CudaBlock, after: &[MarkOf<Self>]| self.give(block, after);
        self.waiting.free_done(self.clock(), give);
        let take = || self.source.take(&self.device, size(bytes)?, on);
        let at = self.waiting.or_free_all(give, take)?;
        Ok(CudaBlock { at, bytes, owner: self.owner })
    }

    fn free(&self, block: CudaBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.check(&block, "free memory of another allocator")?;
        self.free_or_wait(block, after)
    }

    fn release_kept(&self) -> Result<(), DeviceError> {
        forked().map_or(Ok(()), Err)?;
        let freed = self.waiting.free_all(|block, after| self.give(block, after));
        let staging = [&self.for_writes, &self.for_reads].into_iter().filter_map(OnceLock::get);
        let cleared = staging.map(|staging| staging.clear().map_err(|e| e.figures().cause));
        let staged: Vec<_> = cleared.collect(); // both, also after a refusal
        let staged = staged.into_iter().try_for_each(|cleared| cleared.map(drop));
        freed.and(self.source.release_kept()).and(staged)
    }

    fn view<'b>(
        &'b self,
        block: &'b CudaBlock,
        offset: u64,
        bytes: u64,
        on: &PoolStream,
    ) -> CudaView<'b> {
        CudaView::new(block.at + offset, bytes, on.raw().of_view())
    }

    fn give_all_back(&self) -> Result<(), DeviceError> {
        self.source.give_all_back()
    }

    /// Zeroes at most the bytes of the block, which has no other user.
    fn zero(&self, block: &mut CudaBlock, bytes: u64, on: &PoolStream) -> Result<(), DeviceError> {
        self.zero_at(block.at, bytes.min(block.bytes), on)
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
        on: &PoolStream,
    ) -> Result<(), DeviceError> {
        self.zero_at(block.at + bytes.start, bytes.end - bytes.start, on)
    }
}

impl<S: Source> fmt::Debug for CudaMemory<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMemory")
            .field("device", &self.device)
            .field("waiting_bytes", &self.waiting_bytes())
            .field("staging_bytes", &self.staging_bytes())
            .finish_non_exhaustive()
    }
}

impl<S: Source> Drop for CudaMemory<S> {
    fn drop(&mut self) {
        // In a forked child a thread that is not there may hold the lock.
        if forked().is_none() {
            // A block that still waits is leaked: no later call could free it.
            let _ = self.waiting.free_all(|block, after| self.give(block, after));
        }
    }
}
