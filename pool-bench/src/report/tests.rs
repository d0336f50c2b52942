use super::*;
use crate::backend::Backend;
use crate::replay::OnStreams;
use crate::statistics::Ratio;
use crate::workload::Workload;

fn outcome(trace: &str, policy: &str) -> Outcome {
    Outcome {
        trace: trace.into(),
        policy: policy.into(),
        backend: Backend::SIM,
        cached_limit: "25%".into(),
        ops: 35264,
        allocations: 17694,
        live_peak_bytes: 194_000_000,
        reserved_peak_bytes: 231_000_000,
        reserved_peak_of_one_shard_bytes: None,
        hits: 16000,
        misses: 1690,
        bypasses: 3,
        ooms: 1,
        evictions: 42,
        hit_rate: 16000.0 / 17694.0,
        device_handles: 2993,
        device_allocations: 1693,
        device_frees: 1300,
        ns_per_op: 66.4,
        streams: None,
    }
}

#[test]
fn policies_are_a_table_with_the_least_memory_first() {
    let small = Outcome { reserved_peak_bytes: 200_000_000, ..outcome("bert_embed", "arena") };
    let large = Outcome { reserved_peak_bytes: 400_000_000, ..outcome("gpt2_train", "arena") };
    let outcomes = [outcome("bert_embed", "exact"), outcome("gpt2_train", "exact"), small, large];
    insta::assert_snapshot!(policies(&outcomes));
}

#[test]
fn replays_on_streams_are_a_table() {
    let streams = Some(OnStreams {
        streams: 3,
        arrangement: "steal wait",
        events: 265,
        waits: 228,
        violations: 0,
    });
    insta::assert_snapshot!(on_streams(&[Outcome { streams, ..outcome("bert_embed", "arena") }]));
}

#[test]
fn replays_are_a_table() {
    let outcomes = [outcome("resnet18_train", "exact"), outcome("resnet18_train", "tiered:4K+16M")];
    insta::assert_snapshot!(replays(&outcomes));
}

#[test]
fn replays_with_several_shards_tell_the_memory_of_one() {
    let reserved_peak_of_one_shard_bytes = Some(210_000_000);
    let several =
        Outcome { reserved_peak_of_one_shard_bytes, ..outcome("resnet18_train", "exact") };
    insta::assert_snapshot!(replays(&[outcome("direct", "direct"), several]));
}

fn standing() -> Standing {
    Standing {
        workload: Workload::SmallTensors,
        policy: "fit:2".into(),
        backend: Backend::HOST,
        steps: 200,
        ops: 800_000,
        allocations: 400_000,
        hits: 399_640,
        misses: 360,
        bypasses: 0,
        ooms: 0,
        ns_per_op: 120.0,
        ns_per_op_p50: 115.4,
        ns_per_op_p99: 12_148.2,
        hit_rate: 0.9991,
        device_allocations: 400,
        device_frees: 12,
        device_handles: 412,
        live_peak_bytes: 1_000_000,
        reserved_peak_bytes: 1_555_000,
        evictions: 7,
        page_faults: 4096,
        processes: 3,
        times_direct: Some(Ratio { median: 2.345, low: 2.3, high: 2.41 }),
        samples: Vec::new(),
        orders: Vec::new(),
    }
}

#[test]
fn standings_are_a_table() {
    let standing = standing();
    let idle = Standing { live_peak_bytes: 0, policy: "direct".into(), ..standing.clone() };
    insta::assert_snapshot!(standings(&[standing, idle]));
}

#[test]
fn json_has_every_field_of_the_contract() {
    let json = serde_json::to_string_pretty(&outcome("resnet18_train", "exact")).unwrap();
    insta::assert_snapshot!(json);
}

#[test]
fn backends_stand_beside_each_other_and_a_sentence_says_what_to_take() {
    let on = |backend, policy: &str, times: f64, calls, reserved| Standing {
        backend,
        policy: policy.into(),
        times_direct: Some(Ratio { median: times, low: times * 0.98, high: times * 1.02 }),
        device_allocations: calls,
        device_frees: 0,
        reserved_peak_bytes: reserved,
        ..standing()
    };
    let wgpu = Backend::named("wgpu").unwrap();
    let all = [
        on(Backend::HOST, "direct", 1.0, 4000, 1_000_000),
        on(Backend::HOST, "control", 1.0, 4000, 1_000_000),
        on(Backend::HOST, "pow2", 12.3, 40, 2_400_000),
        on(Backend::HOST, "arena", 12.0, 40, 1_090_000),
        on(Backend::SIM, "direct", 1.0, 4000, 1_000_000),
        on(Backend::SIM, "pow2", 0.9, 40, 2_400_000),
        on(Backend::SIM, "arena", 0.5, 10, 1_090_000),
        on(wgpu, "direct", 1.0, 4000, 1_000_000),
        on(wgpu, "pow2", 17.7, 40, 2_400_000),
    ];
    insta::assert_snapshot!(across_backends(&all).join("\n\n"));
}

#[test]
fn contenders_are_a_table_for_each_case() {
    let row = |contender: &str, ns, low| Row {
        case: "pair".into(),
        size: 64,
        settings: "default".into(),
        contender: contender.into(),
        ns: Some(ns),
        times: [("floor".to_owned(), Ratio { median: low + 0.05, low, high: low + 0.1 })].into(),
        ..Row::default()
    };
    let refused = Row {
        ns: None,
        times: [].into(),
        refused: Some("no memory".into()),
        ..row("none", 0.0, 0.0)
    };
    let rows = [row("floor", 1.6, 0.95), row("tcache", 2.7, 1.6), refused];
    insta::assert_snapshot!(contenders(&rows).join("\n\n"));
}
