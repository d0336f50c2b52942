//! Sources of buffers for workloads: direct allocation, or a pool, on any device.

use crate::counted::{Asked, Calls, Counted, CountedBlock};
use crate::machine::free_memory;
use crate::pass::ToBuilder;
use crate::spec::NamedPolicy;
use crate::workload::{Done, Source, Workload};
use bucketpool::limits::CachedLimit;
use bucketpool::port::Request;
use bucketpool::{
    BucketPool, DeviceAllocator, GIB, PoolBuilder, PoolStats, PooledBuffer, StreamClock, ZeroPolicy,
};
use std::sync::Arc;

/// Limit of the cached bytes of a pool.
///
/// The limit is a 32nd of the free memory if that is less, because a dozen pools take turns.
const CACHED_LIMIT: u64 = GIB;

/// A source of buffers, without its buffer type.
pub trait Steps {
    /// Runs the step of `workload` with this number, over small buffers if `small`. `None` where
    /// there is no memory.
    fn step(&self, workload: Workload, number: u64, small: bool) -> Option<Done>;
    /// Returns the calls to the device so far.
    fn asked(&self) -> Asked;
    /// Returns the figures of the pool; zeroes where there is none.
    fn stats(&self) -> PoolStats;
}

impl<S: Source> Steps for S {
    fn step(&self, workload: Workload, number: u64, small: bool) -> Option<Done> {
        workload.step(self, number, small)
    }
    fn asked(&self) -> Asked {
        Source::asked(self)
    }
    fn stats(&self) -> PoolStats {
        Source::stats(self)
    }
}

/// Creates a pool with this policy over `device`, or direct allocation without a policy. With
/// `writes`, each buffer is zeroed.
pub fn on_device<A: DeviceAllocator + 'static>(
    device: A,
    to_builder: ToBuilder<A>,
    spec: Option<&NamedPolicy>,
    writes: bool,
) -> Box<dyn Steps> {
    let Some(spec) = spec else { return Box::new(DeviceDirect::new(device, writes)) };
    let device = Counted::new(device);
    let calls = device.calls();
    Box::new(DevicePool::new(to_builder(spec, device), calls, spec, writes))
}

/// Builds the pool of a workload. Buffers are not zeroed.
pub(crate) fn build<A: DeviceAllocator>(
    builder: PoolBuilder<A>,
    spec: &NamedPolicy,
) -> BucketPool<A> {
    let builder = builder.zero(ZeroPolicy::Never);
    let limit = free_memory().map_or(CACHED_LIMIT, |free| CACHED_LIMIT.min(free / 32));
    // The memory of an arena is bounded by the peak of live bytes. A preset sets its own bound.
    match (spec.has_arena(), builder.bound_on_cached_bytes()) {
        (false, CachedLimit::Unlimited) => builder.cached_limit(limit).build(),
        (false, CachedLimit::Bytes(bytes)) if bytes > limit => builder.cached_limit(limit).build(),
        _ => builder.build(),
    }
}

/// Direct allocation with the device's own calls.
///
/// Each buffer is filled with zeroes, which writes all of it, unless the device has no memory to
/// write. Contents are not read back; the check is only that each buffer was allocated and freed.
#[derive(Debug)]
struct DeviceDirect<A: DeviceAllocator> {
    device: Counted<A>,
    writes: bool,
}

impl<A: DeviceAllocator> DeviceDirect<A> {
    /// Creates a source with direct allocation on this device.
    fn new(device: A, writes: bool) -> Self {
        Self { device: Counted::new(device), writes }
    }
}

impl<A: DeviceAllocator> Source for DeviceDirect<A> {
    type Buffer = CountedBlock<A::Block>;
    fn filled(&self, bytes: usize, _byte: u8) -> Option<Self::Buffer> {
        let (device, on) = (&self.device, self.device.clock().default_stream());
        let bytes = (bytes as u64).next_multiple_of(device.granule());
        let request = Request { bytes, kind: A::Kind::default() };
        let mut block = device.allocate(request, on).ok()?;
        if self.writes {
            device.zero(&mut block, bytes, on).ok()?;
        }
        Some(block)
    }
    fn give_back(&self, block: Self::Buffer) -> u64 {
        // Frees after the work on the stream, because a driver may free at once.
        let clock = self.device.clock();
        let mark = clock.mark(clock.default_stream());
        u64::from(self.device.free(block, &[mark]).is_ok())
    }
    fn finish(&self) {
        finish(&self.device);
    }
    fn asked(&self) -> Asked {
        self.device.calls().asked()
    }
}

/// A pool over a device. Buffers are filled with zeroes, as for [`DeviceDirect`].
#[derive(Debug)]
struct DevicePool<A: DeviceAllocator> {
    pool: BucketPool<A>,
    calls: Arc<Calls>,
    writes: bool,
}

impl<A: DeviceAllocator> DevicePool<A> {
    /// Builds a pool with this policy from the builder, over a device whose calls are counted.
    fn new(builder: PoolBuilder<A>, calls: Arc<Calls>, spec: &NamedPolicy, writes: bool) -> Self {
        Self { pool: build(builder, spec), calls, writes }
    }
}

impl<A: DeviceAllocator> Source for DevicePool<A> {
    type Buffer = PooledBuffer<A>;
    fn filled(&self, bytes: usize, _byte: u8) -> Option<Self::Buffer> {
        let bytes = bytes as u64;
        if self.writes { self.pool.allocate_zeroed(bytes) } else { self.pool.allocate(bytes) }.ok()
    }
    fn give_back(&self, _buffer: Self::Buffer) -> u64 {
        1
    }
    fn finish(&self) {
        finish(self.pool.allocator());
    }
    fn asked(&self) -> Asked {
        self.calls.asked().with_handles_of(self.pool.device_stats())
    }
    fn stats(&self) -> PoolStats {
        self.pool.stats()
    }
}

/// Waits until the device has finished its work. The next call reports an error.
fn finish<A: DeviceAllocator>(device: &A) {
    let clock = device.clock();
    let _ = clock.synchronize(clock.mark(clock.default_stream()));
}
