//! Global allocators that a program could use instead of the tcache, measured in turns.
//!
//! Each case runs in separate processes, because allocators adapt to what ran before. In each
//! process all contenders take turns. `default` means the allocator's default settings. `tuned`
//! means settings that an expert would choose for large temporaries (`TUNING`).

pub(crate) mod arena;
mod arrays;
mod clients;
mod pair;
mod pools;
mod replayed;
pub(crate) mod service;
mod switch;
mod threads;

use crate::apart::Process;
use crate::apart::Spread;
pub(crate) use crate::heap::TCACHE;
use crate::input::BadInput;
use crate::rounds::{self, Row};
use crate::statistics::Orders;
use std::alloc::{GlobalAlloc, System};
use std::path::Path;

/// A global allocator that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Tcache,
    CLibrary,
    Mimalloc,
    #[cfg(not(target_env = "musl"))]
    Jemalloc,
    #[cfg(not(target_env = "musl"))]
    Snmalloc,
}

impl Peer {
    /// In the order of their numbers.
    pub(crate) const ALL: &'static [Self] = &[
        Self::Tcache,
        Self::CLibrary,
        Self::Mimalloc,
        #[cfg(not(target_env = "musl"))]
        Self::Jemalloc,
        #[cfg(not(target_env = "musl"))]
        Self::Snmalloc,
    ];

    pub(crate) fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|peer| peer.name()).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcache => "tcache",
            Self::CLibrary if cfg!(target_env = "musl") => "musl",
            Self::CLibrary => "glibc",
            Self::Mimalloc => "mimalloc",
            #[cfg(not(target_env = "musl"))]
            Self::Jemalloc => "jemalloc",
            #[cfg(not(target_env = "musl"))]
            Self::Snmalloc => "snmalloc",
        }
    }

    /// Runs a job with this allocator; the job is compiled for it.
    pub(crate) fn run<J: Job>(self, job: J) -> J::Result {
        match self {
            Self::Tcache => job.run(&TCACHE),
            Self::CLibrary => job.run(&System),
            Self::Mimalloc => job.run(&mimalloc::MiMalloc),
            #[cfg(not(target_env = "musl"))]
            Self::Jemalloc => job.run(&tikv_jemallocator::Jemalloc),
            #[cfg(not(target_env = "musl"))]
            Self::Snmalloc => job.run(&snmalloc_rs::SnMalloc),
        }
    }
}

/// A job that runs with an allocator.
pub(crate) trait Job {
    type Result;
    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> Self::Result;
}

/// Settings of an expert for `tuned`: keep freed memory, regardless of its size. (jemalloc's name
/// is that of its Rust crate.)
const TUNING: [(&str, &str); 5] = [
    ("MALLOC_MMAP_MAX_", "0"),
    ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
    ("MALLOC_TOP_PAD_", "1048576"),
    ("_RJEM_MALLOC_CONF", "oversize_threshold:0,dirty_decay_ms:-1"),
    ("MIMALLOC_PURGE_DELAY", "-1"),
];

/// Returns the variables that the bench may set for a contender.
pub(crate) fn set_by_us() -> Vec<(&'static str, &'static str)> {
    TUNING.into_iter().chain([service::BOUND]).collect()
}

/// Contenders that the others are compared with, where they run.
const REFERENCES: [&str; 2] = ["floor", "tcache"];

/// A case: its name, and its number of bytes or elements.
type Case = (&'static str, u64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Returns all cases whose contenders share a process, with whether they are also measured tuned.
fn cases() -> Vec<(Case, bool)> {
    let pair = [64, KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 32 * MIB, 64 * MIB];
    let arrays = [KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB];
    let handover = [64, 4 * KIB, 64 * KIB, MIB];
    let mut cases: Vec<_> = pair.map(|bytes| (("pair", bytes), true)).into();
    for name in ["pair-64", "pair-128"] {
        cases.extend([KIB, 64 * KIB, MIB].map(|bytes| ((name, bytes), false)));
    }
    for name in ["add", "tree"] {
        cases.extend(arrays.map(|elements| ((name, elements), true)));
    }
    cases.extend(handover.map(|bytes| (("hand-over", bytes), false)));
    cases.push((("larson", 2), false));
    cases.push((("resident", 16 * MIB), false));
    cases
}

/// Name of the tcache of another build in the rows.
const BEFORE: &str = "tcache before";

/// Runs the processes of a case. After each of them it runs one of another build, of which only the
/// tcache counts.
fn in_turns(
    before: Option<&Path>,
    spread: &Spread,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Result<Vec<Vec<Row>>, BadInput> {
    let process = |at: usize| {
        let mut rows: Vec<Row> = spread.one(at, arguments, variables)?;
        if let Some(folder) = before {
            let program = folder.join("pool-bench");
            let others: Vec<Row> = spread.one_of(&program, at, arguments, variables)?;
            let tcache = others.into_iter().filter(|row| row.contender == Peer::Tcache.name());
            rows.extend(tcache.map(|row| Row { contender: BEFORE.into(), ..row }));
        }
        Ok(rows)
    };
    (0..spread.processes).map(process).collect()
}

/// The cases that are measured, and the folder of another build to compare with.
pub(crate) struct Chosen<'a> {
    cases: &'a [String],
    before: Option<&'a Path>,
}

impl<'a> Chosen<'a> {
    /// Chooses the named cases, or all cases if none is named.
    ///
    /// # Errors
    ///
    /// Fails if a name is not the name of a case.
    pub(crate) fn new(cases: &'a [String], before: Option<&'a Path>) -> Result<Self, BadInput> {
        let shared = self::cases().into_iter().map(|((name, _), _)| name);
        let mut known: Vec<&str> = shared.chain(["gcc_cc1"]).chain(clients::names()).collect();
        known.dedup();
        match cases.iter().find(|case| !known.contains(&case.as_str())) {
            Some(unknown) => {
                let expected = format!("one of {}", known.join(", "));
                Err(BadInput::new(format!("case `{unknown}`"), expected))
            }
            None => Ok(Self { cases, before }),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|case| case == name)
    }
}

/// Runs all cases, or a few small ones with `smoke`. `notes` lists what was left out.
///
/// # Errors
///
/// Fails if a case did not finish.
pub(crate) fn run(
    smoke: bool,
    chosen: &Chosen<'_>,
    spread: &Spread,
    notes: &mut Vec<String>,
    tick: impl Fn(&str),
) -> Result<Vec<Row>, BadInput> {
    let mut rows = Vec::new();
    let settings: &[bool] = if smoke { &[false] } else { &[false, true] };
    for ((name, size), may_tune) in cases() {
        for tuned in settings.iter().filter(|tuned| may_tune || !**tuned) {
            let suffix = if *tuned { ", tuned" } else { "" };
            tick(&format!("{name} {size}{suffix}"));
            if chosen.has(name) && (!smoke || size <= KIB) {
                let size = size.to_string();
                let mut arguments = vec!["peer", "host", name, &size];
                arguments.extend(smoke.then_some("--smoke"));
                let variables: &[(&str, &str)] = if *tuned { &TUNING } else { &[] };
                let processes = in_turns(chosen.before, spread, &arguments, variables)?;
                rows.extend(named(rounds::pool(processes, &REFERENCES), *tuned));
            }
        }
    }
    tick("gcc_cc1");
    if chosen.has("gcc_cc1") {
        rows.extend(named(one_by_one(smoke, spread)?, false));
    }
    rows.extend(clients::run(smoke, chosen, spread, notes, tick)?);
    Ok(rows)
}

/// Runs the cases that compare pools with global allocators.
///
/// # Errors
///
/// Fails if a case did not finish.
pub(crate) fn run_pools(
    smoke: bool,
    spread: &Spread,
    tick: impl Fn(&str),
) -> Result<Vec<Row>, BadInput> {
    let mut rows = Vec::new();
    for (job, size) in pools::CASES {
        tick(&format!("{job} {size}"));
        let size = size.to_string();
        let mut arguments = vec!["peer", "host", job, &size];
        arguments.extend(smoke.then_some("--smoke"));
        let processes = spread.run(&arguments, &[])?;
        rows.extend(rounds::pool(processes, &[pools::REFERENCE]));
    }
    Ok(rows)
}

fn named(rows: Vec<Row>, tuned: bool) -> impl Iterator<Item = Row> {
    let settings = if tuned { "tuned" } else { "default" };
    rows.into_iter().map(move |row| Row { settings: settings.into(), ..row })
}

/// Runs a recorded program with each allocator in separate processes.
///
/// Resident bytes belong to a process. The allocators take turns, in random order within each round
/// of processes.
fn one_by_one(smoke: bool, spread: &Spread) -> Result<Vec<Row>, BadInput> {
    let (mut rounds, mut orders) = (Vec::new(), Orders::new(spread.seed));
    for at in 0..spread.processes {
        let mut round: Vec<Row> = Vec::new();
        for peer in orders.next(Peer::ALL.len()) {
            let peer = peer.to_string();
            let mut arguments = vec!["peer", "host", "gcc_cc1", &peer];
            arguments.extend(smoke.then_some("--smoke"));
            round.extend(spread.one::<Row>(at, &arguments, &[])?);
        }
        let place = |row: &Row| Peer::ALL.iter().position(|peer| peer.name() == row.contender);
        round.sort_by_key(place);
        rounds.push(round);
    }
    Ok(rounds::pool(rounds, &REFERENCES))
}

/// Returns how many steps [`run`] reports.
pub(crate) fn steps() -> u64 {
    let shared: u64 = cases().iter().map(|(_, tuned)| 1 + u64::from(*tuned)).sum();
    shared + 1 + clients::STEPS
}

/// Returns how many steps [`run_pools`] reports.
pub(crate) fn steps_of_pools() -> u64 {
    pools::CASES.len() as u64
}

/// Runs one case in this process.
///
/// # Errors
///
/// Fails if the case is unknown, or if the trace cannot be read.
pub(crate) fn case(
    root: &Path,
    name: &str,
    size: u64,
    process: &Process,
) -> Result<Vec<Row>, BadInput> {
    let count = usize::try_from(size).unwrap_or(usize::MAX);
    match name {
        "pair" => Ok(pair::run(name, count, 8, process)),
        "pair-64" => Ok(pair::run(name, count, 64, process)),
        "pair-128" => Ok(pair::run(name, count, 128, process)),
        "add" | "tree" => Ok(arrays::run(name, count, process)),
        "hand-over" => Ok(threads::hand_over(count, process)),
        "larson" => Ok(threads::larson(process)),
        job if pools::CASES.iter().any(|(known, _)| *known == job) => {
            Ok(pools::run(job, count, process))
        }
        "resident" => Ok(arrays::resident(count)),
        case if service::has(case) => {
            Ok(service::case(case, Peer::ALL[count % Peer::ALL.len()], process))
        }
        "gcc_cc1" => {
            let peer = Peer::ALL[count % Peer::ALL.len()];
            replayed::run(&root.join("traces/gcc_cc1.ptrace.csv.zst"), peer, process)
        }
        _ => Err(BadInput::new(format!("case `{name}`"), "a name that `bench --peers` prints")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_case_is_named_beside_those_that_there_are() {
        let named = |case: &str| Chosen::new(&[case.to_owned()], None).map(|_| ());
        let bad = named("pear").unwrap_err().to_string();
        assert!(bad.contains("case `pear`") && bad.contains("pair, pair-64"), "{bad}");
        assert!(named("gray-scott").is_ok());
    }
}
