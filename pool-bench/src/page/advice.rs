//! The section of a page for advice.

use super::{Axis, Bar, Column, PageBlock, Section, rounded};
use crate::advise::{Advice, Advised, Bounds, CALLS_MOST};
use serde_json::{Value, json};

/// The advice: memory against device calls, and all figures.
#[must_use]
pub fn advice(advised: &Advised) -> Section {
    let blocks =
        vec![few_calls(&advised.advice), advised_figures(&advised.advice), bounds(advised)];
    Section { title: "Advice".into(), text: advised.choice.sentence(), blocks }
}

fn few_calls(advice: &[Advice]) -> PageBlock {
    let short = |policy: &str| match policy.split_once(':') {
        Some(("tiered", _)) => "tiered, learned".to_owned(),
        _ => policy.to_owned(),
    };
    let bar = |one: &Advice| Bar {
        group: one.trace.clone(),
        name: match one.cached_limit.as_str() {
            "none" => short(&one.policy),
            limit => format!("{}, {limit}", short(&one.policy)),
        },
        value: one.over_live,
        low: None,
        high: None,
    };
    let few = advice.iter().filter(|one| one.calls_per_1000 <= CALLS_MOST);
    PageBlock::Bars {
        title: "Policies with few device calls: reserved peak over live peak".into(),
        caption: "Only policies with at most 10 device calls per 1000 allocations. 1 is the least \
                  that any policy can need."
            .into(),
        value: Axis::new("reserved peak / live peak", ""),
        reference: Some(1.0),
        log: true,
        bars: few.map(bar).collect(),
    }
}

fn advised_figures(advice: &[Advice]) -> PageBlock {
    let row = |one: &Advice| {
        vec![
            json!(one.trace),
            json!(one.policy),
            json!(one.cached_limit),
            rounded(one.over_live, 3),
            rounded(one.calls_per_1000, 1),
            rounded(one.handles_per_1000, 1),
            one.capacity_over_live.map_or(Value::Null, |over| rounded(over, 3)),
            json!(one.by),
        ]
    };
    PageBlock::Table {
        title: "All policies".into(),
        caption: "Calls per 1000 allocations: where a range of pages is one call, and where each \
                  page is one. Capacity is the smallest device without a refused request, over \
                  the live peak."
            .into(),
        columns: vec![
            Column::text("trace"),
            Column::text("policy"),
            Column::text("cached limit"),
            Column::number("over live", ""),
            Column::number("calls/1000", ""),
            Column::number("handles/1000", ""),
            Column::number("capacity", ""),
            Column::text("by"),
        ],
        rows: advice.iter().map(row).collect(),
    }
}

fn bounds(advised: &Advised) -> PageBlock {
    let row = |one: &Bounds| {
        vec![
            json!(one.trace),
            json!(one.live_peak_bytes),
            rounded(one.plan_bytes as f64 / one.live_peak_bytes.max(1) as f64, 3),
            rounded(one.second_half_over_pow2, 3),
            rounded(one.whole_over_pow2, 3),
        ]
    };
    PageBlock::Table {
        title: "What can be had".into(),
        caption: "The plan knows all of the trace beforehand. The last columns are learned \
                  classes, from the first half of the traces, over powers of two."
            .into(),
        columns: vec![
            Column::text("trace"),
            Column::number("live peak", "bytes"),
            Column::number("plan over live", ""),
            Column::number("second half over pow2", ""),
            Column::number("whole over pow2", ""),
        ],
        rows: advised.bounds.iter().map(row).collect(),
    }
}
