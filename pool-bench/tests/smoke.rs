//! Each workload once, small: every contender returns what direct allocation returns.

use clap::ValueEnum;
use pool_bench::backend::Backend;
use pool_bench::contest::Terms;
use pool_bench::workload::Workload;
use pool_bench::{contest, spec};
use std::cell::Cell;

#[test]
fn every_workload_gives_every_contender_the_same_result() {
    let policies = spec::list("exact,pow2,tiered:4K+1M,fit:2").unwrap();
    for workload in Workload::value_variants() {
        let ticks = Cell::new(0);
        let tick = || ticks.set(ticks.get() + 1);
        let new = |name: &String| {
            contest::contender(*workload, Backend::HOST, name, true, false).unwrap()
        };
        let contenders = contest::names(Backend::HOST, &policies).iter().map(new).collect();
        let terms = Terms { from: 0, steps: 3, seed: 1 };
        let standings = contest::run(contenders, terms, tick);
        let standings = contest::pool(vec![standings.unwrap()]);
        assert_eq!((standings.len(), ticks.get()), (6, 3), "{workload:?}");
        let allocations = standings[0].allocations;
        assert!(standings.iter().all(|s| s.allocations == allocations && allocations > 0));
        assert!(standings.iter().all(|s| s.live_peak_bytes <= s.reserved_peak_bytes));
        assert!(standings[0].is_direct() && standings[1].is_control());
        assert!(standings.iter().all(|s| s.times_direct.is_some_and(|ratio| ratio.low > 0.0)));
    }
}

/// Rows that a short run of the command prints.
#[cfg(feature = "peers")]
#[expect(clippy::unwrap_used, reason = "a test")]
fn rows(arguments: &[&str]) -> Vec<pool_bench::rounds::Row> {
    let mut bench = std::process::Command::new(env!("CARGO_BIN_EXE_pool-bench"));
    bench.arg("bench").args(arguments).args(["--smoke", "--json"]);
    bench.env("BUCKETPOOL_ROOT", concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let output = bench.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Each case of `bench --peers` once, small: every allocator comes to its end in it.
#[cfg(feature = "peers")]
#[test]
fn every_peer_runs_every_small_case() {
    let rows = rows(&["--peers"]);
    for (case, allocators) in [("pair", 7), ("add", 6), ("hand-over", 5), ("gcc_cc1", 5)] {
        let names: std::collections::BTreeSet<_> =
            rows.iter().filter(|row| row.case == case).map(|row| &row.contender).collect();
        assert_eq!(names.len(), allocators, "{case}: {names:?}");
    }
    assert!(rows.iter().all(|row| row.ns > Some(0.0) && row.settings == "default"));
}

/// Each job of pools beside global allocators once, small.
#[cfg(feature = "peers")]
#[test]
fn pools_and_allocators_do_the_same_jobs() {
    let rows = rows(&["--peers", "pools"]);
    assert_eq!(rows.len(), 7 * 7, "seven cases of seven contenders");
    for row in &rows {
        let told = (row.ns > Some(0.0), row.times.contains_key("mimalloc"));
        assert_eq!(told, (true, true), "{} {} {}", row.case, row.size, row.contender);
    }
}

/// Each arena replays a part of a trace; ours reserve what the live bytes need, and so does each
/// peer.
#[cfg(feature = "peers")]
#[test]
fn every_arena_replays_a_trace() {
    let rows = rows(&["--peers", "arena"]);
    let (one, two): (Vec<_>, Vec<_>) = rows.iter().partition(|row| !row.case.contains("two"));
    assert_eq!((one.len(), two.len()), (8, 7));
    for row in &rows {
        assert_eq!((row.refused.as_deref(), row.rounds), (None, 2), "{}", row.contender);
    }
    for row in one {
        assert!(row.times.contains_key("offset-allocator") && row.reserved_peak_bytes > Some(0));
    }
    assert!(two.iter().all(|row| row.times.contains_key("offset-allocator, mutex")));
}

/// A variable that changes an allocator is told and reaches no contender.
#[test]
fn a_stale_variable_is_told_and_reaches_no_contender() {
    let run = |arguments: &[&str]| {
        let mut bench = std::process::Command::new(env!("CARGO_BIN_EXE_pool-bench"));
        bench.args(arguments).env("MALLOC_MMAP_MAX_", "0").env("GLIBC_TUNABLES", "a=1");
        let output = bench.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let workload = ["--workload", "equal", "--backend", "host", "--smoke"];
    let (code, told) = run(&[&["bench", "--policy", "exact"], &workload[..]].concat());
    assert_eq!(code, Some(0), "{told}");
    let expected = "removed from every contender: GLIBC_TUNABLES=a=1, MALLOC_MMAP_MAX_=0";
    assert!(told.contains(expected), "{told}");
    // A contender's own process refuses to run beside one.
    let (code, told) = run(&[&["contest", "--contender", "exact"], &workload[..]].concat());
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("environment variable GLIBC_TUNABLES=a=1; expected none"), "{told}");
}
