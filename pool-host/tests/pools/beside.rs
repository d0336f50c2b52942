//! A request does not wait for threads in other shards, while it can do without what these have.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use pool_core::check::{PoolLock, TestThreads};
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, PoolBuilder, PooledBuffer};
use pool_host::HostAllocator;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// After this time a test fails that waits for a lock for ever.
const HANGS_AFTER: Duration = Duration::from_mins(1);

const SHARDS: usize = 4;
/// Threads of which one at least has each shard as its home, unless other tests have most numbers.
const THREADS: usize = 32;

/// Makes misses, hits and frees on a thread while the locks of all shards but its own are held. What
/// the pool has seen to be needed at once lets it take a part of that from the device alone.
fn work_beside_locked_shards(
    builder: impl Fn() -> PoolBuilder<HostAllocator> + Send + 'static,
    misses: u64,
) {
    let (done, is_done) = channel();
    thread::spawn(move || {
        let mut threads = TestThreads::new(THREADS);
        for thread in 0..THREADS {
            let pool = builder().shards(SHARDS).build();
            let before = threads.as_thread(thread, || {
                let needed = [(); 4].map(|()| allocate_all(&pool));
                drop([(); 2].map(|()| allocate_all(&pool)));
                pool.clear().unwrap();
                let before = pool.stats();
                pool.with_lock_held(PoolLock::OtherShards, || {
                    drop(allocate_all(&pool));
                    drop(allocate_all(&pool));
                    drop(needed);
                });
                before
            });
            done.send((before, pool.stats())).unwrap();
        }
    });
    for thread in 0..THREADS {
        let (before, stats) = match is_done.recv_timeout(HANGS_AFTER) {
            Ok(both) => both,
            Err(RecvTimeoutError::Timeout) => panic!("thread {thread} waits for another shard"),
            Err(RecvTimeoutError::Disconnected) => panic!("thread {thread} failed, see above"),
        };
        assert_eq!((stats.allocations, stats.deallocations), (2400, 2400));
        assert!(stats.misses - before.misses >= misses, "{stats}");
        assert!(stats.hits - before.hits >= 300, "{stats}");
    }
}

/// Allocates a block of each of 300 sizes.
fn allocate_all(pool: &BucketPool<HostAllocator>) -> Vec<PooledBuffer<HostAllocator>> {
    (1..=300).map(|size| pool.allocate(size * KIB).unwrap()).collect()
}

#[test]
fn whole_blocks_do_not_wait_for_other_shards() {
    let builder = || BucketPool::builder(HostAllocator::new());
    work_beside_locked_shards(move || builder().policy(BucketPolicy::Exact), 300);
    work_beside_locked_shards(move || builder().policy(BucketPolicy::PowerOfTwo), 300);
    let limited = move || builder().policy(BucketPolicy::Exact).cached_limit(1 << 30);
    work_beside_locked_shards(limited, 300);
}

#[test]
fn an_arena_that_grows_does_not_wait_for_other_shards() {
    let builder = || BucketPool::builder(HostAllocator::new()).arena(ArenaConfig::grow());
    work_beside_locked_shards(builder, 1);
    work_beside_locked_shards(move || builder().cached_limit(1 << 30), 1);
}

/// Returns for each shard the number of a thread whose home it is.
fn thread_of_each_shard(threads: &mut TestThreads) -> Vec<usize> {
    let home = |thread: usize| {
        let pool = BucketPool::builder(HostAllocator::new()).shards(SHARDS).build();
        threads.as_thread(thread, || drop(pool.allocate(KIB).unwrap()));
        pool.check().free_by_shard.iter().position(|free| free.bytes > 0).unwrap()
    };
    let homes: Vec<usize> = (0..THREADS).map(home).collect();
    (0..SHARDS).map(|shard| homes.iter().position(|home| *home == shard).unwrap()).collect()
}

#[test]
fn a_free_leases_what_a_shard_without_a_thread_does_not_use() {
    let (done, is_done) = channel();
    thread::spawn(move || {
        let mut threads = TestThreads::new(THREADS);
        let of = thread_of_each_shard(&mut threads);
        let builder = BucketPool::builder(HostAllocator::new()).policy(BucketPolicy::Exact);
        let pool = builder.cached_limit(32 * MIB).shards(SHARDS).build();
        let allocate =
            |count: usize| -> Vec<_> { (0..count).map(|_| pool.allocate(MIB).unwrap()).collect() };
        // The first two shards lease all of the limit, and use none of it.
        let held: Vec<_> = (0..2)
            .map(|shard| {
                threads.as_thread(of[shard], || {
                    drop(allocate(16));
                    allocate(16)
                })
            })
            .collect();
        threads.as_thread(of[2], || {
            pool.with_lock_held(PoolLock::Shard, || drop(allocate(4)));
        });
        let free = pool.check().free_by_shard;
        drop(held);
        done.send(free.iter().map(|free| free.bytes).collect::<Vec<u64>>()).unwrap();
    });
    let free = is_done
        .recv_timeout(HANGS_AFTER)
        .expect("a free waits for the first shard, or its thread failed");
    assert_eq!(free, [0, 0, 4 * MIB, 0]);
}
