//! Memory that threads share: pools of host memory and global allocators behind one trait.
#![expect(unsafe_code, reason = "allocators are called directly")]

use bucketpool::host::{HostAllocator, Tcache};
use bucketpool::port::HostMemory;
use bucketpool::{BucketPool, DeviceAllocator, PooledBuffer};
use bucketpool_c::calls::{bp_alloc, bp_free_here, bp_pool_drop, bp_pool_new, bp_stats};
use bucketpool_c::handle::Handle;
use bucketpool_c::report::Figures;
use bucketpool_c::status::Status;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

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

/// A pool of host memory behind the functions of `bucketpool.h`.
#[derive(Debug)]
pub struct ThroughC(*const Handle);

/// A block of [`ThroughC`].
#[derive(Debug)]
pub struct OfC(*mut c_void, usize, *const Handle);

// SAFETY: its functions may be called from any thread.
unsafe impl Sync for ThroughC {}
// SAFETY: its owner alone has the block, and any thread may free it.
unsafe impl Send for OfC {}

impl ThroughC {
    /// Makes a pool; `settings` is TOML, as a configuration file has it.
    #[must_use]
    pub fn new(settings: &CStr) -> Option<Self> {
        let mut pool = ptr::null();
        // SAFETY: texts that end with a zero byte, and a place for the pool.
        let said = unsafe { bp_pool_new(settings.as_ptr(), c"host".as_ptr(), 0, &raw mut pool) };
        (said == Status::BpOk).then_some(Self(pool))
    }

    /// Returns the blocks that the device gave and took back.
    #[must_use]
    pub fn device_calls(&self) -> u64 {
        let mut figures = Figures { size: size_of::<Figures>(), ..Figures::default() };
        // SAFETY: the pool is alive, and `figures` is a local variable of its size.
        let _ = unsafe { bp_stats(self.0, &raw mut figures) };
        figures.misses
    }
}

impl Drop for ThroughC {
    fn drop(&mut self) {
        // SAFETY: this is its only owner; blocks that are left may still be freed.
        let _ = unsafe { bp_pool_drop(self.0) };
    }
}

impl Drop for OfC {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the block is the pool's, which lives until its last block is freed.
        let _ = unsafe { bp_free_here(self.2, self.0) };
    }
}

impl Heap for ThroughC {
    type Block = OfC;

    #[inline]
    fn allocate(&self, bytes: usize) -> OfC {
        let mut at = ptr::null_mut();
        // SAFETY: the pool is alive, and `at` is a local variable.
        let said = unsafe { bp_alloc(self.0, bytes, 0, ptr::null_mut(), &raw mut at) };
        assert_eq!(said, Status::BpOk, "{bytes} bytes were refused");
        OfC(at, bytes, self.0)
    }

    #[inline]
    fn touch(block: &mut OfC, step: usize) {
        if let Some(start) = NonNull::new(block.0.cast()) {
            touch(start, block.1, step);
        }
    }
}

/// A pool of host memory.
pub type HostPool = BucketPool<HostAllocator>;
