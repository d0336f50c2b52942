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

/// What makes the builder of a pool.
type Build = fn() -> PoolBuilder<HostAllocator>;

/// Pools that are tried until the threads of one meet in a shard, which sends some to another shard.
const TRIES: usize = 20;

/// Passes blocks, half of them on each of two ways, through a pool that comes to use several shards.
/// Returns the reserved bytes after a 50th, a half and all of them, as one producer sees them.
fn pass(builder: Build, blocks: u64) -> [u64; 3] {
    let pool = || builder().cached_limit(CachedLimit::Unlimited).shards(SHARDS).build();
    let of_several = (0..TRIES).find_map(|_| pass_through(&pool(), blocks));
    assert!(of_several.is_some(), "blocks lie in several shards of one of {TRIES} pools");
    of_several.unwrap()
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

fn of_host() -> PoolBuilder<HostAllocator> {
    BucketPool::builder(HostAllocator::new())
}

#[test]
fn what_producers_and_consumers_hold_does_not_grow() {
    let blocks = std::env::var("BUCKETPOOL_BLOCKS").map_or(BLOCKS, |text| text.parse().unwrap());
    let subjects: [(&str, Build); 4] = [
        ("pow2", || of_host().policy(BucketPolicy::PowerOfTwo)),
        ("exact", || of_host().policy(BucketPolicy::Exact)),
        ("fit", || of_host().policy(BucketPolicy::Fit { alpha: 2.0 })),
        ("arena", || of_host().arena(ArenaConfig::grow())),
    ];
    for (name, builder) in subjects {
        let [first, half, end] = pass(builder, blocks);
        println!(
            "{name}: {blocks} blocks; {} KiB reserved after a 50th, {} after a half, {} after all",
            first / KIB,
            half / KIB,
            end / KIB
        );
        // A short run may come to use further shards in its second half: its bound is three
        // times the mean bytes of two full ways.
        let short = 3 * 2 * ON_THE_WAY as u64 * (SIZES / 2 * 64);
        let most = if blocks > BLOCKS { first + first / 2 } else { short };
        assert!(end <= most, "{name}: {end} bytes after all, above {most}");
    }
}
