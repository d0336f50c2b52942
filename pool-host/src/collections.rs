//! Pools and the tcache as allocators for collections, through the trait of `allocator-api2`.
#![expect(unsafe_code, reason = "the trait of an allocator is unsafe")]

use allocator_api2::alloc::{AllocError, Allocator, Layout};
use pool_core::port::HostMemory;
use pool_core::{BucketPool, PooledBuffer};
use std::alloc::GlobalAlloc;
use std::fmt;
use std::ptr::{self, NonNull};

/// A pool as the allocator of a collection, such as `allocator_api2::vec::Vec` or a map of
/// `hashbrown`.
///
/// Cost: each block stores its [`PooledBuffer`] in front of the collection's bytes. This header
/// takes 16 bytes, or as many as the alignment if that is larger. Pages that the collection does
/// not touch stay untouched, but for new blocks of [`HostAllocator`](crate::HostAllocator) below
/// 16 KiB, and reused pages of blocks below 8 MiB, which are cleared.
///
/// ```
/// use allocator_api2::vec::Vec;
/// # mod bucketpool { pub use pool_core::*; pub mod host { pub use pool_host::*; } }
/// use bucketpool::BucketPool;
/// use bucketpool::host::{InPool, PinnedAllocator};
///
/// let pool = BucketPool::new(PinnedAllocator::new());
/// let mut locked: Vec<u64, _> = Vec::with_capacity_in(1000, InPool::new(&pool));
/// locked.extend(0..1000);
/// drop(locked);
/// let again: Vec<u8, _> = Vec::with_capacity_in(8000, InPool::new(&pool));
/// assert_eq!((again.capacity(), pool.stats().hits), (8000, 1));
/// ```
pub struct InPool<A: HostMemory>(BucketPool<A>);

impl<A: HostMemory> InPool<A> {
    /// Creates an allocator that gets its memory from `pool`.
    #[must_use]
    pub fn new(pool: &BucketPool<A>) -> Self {
        Self(pool.clone())
    }
}

/// Returns the offset in bytes of the collection's bytes from the start of the buffer.
fn offset<A: HostMemory>(layout: Layout) -> usize {
    size_of::<PooledBuffer<A>>().next_multiple_of(layout.align().max(16))
}

// SAFETY: a block lies in a buffer of the pool, and the block itself stores that buffer, so it
// stays valid until `deallocate` takes the buffer out. A move or a clone of the allocator does not
// move the buffer. A buffer may outlive its pool, so the block stays valid when all clones are
// dropped.
unsafe impl<A: HostMemory> Allocator for InPool<A> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let offset = offset::<A>(layout);
        let bytes = layout.size().checked_add(offset).ok_or(AllocError)? as u64;
        let align = layout.align().max(16) as u64;
        let mut buffer = self.0.allocate_aligned(bytes, align).map_err(|_| AllocError)?;
        let slice = NonNull::from(&mut *buffer);
        let start = slice.cast::<u8>();
        // Size and alignment come from safe methods of the backend, so unsafe code must not trust
        // them.
        if (slice.len() as u64) < bytes || !(start.addr().get() as u64).is_multiple_of(align) {
            return Err(AllocError);
        }
        // SAFETY: the slice has at least `bytes` bytes, as checked above, and `offset <= bytes`.
        let data = unsafe { start.add(offset) };
        // SAFETY: `offset` is at least the size of a `PooledBuffer`, so the result lies inside the
        // slice. `start` is aligned to 16 at least, as checked above, and `offset` is a multiple of
        // that alignment, so `data` and the result are aligned for a `PooledBuffer`.
        let owner = unsafe { data.cast::<PooledBuffer<A>>().sub(1) };
        // SAFETY: valid and aligned as shown above. The buffer is exclusively ours, and the
        // collection gets only the bytes from `data` on.
        unsafe { owner.write(buffer) };
        Ok(NonNull::slice_from_raw_parts(data, layout.size()))
    }

    // A collection may leave uninitialised bytes in the block, such as padding. The next buffer of
    // this block derefs to them, so `freeze` makes them initialised.
    unsafe fn deallocate(&self, data: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees that `allocate` returned `data`, and `allocate` wrote a
        // `PooledBuffer` directly before it, inside the same buffer.
        let owner = unsafe { data.cast::<PooledBuffer<A>>().sub(1) };
        // SAFETY: `allocate` wrote it there. The caller deallocates a block once, so the buffer is
        // taken out once.
        let mut buffer = unsafe { owner.read() };
        let start = buffer.as_mut_ptr();
        let bytes = offset::<A>(layout) + layout.size();
        // SAFETY: `allocate` checked with the same layout that the slice has that many bytes, and
        // `HostMemory` guarantees that the slice stays the same. The caller no longer uses them.
        unsafe { freeze(start, bytes) };
    }
}

/// Makes bytes that may be uninitialised count as initialised, with the values in memory.
///
/// # Safety
///
/// `bytes` bytes from `start` on are valid for reads and writes, and no other code uses them.
unsafe fn freeze(start: *mut u8, bytes: usize) {
    // Each byte in memory has a value in hardware. The compiler does not look into the assembly, so
    // it must assume that the assembly read all these bytes and wrote them back.
    #[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the assembly is a comment, so it executes no instruction. To the compiler it may read
    // and write these bytes, which the caller allows.
    unsafe {
        std::arch::asm!(
            "/* {0} {1} */",
            in(reg) start,
            in(reg) bytes,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64"))))]
    // SAFETY: the caller guarantees that these bytes are valid for writes.
    unsafe {
        start.write_bytes(0, bytes);
    }
}

impl<A: HostMemory> Clone for InPool<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A: HostMemory> fmt::Debug for InPool<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InPool").field(&self.0).finish()
    }
}

// SAFETY: blocks come from a `GlobalAlloc`, which guarantees that they stay valid until they are
// given back to it. The allocator is `'static`, and a copy of the reference is the same allocator.
unsafe impl<A: GlobalAlloc + Sync> Allocator for &'static crate::Tcache<A> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let nowhere = ptr::without_provenance_mut(layout.align());
            let nowhere = NonNull::new(nowhere).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(nowhere, 0));
        }
        // SAFETY: the layout's size is not 0, as checked above.
        let block = NonNull::new(unsafe { self.alloc(layout) }).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return self.allocate(layout);
        }
        // SAFETY: the layout's size is not 0, as checked above.
        let block = NonNull::new(unsafe { self.alloc_zeroed(layout) }).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() > 0 && old.align() == new.align() {
            // SAFETY: the caller guarantees that `block` comes from this allocator with `old`, and
            // that `new.size() >= old.size()`, which is not 0. `new` is a valid layout with the
            // same alignment.
            let grown = unsafe { self.realloc(block.as_ptr(), old, new.size()) };
            let grown = NonNull::new(grown).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(grown, new.size()));
        }
        let grown = self.allocate(new)?;
        let data = grown.cast::<u8>();
        // SAFETY: `block` has `old.size()` bytes, and `data` has `new.size()`, which is no less.
        // The two are different live blocks, so they do not overlap.
        unsafe { data.copy_from_nonoverlapping(block, old.size()) };
        // SAFETY: the caller guarantees that `block` comes from this allocator with `old`.
        unsafe { self.deallocate(block, old) };
        Ok(grown)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller guarantees that `allocate` returned it for this layout. The size
            // is not 0, so the block came from `alloc`.
            unsafe { self.dealloc(block.as_ptr(), layout) };
        }
    }
}
