//! Work that repeats itself takes no more memory: a cycle of requests, graphs, threads and refused
//! calls leaves as many bytes in use in this program as the cycle before it.
//!
//! All bytes that the program has are counted, so there is one test: others beside it would count.
#![expect(unsafe_code, reason = "the trait of an allocator is unsafe")]
#![expect(clippy::unwrap_used, reason = "tests")]
#![cfg(not(any(miri, loom, shuttle)))]

use pool_core::port::{Memory, Request};
use pool_core::stream::{EventDriver, Mark, Stream, Timeline};
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, DeviceError, KIB, MIB, PoolBuilder,
    PooledBuffer, PrivatePool,
};
use pool_sim::{SimCall, SimDevice, SimStream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Calls of the device that fail.
const FAULTS: [SimCall; 8] = [
    SimCall::Allocate,
    SimCall::Free,
    SimCall::Record,
    SimCall::Wait,
    SimCall::Query,
    SimCall::Reserve,
    SimCall::Commit,
    SimCall::Decommit,
];
/// Bytes of the program that a new pool has, but for its device.
const MOST_OF_AN_EMPTY_POOL: usize = 8 * 1024;
/// Cycles until each list has the length that it needs.
const WARM: usize = 4;
/// Cycles whose most bytes are compared with the most of as many before them.
const COMPARED: usize = 10;
/// Streams that use one buffer, one after the other.
const STREAMS_OF_A_BUFFER: usize = 100_000;
/// Bytes by which the records of the simulated device differ under an arena: it has a list for each
/// size of a segment, and trees of pages, whose nodes are as full as it happens.
const OF_DEVICE: usize = 1024;

/// The system's allocator, and the bytes that the program has from it.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: each call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller promises what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above; the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Random requests on `own` and frees, with uses on `other`; at the end all buffers go.
fn requests(pool: &BucketPool<SimDevice>, [own, other]: &[SimStream; 2], random: &mut StdRng) {
    let mut live: Vec<Option<PooledBuffer<SimDevice>>> = Vec::new();
    live.resize_with(20, || None);
    for turn in 0..120 {
        let slot = &mut live[random.random_range(0..20)];
        if slot.take().is_none() {
            let bytes = random.random_range(1..64 * KIB);
            *slot = match turn % 3 {
                0 => pool.allocate_zeroed_on(own, bytes).ok(),
                _ => pool.allocate_on(own, bytes).ok(),
            };
        }
        if let Some(buffer) = slot
            && turn % 4 == 0
        {
            drop(buffer.on(other));
        }
        pool.allocator().advance(own, 2);
    }
    for (at, buffer) in live.into_iter().flatten().enumerate() {
        if at % 8 == 0 {
            let _ = buffer.detach().free(); // what the device refuses, it keeps
        }
    }
}

/// The work of a graph, whose memory is private until it ends.
fn graph(pool: &BucketPool<SimDevice>, streams: &[SimStream; 2], random: &mut StdRng) {
    let private = PrivatePool::new(pool);
    private.bind(&streams[0]).unwrap();
    requests(pool, streams, random);
    private.end(&[]);
}

/// A cycle: each call of the device fails in the middle of some work, a graph ends, and so does a
/// thread. At its end nothing is live or cached.
fn cycle(pool: &BucketPool<SimDevice>, streams: &[SimStream; 2]) {
    let (device, mut random) = (pool.allocator(), StdRng::seed_from_u64(7));
    for fault in FAULTS {
        for skip in 0..3 {
            device.fail(fault, skip, 1 + skip);
            requests(pool, streams, &mut random);
            let _ = pool.clear(); // refused or not
            graph(pool, streams, &mut random);
        }
    }
    std::thread::scope(|scope| {
        let work = scope.spawn(|| requests(pool, streams, &mut random));
        work.join().unwrap();
    });
    device.stop_failing();
    device.run();
    pool.clear().unwrap();
    device.reclaim_refused();
    assert_eq!(device.held_bytes(), 0);
}

/// The bytes in use stay the same from cycle to cycle, but for `of_device` bytes, and the pool
/// leaves nothing when it ends.
fn stays_the_same(
    (name, of_device): (&str, usize),
    build: impl FnOnce(PoolBuilder<SimDevice>) -> PoolBuilder<SimDevice>,
) {
    let before = IN_USE.load(Relaxed);
    {
        let device = SimDevice::with_capacity(64 * MIB);
        let pool = build(BucketPool::builder(device.clone())).build();
        let streams = [device.stream(), device.stream()];
        let mut counts = [0; WARM + 2 * COMPARED];
        for count in &mut counts {
            cycle(&pool, &streams);
            *count = IN_USE.load(Relaxed);
        }
        let most = |cycles: &[usize]| cycles.iter().copied().max().unwrap_or(0);
        let (first, second) = counts[WARM..].split_at(COMPARED);
        assert!(most(second) <= most(first) + of_device, "{name}: {counts:?} bytes");
    }
    assert_eq!(IN_USE.load(Relaxed), before, "{name}: bytes in use when the pool has ended");
}

/// Makes all that a program makes once, such as the number of its thread.
fn cycle_of_another_pool() {
    let device = SimDevice::new();
    let streams = [device.stream(), device.stream()];
    cycle(&BucketPool::new(device), &streams);
}

/// A device that keeps nothing of its streams, blocks and events, and whose work is done at once.
struct Bare(Timeline<BareDriver>);

struct BareDriver;

impl EventDriver for BareDriver {
    type Raw = ();
    type Event = ();
    fn record(&self, (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
    fn wait(&self, (): &(), (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
    fn query(&self, (): &()) -> Result<bool, DeviceError> {
        Ok(true)
    }
    fn synchronize(&self, (): &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl DeviceAllocator for Bare {
    type Block = ();
    type View<'b> = ();
    type Kind = ();
    type Clock = Timeline<BareDriver>;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &Timeline<BareDriver> {
        &self.0
    }
    fn aligned(&self, (): (), _alignment: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn allocate(&self, _request: Request<()>, _on: &Stream<BareDriver>) -> Result<(), DeviceError> {
        Ok(())
    }
    fn free(&self, (): (), _after: &[Mark]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn view<'b>(&'b self, (): &'b (), _offset: u64, _bytes: u64, _on: &Stream<BareDriver>) {}
    fn zero(&self, (): &mut (), _bytes: u64, _on: &Stream<BareDriver>) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Streams of a short life make something that `reader` uses; two more streams are ordered behind
/// what that makes, before and after the short stream has ended.
fn short_streams(pool: &BucketPool<Bare>, [reader, before, after]: &[Stream<BareDriver>; 3]) {
    let clock = pool.allocator().clock();
    for _ in 0..50 {
        let short = clock.register(());
        let made = pool.allocate_on(&short, 4096).unwrap();
        drop(made.on(&short).unwrap());
        drop(made.on(reader).unwrap());
        let results = [(); 2].map(|()| pool.allocate_on(reader, 4096).unwrap());
        drop(results[0].on(before).unwrap());
        drop(made);
        clock.retire(&short).unwrap();
        drop(results[1].on(after).unwrap());
    }
}

/// Streams of a short life have four buffers of sizes that differ.
fn short_owners(pool: &BucketPool<Bare>) {
    let clock = pool.allocator().clock();
    for turn in 0..50 {
        let short = clock.register(());
        let sizes = (1..=4).map(|at| at * 100 * KIB + turn % 7 * 4096);
        let live: Vec<_> = sizes.map(|bytes| pool.allocate_on(&short, bytes).unwrap()).collect();
        for buffer in &live {
            drop(buffer.on(&short).unwrap());
        }
        drop(live);
        clock.retire(&short).unwrap();
    }
}

/// Clocks, lists and caches forget the streams that have ended.
fn streams_that_end_leave_nothing(pool: &BucketPool<Bare>) {
    let streams = [(); 3].map(|()| pool.allocator().clock().register(()));
    let counts: Vec<usize> = (0..WARM + 2 * COMPARED)
        .map(|_| {
            short_streams(pool, &streams);
            short_owners(pool);
            IN_USE.load(Relaxed)
        })
        .collect();
    let (first, second) = counts[WARM..].split_at(COMPARED);
    assert!(second.iter().max() <= first.iter().max(), "short streams: {counts:?} bytes");
}

/// One buffer is used on many streams, one after the other, which end; other buffers and a graph are
/// used beside it.
fn a_buffer_of_many_streams_stays_small(pool: &BucketPool<Bare>) {
    let (clock, private) = (pool.allocator().clock(), PrivatePool::new(pool));
    let weights = pool.allocate(MIB).unwrap();
    let bytes = [STREAMS_OF_A_BUFFER / 10, STREAMS_OF_A_BUFFER].map(|count| {
        for turn in 0..count {
            let short = clock.register(());
            match turn % 4 {
                0 => drop(weights.on(&short).unwrap()),
                1 => private.launch(&short, || Ok(())).unwrap(),
                _ => drop(weights.read_on(&short).unwrap()),
            }
            drop(pool.allocate_on(&short, 4096).unwrap());
            clock.retire(&short).unwrap();
        }
        IN_USE.load(Relaxed)
    });
    assert!(bytes[1] <= bytes[0], "{bytes:?} bytes after a part of the streams and after all");
}

/// A pool that nothing was requested from takes few bytes, whatever it may become.
fn an_empty_pool_is_small() {
    let arenas = [ArenaConfig::grow(), ArenaConfig::segments(MIB), ArenaConfig::torch()];
    let builders = arenas.map(|arena| BucketPool::builder(SimDevice::new()).arena(arena));
    let policies = BucketPolicy::examples();
    let policies = policies.into_iter().map(|it| BucketPool::builder(SimDevice::new()).policy(it));
    for builder in builders.into_iter().chain(policies) {
        let before = IN_USE.load(Relaxed);
        let pool = builder.build();
        let bytes = IN_USE.load(Relaxed).saturating_sub(before);
        assert!(bytes <= MOST_OF_AN_EMPTY_POOL, "{bytes} bytes, {pool:?}");
    }
}

/// Threads that come and go leave nothing in a pool of several shards.
fn threads_that_end_leave_nothing(pool: &BucketPool<Bare>) {
    let counts: Vec<usize> = (0..WARM + 2 * COMPARED)
        .map(|_| {
            for turn in 0..4000 / (WARM + 2 * COMPARED) as u64 {
                let work = || drop(pool.allocate((1 + turn % 8) * 4096).unwrap());
                std::thread::scope(|scope| scope.spawn(work).join().unwrap());
            }
            IN_USE.load(Relaxed)
        })
        .collect();
    let (first, second) = counts[WARM..].split_at(COMPARED);
    assert!(second.iter().max() <= first.iter().max(), "threads: {counts:?} bytes");
}

#[test]
fn cycles_of_the_same_work_leave_the_same_bytes_in_use() {
    an_empty_pool_is_small();
    cycle_of_another_pool();
    let bare = || BucketPool::builder(Bare(Timeline::new(BareDriver, ())));
    threads_that_end_leave_nothing(&bare().shards(8).build());
    streams_that_end_leave_nothing(&BucketPool::new(Bare(Timeline::new(BareDriver, ()))));
    a_buffer_of_many_streams_stays_small(&bare().build());
    for policy in BucketPolicy::examples() {
        let name = &format!("{policy:?}");
        stays_the_same((name, 0), |pool| pool.policy(policy.clone()));
    }
    for (name, arena) in [
        ("grow", ArenaConfig::grow()),
        ("pages", ArenaConfig::pages(4 * KIB, 0.05)),
        ("segments", ArenaConfig::segments(256 * KIB)),
        ("torch", ArenaConfig::torch()),
    ] {
        stays_the_same((name, OF_DEVICE), |pool| pool.arena(arena.clone()));
    }
}
