//! Each workload once, small: every contender returns what direct allocation returns.

use clap::ValueEnum;
use pool_bench::backend::Backend;
use pool_bench::workload::Workload;
use pool_bench::{contest, spec};
use std::cell::Cell;

#[test]
fn every_workload_gives_every_contender_the_same_result() {
    let policies = spec::list("exact,pow2,tiered:4K+1M,fit:2").unwrap();
    for workload in Workload::value_variants() {
        let ticks = Cell::new(0);
        let standings =
            contest::run(*workload, Backend::Host, &policies, true, || ticks.set(ticks.get() + 1));
        let standings = standings.unwrap();
        assert_eq!((standings.len(), ticks.get()), (5, 3), "{workload:?}");
        let allocations = standings[0].allocations;
        assert!(standings.iter().all(|s| s.allocations == allocations && allocations > 0));
        assert!(standings.iter().all(|s| s.live_peak_bytes <= s.reserved_peak_bytes));
        assert!((standings[0].times_direct - 1.0).abs() < f64::EPSILON);
    }
}

/// Each case of `bench --peers` once, small: every allocator comes to its end in it.
#[cfg(feature = "peers")]
#[test]
fn every_peer_runs_every_small_case() {
    let mut bench = std::process::Command::new(env!("CARGO_BIN_EXE_pool-bench"));
    bench.args(["bench", "--peers", "--smoke", "--json"]);
    let output = bench.env("BUCKETPOOL_ROOT", concat!(env!("CARGO_MANIFEST_DIR"), "/..")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let rows: Vec<pool_bench::rounds::Row> =
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    for (case, allocators) in [("pair", 7), ("add", 6), ("hand-over", 5), ("gcc_cc1", 5)] {
        let names: std::collections::BTreeSet<_> =
            rows.iter().filter(|row| row.case == case).map(|row| &row.allocator).collect();
        assert_eq!(names.len(), allocators, "{case}: {names:?}");
    }
    assert!(rows.iter().all(|row| row.ns > 0.0 && row.settings == "default"));
}
