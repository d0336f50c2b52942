//! Named configurations: systems that this pool was asked for in, with their numbers.
//!
//! Each gives a builder, so that a number can still be changed.

mod caching;

use crate::device::zero::ZeroPolicy;
use crate::device::{DeviceAllocator, Sliceable};
use crate::policy::BucketPolicy;
use crate::policy::limit::FullBucket;
use crate::pool::BucketPool;
use crate::pool::builder::PoolBuilder;
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

/// Point-cloud tiles, one after the other, four arrays each: at most 20 cached blocks of a size,
/// and 4 GiB of them in all. A block above half of that is not kept. When the device is full, every
/// cached block goes back and the request is tried again.
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
/// # use pool_core as bucketpool;
/// use bucketpool::{MIB, preset, sim::SimDevice};
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
/// [`BucketPool::device_stats`].
///
/// The system that this comes from handed out another stream's block after one query of its event;
/// here a block serves another stream behind its marks. And it raised out of memory without looking
/// at other streams' blocks; here that is one stage of several.
///
/// ```
/// # use pool_core as bucketpool;
/// use bucketpool::{MIB, preset, sim::SimDevice};
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

/// Results of element-wise operations on arrays in host memory: each size for itself, requests of 1
/// byte to 64 MiB, 8 idle blocks of a size and 2 from 1 MiB, not cleared. Blocks that come back to
/// a full bucket go back to the device.
///
/// The system that this comes from has no bound in bytes, and on loads with many sizes kept up to
/// 90 times the live peak; here it is 256 MiB. Change it with
/// [`PoolBuilder::cached_limit`].
///
/// ```
/// # use pool_core as bucketpool;
/// use bucketpool::{MIB, preset, sim::SimDevice};
///
/// let pool = preset::ndarray(SimDevice::new()).build();
/// drop(pool.allocate(4000)?);
/// assert_eq!(pool.allocate(4000)?.allocated_size(), 4000);
/// assert_eq!(pool.stats().hits, 1);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn ndarray<A: DeviceAllocator>(allocator: A) -> PoolBuilder<A> {
    BucketPool::builder(allocator)
        .policy(BucketPolicy::Exact)
        .granule(1)
        .window(1..=64 * MIB)
        .bucket_limit(8)
        .large_bucket_limit(MIB, 2)
        .full_bucket(FullBucket::RefuseNewest)
        .cached_limit(256 * MIB)
        .zero(ZeroPolicy::Never)
}

/// The size classes of [`small_tensors`], in bytes, and how many blocks of each are taken ahead of
/// time.
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

/// Small tensors of training steps: the nine classes of [`SMALL_BLOCKS`], filled ahead of time;
/// above 16 KiB past the pool; at most 16 MiB idle
/// ([`PoolStats::peak_cached_bytes`](crate::PoolStats::peak_cached_bytes) says how much it came
/// to).
///
/// The system that this comes from wanted a pool for the whole process and caches for each thread,
/// and its language had neither. Here every pool has the latter, and on the host `global()` is the
/// former.
///
/// ```
/// # use pool_core as bucketpool;
/// use bucketpool::{preset, sim::SimDevice};
///
/// let pool = preset::small_tensors(SimDevice::new()).build();
/// assert_eq!(pool.cached_buffers()[&64], 16);
/// let gradient = pool.allocate(65)?;
/// assert_eq!((gradient.allocated_size(), pool.stats().hits), (128, 1));
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn small_tensors<A: DeviceAllocator>(allocator: A) -> PoolBuilder<A> {
    let classes = SMALL_BLOCKS.map(|(bytes, _)| bytes);
    BucketPool::builder(allocator)
        .policy(BucketPolicy::tiered(&classes))
        .cached_limit(16 * MIB)
        .ahead(&SMALL_BLOCKS)
}
