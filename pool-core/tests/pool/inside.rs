//! What happens inside a pool: how many ranges are looked at under the lock at once, what thread
//! caches have, and what a lock that another thread holds does to a child.
#![expect(clippy::expect_used, reason = "tests")]

use pool_core::check::{Checked, PoolLock};
use pool_core::limits::Retention;
use pool_core::port::Limit;
use pool_core::stream::StealPolicy;
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, GIB, KIB, MIB, PrivatePool, Why,
};
use pool_sim::{SimDevice, SimStream};
use std::sync::mpsc;
use std::time::Duration;

/// Looks at nodes: 256 in a portion of an explicit call, up to 16 each where one is taken out or
/// coalesces with its neighbours; 48 holes with 16 neighbours each where the pool grows by pages.
const MOST: usize = 4096;
/// Free ranges; far more than the bound.
const RANGES: usize = 20_000;

/// A configuration, and what it is called.
type Named = (&'static str, ArenaConfig);

struct Crowd {
    pool: BucketPool<SimDevice>,
    streams: Vec<SimStream>,
    name: &'static str,
}

impl Crowd {
    /// A pool with many free ranges, no two of them neighbours, of many streams.
    fn new((name, config): Named, streams: usize, steal: StealPolicy, limit: u64) -> Self {
        let device = SimDevice::new();
        let streams: Vec<_> = (0..streams).map(|_| device.stream()).collect();
        let retention = Retention { time: Some(Duration::ZERO), allocations: None };
        let pool = BucketPool::builder(device)
            .arena(config)
            .steal(steal)
            .retention(retention)
            .reserved_limit(limit)
            .build();
        let crowd = Self { pool, streams, name };
        let size = |at: usize| 512 * (1 + at as u64 * 7 % 13);
        let all: Vec<_> = (0..2 * RANGES)
            .map(|at| crowd.pool.allocate_on(crowd.stream(at / 2), size(at)))
            .collect();
        for (at, buffer) in all.into_iter().enumerate() {
            let buffer = buffer.expect("there is room");
            match at % 2 {
                0 => std::mem::forget(buffer), // stays, so that the free ones are not neighbours
                _ => drop(buffer),
            }
        }
        crowd.check("build");
        crowd
    }

    fn stream(&self, at: usize) -> &SimStream {
        &self.streams[at % self.streams.len()]
    }

    /// Asserts that no call looked at more ranges at once than the bound.
    fn check(&self, call: &str) {
        let Checked { most_visits: most, .. } = self.pool.check();
        assert!(most <= MOST, "{call}, {}: {most} looks under the lock at once", self.name);
    }
}

fn configs() -> [Named; 4] {
    [
        ("grow", ArenaConfig::grow()),
        ("pages", ArenaConfig::pages(64 * KIB, 0.05)),
        ("segments", ArenaConfig::segments(MIB)),
        ("torch", ArenaConfig::torch()),
    ]
}

#[test]
#[cfg_attr(miri, ignore = "many thousands of ranges, which Miri would take hours for")]
fn each_call_looks_at_a_bounded_number_of_ranges_at_once() {
    for config in configs() {
        for streams in [1, 40] {
            let crowd = Crowd::new(config.clone(), streams, StealPolicy::Wait, 8 * GIB);
            let pool = &crowd.pool;
            for at in 0..500_usize {
                let bytes = 512 * (1 + at as u64 * 31 % 100);
                drop(pool.allocate_on(crowd.stream(at), bytes));
            }
            crowd.check("allocate and free");
            drop(pool.allocate(3 * MIB));
            crowd.check("grow");
            let _ = (pool.stats(), pool.device_stats(), pool.map());
            crowd.check("read");
            assert!(pool.trim(1).is_ok());
            crowd.check("trim");
            assert!(pool.tick(Duration::from_secs(1)).is_ok());
            crowd.check("tick");
            assert!(pool.shrink_to(1).is_ok());
            crowd.check("shrink");
            assert!(pool.clear().is_ok());
            crowd.check("clear");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "many thousands of ranges, which Miri would take hours for")]
fn a_request_that_is_refused_looks_at_a_bounded_number_of_ranges_at_once() {
    for config in configs() {
        for steal in [StealPolicy::Never, StealPolicy::Wait] {
            let crowd = Crowd::new(config.clone(), 40, steal, 256 * MIB);
            let refused = crowd.pool.allocate(200 * MIB).expect_err("above the limit");
            assert_eq!(refused.why(), Why::Limit(Limit::Reserved), "{refused}");
            crowd.check("refuse");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "many thousands of ranges, which Miri would take hours for")]
fn free_ranges_that_a_request_may_not_have_are_not_all_looked_at_at_once() {
    for config in configs() {
        let crowd = Crowd::new(config.clone(), 1, StealPolicy::Never, 256 * MIB);
        let (pool, mut all) = (&crowd.pool, Vec::new());
        let other = pool.allocator().stream();
        while let Ok(buffer) = pool.allocate_on(&other, 8 * KIB) {
            all.push(buffer);
        }
        crowd.check("fill");
        assert!(pool.allocate_on(&other, 512).is_err(), "what is free is another stream's");
        crowd.check("refuse");
    }
}

#[test]
fn to_look_at_the_figures_empties_no_cache() {
    let arena = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow());
    for builder in [arena, BucketPool::builder(SimDevice::new())] {
        let pool = builder.build();
        let large = pool.allocate(8 * MIB).expect("there is room");
        drop(pool.allocate(4 * KIB).expect("there is room"));
        let cached = || pool.check().cached_by_size.get(&(4 * KIB)).copied().unwrap_or(0);
        assert_eq!(cached(), 1);
        assert_eq!((pool.stats().deallocations, cached()), (1, 1));
        assert_eq!((pool.cached_buffers().get(&(4 * KIB)), cached()), (Some(&1), 1));
        assert_eq!((pool.outstanding_buffers(), cached()), ([(8 * MIB, 1)].into(), 1));
        assert_eq!((pool.trim(0).expect("the device takes it"), cached()), (0, 1));
        drop(large);
    }
}

#[test]
fn figures_are_read_while_a_thread_is_inside_its_cache() {
    let pool = BucketPool::new(SimDevice::new());
    let (inside, wait_inside) = mpsc::channel();
    let (done, wait_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let of_thread = pool.clone();
        scope.spawn(move || {
            drop(of_thread.allocate(KIB));
            of_thread.with_lock_held(PoolLock::OwnCache, || {
                let _ = inside.send(());
                let _ = wait_done.recv();
            });
        });
        assert_eq!(wait_inside.recv(), Ok(()));
        // To enter the cache would be to wait for ever.
        let stats = pool.stats();
        assert_eq!((stats.cached_buffers, stats.deallocations), (1, 1));
        assert_eq!((stats.cached_bytes, pool.allocated_bytes()), (KIB, 0));
        drop(done);
    });
}

#[test]
fn a_lease_of_a_thread_that_ended_is_not_in_the_way_for_ever() {
    let pool = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::grow()).build();
    let taken: Vec<_> = (0..1000).map(|_| pool.allocate(4 * KIB)).collect();
    std::thread::spawn(|| drop(taken)).join().expect("the thread ends");
    let leased = || pool.check().leased_bytes;
    let most = leased();
    assert!(most > 100 * KIB, "{most} bytes of leases");
    // A thread of another number, since this one lives.
    for _ in 0..5000 {
        drop(pool.allocate(4 * KIB).expect("there is room"));
    }
    assert!(leased() < most / 2, "{} of {most} bytes", leased());
}

/// Runs `work` in a forked child; true if it said true there. A child that waits for ever is ended
/// by a signal.
#[cfg(not(miri))]
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child allocates, which the system's allocator allows after `fork`, and ends.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: sets a clock of this process.
            unsafe { libc::alarm(20) };
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!passed.unwrap_or(false))) }
        }
        child => {
            std::mem::forget(work); // what it has is the child's to drop
            let mut status = 0;
            // SAFETY: waits for our child, and writes to the number that it is given.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            waited == child && status == 0
        }
    }
}

#[test]
#[cfg(not(miri))]
fn a_child_of_a_process_whose_threads_were_inside_is_refused_and_never_waits() {
    for held in [PoolLock::Book, PoolLock::OwnCache, PoolLock::Ticks] {
        let pool = BucketPool::new(SimDevice::new());
        let live = pool.allocate(GIB).expect("there is room");
        let (inside, wait_inside) = mpsc::channel();
        let (done, wait_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let of_thread = pool.clone();
            scope.spawn(move || {
                drop(of_thread.allocate(KIB));
                of_thread.with_lock_held(held, || {
                    let _ = inside.send(());
                    let _ = wait_done.recv();
                });
            });
            assert_eq!(wait_inside.recv(), Ok(()));
            let is_refused = in_child(|| {
                let refused = pool.allocate(MIB).is_err_and(|error| error.why() == Why::Forked);
                let cleared = pool.clear().is_err_and(|error| error.why() == Why::Forked);
                let figures = (pool.stats(), pool.stats_exact(), pool.map(), pool.cached_buffers());
                drop(live);
                refused && cleared && figures.0.allocations == 0
            });
            drop(done);
            assert!(is_refused, "{held:?} is held");
        });
    }
}

#[test]
fn passed_on_blocks_go_through_the_transfer_cache() {
    let pool = BucketPool::new(SimDevice::new());
    let transfer_bytes = || pool.check().in_transfer_cache;
    let (mut in_transfer, mut most) = (0, 0);
    for round in 0..50 {
        let take = |_| pool.allocate(4 * KIB).expect("there is room");
        let taken: Vec<_> = (0..200).map(take).collect();
        most = most.max(pool.stats().reserved_bytes);
        std::thread::scope(|scope| scope.spawn(|| drop(taken)).join()).expect("the thread ends");
        in_transfer = in_transfer.max(transfer_bytes());
        let stats = [pool.stats(), pool.stats_exact()];
        for stats in stats {
            assert_eq!(stats.cached_bytes, stats.reserved_bytes, "round {round}");
            assert_eq!(stats.cached_buffers * 4 * KIB, stats.cached_bytes, "round {round}");
        }
        assert_eq!(pool.cached_buffers(), [(4 * KIB, 200)].into(), "round {round}");
        assert!(pool.outstanding_buffers().is_empty(), "round {round}");
    }
    assert!(in_transfer > 0);
    assert_eq!(most, 200 * 4 * KIB, "what lies in the transfer cache is used again");
    assert!(pool.trim(u64::MAX).is_ok());
    assert_eq!((transfer_bytes(), pool.stats().reserved_bytes), (0, 0));
}

#[test]
fn another_stream_finds_what_lies_in_the_transfer_cache() {
    let device = SimDevice::new();
    let other = device.stream();
    let pool = BucketPool::new(device);
    let taken: Vec<_> = (0..200).map(|_| pool.allocate(4 * KIB).expect("there is room")).collect();
    std::thread::scope(|scope| scope.spawn(|| drop(taken)).join()).expect("the thread ends");
    assert!(pool.check().in_transfer_cache > 100 * 4 * KIB);
    let on_other: Vec<_> = (0..200).map(|_| pool.allocate_on(&other, 4 * KIB)).collect();
    assert!(on_other.iter().all(Result::is_ok));
    assert_eq!(pool.stats().reserved_bytes, 200 * 4 * KIB);
}

#[test]
fn a_thread_keeps_many_sizes_that_it_takes_and_frees_itself() {
    let pool = BucketPool::new(SimDevice::new());
    let sizes = (1..=500).map(|at| at * KIB);
    let taken: Vec<_> = sizes.clone().map(|bytes| pool.allocate(bytes)).collect();
    assert!(taken.iter().all(Result::is_ok));
    drop(taken);
    for bytes in sizes.clone().chain(sizes) {
        drop(pool.allocate(bytes));
    }
    assert_eq!(pool.check().in_caches.blocks, 500);
}

#[test]
fn the_smallest_block_that_fits_may_lie_in_the_transfer_cache() {
    let fit = BucketPolicy::Fit { alpha: 2.0 };
    let pool = BucketPool::builder(SimDevice::new()).policy(fit).build();
    let taken: Vec<_> = (0..200).map(|_| pool.allocate(KIB).expect("there is room")).collect();
    std::thread::scope(|scope| scope.spawn(|| drop(taken)).join()).expect("the thread ends");
    assert!(pool.check().in_transfer_cache > 0);
    drop(pool.allocate(2 * KIB).expect("there is room"));
    assert!(pool.trim(0).is_ok());
    let smallest = pool.allocate(KIB).expect("there is room");
    assert_eq!(smallest.allocated_size(), KIB);
}

/// Each policy, granule and window hits in the thread's own cache.
#[test]
fn a_freed_block_is_in_the_threads_own_cache_for_its_class() {
    let builder = || BucketPool::builder(SimDevice::new());
    let pools = [
        builder().build(),
        builder().policy(BucketPolicy::tiered(&[4 * KIB, 64 * KIB])).build(),
        builder().policy(BucketPolicy::Fit { alpha: 2.0 }).granule(48).build(),
        builder().policy(BucketPolicy::Exact).granule(48).build(),
        builder().window(2..=u64::MAX).build(),
    ];
    for pool in pools {
        let bytes = pool.allocate(3000).unwrap().allocated_size();
        let in_caches = || pool.check().cached_by_size;
        assert_eq!(in_caches(), [(bytes, 1)].into(), "{pool:?}");
        let hit = pool.allocate(3000).unwrap();
        assert_eq!((hit.allocated_size(), in_caches()), (bytes, [].into()), "{pool:?}");
        drop(hit);
        let larger = pool.allocate(bytes + 1).unwrap();
        assert_eq!(in_caches(), [(bytes, 1)].into(), "{pool:?}, {larger:?}");
    }
    let windowed = builder().window(1000..=2000).build();
    drop(windowed.allocate(1000).unwrap());
    drop(windowed.allocate(999).unwrap());
    assert_eq!((windowed.stats().bypasses, windowed.stats().hits), (1, 0));
}

#[test]
fn a_private_pool_keeps_few_marks_of_streams_that_ended() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (clock, private) = (device.clock(), PrivatePool::new(&pool));
    for _ in 0..1000 {
        let once = device.stream();
        private.launch(&once, || Ok(())).unwrap();
        clock.retire(&once).unwrap();
        device.run();
    }
    let marks = pool.check().marks_of_private_pools;
    assert!(marks <= 3, "{marks} marks of 1000 streams");
}
