//! Device allocator for host memory: fresh blocks, and address ranges of `mmap` for arenas in pages.
#![expect(unsafe_code, reason = "memory is reached through pointers")]

use crate::fresh::{self, Fresh};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::system;
use crate::virtual_memory as pages;
use pool_core::port::{
    Handles, HostMemory, Immediate, MarkOf, Memory, PageCalls, Request, Sliceable, VirtualMemory,
    WholeBlocks,
};
use pool_core::{DeviceAllocator, DeviceError, StreamOf, Transfer, Why};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Host memory at any alignment.
///
/// Fresh blocks read as zeroes: a buffer derefs to bytes, and Rust does not allow reads of bytes
/// that were never written. Blocks of less than 16 KiB come from the program's global allocator, by
/// `alloc_zeroed`. Larger ones are pages of the system, which are zero already, so this allocator
/// does not touch them: up to 8 MiB from one page heap of the process, and from 8 MiB on as mappings,
/// which are unmapped once the pool frees the block. The heap keeps 32 MiB of freed blocks, and up to
/// 16 MiB more for each of eight parts between two looks, until a pool's `clear` or `trim`; it writes the
/// zeroes again where it reuses them. Under a sanitizer, Valgrind or Miri, and at alignments above 2 MiB,
/// the global allocator serves.
///
/// The heap reserves up to 1 TiB of addresses, so a program that lowers `RLIMIT_AS` does it before its
/// first block of 16 KiB; and one that limits its calls of the system (seccomp) calls
/// [`PageHeap::enter_sandbox`](crate::PageHeap::enter_sandbox) or
/// [`Tcache::enter_sandbox`](crate::Tcache::enter_sandbox) before: no mapping is made from then on.
/// Mappings that there are then need `munmap` or `madvise` to be freed.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod host { pub use pool_host::*; } }
/// use bucketpool::BucketPool;
/// use bucketpool::host::HostAllocator;
///
/// let pool = BucketPool::new(HostAllocator::new());
/// let mut buffer = pool.allocate(1000)?;
/// buffer.fill(7);
/// assert_eq!(buffer[999], 7);
///
/// // A buffer is `AsRef<[u8]>`, so it passes through tokio and hyper without a copy.
/// let bytes = bytes::Bytes::from_owner(buffer);
/// let part = bytes.slice(500..600);
/// drop((bytes, part));
/// assert_eq!(pool.allocated_bytes(), 0); // with the last clone it is free
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAllocator {
    clock: Immediate,
}

/// Alignment of a host block in bytes, a power of two. The default is 64, a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alignment(u32);

/// The largest block in bytes: the addresses that Linux gives a process that asks for no more.
const MAX_BYTES: u64 = 1 << 47;
/// The largest alignment in bytes.
const MAX_ALIGNMENT: u32 = 1 << 31;

/// A block of host memory.
///
/// The pool moves it on each hit, so it is small: it does not store what can be computed.
#[derive(Debug)]
pub struct HostBlock {
    /// Start of the allocation. The aligned bytes begin here or less than `alignment` bytes later.
    base: NonNull<u8>,
    /// Usable size in bytes.
    bytes: usize,
    alignment: Alignment,
    /// If [`VirtualMemory::reserve`] made the block, 1 and the number of [`DUMP_STEP`]s from its
    /// start on that core dumps have. Else [`BLOCK`] or [`MAPPING`].
    mapped: AtomicU32,
}

/// A block of the global allocator or the page heap.
const BLOCK: u32 = 0;
/// A block that is a mapping of [`fresh`].
const MAPPING: u32 = u32::MAX;

/// Bytes by which the part of a reserved block grows that core dumps have.
const DUMP_STEP: usize = 64 << 20;

impl HostBlock {
    /// Returns the address of the first aligned byte.
    #[inline]
    fn start(&self) -> NonNull<u8> {
        let skipped = self.base.as_ptr().addr().wrapping_neg() & (self.alignment.0 as usize - 1);
        // SAFETY: `skipped` is less than the alignment, and the aligned bytes lie inside the memory
        // from `fresh::allocate`. A reserved mapping is aligned to a page and `skipped` is 0, since
        // its alignment is the default.
        unsafe { self.base.add(skipped) }
    }

    /// Returns whether the block is reserved addresses.
    fn is_reserved(&self) -> bool {
        !matches!(self.mapped.load(Relaxed), BLOCK | MAPPING)
    }

    /// Puts the bytes before `end` into core dumps, if the block is reserved addresses.
    fn dump_up_to(&self, end: usize) {
        let steps = u32::try_from(end.div_ceil(DUMP_STEP)).unwrap_or(u32::MAX - 2);
        let before = self.mapped.load(Relaxed);
        if !self.is_reserved() || steps < before {
            return;
        }
        let start = (before - 1) as usize * DUMP_STEP;
        let end = (steps as usize).saturating_mul(DUMP_STEP).min(self.bytes);
        // SAFETY: `start` is less than `end`, since `steps` is at least `before`, and `end` is at
        // most the size of the block, which is one mapping of `pages::reserve`.
        let first = unsafe { self.base.add(start) };
        // SAFETY: as above, the range is inside that mapping.
        if unsafe { pages::dump(first, end - start) } {
            // Two threads that come here at once may both do it.
            self.mapped.fetch_max(steps + 1, Relaxed);
        }
    }
}

/// A range of a [`HostBlock`].
#[derive(Debug)]
pub struct HostView<'b> {
    at: NonNull<u8>,
    bytes: usize,
    block: PhantomData<&'b HostBlock>,
}

impl HostAllocator {
    /// Creates an allocator. It allocates no memory before the first request.
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
        DeviceError::check_alignment(alignment, MAX_ALIGNMENT.into())?;
        let alignment = u32::try_from(alignment).unwrap_or(MAX_ALIGNMENT);
        Ok(Alignment(alignment.max(kind.0)))
    }

    fn allocate(&self, request: Request<Alignment>, _on: &()) -> Result<HostBlock, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "alloc").code(MAX_BYTES.cast_signed());
        let bytes = Some(request.bytes.max(1)).filter(|bytes| *bytes <= MAX_BYTES);
        let bytes = usize::try_from(bytes.ok_or(too_large)?).map_err(|_| too_large)?;
        let fresh = fresh::allocate(bytes, request.kind.0 as usize);
        let Fresh { base, is_mapping } =
            fresh.ok_or(DeviceError::new(Why::OutOfMemory, "alloc"))?;
        let mapped = AtomicU32::new(if is_mapping { MAPPING } else { BLOCK });
        Ok(HostBlock { base, bytes, alignment: request.kind, mapped })
    }

    fn free(&self, block: HostBlock, _after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        if block.is_reserved() {
            // SAFETY: only `reserve` makes reserved blocks, which got this base and size from
            // `pages::reserve`. The block is moved in here, so no safe code uses the range again.
            return unsafe { pages::unmap(block.base, block.bytes) };
        }
        let is_mapping = block.mapped.load(Relaxed) == MAPPING;
        let fresh = Fresh { base: block.base, is_mapping };
        // SAFETY: only `allocate` makes blocks that are not reserved, and got this memory from
        // `fresh::allocate` for this size and alignment. The block owns it and is moved in here. Any
        // `HostAllocator` may free it, because all of them share `fresh`.
        unsafe { fresh::free(fresh, block.bytes, block.alignment.0 as usize) }
    }

    fn alignment_of(&self, kind: Alignment) -> u64 {
        kind.0.into()
    }

    fn total_bytes(&self) -> Option<u64> {
        system::physical_bytes()
    }

    fn prepare(&self) {
        fresh::prepare();
    }

    /// Gives the freed blocks to the system that the C library's heap and the page heap keep. Does
    /// nothing until at least 1 MiB was freed since the last time.
    fn release_kept(&self) -> Result<(), DeviceError> {
        fresh::release_kept();
        Ok(())
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
        // An access outside the block would be undefined behaviour, so a range outside becomes
        // empty.
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= all);
        let (offset, bytes) = if inside { (offset, bytes) } else { (0, 0) };
        #[expect(clippy::cast_possible_truncation, reason = "at most the size of the block")]
        let (offset, bytes) = (offset as usize, bytes as usize);
        // SAFETY: the offset is at most `block.bytes`, as checked above, and that many bytes
        // follow `start()` in the same allocation.
        let at = unsafe { block.start().add(offset) };
        HostView { at, bytes, block: PhantomData }
    }

    fn zero(&self, block: &mut HostBlock, bytes: u64, _on: &()) -> Result<(), DeviceError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(block.bytes);
        // SAFETY: `bytes` is at most `block.bytes`, and `&mut` excludes other users of the block.
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
        // SAFETY: `view` returns a range inside the block, and the caller of `zero_part`
        // guarantees that no other code uses these bytes meanwhile.
        unsafe { view.at.write_bytes(0, view.bytes) };
        Ok(())
    }
}

/// Address ranges from `mmap`, readable and writable at once.
///
/// The system adds a page when the program first writes to it, so `commit` only checks its range,
/// and puts it into core dumps: gdb's `gcore` would write all that is reserved.
/// `decommit` gives pages back by `MADV_DONTNEED`.
impl VirtualMemory for HostAllocator {
    fn page_bytes(&self) -> u64 {
        system::page_bytes()
    }

    fn handles(&self) -> Handles {
        Handles::None
    }

    /// Returns twice the machine's physical memory, or 64 GiB if the system does not tell it. Where the
    /// process has fewer addresses, the pool asks for less and leaves as much to the program.
    fn address_space(&self) -> u64 {
        system::physical_bytes().map_or(1 << 36, |bytes| 2 * bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<HostBlock, DeviceError> {
        let (base, bytes) = pages::reserve(bytes)?;
        Ok(HostBlock { base, bytes, alignment: Alignment::default(), mapped: AtomicU32::new(1) })
    }

    fn commit(&self, block: &HostBlock, pages: Range<u64>) -> Result<(), DeviceError> {
        let (offset, bytes) = pages::inside(block.bytes, &pages, "commit")?;
        block.dump_up_to(offset + bytes);
        Ok(())
    }

    fn decommit(
        &self,
        block: &HostBlock,
        pages: Range<u64>,
        _after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        let (offset, bytes) = pages::inside(block.bytes, &pages, "madvise")?;
        if !block.is_reserved() {
            return Err(DeviceError::new(Why::Foreign, "madvise"));
        }
        // SAFETY: `pages::inside` checked that the offset is at most `block.bytes`, and a reserved
        // block is one mapping of that size.
        let start = unsafe { block.base.add(offset) };
        // SAFETY: the range lies inside one mapping from `pages::reserve`, as checked above. Its
        // contents are lost and read as zeroes from here on, which is initialised memory. The
        // arena guarantees that no buffer uses the range.
        unsafe { pages::forget(start, bytes) }
    }

    fn release(&self, block: HostBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.free(block, after)
    }
}

// SAFETY: blocks come from `fresh`, zeroed, or from an anonymous mapping, so all bytes are valid and
// initialised; pages that were decommitted read as zeroes. `view` returns at most the requested
// bytes, at `start() + offset`. `free` takes the block by value, so its memory goes back once. All
// of this memory is private to the process: a forked child has its own copy.
unsafe impl HostMemory for HostAllocator {
    #[inline]
    fn bytes(view: &HostView<'_>) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(view.at, view.bytes)
    }
}

impl Transfer for HostAllocator {
    unsafe fn write(
        &self,
        to: &HostView<'_>,
        offset: u64,
        from: &[u8],
        _on: &(),
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees what `copy_in` asks for.
        unsafe { Self::copy_in(to, offset, from) }
    }

    unsafe fn read(
        &self,
        from: &HostView<'_>,
        offset: u64,
        to: &mut [u8],
        _on: &(),
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees what `copy_out` asks for.
        unsafe { Self::copy_out(from, offset, to) }
    }
}

// SAFETY: the block owns its memory, and the pointer is used only through the block.
unsafe impl Send for HostBlock {}
// SAFETY: `&HostBlock` gives out only pointers; the code that dereferences one must justify it.
unsafe impl Sync for HostBlock {}
