//! Sources of buffers for workloads: direct allocation, or a pool, on each kind of memory.

use crate::counted::{Asked, Calls, Counted, CountedBlock};
use crate::machine::free_memory;
use crate::spec::PolicySpec;
use crate::workload::Source;
use bucketpool::host::HostAllocator;
use bucketpool::{
    BucketPool, CachedLimit, DeviceAllocator, GIB, HostMemory, PoolBuilder, PoolStats,
    PooledBuffer, Request, StreamClock, ZeroPolicy,
};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Limit of the cached bytes of a pool.
///
/// The limit is a 32nd of the free memory if that is less, because a dozen pools take turns.
const CACHED_LIMIT: u64 = GIB;

fn build<A: DeviceAllocator>(builder: PoolBuilder<A>, spec: &PolicySpec) -> BucketPool<A> {
    let builder = builder.zero(ZeroPolicy::Never);
    let limit = free_memory().map_or(CACHED_LIMIT, |free| CACHED_LIMIT.min(free / 32));
    // The memory of an arena is bounded by the peak of live bytes. A preset sets its own bound.
    match (spec.arena.is_some(), builder.bound_on_cached_bytes()) {
        (false, CachedLimit::Unlimited) => builder.cached_limit(limit).build(),
        (false, CachedLimit::Bytes(bytes)) if bytes > limit => builder.cached_limit(limit).build(),
        _ => builder.build(),
    }
}

/// Direct allocation from the global allocator, as in a program without a pool.
///
/// Plain numbers count the calls, so that counting adds a nanosecond or two to a pair, and no more
/// than a pool's own counting.
#[derive(Debug, Default)]
pub struct HostDirect {
    asked: Cell<Asked>,
    held: Cell<u64>,
    /// Returned buffers, if they are kept: a fault that the bench must notice.
    kept: Option<RefCell<Vec<Vec<u8>>>>,
}

impl HostDirect {
    /// Creates a source with direct allocation. With `keeps` it reuses returned buffers instead.
    #[must_use]
    pub fn new(keeps: bool) -> Self {
        Self { kept: keeps.then(RefCell::default), ..Self::default() }
    }

    fn kept(&self, bytes: usize, byte: u8) -> Option<Vec<u8>> {
        let mut kept = self.kept.as_ref()?.borrow_mut();
        let at = kept.iter().position(|buffer| buffer.capacity() >= bytes)?;
        let mut buffer = kept.swap_remove(at);
        buffer.clear();
        buffer.resize(bytes, byte);
        Some(buffer)
    }
}

impl Source for HostDirect {
    type Buffer = Vec<u8>;
    fn filled(&self, bytes: usize, byte: u8) -> Option<Vec<u8>> {
        let (mut asked, held) = (self.asked.get(), self.held.get() + bytes as u64);
        asked.allocations += 1;
        asked.peak_bytes = asked.peak_bytes.max(held);
        self.asked.set(asked);
        self.held.set(held);
        Some(self.kept(bytes, byte).unwrap_or_else(|| vec![byte; bytes]))
    }
    fn give_back(&self, buffer: Vec<u8>) -> u64 {
        let asked = self.asked.get();
        self.asked.set(Asked { frees: asked.frees + 1, ..asked });
        self.held.set(self.held.get() - buffer.len() as u64);
        let byte = u64::from(buffer[buffer.len() / 2]);
        if let Some(kept) = &self.kept {
            kept.borrow_mut().push(buffer);
        }
        byte
    }
    fn asked(&self) -> Asked {
        self.asked.get()
    }
}

/// A pool over host memory.
#[derive(Debug)]
pub struct HostPool<A: HostMemory> {
    pool: BucketPool<A>,
    calls: Arc<Calls>,
}

impl HostPool<Counted<HostAllocator>> {
    /// Creates a pool with this policy over host memory.
    #[must_use]
    pub fn new(spec: &PolicySpec) -> Self {
        let device = Counted::new(HostAllocator::new());
        let calls = device.calls();
        Self { pool: build(spec.builder(device), spec), calls }
    }
}

impl<A: HostMemory> Source for HostPool<A> {
    type Buffer = PooledBuffer<A>;
    fn filled(&self, bytes: usize, byte: u8) -> Option<Self::Buffer> {
        let mut buffer = self.pool.allocate(bytes as u64).ok()?;
        buffer.fill(byte);
        Some(buffer)
    }
    fn give_back(&self, buffer: Self::Buffer) -> u64 {
        u64::from(buffer[buffer.len() / 2])
    }
    fn asked(&self) -> Asked {
        self.calls.asked().counted_by(self.pool.device_stats())
    }
    fn stats(&self) -> PoolStats {
        self.pool.stats()
    }
}

/// Direct allocation with the device's own calls.
///
/// Each buffer is filled with zeroes, which writes all of it, unless the device has no memory to
/// write. Contents are not read back; the check is only that each buffer was allocated and freed.
#[derive(Debug)]
pub struct DeviceDirect<A: DeviceAllocator> {
    device: Counted<A>,
    writes: bool,
}

impl<A: DeviceAllocator> DeviceDirect<A> {
    /// Creates a source with direct allocation on this device.
    pub fn new(device: A, writes: bool) -> Self {
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
pub struct DevicePool<A: DeviceAllocator> {
    pool: BucketPool<A>,
    calls: Arc<Calls>,
    writes: bool,
}

impl<A: DeviceAllocator> DevicePool<A> {
    /// Builds a pool with this policy from the builder, over a device whose calls are counted.
    pub fn new(
        builder: PoolBuilder<A>,
        calls: Arc<Calls>,
        spec: &PolicySpec,
        writes: bool,
    ) -> Self {
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
        self.calls.asked().counted_by(self.pool.device_stats())
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
