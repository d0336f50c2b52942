//! `slow-work`: orders between streams, with a kernel of 100 ms in front of the earlier work.
//!
//! Without that kernel the earlier work is done before the next call arrives, and a missing event
//! is never seen. With it, each such fault shows in every run. Each case is a process with its own
//! limit, since a device that is lost stays lost for its process.
#![expect(unsafe_code, reason = "the driver is asked directly")]

mod memory;
mod orders;

use super::contender::Refused;
use super::driver::Gpu;
use super::questions::{BUSY, Busy, call, done};
use crate::input::BadInput;
use bucketpool::cuda::cudarc::driver::sys;
use bucketpool::cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaVmmAllocator, PoolStream, Vram,
};
use bucketpool::{AllocError, ArenaConfig, BucketPool, MIB, PoolBuilder, PooledBuffer};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest that a case may take; without a GPU it takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of a buffer.
const BYTES: u64 = 4 * MIB;
/// A call that takes this share of the kernel's time has waited for it.
const WAITED: f64 = 0.5;

/// A case, and what runs it.
type Case = (&'static str, fn(&Slow) -> Result<Value, Refused>);

const CASES: [Case; 20] = [
    ("reuse, cuMemAlloc", |slow| slow.reuse(blocking)),
    ("reuse, arena of segments", |slow| slow.reuse(segments)),
    ("reuse, arena in pages", |slow| slow.reuse(pages)),
    ("reuse, whole pages", |slow| slow.reuse(whole_pages)),
    ("reuse, cuMemAllocAsync", |slow| slow.reuse(ordered)),
    ("give back, cuMemAlloc", |slow| slow.give_back(blocking, true)),
    ("give back, arena in pages", |slow| slow.give_back(pages, true)),
    ("give back, whole pages", |slow| slow.give_back(whole_pages, true)),
    ("give back, cuMemAllocAsync", |slow| slow.give_back(ordered, false)),
    ("a graph is dropped while it runs", Slow::graph),
    ("a full device", Slow::full),
    ("into_slice in a loop", Slow::slices_in_a_loop),
    ("pages that moved", Slow::moved),
    ("into_slice remembers the writer", Slow::writer),
    ("a launch waits for each earlier use", Slow::launch),
    ("a recorded use outlives the CPU's", Slow::recorded),
    ("a second context", Slow::contexts),
    ("write_later beside slow work", Slow::later),
    ("two pools of the driver", Slow::two_pools),
    ("what the driver rounds to", Slow::rounding),
];

/// Runs one case in this process, or each in its own, and prints a JSON line for each.
///
/// # Errors
///
/// No GPU, an unknown case, or cases that are not good.
pub(crate) fn run(case: Option<&str>) -> Result<(), BadInput> {
    let Some(name) = case else {
        let bad = CASES.iter().filter(|(name, _)| !in_a_process(name)).count();
        let what = format!("{bad} of {} cases are not good", CASES.len());
        return if bad == 0 { Ok(()) } else { Err(BadInput::new(what, "all of them good")) };
    };
    let found = CASES.iter().find(|(known, _)| *known == name);
    let names = || CASES.map(|(name, _)| name).join("; ");
    let (name, work) = found.ok_or_else(|| BadInput::new(format!("case `{name}`"), names()))?;
    tell(&one(name, *work));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an answer is told as soon as it is there")]
fn tell(line: &Value) {
    println!("{line}");
}

fn one(name: &str, work: fn(&Slow) -> Result<Value, Refused>) -> Value {
    let start = Instant::now();
    let answer = Slow::new().and_then(|slow| work(&slow));
    let seconds = start.elapsed().as_secs_f64();
    match answer {
        Ok(answer) => {
            // Null for a case that tells and does not judge.
            let good = answer["good"].clone();
            json!({ "case": name, "good": good, "answer": answer, "seconds": seconds })
        }
        Err(refused) => {
            json!({ "case": name, "good": false, "failed": refused.to_string(), "seconds": seconds })
        }
    }
}

/// Runs a case in a process of its own, within [`LIMIT`]. Returns whether it is good.
fn in_a_process(name: &str) -> bool {
    let failed = |why: String| {
        tell(&json!({ "case": name, "good": false, "failed": why }));
        false
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(error.to_string()),
    };
    let mut command = Command::new(program);
    command.args(["slow-work", name]).stdout(Stdio::piped());
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return failed(error.to_string()),
    };
    match output_within(child, LIMIT) {
        Some(text) => match serde_json::from_str::<Value>(text.trim()) {
            Ok(line) => {
                tell(&line);
                line["good"] != Value::Bool(false)
            }
            Err(_) => failed("the process ended without an answer".into()),
        },
        None => failed(format!("it took more than {} s", LIMIT.as_secs())),
    }
}

/// What a process prints, or `None` if it was ended since it took longer.
fn output_within(mut child: Child, limit: Duration) -> Option<String> {
    let start = Instant::now();
    while let Ok(None) = child.try_wait() {
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn failed(error: &AllocError) -> Refused {
    Refused(error.to_string())
}

#[expect(clippy::unnecessary_wraps, reason = "as the others")]
fn blocking(device: CudaDevice) -> Result<PoolBuilder<CudaAllocator>, Refused> {
    Ok(BucketPool::builder(CudaAllocator::on(device)))
}

#[expect(clippy::unnecessary_wraps, reason = "as the others")]
fn segments(device: CudaDevice) -> Result<PoolBuilder<CudaAllocator>, Refused> {
    Ok(BucketPool::builder(CudaAllocator::on(device)).arena(ArenaConfig::torch()))
}

fn pages(device: CudaDevice) -> Result<PoolBuilder<CudaVmmAllocator>, Refused> {
    Ok(whole_pages(device)?.arena(ArenaConfig::grow()))
}

fn whole_pages(device: CudaDevice) -> Result<PoolBuilder<CudaVmmAllocator>, Refused> {
    Ok(BucketPool::builder(CudaVmmAllocator::new(device, &[])?))
}

fn ordered(device: CudaDevice) -> Result<PoolBuilder<CudaAsyncAllocator>, Refused> {
    Ok(BucketPool::builder(CudaAsyncAllocator::new(device, u64::MAX)?))
}

/// The device, its streams, and the slow kernel where the driver loads kernels.
struct Slow {
    gpu: Gpu,
    on: Vec<PoolStream>,
    busy: Option<Busy>,
}

impl Slow {
    fn new() -> Result<Self, Refused> {
        let gpu = Gpu::new()?;
        gpu.device.context().bind_to_thread()?;
        let on: Result<_, _> = gpu.streams[..4].iter().map(|s| gpu.device.stream(s)).collect();
        // On the double of libcuda there are no kernels; on a GPU without one nothing would show.
        let busy = match std::env::var_os("CUDA_DOUBLE") {
            Some(_) => None,
            None => Some(Busy::new(&gpu)?),
        };
        Ok(Self { on: on?, busy, gpu })
    }

    /// Begins the slow kernel on a stream.
    fn slow(&self, on: &PoolStream) -> Result<(), Refused> {
        match &self.busy {
            Some(busy) => busy.begin(on.raw()),
            None => Ok(()),
        }
    }

    /// Fills a buffer with a byte, behind what the stream has.
    fn fill<A: Vram>(buffer: &PooledBuffer<A>, byte: u8, on: &PoolStream) -> Result<u64, Refused> {
        let used = buffer.on(on)?;
        let (at, bytes) = (used.as_ptr(), usize::try_from(buffer.size()).unwrap_or(0));
        let stream = on.raw().cu_stream();
        done(call!(cuMemsetD8Async(at, byte, bytes, stream)), "cuMemsetD8Async")?;
        Ok(at)
    }

    /// Whether the device's memory at an address has this byte everywhere, once all is done.
    fn has(at: u64, bytes: u64, byte: u8) -> Result<bool, Refused> {
        done(call!(cuCtxSynchronize()), "cuCtxSynchronize")?;
        let mut shown = vec![!byte; usize::try_from(bytes).unwrap_or(0)];
        let (to, none) = (shown.as_mut_ptr().cast(), std::ptr::null_mut());
        let copied = call!(cuMemcpyDtoHAsync_v2(to, at, shown.len(), none));
        done(copied, "cuMemcpyDtoHAsync")?;
        done(call!(cuCtxSynchronize()), "cuCtxSynchronize")?;
        Ok(shown.iter().all(|shown| *shown == byte))
    }

    /// Whether a call that took this long has waited for the kernel.
    fn waited(&self, took: Duration) -> bool {
        self.busy.is_some() && took.as_secs_f64() > WAITED * BUSY.as_secs_f64()
    }
}
