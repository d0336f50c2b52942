//! `bench --threads`: times on 1, 2, 4, .. threads, and the counts that explain them.

use super::bench::Bench;
use crate::environment;
use crate::input::BadInput;
use crate::results::{Results, progress};
use crate::spec::{self, NamedPolicy};
use crate::threads::load::HeapGroup;
use crate::threads::{ThreadContender, run};
use clap::Args;
use serde_json::Value;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// The variable with the program whose build counts (xtask makes it).
const COUNTING: &str = "BUCKETPOOL_COUNTING";
/// System calls that are told.
const CALLS: &str = "futex,sched_yield,nanosleep,clock_nanosleep,membarrier,madvise,mmap,munmap";
/// Threads and operations of the run whose system calls are counted.
const THREADS: usize = 8;
const OPERATIONS: u64 = 200_000;
/// Installs strace on Debian.
const CURE: &str = "`apt-get install strace`";

/// One contender on threads, a fixed number of operations: for a program that counts its system
/// calls.
#[derive(Debug, Args)]
pub(super) struct OnThreads {
    /// The load.
    load: String,
    /// The contender, as in the tables.
    contender: String,
    #[arg(default_value_t = THREADS)]
    threads: usize,
    #[arg(default_value_t = OPERATIONS)]
    operations: u64,
}

impl OnThreads {
    pub(super) fn run(self) -> Result<String, BadInput> {
        let load = run::named(&self.load)
            .ok_or_else(|| BadInput::new(format!("load `{}`", self.load), "one of the tables"))?;
        let contenders = ThreadContender::of(&load, &spec::list(super::POLICIES)?);
        let contender = contenders.into_iter().find(|one| one.name() == self.contender);
        let contender = contender.ok_or_else(|| {
            BadInput::new(format!("contender `{}`", self.contender), "one of the load's table")
        })?;
        run::fixed(&contender, load, self.threads.max(1), self.operations);
        Ok(String::new())
    }
}

/// The counts of all loads, one JSON object a line.
#[cfg(pool_counts)]
pub(super) fn counts(through_c: bool) -> Result<String, BadInput> {
    use crate::threads::counts;
    Ok(super::lines(&match through_c {
        true => counts::through_c(),
        false => counts::all(&spec::list(super::POLICIES)?),
    }))
}

/// The counts of all loads: this build has none.
#[cfg(not(pool_counts))]
pub(super) fn counts(_through_c: bool) -> Result<String, BadInput> {
    Err(BadInput::new("`counts` of a build that does not count", "`cargo xtask bench --counts`"))
}

impl Bench {
    pub(super) fn on_threads(
        &self,
        policies: &[NamedPolicy],
        seed: u64,
        results: &mut Results,
    ) -> Result<(), BadInput> {
        environment::check(&[])?;
        if thread::available_parallelism().map_or(1, usize::from) < 2 {
            return Err(BadInput::new(
                "`--threads` on one core",
                "a machine with two cores or more",
            ));
        }
        let bar = progress(run::steps(self.smoke), "threads");
        bar.enable_steady_tick(Duration::from_millis(200));
        let ran = run::run(policies, self.smoke, seed, |load| {
            bar.set_message(load.to_owned());
            bar.inc(1);
        });
        bar.finish_and_clear();
        results.threads = ran.rows;
        if ran.discarded > 0 {
            results.notes.push(format!(
                "{} rounds were discarded: two spinning threads did not get two cores",
                ran.discarded
            ));
        }
        if ran.doubtful > 0 {
            results
                .notes
                .push(format!("{} rounds never had two cores, and were kept", ran.doubtful));
        }
        if !self.smoke {
            results.counts = counted(&mut results.notes);
            results.counts.extend(system_calls(policies, &mut results.notes)?);
        }
        Ok(())
    }
}

/// The counts, from the build that counts.
fn counted(notes: &mut Vec<String>) -> Vec<Value> {
    let Some(program) = std::env::var_os(COUNTING) else {
        notes.push(
            "left out: counts, since no build that counts is named; `cargo xtask bench \
                    --threads` makes one"
                .into(),
        );
        return Vec::new();
    };
    match Command::new(&program).arg("counts").output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        }
        _ => {
            notes.push(format!("left out: counts, since {} failed", program.display()));
            Vec::new()
        }
    }
}

/// System calls of each contender per 1000 operations on eight threads.
fn system_calls(policies: &[NamedPolicy], notes: &mut Vec<String>) -> Result<Vec<Value>, BadInput> {
    if Command::new("strace").arg("--version").output().is_err() {
        notes.push(format!("left out: system calls, since strace is not installed; {CURE}"));
        return Ok(Vec::new());
    }
    let loads = ["200 sizes, own", "4 to 64 KiB, own"];
    let mut lines = Vec::new();
    for load in run::of(HeapGroup::Pools).chain(run::of(HeapGroup::Allocators)) {
        if !loads.contains(&load.name) {
            continue;
        }
        for contender in ThreadContender::of(&load, policies) {
            lines.extend(traced(load.name, &contender.name())?);
        }
    }
    Ok(lines)
}

fn traced(load: &str, contender: &str) -> Result<Option<Value>, BadInput> {
    let failed = |error: std::io::Error| BadInput::new(error.to_string(), "strace to run");
    let program = std::env::current_exe().map_err(failed)?;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-qq", "-U", "calls,name", "-e"]).arg(format!("trace={CALLS}"));
    strace.arg(program).args(["on-threads", load, contender]);
    environment::clean(&mut strace);
    let output = strace.output().map_err(failed)?;
    if !output.status.success() {
        return Ok(None);
    }
    // Lines such as `  1234 futex`, under a head.
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut calls = serde_json::Map::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(Ok(count)), Some(name)) = (words.next().map(str::parse::<u64>), words.next())
            && name != "total"
        {
            let per_1000 = 1000.0 * count as f64 / OPERATIONS as f64;
            calls.insert(name.into(), (per_1000 * 100.0).round().into());
        }
    }
    for count in calls.values_mut() {
        *count = (count.as_f64().unwrap_or_default() / 100.0).into();
    }
    Ok(Some(serde_json::json!({
        "case": load, "contender": contender, "threads": THREADS, "system_calls_per_1000": calls,
    })))
}
