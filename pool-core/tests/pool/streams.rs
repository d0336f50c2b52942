//! Stream order, on a device whose streams run late and that notices what is not ordered.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::mem::ManuallyDrop;

use pool_core::port::Request;
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, StreamClock, Why,
};
use pool_sim::{MappedSim, SimCall, SimDevice, SimStream};

fn kernel(device: &SimDevice, buffer: &PooledBuffer<SimDevice>, on: &SimStream) {
    device.kernel(on, &buffer.on(on).unwrap());
}

#[test]
fn the_device_sees_a_use_that_is_not_ordered() {
    let device = SimDevice::new();
    let (s, t) = (device.stream(), device.stream());
    let block = device.allocate(Request { bytes: 512, kind: () }, &s).unwrap();
    device.kernel(&s, &device.view(&block, 0, 512, &s));
    device.kernel(&t, &device.view(&block, 0, 512, &t));
    assert_eq!(device.hazards(), 1);
    insta::assert_snapshot!(device.hazard_report()[0]);
}

#[test]
fn one_stream_costs_no_event_and_one_event_serves_many_blocks() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (s, t) = (device.stream(), device.stream());
    let take = |on: &SimStream| -> Vec<_> {
        (0..50).map(|_| pool.allocate_on(on, 4096).unwrap()).collect()
    };
    for _ in 0..10 {
        for buffer in take(&s) {
            kernel(&device, &buffer, &s);
        }
    }
    let calls = device.calls();
    assert_eq!((calls.records, calls.waits, calls.allocations), (0, 0, 50));
    for buffer in take(&t) {
        kernel(&device, &buffer, &t);
    }
    let calls = device.calls();
    assert_eq!((calls.records, calls.waits, calls.allocations), (1, 1, 50));
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn a_ring_of_streams_makes_no_device_memory_call() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let streams: Vec<_> = (0..3).map(|_| device.stream()).collect();
    let turn = |i: usize| {
        let (s, t) = (&streams[i % 3], &streams[(i + 2) % 3]);
        let buffer = pool.allocate_on(s, 1 << 20).unwrap();
        kernel(&device, &buffer, s);
        if i.is_multiple_of(2) {
            kernel(&device, &buffer, t); // taken to another stream, and not to the next turn's
        }
    };
    (0..30).for_each(turn);
    let before = device.calls();
    (30..330).for_each(turn);
    let after = device.calls();
    assert_eq!(after.allocations, before.allocations);
    assert!(after.records - before.records <= 450, "{after:?}");
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn a_forgotten_use_counts_until_the_drop() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (t, u) = (device.stream(), device.stream());
    let buffer = pool.allocate_on(&t, 512).unwrap();
    let forgotten = ManuallyDrop::new(buffer.on(&t).unwrap());
    // An event ends the epoch in which the use began; the kernel comes after it.
    device.clock().order(&u, &[device.clock().mark(&t)]).unwrap();
    device.kernel(&t, &forgotten);
    drop(buffer);
    let again = pool.allocate_on(&u, 512).unwrap();
    kernel(&device, &again, &u);
    assert_eq!((device.hazards(), pool.stats().hits), (0, 1), "{:?}", device.hazard_report());
}

#[test]
fn a_recorded_stream_counts_until_the_drop() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (s, t, u) = (device.stream(), device.stream(), device.stream());
    let buffer = pool.allocate_on(&s, 512).unwrap();
    buffer.record_stream(&t).unwrap();
    device.clock().order(&u, &[device.clock().mark(&s), device.clock().mark(&t)]).unwrap();
    let waits = device.calls().waits;
    drop(buffer);
    assert!(pool.allocate_on(&u, 512).is_ok());
    assert_eq!(device.calls().waits - waits, 1, "u knows t's past, not what came until the drop");
}

#[test]
fn a_buffer_that_is_dropped_on_a_stream_is_that_streams_next() {
    for arena in [false, true] {
        let device = SimDevice::new();
        let mut builder = BucketPool::builder(device.clone());
        if arena {
            builder = builder.arena(ArenaConfig::segments(MIB));
        }
        let pool = builder.build();
        let (s, t, u) = (device.stream(), device.stream(), device.stream());
        let buffer = pool.allocate_on(&s, 512).unwrap();
        kernel(&device, &buffer, &s);
        buffer.record_stream(&u).unwrap();
        let kept = buffer.on(&t).unwrap();
        device.kernel(&t, &kept);
        drop(kept);
        device.kernel(&u, &buffer.on(&u).unwrap());
        device.clock().order(&t, &[device.clock().mark(&s)]).unwrap();
        let (calls, misses) = (device.calls(), pool.stats().misses);
        buffer.drop_on(&t).unwrap();
        assert_eq!(device.calls(), calls, "a drop asks the device for nothing");
        kernel(&device, &pool.allocate_on(&t, 512).unwrap(), &t);
        assert_eq!(pool.stats().misses, misses, "its block");
        assert_eq!(device.hazards(), 0, "behind the recorded use: {:?}", device.hazard_report());

        // Without recorded uses the next request waits for nothing.
        let buffer = pool.allocate_on(&s, 2048).unwrap();
        kernel(&device, &buffer, &s);
        device.clock().order(&t, &[device.clock().mark(&s)]).unwrap();
        buffer.drop_on(&t).unwrap();
        let (waits, misses) = (device.calls().waits, pool.stats().misses);
        kernel(&device, &pool.allocate_on(&t, 2048).unwrap(), &t);
        assert_eq!((device.calls().waits, pool.stats().misses), (waits, misses));
        assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
    }
}

/// The kernel of an earlier buffer may still run, of which the owner of the unused one knows nothing.
#[test]
fn a_buffer_that_was_never_used_is_dropped_behind_what_its_memory_was_before() {
    for (arena, fresh) in [(false, false), (true, false), (false, true)] {
        let device = SimDevice::new();
        let mut builder = BucketPool::builder(device.clone());
        if arena {
            builder = builder.arena(ArenaConfig::segments(MIB));
        }
        let pool = builder.build();
        let (s, t) = (device.stream(), device.stream());
        if !fresh {
            kernel(&device, &pool.allocate_on(&s, 512).unwrap(), &s);
        }
        pool.allocate_on(&s, 512).unwrap().drop_on(&t).unwrap();
        let (records, misses) = (device.calls().records, pool.stats().misses);
        kernel(&device, &pool.allocate_on(&t, 512).unwrap(), &t);
        assert_eq!(pool.stats().misses, misses, "its block");
        assert_eq!(device.calls().records - records, 1, "behind its allocation");
        assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
    }
}

#[test]
fn a_buffer_that_no_stream_takes_is_dropped_all_the_same() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (s, stranger) = (device.stream(), SimDevice::new().stream());
    let buffer = pool.allocate_on(&s, 512).unwrap();
    kernel(&device, &buffer, &s);
    assert_eq!(buffer.drop_on(&stranger).unwrap_err().why, Why::Foreign);
    assert_eq!((pool.stats().allocated_bytes, device.hazards()), (0, 0));
}

/// Memory that the CPU can touch is refused to a capture, which may use it all the same.
#[test]
fn a_buffer_that_a_capture_is_refused_is_dropped_behind_it() {
    let device = SimDevice::new();
    let pool = BucketPool::new(MappedSim::new(device.clone()));
    let (s, t) = (device.stream(), device.stream());
    let buffer = pool.allocate_on(&s, 512).unwrap();
    device.kernel(&s, &buffer.on(&s).unwrap());
    device.begin_capture(&t).unwrap();
    assert_eq!(buffer.drop_on(&t).unwrap_err().why, Why::NotSubmitted);
    device.run();
    drop(pool.allocate_on(&s, 512).unwrap());
    assert_eq!(pool.stats().misses, 2, "not while it goes on");
    drop(device.end_capture(&t));
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

/// The CPU looks at the buffer, and then the recorded stream is given more work.
#[test]
fn a_recorded_stream_counts_until_the_drop_although_the_cpu_has_used_the_buffer() {
    for record in [PooledBuffer::record_stream, PooledBuffer::use_until_drop] {
        let device = SimDevice::new();
        let pool = BucketPool::new(device.clone());
        let (load, compute) = (device.stream(), device.stream());
        let mut buffer = pool.allocate_on(&load, 512).unwrap();
        record(&buffer, &compute).unwrap();
        device.touch(&buffer.on_cpu().unwrap());
        let kept = buffer.on_cpu().unwrap();
        device.kernel(&compute, &kept); // by a library that has kept the address
        drop(buffer);
        kernel(&device, &pool.allocate_on(&load, 512).unwrap(), &load);
        assert_eq!((pool.stats().hits, device.hazards()), (1, 0), "{:?}", device.hazard_report());
    }
}

#[test]
fn another_stream_waits_for_a_recorded_one_although_the_cpu_has_used_the_buffer() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (s, t) = (device.stream(), device.stream());
    let mut buffer = pool.allocate_on(&s, 512).unwrap();
    buffer.use_until_drop(&s).unwrap();
    let kept = buffer.on_cpu().unwrap();
    device.kernel(&s, &kept);
    kernel(&device, &buffer, &t);
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

/// The use began in an earlier epoch than the work that the CPU waits for.
#[test]
fn the_cpu_waits_for_the_latest_work_of_a_recorded_stream() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (s, other) = (device.stream(), device.stream());
    let mut buffer = pool.allocate_on(&s, 512).unwrap();
    buffer.use_until_drop(&s).unwrap();
    for _ in 0..3 {
        device.clock().order(&other, &[device.clock().mark(&s)]).unwrap(); // ends the epoch
        let kept = buffer.on_cpu().unwrap();
        device.kernel(&s, &kept);
        device.touch(&buffer.on_cpu().unwrap());
    }
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

/// Work that is given to the stream after an ended use is none of the buffer's.
#[test]
fn the_cpu_waits_for_no_work_after_the_uses_of_a_buffer() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (s, other) = (device.stream(), device.stream());
    let (mut buffer, later) = (pool.allocate_on(&s, 512).unwrap(), pool.allocate(512).unwrap());
    kernel(&device, &buffer, &s);
    device.clock().order(&other, &[device.clock().mark(&s)]).unwrap(); // ends the epoch
    kernel(&device, &later, &s);
    device.touch(&buffer.on_cpu().unwrap());
    let last = device.clock().mark(&s);
    assert_eq!((device.clock().is_done(last), device.hazards()), (Ok(false), 0));
}

#[test]
fn strangers_are_refused() {
    let (device, other) = (SimDevice::new(), SimDevice::new());
    let pool = BucketPool::new(device.clone());
    let stranger = other.stream();
    let error = pool.allocate_on(&stranger, 512).unwrap_err();
    assert_eq!(error.why(), Why::Foreign, "{error}");
    let buffer = pool.allocate(512).unwrap();
    assert_eq!(buffer.on(&stranger).unwrap_err().why, Why::Foreign);
    assert_eq!(buffer.record_stream(&stranger).unwrap_err().why, Why::Foreign);
    let (block, _) = buffer.detach().into_raw().unwrap();
    assert_eq!(other.free(block, &[]).unwrap_err().why, Why::Foreign);
    assert_eq!(pool.stats().failures, 1);
}

#[test]
fn a_wait_that_fails_leaves_the_block_where_it_is_and_the_device_serves() {
    for call in [SimCall::Record, SimCall::Wait] {
        let device = SimDevice::new();
        let pool = BucketPool::builder(device.clone()).reserved_limit(1024).build();
        let (s, t) = (device.stream(), device.stream());
        drop(pool.allocate_on(&s, 512).unwrap());
        device.fail(call, 0, 1);
        let fresh = pool.allocate_on(&t, 512).unwrap();
        assert_eq!((pool.stats().misses, pool.stats().cached_bytes), (2, 512), "{call:?}");
        drop(fresh);
        assert!(pool.allocate_on(&s, 512).is_ok(), "the block is where it was");
        assert_eq!((device.calls().allocations, pool.stats().hits), (2, 1));
    }
}

#[test]
fn a_stranger_among_marks_is_refused() {
    let (device, other) = (SimDevice::new(), SimDevice::new());
    let foreign = other.clock().mark(&other.stream());
    let clock = device.clock();
    assert_eq!(clock.is_done(foreign).unwrap_err().why, Why::Foreign);
    assert_eq!(clock.synchronize(foreign).unwrap_err().why, Why::Foreign);
    let order = clock.order(clock.default_stream(), &[foreign]);
    assert_eq!(order.unwrap_err().why, Why::Foreign);
    assert!(!clock.is_seen_done(foreign) && !clock.is_ordered(clock.default_stream(), foreign));
}

#[test]
fn what_goes_back_to_the_device_is_waited_for() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (s, t) = (device.stream(), device.stream());
    let buffer = pool.allocate_on(&s, 512).unwrap();
    kernel(&device, &buffer, &s);
    kernel(&device, &buffer, &t);
    drop(buffer);
    assert_eq!(pool.trim(1).unwrap(), 512);
    assert_eq!((device.held_bytes(), device.hazards()), (0, 0), "{:?}", device.hazard_report());
}

#[test]
fn the_cleared_and_the_freed_are_waited_for() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let s = device.stream();
    kernel(&device, &pool.allocate_on(&s, 512).unwrap(), &s);
    let records = device.calls().records;
    assert_eq!(pool.clear().unwrap(), 512);
    assert_eq!(device.calls().records, records + 1, "cleared after an event on its stream");
}

#[test]
fn uses_at_the_same_time_are_all_waited_for() {
    let device = SimDevice::new();
    // All that there is.
    let arena = ArenaConfig::segments(MIB);
    let pool = BucketPool::builder(device.clone()).arena(arena).build();
    let (s, t) = (device.stream(), device.stream());
    let buffer = pool.allocate_on(&s, MIB).unwrap();
    let (on_s, on_t) = (buffer.on(&s).unwrap(), buffer.on(&t).unwrap());
    device.kernel(&s, &on_s); // after `on_t` began, so `t` is not ordered behind it
    drop(on_s);
    drop(on_t); // the latest use, and it knows nothing of the other one
    drop(buffer);
    kernel(&device, &pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!((device.hazards(), device.calls().waits), (0, 2), "{:?}", device.hazard_report());
}

#[test]
fn memory_that_was_warmed_up_over_a_used_range_is_behind_its_uses() {
    let device = SimDevice::new();
    let arena = ArenaConfig::pages(64 * KIB, 0.05);
    let pool = BucketPool::builder(device.clone()).arena(arena).build();
    let (s, t) = (device.stream(), device.stream());
    let page = pool.allocate_on(&s, 64 * KIB).unwrap();
    kernel(&device, &page, &s);
    drop(page);
    // The fewest pages are missing where the free one is a part of it.
    pool.warm_up(&[(MIB, 1)]).unwrap();
    kernel(&device, &pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!((device.hazards(), pool.stats().hits), (0, 1), "{:?}", device.hazard_report());
}

#[test]
fn a_buffer_that_is_used_on_many_streams_keeps_few_marks_of_those_that_ended() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let weights = pool.allocate(4096).unwrap();
    for _ in 0..1000 {
        let once = device.stream();
        kernel(&device, &weights, &once);
        device.clock().retire(&once).unwrap();
        device.run();
    }
    let (block, marks) = weights.detach().into_raw().unwrap();
    assert!(marks.len() <= 3, "{} marks of 1000 streams", marks.len());
    device.free(block, &marks).unwrap();
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn a_use_on_a_stream_that_ended_is_waited_for_until_it_is_done() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let (s, once) = (device.stream(), device.stream());
    let weights = pool.allocate(4096).unwrap();
    kernel(&device, &weights, &once);
    let clock = device.clock();
    let mark = clock.mark(&once);
    assert!(!clock.is_obsolete(mark), "the stream lives");
    clock.retire(&once).unwrap();
    assert!(!clock.is_obsolete(mark), "its work has not run");
    weights.record_stream(&s).unwrap(); // another stream, which is not ordered behind it
    drop(weights);
    kernel(&device, &pool.allocate_on(&s, 4096).unwrap(), &s);
    assert_eq!((pool.stats().hits, device.hazards()), (1, 0), "{:?}", device.hazard_report());
    device.run();
    assert!(clock.is_done(mark).unwrap());
    assert!(clock.is_obsolete(mark));
    let foreign = SimDevice::new();
    assert!(!clock.is_obsolete(foreign.clock().mark(&foreign.stream())), "of another device");
}

#[test]
fn streams_that_run_long_hide_no_others_that_have_ended() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let [long, short] = [20, 5].map(|count| -> Vec<_> {
        let begin = |_| {
            let stream = device.stream();
            kernel(&device, &pool.allocate_on(&stream, 512).unwrap(), &stream);
            stream
        };
        (0..count).map(begin).collect()
    });
    let marks: Vec<_> = short.iter().map(|stream| device.clock().mark(stream)).collect();
    for stream in long.iter().chain(&short) {
        device.clock().retire(stream).unwrap();
    }
    for stream in &short {
        device.run_stream(stream);
    }
    // Each new stream queries four of those that have ended.
    let _more: Vec<_> = (0..25_usize.div_ceil(4)).map(|_| device.stream()).collect();
    let obsolete = marks.iter().filter(|mark| device.clock().is_obsolete(**mark)).count();
    assert_eq!(obsolete, marks.len());
}

/// A shard has a free list for each stream up to a number of them; beyond, streams share lists.
#[test]
fn more_streams_than_lists_keep_their_memory_apart() {
    for streams in [500, 600, 1200] {
        let device = SimDevice::new();
        let builder = BucketPool::builder(device.clone()).arena(ArenaConfig::segments(64 * MIB));
        let pool = builder.shards(1).build();
        let all: Vec<_> = (0..streams).map(|_| device.stream()).collect();
        let four = |stream: &SimStream| {
            [(); 4].map(|()| {
                let buffer = pool.allocate_on(stream, 4096).unwrap();
                kernel(&device, &buffer, stream);
                buffer
            })
        };
        let held: Vec<_> = all.iter().map(four).collect();
        let _apart = pool.allocate(512).unwrap();
        drop(held);
        pool.check();
        let free = pool.cached_buffers().values().sum::<usize>();
        assert_eq!(free, streams + 1, "one range for each stream, and what nobody has used");
        let (calls, before) = (device.calls(), pool.stats());
        for _ in 0..3 {
            for stream in &all {
                drop(pool.allocate_on(stream, 4096).unwrap());
            }
        }
        let after = pool.stats();
        assert_eq!(after.hits - before.hits, 3 * streams as u64);
        assert_eq!(after.served_by.elsewhere, before.served_by.elsewhere, "{streams} streams");
        assert_eq!(device.calls(), calls, "{streams} streams: no event, no query, no wait");
        // Streams that have ended, and others that take their lists.
        device.run();
        for stream in &all[..streams / 2] {
            device.clock().retire(stream).unwrap();
        }
        let others: Vec<_> = (0..streams / 2).map(|_| device.stream()).collect();
        for stream in &others {
            drop(four(stream));
        }
        pool.check();
        assert_eq!(device.hazards(), 0);
    }
}

/// Neighbours of two streams, so that each is a range of its own in its page.
#[test]
fn all_goes_back_behind_the_work_of_many_neighbours() {
    let pages = ArenaConfig::pages(8 * MIB, 0.12);
    for config in [ArenaConfig::grow(), pages, ArenaConfig::segments(MIB), ArenaConfig::torch()] {
        for late in [false, true] {
            let device = SimDevice::new();
            let pool = BucketPool::builder(device.clone()).arena(config.clone()).build();
            let streams = [device.stream(), device.stream()];
            let all: Vec<_> = (0..200)
                .map(|at| {
                    let on = &streams[at % 2];
                    let buffer = pool.allocate_on(on, 16 * 1024).unwrap();
                    kernel(&device, &buffer, on);
                    buffer
                })
                .collect();
            drop(all);
            let ranges: usize = pool.map().segments.iter().map(|it| it.ranges.len()).sum();
            assert!(ranges > 128, "{ranges}");
            if !late {
                device.run();
            }
            pool.clear().unwrap();
            assert_eq!(pool.stats().reserved_bytes, 0, "{late} {:?}", pool.stats());
        }
    }
}
