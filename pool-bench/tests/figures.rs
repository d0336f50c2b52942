//! The bundled traces, replayed: the figures of an independent simulator, within 2 %.
//!
//! The figures are those of a survey that preceded this project; it simulated the same policies
//! with code of its own.
#![expect(clippy::unwrap_used, reason = "tests")]

use bucketpool::CachedLimit;
use pool_bench::backend::Backend;
use pool_bench::replay::{Outcome, Settings, replay};
use pool_bench::{spec, trace};
use std::path::Path;

fn replayed(name: &str, policy: &str, cached_limit: Option<CachedLimit>) -> Outcome {
    let file = format!("{}/../traces/{name}.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    let settings = Settings { backend: Backend::Sim, cached_limit, capacity: None };
    replay(&trace, &spec::list(policy).unwrap()[0], settings).unwrap()
}

fn over_live(outcome: &Outcome) -> f64 {
    outcome.reserved_peak_bytes as f64 / outcome.live_peak_bytes as f64
}

#[test]
fn peaks_and_hits_agree_with_an_independent_simulator() {
    // trace, policy, peak reserved over live peak, hits in per cent
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
    // Smallest capacities of the survey: with idle blocks given back, exact sizes need no more
    // than what is alive.
    let file = format!("{}/../traces/gpt2_train.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    let trace = trace::read(Path::new(&file)).unwrap();
    let capacity = trace.live_peak_bytes + trace.live_peak_bytes / 100;
    let settings = Settings { backend: Backend::Sim, cached_limit: None, capacity: Some(capacity) };
    let outcome = replay(&trace, &spec::list("exact").unwrap()[0], settings).unwrap();
    assert_eq!(outcome.ooms, 0);
    assert!(outcome.reserved_peak_bytes <= capacity);
}
