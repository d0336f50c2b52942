//! Named configurations, each with the numbers of a system that this pool was requested for.
//!
//! Each function returns a builder, so that the caller can still change a number. [`Preset`] is the
//! same by name, for files and command lines.

mod caching;
mod named;

use pool_core::limits::FullBucket;
use pool_core::port::Sliceable;
use pool_core::{
    BucketPolicy, BucketPool, DeviceAllocator, GIB, KIB, MIB, PoolBuilder, ZeroPolicy,
};

pub use caching::{BadSetting, Caching};
pub use named::{Preset, UnknownPreset};

/// The size classes of [`embedding`], in bytes: from indices to large batch buffers.
pub const BUCKET_SIZES: [u64; 7] = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB];

/// The use of a tile pipeline.
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

/// Returns a builder for point-cloud tiles: one tile after the other, four arrays each.
///
/// The pool caches at most 20 blocks of a size, and 4 GiB in all. It does not cache a block larger
/// than half of that. When the device is full, the pool gives cached blocks back, first the missing
/// bytes and then all, and tries the request again.
///
/// The original system cached arrays by their exact shape. Tiles differ in their number of points,
/// so that cache had no hits on the system's own workload. This preset uses powers of two instead.
pub fn tile_pipeline<A: DeviceAllocator>(allocator: A) -> PoolBuilder<A> {
    tile_pipeline_for(allocator, TileUse::default())
}

/// Returns [`tile_pipeline`] with the bounds for one use.
pub fn tile_pipeline_for<A: DeviceAllocator>(allocator: A, tiles: TileUse) -> PoolBuilder<A> {
    tiles_on(BucketPool::builder(allocator), tiles)
}

pub(crate) fn tiles_on<A: DeviceAllocator>(
    builder: PoolBuilder<A>,
    tiles: TileUse,
) -> PoolBuilder<A> {
    let (blocks, bytes) = match tiles {
        TileUse::SmallTiles | TileUse::LimitedVram => (15, 2 * GIB),
        TileUse::MediumTiles => (20, 4 * GIB),
        TileUse::LargeTiles => (25, 6 * GIB),
        TileUse::Batch => (30, 8 * GIB),
        TileUse::HighVram => (40, 10 * GIB),
    };
    builder.policy(BucketPolicy::PowerOfTwo).bucket_limit(blocks).cached_limit(bytes)
}

/// Returns a builder for the inference of an embedding model.
///
/// The pool has the seven classes of [`BUCKET_SIZES`], and reserves at most 24 GiB.
///
/// The original system refused requests above its largest class. Here they bypass the pool and go
/// to the device, within the limit. The original checked its limit before it counted, so two
/// threads could exceed it; here the pool reserves the limit first. The pool also gives cached
/// blocks back before it refuses a request.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
/// use bucketpool::{MIB, config::preset, sim::SimDevice};
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
    embedding_on(BucketPool::builder(allocator))
}

fn embedding_on<A: DeviceAllocator>(builder: PoolBuilder<A>) -> PoolBuilder<A> {
    builder.policy(BucketPolicy::tiered(&BUCKET_SIZES)).reserved_limit(24 * GIB)
}

/// Returns a builder for a caching allocator like those of machine-learning frameworks.
///
/// It has `PyTorch`'s constants: separate segments for small and large requests, segments that are
/// split and coalesced, and streams that wait on the device. [`Caching`] has its settings; the
/// figures are [`BucketPool::device_stats`].
///
/// The original system gave a block to another stream after one query of its event; here the other
/// stream is ordered behind the block's marks. The original reported out of memory without a search
/// of other streams' blocks; here that search is one stage of several.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
/// use bucketpool::{MIB, config::preset, sim::SimDevice};
///
/// let pool = preset::caching(SimDevice::new()).build();
/// drop(pool.allocate(4 * MIB)?);
/// let split = pool.allocate(5 * MIB)?; // the same segment of 20 MiB
/// let stats = pool.device_stats().unwrap_or_default();
/// assert_eq!((stats.num_device_alloc, stats.inactive_split_bytes.all.current), (1, 15 * MIB));
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn caching<A: Sliceable>(device: A) -> PoolBuilder<A> {
    Caching::default().over(device)
}

/// Returns a builder for the results of element-wise operations on arrays in host memory.
///
/// Each exact size is a size class. The pool serves requests of 1 byte to 64 MiB, and caches at
/// most 8 blocks of a size, or 2 from 1 MiB on. It does not zero blocks. A block that returns to a
/// full bucket goes back to the device.
///
/// The original system has no bound in bytes, and on loads with many sizes it kept up to 90 times
/// the live peak. Here the bound is 256 MiB. Change it with [`PoolBuilder::cached_limit`].
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
/// use bucketpool::{MIB, config::preset, sim::SimDevice};
///
/// let pool = preset::ndarray(SimDevice::new()).build();
/// drop(pool.allocate(4000)?);
/// assert_eq!(pool.allocate(4000)?.allocated_size(), 4000);
/// assert_eq!(pool.stats().hits, 1);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn ndarray<A: DeviceAllocator>(allocator: A) -> PoolBuilder<A> {
    ndarray_on(BucketPool::builder(allocator))
}

fn ndarray_on<A: DeviceAllocator>(builder: PoolBuilder<A>) -> PoolBuilder<A> {
    builder
        .policy(BucketPolicy::Exact)
        .granule(1)
        .window(1..=64 * MIB)
        .bucket_limit(8)
        .large_bucket_limit(MIB, 2)
        .full_bucket(FullBucket::RefuseNewest)
        .cached_limit(256 * MIB)
        .zero(ZeroPolicy::Never)
}

/// The size classes of [`small_tensors`], in bytes, and the number of blocks of each that are
/// allocated ahead of time.
pub const SMALL_BLOCKS: [(u64, usize); 9] = [
    (64, 16),
    (128, 16),
    (256, 16),
    (512, 16),
    (KIB, 16),
    (2 * KIB, 8),
    (4 * KIB, 8),
    (8 * KIB, 8),
    (16 * KIB, 8),
];

/// Returns a builder for the small tensors of training steps.
///
/// The pool has the nine classes of [`SMALL_BLOCKS`], filled ahead of time. Requests above 16 KiB
/// bypass the pool. At most 16 MiB are cached;
/// [`PoolStats::peak_cached_bytes`](pool_core::PoolStats::peak_cached_bytes) is the peak.
///
/// The original system needed a pool for the whole process and a cache for each thread, and its
/// language had neither. Here threads share a pool through its shards, and on the host
/// `global_small_tensors()` is such a pool for the process.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_config as config; pub use pool_sim as sim; }
/// use bucketpool::{config::preset, sim::SimDevice};
///
/// let pool = preset::small_tensors(SimDevice::new()).build();
/// assert_eq!(pool.cached_buffers()[&64], 16);
/// let gradient = pool.allocate(65)?;
/// assert_eq!((gradient.allocated_size(), pool.stats().hits), (128, 1));
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn small_tensors<A: DeviceAllocator>(allocator: A) -> PoolBuilder<A> {
    small_tensors_on(BucketPool::builder(allocator))
}

fn small_tensors_on<A: DeviceAllocator>(builder: PoolBuilder<A>) -> PoolBuilder<A> {
    let classes = SMALL_BLOCKS.map(|(bytes, _)| bytes);
    builder.policy(BucketPolicy::tiered(&classes)).cached_limit(16 * MIB).ahead(&SMALL_BLOCKS)
}
