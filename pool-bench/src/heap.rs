//! Memory that threads share: pools of host memory and global allocators behind one trait.
#![expect(unsafe_code, reason = "allocators are called directly")]

use bucketpool::host::{HostAllocator, Tcache};
use bucketpool::port::HostMemory;
use bucketpool::{BucketPool, DeviceAllocator, PooledBuffer};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

/// The tcache that is measured. The binary itself allocates from the C library, unless a case says
/// otherwise.
#[cfg(not(pool_counts))]
pub(crate) static TCACHE: Tcache = Tcache::new();
/// The tcache of a build that counts, over an allocator whose calls are counted,
/// with the same limit on each machine.
#[cfg(pool_counts)]
pub(crate) static TCACHE: Tcache<counted_inner::Inner> =
    Tcache::over(counted_inner::Inner).cached_limit(1 << 30);

#[cfg(pool_counts)]
pub(crate) mod counted_inner {
    //! The C library's allocator, its calls counted.

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    static CALLS: AtomicU64 = AtomicU64::new(0);

    /// The allocator.
    #[derive(Debug)]
    pub(crate) struct Inner;

    /// Returns the allocations and frees so far.
    pub(crate) fn calls() -> u64 {
        CALLS.load(Relaxed)
    }

    // SAFETY: the system's allocator does all; beside it only a count changes.
    unsafe impl GlobalAlloc for Inner {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            CALLS.fetch_add(1, Relaxed);
            // SAFETY: the caller's promise.
            unsafe { System.alloc(layout) }
        }
        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            CALLS.fetch_add(1, Relaxed);
            // SAFETY: the caller's promise.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

/// Memory that threads share. A block frees itself when it is dropped.
pub trait Heap: Sync {
    /// A block.
    type Block: Send;
    /// Returns a block of `bytes` bytes.
    fn allocate(&self, bytes: usize) -> Self::Block;
    /// Writes the first byte of the block and of each further `step` bytes.
    fn touch(block: &mut Self::Block, step: usize);
    /// The most bytes that it had from its device, if it knows.
    fn reserved_peak_bytes(&self) -> Option<u64> {
        None
    }
}

fn touch(start: NonNull<u8>, bytes: usize, step: usize) {
    for at in (0..bytes).step_by(step) {
        // SAFETY: inside the block, which the caller alone has.
        let byte = unsafe { start.add(at) };
        // SAFETY: as above.
        unsafe { byte.write_volatile(1) };
    }
}

impl<A: HostMemory + DeviceAllocator> Heap for BucketPool<A>
where
    PooledBuffer<A>: Send,
{
    type Block = Option<PooledBuffer<A>>;

    #[inline]
    fn allocate(&self, bytes: usize) -> Self::Block {
        BucketPool::allocate(self, bytes as u64).ok()
    }

    #[inline]
    fn touch(block: &mut Self::Block, step: usize) {
        if let Some(buffer) = block {
            let bytes: &mut [u8] = buffer;
            touch(NonNull::from(&mut bytes[0]), bytes.len(), step);
        }
    }

    fn reserved_peak_bytes(&self) -> Option<u64> {
        Some(self.stats().reserved_peak_bytes)
    }
}

/// A global allocator.
#[derive(Debug)]
pub struct Global<A: 'static>(pub &'static A);

/// A block of a global allocator.
#[derive(Debug)]
pub struct Owned<A: GlobalAlloc + 'static>(*mut u8, Layout, &'static A);

// SAFETY: its owner alone has the block, and a global allocator frees on any thread.
unsafe impl<A: GlobalAlloc + Sync> Send for Owned<A> {}

impl<A: GlobalAlloc> Drop for Owned<A> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `allocate` got it from this allocator, with this layout.
        unsafe { self.2.dealloc(self.0, self.1) };
    }
}

impl<A: GlobalAlloc + Sync> Heap for Global<A> {
    type Block = Owned<A>;

    #[inline]
    fn allocate(&self, bytes: usize) -> Owned<A> {
        let layout = Layout::from_size_align(bytes, 8).unwrap_or(Layout::new::<u64>());
        // SAFETY: no size that is measured is 0.
        let block = unsafe { self.0.alloc(layout) };
        assert!(!block.is_null(), "{} bytes were refused", layout.size());
        Owned(block, layout, self.0)
    }

    #[inline]
    fn touch(block: &mut Owned<A>, step: usize) {
        if let Some(start) = NonNull::new(block.0) {
            touch(start, block.1.size(), step);
        }
    }
}

/// A pool of host memory.
pub type HostPool = BucketPool<HostAllocator>;
