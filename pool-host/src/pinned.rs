//! Device allocator for locked host memory, which is never swapped out.
#![expect(unsafe_code, reason = "memory is reached through pointers")]

use crate::fork::ProcessClock;
use crate::virtual_memory as pages;
use crate::{system, virtual_memory};
use pool_core::port::{HostMemory, MarkOf, Memory, PageCalls, Request, Sliceable, WholeBlocks};
use pool_core::{DeviceAllocator, DeviceError, StreamOf, Transfer, Why};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Behaviour when the system refuses to lock more memory (`RLIMIT_MEMLOCK`), or when a request is
/// larger than the available memory (`MemAvailable`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLockLimit {
    /// Refuse the request with an error that names the limit and its value.
    #[default]
    Refuse,
    /// Return an unlocked block, for which [`PinnedView::is_locked`] returns false.
    Unlocked,
}

/// Device allocator for host memory that is mapped and locked by `mlock`, so that it is never
/// swapped out and never page-faults.
///
/// A forked child has a copy of the live buffers, as of all memory. The system does not lock that
/// copy, so every call to a pool of the parent returns [`Why::Forked`] in the child. The child must
/// create its own allocator. A program that keeps secrets here must not fork while they are live,
/// or the child must overwrite them.
///
/// This is not CUDA's pinned memory: the driver does not know these pages, and a copy to a GPU is
/// no faster than from any other page. Use `CudaPinnedAllocator` for that.
///
/// Blocks are whole pages, also under an arena. A pool never mixes locked and unlocked memory,
/// unless [`AtLockLimit::Unlocked`] allows it.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod host { pub use pool_host::*; } }
/// use bucketpool::{ArenaConfig, BucketPool, KIB};
/// use bucketpool::host::PinnedAllocator;
///
/// let config = ArenaConfig::segments(64 * KIB);
/// let pool = BucketPool::builder(PinnedAllocator::new()).arena(config).build();
/// let mut key = pool.allocate(32)?;
/// key.fill(7);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PinnedAllocator {
    clock: ProcessClock,
    at_limit: AtLockLimit,
}

/// A block of locked memory, or of unlocked memory under [`AtLockLimit::Unlocked`].
#[derive(Debug)]
pub struct PinnedBlock {
    base: NonNull<u8>,
    bytes: usize,
    locked: bool,
}

/// A range of a [`PinnedBlock`].
#[derive(Debug)]
pub struct PinnedView<'b> {
    at: NonNull<u8>,
    bytes: usize,
    locked: bool,
    block: PhantomData<&'b PinnedBlock>,
}

impl PinnedAllocator {
    /// Creates an allocator for this process that refuses requests that it cannot lock.
    #[must_use]
    pub fn new() -> Self {
        Self::at_limit(AtLockLimit::Refuse)
    }

    /// Creates an allocator for this process with the given behaviour at the system's limit.
    #[must_use]
    pub fn at_limit(at_limit: AtLockLimit) -> Self {
        Self { clock: ProcessClock::new(), at_limit }
    }
}

impl Default for PinnedAllocator {
    fn default() -> Self {
        Self::new()
    }
}

impl PinnedView<'_> {
    /// Returns a pointer to the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Returns whether the bytes are locked. False only under [`AtLockLimit::Unlocked`].
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked
    }
}

impl DeviceAllocator for PinnedAllocator {
    type Block = PinnedBlock;
    type View<'b> = PinnedView<'b>;
    type Kind = ();
    type Clock = ProcessClock;
    const MEMORY: Memory = Memory { is_cheap: false, ..Memory::HOST };

    #[inline]
    fn clock(&self) -> &ProcessClock {
        &self.clock
    }

    fn granule(&self) -> u64 {
        system::page_bytes()
    }

    /// Accepts any power of two up to a page, because blocks begin at pages.
    fn aligned(&self, (): (), alignment: u64) -> Result<(), DeviceError> {
        DeviceError::check_alignment(alignment, system::page_bytes())
    }

    fn alignment_of(&self, (): ()) -> u64 {
        system::page_bytes()
    }

    fn total_bytes(&self) -> Option<u64> {
        system::physical_bytes()
    }

    fn allocate(&self, request: Request<()>, _on: &()) -> Result<PinnedBlock, DeviceError> {
        // Without this check, a process that may lock without limit could make the system kill
        // programs for want of memory.
        let available = system::available_bytes().filter(|most| request.bytes > *most);
        if let (Some(available), AtLockLimit::Refuse) = (available, self.at_limit) {
            let available = i64::try_from(available).unwrap_or(i64::MAX);
            let refused = DeviceError::new(Why::OutOfMemory, "lock more than MemAvailable");
            return Err(refused.expected(available));
        }
        let (base, bytes) = virtual_memory::map(request.bytes.max(1))?;
        let block = PinnedBlock { base, bytes, locked: false };
        if available.is_some() {
            return Ok(block);
        }
        // SAFETY: `map` just returned this base for this size.
        let locked = unsafe { pages::lock(base, bytes) };
        match locked {
            Ok(()) => Ok(PinnedBlock { locked: true, ..block }),
            Err(error)
                if matches!(error.why, Why::Limit(_)) && self.at_limit == AtLockLimit::Unlocked =>
            {
                Ok(block)
            }
            Err(error) => {
                // If unmapping fails too, the memory is lost. The first error is the useful one.
                let _ = self.free(block, &[]);
                Err(error)
            }
        }
    }

    fn free(&self, block: PinnedBlock, _after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        // SAFETY: `allocate` got this base and size from `map`. The block is moved in here, so no
        // safe code uses the range again. Unmapping also unlocks.
        unsafe { pages::unmap(block.base, block.bytes) }
    }

    #[inline]
    fn view<'b>(
        &'b self,
        block: &'b PinnedBlock,
        offset: u64,
        bytes: u64,
        _on: &StreamOf<Self>,
    ) -> PinnedView<'b> {
        // An access outside the block would be undefined behaviour, so a range outside becomes
        // empty.
        let end = offset.checked_add(bytes);
        let range = pages::inside(block.bytes, &(offset..end.unwrap_or(u64::MAX)), "view");
        let (offset, bytes) = range.unwrap_or((0, 0));
        // SAFETY: `inside` checked that the offset is at most the size of the mapping, or it is 0.
        let at = unsafe { block.base.add(offset) };
        PinnedView { at, bytes, locked: block.locked, block: PhantomData }
    }

    fn zero(&self, block: &mut PinnedBlock, bytes: u64, on: &()) -> Result<(), DeviceError> {
        let bytes = bytes.min(block.bytes as u64);
        // SAFETY: `&mut` excludes other users of the block.
        unsafe { self.zero_part(block, 0..bytes, on) }
    }
}

impl WholeBlocks for PinnedAllocator {}

impl Sliceable for PinnedAllocator {
    fn pages(&self) -> Option<PageCalls<Self>> {
        None
    }

    unsafe fn zero_part(
        &self,
        block: &PinnedBlock,
        bytes: Range<u64>,
        on: &(),
    ) -> Result<(), DeviceError> {
        let view = self.view(block, bytes.start, bytes.end.saturating_sub(bytes.start), on);
        // SAFETY: `view` returns a range inside the block, and the caller of `zero_part`
        // guarantees that no other code uses these bytes meanwhile.
        unsafe { view.at.write_bytes(0, view.bytes) };
        Ok(())
    }
}

// SAFETY: blocks are anonymous mappings, which read as zeroes, so all bytes are valid and
// initialised. `view` returns at most the requested bytes, at `base + offset`. `free` takes the
// block by value, so it is unmapped once. The mapping is private: a forked child has its own copy.
unsafe impl HostMemory for PinnedAllocator {
    #[inline]
    fn bytes(view: &PinnedView<'_>) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(view.at, view.bytes)
    }
}

impl Transfer for PinnedAllocator {
    unsafe fn write(
        &self,
        to: &PinnedView<'_>,
        offset: u64,
        from: &[u8],
        _on: &(),
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees what `copy_in` asks for.
        unsafe { Self::copy_in(to, offset, from) }
    }

    unsafe fn read(
        &self,
        from: &PinnedView<'_>,
        offset: u64,
        to: &mut [u8],
        _on: &(),
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees what `copy_out` asks for.
        unsafe { Self::copy_out(from, offset, to) }
    }
}

// SAFETY: the block owns its memory, and the pointer is used only through the block.
unsafe impl Send for PinnedBlock {}
// SAFETY: `&PinnedBlock` gives out only pointers; the code that dereferences one must justify it.
unsafe impl Sync for PinnedBlock {}
