//! What was wrong in pools with several shards, each as the program that showed it.
#![expect(clippy::unwrap_used, reason = "tests")]

use crate::hooked::outcome;
use crate::shards::build;
use pool_core::check::TestThreads;
use pool_core::limits::{CachedLimit, Retention};
use pool_core::observe::{EventKind, PoolEvent};
use pool_core::port::{Limit, Memory, Order, Request};
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, DeviceError, KIB, MIB, PoolBuilder,
    PooledBuffer, StreamClock, Why,
};
use pool_sim::{Call, Claims, Hooked, Hooks, MappedSim, SimDevice};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// A thread that waits for itself is found by its silence: the one time that a test takes.
const SILENCE: Duration = Duration::from_secs(30);

#[test]
fn an_arena_with_a_share_of_the_peak_warms_up() {
    let (done, end) = mpsc::channel();
    thread::spawn(move || {
        let pool = BucketPool::builder(SimDevice::new())
            .arena(ArenaConfig::segments(MIB))
            .cached_limit(CachedLimit::OfPeak(0.5))
            .build();
        drop(pool.allocate(MIB));
        let refused = pool.warm_up(&[(KIB, 1)]).unwrap_err();
        let _ = done.send(refused.why()); // a segment is more than half of the peak
    });
    let refused = end.recv_timeout(SILENCE);
    assert_eq!(refused, Ok(Why::Limit(Limit::Cached)), "the thread waits for its own lock");
}

/// A device on which a drop may free, and whose next free panics if it is told to.
struct Frees(Arc<AtomicU64>);

impl Claims<SimDevice> for Frees {
    const MEMORY: Memory = Memory { free_in_drop: true, ..Memory::DEVICE };
}

impl Hooks<SimDevice> for Frees {
    fn before(&self, _: &SimDevice, call: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
        if matches!(call, Call::Free { .. }) && self.0.swap(0, SeqCst) == 1 {
            resume_unwind(Box::new("on purpose"));
        }
        Ok(())
    }
}

/// Streams of consecutive numbers, so that they begin with different shards.
fn streams(device: &SimDevice) -> [pool_core::StreamOf<SimDevice>; 2] {
    [device.stream(), device.stream()]
}

#[test]
fn a_panic_where_room_is_made_loses_no_other_block() {
    let (device, fuse) = (SimDevice::new(), Arc::new(AtomicU64::new(0)));
    let pool =
        BucketPool::builder(Hooked::with(device.clone(), Frees(fuse.clone())).claiming::<Frees>())
            .policy(BucketPolicy::Exact)
            .cached_limit(4 * MIB)
            .shards(64)
            .build();
    let [one, two] = streams(&device);
    let full = [(); 2].map(|()| pool.allocate_on(&one, 2 * MIB).unwrap());
    let last = pool.allocate_on(&two, 2 * MIB).unwrap();
    drop(full); // the limit and the leases are full
    fuse.store(1, SeqCst);
    assert!(outcome(|| drop(last)).is_none(), "the panic reaches the caller");
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.cached_bytes), (0, 4 * MIB), "{stats}");
    pool.check();
}

#[test]
fn peaks_have_the_block_that_made_them() {
    for shards in [1, 4] {
        let (plain, pool) = build(shards, |b| b.cached_limit(CachedLimit::OfPeak(1.0)));
        for _ in 0..100 {
            drop([pool.allocate(MIB).unwrap(), pool.allocate(MIB).unwrap()]);
        }
        assert!(plain.allocations() <= 4, "{shards} shards: {} calls", plain.allocations());
        let (_, pool) = build(shards, |b| b);
        drop(pool.allocate(MIB).unwrap());
        assert_eq!(pool.stats().allocated_peak_bytes, MIB, "{shards} shards");
    }
}

#[test]
fn peaks_that_were_reset_follow_a_smaller_pool() {
    let (_, pool) = build(4, |b| b);
    let many = |count: usize| {
        drop((0..count).map(|_| pool.allocate(MIB).unwrap()).collect::<Vec<_>>());
    };
    many(64);
    pool.clear().unwrap();
    pool.reset_peaks();
    many(32);
    let peak = pool.stats().allocated_peak_bytes;
    assert!(peak >= 31 * MIB, "{} MiB", peak / MIB);
}

#[test]
fn only_streams_keep_a_pool_with_bucket_limits_in_one_shard() {
    let shards = |builder: PoolBuilder<crate::shards::Plain>| {
        let (pool, mut threads) = (builder.build(), TestThreads::new(2));
        for turn in 0..20_000 {
            threads.as_thread(turn % 2, || drop(pool.allocate(100).unwrap()));
        }
        pool.check().free_by_shard.len()
    };
    let builder = || BucketPool::builder(crate::shards::Plain::default());
    assert!(shards(builder()) > 1);
    assert!(shards(builder().bucket_limit(3)) > 1);
    assert_eq!(shards(builder().bucket_limit(3).shards(4)), 4);
    let with_streams = BucketPool::builder(SimDevice::new()).bucket_limit(3).shards(4).build();
    assert_eq!(with_streams.check().free_by_shard.len(), 1);
}

/// A bucket of eight: whoever frees has all its places, also what another thread leased and does not use.
#[test]
fn the_places_of_a_bucket_move_between_shards() {
    let (plain, pool) = build(4, |builder| builder.bucket_limit(8));
    let mut threads = TestThreads::new(4);
    let eight = || [(); 8].map(|()| pool.allocate(MIB).unwrap());
    for turn in 0..12 {
        let (from, to) = (turn % 4, (turn + turn / 4) % 4);
        let all = threads.as_thread(from, eight);
        threads.as_thread(to, || drop(all));
        assert_eq!(pool.cached_buffers()[&MIB], 8, "turn {turn}");
        pool.check();
    }
    assert_eq!(plain.allocations(), 8);
}

/// A full bucket evicts its oldest block of all shards, not the own one.
#[test]
fn a_full_bucket_evicts_the_oldest_of_all_shards() {
    let (_, pool) = build(64, |builder| builder.bucket_limit(2));
    let mut threads = TestThreads::new(3);
    let [old, young, last] = [(); 3].map(|()| pool.allocate(MIB).unwrap());
    let blocks = || pool.check().free_by_shard.iter().map(|free| free.blocks).collect::<Vec<_>>();
    threads.as_thread(0, || drop(old));
    let first = blocks();
    threads.as_thread(1, || drop(young));
    let second = blocks();
    threads.as_thread(2, || drop(last));
    assert_eq!(second.iter().filter(|blocks| **blocks == 1).count(), 2, "{second:?}");
    let third = blocks();
    assert_eq!(third.iter().sum::<u64>(), 2, "{third:?}");
    assert!(
        first.iter().zip(&third).all(|(first, third)| first * third == 0),
        "{first:?} {third:?}"
    );
}

/// Sizes that come once and never again: their places go back, so that the pool forgets them.
#[test]
fn places_of_sizes_that_are_gone_are_forgotten() {
    let (_, pool) = build(4, |builder| builder.policy(BucketPolicy::Exact).bucket_limit(8));
    let mut threads = TestThreads::new(2);
    for (turn, size) in (1..2000_u64).enumerate() {
        threads.as_thread(turn % 2, || drop(pool.allocate(64 * size).unwrap()));
        if turn % 16 == 0 {
            pool.clear().unwrap();
        }
    }
    pool.check();
    let leases = pool.check().leased_buckets;
    assert!(leases < 200, "{leases} buckets");
}

#[test]
fn what_is_left_of_the_cached_limit_serves_a_larger_block() {
    let cached_after = |shards: usize| {
        let builder = BucketPool::builder(crate::shards::Plain::default());
        let builder = builder.policy(BucketPolicy::Exact).cached_limit(10 * MIB);
        let pool = builder.shards(shards).build();
        let blocks: Vec<_> = (0..8).map(|_| pool.allocate(MIB).unwrap()).collect();
        let large = pool.allocate(4 * MIB).unwrap();
        drop(blocks);
        drop(large); // 2 MiB are left: two blocks go
        pool.check();
        pool.stats().cached_bytes
    };
    assert_eq!((cached_after(1), cached_after(4)), (10 * MIB, 10 * MIB));
}

#[test]
fn a_block_that_another_thread_frees_late_serves_a_request_that_would_be_refused() {
    type Late = Mutex<Option<PooledBuffer<Hooked<SimDevice>>>>;
    struct FreesLate(Arc<AtomicU64>, Arc<Late>);
    impl Hooks<SimDevice> for FreesLate {
        fn before(&self, _: &SimDevice, call: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
            if matches!(call, Call::Allocate { .. }) && self.0.load(SeqCst) == 1 {
                let buffer = self.1.lock().unwrap().take();
                thread::spawn(move || drop(buffer)).join().unwrap();
            }
            Ok(())
        }
    }
    let (asked, late) = (Arc::new(AtomicU64::new(0)), Arc::new(Late::default()));
    let hooks = FreesLate(asked.clone(), late.clone());
    let pool = BucketPool::builder(Hooked::with(SimDevice::with_capacity(4 * MIB), hooks))
        .policy(BucketPolicy::Exact)
        .on_shortage(move |_| asked.fetch_add(1, SeqCst) == 0)
        .build();
    *late.lock().unwrap() = Some(pool.allocate(4 * MIB).unwrap());
    assert!(pool.allocate(4 * MIB).is_ok(), "all of the device is free");
}

#[test]
fn a_block_that_is_not_kept_evicts_none() {
    let (_, pool) = build(64, |b| b.policy(BucketPolicy::Exact).cached_limit(8 * MIB));
    let mut threads = TestThreads::new(2);
    threads.as_thread(0, || drop([(); 8].map(|()| pool.allocate(MIB).unwrap())));
    threads.as_thread(1, || drop(pool.allocate(3 * MIB).unwrap().detach()));
    assert_eq!(pool.cached_buffers().get(&MIB), Some(&8));
}

#[test]
fn a_block_that_was_just_freed_is_not_old() {
    let keep = Retention { allocations: Some(1000), time: None };
    let (_, pool) = build(64, |b| b.retention(keep));
    let mut threads = TestThreads::new(2);
    let buffer = threads.as_thread(1, || pool.allocate(MIB).unwrap());
    let churn = || (0..20_000).for_each(|_| drop(pool.allocate(KIB).unwrap()));
    threads.as_thread(0, churn);
    threads.as_thread(1, || drop(buffer));
    pool.tick(Duration::ZERO).unwrap();
    assert!(pool.cached_buffers().contains_key(&MIB), "freed just now");
    threads.as_thread(0, churn);
    pool.tick(Duration::ZERO).unwrap();
    pool.tick(Duration::ZERO).unwrap();
    assert!(!pool.cached_buffers().contains_key(&MIB), "freed 20 000 allocations ago");
}

#[test]
fn the_shards_of_an_arena_keep_one_limit() {
    for order in [[0, 1], [1, 0]] {
        let device = SimDevice::new();
        let pool = BucketPool::builder(Hooked::new(device.clone()).claiming::<Frees>())
            .arena(ArenaConfig::segments(MIB))
            .cached_limit(8 * MIB)
            .shards(2)
            .build();
        let streams = streams(&device);
        let ten = |stream| (0..10).map(|_| pool.allocate_on(stream, MIB).unwrap()).collect();
        let mut live: Vec<Vec<_>> = streams.iter().map(ten).collect();
        for at in order {
            live[at].clear();
        }
        let cached = pool.stats().cached_bytes;
        assert!(cached <= 8 * MIB, "{order:?}: {} MiB", cached / MIB);
    }
}

/// What becomes free without a free, in each of the shards.
#[test]
fn an_arena_keeps_pages_that_were_committed_ahead() {
    let device = SimDevice::new();
    let pool = BucketPool::builder(MappedSim::new(device.clone()))
        .arena(ArenaConfig::pages(64 * KIB, 0.5))
        .cached_limit(64 * MIB)
        .shards(2)
        .build();
    for stream in streams(&device) {
        let _live = pool.allocate_on(&stream, MIB).unwrap();
        let before = pool.stats().cached_bytes;
        assert!(before > 0, "pages are committed ahead");
        pool.tick(Duration::ZERO).unwrap();
        assert_eq!(pool.stats().cached_bytes, before);
    }
}

#[test]
fn counts_that_were_reset_begin_with_zero() {
    let (_, pool) = build(64, |b| b);
    let mut threads = TestThreads::new(2);
    let three = threads.as_thread(0, || [(); 3].map(|()| pool.allocate(KIB).unwrap()));
    threads.as_thread(1, || drop(three));
    pool.reset_counts();
    let stats = pool.stats();
    assert_eq!((stats.deallocations, stats.returns, stats.allocations), (0, 0, 0));
    drop(threads.as_thread(0, || pool.allocate(KIB).unwrap()));
    assert_eq!((pool.stats().deallocations, pool.stats().returns), (1, 1));
}

#[test]
fn a_clear_ends_while_others_free() {
    type Slot = Mutex<Option<BucketPool<Hooked<SimDevice>>>>;
    struct Refills(Arc<Slot>);
    impl Hooks<SimDevice> for Refills {
        fn before(&self, _: &SimDevice, call: &Call<'_, SimDevice>) -> Result<(), DeviceError> {
            if matches!(call, Call::Free { .. }) {
                let pool = self.0.lock().unwrap().clone();
                drop(pool.map(|pool| pool.allocate(KIB)));
            }
            Ok(())
        }
    }
    let slot = Arc::<Slot>::default();
    let pool = BucketPool::new(Hooked::with(SimDevice::new(), Refills(Arc::clone(&slot))));
    drop(pool.allocate(MIB).unwrap());
    *slot.lock().unwrap() = Some(pool.clone());
    let (done, end) = mpsc::channel();
    let clear = thread::spawn(move || {
        let _ = done.send(pool.clear().is_ok());
        pool
    });
    assert_eq!(end.recv_timeout(SILENCE), Ok(true), "it gives back what came meanwhile, for ever");
    *slot.lock().unwrap() = None;
    drop(clear.join().unwrap());
}

/// Memory with streams that are numbers. Nothing is ever seen done, and a question whether it is
/// first frees the buffer that lies ready.
#[derive(Clone, Default)]
struct Asked(Arc<AskedClock>);

#[derive(Default)]
struct AskedClock {
    stream: u64,
    /// Dropped when the device is asked.
    ready: Mutex<Option<PooledBuffer<Asked>>>,
    /// Its limit on cached memory becomes 0 when the device is asked.
    lowered: Mutex<Option<BucketPool<Asked>>>,
}

impl StreamClock for AskedClock {
    type Stream = u64;
    type Mark = u64;
    fn default_stream(&self) -> &u64 {
        &self.stream
    }
    fn owns(&self, _: &u64) -> bool {
        true
    }
    fn mark(&self, on: &u64) -> u64 {
        *on
    }
    fn latest(&self, mark: u64) -> u64 {
        mark
    }
    fn same_stream(&self, a: u64, b: u64) -> bool {
        a == b
    }
    fn later(&self, a: u64, _: u64) -> u64 {
        a
    }
    fn is_later(&self, _: u64, _: u64) -> bool {
        false
    }
    fn stream_id(&self, mark: u64) -> u64 {
        mark
    }
    fn is_ordered(&self, on: &u64, after: u64) -> bool {
        *on == after
    }
    fn order(&self, _: &u64, _: &[u64]) -> Result<Order, DeviceError> {
        Ok(Order::NotYet)
    }
    fn is_seen_done(&self, _: u64) -> bool {
        false
    }
    fn has_event(&self, _: u64) -> bool {
        true
    }
    fn is_done(&self, _: u64) -> Result<bool, DeviceError> {
        let buffer = self.ready.lock().unwrap().take();
        drop(buffer);
        if let Some(pool) = self.lowered.lock().unwrap().take() {
            pool.set_cached_limit(0).unwrap();
        }
        Ok(false)
    }
    fn synchronize(&self, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl DeviceAllocator for Asked {
    type Block = u64;
    type View<'b> = u64;
    type Kind = ();
    type Clock = AskedClock;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &AskedClock {
        &self.0
    }
    fn aligned(&self, (): (), _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::new(Why::Unsupported, "alignment"))
    }
    fn allocate(&self, request: Request<()>, _: &u64) -> Result<u64, DeviceError> {
        Ok(request.bytes)
    }
    fn free(&self, _: u64, _: &[u64]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn view<'b>(&'b self, block: &'b u64, _: u64, _: u64, _: &u64) -> u64 {
        *block
    }
    fn zero(&self, _: &mut u64, _: u64, _: &u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn a_block_that_the_device_is_asked_about_keeps_its_room() {
    for shards in [1, 4] {
        let allocator = Asked::default();
        let pool = BucketPool::builder(allocator.clone())
            .policy(BucketPolicy::Exact)
            .cached_limit(4 * MIB)
            .shards(shards)
            .build();
        let on = |stream: u64| pool.allocate_on(&stream, 2 * MIB).unwrap();
        let (one, two, late) = (on(1), on(2), on(2));
        drop((one, two)); // 4 MiB are free
        *allocator.0.ready.lock().unwrap() = Some(late);
        let _third = on(3);
        assert!(allocator.0.ready.lock().unwrap().is_none(), "the device was asked");
        let cached = pool.stats().cached_bytes - pool.stats().deferred_bytes;
        assert!(cached <= 4 * MIB, "{shards} shards: {} MiB", cached / MIB);
        pool.check();
    }
}

#[test]
fn a_block_that_comes_back_keeps_to_a_limit_that_was_lowered_meanwhile() {
    for shards in [1, 4] {
        let allocator = Asked::default();
        let builder = BucketPool::builder(allocator.clone()).policy(BucketPolicy::Exact);
        let pool = builder.cached_limit(4 * MIB).shards(shards).build();
        drop(pool.allocate_on(&1, 2 * MIB).unwrap());
        *allocator.0.lowered.lock().unwrap() = Some(pool.clone());
        let _other = pool.allocate_on(&2, 2 * MIB).unwrap();
        assert!(allocator.0.lowered.lock().unwrap().is_none(), "the device was asked");
        pool.trim(0).unwrap();
        assert_eq!(pool.stats().cached_bytes, 0, "{shards} shards");
        pool.check();
    }
}

/// Each free tells an observer, which has a block deferred.
#[test]
fn a_trim_ends_while_an_observer_defers_frees() {
    type Slot = Mutex<Option<BucketPool<SimDevice>>>;
    let slot = Arc::<Slot>::default();
    let seen = slot.clone();
    let observer = move |event: &PoolEvent<'_>| {
        if matches!(event.kind, EventKind::Evict(_)) {
            let pool = seen.lock().unwrap().clone();
            drop(pool.map(|pool| pool.allocate(KIB)));
        }
    };
    let builder = BucketPool::builder(SimDevice::new()).cached_limit(0);
    let pool = builder.observer(Arc::new(observer)).build();
    drop(pool.allocate(MIB).unwrap());
    *slot.lock().unwrap() = Some(pool.clone());
    let (done, end) = mpsc::channel();
    let trim = thread::spawn(move || {
        let _ = done.send(pool.trim(0).is_ok());
        pool
    });
    assert_eq!(
        end.recv_timeout(SILENCE),
        Ok(true),
        "it frees what was deferred meanwhile, for ever"
    );
    *slot.lock().unwrap() = None;
    drop(trim.join().unwrap());
}
