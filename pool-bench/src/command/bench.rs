//! `bench`: workloads on every backend that is here, traces, or other allocators beside ours.

use super::{NO_ARENAS_ON_WGPU, POLICIES, RECORDS, recorded, root, unwritable};
use crate::apart::Spread;
use crate::backend::Backend;
use crate::contest::{self, Standing};
use crate::input::BadInput;
use crate::replay::Settings;
use crate::results::{Output, Results, progress};
use crate::spec::{self, PolicySpec};
use crate::workload::Workload;
use crate::{environment, record, rounds, sizes};
use clap::{Args, ValueEnum};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The bound under which traces are replayed a second time.
const BENCH_CACHED_LIMIT: &str = "25%";

/// Runs the workloads beside direct allocation on every backend that is here, and replays the
/// bundled traces.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(super) struct Bench {
    /// Kinds of memory. Unless named: workloads on all that are here, traces on `sim`.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) backend: Vec<Backend>,
    /// Policies to compare, such as exact,pow2,tiered:4K+16K,fit:2.
    #[arg(long, default_value = POLICIES)]
    policy: String,
    /// Workloads to run, or `traces`; all unless named.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// Other allocators beside ours, instead of workloads: `host` (the tcache's; also what stands
    /// for no name), `arena`, or with `--backend cuda` or `wgpu` theirs.
    #[arg(
        long,
        value_enum,
        num_args = 0..=1,
        default_missing_value = "host",
        value_name = "GROUP",
        conflicts_with_all = ["workload", "policy"]
    )]
    pub(super) peers: Option<super::peers::Group>,
    /// An allocator of VRAM in a program of its own, as NAME=COMMAND (`peers/gpu/build` makes
    /// some).
    #[arg(long, requires = "peers")]
    pub(super) peer: Vec<String>,
    /// Instructions of each hit path, counted by callgrind (xtask runs this).
    #[arg(long)]
    instructions: bool,
    /// A few small steps of everything, results checked: a test, not a measurement.
    #[arg(long)]
    pub(super) smoke: bool,
    /// Every table, not the comparison of backends alone.
    #[arg(long)]
    all: bool,
    /// Also write a record with command, date and machine to pool-bench/records.
    #[arg(long)]
    record: bool,
    /// What the random orders of contenders are drawn from; drawn from the time unless named.
    #[arg(long)]
    seed: Option<u64>,
    /// Plants a fault in the control, to see that the bench notices.
    #[arg(long, hide = true)]
    planted: bool,
    #[command(flatten)]
    output: Output,
}

impl Bench {
    pub(super) fn run(self, typed: &str) -> Result<String, BadInput> {
        let policies = spec::list(&self.policy)?;
        let (workloads, traces) = self.chosen()?;
        if self.instructions {
            let what = "`--instructions` without callgrind";
            return Err(BadInput::new(what, "`cargo xtask bench --instructions`"));
        }
        // A folder that cannot be written is found before the minutes of a run, not after.
        self.output.probe()?;
        if self.record {
            record::probe(&root().join(RECORDS)).map_err(|error| unwritable(&error))?;
        }
        let from_time = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            now.as_secs()
        };
        let seed = self.seed.unwrap_or_else(from_time);
        let run = record::Run::begin(typed, Some(seed));
        let mut results = Results { all: self.all, ..Results::default() };
        let removed = environment::found();
        if !removed.is_empty() {
            results.notes.push(format!("removed from every contender: {}", removed.join(", ")));
        }
        let spread = Spread::new(self.smoke, seed);
        if let Some(group) = self.peers {
            self.against_peers(group, &spread, &mut results)?;
            results.notes.extend(rounds::beaten_floors(&results.rows));
            return self.put(&run, results);
        }
        let backends = self.backends_for_workloads(&mut results.notes)?;
        if backends.contains(&Backend::Wgpu) && policies.iter().any(|spec| spec.arena.is_some()) {
            results.notes.push(NO_ARENAS_ON_WGPU.into());
        }
        let contests: Vec<_> = workloads
            .iter()
            .flat_map(|workload| backends.iter().map(move |backend| (*workload, *backend)))
            .collect();
        results.standings = self.contests(&contests, &spread)?;
        // A few small steps are too noisy to be judged.
        if !self.smoke || self.planted {
            results.notes.extend(contest::biases(&results.standings));
        }
        if traces {
            self.replay_traces(&policies, &mut results)?;
        }
        self.put(&run, results)
    }

    fn put(&self, run: &record::Run, mut results: Results) -> Result<String, BadInput> {
        if self.record {
            match recorded(run, &results.json()) {
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

    /// The memory to run workloads on. A backend that was named must be here; another that is not
    /// is left out, with a note.
    fn backends_for_workloads(&self, notes: &mut Vec<String>) -> Result<Vec<Backend>, BadInput> {
        let asked = !self.backend.is_empty();
        let backends = if asked { self.backend.clone() } else { Backend::built_in() };
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

    fn contests(
        &self,
        contests: &[(Workload, Backend)],
        spread: &Spread,
    ) -> Result<Vec<Standing>, BadInput> {
        let mut standings = Vec::new();
        let bar = progress(contests.len() as u64, "");
        bar.enable_steady_tick(Duration::from_millis(200));
        for (workload, backend) in contests {
            bar.set_message(format!("{} on {}", workload.name(), backend.name()));
            let (workload, backend) = (workload.name(), backend.name());
            let mut arguments = vec!["contest", "--workload", &workload, "--backend", &backend];
            arguments.extend(["--policy", &self.policy]);
            arguments.extend(self.smoke.then_some("--smoke"));
            arguments.extend(self.planted.then_some("--planted"));
            standings.extend(contest::pool(spread.run(&arguments, &[])?));
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(standings)
    }

    pub(super) fn trace_files(&self) -> Result<Vec<PathBuf>, BadInput> {
        traces(self.smoke)
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

/// The bundled traces; one of them for a smoke test.
pub(crate) fn traces(smoke: bool) -> Result<Vec<PathBuf>, BadInput> {
    let folder = root().join("traces");
    let unreadable = |error| {
        let what = format!("{}: {error}", folder.display());
        BadInput::new(what, "the folder of the bundled traces; run `cargo xtask bench`")
    };
    let entries = fs::read_dir(&folder).map_err(unreadable)?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.to_string_lossy().contains(".ptrace.csv"));
    files.sort();
    if smoke {
        files.truncate(1);
    }
    Ok(files)
}
