//! What happens inside a pool: how many ranges are looked at under the lock at once, what thread
//! caches have, and what a lock that another thread holds does to a child.
#![expect(clippy::expect_used, reason = "tests")]

use pool_core::check::{Checked, PoolLock};
use pool_core::limits::Retention;
use pool_core::observe::PoolEvent;
use pool_core::port::Limit;
use pool_core::stream::StealPolicy;
use pool_core::{ArenaConfig, BucketPool, DeviceAllocator, GIB, KIB, MIB, PrivatePool, Why};
use pool_sim::{SimDevice, SimStream};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
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
    for held in [PoolLock::Shard, PoolLock::Ticks] {
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
                let figures = (pool.stats(), pool.map(), pool.cached_buffers());
                drop(live);
                refused && cleared && figures.0.allocations == 0
            });
            drop(done);
            assert!(is_refused, "{held:?} is held");
        });
    }
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

#[test]
fn a_launch_is_behind_the_launches_before_it_and_stands_for_them() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (captured, private) = (device.stream(), PrivatePool::new(&pool));
    private.bind(&captured).unwrap();
    let buffer = pool.allocate_on(&captured, MIB).unwrap();
    private.end(&[]);
    for _ in 0..100 {
        let lives_on = device.stream();
        let work = || {
            device.kernel(&lives_on, &buffer.on(&lives_on).unwrap());
            Ok(())
        };
        private.launch(&lives_on, work).unwrap();
    }
    assert!(device.is_busy());
    let checked = pool.check();
    let uses = buffer.uses_on_other_streams();
    assert_eq!((checked.marks_of_private_pools, uses), (1, 1), "of 100 streams");
    drop((private, buffer));
    let again = pool.allocate_on(&captured, MIB).unwrap();
    device.kernel(&captured, &again.on(&captured).unwrap());
    assert_eq!((pool.stats().misses, device.hazards()), (1, 0), "{:?}", device.hazard_report());
}

/// An observer that a thread of the parent is inside of, with its lock.
#[test]
#[cfg(not(miri))]
fn a_child_tells_an_observer_of_its_parent_nothing() {
    let (events, seen) = (Arc::new(Mutex::new(0_u32)), Arc::new(AtomicU32::new(0)));
    let (of_observer, count) = (events.clone(), seen.clone());
    let pool = BucketPool::builder(SimDevice::new())
        .observer(Arc::new(move |_: &PoolEvent<'_>| {
            *of_observer.lock().expect("no panic under the lock") += 1;
            count.fetch_add(1, SeqCst);
        }))
        .build();
    drop(pool.allocate(KIB));
    let before = seen.load(SeqCst);
    assert!(before > 0);
    let _held = events.lock();
    let is_silent = in_child(|| {
        let served = pool.allocate(KIB).is_ok();
        served && seen.load(SeqCst) == before
    });
    assert!(is_silent, "the child is served, and waits for no lock");
}
