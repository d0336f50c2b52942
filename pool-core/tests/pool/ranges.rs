//! Behaviour of a pool with an arena at its edges: limits, captures, unsubmitted work, closing.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::limits::Retention;
use pool_core::stream::StealPolicy;
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, PrivatePool, StreamClock,
    ZeroPolicy,
};
use pool_sim::{SimDevice, SimStream};
use std::time::Duration;

fn pool(device: &SimDevice, config: ArenaConfig) -> BucketPool<SimDevice> {
    BucketPool::builder(device.clone()).arena(config).build()
}

fn kernel(device: &SimDevice, buffer: &PooledBuffer<SimDevice>, on: &SimStream) {
    device.kernel(on, &buffer.on(on).unwrap());
}

#[test]
fn warm_memory_is_behind_the_work_that_used_parts_of_it() {
    let device = SimDevice::new();
    let pool = pool(&device, ArenaConfig::pages(64 * KIB, 0.0));
    let (s, t) = (device.stream(), device.stream());
    kernel(&device, &pool.allocate_on(&s, 256 * KIB).unwrap(), &s);
    // Over what `s` has used, and beyond it.
    pool.warm_up(&[(4 * MIB, 1)]).unwrap();
    let calls = device.calls();
    kernel(&device, &pool.allocate_on(&t, 4 * MIB).unwrap(), &t);
    assert_eq!(device.calls().commits, calls.commits, "it was not warm");
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn warm_memory_that_was_free_stays_behind_the_work_that_used_it() {
    for config in [ArenaConfig::grow(), ArenaConfig::torch()] {
        let device = SimDevice::new();
        let pool = pool(&device, config);
        let (s, t) = (pool.default_stream().clone(), device.stream());
        let both = [(); 2].map(|()| pool.allocate_on(&s, 256 * KIB).unwrap());
        for buffer in &both {
            kernel(&device, buffer, &s);
        }
        drop(both);
        for bytes in [64 * KIB, 256 * KIB, 512 * KIB] {
            pool.warm_up(&[(bytes, 1)]).unwrap();
            kernel(&device, &pool.allocate_on(&t, bytes).unwrap(), &t);
        }
        assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
    }
}

#[test]
fn warm_up_counts_no_request_and_makes_room_for_all_at_once() {
    let device = SimDevice::new();
    let pool = pool(&device, ArenaConfig::segments(MIB));
    pool.warm_up(&[(400 * KIB, 5)]).unwrap();
    let (stats, calls) = (pool.stats(), device.calls());
    assert_eq!((stats.allocations, stats.allocated_peak_bytes), (0, 0));
    let all: Vec<_> = (0..5).map(|_| pool.allocate(400 * KIB).unwrap()).collect();
    assert_eq!(device.calls().allocations, calls.allocations);
    assert_eq!((pool.stats().hits, all.len()), (5, 5));
}

#[test]
fn memory_behind_a_capture_stays_when_the_pool_is_cleared() {
    for config in [ArenaConfig::segments(MIB), ArenaConfig::grow()] {
        let device = SimDevice::new();
        let pool = pool(&device, config.clone());
        let s = device.stream();
        let buffer = pool.allocate_on(&s, MIB).unwrap();
        device.begin_capture(&s).unwrap();
        kernel(&device, &buffer, &s);
        drop(buffer);
        let held = device.held_bytes();
        assert_eq!(pool.clear().unwrap(), held - MIB, "{config:?}");
        assert_eq!((pool.stats().lost_bytes, pool.stats().cached_bytes), (0, MIB), "{config:?}");
    }
}

#[test]
fn the_cached_limit_holds_where_several_streams_used_a_segment() {
    let device = SimDevice::new();
    let builder = BucketPool::builder(device.clone()).arena(ArenaConfig::segments(2 * MIB));
    let pool = builder.cached_limit(0).build();
    let (s, t) = (device.stream(), device.stream());
    let (a, b) = (pool.allocate_on(&s, MIB).unwrap(), pool.allocate_on(&t, MIB).unwrap());
    kernel(&device, &a, &s);
    kernel(&device, &b, &t);
    drop((a, b));
    pool.trim(0).unwrap();
    assert_eq!((pool.stats().cached_bytes, device.held_bytes()), (0, 0));
}

#[test]
fn a_graphs_buffer_that_outlives_its_pool_goes_back_alone() {
    let device = SimDevice::new();
    let pool = pool(&device, ArenaConfig::segments(MIB));
    let s = device.stream();
    let other = pool.allocate(2 * MIB).unwrap();
    let private = PrivatePool::new(&pool);
    private.bind(&s).unwrap();
    let buffer = pool.allocate_on(&s, MIB).unwrap();
    private.end(&[]);
    drop(private);
    drop(pool);
    assert_eq!(device.held_bytes(), 3 * MIB);
    drop(buffer);
    assert_eq!(device.held_bytes(), 2 * MIB);
    drop(other);
    assert_eq!((device.held_bytes(), device.clones()), (0, 1));
}

#[test]
fn a_graphs_memory_is_not_taken_for_zeroes() {
    let device = SimDevice::new();
    let builder = BucketPool::builder(device.clone()).arena(ArenaConfig::segments(4 * KIB));
    let pool = builder.zero(ZeroPolicy::OnReturn).build();
    let s = device.stream();
    let private = PrivatePool::new(&pool);
    private.bind(&s).unwrap();
    let buffer = pool.allocate_on(&s, 4 * KIB).unwrap();
    device.fill(&s, &buffer.on(&s).unwrap(), 0xEE);
    drop(buffer);
    private.end(&[device.clock().mark(&s)]);
    drop(private);
    let next = pool.allocate_on(&s, 4 * KIB).unwrap();
    assert!(device.read(&s, &next.on(&s).unwrap()).iter().all(|byte| *byte == 0));
}

#[test]
fn a_tick_that_finds_nothing_old_gives_nothing_back() {
    let hour = Retention { time: Some(Duration::from_hours(1)), ..Retention::default() };
    let device = SimDevice::new();
    let builder = BucketPool::builder(device.clone()).arena(ArenaConfig::grow());
    let pool = builder.retention(hour).build();
    drop(pool.allocate(MIB).unwrap());
    let held = device.held_bytes();
    assert_eq!(pool.tick(Duration::from_secs(1)).unwrap(), 0);
    assert_eq!(pool.tick(Duration::from_secs(3602)).unwrap(), held);
}

#[test]
fn a_part_of_a_segment_does_not_leave_as_the_devices_own_allocation() {
    let device = SimDevice::new();
    let pool = pool(&device, ArenaConfig::segments(MIB));
    let detached = pool.allocate(KIB).unwrap().detach();
    let still_ours = detached.into_raw().unwrap_err();
    assert_eq!((still_ours.size(), pool.allocated_bytes()), (KIB, KIB));
    still_ours.free().unwrap();
    assert_eq!((pool.allocated_bytes(), pool.clear().unwrap()), (0, MIB));
}

#[test]
fn memory_that_stays_after_a_clear_still_serves_its_stream() {
    let device = SimDevice::new();
    let pool = BucketPool::builder(device.clone())
        .arena(ArenaConfig::pages(64 * KIB, 0.0))
        .steal(StealPolicy::Never)
        .reserved_limit(64 * KIB)
        .build();
    let (s, t) = (device.stream(), device.stream());
    let [first, other, live] =
        [(&s, 40), (&t, 10), (&s, 8)].map(|(on, kib)| pool.allocate_on(on, kib * KIB).unwrap());
    drop((first, other));
    assert_eq!(pool.clear().unwrap(), 0, "a buffer lives in the page");
    assert!(pool.allocate_on(&s, 40 * KIB).is_ok(), "it is the stream's own");
    drop(live);
}

/// Four ranges of 128 KiB, none of which is enough alone, are free between live ones.
#[test]
fn as_many_ranges_go_back_as_hold_the_bytes() {
    let device = SimDevice::new();
    let pool = pool(&device, ArenaConfig::pages(64 * KIB, 0.0));
    let mut all: Vec<_> = (0..8).map(|_| pool.allocate(128 * KIB).unwrap()).collect();
    let mut nth = 0;
    all.retain(|_| {
        nth += 1;
        nth % 2 == 0
    });
    let (reserved, decommits) = (pool.stats().reserved_bytes, device.calls().decommits);
    assert_eq!(pool.shrink_to(reserved - 256 * KIB).unwrap(), 256 * KIB);
    assert_eq!((device.calls().decommits - decommits, all.len()), (2, 4));
}

/// A freed block whose use is not seen done counts as active: under its size where live blocks do.
#[test]
fn a_pending_block_is_active_as_small_or_as_large() {
    for (config, bytes, expected) in [
        (ArenaConfig::torch(), 512 * KIB, [3, 2, 1]),
        (ArenaConfig::torch(), 12 * MIB, [3, 0, 3]),
        (ArenaConfig::segments(32 * MIB), 512 * KIB, [3, 0, 0]),
    ] {
        let device = SimDevice::new();
        let pool = pool(&device, config);
        let s = device.stream();
        let block = pool.allocate_on(&s, bytes).unwrap();
        let live = [bytes, 12 * MIB].map(|bytes| pool.allocate_on(&s, bytes).unwrap());
        kernel(&device, &block, &s);
        drop(block);
        let active = pool.device_stats().unwrap().active;
        let counted = [active.all, active.small, active.large].map(|stat| stat.current);
        assert_eq!(counted, expected, "{bytes}, and {} live", live.len());
    }
}
