//! The command line that `cargo xtask bench` and `cargo xtask replay` pass on.
#![expect(clippy::print_stderr, reason = "what was left out is said, wherever the results go")]

pub(crate) mod advise;
mod bench;
mod convert;
mod peers;
mod soak;
mod threads;

use crate::backend::Backend;
use crate::contest;
use crate::input::BadInput;
use crate::page::advice::advice;
use crate::place::{RECORDS, root};
use crate::replay::Settings;
use crate::results::{Output, Results, progress, read_all};
use crate::spec::{self, NamedPolicy};
use crate::trace::Trace;
use crate::workload::Workload;
use crate::{compare, environment, hit, record, sizes};
use clap::{Args, Parser, Subcommand};
use std::io;
use std::path::PathBuf;

/// Policies that are compared by default. The size classes are those of embedding batches.
const POLICIES: &str = "exact,pow2,tiered:4K+16K+64K+256K+1M+4M+16M,fit:2,arena,\
                        arena:pages=64K:slack=5%,arena:torch,preset:tile_pipeline,\
                        preset:embedding,preset:ndarray,preset:small_tensors,preset:caching";

/// Compares memory pools.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Prints on stderr which traces are incomplete.
fn say_what_is_missing(traces: &[Trace]) {
    for missing in traces.iter().filter_map(Trace::missing) {
        eprintln!("noted: {missing}");
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Bench),
    Replay(Replay),
    Advise(advise::Advise),
    Report(Report),
    Convert(convert::Convert),
    Soak(soak::Soak),
    Record(Record),
    Compare(Compare),
    /// One contender of a workload, in this process.
    #[command(hide = true)]
    Contest(Contest),
    /// A hit path, repeated, for callgrind.
    #[command(hide = true)]
    Hit {
        path: Option<String>,
        pairs: Option<u64>,
    },
    /// Questions that only a GPU can answer, for the bundle.
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    Questions(peers::Questions),
    /// Orders between streams behind a slow kernel, for the bundle; all cases unless one is named.
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    SlowWork {
        case: Option<String>,
    },
    /// One contender of `bench --threads`, for strace.
    #[command(hide = true)]
    OnThreads(threads::OnThreads),
    /// What threads hand to each other, in a build that counts.
    #[command(hide = true)]
    Counts {
        /// Those of a pool with a shard for each thread, in Rust and through C. They depend on addresses, so
        /// they are not quite the same in each run.
        #[arg(long)]
        through_c: bool,
    },
    /// A case of `bench --peers`, in this process.
    #[command(hide = true)]
    Peer(peers::Case),
}

/// Compares two records of the same command: which cells lie outside each other's interval.
#[derive(Debug, Args)]
struct Compare {
    /// A file of pool-bench/records.
    a: PathBuf,
    /// Another.
    b: PathBuf,
}

/// One contender of a workload, which takes the steps whose numbers it reads.
#[derive(Debug, Args)]
struct Contest {
    #[arg(long, value_enum)]
    workload: Workload,
    #[arg(long, value_enum)]
    backend: Backend,
    #[arg(long)]
    contender: String,
    #[arg(long)]
    smoke: bool,
    /// Lets the control keep its buffers: a fault that the bench must notice.
    #[arg(long)]
    planted: bool,
}

/// Runs a command, such as one of criterion's, and records what it prints.
#[derive(Debug, Args)]
struct Record {
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Reads the number of lanes.
fn lanes(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=256).contains(count));
    count.ok_or_else(|| "expected a number of threads, 1 to 256".into())
}

/// Reads the number of shards.
fn shards(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=64).contains(count));
    count.ok_or_else(|| "expected a number of shards, 1 to 64".into())
}

/// Replays traces under each policy.
#[derive(Debug, Args)]
struct Replay {
    /// Traces: .ptrace.csv, an RMM log, or a snapshot of PyTorch; plain or with .zst.
    #[arg(required = true)]
    trace: Vec<PathBuf>,
    /// Policies to compare, such as exact,pow2,tiered:4K+16K,fit:2; those of `bench` unless named.
    #[arg(long, allow_hyphen_values = true)]
    policy: Option<String>,
    /// The memory to replay on.
    #[arg(long, value_enum, default_value = "sim")]
    backend: Backend,
    /// A bound on cached blocks: bytes such as 64M, or a share of the peak such as 25%. None unless
    /// named.
    #[arg(long, allow_hyphen_values = true)]
    cached_limit: Option<String>,
    /// The size of the simulated device.
    #[arg(long, allow_hyphen_values = true)]
    capacity: Option<String>,
    /// Threads that take turns of 1 to 8 steps, and hand buffers to each other. The order is the same
    /// for the same `--seed`.
    #[arg(long, value_parser = lanes, conflicts_with = "streams")]
    lanes: Option<usize>,
    /// The seed of the order of `--lanes`.
    #[arg(long, default_value_t = 1, requires = "lanes")]
    seed: u64,
    /// Shards of the pool on memory without streams, such as the host's, for `--lanes`; the same is
    /// replayed with one shard, and both are told. As many as it takes by itself unless named.
    #[arg(long, value_parser = shards, requires = "lanes")]
    shards: Option<usize>,
    /// Each lane of the trace as a stream of the simulated device, whose work runs late.
    #[arg(long)]
    streams: bool,
    /// Also write a record with command, date and machine to pool-bench/records.
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    output: Output,
}

/// Runs a command line. Returns the text to print.
///
/// # Errors
///
/// Returns one line that describes the bad input.
pub fn run(cli: Cli, typed: &str) -> Result<String, BadInput> {
    match cli.command {
        Command::Bench(bench) => bench.run(typed),
        Command::Replay(replay) => replay.run(typed),
        Command::Advise(advise) => advise.run(typed),
        Command::Report(report) => report.run(typed),
        Command::Convert(convert) => convert.run(),
        Command::Soak(soak) => soak.run(typed),
        Command::Record(record) => record.run(),
        Command::Compare(Compare { a, b }) => compare::records(&a, &b),
        Command::Contest(contest) => contest.run(),
        Command::Hit { path: None, .. } => {
            Ok(hit::paths().iter().map(|(name, _)| *name).collect::<Vec<_>>().join("\n"))
        }
        Command::Hit { path: Some(path), pairs } => {
            hit::run(&path, pairs.unwrap_or(1)).map(|()| String::new())
        }
        #[cfg(feature = "cuda")]
        Command::Questions(questions) => questions.run(),
        #[cfg(feature = "cuda")]
        Command::SlowWork { case } => {
            environment::check(&[])?;
            crate::gpu::slow::run(case.as_deref()).map(|()| String::new())
        }
        Command::OnThreads(threads) => threads.run(),
        Command::Counts { through_c } => threads::counts(through_c),
        Command::Peer(case) => case.run(),
    }
}

impl Contest {
    fn run(self) -> Result<String, BadInput> {
        let Self { workload, backend, contender, smoke, planted } = self;
        environment::check(&[])?;
        let contender = contest::contender(workload, backend, &contender, smoke, planted);
        let standing = contender.and_then(contest::answer);
        let failed = |failed| {
            let what = format!("{} on {}: {failed}", workload.name(), backend.name());
            BadInput::new(what, "a run without failures")
        };
        Ok(lines(&[standing.map_err(failed)?]))
    }
}

/// Returns the objects as JSON, one per line.
fn lines(objects: &[impl serde::Serialize]) -> String {
    let lines: Vec<_> = objects.iter().filter_map(|o| serde_json::to_string(o).ok()).collect();
    lines.join("\n")
}

impl Record {
    fn run(self) -> Result<String, BadInput> {
        let typed = self.command.join(" ");
        record::probe(&root().join(RECORDS)).map_err(|error| unwritable(&error))?;
        let failed =
            |why: String| BadInput::new(format!("`{typed}`: {why}"), "a run that succeeds");
        let run = record::Run::begin(&typed, None);
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| failed("nothing".into()))?;
        let mut command = std::process::Command::new(program);
        command.args(arguments).stderr(std::process::Stdio::inherit());
        environment::clean(&mut command);
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            eprint!("{text}");
            return Err(failed(output.status.to_string()));
        }
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines = lines.map(|line| serde_json::json!({ "output": line }).to_string());
        let file = recorded(&run, &lines.collect::<Vec<_>>())?;
        eprintln!("recorded in {RECORDS}/{file}");
        Ok(text)
    }
}

/// Writes a record of a run's results. Returns the file name.
fn recorded(run: &record::Run, lines: &[String]) -> Result<String, BadInput> {
    let file = record::write(&root().join(RECORDS), run, lines);
    file.map_err(|error| unwritable(&error))
}

impl Results {
    /// Writes a record of the results and notes the file name.
    fn record(&mut self, run: &record::Run) -> Result<(), BadInput> {
        let file = recorded(run, &self.json());
        // Else the results are lost.
        let file = file.inspect_err(|_| eprintln!("{}", self.tables()))?;
        self.notes.push(format!("recorded in {RECORDS}/{file}"));
        Ok(())
    }
}

fn unwritable(error: &io::Error) -> BadInput {
    BadInput::new(format!("{RECORDS}: {error}"), "a writable folder")
}

impl Replay {
    fn run(self, typed: &str) -> Result<String, BadInput> {
        let mut policies = spec::list(self.policy.as_deref().unwrap_or(POLICIES))?;
        let mut results = Results::default();
        if self.policy.is_none() {
            results.notes.extend(self.backend.left_out(&policies));
            policies.retain(|policy| self.backend.serves(policy));
        }
        if self.capacity.is_some() && !self.backend.is_simulated() {
            let what = format!("`--capacity` with backend `{}`", self.backend.name());
            return Err(BadInput::new(what, "backend `sim`, whose size it is"));
        }
        self.output.probe()?;
        if self.record {
            record::probe(&root().join(RECORDS)).map_err(|error| unwritable(&error))?;
        }
        let run = record::Run::begin(typed, None);
        let settings = Settings {
            backend: self.backend,
            cached_limit: self.cached_limit.as_deref().map(sizes::cached_limit).transpose()?,
            capacity: self.capacity.as_deref().map(sizes::memory).transpose()?,
            lanes: None,
        };
        let settings = match self.lanes {
            Some(threads) => settings.in_turns(threads, self.seed, self.shards),
            None => settings,
        };
        if self.streams {
            results.replay_on_streams(&self.trace, &policies, settings)?;
        } else {
            results.replay(&self.trace, &policies, settings, self.policy.is_none())?;
        }
        if self.record {
            results.record(&run)?;
        }
        let limited: Vec<_> =
            policies.iter().map(|policy| (policy, settings.cached_limit)).collect();
        let sections = || results.sections(&self.trace, &limited);
        self.output.finish(&results, ("Replays of traces", typed), sections)
    }
}

/// Writes a report of traces: every policy on each, as one HTML page.
#[derive(Debug, Args)]
struct Report {
    /// Traces; the bundled ones unless named.
    trace: Vec<PathBuf>,
    /// Policies to compare, such as exact,pow2,tiered:4K+16K,fit:2; those of `bench` unless named.
    /// The policy that `advise` picks for these traces is always there.
    #[arg(long, allow_hyphen_values = true)]
    policy: Option<String>,
    /// The page.
    #[arg(long, default_value = "report.html")]
    out: PathBuf,
}

impl Report {
    fn run(self, typed: &str) -> Result<String, BadInput> {
        let traces = match self.trace.is_empty() {
            true => crate::place::traces(false)?,
            false => self.trace,
        };
        let mut policies = spec::list(self.policy.as_deref().unwrap_or(POLICIES))?;
        let settings =
            Settings { backend: Backend::SIM, cached_limit: None, capacity: None, lanes: None };
        let mut results = Results::default();
        let output = Output { report: Some(self.out.clone()), ..Output::default() };
        output.probe()?;
        let read = read_all(&traces)?;
        let bar = progress(crate::advise::ticks(read.len()), "policies");
        let advised = crate::advise::advise(&read, || bar.inc(1))?;
        bar.finish_and_clear();
        let (taken, limit) = (advised.choice.named(), advised.choice.limit());
        // Its row without a limit is another one, and stays.
        policies.retain(|policy| limit.is_some() || policy.text != taken.text);
        let taken = NamedPolicy { text: format!("{} (advised)", taken.text), ..taken };
        let with_limit = Settings { cached_limit: limit, ..settings };
        results.replay(&traces, std::slice::from_ref(&taken), with_limit, false)?;
        results.notes.clear(); // the other policies note the same
        results.replay(&traces, &policies, settings, false)?;
        let mut limited = vec![(&taken, limit)];
        limited.extend(policies.iter().map(|policy| (policy, None)));
        let sections = || {
            let mut sections = vec![advice(&advised)];
            sections.extend(results.sections(&traces, &limited));
            sections
        };
        output.report(typed, "Replays of traces", sections, &results.notes)?;
        Ok(format!("{}", self.out.display()))
    }
}
