//! Blocks from the program's global allocator.
#![expect(unsafe_code, reason = "the global allocator is called through pointers")]

use crate::system;
use crate::virtual_memory as pages;
use pool_core::{
    DeviceAllocator, DeviceError, HostMemory, Immediate, MarkOf, Memory, PageCalls, Request,
    Sliceable, StreamOf, VirtualMemory, WholeBlocks, Why,
};
use std::alloc::{self, Layout};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Host memory from the program's global allocator, at any alignment.
///
/// Fresh blocks read as zeroes: a buffer derefs to bytes, and bytes that nobody wrote may not be
/// read. Large blocks are pages fresh from the system, which are zero already and are not touched
/// here: the request is made at the allocator's own alignment, with room to align within, since the
/// standard library clears by hand what is aligned to more.
///
/// ```
/// use pool_core::BucketPool;
/// use pool_host::HostAllocator;
///
/// let pool = BucketPool::new(HostAllocator::new());
/// let mut buffer = pool.allocate(1000)?;
/// buffer.fill(7);
/// assert_eq!(buffer[999], 7);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAllocator {
    clock: Immediate,
}

/// What a host block is aligned to, as a power of two of bytes. 64, a cache line, by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alignment(u32);

/// Up to this alignment `alloc_zeroed` is `calloc` (library/std/src/sys/alloc, `MIN_ALIGN` on
/// 64-bit machines).
const NATURAL: usize = 16;

/// A block of host memory. Small, since it is moved on each hit: what can be computed is.
#[derive(Debug)]
pub struct HostBlock {
    /// What was allocated. The aligned bytes begin here or a little later.
    base: NonNull<u8>,
    /// How many bytes may be used.
    bytes: usize,
    alignment: Alignment,
    /// Whether these are addresses from [`VirtualMemory::reserve`], which go back another way.
    mapped: bool,
}

impl HostBlock {
    /// Where the aligned bytes begin.
    #[inline]
    fn start(&self) -> NonNull<u8> {
        let skipped = self.base.as_ptr().addr().wrapping_neg() & (self.alignment.0 as usize - 1);
        // SAFETY: less than the alignment, and so many bytes are allocated beside `bytes`
        // (`layout`); nothing is skipped at the natural alignment or below.
        unsafe { self.base.add(skipped) }
    }

    /// What a block of so many bytes is allocated as: with room to align within.
    fn layout(bytes: usize, alignment: Alignment) -> Option<Layout> {
        let alignment = alignment.0 as usize;
        let room = if alignment > NATURAL { alignment } else { 0 };
        Layout::from_size_align(bytes.checked_add(room)?, NATURAL).ok()
    }
}

/// A range of host memory.
#[derive(Debug)]
pub struct HostView<'b> {
    at: NonNull<u8>,
    bytes: usize,
    block: PhantomData<&'b HostBlock>,
}

impl HostAllocator {
    /// Takes nothing until it is asked.
    #[must_use]
    pub const fn new() -> Self {
        Self { clock: Immediate }
    }
}

impl Default for Alignment {
    fn default() -> Self {
        Self(64)
    }
}

impl HostView<'_> {
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
}

impl DeviceAllocator for HostAllocator {
    type Block = HostBlock;
    type View<'b> = HostView<'b>;
    type Kind = Alignment;
    type Clock = Immediate;
    const MEMORY: Memory = Memory::HOST;

    #[inline]
    fn clock(&self) -> &Immediate {
        &self.clock
    }

    fn aligned(&self, kind: Alignment, alignment: u64) -> Result<Alignment, DeviceError> {
        let refused = DeviceError::new(Why::Unsupported, "alignment of host memory", 0);
        match u32::try_from(alignment) {
            Ok(alignment) if alignment.is_power_of_two() => Ok(Alignment(alignment.max(kind.0))),
            _ => Err(refused),
        }
    }

    fn allocate(&self, request: Request<Alignment>, _on: &()) -> Result<HostBlock, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "alloc", 0);
        let bytes = usize::try_from(request.bytes.max(1)).map_err(|_| too_large)?;
        let layout = HostBlock::layout(bytes, request.kind).ok_or(too_large)?;
        // SAFETY: the layout's size is at least 1.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(DeviceError::new(Why::OutOfMemory, "alloc", 0))?;
        Ok(HostBlock { base, bytes, alignment: request.kind, mapped: false })
    }

    fn free(&self, block: HostBlock, _after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        if block.mapped {
            // SAFETY: `reserve` made it with this base and size, and it is moved in here.
            return unsafe { pages::unmap(block.base, block.bytes) };
        }
        if let Some(layout) = HostBlock::layout(block.bytes, block.alignment) {
            // SAFETY: a block that is not mapped is made in `allocate` only, with this very
            // layout, owns its memory, and is moved in here. Which `HostAllocator` made it does
            // not matter: they all call the global allocator.
            unsafe { alloc::dealloc(block.base.as_ptr(), layout) };
        }
        Ok(())
    }

    fn alignment_of(&self, kind: Alignment) -> u64 {
        kind.0.into()
    }

    fn total_bytes(&self) -> Option<u64> {
        system::physical_bytes()
    }

    #[inline]
    fn view<'b>(
        &'b self,
        block: &'b HostBlock,
        offset: u64,
        bytes: u64,
        _on: &StreamOf<Self>,
    ) -> HostView<'b> {
        let all = block.bytes as u64;
        // Straying would be undefined behaviour, so a range outside becomes an empty one.
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= all);
        let (offset, bytes) = if inside { (offset, bytes) } else { (0, 0) };
        #[expect(clippy::cast_possible_truncation, reason = "at most the size of the block")]
        let (offset, bytes) = (offset as usize, bytes as usize);
        // SAFETY: the offset is at most the size of the block, as just checked.
        let at = unsafe { block.start().add(offset) };
        HostView { at, bytes, block: PhantomData }
    }

    fn zero(&self, block: &mut HostBlock, bytes: u64, _on: &()) -> Result<(), DeviceError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(block.bytes);
        // SAFETY: not more than the block holds, and the block is borrowed alone.
        unsafe { block.start().write_bytes(0, bytes) };
        Ok(())
    }
}

impl WholeBlocks for HostAllocator {}

impl Sliceable for HostAllocator {
    fn pages(&self) -> Option<PageCalls<Self>> {
        Some(PageCalls::of(self))
    }

    unsafe fn zero_part(
        &self,
        block: &HostBlock,
        bytes: Range<u64>,
        on: &(),
    ) -> Result<(), DeviceError> {
        let view = self.view(block, bytes.start, bytes.end - bytes.start, on);
        // SAFETY: the view lies inside the block, and the caller vouches that nobody else uses
        // these bytes.
        unsafe { view.at.write_bytes(0, view.bytes) };
        Ok(())
    }
}

/// Addresses from `mmap`, readable and writable at once; pages come when they are first written, so
/// committing is a matter of the arena's books. Taking memory back is `MADV_DONTNEED`.
impl VirtualMemory for HostAllocator {
    fn page_bytes(&self) -> u64 {
        system::page_bytes()
    }

    /// Twice what the machine has.
    fn address_space(&self) -> u64 {
        system::physical_bytes().map_or(1 << 36, |bytes| 2 * bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<HostBlock, DeviceError> {
        let (base, bytes) = pages::map(bytes)?;
        Ok(HostBlock { base, bytes, alignment: Alignment::default(), mapped: true })
    }

    fn commit(&self, block: &HostBlock, pages: Range<u64>) -> Result<(), DeviceError> {
        pages::inside(block.bytes, &pages, "commit").map(|_| ())
    }

    fn decommit(
        &self,
        block: &HostBlock,
        pages: Range<u64>,
        _after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        let (offset, bytes) = pages::inside(block.bytes, &pages, "madvise")?;
        if !block.mapped {
            return Err(DeviceError::new(Why::Foreign, "madvise", 0));
        }
        // SAFETY: the pages lie inside the mapping, as just checked.
        let start = unsafe { block.base.add(offset) };
        // SAFETY: as above. What they hold is lost and reads as zeroes from here on, which is
        // initialised memory; that nobody uses them is what the arena promises.
        unsafe { pages::forget(start, bytes) }
    }

    fn release(&self, block: HostBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.free(block, after)
    }
}

// SAFETY: blocks come zeroed from the global allocator, so all bytes are valid and initialised, and
// each is given back once, in `free`.
unsafe impl HostMemory for HostAllocator {
    #[inline]
    fn bytes(view: &HostView<'_>) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(view.at, view.bytes)
    }
}

// SAFETY: a block owns its memory; the pointer is only used through it.
unsafe impl Send for HostBlock {}
// SAFETY: a shared block only lends views, which are pointers.
unsafe impl Sync for HostBlock {}
