//! The allocators that a program could have instead of the tcache, measured in turns.
//!
//! Each case runs in a process of its own, since allocators learn, and in it all contenders take
//! turns. `default` are the settings that an allocator comes with, `tuned` those that somebody who
//! knows it would choose for large temporaries (`TUNING`).

mod arrays;
mod pair;
mod replayed;
mod switch;
mod threads;

use crate::input::BadInput;
use crate::rounds::Row;
use bucketpool::host::Tcache;
use std::alloc::{GlobalAlloc, System};
use std::path::Path;
use std::process::Command;

/// The tcache that is measured. The binary's own memory comes from [`System`], unless a case says
/// otherwise.
pub(crate) static TCACHE: Tcache = Tcache::new();

/// An allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Tcache,
    Glibc,
    Mimalloc,
    Jemalloc,
    Snmalloc,
}

impl Peer {
    pub(crate) const ALL: [Self; 5] =
        [Self::Tcache, Self::Glibc, Self::Mimalloc, Self::Jemalloc, Self::Snmalloc];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcache => "tcache",
            Self::Glibc => "glibc",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::Snmalloc => "snmalloc",
        }
    }

    /// Runs a job with this allocator, compiled for it.
    pub(crate) fn run<J: Job>(self, job: J) -> J::Result {
        match self {
            Self::Tcache => job.run(&TCACHE),
            Self::Glibc => job.run(&System),
            Self::Mimalloc => job.run(&mimalloc::MiMalloc),
            Self::Jemalloc => job.run(&tikv_jemallocator::Jemalloc),
            Self::Snmalloc => job.run(&snmalloc_rs::SnMalloc),
        }
    }
}

/// What is done with an allocator.
pub(crate) trait Job {
    type Result;
    fn run<A: GlobalAlloc + Sync>(self, allocator: &'static A) -> Self::Result;
}

/// What somebody would set who knows the allocators: keep what was freed, however large.
/// (jemalloc's name is that of its Rust crate.)
const TUNING: [(&str, &str); 5] = [
    ("MALLOC_MMAP_MAX_", "0"),
    ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
    ("MALLOC_TOP_PAD_", "1048576"),
    ("_RJEM_MALLOC_CONF", "oversize_threshold:0,dirty_decay_ms:-1"),
    ("MIMALLOC_PURGE_DELAY", "-1"),
];

/// A case: its name, and bytes or elements.
type Case = (&'static str, u64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// All cases, and whether they are measured tuned as well.
fn cases() -> Vec<(Case, bool)> {
    let pair = [64, KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 32 * MIB, 64 * MIB];
    let arrays = [KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB];
    let handover = [64, 4 * KIB, 64 * KIB, MIB];
    let mut cases: Vec<_> = pair.map(|bytes| (("pair", bytes), true)).into();
    for name in ["add", "tree"] {
        cases.extend(arrays.map(|elements| ((name, elements), true)));
    }
    cases.extend(handover.map(|bytes| (("hand-over", bytes), false)));
    cases.push((("larson", 2), false));
    cases.extend((0..5).map(|peer| (("gcc_cc1", peer), false)));
    cases.push((("resident", 16 * MIB), false));
    cases
}

/// Runs all cases, or a few small ones.
///
/// # Errors
///
/// A case that did not come to an end.
pub(crate) fn run(smoke: bool, tick: impl Fn(&str)) -> Result<Vec<Row>, BadInput> {
    let mut rows = Vec::new();
    let settings: &[bool] = if smoke { &[false] } else { &[false, true] };
    for (case, may_tune) in cases() {
        let small = case.1 <= KIB;
        for tuned in settings.iter().filter(|tuned| may_tune || !**tuned) {
            tick(&format!("{} {}{}", case.0, case.1, if *tuned { ", tuned" } else { "" }));
            if !smoke || small {
                rows.extend(apart(case, *tuned, smoke)?);
            }
        }
    }
    Ok(rows)
}

/// How many steps [`run`] says.
pub(crate) fn steps() -> u64 {
    cases().iter().map(|(_, tuned)| 1 + u64::from(*tuned)).sum()
}

/// A case in a process of its own.
fn apart((name, size): Case, tuned: bool, smoke: bool) -> Result<Vec<Row>, BadInput> {
    let failed = |why: String| {
        BadInput::new(format!("peers, {name} {size}: {why}"), "a run without failures")
    };
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut child = Command::new(program);
    child.args(["peer", name, &size.to_string()]);
    child.args(smoke.then_some("--smoke"));
    for (variable, _) in TUNING {
        child.env_remove(variable);
    }
    if tuned {
        child.envs(TUNING);
    }
    let output = child.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let rows: Result<Vec<Row>, _> = lines.map(serde_json::from_slice).collect();
    let mut rows = rows.map_err(|error| failed(error.to_string()))?;
    for row in &mut rows {
        row.settings = if tuned { "tuned" } else { "default" }.into();
    }
    Ok(rows)
}

/// Runs one case in this process.
///
/// # Errors
///
/// A case that nobody knows, or a trace that cannot be read.
pub(crate) fn case(root: &Path, name: &str, size: u64, smoke: bool) -> Result<Vec<Row>, BadInput> {
    let count = usize::try_from(size).unwrap_or(usize::MAX);
    match name {
        "pair" => Ok(pair::run(count, smoke)),
        "add" | "tree" => Ok(arrays::run(name, count, smoke)),
        "hand-over" => Ok(threads::hand_over(count, smoke)),
        "larson" => Ok(threads::larson(smoke)),
        "resident" => Ok(arrays::resident(count)),
        "gcc_cc1" => {
            let peer = Peer::ALL[count % Peer::ALL.len()];
            replayed::run(&root.join("traces/gcc_cc1.ptrace.csv.zst"), peer, smoke)
        }
        _ => Err(BadInput::new(format!("case `{name}`"), "a name that `bench --peers` prints")),
    }
}
