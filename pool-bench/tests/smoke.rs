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
