//! The slowest of ten million operations on the simulated device: random sizes, and random buffers
//! among those that live.
//!
//! Five runs of the same operations. Of each operation the fastest run counts, since what else the
//! machine does only adds: between two readings of a clock alone it takes up to a millisecond on a
//! virtual machine. So the wall clock will do, which is an upper bound of the thread's CPU time and
//! costs less to read.
//!
//! `cargo xtask record cargo bench -p pool-bench --bench worst`
#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use bucketpool::sim::SimDevice;
use bucketpool::{BucketPool, ZeroPolicy};
use comfy_table::{Table, presets};
use pool_bench::machine::timed_wall;
use pool_bench::spec;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const POLICIES: &str = "arena,arena:pages=64K:slack=5%,preset:caching";
const OPERATIONS: usize = 10_000_000;
const RUNS: u32 = 5;
const SEED: u64 = 1;
/// Buffers that live at most.
const LIVE: usize = 4096;
/// The largest request is 2 to this power, in bytes, and each power is as likely.
const LARGEST_BITS: u32 = 21;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let smoke = !std::env::args().any(|arg| arg == "--bench");
    let (operations, runs) = if smoke { (10_000, 1) } else { (OPERATIONS, RUNS) };
    let mut table = Table::new();
    let columns = ["policy", "allocation, us", "free, us", "99.99 %, us", "reading the clock, us"];
    table.load_preset(presets::ASCII_MARKDOWN).set_header(columns);
    for policy in spec::list(POLICIES)? {
        let (mut fastest, mut clock) = (vec![u32::MAX; operations], vec![u32::MAX; operations]);
        let mut kinds = Vec::new();
        for _ in 0..runs {
            let pool = policy.builder(SimDevice::new()).zero(ZeroPolicy::Never).build();
            kinds = run(&pool, &mut fastest);
            for best in &mut clock {
                keep(best, timed_wall(|| ()).1);
            }
        }
        let of_kind = |kind| fastest.iter().zip(&kinds).filter(move |(_, is)| **is == kind);
        let slowest = |kind| of_kind(kind).map(|(ns, _)| *ns).max().unwrap_or(0);
        let (allocation, free) = (slowest(Kind::Allocation), slowest(Kind::Free));
        let read = clock.iter().copied().max().unwrap_or(0);
        fastest.sort_unstable();
        let most = fastest[operations - 1 - operations / 10_000];
        let figures =
            [allocation, free, most, read].map(|ns| format!("{:.1}", f64::from(ns) / 1e3));
        table.add_row([policy.text.clone()].into_iter().chain(figures));
    }
    println!("{operations} operations, the fastest of {runs} runs of each; the slowest of them\n");
    println!("{table}");
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Allocation,
    Free,
}

fn run(pool: &BucketPool<SimDevice>, fastest: &mut [u32]) -> Vec<Kind> {
    let mut random = SmallRng::seed_from_u64(SEED);
    let mut live = Vec::with_capacity(LIVE);
    let operation = |best: &mut u32| {
        if live.is_empty() || live.len() < LIVE && random.random_bool(0.55) {
            let bits = random.random_range(0..=LARGEST_BITS);
            let bytes = random.random_range(1..=1_u64 << bits);
            let (buffer, ns) = timed_wall(|| pool.allocate(bytes));
            keep(best, ns);
            live.extend(buffer);
            return Kind::Allocation;
        }
        let buffer = live.swap_remove(random.random_range(0..live.len()));
        keep(best, timed_wall(|| drop(buffer)).1);
        Kind::Free
    };
    fastest.iter_mut().map(operation).collect()
}

fn keep(best: &mut u32, ns: u64) {
    *best = u32::try_from(ns).unwrap_or(u32::MAX).min(*best);
}
