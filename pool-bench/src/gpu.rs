//! VRAM: pools beside the driver's own calls and beside other allocators, on one GPU, in turns.
//!
//! Each contender is asked the same question within a round, so a ratio compares what the machine
//! was at one moment. Other libraries' allocators run in processes of their own (`child.rs`), which
//! answer over a pipe and time themselves.

mod child;
mod contender;
mod driver;
#[path = "../../examples/shared/kernels.rs"]
mod kernels;
mod ours;
mod whole;

use crate::beside::Row;
use crate::input::BadInput;
use crate::trace::{Step, Trace};
use child::Child;
use contender::{Answer, Contender, Contenders, Question, Refused};
use driver::{Direct, Ordered};
use std::fmt::Write as _;

/// Rounds of a full run, and of a smoke test.
const ROUNDS: (usize, usize) = (9, 2);
/// Rounds of a trace, which takes seconds.
const ROUNDS_OF_TRACES: usize = 3;
/// A trace of a program that has no device: its blocks are of bytes.
const NOT_OF_A_DEVICE: &str = "gcc_cc1";
/// Sizes of pairs, in bytes: 1 KiB to 1 GiB.
const SIZES: [u64; 7] = [1 << 10, 16 << 10, 256 << 10, 2 << 20, 16 << 20, 256 << 20, 1 << 30];
/// Threads, each with a stream of its own.
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// More than this is not alive at once in a case of several threads.
const TOGETHER: u64 = 4 << 30;
/// How long one answer should take, so that a clock read costs nothing beside it.
const ANSWER_NS: f64 = 2e7;

/// A case: a question, how many operations of its unit an answer should have at first, and what is
/// known of it.
struct Case {
    name: String,
    question: Question,
    live_peak_bytes: u64,
}

fn cases(smoke: bool, traces: &[(Trace, std::path::PathBuf)]) -> Vec<Case> {
    let case = |name: String, question| Case { name, question, live_peak_bytes: 0 };
    let mut cases = Vec::new();
    for bytes in SIZES.into_iter().filter(|bytes| !smoke || *bytes <= 2 << 20) {
        for threads in THREADS.into_iter().filter(|t| *t == 1 || bytes * *t as u64 <= TOGETHER) {
            let shown = bucketpool::Bytes(bytes);
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
        cases.push(Case { name, question, live_peak_bytes: trace.live_peak_bytes });
    }
    cases
}

/// The traces as the peers read them: a line for each operation.
fn unpacked(traces: Vec<Trace>) -> Result<Vec<(Trace, std::path::PathBuf)>, BadInput> {
    let folder = std::env::temp_dir();
    let unpack = |trace: Trace| {
        let mut text = String::new();
        for step in &trace.steps {
            // Writing to a string does not fail.
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

/// Asks every contender every case. `peers` are `NAME=COMMAND`; `tell` is called with each case,
/// and `came` with its rows as soon as they are there.
///
/// # Errors
///
/// No GPU, a folder that cannot be written to.
pub fn run(
    peers: &[String],
    traces: Vec<Trace>,
    smoke: bool,
    tell: impl Fn(&str),
    came: impl Fn(&[Row]),
) -> Result<Vec<Row>, BadInput> {
    let absent = |refused: Refused| BadInput::new(format!("backend `cuda`: {refused}"), "a GPU");
    let mut contenders = ours::contenders().map_err(absent)?;
    contenders.push(("cuMemAlloc".into(), Box::new(Direct::new().map_err(absent)?)));
    for (name, threshold) in [("cuMemAllocAsync, 0 kept", 0), ("cuMemAllocAsync, kept", u64::MAX)] {
        // A driver without memory pools is a device like any other, without this contender.
        if let Ok(ordered) = Ordered::new(threshold) {
            contenders.push((name.into(), Box::new(ordered)));
        }
    }
    for peer in peers {
        contenders.push(Child::start(peer)?);
    }
    let of_devices = traces.into_iter().filter(|trace| trace.name != NOT_OF_A_DEVICE);
    let traces = unpacked(of_devices.collect())?;
    let mut all = Vec::new();
    for case in cases(smoke, &traces) {
        tell(&case.name);
        let rows = contest(&case, &mut contenders, smoke);
        came(&rows);
        all.extend(rows);
    }
    for (_, file) in &traces {
        // Only tidying.
        let _ = std::fs::remove_file(file);
    }
    drop(contenders); // what they keep is free for what follows
    let rows = whole::rows(smoke, &tell);
    came(&rows);
    all.extend(rows);
    Ok(all)
}

/// How the question is to be asked so that an answer lasts: found in two steps, since the first
/// answer is a cold one.
fn lasting(contender: &mut dyn Contender, question: &Question) -> Result<Question, Refused> {
    let mut asked = question.clone();
    for wanted in [ANSWER_NS / 20.0, ANSWER_NS] {
        let one = contender.ask(&asked)?.ns;
        asked = question.lasting(one, wanted);
    }
    Ok(asked)
}

fn contest(case: &Case, contenders: &mut Contenders, smoke: bool) -> Vec<Row> {
    let is_trace = case.live_peak_bytes > 0;
    let rounds = match (smoke, is_trace) {
        (true, _) => ROUNDS.1,
        (_, true) => ROUNDS_OF_TRACES,
        _ => ROUNDS.0,
    };
    // What all contenders keep together would not fit.
    let large = case.question.bytes() >= 16 << 20 || is_trace;
    let mut questions = Vec::new();
    for (_, contender) in contenders.iter_mut() {
        let as_it_is = smoke || is_trace;
        let question = match as_it_is {
            true => contender.ask(&case.question).map(|_| case.question.clone()),
            false => lasting(&mut **contender, &case.question),
        };
        questions.push(question);
        if large {
            let _ = contender.ask(&Question::Reset);
        }
    }
    let mut answers: Vec<Vec<Result<Answer, Refused>>> = vec![Vec::new(); contenders.len()];
    for _ in 0..rounds {
        for (at, (_, contender)) in contenders.iter_mut().enumerate() {
            let answer = match &questions[at] {
                Ok(question) => contender.ask(question),
                Err(refused) => Err(refused.clone()), // and is not asked again
            };
            answers[at].push(answer);
            if large {
                let _ = contender.ask(&Question::Reset);
            }
        }
    }
    for (_, contender) in contenders.iter_mut() {
        let _ = contender.ask(&Question::Reset);
    }
    let first = answers.first().cloned().unwrap_or_default();
    let ns = |answers: &[Result<Answer, Refused>]| -> Vec<Option<f64>> {
        answers.iter().map(|answer| answer.as_ref().ok().map(|answer| answer.ns)).collect()
    };
    let row = |((name, _), answers): (&(String, _), Vec<Result<Answer, Refused>>)| {
        let refused = answers.iter().find_map(|answer| answer.as_ref().err());
        let peaks = answers.iter().flatten().map(|answer| answer.reserved_peak_bytes);
        Row {
            reserved_peak_bytes: peaks.max().unwrap_or(0),
            live_peak_bytes: case.live_peak_bytes,
            refused: refused.map(ToString::to_string).unwrap_or_default(),
            ..Row::new(&case.name, name, &ns(&answers), &ns(&first))
        }
    };
    contenders.iter().zip(answers).map(row).collect()
}

/// The name of the GPU, and the version of CUDA that its driver speaks.
#[must_use]
pub fn machine() -> Option<String> {
    let device = bucketpool::cuda::CudaDevice::new(0).ok()?;
    let name = device.context().name().ok()?;
    let version = driver::driver_version()?;
    Some(format!("{name}, CUDA {}.{}", version / 1000, version % 1000 / 10))
}
