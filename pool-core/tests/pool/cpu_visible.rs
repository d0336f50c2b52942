//! Memory that both the CPU and streams touch: the host cannot wait on a device.

use pool_core::{BucketPool, DeviceAllocator, StreamClock};
use pool_sim::{MappedSim, SimDevice};

#[test]
fn a_buffer_with_a_queued_copy_is_not_handed_out_before_the_copy_is_done() {
    let device = SimDevice::new();
    let pool = BucketPool::new(MappedSim::new(device.clone()));
    let s = device.stream();
    let buffer = pool.allocate_on(&s, 4096).unwrap();
    device.kernel(&s, &buffer.on(&s).unwrap());
    drop(buffer);
    // Even for the same stream: the CPU would write while the copy still reads.
    let second = pool.allocate_on(&s, 4096).unwrap();
    assert_eq!((pool.stats().hits, device.calls().queries), (0, 1));
    assert_eq!(pool.stats().active_bytes, 2 * 4096);
    device.run();
    let third = pool.allocate_on(&s, 4096).unwrap();
    assert_eq!((pool.stats().hits, device.calls().waits), (1, 0));
    assert_eq!(pool.stats().active_bytes, 2 * 4096);
    drop((second, third));
}

#[test]
fn a_buffer_of_a_recorded_stream_is_not_handed_out_before_its_last_copy_is_done() {
    let device = SimDevice::new();
    let pool = BucketPool::new(MappedSim::new(device.clone()));
    let s = device.stream();
    let mut buffer = pool.allocate_on(&s, 4096).unwrap();
    buffer.use_until_drop(&s).unwrap();
    device.touch(&buffer.on_cpu().unwrap());
    let kept = buffer.on_cpu().unwrap();
    device.kernel(&s, &kept); // a copy, by a library that has kept the address
    drop(buffer);
    device.touch(&pool.allocate_on(&s, 4096).unwrap().on_cpu().unwrap());
    assert_eq!((pool.stats().hits, device.hazards()), (0, 0), "{:?}", device.hazard_report());
}

#[test]
fn a_pending_block_is_passed_over_for_one_that_is_done() {
    let device = SimDevice::new();
    let pool = BucketPool::new(MappedSim::new(device.clone()));
    let (s, t) = (device.stream(), device.stream());
    let (done, pending) = (pool.allocate_on(&t, 512).unwrap(), pool.allocate_on(&s, 512).unwrap());
    device.kernel(&t, &done.on(&t).unwrap());
    device.kernel(&s, &pending.on(&s).unwrap());
    drop((done, pending)); // the pending one comes back last and is tried first
    let miss = pool.allocate_on(&s, 512).unwrap(); // asks for an event behind each of them
    device.run_stream(&t);
    let _hit = pool.allocate_on(&s, 512).unwrap();
    assert_eq!((pool.stats().hits, pool.stats().misses), (1, 3));
    drop(miss);
}

#[test]
fn memory_behind_a_stream_that_is_never_idle_is_reused_all_the_same() {
    let device = SimDevice::new();
    let pool = BucketPool::new(MappedSim::new(device.clone()));
    let s = device.stream();
    let turns = if cfg!(miri) { 20 } else { 100 };
    for _ in 0..turns {
        let buffer = pool.allocate_on(&s, 4096).unwrap();
        device.kernel(&s, &buffer.on(&s).unwrap());
        drop(buffer);
        device.advance(&s, 2); // the device is behind, always, and never done with everything
    }
    let stats = pool.stats();
    assert!(stats.hits > turns * 8 / 10, "{stats}");
}

#[test]
fn memory_that_no_stream_has_used_is_never_pending() {
    let device = SimDevice::new();
    let pool = BucketPool::new(MappedSim::new(device.clone()));
    let other = pool.allocate(4096).unwrap();
    let on = device.clock().default_stream();
    device.kernel(on, &other.on(on).unwrap());
    pool.warm_up(&[(512, 4)]).unwrap();
    for _ in 0..4 {
        drop(pool.allocate(512).unwrap());
    }
    assert_eq!((pool.stats().hits, device.calls().queries), (4, 0));
}
