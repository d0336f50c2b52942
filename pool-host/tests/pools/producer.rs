//! Two threads allocate and two others free, without a cached limit, over several shards: what the
//! pool holds stays. `bounded.rs` compares it with what one shard holds.
//!
//! ```console
//! $ BUCKETPOOL_BLOCKS=50000000 \
//!     cargo test --release -p pool-host --test pools -- producer:: --nocapture
//! ```
//!
//! passes that many blocks for each policy.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::limits::CachedLimit;
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, PoolBuilder, PooledBuffer};
use pool_host::HostAllocator;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Blocks that are passed in a run of the tests.
const BLOCKS: u64 = if cfg!(miri) { 400 } else { 400_000 };
/// Blocks that are on their way between the threads at most.
const ON_THE_WAY: usize = 1000;
/// Sizes of blocks, in steps of 64 bytes.
const SIZES: u64 = 200;
const SHARDS: usize = 4;

/// Pools that are tried until the threads of one meet in a shard, which sends some to another shard.
const TRIES: usize = 20;

/// Passes blocks, half of them on each of two ways, through a pool that comes to use several shards.
/// Returns the reserved bytes after a 50th, a half and all of them, as one producer sees them.
fn pass(builder: impl Fn() -> PoolBuilder<HostAllocator>, blocks: u64) -> [u64; 3] {
    let pool = || builder().cached_limit(CachedLimit::Unlimited).shards(SHARDS).build();
    let of_several = (0..TRIES).find_map(|_| pass_through(&pool(), blocks));
    assert!(of_several.is_some(), "blocks lie in several shards of one of {TRIES} pools");
    of_several.unwrap_or_default()
}

/// Returns the reserved bytes, or `None` where all blocks lie in one shard at the end.
fn pass_through(pool: &BucketPool<HostAllocator>, blocks: u64) -> Option<[u64; 3]> {
    let reserved = thread::scope(|scope| {
        let ways = [7, 8].map(|seed| {
            let (to, from) = sync_channel::<PooledBuffer<HostAllocator>>(ON_THE_WAY);
            scope.spawn(|| from.into_iter().for_each(drop));
            scope.spawn(move || produce(pool, to, blocks / 2, seed))
        });
        ways.map(|way| way.join().unwrap())[0]
    });
    let used = pool.check().free_by_shard.iter().filter(|free| free.bytes > 0).count();
    (used > 1).then_some(reserved)
}

/// Allocates blocks for one way. Returns the reserved bytes after a 50th, a half and all of them.
fn produce(
    pool: &BucketPool<HostAllocator>,
    to: SyncSender<PooledBuffer<HostAllocator>>,
    blocks: u64,
    seed: u64,
) -> [u64; 3] {
    let (mut random, mut passed) = (StdRng::seed_from_u64(seed), 0);
    let reserved = [blocks / 50, blocks / 2, blocks].map(|until| {
        while passed < until {
            let bytes = random.random_range(1..=SIZES) * 64;
            to.send(pool.allocate(bytes).unwrap()).unwrap();
            passed += 1;
        }
        pool.reserved_bytes()
    });
    drop(to);
    reserved
}

#[test]
fn what_producers_and_consumers_hold_does_not_grow() {
    let blocks = std::env::var("BUCKETPOOL_BLOCKS").map_or(BLOCKS, |text| text.parse().unwrap());
    let of_host = || BucketPool::builder(HostAllocator::new());
    let [pow2, exact, fit] =
        [BucketPolicy::PowerOfTwo, BucketPolicy::Exact, BucketPolicy::Fit { alpha: 2.0 }]
            .map(|policy| pass(|| of_host().policy(policy.clone()), blocks));
    let arena = pass(|| of_host().arena(ArenaConfig::grow()), blocks);
    for (name, [first, half, end]) in
        [("pow2", pow2), ("exact", exact), ("fit", fit), ("arena", arena)]
    {
        println!(
            "{name}: {blocks} blocks; {} KiB reserved after a 50th, {} after a half, {} after all",
            first / KIB,
            half / KIB,
            end / KIB
        );
        // A short run still comes to use further shards in its second half.
        let short = 3 * 2 * ON_THE_WAY as u64 * (SIZES / 2 * 64);
        let most = if blocks > BLOCKS { first + first / 2 } else { short };
        assert!(end <= most, "{name}: {end} bytes after all, above {most}");
    }
}
