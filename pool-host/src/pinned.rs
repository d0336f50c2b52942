//! Host memory that is never swapped.
#![expect(unsafe_code, reason = "memory is reached through pointers")]

use crate::fork::ProcessClock;
use crate::virtual_memory as pages;
use crate::{system, virtual_memory};
use pool_core::{
    DeviceAllocator, DeviceError, HostMemory, MarkOf, Memory, PageCalls, Request, Sliceable,
    StreamOf, WholeBlocks, Why,
};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// What happens when the system will not lock more memory (`RLIMIT_MEMLOCK`), or a request is for
/// more than there is (`MemAvailable`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLockLimit {
    /// The request is refused, with an error that names the limit and its value.
    #[default]
    Refuse,
    /// The block is not locked, and says so: [`PinnedView::is_locked`].
    Unlocked,
}

/// Host memory that is never swapped out and never page-faults: mapped, and locked by `mlock`.
///
/// A forked child has a copy of the buffers that were live, as of all memory. The system does not
/// lock that copy, so every call to a pool of the parent says [`Why::Forked`] in the child, which
/// makes its own allocator. A program that keeps secrets here must not fork while they are live, or
/// the child must overwrite them.
///
/// This is not CUDA's pinned memory: a driver does not know of it, and a copy from here to a GPU is
/// no faster than one from any other page. For that there is `CudaPinnedAllocator`.
///
/// Blocks are whole pages, over an arena too. Locked and unlocked memory
/// never meet in one pool, unless [`AtLockLimit::Unlocked`] asks for it.
///
/// ```
/// use pool_core::{ArenaConfig, BucketPool, KIB};
/// use pool_host::PinnedAllocator;
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

/// A block of pinned memory.
#[derive(Debug)]
pub struct PinnedBlock {
    base: NonNull<u8>,
    bytes: usize,
    locked: bool,
}

/// A range of pinned memory.
#[derive(Debug)]
pub struct PinnedView<'b> {
    at: NonNull<u8>,
    bytes: usize,
    locked: bool,
    block: PhantomData<&'b PinnedBlock>,
}

impl PinnedAllocator {
    /// An allocator of this process that refuses what cannot be locked.
    #[must_use]
    pub fn new() -> Self {
        Self::at_limit(AtLockLimit::Refuse)
    }

    /// An allocator of this process, with a choice of what happens at the system's limit.
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
    /// Where the bytes begin.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// How many bytes there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Whether they are locked; false only under [`AtLockLimit::Unlocked`].
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
    const MEMORY: Memory = Memory::HOST;

    #[inline]
    fn clock(&self) -> &ProcessClock {
        &self.clock
    }

    fn granule(&self) -> u64 {
        system::page_bytes()
    }

    /// Blocks begin at pages, so up to a page any alignment is there already.
    fn aligned(&self, (): (), alignment: u64) -> Result<(), DeviceError> {
        if alignment.is_power_of_two() && alignment <= system::page_bytes() {
            return Ok(());
        }
        Err(DeviceError::new(
            Why::Unsupported,
            "alignment of pinned memory: a power of two, up to a page",
            0,
        ))
    }

    fn alignment_of(&self, (): ()) -> u64 {
        system::page_bytes()
    }

    fn total_bytes(&self) -> Option<u64> {
        system::physical_bytes()
    }

    fn allocate(&self, request: Request<()>, _on: &()) -> Result<PinnedBlock, DeviceError> {
        // Somebody whom no limit binds would have the system kill programs instead.
        let available = system::available_bytes().filter(|most| request.bytes > *most);
        if let (Some(available), AtLockLimit::Refuse) = (available, self.at_limit) {
            let code = i64::try_from(available).unwrap_or(i64::MAX);
            let call = "lock more than there is: MemAvailable in bytes";
            return Err(DeviceError::new(Why::OutOfMemory, call, code));
        }
        let (base, bytes) = virtual_memory::map(request.bytes.max(1))?;
        let block = PinnedBlock { base, bytes, locked: false };
        if available.is_some() {
            return Ok(block);
        }
        // SAFETY: just mapped, with this size.
        let locked = unsafe { pages::lock(base, bytes) };
        match locked {
            Ok(()) => Ok(PinnedBlock { locked: true, ..block }),
            Err(error) if error.why == Why::Limit && self.at_limit == AtLockLimit::Unlocked => {
                Ok(block)
            }
            Err(error) => {
                // What cannot be unmapped is lost; the first error is the one to tell.
                let _ = self.free(block, &[]);
                Err(error)
            }
        }
    }

    fn free(&self, block: PinnedBlock, _after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        // SAFETY: `allocate` mapped it with this base and size, and it is moved in here. Unmapping
        // unlocks.
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
        // Straying would be undefined behaviour, so a range outside becomes an empty one.
        let end = offset.checked_add(bytes);
        let range = pages::inside(block.bytes, &(offset..end.unwrap_or(u64::MAX)), "view");
        let (offset, bytes) = range.unwrap_or((0, 0));
        // SAFETY: the offset is at most the size of the block, as just checked.
        let at = unsafe { block.base.add(offset) };
        PinnedView { at, bytes, locked: block.locked, block: PhantomData }
    }

    fn zero(&self, block: &mut PinnedBlock, bytes: u64, on: &()) -> Result<(), DeviceError> {
        let bytes = bytes.min(block.bytes as u64);
        // SAFETY: the block is borrowed alone.
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
        // SAFETY: the view lies inside the block, and the caller vouches that nobody else uses
        // these bytes.
        unsafe { view.at.write_bytes(0, view.bytes) };
        Ok(())
    }
}

// SAFETY: blocks are mapped pages, which read as zeroes, so all bytes are valid and initialised,
// and each is unmapped once, in `free`.
unsafe impl HostMemory for PinnedAllocator {
    #[inline]
    fn bytes(view: &PinnedView<'_>) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(view.at, view.bytes)
    }
}

// SAFETY: a block owns its memory; the pointer is only used through it.
unsafe impl Send for PinnedBlock {}
// SAFETY: a shared block only lends views, which are pointers.
unsafe impl Sync for PinnedBlock {}
