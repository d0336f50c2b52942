//! Where a workload gets its buffers: direct allocation, or a pool, on each kind of memory.

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

/// Cached blocks of a pool are bounded by this many bytes, or by a 32nd of what is free: a dozen
/// pools take turns.
const CACHED_LIMIT: u64 = GIB;

fn build<A: DeviceAllocator>(builder: PoolBuilder<A>, spec: &PolicySpec) -> BucketPool<A> {
    let builder = builder.zero(ZeroPolicy::Never);
    let limit = free_memory().map_or(CACHED_LIMIT, |free| CACHED_LIMIT.min(free / 32));
    // What an arena holds is bounded by what was live at most. A preset has a bound of its own.
    match (spec.arena.is_some(), builder.bound_on_cached_bytes()) {
        (false, CachedLimit::Unlimited) => builder.cached_limit(limit).build(),
        (false, CachedLimit::Bytes(bytes)) if bytes > limit => builder.cached_limit(limit).build(),
        _ => builder.build(),
    }
}

/// What a program without a pool does: the global allocator, each time. Counted by plain numbers,
/// so that counting costs a pair a nanosecond or two, and no more than a pool's own counting.
#[derive(Debug, Default)]
pub struct HostDirect {
    asked: Cell<Asked>,
    held: Cell<u64>,
    /// Buffers that came back, where they are kept: a fault that the bench must notice.
    kept: Option<RefCell<Vec<Vec<u8>>>>,
}

impl HostDirect {
    /// Direct allocation, or with `keeps` something that only calls itself so.
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
    /// A pool of this policy over host memory.
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

/// The device's own calls, each time. Each buffer is filled with zeroes, which writes all of it,
/// unless the device has no memory to write. Contents are not read back: what is checked is only
/// that each buffer came and went.
#[derive(Debug)]
pub struct DeviceDirect<A: DeviceAllocator> {
    device: Counted<A>,
    writes: bool,
}

impl<A: DeviceAllocator> DeviceDirect<A> {
    /// Over this device.
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
        // Behind the work that was given to its stream: a driver may free at once.
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

/// A pool over a device; buffers are filled with zeroes, as for [`DeviceDirect`].
#[derive(Debug)]
pub struct DevicePool<A: DeviceAllocator> {
    pool: BucketPool<A>,
    calls: Arc<Calls>,
    writes: bool,
}

impl<A: DeviceAllocator> DevicePool<A> {
    /// A pool of this policy as the builder makes it, over a device whose calls are counted.
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

/// Waits until the device has done what it was given. What it says is told by the next call.
fn finish<A: DeviceAllocator>(device: &A) {
    let clock = device.clock();
    let _ = clock.synchronize(clock.mark(clock.default_stream()));
}
