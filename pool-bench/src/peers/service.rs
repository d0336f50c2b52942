//! Allocators in long-running programs: beside parked threads, in the slowest of many calls, and
//! after the load has ended.
//!
//! Each allocator runs in its own processes, in random order, so that the resident memory and the
//! threads of one allocator do not affect the figures of the next.

mod idle;
mod parked;
mod worst;

use super::Peer;
use crate::apart::{Process, Spread};
use crate::input::BadInput;
use crate::rounds::{self, Row};
use crate::statistics::Orders;
use rand::RngExt;
use rand::rngs::SmallRng;
use std::alloc::Layout;

/// Names of the cases. [`run`] sets the environment variables of each.
const CASES: [&str; 5] = ["beside-parked", "worst", "freed-large", "idle", "asleep"];
/// Allocators whose slowest calls are measured. Each takes some minutes.
const WORST: &[Peer] = &[
    Peer::Tcache,
    #[cfg(not(target_env = "musl"))]
    Peer::Jemalloc,
];
/// Variable that limits the tcache's cached bytes, so that these cases fill the cache.
pub(super) const BOUND: (&str, &str) = ("BUCKETPOOL_HOST", "limit=64M");

/// Returns whether `name` is one of these cases.
pub(super) fn has(name: &str) -> bool {
    CASES.contains(&name)
}

/// Returns the number of steps that [`run`] reports.
pub(crate) fn steps() -> u64 {
    CASES.len() as u64
}

/// Runs all cases and returns their rows.
///
/// # Errors
///
/// Returns an error if the process of a case fails.
pub(crate) fn run(smoke: bool, spread: &Spread, tick: impl Fn(&str)) -> Result<Vec<Row>, BadInput> {
    let mut rows = Vec::new();
    for case in CASES {
        tick(case);
        let variables: &[(&str, &str)] = match case {
            "asleep" | "idle" => &[],
            _ => &[BOUND],
        };
        // A case that takes minutes has one process for each allocator. `worst` makes its five runs
        // inside that process.
        let processes = if case.contains("parked") { spread.processes } else { 1 };
        let peers: &[Peer] = if case == "worst" { WORST } else { Peer::ALL };
        let (mut rounds, mut orders) = (Vec::new(), Orders::new(spread.seed));
        for at in 0..processes {
            let mut round: Vec<Row> = Vec::new();
            for peer in orders.next(peers.len()) {
                let number = (peers[peer] as usize).to_string();
                let mut arguments = vec!["peer", "host", case, &number];
                arguments.extend(smoke.then_some("--smoke"));
                round.extend(spread.one::<Row>(at, &arguments, variables)?);
            }
            round.sort_by_key(|row| place(&row.contender));
            rounds.push(round);
        }
        rows.extend(rounds::pool(rounds, &["tcache", "tcache, alone"]));
    }
    Ok(rows)
}

/// Returns the position of a contender's allocator in [`Peer::ALL`].
fn place(contender: &str) -> usize {
    let is_of = |peer: &Peer| contender.starts_with(peer.name());
    Peer::ALL.iter().position(is_of).unwrap_or(usize::MAX)
}

/// Runs a case with one allocator in this process.
pub(super) fn case(name: &str, peer: Peer, process: &Process) -> Vec<Row> {
    match name {
        "beside-parked" => parked::run(peer, process),
        "worst" => worst::run(peer, process),
        "freed-large" => worst::free_large(peer, process),
        _ => idle::run(peer, name == "asleep", process),
    }
}

/// Returns a layout of random size from 64 to `2^bits` bytes. Each power of two is equally likely.
fn random_layout(random: &mut SmallRng, bits: u32) -> Layout {
    let bits = random.random_range(6..bits);
    let bytes = random.random_range(1_usize << bits..=2 << bits);
    Layout::from_size_align(bytes, 8).unwrap_or(Layout::new::<[u8; 64]>())
}
