//! The questions that only a GPU can answer, in the order in which the answers decide work: one
//! JSON line each, written at once, so that a run that is cut off has told what it knew.
//! `docs/gpu.md` has the answers of an H100.
#![expect(unsafe_code, reason = "the driver is asked directly")]

mod captures;
mod costs;
mod loader;
mod pages;
mod programs;
mod sources;
mod waits;

use super::contender::Refused;
use super::driver::Gpu;
use super::kernels::{Kernel, Kernels};
use crate::apart::Process;
use crate::input::BadInput;
use bucketpool::cuda::cudarc::driver::{CudaStream, sys};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The kernel beside which calls are timed.
pub(super) const BUSY: Duration = Duration::from_millis(100);
/// A call that takes this share of the kernel's time has waited for it.
const WAITED: f64 = 0.5;

/// Makes a driver call and returns the driver's code.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: handles and addresses are alive, and the lengths are those of their memory; the
        // question that makes the call owns them.
        unsafe { sys::$function($($argument),*) } as u32
    };
}
pub(super) use call;

/// A question: its number, what it asks, and what answers it.
type Question = (u32, &'static str, fn(&Inquiry<'_>) -> Result<Value, Refused>);

const QUESTIONS: [Question; 12] = [
    (1, "tests and examples", programs::tests_and_examples),
    (2, "virtual memory: cost by size, and who waits", pages::virtual_memory),
    (3, "calls inside a THREAD_LOCAL capture, relaxed", captures::calls),
    (4, "pageable copies in a capture", captures::pageable_copies),
    (5, "who waits for a kernel on a non-blocking stream", waits::frees),
    (6, "pairs beside cuMemAlloc and cuMemAllocAsync", programs::pairs),
    (7, "a recorded use on a second stream", programs::recorded),
    (8, "traces: arena beside expandable segments", programs::traces),
    (9, "frees on a separate stream beside the same stream", waits::separate_stream),
    (10, "costs of single calls, and tiles end to end", costs::single_calls),
    (11, "traces by how the pool takes its memory", sources::traces_by_source),
    (12, "page-locked memory of a loader", loader::page_locked),
];

/// The device and the programs that a question may use.
struct Inquiry<'q> {
    gpu: &'q Gpu,
    /// Refused where the driver loads no kernels, such as the double.
    busy: Result<Busy, Refused>,
    peers: &'q [String],
    process: &'q Process,
}

/// A kernel that lasts about [`BUSY`].
pub(super) struct Busy {
    kernels: Kernels,
    block: u64,
    tries: u32,
}

/// Asks the questions in their order, or those that `only` names, and prints each answer.
///
/// # Errors
///
/// No GPU. A question that fails is answered with the failure.
pub(crate) fn run(only: &[u32], peers: &[String], process: &Process) -> Result<(), BadInput> {
    let absent = |refused: Refused| BadInput::new(format!("backend `cuda`: {refused}"), "a GPU");
    let gpu = Gpu::new().map_err(absent)?;
    gpu.device.context().bind_to_thread().map_err(|e| absent(e.into()))?;
    tell(&json!({ "question": 0, "asks": "the machine", "answer": super::machine() }));
    for (number, asks, answer) in QUESTIONS {
        if !only.is_empty() && !only.contains(&number) {
            continue;
        }
        let start = Instant::now();
        let asked = Inquiry { gpu: &gpu, busy: Busy::new(&gpu), peers, process };
        let answer = answer(&asked);
        let seconds = start.elapsed().as_secs_f64();
        tell(&match answer {
            Ok(answer) => {
                json!({ "question": number, "asks": asks, "answer": answer, "seconds": seconds })
            }
            Err(refused) => {
                let refused = refused.to_string();
                json!({ "question": number, "asks": asks, "failed": refused, "seconds": seconds })
            }
        });
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an answer is told as soon as it is there")]
fn tell(line: &Value) {
    println!("{line}");
}

impl Busy {
    /// Finds how long the kernel must try.
    pub(super) fn new(gpu: &Gpu) -> Result<Self, Refused> {
        let kernels = Kernels::load(&gpu.device)?;
        let mut block = 0;
        done(call!(cuMemAlloc_v2(&raw mut block, 4096)), "cuMemAlloc")?;
        let mut busy = Self { kernels, block, tries: 100_000 };
        for _ in 0..2 {
            let start = Instant::now();
            busy.begin(&gpu.streams[0])?;
            gpu.streams[0].synchronize()?;
            let share = BUSY.as_secs_f64() / start.elapsed().as_secs_f64().max(1e-6);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let tries = (f64::from(busy.tries) * share).clamp(1000.0, 4e9) as u32;
            busy.tries = tries;
        }
        Ok(busy)
    }

    pub(super) fn begin(&self, on: &CudaStream) -> Result<(), Refused> {
        let kernel =
            Kernel::ThrowDarts { inside: self.block, seed: 1, tries: self.tries, count: 256 };
        Ok(self.kernels.launch(on, kernel)?)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Every kernel was waited for; a device that is lost has nothing to give back.
        let _ = call!(cuCtxSynchronize());
        let _ = call!(cuMemFree_v2(self.block));
    }
}

impl Inquiry<'_> {
    /// Nanoseconds of `work` on an idle device, and beside the kernel; whether it waited for that.
    /// `make` prepares each of the two runs and is not timed.
    fn idle_and_busy<T>(
        &self,
        mut make: impl FnMut() -> Result<T, Refused>,
        mut work: impl FnMut(T) -> u32,
    ) -> Result<Value, Refused> {
        let mut timed = |busy: Option<&Busy>| -> Result<(f64, u32), Refused> {
            let made = make()?;
            self.gpu.device.context().synchronize()?;
            if let Some(busy) = busy {
                busy.begin(&self.gpu.streams[1])?;
            }
            let start = Instant::now();
            let code = work(made);
            Ok((start.elapsed().as_nanos() as f64, code))
        };
        let (idle_ns, code) = timed(None)?;
        let busy = match &self.busy {
            Ok(busy) => busy,
            Err(refused) => {
                let why = format!("no kernel: {refused}");
                return Ok(json!({ "idle_ns": idle_ns, "code": code, "beside": why }));
            }
        };
        let (busy_ns, busy_code) = timed(Some(busy))?;
        self.gpu.device.context().synchronize()?;
        let waited = busy_ns > WAITED * BUSY.as_nanos() as f64;
        Ok(json!({
            "idle_ns": idle_ns, "busy_ns": busy_ns, "waited": waited,
            "code": code, "busy_code": busy_code,
        }))
    }
}

/// Refuses a code that is none of success.
pub(super) fn done(code: u32, call: &str) -> Result<(), Refused> {
    if code == 0 { Ok(()) } else { Err(Refused(format!("{call}: code {code}"))) }
}
