//! Checks of alignment and size of host memory.
//!
//! Both come from safe methods of a backend, so code that relies on them must check the memory that
//! it gets.
#![cfg(feature = "allocator-api2")]
#![expect(unsafe_code, reason = "a backend of host memory")]

use allocator_api2::alloc::{Allocator, Layout};
use pool_array::PooledArray;
use pool_core::port::{HostMemory, Immediate, MarkOf, Memory, PageCalls, Request, Sliceable};
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, DeviceError, PoolBuilder, Why,
};
use pool_host::{HostAllocator, InPool};
use std::ops::Range;
use std::ptr::NonNull;

/// Host memory whose blocks begin 8 bytes behind a multiple of 64 for the alignment 8, and at a
/// multiple of 64 for the alignment 64.
#[derive(Default)]
struct Shifted {
    host: HostAllocator,
    /// Whether the allocator accepts any alignment and then ignores it.
    lies: bool,
    /// Number of bytes by which each view is shorter than requested.
    short: u64,
}

/// An alignment in bytes, 8 or 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct To(u64);

impl Default for To {
    fn default() -> Self {
        Self(8)
    }
}

/// A block of the host allocator, and the offset at which the usable bytes begin.
type Block = (<HostAllocator as DeviceAllocator>::Block, u64);

impl DeviceAllocator for Shifted {
    type Block = Block;
    type View<'b> = <HostAllocator as DeviceAllocator>::View<'b>;
    type Kind = To;
    type Clock = Immediate;
    const MEMORY: Memory = Memory::HOST;

    fn clock(&self) -> &Immediate {
        self.host.clock()
    }
    fn aligned(&self, kind: To, alignment: u64) -> Result<To, DeviceError> {
        match alignment {
            _ if self.lies => Ok(kind),
            0..=8 => Ok(kind),
            9..=64 => Ok(To(64)),
            _ => Err(DeviceError::new(Why::Unsupported, "alignment above 64")),
        }
    }
    fn alignment_of(&self, kind: To) -> u64 {
        kind.0
    }
    fn allocate(&self, request: Request<To>, on: &()) -> Result<Block, DeviceError> {
        let shift = if request.kind.0 == 64 { 64 } else { 8 };
        let kind = self.host.aligned(<_>::default(), 64)?;
        let inner = Request { bytes: request.bytes + 64, kind };
        Ok((self.host.allocate(inner, on)?, shift))
    }
    fn free(&self, block: Block, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.host.free(block.0, after)
    }
    fn view<'b>(&'b self, block: &'b Block, offset: u64, bytes: u64, on: &()) -> Self::View<'b> {
        self.host.view(&block.0, block.1 + offset, bytes.saturating_sub(self.short), on)
    }
    fn zero(&self, block: &mut Block, bytes: u64, on: &()) -> Result<(), DeviceError> {
        // SAFETY: `&mut` excludes other users of the block.
        unsafe { self.zero_part(block, 0..bytes, on) }
    }
}

impl Sliceable for Shifted {
    fn pages(&self) -> Option<PageCalls<Self>> {
        None
    }

    unsafe fn zero_part(
        &self,
        block: &Block,
        bytes: Range<u64>,
        on: &(),
    ) -> Result<(), DeviceError> {
        let bytes = block.1 + bytes.start..block.1 + bytes.end;
        // SAFETY: the caller guarantees that no other code uses these bytes meanwhile. They lie
        // inside the host's block, which has 64 bytes more than requested.
        unsafe { self.host.zero_part(&block.0, bytes, on) }
    }
}

// SAFETY: blocks and views are those of `HostAllocator`, which keeps the contract. Each view is
// shifted by the same offset for the same block, and is never longer than requested.
unsafe impl HostMemory for Shifted {
    fn bytes(view: &Self::View<'_>) -> NonNull<[u8]> {
        HostAllocator::bytes(view)
    }
}

#[test]
fn an_arena_aligns_buffers_as_requested_or_refuses() {
    let pool =
        BucketPool::builder(Shifted::default()).arena(ArenaConfig::segments(1 << 20)).build();
    for alignment in [8, 16, 64, 512] {
        for _ in 0..3 {
            match pool.allocate_aligned(100, alignment) {
                Ok(buffer) => assert_eq!(buffer.as_ptr().addr() as u64 % alignment, 0),
                Err(error) => assert_eq!(error.why(), Why::Unsupported, "{error}"),
            }
        }
    }
    assert!(pool.allocate_aligned(100, 8).is_ok());
}

#[test]
fn an_array_is_refused_where_its_memory_is_not_aligned() {
    let pool = BucketPool::new(Shifted { lies: true, ..Shifted::default() });
    let error = PooledArray::<u128, _>::from_elem(&pool, 10, 1).unwrap_err();
    assert_eq!(error.why(), Why::Unsupported, "{error}");
    let empty = PooledArray::<[u8; 0], _>::new(&pool, 10).unwrap();
    assert_eq!(empty.view().len(), 10);
    let array = PooledArray::<u64, _>::from_elem(&pool, 10, 7).unwrap();
    assert_eq!((array.view().len(), array.view().sum()), (10, 70));
}

#[test]
fn a_collection_is_refused_where_its_memory_is_not_aligned_or_too_short() {
    let ask = |backend: Shifted, align: usize| {
        let pool = InPool::new(&BucketPool::new(backend));
        let layout = Layout::from_size_align(100, align).unwrap();
        let block = pool.allocate(layout);
        block.map(|block| {
            // SAFETY: `pool.allocate` just returned it for this layout, and it is freed once.
            unsafe { pool.deallocate(block.cast(), layout) }
        })
    };
    assert!(ask(Shifted { lies: true, ..Shifted::default() }, 16).is_err());
    assert!(ask(Shifted { short: 1, ..Shifted::default() }, 16).is_err());
    assert!(ask(Shifted::default(), 16).is_ok());
}

#[test]
fn a_slice_is_no_longer_than_its_view() {
    let pool = BucketPool::new(Shifted { short: 30, ..Shifted::default() });
    let buffer = pool.allocate(100).unwrap();
    assert_eq!((buffer.size(), buffer.len()), (100, 70));
    assert!(PooledArray::<u8, _>::from_elem(&pool, 100, 1).is_err());
}

#[test]
fn exact_sizes_are_rounded_up_to_the_alignment_or_to_a_granule() {
    let hits_of = |builder: PoolBuilder<HostAllocator>| {
        let pool = builder.policy(BucketPolicy::Exact).build();
        for bytes in [1, 64, 60, 65, 128] {
            drop(pool.allocate(bytes).unwrap());
        }
        (pool.stats().hits, pool.stats().cached_bytes)
    };
    let builder = || BucketPool::builder(HostAllocator::new());
    assert_eq!(hits_of(builder()), (3, 64 + 128));
    assert_eq!(hits_of(builder().granule(1)), (0, 1 + 64 + 60 + 65 + 128));
}
