//! Named configurations: systems that this pool was asked for in, with their numbers.
//!
//! Each gives a builder, so that a number can still be changed.

mod caching;

use crate::arena::Arena;
use crate::builder::PoolBuilder;
use crate::device::{DeviceAllocator, Sliceable};
use crate::policy::BucketPolicy;
use crate::pool::BucketPool;
use crate::size::{GIB, KIB, MIB};

pub use caching::{BadSetting, Caching};

/// The size classes of [`embedding`], in bytes: from indices to large batch buffers.
pub const BUCKET_SIZES: [u64; 7] = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];

/// What a tile pipeline is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TileUse {
    /// Tiles of about a million points.
    SmallTiles,
    /// Tiles of about five million points.
    #[default]
    MediumTiles,
    /// Tiles of ten million points and more: more sizes.
    LargeTiles,
    /// Batches of a hundred tiles and more.
    Batch,
    /// A GPU of 6 GB.
    LimitedVram,
    /// A GPU of 24 GB.
    HighVram,
}

/// Point-cloud tiles, one after the other, four arrays each: at most 20 idle blocks of a size and
/// 4 GiB in all; when the device is full, everything idle goes back and the request is tried again.
///
/// The system that this comes from kept arrays by their exact shape. Tiles differ in their number
/// of points, so on its own workload that found nothing again; powers of two do what it meant.
pub fn tile_pipeline<A: DeviceAllocator>(allocator: A) -> PoolBuilder<A> {
    tile_pipeline_for(allocator, TileUse::default())
}

/// [`tile_pipeline`], tuned for a use.
pub fn tile_pipeline_for<A: DeviceAllocator>(allocator: A, tiles: TileUse) -> PoolBuilder<A> {
    let (blocks, bytes) = match tiles {
        TileUse::SmallTiles | TileUse::LimitedVram => (15, 2 * GIB),
        TileUse::MediumTiles => (20, 4 * GIB),
        TileUse::LargeTiles => (25, 6 * GIB),
        TileUse::Batch => (30, 8 * GIB),
        TileUse::HighVram => (40, 10 * GIB),
    };
    BucketPool::builder(allocator)
        .policy(BucketPolicy::PowerOfTwo)
        .bucket_limit(blocks)
        .cached_limit(bytes)
}

/// Inference of an embedding model: the seven classes of [`BUCKET_SIZES`], at most 24 GiB taken
/// from the device.
///
/// The system that this comes from refused what is larger than its largest class; here that goes
/// past the pool to the device, within the limit. It checked its limit before it counted, so two
/// threads could pass it; here the limit is reserved first. And idle blocks go back before anybody
/// is refused.
///
/// ```
/// use pool_core::{MIB, preset, sim::SimDevice};
///
/// let pool = preset::embedding(SimDevice::new()).build();
/// let table = pool.allocate(47 * MIB)?; // past the pool
/// let mask = pool.allocate(10_000)?;
/// assert_eq!((mask.allocated_size(), pool.stats().bypasses), (16 << 10, 1));
/// pool.clear()?;
/// let outstanding = pool.outstanding_buffers(); // what is still lent
/// assert_eq!(outstanding.into_values().sum::<usize>(), 2);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn embedding<A: DeviceAllocator>(allocator: A) -> PoolBuilder<A> {
    BucketPool::builder(allocator)
        .policy(BucketPolicy::tiered(&BUCKET_SIZES))
        .reserved_limit(24 * GIB)
}

/// The caching allocator that machine-learning frameworks brought about, with `PyTorch`'s
/// constants: small and large requests apart, segments that are split and made one again, streams
/// that wait on the device. [`Caching`] has its settings; the figures are
/// [`Arena::device_stats`].
///
/// The system that this comes from handed out another stream's block after one query of its event;
/// here a block serves another stream behind its marks. And it raised out of memory without looking
/// at other streams' blocks; here that is one rung of several.
///
/// ```
/// use pool_core::{MIB, preset, sim::SimDevice};
///
/// let pool = preset::caching(SimDevice::new()).build();
/// drop(pool.allocate(4 * MIB)?);
/// let split = pool.allocate(5 * MIB)?; // the same segment of 20 MiB
/// let stats = pool.allocator().device_stats();
/// assert_eq!((stats.num_device_alloc, stats.inactive_split_bytes.all.current), (1, 15 * MIB));
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn caching<A: Sliceable>(device: A) -> PoolBuilder<Arena<A>> {
    Caching::default().over(device)
}
