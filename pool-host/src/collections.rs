//! Pools and the tcache as allocators of collections (`allocator-api2`).
#![expect(unsafe_code, reason = "the trait of an allocator is unsafe")]

use allocator_api2::alloc::{AllocError, Allocator, Layout};
use pool_core::{BucketPool, HostMemory, PooledBuffer};
use std::alloc::GlobalAlloc;
use std::fmt;
use std::ptr::{self, NonNull};

/// A pool as the allocator of a collection: of `allocator_api2::vec::Vec`, of `hashbrown`'s maps.
///
/// A buffer's owner travels in front of the collection's bytes, 16 of them or as many as the
/// alignment asks for. What a collection leaves is written over when it gives its memory back.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use pool_core::BucketPool;
/// use pool_host::{InPool, PinnedAllocator};
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
    /// Collections with this get their memory from `pool`.
    #[must_use]
    pub fn new(pool: &BucketPool<A>) -> Self {
        Self(pool.clone())
    }
}

/// How far behind the start of a buffer the collection's bytes begin.
fn offset<A: HostMemory>(layout: Layout) -> usize {
    size_of::<PooledBuffer<A>>().next_multiple_of(layout.align().max(16))
}

// SAFETY: a block is a buffer of the pool's own, which lives until `deallocate` takes it back, and
// stays where it is when the allocator moves or is cloned: clones are the same pool, and a buffer
// outlives its pool.
unsafe impl<A: HostMemory> Allocator for InPool<A> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let offset = offset::<A>(layout);
        let bytes = layout.size().checked_add(offset).ok_or(AllocError)? as u64;
        let align = layout.align().max(16) as u64;
        let mut buffer = self.0.allocate_aligned(bytes, align).map_err(|_| AllocError)?;
        let slice = NonNull::from(&mut *buffer);
        let start = slice.cast::<u8>();
        // Size and alignment come from safe methods of the backend, which may be wrong.
        if (slice.len() as u64) < bytes || !(start.addr().get() as u64).is_multiple_of(align) {
            return Err(AllocError);
        }
        // SAFETY: the buffer holds `offset` bytes and more, as just checked.
        let data = unsafe { start.add(offset) };
        // SAFETY: a buffer is a pointer, and fits the 16 bytes before `data`, which is aligned to
        // 16 at least, as just checked.
        let owner = unsafe { data.cast::<PooledBuffer<A>>().sub(1) };
        // SAFETY: as above; nobody else uses these bytes.
        unsafe { owner.write(buffer) };
        Ok(NonNull::slice_from_raw_parts(data, layout.size()))
    }

    /// What is left there is written over: a collection may leave bytes that were never
    /// initialised, such as padding, and the next buffer of this block derefs to them.
    unsafe fn deallocate(&self, data: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller promises that `allocate` returned it, which put the owner before it.
        let owner = unsafe { data.cast::<PooledBuffer<A>>().sub(1) };
        // SAFETY: as above, and it is taken out once.
        let mut buffer = unsafe { owner.read() };
        let start = buffer.as_mut_ptr();
        let bytes = offset::<A>(layout) + layout.size();
        // SAFETY: `allocate` checked that the slice holds that many bytes, with this layout, and
        // `HostMemory` promises that it does not change.
        unsafe { start.write_bytes(0, bytes) };
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

// SAFETY: blocks come from a global allocator, which may be shared, and stay valid until they are
// given back to it; a reference can be copied, and is the same allocator.
unsafe impl<A: GlobalAlloc> Allocator for &'static crate::Tcache<A> {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let nowhere = ptr::without_provenance_mut(layout.align());
            let nowhere = NonNull::new(nowhere).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(nowhere, 0));
        }
        // SAFETY: not of 0 bytes.
        let block = NonNull::new(unsafe { self.alloc(layout) }).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return self.allocate(layout);
        }
        // SAFETY: not of 0 bytes.
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
            // SAFETY: the caller promises that it comes from here with this layout, and that the
            // new size is no less.
            let grown = unsafe { self.realloc(block.as_ptr(), old, new.size()) };
            let grown = NonNull::new(grown).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(grown, new.size()));
        }
        let grown = self.allocate(new)?;
        let data = grown.cast::<u8>();
        // SAFETY: both hold so many bytes, and they are two blocks.
        unsafe { data.copy_from_nonoverlapping(block, old.size()) };
        // SAFETY: as the caller says.
        unsafe { self.deallocate(block, old) };
        Ok(grown)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller promises that it comes from `allocate` with this layout.
            unsafe { self.dealloc(block.as_ptr(), layout) };
        }
    }
}
