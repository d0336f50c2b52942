//! The contenders of `--peers arena`: allocators that split one region, and our pools.

use super::{Region, Reserved, Shared};
use crate::tree::{Tree, UNIT};
use bucketpool::sim::SimDevice;
use bucketpool::{BucketPool, PooledBuffer};
use offset_allocator::{Allocation, Allocator};
use parking_lot::Mutex;

impl Region for Tree {
    type Block = usize;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<usize> {
        Some(Tree::allocate(self, bytes))
    }
    #[inline]
    fn free(&mut self, block: usize) {
        Tree::free(self, block);
    }
}

impl Reserved for Tree {
    fn reserved_peak(&self) -> u64 {
        Tree::reserved_peak(self)
    }
}

/// A region that threads share, as they share ours.
pub(super) struct Locked<R>(pub(super) Mutex<R>);

impl<R: Region + Reserved + Send> Shared for Locked<R> {
    type Block = R::Block;

    #[inline]
    fn allocate(&self, bytes: u64) -> Option<R::Block> {
        self.0.lock().allocate(bytes)
    }
    #[inline]
    fn free(&self, block: R::Block) {
        self.0.lock().free(block);
    }
}

impl<R: Reserved> Reserved for Locked<R> {
    fn reserved_peak(&self) -> u64 {
        self.0.lock().reserved_peak()
    }
}

/// A pool, whose buffers free themselves.
pub(super) struct Ours(pub(super) BucketPool<SimDevice>);

impl Shared for Ours {
    type Block = PooledBuffer<SimDevice>;

    #[inline]
    fn allocate(&self, bytes: u64) -> Option<Self::Block> {
        self.0.allocate(bytes).ok()
    }
    #[inline]
    fn free(&self, block: Self::Block) {
        drop(block);
    }
}

impl Reserved for Ours {
    fn reserved_peak(&self) -> u64 {
        self.0.stats().reserved_peak_bytes
    }
}

/// `offset-allocator` over one region of units.
pub(super) struct Offset {
    allocator: Allocator<u32>,
    end: u32,
}

impl Offset {
    pub(super) fn new(bytes: u64, slots: usize) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        // A free range needs a node as well as a block.
        let nodes = u32::try_from(4 * slots + 1024).unwrap_or(u32::MAX);
        Self { allocator: Allocator::with_max_allocs(units, nodes), end: 0 }
    }
}

impl Region for Offset {
    type Block = Allocation<u32>;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block> {
        let units = u32::try_from(bytes.max(1).div_ceil(UNIT)).ok()?;
        let block = self.allocator.allocate(units)?;
        self.end = self.end.max(block.offset + units);
        Some(block)
    }
    #[inline]
    fn free(&mut self, block: Self::Block) {
        self.allocator.free(block);
    }
}

impl Reserved for Offset {
    fn reserved_peak(&self) -> u64 {
        u64::from(self.end) * UNIT
    }
}

/// `rlsf`'s two-level segregated fit, over real addresses: its headers stand in the memory. Rounds
/// share the memory, so the cold round has its page faults.
pub(super) struct Tlsf {
    book: Box<rlsf::Tlsf<'static, u32, u32, 32, 32>>,
    memory: std::ptr::NonNull<u8>,
    bytes: usize,
    end: usize,
}

#[expect(unsafe_code, reason = "rlsf is given memory, and blocks back, through pointers")]
mod unsafe_tlsf {
    use super::{Region, Reserved, Tlsf, UNIT};
    use std::alloc::{Layout, alloc};
    use std::cell::Cell;
    use std::ptr::NonNull;

    thread_local! {
        /// The memory of the round before, and its size.
        static KEPT: Cell<Option<(NonNull<u8>, usize)>> = const { Cell::new(None) };
    }

    impl Tlsf {
        pub(in super::super) fn new(bytes: u64) -> Self {
            let bytes = usize::try_from(bytes).unwrap_or(0);
            let layout = layout(bytes);
            let kept = KEPT.take().filter(|(_, kept)| *kept == bytes);
            let memory = kept.map_or_else(
                || {
                    // SAFETY: the size is not 0. Untouched pages cost nothing.
                    let memory = unsafe { alloc(layout) };
                    NonNull::new(memory).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
                },
                |(memory, _)| memory,
            );
            let mut book = Box::new(rlsf::Tlsf::new());
            let block = NonNull::slice_from_raw_parts(memory, bytes);
            // SAFETY: no other code uses the memory, which lives as long as the process.
            unsafe { book.insert_free_block_ptr(block) };
            Self { book, memory, bytes, end: 0 }
        }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).unwrap_or(Layout::new::<u8>())
    }

    /// A block of it, which any thread may have.
    #[derive(Debug)]
    pub(in super::super) struct TlsfBlock(NonNull<u8>);

    // SAFETY: blocks are addresses of memory that lives as long as the process.
    unsafe impl Send for TlsfBlock {}
    // SAFETY: as above, and the allocator has no tie to a thread.
    unsafe impl Send for Tlsf {}

    impl Region for Tlsf {
        type Block = TlsfBlock;

        #[inline]
        fn allocate(&mut self, bytes: u64) -> Option<TlsfBlock> {
            let bytes = usize::try_from(bytes.max(1).next_multiple_of(UNIT)).ok()?;
            let layout = Layout::from_size_align(bytes, 16).ok()?;
            let block = self.book.allocate(layout)?;
            let end = block.addr().get() - self.memory.addr().get() + bytes;
            self.end = self.end.max(end);
            Some(TlsfBlock(block))
        }
        #[inline]
        fn free(&mut self, TlsfBlock(block): TlsfBlock) {
            // SAFETY: from `allocate` above, with this alignment, and moved in here.
            unsafe { self.book.deallocate(block, 16) };
        }
    }

    impl Reserved for Tlsf {
        fn reserved_peak(&self) -> u64 {
            self.end as u64
        }
    }

    impl Drop for Tlsf {
        fn drop(&mut self) {
            // For the next round, or until the process ends.
            KEPT.set(Some((self.memory, self.bytes)));
        }
    }
}
