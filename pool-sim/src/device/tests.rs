//! What a simulated device keeps of streams that have ended.

use super::*;
use pool_core::{BucketPool, KIB};

/// Streams that each wait for the one before, as a service with a stream for each request has them.
/// Returns the device's places of streams, and entries of clocks, at the end.
fn kept_after(streams: u64) -> (usize, usize) {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    for number in 0..streams {
        let stream = device.stream();
        let buffer = pool.allocate_on(&stream, 4 * KIB).unwrap();
        device.kernel(&stream, &buffer.on(&stream).unwrap());
        drop(buffer);
        if number % 7 == 0 {
            device.run();
        }
        device.clock().retire(&stream).unwrap();
    }
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
    device.driver.0.lock().kept()
}

#[test]
fn streams_that_ended_leave_no_entries_of_clocks() {
    let (streams, entries) = kept_after(100);
    let (later_streams, later_entries) = kept_after(2000);
    assert!(later_streams <= streams + 8, "{streams} streams, then {later_streams}");
    assert!(later_entries <= entries + 64, "{entries} entries, then {later_entries}");
}

/// Each launch runs its branches on streams of their own.
#[test]
fn branches_of_launches_leave_no_streams() {
    let device = SimDevice::new();
    let mut engine = device.driver.0.lock();
    let (main, side) = (engine.new_stream(), engine.new_stream());
    let at = engine.allocate(4096).unwrap();
    engine.begin_capture(main).unwrap();
    let start = engine.record(main).unwrap();
    engine.wait(side, &start).unwrap();
    engine.fill(side, at..at + 4096, 1);
    let joined = engine.record(side).unwrap();
    engine.wait(main, &joined).unwrap();
    let graph = engine.end_capture(main).unwrap();
    for _ in 0..500 {
        engine.launch(&graph, main);
        engine.synchronize_stream(main);
    }
    let (streams, entries) = engine.kept();
    assert!(streams <= 4 && entries <= 16, "{streams} streams, {entries} entries");
    assert!(engine.hazards().is_empty(), "{:?}", engine.hazards());
}

#[test]
fn a_stream_in_the_place_of_one_that_ended_is_ordered_after_that_alone() {
    let mut engine = Engine::new(8192);
    let (first, other) = (engine.new_stream(), engine.new_stream());
    let at = engine.allocate(8192).unwrap();
    engine.kernel(first, at..at + 4096);
    engine.kernel(other, at + 4096..at + 8192);
    engine.end_stream(first);
    assert_ne!(engine.new_stream(), first, "its work has not run");
    engine.synchronize_stream(first);
    let next = engine.new_stream();
    assert_eq!(next, first);
    engine.kernel(next, at..at + 4096);
    assert!(engine.hazards().is_empty(), "the host had seen it done: {:?}", engine.hazards());
    engine.kernel(next, at + 4096..at + 8192);
    assert_eq!(engine.hazards().len(), 1, "the other stream still runs");
    let event = engine.record(next).unwrap();
    engine.wait(other, &event).unwrap();
    engine.kernel(other, at..at + 8192);
    assert_eq!(engine.hazards().len(), 1, "{:?}", engine.hazards());
}
