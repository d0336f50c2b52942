//! Question 11: what the traces cost in driver calls, by how the pool takes its memory.
//!
//! On a GPU the answer has times. On the double, which knows no time, it has the number of calls
//! instead, and what the calls of virtual memory would take by three sets of costs.

use super::{Inquiry, Refused};
use crate::gpu::expandable;
use crate::trace::{self, Step, Trace};
use crate::training;
use bucketpool::cuda::cudarc::driver::sys;
use bucketpool::cuda::{CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaVmmAllocator, Vram};
use bucketpool::{ArenaConfig, BucketPool, PoolBuilder, PooledBuffer};
use serde_json::{Map, Value, json};
use std::ffi::CString;
use std::time::Instant;

const MIB: u64 = 1 << 20;
/// The seed of the training that is replayed beside the bundled traces.
const SEED: u64 = 1;
/// Calls that take memory or give it back, and pieces that such calls touch.
const CALLS: [&str; 11] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "handles: access",
    "cuMemUnmap",
    "handles: unmap",
    "cuMemRelease",
];

/// Replays each trace over each kind of memory.
pub(super) fn traces_by_source(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let refused = |bad: crate::input::BadInput| Refused(bad.to_string());
    let files = crate::place::traces(asked.process.smoke).map_err(refused)?;
    let mut answers = Map::new();
    let mut traces = Vec::new();
    for file in files {
        let trace = trace::read(&file).map_err(refused)?;
        if trace.name != crate::gpu::NOT_OF_A_DEVICE {
            traces.push(trace);
        }
    }
    // The double has 1 GiB in a smoke test, and the training needs ten.
    if !asked.process.smoke {
        traces.push(Trace::of_training(training::STEPS, SEED));
    }
    for trace in traces {
        answers.insert(trace.name.clone(), of_trace(&asked.gpu.device, &trace));
    }
    Ok(answers.into())
}

fn of_trace(device: &CudaDevice, trace: &Trace) -> Value {
    let mut answers = Map::new();
    answers.insert("live_peak_bytes".into(), trace.live_peak_bytes.into());
    let alloc = || BucketPool::builder(CudaAllocator::on(device.clone()));
    let mut add = |name: &str, answer: Result<Value, Refused>| {
        let failed = |why: Refused| json!({ "failed": why.to_string() });
        answers.insert(name.into(), answer.unwrap_or_else(failed));
    };
    add("torch's constants", replay(alloc().arena(ArenaConfig::torch()), trace));
    add("segments of 32 MiB", replay(alloc().arena(ArenaConfig::segments(32 * MIB)), trace));
    for (part, mib) in [(16, 8), (32, 8), (64, 8), (32, 2), (32, 16)] {
        let arena = ArenaConfig::grow().least_growth(1.0 / f64::from(part), mib * MIB);
        let memory = CudaVmmAllocator::new(device.clone(), &[]).map_err(Refused::from);
        let handles =
            memory.and_then(|memory| replay(BucketPool::builder(memory).arena(arena), trace));
        add(&format!("a handle for each growth, of 1/{part} and {mib} MiB or more"), handles);
    }
    let expandable::Taken { bytes, handles, growths } = expandable::replay(trace);
    let simulated = json!({ "reserved_peak_bytes": bytes, "handles": handles, "growths": growths });
    add("PyTorch's expandable segments, simulated", Ok(simulated));
    for (name, threshold) in [("the driver's pool, all kept", u64::MAX), ("the same, 0 kept", 0)] {
        add(name, drivers_pool(device, threshold, trace));
    }
    answers.into()
}

fn replay<A: Vram>(pool: PoolBuilder<A>, trace: &Trace) -> Result<Value, Refused> {
    let pool = pool.build();
    let before = Counts::now();
    let ns = steps(&pool, trace, || Ok(()))?;
    let mut answer = Counts::now().since(&before).told(ns);
    answer.insert("reserved_peak_bytes".into(), pool.stats().reserved_peak_bytes.into());
    Ok(answer.into())
}

/// The pool keeps nothing: each request and each free goes to the driver's own pool.
fn drivers_pool(device: &CudaDevice, threshold: u64, trace: &Trace) -> Result<Value, Refused> {
    let memory = CudaAsyncAllocator::new(device.clone(), threshold)?;
    let pool = BucketPool::builder(memory).cached_limit(0).build();
    let (mut peak, before) = (0, Counts::now());
    let ns = steps(&pool, trace, || {
        peak = peak.max(pool.allocator().reserved_bytes()?);
        Ok(())
    })?;
    let mut answer = Counts::now().since(&before).told(ns);
    answer.insert("reserved_peak_bytes".into(), peak.into());
    Ok(answer.into())
}

/// Replays the steps on one stream. Returns nanoseconds of a step; `between` is not timed.
fn steps<A: Vram>(
    pool: &BucketPool<A>,
    trace: &Trace,
    mut between: impl FnMut() -> Result<(), Refused>,
) -> Result<f64, Refused> {
    let mut live: Vec<Option<PooledBuffer<A>>> = (0..trace.slots).map(|_| None).collect();
    let mut took = 0;
    for step in &trace.steps {
        let start = Instant::now();
        match step {
            Step::Allocate { slot, bytes, .. } => {
                let taken = pool.allocate(*bytes).map_err(|error| Refused(error.to_string()))?;
                live[*slot as usize] = Some(taken);
                took += start.elapsed().as_nanos();
                between()?;
            }
            Step::Free { slot, .. } => {
                drop(live[*slot as usize].take());
                took += start.elapsed().as_nanos();
            }
            Step::Use { .. } => {}
        }
    }
    Ok(took as f64 / trace.steps.len().max(1) as f64)
}

/// Calls and costs that the double has counted; none on a GPU.
struct Counts(Option<([u64; CALLS.len()], [u64; 3])>);

impl Counts {
    #[expect(unsafe_code, reason = "the double's control functions are called through C")]
    fn now() -> Self {
        type Count = unsafe extern "C" fn(*const std::ffi::c_char) -> u64;
        type Cost = unsafe extern "C" fn(usize) -> u64;
        // SAFETY: the library is loaded, since a device is open.
        let library = unsafe { sys::culib() };
        // SAFETY: looks a symbol up; the double declares it so (pool-cuda/double/src/control.rs).
        let count = unsafe { library.get::<Count>(b"cuda_double_count\0") };
        // SAFETY: as above.
        let cost = unsafe { library.get::<Cost>(b"cuda_double_cost\0") };
        let (Ok(count), Ok(cost)) = (count, cost) else { return Self(None) };
        let count = |name: &str| {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: a string that ends in 0 and lives through the call.
            unsafe { count(name.as_ptr()) }
        };
        // SAFETY: takes a number.
        let cost = |set| unsafe { cost(set) };
        Self(Some((CALLS.map(count), [cost(0), cost(1), cost(2)])))
    }

    fn since(&self, before: &Self) -> Self {
        let (Some((calls, costs)), Some((calls_before, costs_before))) = (&self.0, &before.0)
        else {
            return Self(None);
        };
        let (mut calls, mut costs) = (*calls, *costs);
        calls.iter_mut().zip(calls_before).for_each(|(now, before)| *now -= before);
        costs.iter_mut().zip(costs_before).for_each(|(now, before)| *now -= before);
        Self(Some((calls, costs)))
    }

    /// The calls and costs on the double, the time on a GPU.
    fn told(self, ns: f64) -> Map<String, Value> {
        let mut told = Map::new();
        let Some((calls, costs)) = self.0 else {
            told.insert("ns".into(), ns.into());
            return told;
        };
        let calls = CALLS.iter().zip(calls).filter(|(_, count)| *count > 0);
        let calls: Map<String, Value> =
            calls.map(|(name, count)| ((*name).to_owned(), count.into())).collect();
        told.insert("calls".into(), calls.into());
        told.insert("modelled_us".into(), json!(costs.map(|ns| ns / 1000)));
        told
    }
}
