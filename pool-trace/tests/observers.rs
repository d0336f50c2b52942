//! The observers of this crate over a pool of the simulated device.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use pool_core::observe::RangeState;
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, PoolBuilder, PooledBuffer, StreamClock,
};
use pool_sim::SimDevice;
use pool_trace::{Breakdown, LeakTracker, RmmLog};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::sync::Arc;

fn builder() -> PoolBuilder<SimDevice> {
    BucketPool::builder(SimDevice::new())
}

/// Random operations, the same for the same seed.
fn operate(pool: &BucketPool<SimDevice>, seed: u64) {
    let (mut random, mut held) = (StdRng::seed_from_u64(seed), Vec::new());
    let streams = [pool.allocator().stream(), pool.allocator().stream()];
    for _ in 0..4000 {
        let bytes = 1 << random.random_range(4..16);
        match random.random_range(0..20) {
            0..10 => {
                let stream = &streams[random.random_range(0..2)];
                held.extend(pool.allocate_on(stream, random.random_range(1..=bytes)));
            }
            10..19 if !held.is_empty() => {
                drop(held.swap_remove(random.random_range(0..held.len())));
            }
            _ => drop(pool.trim(bytes)),
        }
    }
}

/// Replays a log in RMM's columns. Returns operations, and requested bytes.
fn replay(log: &str, pool: &BucketPool<SimDevice>) -> (u64, u64) {
    let (mut live, mut operations, mut bytes) = (HashMap::new(), 0, 0);
    for line in log.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let &[_, _, action, id, size, _] = fields.as_slice() else { panic!("{line}") };
        let size: u64 = size.parse().unwrap();
        operations += u64::from(action != "allocate failure");
        match action {
            "allocate" => {
                bytes += size;
                assert!(live.insert(id.to_owned(), pool.allocate(size).unwrap()).is_none());
            }
            "free" => assert_eq!(live.remove(id).unwrap().size(), size),
            refused => assert_eq!(refused, "allocate failure"),
        }
    }
    (operations, bytes)
}

#[test]
fn the_log_replays_to_the_same_operations_and_bytes_with_all_observers_on() {
    let log = Arc::new(RmmLog::new(Vec::new()).unwrap());
    let (leaks, breakdown) = (Arc::new(LeakTracker::default()), Arc::new(Breakdown::default()));
    let pool = builder()
        .reserved_limit(MIB)
        .observer(log.clone())
        .observer(leaks.clone())
        .observer(breakdown.clone())
        .build();
    operate(&pool, 11);
    let stats = pool.stats();
    assert!(leaks.live().is_empty(), "{leaks}");
    drop(pool);
    assert_eq!(log.lost(), 0);
    let log = Arc::into_inner(log).unwrap().into_inner().unwrap();
    let replayed = builder().build();
    let (operations, bytes) = replay(std::str::from_utf8(&log).unwrap(), &replayed);
    let served = stats.allocations - stats.failures;
    assert_eq!(operations, served + stats.deallocations);
    assert_eq!(bytes, stats.from_device_bytes + stats.from_pool_bytes);
    let again = replayed.stats();
    assert_eq!((again.allocations, again.deallocations), (served, stats.deallocations));
    assert_eq!(again.from_device_bytes + again.from_pool_bytes, bytes);
    let by_stream = breakdown.by_stream();
    assert_eq!(by_stream.len(), 2);
    assert_eq!(by_stream.values().map(|counts| counts.allocations).sum::<u64>(), served);
    assert_eq!(breakdown.by_tag()[""].hits, stats.hits);
}

/// A service with a stream for each request has few streams at once.
#[test]
fn a_breakdown_sums_up_streams_that_are_long_unused() {
    let breakdown = Arc::new(Breakdown::default());
    let pool = builder().observer(breakdown.clone()).build();
    let device = pool.allocator().clone();
    let (mut held, mut live) = (Vec::new(), Vec::new());
    for number in 0..3000_u64 {
        let stream = device.stream();
        if number % 100 == 0 {
            held.push(pool.allocate_on(&stream, KIB).unwrap());
            live.push(device.clock().stream_id(device.clock().mark(&stream)));
        }
        drop(pool.allocate_on(&stream, KIB + number).unwrap());
        device.run_stream(&stream);
        device.clock().retire(&stream).unwrap();
    }
    let (by_stream, others) = (breakdown.by_stream(), breakdown.other_streams());
    assert!(by_stream.len() <= 1024 + held.len(), "{} entries", by_stream.len());
    for stream in &live {
        assert_eq!(by_stream[stream].live_bytes, KIB, "stream {stream} has a live buffer");
    }
    let kept = by_stream.values().map(|counts| counts.allocations).sum::<u64>();
    let streams = 3000 - by_stream.len() as u64;
    assert_eq!(kept + others.allocations, 3030);
    assert_eq!((others.allocations, others.frees, others.live_bytes), (streams, streams, 0));
    assert!((KIB..4 * KIB).contains(&others.peak_bytes), "{others:?}");
    assert_eq!(breakdown.by_tag()[""].allocations, 3030);
}

#[inline(never)]
fn plant_a_leak(pool: &BucketPool<SimDevice>) -> PooledBuffer<SimDevice> {
    pool.tagged("planted").allocate(3 * KIB).unwrap()
}

#[test]
fn a_planted_leak_is_reported_with_its_backtrace() {
    let leaks = Arc::new(LeakTracker::default());
    let pool = builder().observer(leaks.clone()).build();
    drop(pool.allocate(MIB).unwrap());
    std::mem::forget(plant_a_leak(&pool));
    let live = leaks.live();
    assert_eq!((live.len(), live[0].bytes, live[0].tag), (1, 3 * KIB, "planted"));
    let report = leaks.to_string();
    let start = "1 live buffers, 3.00 KiB requested\n1 buffers, 3.00 KiB, tag \"planted\"";
    assert!(report.starts_with(start), "{report}");
    assert!(report.contains("plant_a_leak"), "{report}");
    let calls = live[0].calls();
    let first = calls.lines().next().unwrap();
    assert!(first.contains("plant_a_leak"), "the program's own call comes first: {calls}");
    assert!(!calls.contains("pool_core::"), "none of the library's: {calls}");
    assert!(!calls.contains("__rust_begin_short_backtrace"), "none of the runtime's: {calls}");
}

/// Whose each used part of the map is.
#[test]
fn the_ranges_of_a_map_are_buffers_of_the_tracker() {
    let arena = |builder: PoolBuilder<SimDevice>| builder.arena(ArenaConfig::grow());
    for with_arena in [false, true] {
        let leaks = Arc::new(LeakTracker::default());
        let builder = builder().observer(leaks.clone());
        let pool = if with_arena { arena(builder) } else { builder }.build();
        let _tile = pool.tagged("tile").allocate(3 * KIB).unwrap();
        drop(pool.tagged("gone").allocate(9 * KIB).unwrap());
        let _mask = pool.tagged("mask").allocate(5 * KIB).unwrap();
        let map = pool.map();
        let ranges = map.segments.iter().flat_map(|segment| &segment.ranges);
        let used = ranges.filter(|range| range.state == RangeState::Used);
        let mut tags: Vec<_> = used
            .map(|range| {
                let buffer = leaks.get(range.id).unwrap();
                assert!(buffer.bytes <= range.bytes());
                (buffer.tag, buffer.bytes, buffer.id == range.id)
            })
            .collect();
        tags.sort_unstable();
        assert_eq!(tags, [("mask", 5 * KIB, true), ("tile", 3 * KIB, true)]);
        assert!(leaks.get(0).is_none(), "a free range has no buffer");
    }
}
