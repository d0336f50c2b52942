//! Several shards: what threads and streams free in one serves in another, limits hold over all, and
//! all memory goes back, whatever threads do at once.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::check::TestThreads;
use pool_core::limits::{CachedLimit, FullBucket};
use pool_core::port::{Immediate, Limit, Memory, Request};
use pool_core::{
    BucketPolicy, BucketPool, DeviceAllocator, DeviceError, KIB, MIB, PoolBuilder, PooledBuffer,
    StreamOf, Why,
};
use pool_sim::SimDevice;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

/// Memory without streams, whose blocks are numbers.
#[derive(Clone, Default)]
pub(crate) struct Plain(Arc<Counts>);

#[derive(Default)]
struct Counts {
    next: AtomicU64,
    held: Mutex<BTreeSet<u64>>,
    allocations: AtomicU64,
}

impl Plain {
    pub(crate) fn held(&self) -> usize {
        self.0.held.lock().unwrap().len()
    }
    pub(crate) fn allocations(&self) -> u64 {
        self.0.allocations.load(Relaxed)
    }
}

impl DeviceAllocator for Plain {
    type Block = u64;
    type View<'b> = u64;
    type Kind = ();
    type Clock = Immediate;
    const MEMORY: Memory = Memory::HOST;

    fn clock(&self) -> &Immediate {
        &Immediate
    }
    fn aligned(&self, (): (), _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::new(Why::Unsupported, "alignment"))
    }
    fn allocate(&self, _: Request<()>, (): &()) -> Result<u64, DeviceError> {
        self.0.allocations.fetch_add(1, Relaxed);
        let block = self.0.next.fetch_add(1, Relaxed);
        assert!(self.0.held.lock().unwrap().insert(block));
        Ok(block)
    }
    fn free(&self, block: u64, _: &[()]) -> Result<(), DeviceError> {
        assert!(self.0.held.lock().unwrap().remove(&block), "freed twice");
        Ok(())
    }
    fn view<'b>(&'b self, block: &'b u64, _: u64, _: u64, (): &StreamOf<Self>) -> u64 {
        *block
    }
    fn zero(&self, _: &mut u64, _: u64, (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

pub(crate) type Pool = BucketPool<Plain>;
type Buffer = PooledBuffer<Plain>;

pub(crate) fn build(
    shards: usize,
    of: impl FnOnce(PoolBuilder<Plain>) -> PoolBuilder<Plain>,
) -> (Plain, Pool) {
    let plain = Plain::default();
    let pool = of(BucketPool::builder(plain.clone())).shards(shards).build();
    (plain, pool)
}

/// The blocks that live buffers have: no two may have the same.
#[derive(Default)]
struct Live(Mutex<BTreeSet<u64>>);

impl Live {
    fn add(&self, buffer: &Buffer) {
        assert!(self.0.lock().unwrap().insert(*buffer.on(&()).unwrap()), "two owners of one block");
    }
    fn remove(&self, buffer: &Buffer) {
        assert!(self.0.lock().unwrap().remove(&*buffer.on(&()).unwrap()));
    }
}

/// Takes, frees and passes buffers on.
fn churn(
    (pool, live): (&Pool, &Live),
    seed: u64,
    steps: u64,
    (next, own): (&Sender<Buffer>, &Receiver<Buffer>),
) {
    let (mut random, mut mine) = (StdRng::seed_from_u64(seed), Vec::new());
    for _ in 0..steps {
        match random.random_range(0..8) {
            0..=3 if mine.len() < 40 => {
                let bytes = 512 << random.random_range(0..6);
                match pool.allocate(bytes) {
                    Ok(buffer) => {
                        live.add(&buffer);
                        mine.push(buffer);
                    }
                    Err(error) => assert_eq!(error.why(), Why::Limit(Limit::Reserved), "{error}"),
                }
            }
            4 if !mine.is_empty() => {
                let at = random.random_range(0..mine.len());
                next.send(mine.swap_remove(at)).unwrap();
            }
            5 if random.random_range(0..200) == 0 => drop(pool.trim(random.random_range(0..MIB))),
            5 if random.random_range(0..200) == 0 => drop(pool.clear()),
            5 if random.random_range(0..50) == 0 => {
                let stats = pool.stats();
                assert!(stats.allocated_bytes <= stats.reserved_peak_bytes, "{stats}");
            }
            _ => {
                if let Some(buffer) = mine.pop() {
                    live.remove(&buffer);
                    drop(buffer);
                }
            }
        }
        mine.extend(own.try_iter().take(2));
    }
    for buffer in &mine {
        live.remove(buffer);
    }
}

fn churn_of_threads(shards: usize, of: impl FnOnce(PoolBuilder<Plain>) -> PoolBuilder<Plain>) {
    let (threads, steps) = if cfg!(miri) { (2, 60) } else { (4, 20_000) };
    let (plain, pool) = build(shards, of);
    let live = Live::default();
    let (sends, receives): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
    let left: Vec<Receiver<Buffer>> = thread::scope(|scope| {
        let handles: Vec<_> = receives
            .into_iter()
            .enumerate()
            .map(|(at, own)| {
                let (of, next) = ((&pool, &live), sends[(at + 1) % threads].clone());
                scope.spawn(move || {
                    churn(of, at as u64, steps, (&next, &own));
                    own
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    drop(sends);
    for buffer in left.iter().flat_map(Receiver::iter) {
        live.remove(&buffer);
    }
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{stats}");
    assert_eq!(stats.allocations - stats.failures, stats.deallocations, "{stats}");
    assert_eq!(pool.check().live.blocks, 0);
    assert_eq!(stats.cached_bytes, stats.reserved_bytes, "{stats}");
    drop(pool);
    assert_eq!(plain.held(), 0);
}

#[test]
fn threads_that_pass_buffers_on_lose_none() {
    for shards in if cfg!(miri) { 2..3 } else { 1..9 } {
        println!("{shards} shards, seeds 0 to 3");
        churn_of_threads(shards, |builder| builder);
        churn_of_threads(shards, |builder| builder.policy(BucketPolicy::Exact));
        churn_of_threads(shards, |builder| builder.policy(BucketPolicy::Fit { alpha: 2.0 }));
    }
}

fn churn_under_limits(shards: usize) {
    churn_of_threads(shards, |builder| builder.cached_limit(64 * KIB));
    churn_of_threads(shards, |builder| builder.cached_limit(CachedLimit::OfPeak(0.25)));
    churn_of_threads(shards, |builder| builder.bucket_limit(3));
    churn_of_threads(shards, |builder| builder.reserved_limit(512 * KIB));
    let both = |builder: PoolBuilder<Plain>| {
        builder.reserved_limit(512 * KIB).cached_limit(64 * KIB).policy(BucketPolicy::Exact)
    };
    churn_of_threads(shards, both);
}

#[test]
fn threads_that_pass_buffers_on_lose_none_under_limits() {
    churn_under_limits(2);
}

#[test]
#[cfg(not(miri))]
fn threads_that_pass_buffers_on_lose_none_under_limits_in_any_number_of_shards() {
    for shards in [1, 3, 4, 5, 6, 7, 8] {
        println!("{shards} shards, seeds 0 to 3");
        churn_under_limits(shards);
    }
}

#[test]
fn a_pool_takes_shards_when_threads_take_turns_and_none_before() {
    let pool = BucketPool::new(Plain::default());
    let mut threads = TestThreads::new(2);
    let shards = || pool.check().free_by_shard.len();
    for _ in 0..20_000 {
        drop(pool.allocate(KIB).unwrap());
    }
    assert_eq!(shards(), 1, "one thread");
    for turn in 0..20_000 {
        threads.as_thread(turn % 2, || drop(pool.allocate(KIB).unwrap()));
    }
    assert!(shards() > 1, "two threads");
    let most = 2 * thread::available_parallelism().unwrap().get();
    assert!(shards() <= most.max(2), "{} shards", shards());
    let single = BucketPool::builder(Plain::default()).shards(1).build();
    for turn in 0..20_000 {
        threads.as_thread(turn % 2, || drop(single.allocate(KIB).unwrap()));
    }
    assert_eq!(single.check().free_by_shard.len(), 1, "the number was fixed");
}

/// Ten tiles under a limit of ten tiles: one shard can use all of the limit, and another one takes
/// over what it does not use.
#[test]
fn the_cached_limit_moves_between_shards() {
    let (plain, pool) = build(16, |builder| builder.cached_limit(10 * MIB));
    let mut threads = TestThreads::new(2);
    let tiles = || (0..10).map(|_| pool.allocate(MIB).unwrap()).collect::<Vec<_>>();
    for _ in 0..4 {
        threads.as_thread(0, || drop(tiles()));
        pool.check();
    }
    assert_eq!(plain.allocations(), 10, "one thread");
    let mut counts = Vec::new();
    for _ in 0..4 {
        threads.as_thread(1, || drop(tiles()));
        pool.check();
        counts.push(plain.allocations());
    }
    assert!(counts[0] <= 20 && counts[3] == counts[0], "another one: {counts:?}");
    assert!(pool.stats().cached_bytes <= 10 * MIB);
}

#[test]
fn the_oldest_blocks_of_all_shards_make_room() {
    let (_, pool) = build(4, |builder| builder.cached_limit(8 * MIB).policy(BucketPolicy::Exact));
    let mut threads = TestThreads::new(2);
    threads.as_thread(0, || {
        let all = [(); 8].map(|()| pool.allocate(MIB).unwrap());
        drop(all);
    });
    threads.as_thread(1, || drop(pool.allocate(3 * MIB).unwrap()));
    pool.check();
    let cached = pool.cached_buffers();
    assert_eq!(cached, [(MIB, 5), (3 * MIB, 1)].into(), "three of the first went");
}

#[test]
fn a_refusal_finds_what_another_shard_has() {
    for policy in [BucketPolicy::Exact, BucketPolicy::PowerOfTwo] {
        let (plain, pool) = build(4, |builder| builder.policy(policy).reserved_limit(4 * MIB));
        let mut threads = TestThreads::new(3);
        for thread in 0..2 {
            threads.as_thread(thread, || {
                drop([pool.allocate(MIB).unwrap(), pool.allocate(MIB).unwrap()]);
            });
        }
        let all = threads.as_thread(2, || [(); 4].map(|()| pool.allocate(MIB).unwrap()));
        assert_eq!(pool.stats().failures, 0);
        let refused = pool.allocate(1).unwrap_err();
        assert_eq!(refused.why(), Why::Limit(Limit::Reserved));
        drop(all);
        let large = threads.as_thread(2, || pool.allocate(4 * MIB).unwrap());
        assert_eq!((large.size(), plain.held()), (4 * MIB, 1));
    }
}

#[test]
fn a_bucket_limit_is_exact_over_threads() {
    for full in [FullBucket::EvictOldest, FullBucket::RefuseNewest] {
        let (_, pool) = build(8, |builder| builder.bucket_limit(3).full_bucket(full));
        let mut threads = TestThreads::new(4);
        let all: Vec<_> = (0..20).map(|_| pool.allocate(KIB).unwrap()).collect();
        for (at, buffer) in all.into_iter().enumerate() {
            threads.as_thread(at, || drop(buffer));
            assert_eq!(pool.cached_buffers()[&KIB], (at + 1).min(3), "{full:?}");
        }
        pool.check();
    }
}

/// Threads on one stream have one heap, however many shards there are.
#[test]
fn threads_on_one_stream_do_what_one_thread_does() {
    let figures = |shards: usize, threads: usize| {
        let device = SimDevice::new();
        let stream = device.stream();
        let pool = BucketPool::builder(device.clone()).shards(shards).build();
        let (mut turns, mut random) = (TestThreads::new(threads), StdRng::seed_from_u64(5));
        let mut live = Vec::new();
        for turn in 0..2000 {
            turns.as_thread(turn % 3, || {
                if random.random_range(0..2) == 0 && live.len() < 30 {
                    let bytes = random.random_range(1..64 * KIB);
                    live.push(pool.allocate_on(&stream, bytes).unwrap());
                } else if !live.is_empty() {
                    live.swap_remove(random.random_range(0..live.len()));
                }
            });
        }
        let stats = pool.stats();
        (stats.hits, stats.misses, stats.reserved_bytes, device.calls().allocations)
    };
    let one = figures(1, 1);
    assert_eq!(figures(4, 3), one);
    assert_eq!(figures(1, 3), one);
}

/// What a thread has freed serves others, also when it has ended.
#[test]
fn threads_that_come_and_go_leave_nothing() {
    let (plain, pool) = build(4, |builder| builder);
    let count = if cfg!(miri) { 20 } else { 4000 };
    for _ in 0..count {
        thread::scope(|scope| {
            scope.spawn(|| drop([pool.allocate(KIB).unwrap(), pool.allocate(64 * KIB).unwrap()]));
        });
    }
    assert!(plain.allocations() <= 2 * 4, "{} blocks", plain.allocations());
    pool.check();
}

/// One thread takes, another frees: the memory comes back to the one that takes.
#[test]
fn a_producer_and_a_consumer_need_no_more_and_more() {
    let rounds = if cfg!(miri) { 300 } else { 30_000 };
    for shards in [1, 2, 8] {
        let (_, pool) = build(shards, |builder| builder);
        let mut threads = TestThreads::new(2);
        let mut half = 0;
        for round in 0..rounds {
            let batch: Vec<_> =
                threads.as_thread(0, || (0..8).map(|_| pool.allocate(4 * KIB).unwrap()).collect());
            threads.as_thread(1, || drop(batch));
            if round == rounds / 2 {
                half = pool.reserved_bytes();
            }
        }
        let end = pool.reserved_bytes();
        assert!(end <= half + half / 50, "{shards} shards: {half} bytes, then {end}");
        pool.check();
    }
}

#[test]
fn a_pool_is_closed_while_threads_free_into_all_shards() {
    for round in 0..if cfg!(miri) { 3 } else { 500 } {
        let (plain, pool) = build(1 + round % 5, |builder| builder);
        let (sends, receives): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel()).unzip();
        for at in 0..30 {
            sends[at % 3].send(pool.allocate(4 * KIB).unwrap()).unwrap();
        }
        drop(sends);
        thread::scope(|scope| {
            for own in receives {
                scope.spawn(move || own.into_iter().for_each(|buffer: Buffer| drop(buffer)));
            }
            drop(pool);
        });
        assert_eq!(plain.held(), 0, "round {round}");
        assert_eq!(Arc::strong_count(&plain.0), 1, "round {round}: the store is not freed");
    }
}
