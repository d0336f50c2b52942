use super::*;
use crate::backend::Backend;
use crate::replay::OnStreams;
use crate::workload::Workload;

fn outcome(trace: &str, policy: &str) -> Outcome {
    Outcome {
        trace: trace.into(),
        policy: policy.into(),
        backend: Backend::Sim,
        cached_limit: "25%".into(),
        ops: 35264,
        allocations: 17694,
        live_peak_bytes: 194_000_000,
        reserved_peak_bytes: 231_000_000,
        hits: 16000,
        misses: 1690,
        bypasses: 3,
        ooms: 1,
        hit_rate: 16000.0 / 17694.0,
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
fn standings_are_a_table() {
    let standing = Standing {
        workload: Workload::SmallTensors,
        policy: "fit:2".into(),
        backend: Backend::Host,
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
        live_peak_bytes: 1_000_000,
        reserved_peak_bytes: 1_555_000,
        times_direct: 2.345,
        times_direct_error: 0.021,
    };
    let idle = Standing { live_peak_bytes: 0, policy: "direct".into(), ..standing.clone() };
    insta::assert_snapshot!(standings(&[standing, idle]));
}

#[test]
fn json_has_every_field_of_the_contract() {
    let json = serde_json::to_string_pretty(&outcome("resnet18_train", "exact")).unwrap();
    insta::assert_snapshot!(json);
}
