//! Streams that read one buffer beside each other, and writers behind them; and that the state of a
//! buffer does not grow with the streams that used it.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, PrivatePool, Why,
};
use pool_sim::{MappedSim, SimDevice, SimStream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

type Buffer = PooledBuffer<SimDevice>;

fn streams<const N: usize>(device: &SimDevice) -> [SimStream; N] {
    [(); N].map(|()| device.stream())
}

fn read(device: &SimDevice, buffer: &Buffer, on: &SimStream) {
    device.reading_kernel(on, &buffer.read_on(on).unwrap());
}

fn write(device: &SimDevice, buffer: &Buffer, on: &SimStream) {
    device.kernel(on, &buffer.on(on).unwrap());
}

/// Events recorded and waits so far.
fn order_calls(device: &SimDevice) -> (u64, u64) {
    let calls = device.calls();
    (calls.records, calls.waits)
}

fn assert_no_hazard(device: &SimDevice) {
    assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
}

#[test]
fn four_streams_read_one_buffer_without_an_event() {
    let device = SimDevice::new();
    for pool in [
        BucketPool::new(device.clone()),
        BucketPool::builder(device.clone()).arena(ArenaConfig::segments(MIB)).build(),
    ] {
        let before = order_calls(&device);
        let weights = pool.allocate(MIB).unwrap();
        let readers: [_; 4] = streams(&device);
        for turn in 0..400 {
            read(&device, &weights, &readers[turn % 4]);
        }
        assert_eq!(order_calls(&device), before, "fresh memory, and reads alone");
        assert_no_hazard(&device);
    }
}

#[test]
fn a_reader_waits_for_the_last_write_once() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let weights = pool.allocate(MIB).unwrap();
    let [loader, readers @ ..]: [_; 5] = streams(&device);
    for turn in 1..=3 {
        write(&device, &weights, &loader); // behind all reads of the turn before
        let before = order_calls(&device);
        for at in 0..400 {
            read(&device, &weights, &readers[at % 4]);
        }
        let now = order_calls(&device);
        assert_eq!((now.0 - before.0, now.1 - before.1), (1, 4), "turn {turn}");
    }
    assert_no_hazard(&device);
}

#[test]
fn a_write_is_behind_all_readers() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let [writer, readers @ ..]: [_; 4] = streams(&device);
    let buffer = pool.allocate_on(&writer, MIB).unwrap();
    for on in &readers {
        read(&device, &buffer, on);
    }
    write(&device, &buffer, &writer);
    assert_eq!(order_calls(&device), (3, 3));
    // The next is behind the write, which is behind the readers.
    write(&device, &buffer, &readers[0]);
    assert_eq!(order_calls(&device), (4, 4));
    assert_no_hazard(&device);
    for on in &readers {
        read(&device, &buffer, on);
    }
    let own = readers[0].clone();
    drop(buffer);
    let again = pool.allocate_on(&own, MIB).unwrap();
    write(&device, &again, &own);
    assert_eq!((pool.stats().misses, device.hazards()), (1, 0), "{:?}", device.hazard_report());
}

// The shadow of uses must see what the pool would get wrong.
#[test]
fn the_device_sees_a_write_that_is_not_behind_a_read() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let buffer = pool.allocate(MIB).unwrap();
    let [a, b]: [_; 2] = streams(&device);
    read(&device, &buffer, &a);
    device.kernel(&b, &buffer.read_on(&b).unwrap()); // it writes through a use for reading
    assert_eq!(device.hazards(), 1);
    insta::assert_snapshot!(device.hazard_report()[0]);
}

#[test]
fn a_read_that_is_forgotten_lasts_until_the_drop() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let buffer = pool.allocate(MIB).unwrap();
    let [reader, writer]: [_; 2] = streams(&device);
    std::mem::forget(buffer.read_on(&reader).unwrap());
    for _ in 0..3 {
        device.reading_kernel(&reader, &buffer.read_on(&reader).unwrap());
        write(&device, &buffer, &writer);
    }
    let address = buffer.read_on(&writer).unwrap().bytes();
    device.run();
    drop(buffer);
    let again = pool.allocate_on(&reader, MIB).unwrap();
    assert_eq!(again.on(&reader).unwrap().bytes(), address);
    assert_no_hazard(&device);
}

#[test]
fn a_capture_that_reads_closes_nothing_for_readers() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let weights = pool.allocate(MIB).unwrap();
    let [captured, serving, loader]: [_; 3] = streams(&device);
    write(&device, &weights, &loader);
    device.begin_capture(&captured).unwrap();
    read(&device, &weights, &captured);
    read(&device, &weights, &serving); // `on` was refused here
    let refused = weights.on(&serving).unwrap_err();
    assert_eq!(refused.why, Why::NotSubmitted);
    insta::assert_snapshot!(refused);
    let (graph, after) = device.end_capture(&captured).unwrap();
    let launched = weights.read_on(&serving).unwrap();
    pool_core::StreamClock::order(device.clock(), &serving, &after).unwrap();
    device.launch(&graph, &serving);
    drop(launched);
    write(&device, &weights, &loader); // behind the launch
    device.run();
    assert_no_hazard(&device);
}

// An edge of a graph orders nothing outside of the graph: what the buffer was used for before stays
// known when the captures have ended.
#[test]
fn a_write_in_a_capture_stands_for_no_other_use() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let clock = device.clock();
    let [first, second]: [_; 2] = streams(&device);
    let buffer = pool.allocate_on(&first, MIB).unwrap();
    write(&device, &buffer, &second); // it has not run
    device.begin_capture(&first).unwrap();
    clock.begin_capture(&second).unwrap();
    clock.join_captured(&second, &first).unwrap();
    clock.join_captured(&first, &second).unwrap();
    write(&device, &buffer, &first);
    clock.end_capture(&second);
    device.end_capture(&first).unwrap(); // the graph is not launched
    drop(buffer);
    let again = pool.allocate_on(&first, MIB).unwrap();
    write(&device, &again, &first);
    assert_eq!((pool.stats().misses, device.hazards()), (1, 0), "{:?}", device.hazard_report());
}

#[test]
fn memory_of_a_capture_is_refused_elsewhere_for_the_allocation() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let [captured, other]: [_; 2] = streams(&device);
    let private = PrivatePool::new(&pool);
    device.begin_capture(&captured).unwrap();
    private.bind(&captured).unwrap();
    let buffer = pool.allocate_on(&captured, MIB).unwrap();
    let refused = buffer.on(&other).unwrap_err();
    assert_eq!((refused.why, refused.call), (Why::NotSubmitted, "use on another stream"));
}

#[test]
fn a_read_behind_a_write_that_is_open_in_a_capture_is_refused_for_the_write() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let [writer, reader]: [_; 2] = streams(&device);
    let buffer = pool.allocate(MIB).unwrap();
    buffer.use_until_drop(&writer).unwrap();
    device.begin_capture(&writer).unwrap();
    read(&device, &buffer, &writer);
    for refused in [buffer.read_on(&reader).unwrap_err(), buffer.on(&reader).unwrap_err()] {
        assert_eq!((refused.why, refused.call), (Why::NotSubmitted, "use on another stream"));
    }
}

/// A stream that has a use waits for no other reader, however many there are.
#[test]
fn many_readers_do_not_wait_for_each_other_again_and_again() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let weights = pool.allocate(MIB).unwrap();
    let loader = device.stream();
    write(&device, &weights, &loader);
    let readers: [_; 60] = streams(&device);
    for on in &readers {
        read(&device, &weights, on);
    }
    let waits = device.calls().waits;
    // Each waits for the write; the 33rd and some others for up to 8 readers.
    assert!((60..=60 + 40).contains(&waits), "{waits} waits");
    for turn in 0..10 {
        read(&device, &weights, &readers[59 - turn]); // it has a use
    }
    assert_eq!(device.calls().waits, waits);
    write(&device, &weights, &loader);
    assert_no_hazard(&device);
}

#[test]
fn a_capture_that_writes_refuses_readers_elsewhere() {
    let device = SimDevice::new();
    let pool = BucketPool::new(device.clone());
    let buffer = pool.allocate(MIB).unwrap();
    let [captured, other]: [_; 2] = streams(&device);
    device.begin_capture(&captured).unwrap();
    write(&device, &buffer, &captured);
    let refused = [buffer.read_on(&other).unwrap_err(), buffer.on(&other).unwrap_err()];
    assert_eq!(refused[0], refused[1], "the write alone refuses both");
    insta::assert_snapshot!(refused[0]);
}

#[test]
fn the_cpu_reads_beside_streams_that_read() {
    let device = SimDevice::new();
    let pool = BucketPool::new(MappedSim::new(device.clone()));
    let [reader, writer]: [_; 2] = streams(&device);
    let mut buffer = pool.allocate(KIB).unwrap();
    device.kernel(&writer, &buffer.on(&writer).unwrap());
    device.reading_kernel(&reader, &buffer.read_on(&reader).unwrap());
    device.look_at(&buffer.read_on_cpu().unwrap());
    assert_eq!(device.calls().records, 1, "the reader waits for the writer, and the CPU too");
    device.touch(&buffer.on_cpu().unwrap());
    assert_eq!(device.calls().records, 2, "and now for the reader");
    assert_no_hazard(&device);
}

/// Streams that use one buffer one after the other, each of which may live on, with work that is not
/// done: the uses that the buffer keeps are few, and each order holds.
#[test]
fn a_buffer_keeps_few_uses_of_many_streams() {
    let seed = std::env::var("BUCKETPOOL_SEED").map_or(11, |text| text.parse().unwrap());
    let mut dice = StdRng::seed_from_u64(seed);
    let device = SimDevice::new().seeded(seed);
    let pool = BucketPool::new(device.clone());
    let shared = pool.allocate(MIB).unwrap();
    let mut all = Vec::new();
    for turn in 0..300 {
        let on = device.stream();
        if dice.random_range(0..8) == 0 {
            write(&device, &shared, &on);
        } else {
            read(&device, &shared, &on);
        }
        all.push(on);
        let before = &all[dice.random_range(0..all.len())];
        read(&device, &shared, before);
        let uses = shared.uses_on_other_streams();
        assert!(uses <= 33, "{uses} uses in turn {turn}, seed {seed}");
    }
    drop(shared);
    write(&device, &pool.allocate(MIB).unwrap(), &all[0]);
    assert_eq!((pool.stats().misses, device.hazards()), (1, 0), "seed {seed}");
}

/// The mark of a write is noted when it ends: until then the latest mark of its stream counts.
#[test]
fn a_read_waits_for_a_write_that_is_open_or_was_forgotten() {
    for forgotten in [false, true] {
        let device = SimDevice::new();
        let pool = BucketPool::new(device.clone());
        let [own, other] = streams(&device);
        let buffer = pool.allocate_on(&own, 4 * KIB).unwrap();
        let open = buffer.on(&own).unwrap();
        device.kernel(&own, &open);
        if forgotten {
            std::mem::forget(open);
            read(&device, &buffer, &other);
        } else {
            read(&device, &buffer, &other);
            drop(open);
        }
        assert_eq!(order_calls(&device), (1, 1), "forgotten: {forgotten}");
        device.run();
        assert_no_hazard(&device);
    }
}
