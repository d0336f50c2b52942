//! `bench`: workloads on every backend that is here, traces, or other allocators beside ours.

use super::{POLICIES, unwritable};
use crate::apart::Spread;
use crate::backend::{Absence, Backend};
use crate::contest::{self, Child, Failed, Standing, Terms};
use crate::input::BadInput;
use crate::place::{self, RECORDS, root};
use crate::replay::Settings;
use crate::results::{Output, Results, progress};
use crate::spec::{self, NamedPolicy};
use crate::workload::Workload;
use crate::{environment, record, rounds, sizes};
use clap::{Args, ValueEnum};
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
    /// An allocator of VRAM in its own program, as NAME=COMMAND (`peers/gpu/build` makes
    /// some).
    #[arg(long, requires = "peers")]
    pub(super) peer: Vec<String>,
    /// With `--peers host`, `preload` or `applications`: the cases to measure, such as pair,candle or
    /// larson,numpy or redis,pytorch; all unless named.
    #[arg(long, requires = "peers", value_delimiter = ',')]
    pub(super) case: Vec<String>,
    /// With `--peers preload`: a checkout of mimalloc-bench, whose programs are compiled and run.
    #[arg(long, requires = "peers", value_name = "FOLDER")]
    pub(super) programs: Option<std::path::PathBuf>,
    /// A folder with `pool-bench` and `bench-clients` of another build: with `--peers host` its
    /// tcache takes turns with this one's. With `--peers applications` a folder with its
    /// `libbucketpool.so`.
    #[arg(long, requires = "peers")]
    pub(super) before: Option<std::path::PathBuf>,
    /// Pools of host memory and global allocators on 1, 2, 4, .. threads, up to twice the cores,
    /// instead of workloads; beside them what threads hand to each other, and system calls.
    #[arg(long, conflicts_with_all = ["workload", "peers", "backend"])]
    threads: bool,
    /// With `--threads`: as a static program, beside musl's malloc (xtask builds it).
    #[arg(long, requires = "threads")]
    musl: bool,
    /// What threads hand to each other, beside its snapshot (xtask runs this).
    #[arg(long)]
    counts: bool,
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
    /// The seed of the random orders of contenders; from the time unless named.
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
        if self.musl && !cfg!(target_env = "musl") {
            let what = "`--musl` of a build for another C library";
            return Err(BadInput::new(what, "`cargo xtask bench --threads --musl`"));
        }
        if self.counts {
            let what = "`--counts` of a build that does not count";
            return Err(BadInput::new(what, "`cargo xtask bench --counts`"));
        }
        // A folder that cannot be written is found before the minutes of a run, not after.
        self.output.probe()?;
        if self.record {
            record::probe(&root().join(RECORDS)).map_err(|error| unwritable(&error))?;
        }
        if traces && self.peers.is_none() && !self.threads {
            place::traces(self.smoke)?;
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
            if traces && self.peers.is_none() {
                // Replays on the simulated device run here.
                results.notes.push("traces were replayed beside these variables".into());
            }
        }
        if self.threads {
            self.on_threads(&policies, seed, &mut results)?;
            return self.put(&run, results);
        }
        let spread = Spread::new(self.smoke, seed);
        if let Some(group) = self.peers {
            self.against_peers(group, &spread, &mut results)?;
            results.notes.extend(rounds::beaten_floors(&results.rows));
            return self.put(&run, results);
        }
        let backends = self.backends_for_workloads(&mut results.notes)?;
        results.notes.extend(backends.iter().filter_map(|backend| backend.left_out(&policies)));
        let contests: Vec<_> = workloads
            .iter()
            .flat_map(|workload| backends.iter().map(move |backend| (*workload, *backend)))
            .collect();
        results.standings = self.contests(&contests, &policies, &spread)?;
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
            results.record(run)?;
        }
        let sections = || results.page_sections();
        let page = ("Memory pools compared", run.command());
        self.output.finish(&results, page, sections)
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
                Some(Absence { why, cure }) if asked => {
                    let what = format!("backend `{}`: {why}", backend.name());
                    return Err(BadInput::new(what, cure));
                }
                Some(Absence { why, .. }) => {
                    notes.push(format!("left out: {}, since {why}", backend.name()));
                }
            }
        }
        Ok(here)
    }

    fn contests(
        &self,
        contests: &[(Workload, Backend)],
        policies: &[NamedPolicy],
        spread: &Spread,
    ) -> Result<Vec<Standing>, BadInput> {
        let mut standings = Vec::new();
        let bar = progress(contests.len() as u64, "");
        bar.enable_steady_tick(Duration::from_millis(200));
        for (workload, backend) in contests {
            bar.set_message(format!("{} on {}", workload.name(), backend.name()));
            let rounds = (0..spread.processes)
                .map(|set| self.one_set(*workload, *backend, policies, spread, set as u64));
            standings.extend(contest::pool(rounds.collect::<Result<_, _>>()?));
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(standings)
    }

    /// One set of processes, each a contender: what a pool does to the heap of its process must not
    /// reach direct allocation, and what an allocator learned from one workload not the next.
    fn one_set(
        &self,
        workload: Workload,
        backend: Backend,
        policies: &[NamedPolicy],
        spread: &Spread,
        set: u64,
    ) -> Result<Vec<Standing>, BadInput> {
        let share = contest::steps(workload, backend).div_ceil(spread.processes as u64);
        let steps = if self.smoke { contest::SMOKE_STEPS } else { share + contest::COLD as u64 };
        let terms = Terms { from: set * steps, steps, seed: spread.seed.wrapping_add(set) };
        let flags: Vec<&str> = [(self.smoke, "--smoke"), (self.planted, "--planted")]
            .into_iter()
            .filter_map(|(is_set, flag)| is_set.then_some(flag))
            .collect();
        let start = |name: &String| -> Result<Box<dyn contest::Contender>, Failed> {
            Ok(Box::new(Child::start(workload, backend, name, &flags)?))
        };
        let contenders: Result<Vec<_>, Failed> =
            contest::names(backend, policies).iter().map(start).collect();
        let standings = contenders.and_then(|contenders| contest::run(contenders, terms, || {}));
        standings.map_err(|failed| BadInput::told(&failed.to_string()))
    }

    fn replay_traces(
        &self,
        policies: &[NamedPolicy],
        results: &mut Results,
    ) -> Result<(), BadInput> {
        let files = place::traces(self.smoke)?;
        let backends = if self.backend.is_empty() { &[Backend::SIM][..] } else { &self.backend };
        let bound = Some(sizes::cached_limit(BENCH_CACHED_LIMIT)?);
        for backend in backends {
            // Real memory is only risked under a bound.
            let bounds = if backend.is_simulated() { &[None, bound][..] } else { &[bound] };
            for cached_limit in bounds {
                // What an arena holds is bounded by what was alive at most.
                let apart: Vec<NamedPolicy> = match cached_limit {
                    Some(_) => policies.iter().filter(|s| !s.has_arena()).cloned().collect(),
                    None => policies.to_vec(),
                };
                if !backend.is_simulated() && apart.len() < policies.len() {
                    results.notes.push(format!(
                        "left out: arenas on {} with traces, since no limit bounds what they take; \
                         `replay` runs them",
                        backend.name()
                    ));
                }
                let settings = Settings {
                    backend: *backend,
                    cached_limit: *cached_limit,
                    capacity: None,
                    lanes: None,
                };
                results.replay(&files, &apart, settings, true)?;
            }
        }
        Ok(())
    }
}
