//! The pools of host memory that the whole process shares.

use crate::allocator::HostAllocator;
use crate::limits;
use pool_core::{BucketPolicy, BucketPool, preset};
use std::sync::OnceLock;

/// Blocks up to a quarter larger than the request serve it.
const SLACK: f64 = 1.25;

/// The pool of host memory that the whole process shares, made when it is first asked for.
///
/// A request takes the smallest cached block of up to 1.25 times its size. At most an eighth of
/// the memory that the process may use is cached, by its control groups and `RLIMIT_AS` too, and
/// at most 1 GiB. (Of the rules that were simulated on three
/// loads of many sizes under 256 MiB this one hit 82 to 99.6 % and wasted 3 to 7 %; powers of two
/// hit more and waste 40 %.)
///
/// ```
/// let mut buffer = pool_host::global().allocate(1000)?;
/// buffer.fill(1);
/// drop(buffer);
/// assert_eq!(pool_host::global().allocate(900)?[0], 1); // the same block, warm
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn global() -> &'static BucketPool<HostAllocator> {
    static POOL: OnceLock<BucketPool<HostAllocator>> = OnceLock::new();
    POOL.get_or_init(|| {
        BucketPool::builder(HostAllocator::new())
            .policy(BucketPolicy::Fit { alpha: SLACK })
            .cached_limit(limits::usual_cached_limit())
            .build()
    })
}

/// A second pool of the process, with the size classes of seed 003: [`preset::small_tensors`].
///
/// It is for tensors of 64 B to 16 KiB. It holds up to 16 MiB of cached blocks, some of them from
/// the start; larger requests go past it. It is made when it is first asked for.
///
/// ```
/// let small = pool_host::global_small_tensors();
/// let tensor = small.allocate(100)?;
/// assert_eq!(tensor.allocated_size(), 128); // the class above
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub fn global_small_tensors() -> &'static BucketPool<HostAllocator> {
    static POOL: OnceLock<BucketPool<HostAllocator>> = OnceLock::new();
    POOL.get_or_init(|| preset::small_tensors(HostAllocator::new()).build())
}
