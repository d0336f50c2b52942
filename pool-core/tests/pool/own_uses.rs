//! Uses of a buffer on the stream that it was allocated for, and what keeps them from the plain way: a lost
//! device, a fork, a stream of another device with the same number, a capture.
#![expect(clippy::unwrap_used, reason = "tests")]

use pool_core::port::{Memory, Order, Request};
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, DeviceError, KIB, PooledBuffer, StreamClock, Why,
};
use pool_sim::{MappedSim, SimDevice};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A device whose faults a test sets, and which counts the marks that a pool asks for. Streams are the
/// number of a device, and a number.
#[derive(Clone, Default)]
struct Faulty {
    device: u64,
    fault: Arc<Mutex<Option<Why>>>,
    marks: Arc<AtomicU64>,
}

impl Faulty {
    fn fails(&self, why: Option<Why>) {
        *self.fault.lock().unwrap() = why;
    }
}

type Stream = (u64, u64);
const FIRST: Stream = (0, 0);

impl StreamClock for Faulty {
    type Stream = Stream;
    type Mark = u64;

    fn default_stream(&self) -> &Stream {
        &FIRST
    }
    fn owns(&self, on: &Stream) -> bool {
        on.0 == self.device
    }
    fn fault(&self) -> Option<DeviceError> {
        self.fault.lock().unwrap().map(|why| DeviceError::new(why, "set by a test"))
    }
    fn mark(&self, on: &Stream) -> u64 {
        self.marks.fetch_add(1, Relaxed);
        on.1
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
    fn is_later(&self, a: u64, b: u64) -> bool {
        a == b
    }
    fn stream_id(&self, mark: u64) -> u64 {
        mark
    }
    fn is_ordered(&self, on: &Stream, after: u64) -> bool {
        on.1 == after
    }
    fn order(&self, _: &Stream, _: &[u64]) -> Result<Order, DeviceError> {
        Ok(Order::NotYet)
    }
    fn is_seen_done(&self, _: u64) -> bool {
        false
    }
    fn is_done(&self, _: u64) -> Result<bool, DeviceError> {
        Ok(false)
    }
    fn synchronize(&self, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl DeviceAllocator for Faulty {
    type Block = ();
    type View<'b> = ();
    type Kind = ();
    type Clock = Self;
    const MEMORY: Memory = Memory::DEVICE;

    fn clock(&self) -> &Self {
        self
    }
    fn aligned(&self, (): (), _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::new(Why::Unsupported, "alignment"))
    }
    fn allocate(&self, _: Request<()>, _: &Stream) -> Result<(), DeviceError> {
        Ok(())
    }
    fn free(&self, (): (), _: &[u64]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn view<'b>(&'b self, (): &'b (), _: u64, _: u64, _: &Stream) {}
    fn zero(&self, (): &mut (), _: u64, _: &Stream) -> Result<(), DeviceError> {
        Ok(())
    }
}

fn refusal(buffer: &PooledBuffer<Faulty>, on: Stream) -> [Why; 2] {
    [buffer.on(&on).err(), buffer.read_on(&on).err()].map(|refused| refused.unwrap().why)
}

#[test]
fn a_lost_device_and_a_fork_refuse_uses_on_the_own_stream() {
    let device = Faulty::default();
    let pool = BucketPool::new(device.clone());
    let own = (0, 7);
    let buffer = pool.allocate_on(&own, KIB).unwrap();
    drop(buffer.on(&own).unwrap());
    for why in [Why::Lost, Why::Forked] {
        device.fails(Some(why));
        assert_eq!(refusal(&buffer, own), [why; 2]);
        device.fails(None);
        drop(buffer.on(&own).unwrap());
    }
}

#[test]
fn a_use_that_ends_in_a_fork_touches_nothing_and_on_a_lost_device_ends() {
    let device = Faulty::default();
    let pool = BucketPool::new(device.clone());
    let own = (0, 7);
    let buffer = pool.allocate_on(&own, KIB).unwrap();
    for (why, more) in [(Why::Forked, 0), (Why::Lost, 1)] {
        let used = buffer.on(&own).unwrap();
        device.fails(Some(why));
        let before = device.marks.load(Relaxed);
        drop(used);
        assert_eq!(device.marks.load(Relaxed) - before, more, "{why:?}");
        device.fails(None);
    }
}

#[test]
fn a_stream_of_another_device_with_the_number_of_the_own_one_is_refused() {
    let pool = BucketPool::new(Faulty::default());
    let buffer = pool.allocate_on(&(0, 7), KIB).unwrap();
    assert_eq!(refusal(&buffer, (1, 7)), [Why::Foreign; 2]);
    assert_eq!(pool.allocate_on(&(1, 7), KIB).unwrap_err().why(), Why::Foreign);
    let (device, other) = (SimDevice::new(), SimDevice::new());
    let (own, stranger) = (device.stream(), other.stream());
    let number = |of: &SimDevice, on| of.clock().stream_id(of.clock().mark(on));
    assert_eq!(number(&device, &own), number(&other, &stranger));
    let buffer = BucketPool::new(device).allocate_on(&own, KIB).unwrap();
    assert_eq!(buffer.on(&stranger).unwrap_err().why, Why::Foreign);
}

#[test]
fn memory_that_the_cpu_can_touch_is_not_used_in_a_capture_of_the_own_stream() {
    let device = SimDevice::new();
    let pool = BucketPool::new(MappedSim::new(device.clone()));
    let own = device.stream();
    let buffer = pool.allocate_on(&own, KIB).unwrap();
    drop(buffer.on(&own).unwrap());
    device.begin_capture(&own).unwrap();
    assert_eq!(buffer.on(&own).unwrap_err().why, Why::NotSubmitted);
    drop(device.end_capture(&own).unwrap());
    drop(buffer.on(&own).unwrap());
}

/// A use that is open when the buffer is dropped lasts until then, so the next owner on another stream is
/// behind all that the stream was given until the drop.
#[test]
fn an_open_use_on_the_own_stream_lasts_until_the_drop() {
    for arena in [false, true] {
        let device = SimDevice::new();
        let builder = BucketPool::builder(device.clone());
        let pool = if arena { builder.arena(ArenaConfig::grow()) } else { builder }.build();
        let (own, other) = (device.stream(), device.stream());
        let buffer = pool.allocate_on(&own, KIB).unwrap();
        let used = ManuallyDrop::new(buffer.on(&own).unwrap());
        drop(buffer.read_on(&own).unwrap());
        device.clock().order(&other, &[device.clock().mark(&own)]).unwrap(); // ends the epoch
        device.kernel(&own, &used);
        drop(buffer);
        let next = pool.allocate_on(&other, KIB).unwrap();
        device.kernel(&other, &next.on(&other).unwrap());
        assert_eq!(device.hazards(), 0, "{:?}", device.hazard_report());
        pool.check();
    }
}
