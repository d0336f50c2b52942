//! The section of a page for advice.

use super::{Axis, Bar, Column, PageBlock, Section, rounded};
use crate::advise::{Advice, Advised, Bounds, CALLS_MOST};
use serde_json::{Value, json};

/// The advice: memory against device calls, and all figures.
#[must_use]
pub fn advice(advised: &Advised) -> Section {
    let mut blocks: Vec<_> = few_calls(&advised.advice).into_iter().collect();
    blocks.extend([advised_figures(advised), bounds(advised)]);
    Section { title: "Advice".into(), text: advised.choice.sentence(), blocks }
}

/// `None` if no policy has few calls, as on a trace of a few allocations.
fn few_calls(advice: &[Advice]) -> Option<PageBlock> {
    let bar = |one: &Advice| Bar {
        group: one.trace.clone(),
        name: match one.cached_limit.as_str() {
            "none" => one.shown_policy(),
            limit => format!("{}, {limit}", one.shown_policy()),
        },
        value: one.over_live,
        note: format!("{:.1} calls/1000", one.calls_per_1000),
        ..Bar::default()
    };
    let mut few: Vec<_> = advice.iter().filter(|one| one.calls_per_1000 <= CALLS_MOST).collect();
    few.sort_by(|a, b| a.trace.cmp(&b.trace).then(a.over_live.total_cmp(&b.over_live)));
    (!few.is_empty()).then(|| PageBlock::Bars {
        title: "Policies with few device calls: reserved peak over live peak".into(),
        caption: "Only policies with at most 10 device calls per 1000 allocations. 1 is the least \
                  that any policy can need."
            .into(),
        value: Axis::new("reserved peak / live peak", ".3"),
        reference: Some(1.0),
        log: few.iter().any(|one| one.over_live > 8.0),
        bars: few.into_iter().map(bar).collect(),
    })
}

fn advised_figures(advised: &Advised) -> PageBlock {
    let choice = &advised.choice;
    let row = |one: &Advice| {
        let policy = match choice.is_of(one) {
            true => format!("{} (advised)", one.shown_policy()),
            false => one.shown_policy(),
        };
        vec![
            json!(policy),
            rounded(one.over_live, 3),
            rounded(one.calls_per_1000, 1),
            rounded(one.handles_per_1000, 1),
            json!(one.cached_limit),
            one.capacity_over_live.map_or(Value::Null, |over| rounded(over, 3)),
            json!(one.trace),
            json!(one.by),
        ]
    };
    let mut advice: Vec<_> = advised.advice.iter().collect();
    advice.sort_by(|a, b| a.trace.cmp(&b.trace).then(a.over_live.total_cmp(&b.over_live)));
    PageBlock::Table {
        title: "All policies".into(),
        caption: "Per 1000 allocations: calls of the device, and the handles that they made and \
                  freed, since one call may cover several pages with a handle each. Capacity, of \
                  the three best of each trace, is the smallest device without a refused request, \
                  over the live peak."
            .into(),
        columns: vec![
            Column::text("policy"),
            Column::number("over live", ".3"),
            Column::number("calls/1000", ".1"),
            Column::number("handles/1000", ".1"),
            Column::text("cached limit"),
            Column::number("capacity", ".3"),
            Column::text("trace"),
            Column::text("by"),
        ],
        rows: advice.into_iter().map(row).collect(),
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
