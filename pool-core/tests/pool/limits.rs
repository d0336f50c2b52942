//! Bounds hold at each call of the device, not only between calls.
#![expect(clippy::print_stdout, reason = "a seed replays a failure")]

use crate::hooked::hooked;
use pool_core::check::TestThreads;
use pool_core::limits::{CachedLimit, FullBucket, FullPool};
use pool_core::observe::{EventKind, PoolEvent};
use pool_core::port::{Limit, Memory};
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, DeviceError, KIB, MIB, PooledBuffer, Why};
use pool_sim::{Call, Claims, Hooked, Hooks, SimDevice};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Refuses nothing, and asserts at every call that no more is taken than the ceiling.
struct Ceiling {
    held: Arc<AtomicU64>,
    most: u64,
}

impl Claims<SimDevice> for Ceiling {
    const MEMORY: Memory = Memory { free_in_drop: true, ..Memory::DEVICE };
}

impl Hooks<SimDevice> for Ceiling {
    fn before(&self, _: &SimDevice, call: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
        match call {
            Call::Allocate { bytes } => {
                let held = self.held.fetch_add(*bytes, SeqCst) + bytes;
                assert!(held <= self.most, "{held} bytes taken over a ceiling of {}", self.most);
            }
            Call::Free { bytes, .. } => drop(self.held.fetch_sub(*bytes, SeqCst)),
            _ => {}
        }
        Ok(())
    }
}

/// One thread's program: 3000 allocations of up to 64 KiB, some two dozen alive, which alone
/// is near the limit. Returns the refused ones.
fn crowd(pool: &BucketPool<Hooked<SimDevice>>, seed: u64) -> u64 {
    println!("seed {seed}");
    let (mut random, mut live, mut refused) = (StdRng::seed_from_u64(seed), Vec::new(), 0);
    for _ in 0..if cfg!(miri) { 60 } else { 3000 } {
        match pool.allocate(random.random_range(0..64 * KIB)) {
            Ok(buffer) => live.push(buffer),
            Err(error) => {
                assert_eq!(error.why(), Why::Limit(Limit::Reserved), "{error}");
                refused += 1;
            }
        }
        if live.len() > random.random_range(0..48) {
            live.swap_remove(random.random_range(0..live.len()));
        }
    }
    refused
}

/// One request that can never fit costs the others none of their hits.
#[test]
fn a_request_above_the_limit_takes_no_cached_memory() {
    let arenas = [
        None,
        Some(ArenaConfig::segments(MIB)),
        Some(ArenaConfig::torch().gc_threshold(0.1)),
        Some(ArenaConfig::grow()),
        Some(ArenaConfig::pages(64 * KIB, 0.0)),
    ];
    for arena in arenas {
        let device = SimDevice::new();
        let builder = BucketPool::builder(device.clone()).reserved_limit(40 * MIB);
        let pool = match arena.clone() {
            Some(config) => builder.arena(config).build(),
            None => builder.cached_limit(CachedLimit::Unlimited).build(),
        };
        let (freed, _held) = (pool.allocate(MIB).unwrap(), pool.allocate(64 * KIB).unwrap());
        drop(freed);
        let before = (pool.stats().cached_bytes, pool.reserved_bytes(), device.calls());
        let error = pool.allocate(50 * MIB).unwrap_err();
        assert_eq!(
            (error.why(), error.figures().given_back_bytes),
            (Why::Limit(Limit::Reserved), 0)
        );
        assert_eq!(pool.warm_up(&[(50 * MIB, 1)]).unwrap_err().why(), Why::Limit(Limit::Reserved));
        let after = (pool.stats().cached_bytes, pool.reserved_bytes(), device.calls());
        assert!(before == after, "{arena:?}: {before:?} and then {after:?}");
    }
    let asked = Arc::new(AtomicU64::new(0));
    let seen = asked.clone();
    let builder = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB);
    let builder = builder.on_shortage(move |_| seen.fetch_add(1, SeqCst) < 3);
    let pool = builder.cached_limit(CachedLimit::Unlimited).build();
    drop(pool.allocate(MIB).unwrap());
    assert_eq!(pool.allocate(5 * MIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
    assert_eq!((asked.load(SeqCst), pool.stats().cached_bytes), (4, MIB));
}

#[test]
fn eight_threads_at_the_reserved_limit_never_pass_it() {
    let inner = SimDevice::new();
    let held = Arc::<AtomicU64>::default();
    let device = Hooked::with(inner, Ceiling { held: held.clone(), most: MIB });
    let pool = BucketPool::builder(device)
        .policy(BucketPolicy::Exact)
        .reserved_limit(MIB)
        .cached_limit(CachedLimit::OfPeak(0.5))
        .build();
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..if cfg!(miri) { 2 } else { 8 } {
            let (pool, refused) = (&pool, &refused);
            scope.spawn(move || refused.fetch_add(crowd(pool, seed), SeqCst));
        }
    });
    let stats = pool.stats();
    assert!(refused.load(SeqCst) > 100, "the limit was hardly reached");
    assert_eq!(stats.failures, refused.load(SeqCst));
    assert_eq!((stats.requested_bytes, stats.allocated_bytes), (0, 0));
    assert_eq!(stats.reserved_bytes, held.load(SeqCst));
    drop(pool);
    assert_eq!(held.load(SeqCst), 0);
}

#[test]
fn the_cached_bound_holds_over_all_threads_together() {
    let pool = BucketPool::builder(SimDevice::new())
        .policy(BucketPolicy::Exact)
        .cached_limit(256 * KIB)
        .build();
    thread::scope(|scope| {
        for seed in 0..if cfg!(miri) { 2 } else { 8 } {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..if cfg!(miri) { 40 } else { 2000 } {
                    let _ = pool.allocate(1 + random.random_range(0..32 * KIB)).map(drop);
                }
            });
        }
    });
    pool.trim(0).unwrap();
    let stats = pool.stats();
    assert!(stats.cached_bytes <= 256 * KIB, "{stats}");
    assert_eq!(stats.cached_bytes, stats.reserved_bytes);
    assert!(stats.hits > 0, "{stats}");
}

#[test]
fn a_bound_that_other_threads_have_used_up_is_theirs_to_lose() {
    let pool =
        BucketPool::builder(SimDevice::new()).policy(BucketPolicy::Exact).cached_limit(100).build();
    // Another thread leaves the cache full and goes.
    thread::scope(|scope| {
        scope.spawn(|| drop([pool.allocate(50), pool.allocate(50)]));
    });
    assert_eq!(pool.cached_buffers(), [(50, 2)].into());
    // The newcomer of this thread pushes the oldest out.
    drop(pool.allocate(40));
    pool.trim(0).unwrap();
    assert_eq!(pool.cached_buffers(), [(40, 1), (50, 1)].into());
}

#[test]
fn a_bound_that_other_threads_do_not_use_any_more_is_free_to_take() {
    let pool =
        BucketPool::builder(SimDevice::new()).policy(BucketPolicy::Exact).cached_limit(100).build();
    thread::scope(|scope| {
        scope.spawn(|| drop([pool.allocate(50), pool.allocate(50)]));
    });
    let _taken = [pool.allocate(50), pool.allocate(50)]; // both freed by the other thread
    assert_eq!(pool.stats().hits, 2);
    drop(pool.allocate(40));
    assert_eq!(pool.cached_buffers(), [(40, 1)].into());
}

#[test]
fn of_the_oldest_the_largest_goes_first_and_the_newcomer_is_kept() {
    let pool =
        BucketPool::builder(SimDevice::new()).policy(BucketPolicy::Exact).cached_limit(100).build();
    let live: Vec<_> = [30, 31, 32, 33].map(|bytes| pool.allocate(bytes).unwrap()).into();
    live.into_iter().for_each(drop); // 33 comes back last
    assert_eq!(pool.cached_buffers(), [(30, 1), (31, 1), (33, 1)].into());
    drop(pool.allocate(51).unwrap()); // more than half the bound: it is not kept
    assert_eq!(pool.cached_buffers(), [(30, 1), (31, 1), (33, 1)].into());
    assert_eq!(pool.stats().evictions, 2);
}

/// Blocks of one size go by age, and a large one that is not among the oldest few stays.
#[test]
fn the_oldest_of_equal_blocks_goes_first() {
    let limit = 60 * KIB;
    let pool = BucketPool::builder(SimDevice::new()).cached_limit(limit).build();
    let live: Vec<_> = (0..60).map(|_| pool.allocate(KIB).unwrap()).collect();
    let large = pool.allocate(4 * KIB).unwrap();
    live.into_iter().for_each(drop);
    drop(large); // four of the small ones go
    assert_eq!(pool.cached_buffers(), [(KIB, 56), (4 * KIB, 1)].into());
    let other = pool.allocate(2 * KIB).unwrap();
    drop(other);
    assert_eq!(pool.cached_buffers(), [(KIB, 54), (2 * KIB, 1), (4 * KIB, 1)].into());
}

#[test]
fn a_drop_and_a_hit_never_call_the_device_and_the_next_miss_pays() {
    let device = SimDevice::new();
    let pool = BucketPool::builder(device.clone())
        .policy(BucketPolicy::tiered(&[KIB]))
        .cached_limit(2 * KIB)
        .build();
    let (kept, past) = (pool.allocate(10).unwrap(), pool.allocate(2 * KIB).unwrap());
    drop((kept, past));
    assert_eq!((device.calls().frees, pool.stats().cached_bytes), (0, 3 * KIB));
    let hit = pool.allocate(10).unwrap();
    assert_eq!((device.calls().frees, pool.stats().hits), (0, 1));
    let _miss = pool.allocate(10).unwrap();
    assert_eq!((device.calls().frees, pool.stats().misses), (1, 2));
    drop(hit);
    assert_eq!(pool.trim(0).unwrap(), 0);
}

#[test]
fn the_cached_limit_holds_while_a_thread_caches_more_and_more() {
    for limit in [CachedLimit::Bytes(4 * MIB), CachedLimit::OfPeak(0.8)] {
        let inner = SimDevice::new();
        let ceiling = Ceiling { held: Arc::default(), most: u64::MAX };
        let device = Hooked::with(inner, ceiling).claiming::<Ceiling>();
        let pool = BucketPool::builder(device).cached_limit(limit).build();
        let large = [(); 5].map(|()| pool.allocate(MIB).unwrap());
        drop(large); // as much as the pool keeps
        for small in 1..50_u64 {
            drop(pool.allocate(small * 4 * KIB).unwrap());
            let stats = pool.stats();
            let most = limit.bytes(stats.allocated_peak_bytes);
            assert!(stats.cached_bytes <= most, "{small}, {limit}: {stats}");
        }
    }
}

#[test]
fn warming_up_refuses_what_the_bounds_would_not_keep() {
    let warm = |limit: CachedLimit, blocks: usize| {
        let device = SimDevice::new();
        let pool = BucketPool::builder(device.clone())
            .policy(BucketPolicy::Exact)
            .cached_limit(limit)
            .bucket_limit(blocks)
            .build();
        let refused = pool.warm_up(&[(100, 5)]).map_err(|error| error.why());
        assert_eq!(device.held_bytes(), pool.stats().cached_bytes);
        (refused, pool.cached_buffers().into_values().sum::<usize>())
    };
    assert_eq!(warm(CachedLimit::Bytes(1000), usize::MAX), (Ok(()), 5));
    assert_eq!(warm(CachedLimit::Bytes(300), usize::MAX), (Err(Why::Limit(Limit::Cached)), 3));
    assert_eq!(warm(CachedLimit::OfPeak(0.25), usize::MAX), (Err(Why::Limit(Limit::Cached)), 0));
    assert_eq!(warm(CachedLimit::Unlimited, 3), (Err(Why::Limit(Limit::Bucket)), 3));
}

/// Room that a warm-up was promised before it called the device may be taken by then.
#[test]
fn a_warm_up_keeps_the_cached_limit_while_others_free() {
    let live: Arc<Mutex<Vec<Box<dyn Any + Send>>>> = Arc::default();
    let freed = live.clone();
    let hook = move || drop(std::mem::take(&mut *freed.lock().unwrap()));
    let allocator = hooked(&SimDevice::new(), hook, false);
    let pool = BucketPool::builder(allocator).cached_limit(4 * MIB).build();
    let two = [pool.allocate(2 * MIB).unwrap(), pool.allocate(2 * MIB).unwrap()];
    live.lock().unwrap().extend(two.map(|buffer| Box::new(buffer) as Box<dyn Any + Send>));
    let warmed = pool.warm_up(&[(2 * MIB, 1)]);
    let stats = pool.stats();
    assert!(stats.peak_cached_bytes <= 4 * MIB, "{warmed:?}: {stats}");
}

#[test]
fn a_warm_up_that_finds_its_bucket_full_meanwhile_counts_no_return() {
    let live: Arc<Mutex<Vec<Box<dyn Any + Send>>>> = Arc::default();
    let freed = live.clone();
    let hook = move || drop(std::mem::take(&mut *freed.lock().unwrap()));
    let device = SimDevice::new();
    let allocator = hooked(&device, hook, false);
    let builder = BucketPool::builder(allocator).cached_limit(CachedLimit::Unlimited);
    let pool = builder.bucket_limit(1).full_bucket(FullBucket::RefuseNewest).build();
    let one = pool.allocate(MIB).unwrap();
    live.lock().unwrap().push(Box::new(one));
    assert_eq!(pool.warm_up(&[(MIB, 1)]).unwrap_err().why(), Why::Limit(Limit::Bucket));
    pool.trim(0).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.deallocations, stats.returns, stats.cached_bytes), (1, 1, MIB), "{stats}");
    assert_eq!(device.held_bytes(), MIB);
}

/// A drop may not free memory of this device, so that the next call for upkeep does.
#[test]
fn each_call_for_upkeep_gives_back_what_is_above_the_cached_limit() {
    type Upkeep = fn(&BucketPool<SimDevice>) -> u64;
    let calls: [(&str, Upkeep); 3] = [
        ("tick", |pool| pool.tick(Duration::ZERO).unwrap()),
        ("shrink_to", |pool| pool.shrink_to(u64::MAX).unwrap()),
        ("trim", |pool| pool.trim(0).unwrap()),
    ];
    for (name, call) in calls {
        let builder = BucketPool::builder(SimDevice::new()).cached_limit(MIB);
        let pool = builder.arena(ArenaConfig::segments(MIB)).build();
        drop([(); 4].map(|()| pool.allocate(MIB).unwrap()));
        assert_eq!((call(&pool), pool.stats().cached_bytes), (3 * MIB, MIB), "{name}");
    }
}

/// Neither half of such a page is a page, and each is behind another stream.
#[test]
fn a_free_page_that_two_streams_share_goes_back() {
    type Upkeep = fn(&BucketPool<SimDevice>) -> u64;
    let calls: [(&str, Upkeep); 4] = [
        ("trim", |pool| {
            let went = || Some(pool.trim(1).unwrap()).filter(|bytes| *bytes > 0);
            std::iter::from_fn(went).sum()
        }),
        ("shrink_to", |pool| pool.shrink_to(0).unwrap()),
        ("set_reserved_limit", |pool| pool.set_reserved_limit(0).unwrap()),
        ("clear", |pool| pool.clear().unwrap()),
    ];
    for (name, call) in calls {
        let config = ArenaConfig::pages(64 * KIB, 0.0);
        let pool = BucketPool::builder(SimDevice::new()).arena(config).build();
        let streams = [pool.allocator().stream(), pool.allocator().stream()];
        let halves = streams.map(|on| {
            pool.allocator().run(); // so that the other half of the page is ready for this stream
            pool.allocate_on(&on, 32 * KIB).unwrap()
        });
        drop(halves);
        pool.allocator().run();
        let reserved = pool.reserved_bytes();
        assert_eq!((call(&pool), pool.reserved_bytes()), (reserved, 0), "{name}");
    }
}

#[test]
fn a_share_of_the_peak_survives_a_reset_of_the_statistics() {
    let pool = BucketPool::builder(SimDevice::new())
        .policy(BucketPolicy::Exact)
        .cached_limit(CachedLimit::OfPeak(0.5))
        .build();
    let live: Vec<_> = (0..10).map(|_| pool.allocate(100)).collect();
    drop(live);
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().cached_bytes, 500);
    pool.reset_stats();
    assert_eq!((pool.stats().allocations, pool.stats().allocated_peak_bytes), (0, 0));
    drop(pool.allocate(100));
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().cached_bytes, 500, "the bound forgot the peak");
}

#[test]
fn a_cleared_cache_leaves_its_part_of_a_bucket_limit_to_others() {
    let pool = BucketPool::builder(SimDevice::new()).bucket_limit(8).build();
    drop(pool.allocate(KIB).unwrap());
    pool.clear().unwrap();
    let keep_eight = || drop([(); 8].map(|()| pool.allocate(KIB).unwrap()));
    thread::scope(|scope| scope.spawn(keep_eight).join().unwrap());
    assert_eq!(pool.stats().cached_buffers, 8);
}

/// While a request gives cached memory back, another thread frees a buffer of another size.
#[test]
fn memory_that_comes_back_during_the_last_trim_serves_the_request() {
    let spare: Arc<Mutex<Vec<PooledBuffer<SimDevice>>>> = Arc::default();
    let dropped = spare.clone();
    let on_eviction = move |event: &PoolEvent<'_>| {
        if let EventKind::Evict(_) = event.kind {
            let one = dropped.lock().unwrap().pop();
            thread::scope(|scope| drop(scope.spawn(|| drop(one))));
        }
    };
    let builder = BucketPool::builder(SimDevice::new()).reserved_limit(64 * KIB);
    let pool = builder.observer(Arc::new(on_eviction)).build();
    drop(pool.allocate(16 * KIB).unwrap());
    *spare.lock().unwrap() =
        vec![pool.allocate(32 * KIB).unwrap(), pool.allocate(8 * KIB).unwrap()];
    let served = pool.allocate(64 * KIB);
    assert!(served.is_ok(), "{}", served.unwrap_err());
}

/// Limits that change while a pool is used: what is above a lower one goes at once, and nothing that a
/// higher one allows goes, for one shard and for several.
#[test]
fn limits_of_the_cache_change_in_a_running_pool() {
    for shards in [1, 4] {
        let builder = BucketPool::builder(crate::shards::Plain::default()).shards(shards);
        let pool = builder.policy(BucketPolicy::Exact).bucket_limit(8).build();
        let mut threads = TestThreads::new(4);
        let mut fill = |blocks: usize| {
            let all: Vec<_> = (0..blocks).map(|_| pool.allocate(MIB).unwrap()).collect();
            for (at, buffer) in all.into_iter().enumerate() {
                threads.as_thread(at % 4, || drop(buffer));
            }
            pool.check();
            pool.cached_buffers().get(&MIB).copied().unwrap_or(0)
        };
        assert_eq!(fill(12), 8, "{shards} shards");
        assert_eq!(pool.set_bucket_limit(3).unwrap(), 5 * MIB);
        pool.check();
        assert_eq!(fill(12), 3);
        assert_eq!(pool.set_bucket_limit(usize::MAX).unwrap(), 0);
        assert_eq!(fill(12), 12);
        assert_eq!(pool.set_bucket_limit(10).unwrap(), 2 * MIB);
        assert_eq!(fill(12), 10);
        assert_eq!(pool.set_cached_limit(4 * MIB).unwrap(), 6 * MIB);
        assert_eq!((fill(12), pool.stats().cached_bytes), (4, 4 * MIB));
        assert_eq!(pool.set_cached_limit(6 * MIB).unwrap(), 0);
        assert_eq!(fill(12), 6);
        assert_eq!(pool.set_cached_limit(CachedLimit::OfPeak(0.25)).unwrap(), 3 * MIB);
        assert_eq!(fill(12), 3);
        assert_eq!(pool.set_cached_limit(CachedLimit::Unlimited).unwrap(), 0);
        assert_eq!(fill(12), 10);
    }
}

#[test]
fn the_cached_limit_of_an_arena_changes_in_a_running_pool() {
    for (shards, streams) in [(1, 1), (4, 4)] {
        let device = SimDevice::new();
        let builder = BucketPool::builder(device.clone()).arena(ArenaConfig::pages(64 * KIB, 0.5));
        let pool = builder.shards(shards).build();
        let streams: Vec<_> = (0..streams).map(|_| device.stream()).collect();
        let on = |at: usize| pool.allocate_on(&streams[at % streams.len()], 64 * KIB).unwrap();
        let all: Vec<_> = (0..64).map(on).collect();
        drop(all);
        let parts = pool.check().free_by_shard;
        assert_eq!(parts.iter().filter(|free| free.bytes > 0).count(), shards.min(streams.len()));
        assert!(pool.stats().cached_bytes >= 4 * MIB);
        let given_back = pool.set_cached_limit(MIB).unwrap();
        assert!(given_back >= MIB && pool.stats().cached_bytes <= MIB, "{given_back} given back");
        pool.check();
    }
}

/// A limit of 0 keeps nothing, and leaves nothing behind for sizes that were there once.
#[test]
fn a_bucket_limit_of_0_keeps_nothing() {
    let builder = BucketPool::builder(crate::shards::Plain::default()).shards(4);
    let pool = builder.policy(BucketPolicy::Exact).bucket_limit(2).build();
    let mut threads = TestThreads::new(4);
    let mut once = |sizes: std::ops::Range<u64>| {
        for size in sizes {
            let buffer = pool.allocate(64 * size).unwrap();
            threads.as_thread(usize::try_from(size).unwrap() % 4, || drop(buffer));
        }
        pool.check().leased_buckets
    };
    assert_eq!(once(1..20), 19);
    pool.set_bucket_limit(0).unwrap();
    assert_eq!((once(20..60), pool.stats().cached_bytes), (0, 0));
}

#[test]
fn a_limit_that_cannot_be_set_is_refused_and_the_old_one_holds() {
    let pool = BucketPool::builder(SimDevice::new()).cached_limit(MIB).build();
    let error = pool.set_cached_limit(CachedLimit::OfPeak(-1.0)).unwrap_err();
    assert_eq!(error.why(), Why::OutOfRange);
    assert!(error.to_string().contains("expected a share from 0 to 10"), "{error}");
    assert_eq!(pool.stats().cached_limit_bytes, Some(MIB));
    let error = pool.set_bucket_limit(3).unwrap_err();
    assert_eq!(error.why(), Why::Unsupported);
    assert!(error.to_string().contains("built without `bucket_limit`"), "{error}");
    let with_one = BucketPool::builder(SimDevice::new()).bucket_limit(3).build();
    assert_eq!(with_one.set_large_bucket_limit(3).unwrap_err().why(), Why::Unsupported);
    let arena = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow()).bucket_limit(3);
    assert_eq!(arena.build().set_bucket_limit(3).unwrap_err().why(), Why::Unsupported);
}

/// As the pool of seed 000: a full pool discards what comes back, and a block may have all of the limit.
#[test]
fn a_full_pool_may_refuse_what_comes_back() {
    for shards in [1, 4] {
        let builder = BucketPool::builder(crate::shards::Plain::default()).shards(shards);
        let builder = builder.policy(BucketPolicy::Exact).cached_limit(4 * MIB);
        let pool = builder.full_pool(FullPool::RefuseNewest).build();
        let old = [(); 3].map(|()| pool.allocate(MIB).unwrap());
        let new = pool.allocate(2 * MIB).unwrap();
        let whole = pool.allocate(4 * MIB).unwrap();
        drop((old, new));
        assert_eq!(pool.cached_buffers(), [(MIB, 3)].into(), "{shards} shards: the new one goes");
        pool.clear().unwrap();
        drop(whole);
        assert_eq!(
            pool.cached_buffers(),
            [(4 * MIB, 1)].into(),
            "{shards} shards: all of the limit"
        );
        let mut threads = TestThreads::new(4);
        let many: Vec<_> = (0..12).map(|_| pool.allocate(512 * KIB).unwrap()).collect();
        for (at, buffer) in many.into_iter().enumerate() {
            threads.as_thread(at % 4, || drop(buffer));
            pool.check();
        }
        assert_eq!(pool.stats().cached_bytes, 4 * MIB);
    }
}

/// While threads take and free, limits go up and down, and hold at the end.
#[test]
fn limits_that_change_beside_threads_hold() {
    let builder = BucketPool::builder(crate::shards::Plain::default()).shards(4).bucket_limit(8);
    let pool = builder.build();
    let rounds = if cfg!(miri) { 20 } else { 500 };
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(thread);
                for _ in 0..rounds {
                    let sizes = (0..8).map(|_| KIB << random.random_range(0..4));
                    let all: Vec<_> = sizes.map(|bytes| pool.allocate(bytes).unwrap()).collect();
                    drop(all);
                }
            });
        }
        let other = pool.clone();
        scope.spawn(move || {
            for round in 0..rounds {
                other.set_cached_limit(16 * KIB + round as u64).unwrap();
            }
        });
        for round in 0..rounds {
            pool.set_bucket_limit(1 + round % 8).unwrap();
            let cached = if round % 3 == 0 { CachedLimit::Unlimited } else { (64 * KIB).into() };
            pool.set_cached_limit(cached).unwrap();
        }
    });
    pool.set_cached_limit(8 * KIB).unwrap();
    pool.set_bucket_limit(1).unwrap();
    pool.check();
    assert!(pool.cached_buffers().values().all(|count| *count <= 1), "{:?}", pool.cached_buffers());
    assert!(pool.stats().cached_bytes <= 8 * KIB);
    pool.clear().unwrap();
    assert_eq!((pool.stats().cached_bytes, pool.stats().reserved_bytes), (0, 0));
}
