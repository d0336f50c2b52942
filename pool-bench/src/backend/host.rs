//! Host memory, beside the global allocator.

use super::MemoryKind;
use crate::counted::{Asked, Calls, Counted};
use crate::machine::{Clock, timed};
use crate::pass::{Pass, Tally};
use crate::source::{Steps, build};
use crate::spec::NamedPolicy;
use crate::trace::{Step, Trace};
use crate::workload::Source;
use bucketpool::host::HostAllocator;
use bucketpool::limits::CachedLimit;
use bucketpool::port::HostMemory;
use bucketpool::{BucketPool, PoolStats, PooledBuffer};
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Host memory.
#[derive(Debug)]
pub(super) struct Host;

impl MemoryKind for Host {
    fn name(&self) -> &'static str {
        "host"
    }
    fn title(&self) -> &'static str {
        "Host memory"
    }
    fn clock(&self) -> Clock {
        Clock::Thread
    }
    fn replay(&self, pass: &Pass<'_>) -> Result<Tally, String> {
        Ok(pass.run(HostAllocator::new(), NamedPolicy::builder))
    }
    fn reference(&self) -> Option<fn(&Trace) -> Tally> {
        Some(replay_directly)
    }
    fn source(&self, spec: Option<&NamedPolicy>, keeps: bool) -> Result<Box<dyn Steps>, String> {
        Ok(match spec {
            None => Box::new(HostDirect::new(keeps)),
            Some(spec) => Box::new(HostPool::new(spec)),
        })
    }
}

/// Replays a trace with the allocator of this process.
fn replay_directly(trace: &Trace) -> Tally {
    let mut slots: Vec<Option<Box<[MaybeUninit<u8>]>>> = Vec::new();
    slots.resize_with(trace.slots, || None);
    let ((), ns) = timed(|| {
        for step in &trace.steps {
            match *step {
                Step::Allocate { slot, bytes, .. } => {
                    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                    slots[slot as usize] = Some(black_box(Box::new_uninit_slice(bytes)));
                }
                Step::Free { slot, .. } => slots[slot as usize] = None,
                Step::Use { .. } => {}
            }
        }
    });
    let allocations = trace.allocations;
    let frees = trace.steps.iter().filter(|step| matches!(step, Step::Free { .. })).count() as u64;
    let peak_bytes = trace.live_peak_bytes;
    let mut stats = PoolStats::default();
    stats.misses = allocations;
    Tally {
        stats,
        asked: Asked { allocations, frees, peak_bytes, handles: allocations + frees },
        cached_limit: CachedLimit::Bytes(0),
        ns,
    }
}

/// Direct allocation from the global allocator, as in a program without a pool.
///
/// Plain numbers count the calls, so that counting adds a nanosecond or two to a pair, and no more
/// than a pool's own counting.
#[derive(Debug, Default)]
struct HostDirect {
    asked: Cell<Asked>,
    held: Cell<u64>,
    /// Returned buffers, if they are kept: a fault that the bench must notice.
    kept: Option<RefCell<Vec<Vec<u8>>>>,
}

impl HostDirect {
    /// Creates a source with direct allocation. With `keeps` it reuses returned buffers instead.
    fn new(keeps: bool) -> Self {
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
struct HostPool<A: HostMemory> {
    pool: BucketPool<A>,
    calls: Arc<Calls>,
}

impl HostPool<Counted<HostAllocator>> {
    /// Creates a pool with this policy over host memory.
    fn new(spec: &NamedPolicy) -> Self {
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
        self.calls.asked().with_handles_of(self.pool.device_stats())
    }
    fn stats(&self) -> PoolStats {
        self.pool.stats()
    }
}
