//! Guarantees of an arena.
//!
//! An arena reuses memory without device calls, orders uses without events, and has figures that
//! add up. It reports out of memory only when there is no memory.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::error::Verdict;
use pool_core::limits::Retention;
use pool_core::observe::RangeState;
use pool_core::port::Limit;
use pool_core::stream::StealPolicy;
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, StreamClock,
    Why,
};
use pool_sim::{MappedSim, SimCall, SimDevice, SimStream};
use std::time::Duration;

fn bare(device: &SimDevice, config: ArenaConfig) -> BucketPool<SimDevice> {
    BucketPool::builder(device.clone()).arena(config).build()
}

fn kernel(device: &SimDevice, buffer: &PooledBuffer<SimDevice>, on: &SimStream) {
    device.kernel(on, &buffer.on(on).unwrap());
}

#[test]
fn three_streams_that_hand_buffers_on_make_no_memory_call_and_one_event_a_hand_over() {
    for config in [ArenaConfig::grow(), ArenaConfig::torch()] {
        let device = SimDevice::new();
        let pool = bare(&device, config.clone());
        let streams = [device.stream(), device.stream(), device.stream()];
        let turn = |i: usize| {
            let (from, to) = (&streams[i % 3], &streams[(i + 1) % 3]);
            let buffer = pool.allocate_on(from, 256 * KIB).unwrap();
            kernel(&device, &buffer, from);
            kernel(&device, &buffer, to); // hand-over: one event on `from`, one wait on `to`
        };
        (0..9).for_each(turn);
        let before = device.calls();
        (9..309).for_each(turn);
        let after = device.calls();
        assert_eq!((after.commits, after.decommits), (before.commits, before.decommits));
        let (events, waits) = (after.records - before.records, after.waits - before.waits);
        assert!(events <= 300 && waits <= 300, "{config:?}: {events} events, {waits} waits");
        assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
        device.run();
    }
}

#[test]
fn each_page_with_a_handle_counts_as_a_call() {
    let pool = bare(&SimDevice::new(), ArenaConfig::pages(64 * KIB, 0.0));
    let calls = |pool: &BucketPool<SimDevice>| {
        let stats = pool.device_stats().unwrap();
        (stats.num_device_alloc, stats.num_device_free)
    };
    let megabyte = pool.allocate(MIB).unwrap();
    assert_eq!(calls(&pool), (18, 0), "16 pages, and two ahead of the next request");
    drop(megabyte);
    pool.clear().unwrap();
    assert_eq!(calls(&pool), (18, 18));
}

#[test]
fn a_stream_that_is_ordered_already_takes_without_an_event() {
    let device = SimDevice::new();
    let pool = bare(&device, ArenaConfig::grow());
    let (s, t) = (device.stream(), device.stream());
    let mine: Vec<_> = (0..8).map(|_| pool.allocate_on(&s, 64 * KIB).unwrap()).collect();
    for buffer in &mine {
        kernel(&device, buffer, &s);
    }
    drop(mine);
    device.clock().order(&t, &[device.clock().mark(&s)]).unwrap();
    let before = device.calls();
    for _ in 0..8 {
        kernel(&device, &pool.allocate_on(&t, 64 * KIB).unwrap(), &t);
    }
    assert_eq!(device.calls(), before, "no event, no wait, no memory");
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn each_policy_takes_from_other_streams_what_it_may() {
    for (steal, commits, waits) in
        [(StealPolicy::Never, 2, 0), (StealPolicy::Ordered, 2, 0), (StealPolicy::Wait, 1, 1)]
    {
        let device = SimDevice::new();
        let pool = BucketPool::builder(device.clone())
            .arena(ArenaConfig::pages(MIB, 0.0))
            .steal(steal)
            .build();
        let (s, t, u) = (device.stream(), device.stream(), device.stream());
        kernel(&device, &pool.allocate_on(&s, MIB).unwrap(), &s);
        let _second = pool.allocate_on(&t, MIB).unwrap();
        let calls = device.calls();
        assert_eq!((calls.commits, calls.waits), (commits, waits), "{steal:?}");
        if steal == StealPolicy::Ordered {
            // From here on there is an event after the marks.
            device.clock().order(&u, &[device.clock().mark(&s)]).unwrap();
            assert!(pool.allocate_on(&t, MIB).is_ok());
            assert_eq!((device.calls().commits, device.calls().waits), (2, 2));
        }
    }
}

#[test]
fn neighbours_of_two_streams_become_one_for_a_request_that_needs_both() {
    let device = SimDevice::new();
    let pool = bare(&device, ArenaConfig::pages(MIB, 0.0));
    let (s, t) = (device.stream(), device.stream());
    let (a, b) = (pool.allocate_on(&s, MIB).unwrap(), pool.allocate_on(&t, MIB).unwrap());
    kernel(&device, &a, &s);
    kernel(&device, &b, &t);
    drop((a, b));
    let both = pool.allocate_on(&s, 2 * MIB).unwrap();
    kernel(&device, &both, &s);
    assert_eq!((device.calls().commits, device.calls().waits), (2, 1));
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn memory_that_the_cpu_can_write_is_not_handed_out_before_a_queued_copy_is_done() {
    let device = SimDevice::new();
    let pool =
        BucketPool::builder(MappedSim::new(device.clone())).arena(ArenaConfig::grow()).build();
    let s = device.stream();
    let buffer = pool.allocate_on(&s, MIB).unwrap();
    device.kernel(&s, &buffer.on(&s).unwrap());
    drop(buffer);
    let second = pool.allocate_on(&s, MIB).unwrap();
    device.touch(&second.on(&s).unwrap());
    assert_eq!((device.hazards(), pool.stats().hits), (0, 0), "{:?}", device.hazard_report());
    device.run();
    let third = pool.allocate_on(&s, MIB).unwrap();
    device.touch(&third.on(&s).unwrap());
    assert_eq!((device.hazards(), pool.stats().hits), (0, 1), "{:?}", device.hazard_report());
}

#[test]
fn each_way_to_run_out_of_memory_has_its_verdict() {
    let verdict = |work: &dyn Fn(&SimDevice, &BucketPool<SimDevice>) -> pool_core::AllocError| {
        let device = SimDevice::with_capacity(4 * MIB);
        let pool = bare(&device, ArenaConfig::segments(MIB).steal(StealPolicy::Never));
        work(&device, &pool)
    };
    let peak = verdict(&|_, pool| {
        let _live = pool.allocate(3 * MIB).unwrap();
        pool.allocate(2 * MIB).unwrap_err()
    });
    assert_eq!(peak.verdict(), Verdict::TruePeak);
    let fragmented = verdict(&|_, pool| {
        let all: Vec<_> = (0..8).map(|_| pool.allocate(512 * KIB).unwrap()).collect();
        let _every_other: Vec<_> = all.into_iter().step_by(2).collect();
        pool.allocate(MIB).unwrap_err()
    });
    assert_eq!(fragmented.verdict(), Verdict::Fragmentation);
    insta::assert_snapshot!(fragmented);
    let stranded = verdict(&|device, pool| {
        let (s, t) = (device.stream(), device.stream());
        let _keeps_the_segments: Vec<_> =
            (0..4).map(|_| pool.allocate_on(&s, 512).unwrap()).collect();
        let large = pool.allocate_on(&s, 600 * KIB).unwrap();
        kernel(device, &large, &s);
        drop(large);
        let _rest: Vec<_> = std::iter::from_fn(|| pool.allocate_on(&t, MIB).ok()).collect();
        pool.allocate_on(&t, 600 * KIB).unwrap_err()
    });
    assert_eq!(stranded.verdict(), Verdict::Stranded, "{stranded}");
    let limited = BucketPool::builder(SimDevice::new())
        .arena(ArenaConfig::segments(MIB))
        .reserved_limit(2 * MIB)
        .build();
    let _live = limited.allocate(2 * MIB).unwrap();
    assert_eq!(limited.allocate(MIB).unwrap_err().verdict(), Verdict::Limit);
}

#[test]
fn what_waits_for_a_stream_is_said_to_wait() {
    let device = SimDevice::with_capacity(MIB);
    let pool = BucketPool::builder(MappedSim::new(device.clone()))
        .arena(ArenaConfig::segments(MIB))
        .build();
    let s = device.stream();
    let (small, large) = (pool.allocate(512).unwrap(), pool.allocate(800 * KIB).unwrap());
    device.kernel(&s, &large.on(&s).unwrap());
    drop(large);
    let error = pool.allocate(900 * KIB).unwrap_err();
    assert_eq!(error.verdict(), Verdict::Pending, "{error}");
    assert!(error.figures().pending_bytes >= 800 * KIB);
    device.run();
    assert!(pool.allocate(900 * KIB).is_ok());
    drop(small);
}

#[test]
fn the_stages_are_counted() {
    let device = SimDevice::new();
    let pool = bare(&device, ArenaConfig::pages(64 * KIB, 0.0));
    let (s, t) = (device.stream(), device.stream());
    // The second allocation fits in the pages that the first call commits ahead.
    let (a, b) = (pool.allocate_on(&s, 256 * KIB).unwrap(), pool.allocate_on(&t, 128 * KIB));
    kernel(&device, &a, &s);
    kernel(&device, b.as_ref().unwrap(), &t);
    drop((a, b)); // adjacent ranges of two streams
    let _whole = pool.allocate_on(&s, 384 * KIB).unwrap();
    let stages = pool.stats().served_by;
    assert_eq!((stages.device, stages.coalesced), (1, 1));
    // The commit with pages ahead fails; the one without succeeds.
    device.fail(SimCall::Commit, 0, 1);
    let _much = pool.allocate(MIB).unwrap();
    assert_eq!(pool.stats().served_by.device, 2);
    device.fail(SimCall::Commit, 0, 2);
    let _more = pool.allocate(MIB).unwrap();
    assert_eq!(pool.stats().served_by.trimmed, 1);
    device.fail(SimCall::Commit, 0, 4);
    let _most = pool.allocate(MIB).unwrap();
    assert_eq!(pool.stats().served_by.cleared, 1);
}

#[test]
fn old_memory_goes_back_with_the_ticks() {
    let hour = Retention { time: Some(Duration::from_hours(1)), ..Retention::default() };
    let device = SimDevice::new();
    let pool = BucketPool::builder(device.clone())
        .arena(ArenaConfig::segments(MIB))
        .retention(hour)
        .build();
    let at = Duration::from_mins;
    pool.tick(at(0)).unwrap();
    drop(pool.allocate(MIB).unwrap());
    pool.tick(at(10)).unwrap();
    let young = pool.allocate(2 * MIB).unwrap();
    drop(young);
    assert_eq!(pool.tick(at(65)).unwrap(), 0, "both are younger than an hour at the last tick");
    assert_eq!(pool.tick(at(75)).unwrap(), MIB, "the first is older, the second is not");
    assert_eq!(pool.tick(at(200)).unwrap(), 2 * MIB);
    assert_eq!(pool.tick(at(100)).unwrap(), 0, "time that runs backwards makes nothing older");
}

#[test]
fn the_map_shows_what_is_where() {
    let device = SimDevice::new();
    let pool = bare(&device, ArenaConfig::pages(64 * KIB, 0.0));
    let (a, _b) = (pool.allocate(64 * KIB).unwrap(), pool.allocate(64 * KIB).unwrap());
    drop(a);
    let map = &pool.map().segments[0];
    let states: Vec<_> = map.ranges.iter().map(|one| (one.range.start, one.state)).collect();
    // A map makes no device call, and no call has yet queried whether the stream is done.
    assert_eq!(states[..2], [(0, RangeState::Pending), (64 * KIB, RangeState::Used)]);
    assert_eq!(states.last().unwrap().1, RangeState::Hole);
    let clock = device.clock();
    clock.synchronize(clock.mark(clock.default_stream())).unwrap();
    assert_eq!(pool.map().segments[0].ranges[0].state, RangeState::Free);
    pool.clear().unwrap();
    let first = &pool.map().segments[0].ranges[0];
    assert_eq!((first.range.clone(), first.state), (0..64 * KIB, RangeState::Hole));
    assert_eq!(device.held_bytes(), 64 * KIB);
}

#[test]
fn a_segment_that_two_streams_used_goes_back_whole() {
    let device = SimDevice::with_capacity(2 * MIB);
    let pool = BucketPool::builder(device.clone())
        .arena(ArenaConfig::segments(2 * MIB))
        .steal(StealPolicy::Never)
        .build();
    let (s, t) = (device.stream(), device.stream());
    let both = (pool.allocate_on(&s, MIB).unwrap(), pool.allocate_on(&t, MIB).unwrap());
    kernel(&device, &both.0, &s);
    kernel(&device, &both.1, &t);
    drop(both);
    assert!(pool.allocate_on(&s, 2 * MIB).is_ok(), "all of it was free");
    assert_eq!(pool.clear().unwrap(), 2 * MIB);
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn an_event_that_fails_keeps_nobody_from_the_device() {
    for config in [ArenaConfig::segments(MIB), ArenaConfig::grow()] {
        let device = SimDevice::new();
        let pool = bare(&device, config);
        let (s, t) = (device.stream(), device.stream());
        kernel(&device, &pool.allocate_on(&s, MIB).unwrap(), &s);
        device.fail(SimCall::Record, 0, u64::MAX);
        kernel(&device, &pool.allocate_on(&t, MIB).unwrap(), &t);
        assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
    }
}

#[test]
fn nothing_is_recorded_on_a_stream_that_has_ended() {
    let device = SimDevice::new();
    let pool = bare(&device, ArenaConfig::grow());
    let s = device.stream();
    let buffer = pool.allocate_on(&s, MIB).unwrap();
    buffer.record_stream(&s).unwrap();
    kernel(&device, &buffer, &s);
    device.clock().retire(&s).unwrap();
    let given = device.given(&s);
    drop(buffer); // takes a mark of the stream, which has ended
    kernel(&device, &pool.allocate(MIB).unwrap(), device.clock().default_stream());
    assert_eq!(device.given(&s), given);
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn a_drop_queues_nothing_where_clearing_is_not_at_once() {
    let device = SimDevice::new();
    let pool = BucketPool::builder(MappedSim::new(device.clone()))
        .arena(ArenaConfig::segments(MIB))
        .zero(pool_core::ZeroPolicy::OnReturn)
        .build();
    let on = device.clock().default_stream();
    let buffer = pool.allocate(4096).unwrap();
    let given = device.given(on);
    drop(buffer);
    assert_eq!(device.given(on), given);
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let device = SimDevice::new();
    let pool = bare(&device, ArenaConfig::segments(MIB));
    drop(pool.allocate(1000).unwrap());
    let stranger = SimDevice::new().stream();
    assert_eq!(pool.allocate_on(&stranger, 1000).unwrap_err().why(), Why::Foreign);
    assert_eq!((pool.stats().reserved_bytes, pool.clear().unwrap()), (MIB, MIB));
    assert_eq!((pool.stats().reserved_bytes, device.held_bytes()), (0, 0));
}

#[test]
fn a_pool_that_is_gone_keeps_nothing_in_its_arena() {
    let device = SimDevice::new();
    let pool = BucketPool::builder(device.clone()).arena(ArenaConfig::segments(MIB)).build();
    let (large, small) = (pool.allocate(64 * MIB).unwrap(), pool.allocate(MIB).unwrap());
    drop(large);
    drop(pool);
    assert_eq!(device.held_bytes(), MIB);
    drop(small);
    assert_eq!((device.held_bytes(), device.clones()), (0, 1));
}

#[test]
fn threads_that_give_back_and_take_at_once_agree_with_the_device() {
    for config in [ArenaConfig::pages(4 * KIB, 0.0), ArenaConfig::segments(32 * KIB)] {
        let device = SimDevice::new();
        let pool = bare(&device, config);
        let turn = |thread: u64, turn: u64| {
            let live = [1, 7, 30].map(|k| pool.allocate((turn * k + thread) % 90_000));
            assert!(live.iter().all(Result::is_ok));
            assert!(turn % 5 != thread % 5 || pool.trim(turn * 500).is_ok());
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let turn = &turn;
                scope.spawn(move || (0..500).for_each(|number| turn(thread, number)));
            }
        });
        assert_eq!(pool.stats().reserved_bytes, device.held_bytes());
        pool.clear().unwrap();
        assert_eq!((pool.stats().reserved_bytes, device.held_bytes()), (0, 0));
    }
}

#[test]
fn what_a_refused_commit_had_reserved_is_given_back() {
    let device = SimDevice::new();
    let pool = BucketPool::builder(device.clone())
        .arena(ArenaConfig::pages(64 * KIB, 0.0))
        .reserved_limit(2 * MIB)
        .build();
    device.fail(SimCall::Commit, 0, 60);
    let served = (0..100).find_map(|_| pool.allocate(MIB).ok());
    assert!(served.is_some(), "{}", pool.allocate(MIB).unwrap_err());
}

#[test]
fn a_request_of_the_split_limit_takes_a_range_whole() {
    let pool = bare(&SimDevice::new(), ArenaConfig::torch().max_split(32 * MIB));
    drop(pool.allocate(40 * MIB).unwrap());
    let at_limit = pool.allocate(32 * MIB).unwrap();
    assert_eq!(at_limit.allocated_size(), 40 * MIB);
}

#[test]
fn the_picture_of_a_map_shows_the_state_of_most_bytes_in_each_part() {
    let pool = bare(&SimDevice::new(), ArenaConfig::segments(4 * MIB));
    let [_first, second, _third] = [(); 3].map(|()| pool.allocate(MIB).unwrap());
    drop(second);
    let map = pool.map();
    assert_eq!((map.free_bytes(), map.largest_free_bytes()), (2 * MIB, MIB));
    insta::assert_snapshot!(map);
}

#[test]
fn what_is_free_at_the_device_or_under_the_limit_counts_as_free() {
    for is_limited in [false, true] {
        let device = if is_limited { SimDevice::new() } else { SimDevice::with_capacity(16 * MIB) };
        let limit = if is_limited { 16 * MIB } else { u64::MAX };
        let builder = BucketPool::builder(device).arena(ArenaConfig::segments(MIB));
        let pool = builder.reserved_limit(limit).build();
        drop(pool.allocate(11 * MIB).unwrap());
        let _live = pool.allocate(MIB).unwrap();
        let error = pool.allocate(11 * MIB).unwrap_err();
        // 1 and 11 of 16 MiB: 10 MiB are cached, 5 MiB were never taken.
        assert_eq!(error.verdict(), Verdict::Fragmentation, "limited: {is_limited}: {error}");
    }
}

#[test]
fn a_request_that_only_its_rounding_keeps_out_is_told_so() {
    let of_device = SimDevice::with_capacity(15 * MIB);
    let pool = BucketPool::builder(of_device).policy(BucketPolicy::PowerOfTwo).build();
    let alone = pool.allocate(9 * MIB).unwrap_err();
    assert_eq!((alone.verdict(), alone.figures().rounded_bytes), (Verdict::Rounding, 16 * MIB));
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB).build();
    let _live = pool.allocate(3 * MIB).unwrap();
    let beside = pool.allocate(MIB).unwrap_err();
    assert_eq!(beside.verdict(), Verdict::Rounding, "{beside}");
    let figures = (beside.figures().allocated_bytes, beside.figures().live_requested_bytes);
    assert_eq!(figures, (4 * MIB, 3 * MIB));
    insta::assert_snapshot!(beside);
    assert_eq!(pool.allocate(2 * MIB).unwrap_err().verdict(), Verdict::Limit);
}

#[test]
fn a_request_above_the_limit_alone_is_told_so() {
    let pool = BucketPool::builder(SimDevice::new()).reserved_limit(4 * MIB).build();
    let error = pool.allocate(5 * MIB).unwrap_err();
    assert_eq!(error.verdict(), Verdict::Limit);
    assert!(error.to_string().contains("this request alone is above the limit"), "{error}");
}

#[test]
fn an_arena_in_pages_is_not_advised_to_be_one() {
    let pool =
        BucketPool::builder(SimDevice::with_capacity(MIB)).arena(ArenaConfig::grow()).build();
    let all: Vec<_> = std::iter::from_fn(|| pool.allocate(48 * KIB).ok()).collect();
    let _every_other: Vec<_> = all.into_iter().step_by(2).collect();
    let error = pool.allocate(256 * KIB).unwrap_err();
    assert_eq!(error.verdict(), Verdict::Fragmentation, "{error}");
    assert!(!error.to_string().contains("an arena in pages"), "{error}");
}

/// In whole pages it is above the limit.
#[test]
fn a_request_that_fits_only_without_its_pages_evicts_nothing() {
    let config = ArenaConfig::pages(64 * KIB, 0.05);
    let builder = BucketPool::builder(SimDevice::new()).arena(config).reserved_limit(1000 * KIB);
    let pool = builder.build();
    drop(pool.allocate(900 * KIB).unwrap());
    let cached = pool.stats().cached_bytes;
    let error = pool.allocate(990 * KIB).unwrap_err();
    assert_eq!(
        (error.why(), error.verdict()),
        (Why::Limit(Limit::Reserved), Verdict::Rounding),
        "{error}"
    );
    assert_eq!(error.figures().rounded_bytes, 1024 * KIB);
    assert!(error.to_string().contains("smaller pages"), "{error}");
    assert_eq!(pool.stats().cached_bytes, cached);
    let waiting = pool.allocate_timeout(990 * KIB, Duration::MAX).unwrap_err();
    assert_eq!(waiting.why(), Why::Limit(Limit::Reserved), "no return of memory could serve it");
}

#[test]
fn the_largest_size_is_refused_whatever_the_granule() {
    let largest = i64::MAX.unsigned_abs();
    for granule in [1, 512] {
        let configs =
            [ArenaConfig::pages(64 * KIB, 0.05), ArenaConfig::grow(), ArenaConfig::segments(MIB)];
        for config in configs.into_iter().chain([ArenaConfig::torch()]) {
            let config = config.granule(granule);
            let pool = BucketPool::builder(SimDevice::new()).arena(config.clone()).build();
            let live = pool.allocate(4096).unwrap();
            for bytes in [largest, largest - 64 * KIB, largest - 1] {
                let error = pool.allocate(bytes).unwrap_err();
                assert_eq!(error.why(), Why::TooLarge, "{config:?}, {bytes} B: {error}");
            }
            drop(live);
            assert!(pool.allocate(2 * MIB).is_ok() && pool.clear().is_ok());
        }
    }
}
