//! Real programs under each allocator: training with candle on sequences of varying length, arrow's
//! builders, and Gray-Scott with ndarray. They are a program by themselves (`peers/clients`), which
//! xtask builds.

use super::{BEFORE, Chosen, Row};
use crate::apart::Spread;
use crate::input::BadInput;
use crate::rounds;
use crate::statistics::Orders;
use crate::{environment, statistics};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;

/// How many steps [`run`] tells.
pub(super) const STEPS: u64 = CASES.len() as u64;
/// The program's names of cases, and what they are.
const CASES: [(&str, &str); 3] = [
    ("candle", "candle, training on sequences of varying length"),
    ("arrow", "arrow, builders of columns"),
    ("gray-scott", "ndarray, a step of Gray-Scott again and again"),
];
/// The program's names of allocators.
const ALLOCATORS: [&str; 4] = ["tcache", "glibc", "mimalloc", "jemalloc"];
/// Rounds; each allocator has a process in each.
const ROUNDS: usize = 5;
/// Where xtask says the program is.
const PROGRAM: &str = "BUCKETPOOL_CLIENTS";

/// The line that the program prints.
#[derive(Deserialize)]
struct Told {
    cpu_ns: f64,
    resident_peak_bytes: u64,
}

/// The names of the cases.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|(name, _)| *name)
}

/// Runs each case under each allocator, in random order within each round.
///
/// # Errors
///
/// A process that fails.
pub(super) fn run(
    smoke: bool,
    chosen: &Chosen<'_>,
    spread: &Spread,
    notes: &mut Vec<String>,
    tick: impl Fn(&str),
) -> Result<Vec<Row>, BadInput> {
    let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else {
        notes.push(
            "left out: candle, arrow and Gray-Scott, since their program was not built".into(),
        );
        return Ok(Vec::new());
    };
    let mut contenders: Vec<(&str, &str, PathBuf)> =
        ALLOCATORS.iter().map(|name| (*name, *name, program.clone())).collect();
    if let Some(folder) = chosen.before {
        contenders.push((BEFORE, "tcache", folder.join("bench-clients")));
    }
    let mut rows = Vec::new();
    for (name, case) in CASES {
        tick(name);
        if !chosen.has(name) {
            continue;
        }
        let (mut orders, mut drawn) = (Orders::new(spread.seed), Vec::new());
        let mut samples = vec![Vec::new(); contenders.len()];
        let mut resident = vec![Vec::new(); contenders.len()];
        for _ in 0..if smoke { 1 } else { ROUNDS } {
            let order = orders.next(contenders.len());
            for at in &order {
                let (_, allocator, program) = &contenders[*at];
                let told = one(program, name, allocator, smoke)?;
                // A process has one sample, so each round is a process.
                samples[*at].push(vec![Some(told.cpu_ns)]);
                resident[*at].push(told.resident_peak_bytes as f64);
            }
            drawn.push(vec![order.iter().map(ToString::to_string).collect()]);
        }
        let row = |(at, samples): (usize, Vec<Vec<Option<f64>>>)| Row {
            case: case.into(),
            settings: "default".into(),
            contender: contenders[at].0.into(),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
            resident_peak_bytes: Some(statistics::median(&resident[at]) as u64),
            orders: if at == 0 { drawn.clone() } else { Vec::new() },
            samples,
            ..Row::default()
        };
        let case: Vec<Row> = samples.into_iter().enumerate().map(row).collect();
        rows.extend(rounds::pool(vec![case], &["tcache", "mimalloc", BEFORE]));
    }
    Ok(rows)
}

fn one(program: &PathBuf, case: &str, allocator: &str, smoke: bool) -> Result<Told, BadInput> {
    let failed = |why: String| {
        BadInput::new(format!("{case} under {allocator}: {why}"), "a run without failures")
    };
    let mut child = Command::new(program);
    child
        .env("BENCH_ALLOCATOR", allocator)
        .env("RAYON_NUM_THREADS", "1")
        .args([case, allocator])
        .args(smoke.then_some("--smoke"));
    let output = environment::clean(&mut child).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}
