//! VRAM: pools compared with the driver's calls and with other allocators, on one GPU, in turns.
//!
//! Within a round each contender gets the same question, so a ratio compares contenders under the
//! same state of the machine. Other libraries' allocators run in child processes (`child.rs`),
//! which answer over a pipe and measure their own time.

mod child;
mod contender;
mod driver;
mod expandable;
#[path = "../../examples/shared/kernels.rs"]
mod kernels;
mod ours;
pub(crate) mod questions;
pub(crate) mod slow;
mod whole;

use crate::apart::Process;
use crate::input::BadInput;
use crate::rounds::{Rounds, Row};
use crate::trace::{Step, Trace};
use child::PeerProcess;
use contender::{Answer, Contenders, GpuContender, Question, Refused};
use driver::{Direct, Ordered};
use std::fmt::Write as _;

/// Rounds of a full run and of a smoke test.
const ROUNDS: (usize, usize) = (9, 2);
/// Rounds of a trace; each takes seconds.
const ROUNDS_OF_TRACES: usize = 3;
/// Name of a trace of a program without a device, whose blocks are only bytes in size.
const NOT_OF_A_DEVICE: &str = "gcc_cc1";
/// Sizes of pairs, in bytes: 1 KiB to 1 GiB.
const SIZES: [u64; 7] = [1 << 10, 16 << 10, 256 << 10, 2 << 20, 16 << 20, 256 << 20, 1 << 30];
/// Numbers of threads; each thread has its own stream.
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// Limit of the bytes that are alive at once in a case with several threads.
const TOGETHER: u64 = 4 << 30;
/// Target time of one answer in nanoseconds; it makes the cost of a clock read negligible.
const ANSWER_NS: f64 = 2e7;

/// A case: its name and its question with the initial number of operations.
///
/// For a trace, it also has the peak of live bytes; else that is 0.
struct GpuCase {
    name: String,
    question: Question,
    live_peak_bytes: u64,
}

fn cases(smoke: bool, traces: &[(Trace, std::path::PathBuf)]) -> Vec<GpuCase> {
    let case = |name: String, question| GpuCase { name, question, live_peak_bytes: 0 };
    let mut cases = Vec::new();
    for bytes in SIZES.into_iter().filter(|bytes| !smoke || *bytes <= 2 << 20) {
        for threads in THREADS.into_iter().filter(|t| *t == 1 || bytes * *t as u64 <= TOGETHER) {
            let shown = bucketpool::size::Bytes(bytes);
            let each = if threads == 1 { "thread" } else { "threads" };
            let name = format!("pair, {shown}, {threads} {each}");
            cases.push(case(name, Question::Pair { bytes, threads, pairs: 1 }));
        }
    }
    let (count, bytes) = (1000, 1 << 20);
    let name = "Monte Carlo: 1000 buffers of 1 MiB".to_owned();
    cases.push(case(
        name,
        Question::Many { count: if smoke { 50 } else { count }, bytes, rounds: 1 },
    ));
    for (recorded, what) in [(false, "not used there"), (true, "its use there recorded")] {
        let name = format!("pair of 1 MiB beside work on a second stream, {what}");
        cases.push(case(name, Question::Record { bytes, pairs: 1, recorded }));
    }
    let name = "pair of 1 MiB, then the stream waited for".to_owned();
    cases.push(case(name, Question::Synced { bytes, pairs: 1 }));
    for (trace, unpacked) in traces {
        let name = format!("trace {}, memory written", trace.name);
        let question = Question::Trace { file: unpacked.clone() };
        cases.push(GpuCase { name, question, live_peak_bytes: trace.live_peak_bytes });
    }
    cases
}

/// Writes the traces in the format that the peers read: one line per operation.
fn unpacked(traces: Vec<Trace>) -> Result<Vec<(Trace, std::path::PathBuf)>, BadInput> {
    let folder = std::env::temp_dir();
    let unpack = |trace: Trace| {
        let mut text = String::new();
        for step in &trace.steps {
            // Writing to a string cannot fail.
            let _ = match step {
                Step::Allocate { slot, bytes, .. } => writeln!(text, "a {slot} {bytes}"),
                Step::Free { slot, .. } => writeln!(text, "f {slot}"),
                Step::Use { .. } => Ok(()),
            };
        }
        let file = folder.join(format!("bucketpool-{}-{}.txt", std::process::id(), trace.name));
        let written = std::fs::write(&file, text);
        let refused =
            |error| BadInput::new(format!("{}: {error}", file.display()), "a folder to write to");
        written.map(|()| (trace, file.clone())).map_err(refused)
    };
    traces.into_iter().map(unpack).collect()
}

/// Asks every contender the question of every case. `peers` are `NAME=COMMAND`.
///
/// # Errors
///
/// Fails if there is no GPU, or if the folder for the traces cannot be written to.
pub(crate) fn run(
    peers: &[String],
    traces: Vec<Trace>,
    process: &Process,
) -> Result<Vec<Row>, BadInput> {
    let absent = |refused: Refused| BadInput::new(format!("backend `cuda`: {refused}"), "a GPU");
    let mut contenders = contenders(peers, false).map_err(absent)?;
    let traces = unpacked_of_devices(traces)?;
    let mut all = Vec::new();
    for case in cases(process.smoke, &traces) {
        all.extend(contest(&case, &mut contenders, process));
    }
    for (_, file) in &traces {
        // A file that cannot be removed does not affect the results.
        let _ = std::fs::remove_file(file);
    }
    drop(contenders); // frees their cached memory for the programs that follow
    all.extend(whole::rows(process));
    Ok(all)
}

/// Creates our pools, the driver's own allocators, and the peers. The others are compared with the
/// first.
fn contenders(peers: &[String], steal_never: bool) -> Result<Contenders, Refused> {
    let mut contenders = ours::contenders(steal_never)?;
    contenders.push(("cuMemAlloc".into(), Box::new(Direct::new()?)));
    for (name, threshold) in [("cuMemAllocAsync, 0 kept", 0), ("cuMemAllocAsync, kept", u64::MAX)] {
        // A driver without memory pools runs the bench without this contender.
        if let Ok(ordered) = Ordered::new(threshold) {
            contenders.push((name.into(), Box::new(ordered)));
        }
    }
    for peer in peers {
        contenders.push(PeerProcess::start(peer).map_err(|bad| Refused(bad.to_string()))?);
    }
    Ok(contenders)
}

/// Unpacks the traces of programs that have a device.
fn unpacked_of_devices(traces: Vec<Trace>) -> Result<Vec<(Trace, std::path::PathBuf)>, BadInput> {
    let of_devices = traces.into_iter().filter(|trace| trace.name != NOT_OF_A_DEVICE);
    unpacked(of_devices.collect())
}

/// Returns the question with as many operations as one answer needs to reach `ANSWER_NS`.
///
/// It takes two steps, because the first answer is measured cold.
fn lasting(contender: &mut dyn GpuContender, question: &Question) -> Result<Question, Refused> {
    let mut asked = question.clone();
    for wanted in [ANSWER_NS / 20.0, ANSWER_NS] {
        let one = contender.ask(&asked)?.ns;
        asked = question.lasting(one, wanted);
    }
    Ok(asked)
}

fn contest(case: &GpuCase, contenders: &mut Contenders, process: &Process) -> Vec<Row> {
    let is_trace = case.live_peak_bytes > 0;
    let rounds = match (process.smoke, is_trace) {
        (true, _) => ROUNDS.1,
        (_, true) => process.share(ROUNDS_OF_TRACES),
        _ => process.share(ROUNDS.0),
    };
    // The cached memory of all contenders together would not fit.
    let large = case.question.bytes() >= 16 << 20 || is_trace;
    let mut questions = Vec::new();
    for (_, contender) in contenders.iter_mut() {
        let as_it_is = process.smoke || is_trace;
        let question = match as_it_is {
            true => contender.ask(&case.question).map(|_| case.question.clone()),
            false => lasting(&mut **contender, &case.question),
        };
        questions.push(question);
        if large {
            let _ = contender.ask(&Question::Reset);
        }
    }
    let names: Vec<String> = contenders.iter().map(|(name, _)| name.clone()).collect();
    let mut reserved = vec![0; names.len()];
    let (took, failures) = Rounds::run(&names, (0, rounds), process.seed, |at| {
        let contender = &mut contenders[at].1;
        let answer: Answer = contender.ask(questions[at].as_ref().map_err(Clone::clone)?)?;
        reserved[at] = answer.reserved_peak_bytes.max(reserved[at]);
        if large {
            let _ = contender.ask(&Question::Reset);
        }
        Ok::<_, Refused>(answer.ns)
    });
    for (_, contender) in contenders.iter_mut() {
        let _ = contender.ask(&Question::Reset);
    }
    let mut rows = took.rows(&case.name, 0);
    for ((row, reserved), failure) in rows.iter_mut().zip(reserved).zip(failures) {
        row.page_faults = None;
        row.reserved_peak_bytes = Some(reserved).filter(|_| is_trace);
        row.live_peak_bytes = Some(case.live_peak_bytes).filter(|_| is_trace);
        row.refused = failure.map(|refused| refused.to_string());
    }
    rows
}

/// Returns the name of the GPU and the CUDA version that its driver supports.
#[must_use]
pub fn machine() -> Option<String> {
    let device = bucketpool::cuda::CudaDevice::new(0).ok()?;
    let name = device.context().name().ok()?;
    let version = driver::driver_version()?;
    Some(format!("{name}, CUDA {}.{}", version / 1000, version % 1000 / 10))
}
