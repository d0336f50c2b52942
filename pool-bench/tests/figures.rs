//! The bundled traces, replayed: figures within 2 % of those of an independent simulator.
//!
//! The expected figures come from a survey that preceded this project. The survey simulated the
//! same policies with independent code.
#![expect(clippy::unwrap_used, reason = "tests")]

use bucketpool::limits::CachedLimit;
use pool_bench::backend::Backend;
use pool_bench::pass::InTurns;
use pool_bench::replay::{Outcome, Settings, replay};
use pool_bench::streams::{self, Arrangement};
use pool_bench::{spec, trace};
use std::path::Path;

fn replayed(name: &str, policy: &str, cached_limit: Option<CachedLimit>) -> Outcome {
    let file = format!("{}/../traces/{name}.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    let settings = Settings { backend: Backend::SIM, cached_limit, capacity: None, lanes: None };
    replay(&trace, &spec::list(policy).unwrap()[0], settings).unwrap()
}

fn over_live(outcome: &Outcome) -> f64 {
    outcome.reserved_peak_bytes as f64 / outcome.live_peak_bytes as f64
}

#[test]
fn peaks_and_hits_agree_with_an_independent_simulator() {
    // Trace, policy, `peak reserved / live peak`, hits in per cent.
    let expected = [
        ("resnet18_train", "exact", 1.86, 97.7),
        ("resnet18_train", "pow2", 2.66, 98.1),
        ("resnet18_train", "fit:2", 1.47, 98.2),
        ("gpt2_train", "exact", 4.92, 88.9),
        ("gpt2_train", "pow2", 2.46, 96.2),
        ("gpt2_train", "fit:2", 2.11, 95.5),
        ("bert_embed", "exact", 4.18, 92.1),
        ("bert_embed", "pow2", 2.32, 97.9),
        ("bert_embed", "fit:2", 1.66, 97.9),
        ("numpy_lidar", "exact", 43.2, 98.7),
        ("numpy_lidar", "pow2", 2.33, 99.9),
        ("numpy_lidar", "fit:2", 3.22, 99.8),
        ("gcc_cc1", "exact", 1.93, 83.8),
        ("gcc_cc1", "pow2:min=16", 1.46, 86.8),
        ("gcc_cc1", "fit:2:round=16", 1.32, 86.9),
    ];
    for (name, policy, peak, hits) in expected {
        let outcome = replayed(name, policy, None);
        let (our_peak, our_hits) = (over_live(&outcome), 100.0 * outcome.hit_rate);
        assert!((our_peak / peak - 1.0).abs() < 0.02, "{name} {policy}: {our_peak} for {peak}");
        assert!((our_hits / hits - 1.0).abs() < 0.02, "{name} {policy}: {our_hits} % for {hits} %");
    }
}

#[test]
fn a_quarter_of_the_peak_is_cache_enough() {
    for name in ["resnet18_train", "gpt2_train", "bert_embed", "numpy_lidar"] {
        let outcome = replayed(name, "fit:2", Some(CachedLimit::OfPeak(0.25)));
        assert!(over_live(&outcome) <= 1.25, "{name}: {}", over_live(&outcome));
        assert!(outcome.hit_rate > 0.85, "{name}: {}", outcome.hit_rate);
    }
}

#[test]
fn the_live_peak_survives_a_device_of_little_more() {
    // Smallest capacities of the survey: if cached blocks are given back, exact sizes need no more
    // memory than the live bytes.
    let file = format!("{}/../traces/gpt2_train.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    let capacity = trace.live_peak_bytes + trace.live_peak_bytes / 100;
    let settings = Settings {
        backend: Backend::SIM,
        cached_limit: None,
        capacity: Some(capacity),
        lanes: None,
    };
    let outcome = replay(&trace, &spec::list("exact").unwrap()[0], settings).unwrap();
    assert_eq!(outcome.ooms, 0);
    assert!(outcome.reserved_peak_bytes <= capacity);
}

/// Returns figures of a policy over the tensor traces.
///
/// The figures are the geometric mean of `reserved / live peak`, the worst of them, and the device
/// calls per 1000 allocations of all traces together, and the handles that they touch.
fn over_the_tensor_traces(policy: &str) -> (f64, f64, [f64; 2]) {
    let traces = ["resnet18_train", "gpt2_train", "bert_embed", "numpy_lidar"];
    let outcomes = traces.map(|name| replayed(name, policy, None));
    let mean = outcomes.iter().map(|o| over_live(o).ln()).sum::<f64>() / 4.0;
    let worst = outcomes.iter().map(over_live).fold(0.0, f64::max);
    let calls: u64 = outcomes.iter().map(|o| o.device_allocations + o.device_frees).sum();
    let handles: u64 = outcomes.iter().map(|o| o.device_handles).sum();
    let allocations: u64 = outcomes.iter().map(|o| o.allocations).sum();
    (mean.exp(), worst, [calls, handles].map(|count| 1000.0 * count as f64 / allocations as f64))
}

#[test]
fn an_arena_holds_little_more_than_what_is_alive() {
    // Policy, then upper bounds: geometric mean, worst, calls and handles per 1000
    // allocations.
    let expected = [
        ("arena", 1.090, 1.30, [2.2, 600.0]),
        ("arena:pages=64K:slack=5%", 1.045, 1.10, [5.0, 600.0]),
        ("arena:pages=2M:slack=5%", 1.060, 1.15, [4.0, 20.0]),
        ("arena:pages=32M", 1.170, 1.40, [1.0, 1.0]),
    ];
    for (policy, mean, worst, calls) in expected {
        let (m, w, c) = over_the_tensor_traces(policy);
        let few = c[0] <= calls[0] && c[1] <= calls[1];
        assert!(m <= mean && w <= worst && few, "{policy}: {m} {w} {c:?}");
    }
}

#[test]
fn less_slack_is_less_memory_and_more_calls() {
    let curve = ["0%", "2%", "5%", "10%"]
        .map(|slack| over_the_tensor_traces(&format!("arena:pages=64K:slack={slack}")));
    for pair in curve.windows(2) {
        let ((less, _, more_calls), (more, _, less_calls)) = (pair[0], pair[1]);
        assert!(less < more && more_calls[0] > less_calls[0], "{curve:?}");
    }
}

#[test]
fn pytorchs_constants_agree_with_an_independent_simulator() {
    let expected = [
        ("resnet18_train", 1.21),
        ("gpt2_train", 1.19),
        ("bert_embed", 1.45),
        ("numpy_lidar", 1.98),
    ];
    for policy in ["arena:torch", "preset:caching"] {
        for (name, peak) in expected {
            let ours = over_live(&replayed(name, policy, None));
            assert!((ours / peak - 1.0).abs() < 0.02, "{name} {policy}: {ours} for {peak}");
        }
    }
}

#[test]
fn streams_share_an_arena_without_a_violation() {
    let file = format!("{}/../traces/bert_embed.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    let settings =
        Settings { backend: Backend::SIM, cached_limit: None, capacity: None, lanes: None };
    let spec = &spec::list("arena").unwrap()[0];
    for arrangement in Arrangement::ALL {
        let outcome = streams::replay(&trace, spec, settings, arrangement).unwrap();
        let on = outcome.streams.clone().unwrap();
        assert_eq!((on.violations, outcome.ooms), (0, 0), "{arrangement:?}");
        assert!(over_live(&outcome) < 1.2, "{arrangement:?}: {}", over_live(&outcome));
        let one = arrangement == Arrangement::OneStream;
        assert_eq!((on.streams, on.waits == 0), if one { (1, true) } else { (3, false) });
    }
}

#[test]
fn lanes_take_the_same_turns_for_the_same_seed() {
    let file = format!("{}/../traces/bert_embed.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    let with = |lanes| {
        let settings =
            Settings { backend: Backend::SIM, cached_limit: None, capacity: None, lanes };
        let outcome = replay(&trace, &spec::list("exact").unwrap()[0], settings).unwrap();
        assert_eq!((outcome.ooms, outcome.hits + outcome.misses), (0, outcome.allocations));
        (outcome.hits, outcome.reserved_peak_bytes)
    };
    let threads = |threads| Some(InTurns { threads, seed: 1, shards: None });
    assert_eq!(with(threads(8)), with(threads(8)));
    let one = with(None);
    assert_eq!(with(threads(1)), one, "a thread's turns are its steps");
    assert!(with(threads(8)).0 <= one.0);
}

/// Eight threads that take turns, and four shards of host memory: under each policy the pool takes at
/// most half as much again as one shard, and a block of the largest size for each shard.
#[test]
fn several_shards_take_the_memory_of_one_under_each_policy() {
    let file = format!("{}/../traces/bert_embed.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    let all = "exact,pow2,tiered:4K+64K+1M+16M,fit:1.25,fit:2,arena,arena:torch,arena:pages=64K,\
               arena:pages=64K:slack=5%,arena:round=64,preset:tile_pipeline,preset:embedding,\
               preset:ndarray,preset:small_tensors,preset:caching";
    for spec in spec::list(all).unwrap() {
        for (limit, seed) in [(None, 1), (Some(CachedLimit::OfPeak(0.25)), 2)] {
            let lanes = Some(InTurns { threads: 8, seed, shards: Some(4) });
            let settings =
                Settings { backend: Backend::HOST, cached_limit: limit, capacity: None, lanes };
            let outcome = replay(&trace, &spec, settings).unwrap();
            let of_one = outcome.reserved_peak_of_one_shard_bytes.unwrap();
            let most = of_one + of_one / 2 + 4 * trace.largest.0;
            let reserved = outcome.reserved_peak_bytes;
            assert!(reserved <= most, "{}, {limit:?}: {reserved} for {of_one}", spec.text);
        }
    }
}
