//! A request does not wait for threads in other shards, while it can do without what these have.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use pool_core::check::PoolLock;
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, PoolBuilder};
use pool_host::HostAllocator;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// After this time a test fails that waits for a lock for ever.
const HANGS_AFTER: Duration = Duration::from_mins(1);

/// Makes misses, hits and frees on one thread while the locks of all other shards are held.
fn work_beside_locked_shards(builder: PoolBuilder<HostAllocator>, misses: u64) {
    let (done, is_done) = channel();
    thread::spawn(move || {
        let pool = builder.shards(4).build();
        pool.with_lock_held(PoolLock::OtherShards, || {
            for _ in 0..2 {
                let buffers: Vec<_> =
                    (1..=300).map(|size| pool.allocate(size * KIB).unwrap()).collect();
                drop(buffers);
            }
        });
        done.send(pool.stats()).unwrap();
    });
    let stats = match is_done.recv_timeout(HANGS_AFTER) {
        Ok(stats) => stats,
        Err(RecvTimeoutError::Timeout) => panic!("a request waits for another shard"),
        Err(RecvTimeoutError::Disconnected) => panic!("the thread failed, as it says above"),
    };
    assert_eq!((stats.allocations, stats.deallocations), (600, 600));
    assert!(stats.misses >= misses, "{stats}");
    assert!(stats.hits >= 300, "{stats}");
}

#[test]
fn whole_blocks_do_not_wait_for_other_shards() {
    let builder = || BucketPool::builder(HostAllocator::new());
    // Each 64th miss may look at all shards.
    work_beside_locked_shards(builder().policy(BucketPolicy::Exact), 64);
    work_beside_locked_shards(builder().policy(BucketPolicy::PowerOfTwo), 64);
}

#[test]
fn an_arena_that_grows_does_not_wait_for_other_shards() {
    let builder = || BucketPool::builder(HostAllocator::new()).arena(ArenaConfig::grow());
    work_beside_locked_shards(builder(), 16);
    work_beside_locked_shards(builder().cached_limit(1 << 30), 16);
}
