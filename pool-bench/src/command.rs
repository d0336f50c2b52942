//! The command line: what `cargo xtask bench` and `cargo xtask replay` pass on.
#![expect(clippy::print_stderr, reason = "what was left out is said, wherever the results go")]

mod peers;

use crate::backend::Backend;
use crate::contest::{self, Standing};
use crate::input::BadInput;
use crate::replay::Settings;
use crate::results::{Output, Results, progress};
use crate::spec::{self, PolicySpec};
use crate::workload::Workload;
use crate::{record, sizes};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

/// Policies that are compared unless others are named; the classes are those of embedding batches.
const POLICIES: &str = "exact,pow2,tiered:4K+16K+64K+256K+1M+4M+16M,fit:2,arena,\
                        arena:pages=64K:slack=5%,arena:torch";
/// The bound under which `bench` replays traces a second time.
const BENCH_CACHED_LIMIT: &str = "25%";

const NO_ARENAS_ON_WGPU: &str = "left out: arenas on wgpu, since its buffers are not cut";

/// Where records go, below the root.
const RECORDS: &str = "pool-bench/records";

/// The root of the repository: what xtask says, else where we are.
fn root() -> PathBuf {
    std::env::var_os("BUCKETPOOL_ROOT").map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// Compares memory pools.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(Bench),
    Replay(Replay),
    Record(Record),
    #[cfg(feature = "peers")]
    #[command(hide = true)]
    Peer(Peer),
}

/// One case of `bench --peers`, in this process.
#[cfg(feature = "peers")]
#[derive(Debug, Args)]
struct Peer {
    case: String,
    size: u64,
    #[arg(long)]
    smoke: bool,
}

/// Runs a command, such as one of criterion's, and records what it prints.
#[derive(Debug, Args)]
struct Record {
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs the workloads against direct allocation, and replays the bundled traces.
#[derive(Debug, Args)]
struct Bench {
    /// Kinds of memory. Unless named: workloads on all that are here, traces on `sim`.
    #[arg(long, value_enum, value_delimiter = ',')]
    backend: Vec<Backend>,
    /// Policies to compare, such as exact,pow2,tiered:4K+16K,fit:2.
    #[arg(long, default_value = POLICIES)]
    policy: String,
    /// Workloads to run, or `traces`; all unless named.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// Other allocators beside ours, instead of workloads and traces: the tcache's, or with
    /// `--backend cuda` or `wgpu` theirs.
    #[arg(long, conflicts_with_all = ["workload", "policy"])]
    peers: bool,
    /// An allocator of VRAM in a program of its own, as NAME=COMMAND (`peers/gpu/build` makes
    /// some).
    #[arg(long, requires = "peers")]
    peer: Vec<String>,
    /// A few small steps of everything, results checked: a test, not a measurement.
    #[arg(long)]
    smoke: bool,
    /// Also write a record with command, date and machine to pool-bench/records.
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    output: Output,
}

/// Replays traces under each policy.
#[derive(Debug, Args)]
struct Replay {
    /// Traces: .ptrace.csv, plain or with .zst.
    #[arg(required = true)]
    trace: Vec<PathBuf>,
    /// Policies to compare, such as exact,pow2,tiered:4K+16K,fit:2; those of `bench` unless named.
    #[arg(long, allow_hyphen_values = true)]
    policy: Option<String>,
    /// The memory to replay on.
    #[arg(long, value_enum, default_value = "sim")]
    backend: Backend,
    /// A bound on idle blocks: bytes such as 64M, or a share of the peak such as 25%. Unless named,
    /// none on `sim`, and 25% on memory that is real.
    #[arg(long, allow_hyphen_values = true)]
    cached_limit: Option<String>,
    /// The size of the simulated device.
    #[arg(long, allow_hyphen_values = true)]
    capacity: Option<String>,
    /// Each lane of the trace as a stream of the simulated device, whose work runs late.
    #[arg(long)]
    streams: bool,
    #[command(flatten)]
    output: Output,
}

/// Runs a command line; returns what is to be printed.
///
/// # Errors
///
/// Bad input, in one line.
pub fn run(cli: Cli, typed: &str) -> Result<String, BadInput> {
    match cli.command {
        Command::Bench(bench) => bench.run(typed),
        Command::Replay(replay) => replay.run(),
        Command::Record(record) => record.run(),
        #[cfg(feature = "peers")]
        Command::Peer(Peer { case, size, smoke }) => {
            let rows = crate::peers::case(&root(), &case, size, smoke)?;
            let lines: Vec<_> = rows.iter().filter_map(|r| serde_json::to_string(r).ok()).collect();
            Ok(lines.join("\n"))
        }
    }
}

impl Record {
    fn run(self) -> Result<String, BadInput> {
        let typed = self.command.join(" ");
        record::probe(&root().join(RECORDS)).map_err(|error| unwritable(&error))?;
        let failed =
            |why: String| BadInput::new(format!("`{typed}`: {why}"), "a run that succeeds");
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| failed("nothing".into()))?;
        let mut command = std::process::Command::new(program);
        command.args(arguments).stderr(std::process::Stdio::inherit());
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            eprint!("{text}");
            return Err(failed(output.status.to_string()));
        }
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines = lines.map(|line| serde_json::json!({ "output": line }).to_string());
        let file = recorded(&typed, &lines.collect::<Vec<_>>())?;
        eprintln!("recorded in {RECORDS}/{file}");
        Ok(text)
    }
}

/// Writes a record of what a command came to.
fn recorded(command: &str, lines: &[String]) -> Result<String, BadInput> {
    let file = record::write(&root().join(RECORDS), command, lines);
    file.map_err(|error| unwritable(&error))
}

fn unwritable(error: &io::Error) -> BadInput {
    BadInput::new(format!("{RECORDS}: {error}"), "a writable folder")
}

impl Bench {
    fn run(self, typed: &str) -> Result<String, BadInput> {
        let policies = spec::list(&self.policy)?;
        let (workloads, traces) = self.chosen()?;
        // Minutes later nobody wants to hear that it was for nothing.
        self.output.probe()?;
        if self.record {
            record::probe(&root().join(RECORDS)).map_err(|error| unwritable(&error))?;
        }
        let mut results = Results::default();
        if self.peers {
            self.against_peers(&mut results)?;
            return self.put(typed, results);
        }
        let backends = self.backends_for_workloads(&mut results.notes)?;
        if backends.contains(&Backend::Wgpu) && policies.iter().any(|spec| spec.arena.is_some()) {
            results.notes.push(NO_ARENAS_ON_WGPU.into());
        }
        if backends.is_empty() && !workloads.is_empty() && self.backend == [Backend::Sim] {
            results
                .notes
                .push("left out: workloads on sim, since it has no memory to write".into());
        }
        let contests: Vec<_> = workloads
            .iter()
            .flat_map(|workload| backends.iter().map(move |backend| (*workload, *backend)))
            .collect();
        if let [(workload, backend)] = contests.as_slice() {
            results.standings = self.contest(*workload, *backend, &policies)?;
        } else {
            results.standings = self.contests_apart(&contests)?;
        }
        if traces {
            self.replay_traces(&policies, &mut results)?;
        }
        self.put(typed, results)
    }

    fn put(&self, typed: &str, mut results: Results) -> Result<String, BadInput> {
        if self.record {
            match recorded(typed, &results.json()) {
                Ok(file) => results.notes.push(format!("recorded in {RECORDS}/{file}")),
                Err(bad) => {
                    eprintln!("{}", results.tables()); // or the run was for nothing
                    return Err(bad);
                }
            }
        }
        self.output.put(&results)
    }

    /// The workloads that were asked for, and whether the traces were.
    fn chosen(&self) -> Result<(Vec<Workload>, bool), BadInput> {
        if self.workload.is_empty() {
            return Ok((Workload::value_variants().to_vec(), true));
        }
        let known = || {
            let names = Workload::value_variants().iter().map(|w| w.name());
            names.chain(["traces".to_owned()]).collect::<Vec<_>>().join(", ")
        };
        let named = self.workload.iter().filter(|name| *name != "traces");
        let workloads: Result<Vec<Workload>, _> = named
            .map(|name| {
                let found = Workload::from_str(name, false);
                found.map_err(|_| BadInput::new(format!("workload `{name}`"), known()))
            })
            .collect();
        Ok((workloads?, self.workload.iter().any(|name| name == "traces")))
    }

    /// The real memory to run workloads on. What was asked for must be here; what was not and is
    /// not is left out, and said.
    fn backends_for_workloads(&self, notes: &mut Vec<String>) -> Result<Vec<Backend>, BadInput> {
        let asked = !self.backend.is_empty();
        let mut backends = if asked { self.backend.clone() } else { Backend::built_in() };
        // The simulated device has no memory to write.
        backends.retain(|backend| *backend != Backend::Sim);
        let mut here = Vec::new();
        for backend in backends {
            match backend.absence() {
                None => here.push(backend),
                Some((why, cure)) if asked => {
                    let what = format!("backend `{}`: {why}", backend.name());
                    return Err(BadInput::new(what, cure));
                }
                Some((why, _)) => notes.push(format!("left out: {}, since {why}", backend.name())),
            }
        }
        Ok(here)
    }

    fn contest(
        &self,
        workload: Workload,
        backend: Backend,
        policies: &[PolicySpec],
    ) -> Result<Vec<Standing>, BadInput> {
        let steps = if self.smoke { 0 } else { contest::steps(workload, backend) };
        let bar = progress(steps, &format!("{} {}", workload.name(), backend.name()));
        let standings = contest::run(workload, backend, policies, self.smoke, || bar.inc(1));
        bar.finish_and_clear();
        let what = |failed| format!("backend `{}`: {failed}", backend.name());
        standings.map_err(|failed| BadInput::new(what(failed), "a run without failures"))
    }

    fn contests_apart(&self, contests: &[(Workload, Backend)]) -> Result<Vec<Standing>, BadInput> {
        let mut standings = Vec::new();
        let bar = progress(contests.len() as u64, "");
        bar.enable_steady_tick(Duration::from_millis(200));
        for (workload, backend) in contests {
            bar.set_message(format!("{} on {}", workload.name(), backend.name()));
            standings.extend(self.contest_apart(*workload, *backend)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(standings)
    }

    /// A contest in a process of its own: what an allocator has learned from one workload, such as
    /// glibc its thresholds, must not serve the next.
    fn contest_apart(
        &self,
        workload: Workload,
        backend: Backend,
    ) -> Result<Vec<Standing>, BadInput> {
        let failed = |why: String| BadInput::new(why, "a run without failures");
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let mut child = std::process::Command::new(program);
        child.args(["bench", "--json", "--policy", &self.policy]);
        child.args(["--workload", &workload.name(), "--backend", &backend.name()]);
        if self.smoke {
            child.arg("--smoke");
        }
        let output = child.output().map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            // The last line says what was wrong and what was expected.
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = stderr.lines().last().unwrap_or("it said nothing");
            return Err(BadInput::told(last.trim_start_matches("error: ")));
        }
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let standings: Result<_, _> = lines.map(serde_json::from_slice).collect();
        standings.map_err(|error| failed(error.to_string()))
    }

    /// The bundled traces; one of them for a smoke test.
    fn trace_files(&self) -> Result<Vec<PathBuf>, BadInput> {
        let mut files = Vec::new();
        let folder = fs::read_dir(root().join("traces"))
            .map_err(|error| BadInput::new(format!("traces: {error}"), "a folder of traces"))?;
        files.extend(folder.flatten().map(|entry| entry.path()));
        files.retain(|path| path.to_string_lossy().contains(".ptrace.csv"));
        files.sort();
        if self.smoke {
            files.truncate(1);
        }
        Ok(files)
    }

    fn replay_traces(
        &self,
        policies: &[PolicySpec],
        results: &mut Results,
    ) -> Result<(), BadInput> {
        let files = self.trace_files()?;
        let backends = if self.backend.is_empty() { &[Backend::Sim][..] } else { &self.backend };
        let bound = Some(sizes::cached_limit(BENCH_CACHED_LIMIT)?);
        for backend in backends {
            // Real memory is only risked under a bound.
            let bounds = if *backend == Backend::Sim { &[None, bound][..] } else { &[bound] };
            for cached_limit in bounds {
                // What an arena holds is bounded by what was alive at most.
                let apart: Vec<PolicySpec> = match cached_limit {
                    Some(_) => policies.iter().filter(|s| s.arena.is_none()).cloned().collect(),
                    None => policies.to_vec(),
                };
                let settings =
                    Settings { backend: *backend, cached_limit: *cached_limit, capacity: None };
                results.replay(&files, &apart, settings, true)?;
            }
        }
        Ok(())
    }
}

impl Replay {
    fn run(self) -> Result<String, BadInput> {
        let mut policies = spec::list(self.policy.as_deref().unwrap_or(POLICIES))?;
        let mut results = Results::default();
        if self.policy.is_none() && self.backend == Backend::Wgpu {
            policies.retain(|policy| policy.arena.is_none());
            results.notes.push(NO_ARENAS_ON_WGPU.into());
        }
        if self.capacity.is_some() && self.backend != Backend::Sim {
            let what = format!("`--capacity` with backend `{}`", self.backend.name());
            return Err(BadInput::new(what, "backend `sim`, whose size it is"));
        }
        self.output.probe()?;
        let settings = Settings {
            backend: self.backend,
            cached_limit: self.cached_limit.as_deref().map(sizes::cached_limit).transpose()?,
            capacity: self.capacity.as_deref().map(sizes::bytes).transpose()?,
        };
        if self.streams {
            results.replay_on_streams(&self.trace, &policies, settings)?;
        } else {
            results.replay(&self.trace, &policies, settings, false)?;
        }
        self.output.put(&results)
    }
}
