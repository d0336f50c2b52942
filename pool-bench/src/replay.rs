//! Replays a trace on a pool.

use crate::backend::Backend;
use crate::counted::{Asked, Calls, Counted};
use crate::input::BadInput;
use crate::machine::{free_memory, timed, timed_wall};
use crate::spec::PolicySpec;
use crate::trace::{Step, Trace};
use bucketpool::host::HostAllocator;
use bucketpool::sim::SimDevice;
use bucketpool::{
    Bytes, CachedLimit, DeviceAllocator, PoolBuilder, PoolStats, Sliceable, ZeroPolicy,
};
use serde::Serialize;
use std::hint::black_box;
use std::mem::MaybeUninit;

/// Settings of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Memory to replay on.
    pub backend: Backend,
    /// Bound on cached blocks, if one was given.
    pub cached_limit: Option<CachedLimit>,
    /// Size of the simulated device.
    pub capacity: Option<u64>,
}

/// The result of a replay; one line of `--json`.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation; README.md tells them")]
pub struct Outcome {
    pub trace: String,
    pub policy: String,
    pub backend: Backend,
    pub cached_limit: String,
    pub ops: u64,
    pub allocations: u64,
    pub live_peak_bytes: u64,
    pub reserved_peak_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub bypasses: u64,
    pub ooms: u64,
    /// Cached blocks that the pool gave back to the device because of a bound.
    pub evictions: u64,
    pub hit_rate: f64,
    pub device_allocations: u64,
    pub device_frees: u64,
    /// Allocations and frees of the device, where a call for a range of pages counts as one.
    pub device_ranges: u64,
    pub ns_per_op: f64,
    #[serde(flatten)]
    pub streams: Option<OnStreams>,
}

/// Additional results of a replay on streams.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation; README.md tells them")]
pub struct OnStreams {
    pub streams: usize,
    /// Rule for memory that another stream used last, or how the streams are separated.
    pub arrangement: &'static str,
    pub events: u64,
    pub waits: u64,
    /// Uses that were not ordered after the use before them.
    pub violations: usize,
}

/// Replays `trace` under one policy.
///
/// # Errors
///
/// Fails if the capacity is below the largest request, or if the trace does not fit this machine's
/// memory.
pub fn replay(trace: &Trace, spec: &PolicySpec, settings: Settings) -> Result<Outcome, BadInput> {
    let capacity = capacity(trace, settings)?;
    let backend = settings.backend;
    if backend == Backend::Sim {
        let device = Counted::new(SimDevice::with_capacity(capacity));
        return Ok(sliceable(device, settings.cached_limit, trace, spec, backend));
    }
    let limit = settings.cached_limit.unwrap_or(CachedLimit::OfPeak(0.25));
    fits_this_machine(trace, limit)?;
    // The memory of an arena is bounded by the peak of live bytes.
    let limit = if spec.arena.is_some() { settings.cached_limit } else { Some(limit) };
    match backend {
        Backend::Host => {
            Ok(sliceable(Counted::new(HostAllocator::new()), limit, trace, spec, backend))
        }
        #[cfg(feature = "cuda")]
        Backend::Cuda => {
            let device = bucketpool::cuda::CudaAllocator::new(0).map_err(|e| absent(backend, e))?;
            Ok(sliceable(Counted::new(device), limit, trace, spec, backend))
        }
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => {
            if spec.arena.is_some() {
                let what = format!("policy `{}` on wgpu: it does not split its buffers", spec.text);
                return Err(BadInput::new(what, "a policy without an arena"));
            }
            let device = bucketpool::wgpu::WgpuAllocator::on_default_adapter();
            let device = Counted::new(device.map_err(|e| absent(backend, e))?);
            let calls = device.calls();
            Ok(run(spec.without_arena(device), &calls, limit, trace, spec, backend))
        }
        other => Err(absent(other, "not built in")),
    }
}

/// Replays a trace with the allocator of this process, without a pool: the reference for pools.
///
/// # Errors
///
/// Fails if the trace does not fit this machine's memory.
pub fn replay_directly(trace: &Trace) -> Result<Outcome, BadInput> {
    fits_this_machine(trace, CachedLimit::Bytes(0))?;
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
    let frees = trace.ops - trace.allocations;
    Ok(Outcome {
        trace: trace.name.clone(),
        policy: "direct".into(),
        backend: Backend::Host,
        cached_limit: CachedLimit::Bytes(0).to_string(),
        ops: trace.ops,
        allocations: trace.allocations,
        live_peak_bytes: trace.live_peak_bytes,
        reserved_peak_bytes: trace.live_peak_bytes,
        hits: 0,
        misses: trace.allocations,
        bypasses: 0,
        ooms: 0,
        evictions: 0,
        hit_rate: 0.0,
        device_allocations: trace.allocations,
        device_frees: frees,
        device_ranges: trace.allocations + frees,
        ns_per_op: ns as f64 / trace.steps.len() as f64,
        streams: None,
    })
}

/// Returns the size of the simulated device. Fails if the largest request does not fit in it.
pub(crate) fn capacity(trace: &Trace, settings: Settings) -> Result<u64, BadInput> {
    let (largest, line) = trace.largest;
    let capacity = settings.capacity.unwrap_or(u64::MAX);
    if capacity >= largest {
        return Ok(capacity);
    }
    let request = format!("the largest request of {}, {largest} bytes in line {line}", trace.name);
    Err(BadInput::new(format!("capacity of {capacity} bytes"), format!("at least {request}")))
}

/// Returns the error for a kind of memory that this machine or build does not have.
fn absent(backend: Backend, why: impl std::fmt::Display) -> BadInput {
    let cure = backend.absence().map_or("another backend", |(_, cure)| cure);
    BadInput::new(format!("backend `{}`: {why}", backend.name()), cure)
}

/// Replays a trace on memory that an arena can split.
fn sliceable<A: Sliceable>(
    device: Counted<A>,
    limit: Option<CachedLimit>,
    trace: &Trace,
    spec: &PolicySpec,
    backend: Backend,
) -> Outcome {
    let calls = device.calls();
    run(spec.builder(device), &calls, limit, trace, spec, backend)
}

fn run<A: DeviceAllocator>(
    builder: PoolBuilder<A>,
    calls: &Calls,
    limit: Option<CachedLimit>,
    trace: &Trace,
    spec: &PolicySpec,
    backend: Backend,
) -> Outcome {
    let mut builder = builder.zero(ZeroPolicy::Never);
    if let Some(limit) = limit {
        builder = builder.cached_limit(limit);
    }
    let bound = builder.bound_on_cached_bytes().to_string();
    let pool = builder.build();
    let mut slots: Vec<_> = std::iter::repeat_with(|| None).take(trace.slots).collect();
    let work = || {
        for step in &trace.steps {
            match *step {
                Step::Allocate { slot, bytes, .. } => {
                    slots[slot as usize] = pool.allocate(bytes).ok();
                }
                Step::Free { slot, .. } => slots[slot as usize] = None,
                Step::Use { .. } => {}
            }
        }
    };
    // On a device, this thread waits while the device works; so the wall clock is measured there.
    let on_device = !matches!(backend, Backend::Host | Backend::Sim);
    let ((), ns) = if on_device { timed_wall(work) } else { timed(work) };
    // The deferred frees of the last drops belong to the trace.
    let _ = pool.trim(0);
    let asked = calls.asked().counted_by(pool.device_stats());
    outcome(trace, spec, backend, bound, &pool.stats(), asked, ns)
}

/// Returns the result of a replay.
pub(crate) fn outcome(
    trace: &Trace,
    spec: &PolicySpec,
    backend: Backend,
    cached_limit: String,
    stats: &PoolStats,
    asked: Asked,
    ns: u64,
) -> Outcome {
    Outcome {
        trace: trace.name.clone(),
        policy: spec.text.clone(),
        backend,
        cached_limit,
        ops: trace.ops,
        allocations: trace.allocations,
        live_peak_bytes: trace.live_peak_bytes,
        reserved_peak_bytes: asked.peak_bytes,
        hits: stats.hits,
        misses: stats.misses,
        bypasses: stats.bypasses,
        ooms: stats.failures,
        evictions: stats.evictions,
        hit_rate: stats.hits as f64 / trace.allocations as f64,
        device_allocations: asked.allocations,
        device_frees: asked.frees,
        device_ranges: asked.ranges,
        ns_per_op: ns as f64 / trace.steps.len() as f64,
        streams: None,
    }
}

/// Checks that the trace and its cache fit in half of the free memory, before real memory is used.
fn fits_this_machine(trace: &Trace, limit: CachedLimit) -> Result<(), BadInput> {
    let needed = trace.live_peak_bytes.saturating_add(limit.bytes(trace.live_peak_bytes));
    let half = free_memory().map_or(u64::MAX, |free| free / 2);
    if needed <= half {
        return Ok(());
    }
    let what = format!("{} needs {} of host memory with its cache", trace.name, Bytes(needed));
    Err(BadInput::new(what, format!("at most half of what is free, {}", Bytes(half))))
}
