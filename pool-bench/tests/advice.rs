//! The advice for the bundled traces.
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_bench::advise::{self, Advised, computed};
use pool_bench::backend::Backend;
use pool_bench::replay::{Settings, replay};
use pool_bench::statistics::geometric_mean;
use pool_bench::trace::{self, Trace};
use pool_bench::{spec, timeline};
use std::path::Path;

const TENSORS: [&str; 4] = ["resnet18_train", "gpt2_train", "bert_embed", "numpy_lidar"];

fn bundled(name: &str) -> Trace {
    let file = format!("{}/../traces/{name}.ptrace.csv.zst", env!("CARGO_MANIFEST_DIR"));
    trace::read(Path::new(&file)).unwrap()
}

fn advised(name: &str) -> Advised {
    advise::advise(&[bundled(name)], || {}).unwrap()
}

#[test]
fn what_is_computed_from_a_trace_is_what_a_replay_counts() {
    let settings =
        Settings { backend: Backend::SIM, cached_limit: None, capacity: None, lanes: None };
    for name in TENSORS.into_iter().chain(["gcc_cc1"]) {
        let trace = bundled(name);
        for spec in spec::list("exact,pow2,tiered:4K+16K+64K+256K+1M+4M+16M,tiered:1G").unwrap() {
            let predicted = computed(&spec.spec, &trace).unwrap();
            let outcome = replay(&trace, &spec, settings).unwrap();
            let counted = outcome.reserved_peak_bytes as f64;
            let off = (predicted.peak_bytes as f64 / counted - 1.0).abs();
            assert!(off < 0.01, "{name} {}: {} for {counted}", spec.text, predicted.peak_bytes);
            let calls = outcome.device_allocations + outcome.device_frees;
            assert_eq!(predicted.calls, calls, "{name} {}", spec.text);
        }
    }
}

#[test]
fn learned_classes_reserve_a_quarter_less_than_powers_of_two() {
    let over: Vec<f64> =
        TENSORS.iter().map(|name| advised(name).bounds[0].whole_over_pow2).collect();
    let mean = geometric_mean(over.iter().copied());
    assert!(mean <= 0.75 && over.iter().all(|over| *over <= 1.1), "{mean}: {over:?}");
}

#[test]
fn the_choice_is_close_to_the_live_peak_with_few_device_calls() {
    for name in TENSORS {
        let choice = advised(name).choice;
        let is_close = choice.over_live <= 1.06 && choice.calls_per_1000 <= 10.0;
        assert!(is_close, "{name}: {}", choice.sentence());
    }
}

/// The file says what the sentence says, and a pool can be built of it.
#[test]
fn the_configuration_is_that_of_the_choice() {
    use bucketpool::sim::SimDevice;
    let trace = bundled("bert_embed");
    let advised = advise::advise(std::slice::from_ref(&trace), || {}).unwrap();
    let config: bucketpool::config::PoolConfig = toml::from_str(&advised.choice.toml()).unwrap();
    let device = SimDevice::new();
    let pool = config.pool(device.clone()).unwrap();
    let mut slots: Vec<_> = std::iter::repeat_with(|| None).take(trace.slots).collect();
    for step in &trace.steps {
        match *step {
            trace::Step::Allocate { slot, bytes, .. } => {
                slots[slot as usize] = Some(pool.allocate(bytes).unwrap());
            }
            trace::Step::Free { slot, .. } => slots[slot as usize] = None,
            trace::Step::Use { .. } => {}
        }
    }
    let over = pool.stats().reserved_peak_bytes as f64 / trace.live_peak_bytes as f64;
    assert!((over / advised.choice.over_live - 1.0).abs() < 0.01, "{over}");
}

#[test]
fn no_plan_needs_less_than_what_is_live() {
    for name in TENSORS {
        let bounds = &advised(name).bounds[0];
        let over = bounds.plan_bytes as f64 / bounds.live_peak_bytes as f64;
        assert!((1.0..1.06).contains(&over), "{name}: {over}");
    }
}

#[test]
fn a_timeline_has_the_peaks_of_its_replay() {
    let trace = bundled("bert_embed");
    let spec = spec::list("arena").unwrap().remove(0);
    let timeline = timeline::watch(&trace, &spec, None);
    let settings =
        Settings { backend: Backend::SIM, cached_limit: None, capacity: None, lanes: None };
    let outcome = replay(&trace, &spec, settings).unwrap();
    assert_eq!(timeline.live.iter().max(), Some(&trace.live_peak_bytes));
    assert_eq!(timeline.reserved.iter().max(), Some(&outcome.reserved_peak_bytes));
    assert!(timeline.quantile(0.5) <= timeline.quantile(1.0) && !timeline.maps.is_empty());
}

/// A few allocations teach no classes and repay no device call, and are no error.
#[test]
fn a_trace_of_a_few_allocations_gets_advice_too() {
    for count in [1, 3, 40] {
        let operation = |id| {
            let bytes = 1000 + 100 * id;
            pool_trace::Operation {
                kind: pool_trace::Kind::Allocate,
                id,
                bytes,
                ..Default::default()
            }
        };
        let log = pool_trace::Log {
            operations: (0..count).map(operation).collect(),
            ..Default::default()
        };
        let choice = advise::advise(&[Trace::of(&log).unwrap()], || {}).unwrap().choice;
        let sentence = choice.sentence();
        assert!(sentence.ends_with("1000 allocations, the fewest of all."), "{sentence}");
    }
}
