//! Blocks that threads cache: other threads find them, and so does every call that gives memory
//! back or reads figures; and they go with the pool.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::limits::Retention;
use pool_core::{AllocError, ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, PooledBuffer};
use pool_sim::SimDevice;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

type Pool = BucketPool<SimDevice>;
type Buffer = PooledBuffer<SimDevice>;

/// Pools without an arena, and with one.
fn pools(device: &SimDevice) -> [(&'static str, Pool); 2] {
    let arena = BucketPool::builder(device.clone()).arena(ArenaConfig::grow()).build();
    [("blocks", BucketPool::new(device.clone())), ("arena", arena)]
}

/// A thread that lives, and does what it is told.
struct Parked(Option<Sender<Box<dyn FnOnce() + Send>>>, Option<thread::JoinHandle<()>>);

impl Parked {
    fn new() -> Self {
        let (tell, told) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let work = move || told.into_iter().for_each(|work| work());
        Self(Some(tell), Some(thread::spawn(work)))
    }

    /// Runs `work` on the thread, and waits for it.
    fn run(&self, work: impl FnOnce() + Send + 'static) {
        let (done, wait) = mpsc::channel();
        let work = move || {
            work();
            done.send(()).unwrap();
        };
        self.0.as_ref().unwrap().send(Box::new(work)).unwrap();
        wait.recv().unwrap();
    }

    /// Lets the pool cache a block of each size; one of 8 MiB stays live, so that the arena's
    /// cache may hold the others.
    fn cache(&self, pool: &Pool, sizes: &'static [u64]) -> Buffer {
        let large = pool.allocate(8 * MIB).unwrap();
        let pool = pool.clone();
        self.run(move || {
            for _ in 0..2 {
                let all: Vec<_> = sizes.iter().map(|bytes| pool.allocate(*bytes)).collect();
                drop(all.into_iter().collect::<Result<Vec<_>, _>>().unwrap());
            }
        });
        large
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        drop(self.0.take());
        self.1.take().unwrap().join().unwrap();
    }
}

#[test]
fn what_a_parked_thread_caches_serves_another() {
    for (name, pool) in pools(&SimDevice::new()) {
        let parked = Parked::new();
        let _large = parked.cache(&pool, &[64 * KIB, 32 * KIB]);
        let before = pool.stats();
        let _buffers = [pool.allocate(64 * KIB).unwrap(), pool.allocate(32 * KIB).unwrap()];
        let after = pool.stats();
        assert_eq!((after.misses, after.hits), (before.misses, before.hits + 2), "{name}");
    }
}

#[test]
fn figures_count_what_threads_cache() {
    for (name, pool) in pools(&SimDevice::new()) {
        let parked = Parked::new();
        let large = parked.cache(&pool, &[64 * KIB, 64 * KIB, 32 * KIB]);
        let stats = pool.stats();
        assert_eq!((stats.requested_bytes, stats.allocated_bytes), (8 * MIB, 8 * MIB), "{name}");
        assert_eq!(stats.allocated_peak_bytes, 8 * MIB + 160 * KIB, "{name}");
        assert_eq!(stats.requested_peak_bytes, 8 * MIB + 160 * KIB, "{name}");
        assert_eq!(stats.cached_bytes, stats.reserved_bytes - 8 * MIB, "{name}");
        assert!(stats.peak_cached_bytes >= 160 * KIB, "{name}: {stats}");
        assert_eq!((stats.hits + stats.misses, stats.deallocations), (7, 6), "{name}");
        assert_eq!(pool.outstanding_buffers().into_iter().collect::<Vec<_>>(), [(8 * MIB, 1)]);
        assert_eq!(pool.allocated_bytes(), 8 * MIB, "{name}");
        let cached: u64 = pool.cached_buffers().iter().map(|(b, n)| b * *n as u64).sum();
        assert_eq!(cached, stats.cached_bytes, "{name}");
        drop(large);
        assert_eq!(pool.allocated_bytes(), 0, "{name}");
    }
}

#[test]
fn figures_of_running_threads_are_near_what_they_do() {
    for (name, pool) in pools(&SimDevice::new()) {
        let _large = pool.allocate(8 * MIB).unwrap();
        thread::scope(|scope| {
            let work = || (0..20_000).try_for_each(|_| pool.allocate(4 * KIB).map(drop)).unwrap();
            let threads = [scope.spawn(work), scope.spawn(work)];
            while threads.iter().any(|thread| !thread.is_finished()) {
                let stats = pool.stats();
                // Two threads have one buffer each, and may be counted in the middle of the next.
                let most = 8 * MIB + 4 * 4 * KIB;
                assert!(stats.allocated_bytes <= most, "{name}: {stats:?}");
                assert!(stats.allocated_peak_bytes <= most, "{name}: {stats:?}");
                assert!(stats.requested_bytes <= most, "{name}: {stats:?}");
                assert!(stats.deallocations <= stats.allocations, "{name}: {stats:?}");
                assert!(stats.cached_bytes <= most, "{name}: {stats:?}");
            }
        });
        let stats = pool.stats();
        assert_eq!((stats.allocations, stats.deallocations), (40_001, 40_000), "{name}");
    }
}

#[test]
fn what_a_parked_thread_caches_goes_back() {
    type Call = fn(&Pool) -> Result<u64, AllocError>;
    let calls: [(&str, Call); 4] = [
        ("clear", Pool::clear),
        ("trim", |pool| pool.trim(u64::MAX)),
        ("shrink_to", |pool| pool.shrink_to(0)),
        ("the drop of the pool", |_| Ok(0)),
    ];
    for (call, work) in calls {
        let device = SimDevice::new();
        for (name, pool) in pools(&device) {
            let parked = Parked::new();
            drop(parked.cache(&pool, &[64 * KIB, 32 * KIB]));
            assert!(device.held_bytes() > 0, "{call}, {name}");
            work(&pool).unwrap();
            drop(pool);
            assert_eq!(device.held_bytes(), 0, "{call}, {name}");
        }
        let pool = BucketPool::new(device.clone());
        let parked = Parked::new();
        drop(parked.cache(&pool, &[64 * KIB, 32 * KIB]));
        work(&pool).unwrap();
        let open = call.starts_with("the drop");
        assert_eq!(pool.reserved_bytes() == 0, !open, "{call} of a pool that stays open");
    }
}

#[test]
fn a_limit_refuses_nobody_while_a_parked_thread_caches_enough() {
    let device = SimDevice::new();
    let exact = BucketPool::builder(device.clone()).policy(BucketPolicy::Exact);
    let arena = BucketPool::builder(device).arena(ArenaConfig::segments(MIB));
    for (name, pool) in [("blocks", exact), ("arena", arena)] {
        let pool = pool.reserved_limit(9 * MIB).build();
        let parked = Parked::new();
        let large = parked.cache(&pool, &[512 * KIB, 256 * KIB]);
        drop(large);
        assert!(pool.allocate(9 * MIB).is_ok(), "{name}: all else goes back for it");
    }
}

/// Frees blocks that another thread took.
fn consume(buffers: &Receiver<Buffer>) {
    for buffer in buffers {
        drop(buffer);
    }
}

#[test]
fn a_thread_that_only_frees_hands_its_blocks_to_one_that_only_takes() {
    let rounds = if cfg!(miri) { 200 } else { 20_000 };
    for (name, pool) in pools(&SimDevice::new()) {
        let _large = pool.allocate(8 * MIB).unwrap();
        let (send, receive) = mpsc::sync_channel(8);
        thread::scope(|scope| {
            scope.spawn(move || {
                for buffer in receive {
                    drop::<Buffer>(buffer);
                }
            });
            for _ in 0..rounds {
                send.send(pool.allocate(4 * KIB).unwrap()).unwrap();
            }
            drop(send);
        });
        let stats = pool.stats();
        assert_eq!(stats.allocated_bytes, 8 * MIB, "{name}");
        // 10 are live at most; the rest is what one thread frees before it hands a portion over.
        assert!(stats.reserved_bytes <= 9 * MIB + MIB, "{name}: {stats}");
    }
}

/// A pseudo-random sequence that its seed replays.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Takes, frees and passes buffers on. Returns how many were taken, and frees what is left.
fn churn(pool: &Pool, seed: u64, steps: u64, next: &Sender<Buffer>, own: &Receiver<Buffer>) -> u64 {
    let (mut random, mut live, mut taken) = (random(seed), Vec::new(), 0);
    for _ in 0..steps {
        match random(4) {
            0 | 1 if live.len() < 50 => {
                live.push(pool.allocate(512 << random(6)).unwrap());
                taken += 1;
            }
            2 if !live.is_empty() => {
                let at = usize::try_from(random(live.len() as u64)).unwrap();
                next.send(live.swap_remove(at)).unwrap();
            }
            _ => drop(live.pop()),
        }
        live.extend(own.try_iter().take(2));
        live.truncate(60);
    }
    taken
}

#[test]
fn threads_that_pass_buffers_on_lose_none_while_others_look_and_trim() {
    let (threads, steps) = if cfg!(miri) { (2, 100) } else { (4, 20_000) };
    for round in 0..if cfg!(miri) { 1 } else { 4 } {
        println!("seeds from {}", round * 100);
        let device = SimDevice::new();
        for (name, pool) in pools(&device) {
            let (sends, receives): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
            let taken: u64 = thread::scope(|scope| {
                let handles: Vec<_> = receives
                    .into_iter()
                    .enumerate()
                    .map(|(at, own)| {
                        let (pool, next) = (&pool, sends[(at + 1) % threads].clone());
                        let seed = round * 100 + at as u64;
                        scope.spawn(move || (churn(pool, seed, steps, &next, &own), own))
                    })
                    .collect();
                for _ in 0..20 {
                    let stats = pool.stats();
                    assert!(stats.allocated_bytes <= stats.allocated_peak_bytes, "{name}");
                    pool.trim(64 * KIB).unwrap();
                    pool.clear().unwrap();
                }
                let ends: Vec<_> = handles.into_iter().map(|h| h.join().unwrap()).collect();
                ends.iter().map(|(taken, _)| taken).sum()
            });
            drop(sends);
            let stats = pool.stats();
            assert_eq!((stats.allocated_bytes, stats.requested_bytes), (0, 0), "{name}");
            assert_eq!((stats.hits + stats.misses, stats.deallocations), (taken, taken), "{name}");
            assert_eq!(stats.cached_bytes, stats.reserved_bytes, "{name}");
            drop(pool);
            assert_eq!(device.held_bytes(), 0, "{name}");
        }
    }
}

#[test]
fn peaks_on_one_thread_are_exact_behind_a_hit_that_was_not_told() {
    for (name, pool) in pools(&SimDevice::new()) {
        let (large, other) = (pool.allocate(32 * MIB).unwrap(), pool.allocate(64 * MIB).unwrap());
        drop(pool.allocate(64 * KIB).unwrap());
        pool.reset_stats();
        let hit = pool.allocate(64 * KIB).unwrap();
        drop(other);
        let most = 96 * MIB + 64 * KIB;
        let stats = pool.stats();
        assert_eq!(
            (stats.allocated_peak_bytes, stats.requested_peak_bytes),
            (most, most),
            "{name}"
        );
        drop((large, hit));
    }
}

#[test]
fn memory_grows_old_while_a_thread_only_hits() {
    let by_count = Retention { allocations: Some(100), time: None };
    let by_time = Retention { allocations: None, time: Some(Duration::from_mins(1)) };
    for retention in [by_count, by_time] {
        let blocks = BucketPool::builder(SimDevice::new());
        let arena = BucketPool::builder(SimDevice::new()).arena(ArenaConfig::segments(4 * MIB));
        for (name, builder) in [("blocks", blocks), ("arena", arena)] {
            let pool = builder.retention(retention).build();
            let kept = pool.allocate(32 * MIB).unwrap();
            drop(pool.allocate(4 * MIB).unwrap()); // not requested again
            let mut hits = |second| {
                (0..1000).for_each(|_| drop(pool.allocate(4 * KIB).unwrap()));
                pool.tick(Duration::from_secs(second)).unwrap()
            };
            let given_back: u64 = [10, 70].into_iter().map(&mut hits).sum();
            assert!(given_back >= 4 * MIB, "{name}, {retention:?}: {given_back} bytes");
            drop(kept);
        }
    }
}

#[test]
fn what_a_parked_thread_freed_last_is_not_the_oldest() {
    let pool = BucketPool::builder(SimDevice::new()).policy(BucketPolicy::Exact).build();
    let parked = Parked::new();
    let _large = parked.cache(&pool, &[2 * MIB]);
    for at in 0..100 {
        drop(pool.allocate((16 + at) * MIB).unwrap());
    }
    let again = pool.clone();
    parked.run(move || drop(again.allocate(2 * MIB).unwrap()));
    pool.trim(1024 * MIB).unwrap(); // about half of them
    assert_eq!(pool.cached_buffers().get(&(2 * MIB)), Some(&1), "it was freed last");
}

#[test]
fn a_pool_is_closed_while_threads_free_into_their_caches() {
    for round in 0..if cfg!(miri) { 3 } else { 300 } {
        for at in 0..2 {
            let device = SimDevice::new();
            let (name, pool) = pools(&device).into_iter().nth(at).unwrap();
            let large = pool.allocate(8 * MIB).unwrap();
            let (send, receive) = mpsc::channel();
            for _ in 0..20 {
                send.send(pool.allocate(4 * KIB).unwrap()).unwrap();
            }
            drop(send);
            thread::scope(|scope| {
                scope.spawn(move || consume(&receive));
                if round % 2 == 0 {
                    thread::yield_now();
                }
                drop(pool);
            });
            drop(large);
            assert_eq!(device.held_bytes(), 0, "{name}, round {round}");
            assert_eq!(device.clones(), 1, "{name}, round {round}: the store is not freed");
        }
    }
}

#[test]
fn more_sizes_than_a_cache_has_bins_for_are_hits_all_the_same() {
    let pool = BucketPool::builder(SimDevice::new()).policy(BucketPolicy::Exact).build();
    let take_all = || -> Vec<_> { (1..=6000).map(|at| pool.allocate(64 * at).unwrap()).collect() };
    drop(take_all());
    let before = pool.stats();
    drop(take_all());
    let after = pool.stats();
    assert_eq!((after.hits - before.hits, after.misses), (6000, before.misses));
}

#[test]
fn a_peak_that_hits_reach_is_counted() {
    let [_, (_, pool)] = pools(&SimDevice::new());
    let take_all = || [(); 3].map(|()| pool.allocate(KIB).unwrap());
    let _large = pool.allocate(64 * MIB).unwrap();
    drop(take_all());
    pool.reset_stats();
    drop(take_all());
    let counts = pool.device_stats().unwrap().allocation.all;
    assert_eq!((counts.current, counts.peak), (1, 4));
}
