//! Tables that people read.

mod across;
pub mod applications;
pub mod threads;

pub use across::across_backends;

use crate::advise::Advised;
use crate::contest::Standing;
use crate::replay::Outcome;
use crate::rounds::Row;
use crate::statistics::geometric_mean;
use bucketpool::size::Bytes;
use comfy_table::{Cell, CellAlignment, Table, presets};
use std::cmp::Ordering::Equal;
use std::collections::BTreeMap;

/// Replays, one row each.
#[must_use]
pub fn replays(outcomes: &[Outcome]) -> String {
    let of_shards = outcomes.iter().any(|o| o.reserved_peak_of_one_shard_bytes.is_some());
    let mut columns = vec!["trace", "policy", "on", "cached limit", "reserved peak"];
    columns.extend(of_shards.then_some("of one shard"));
    columns.extend([
        "over live",
        "hit rate",
        "bypasses",
        "OOM",
        "evictions",
        "calls/1000",
        "handles/1000",
        "ns/op",
    ]);
    let mut table = table(&columns);
    for o in outcomes.iter().filter(|o| o.streams.is_none()) {
        let mut cells = vec![
            o.trace.clone(),
            o.policy.clone(),
            o.backend.name().into(),
            o.cached_limit.clone(),
            Bytes(o.reserved_peak_bytes).to_string(),
        ];
        let of_one = o.reserved_peak_of_one_shard_bytes;
        let of_one = || of_one.map(|one| reserved_over_live(o.reserved_peak_bytes, one));
        cells.extend(of_shards.then(|| of_one().unwrap_or_default()));
        cells.extend([
            reserved_over_live(o.reserved_peak_bytes, o.live_peak_bytes),
            percent(o.hit_rate),
            o.bypasses.to_string(),
            o.ooms.to_string(),
            o.evictions.to_string(),
            per_1000(o.device_allocations + o.device_frees, o.allocations),
            per_1000(o.device_handles, o.allocations),
            format!("{:.0}", o.ns_per_op),
        ]);
        table.add_row(row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    table.to_string()
}

/// Policies over all their traces on a backend, the least memory first: the geometric mean of
/// reserved over live peak, and device calls pooled.
#[must_use]
pub fn policies(outcomes: &[Outcome]) -> String {
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&Outcome>> = BTreeMap::new();
    for o in outcomes.iter().filter(|o| o.streams.is_none() && o.live_peak_bytes > 0) {
        groups.entry((&o.policy, o.backend.name(), &o.cached_limit)).or_default().push(o);
    }
    let mut rows: Vec<(f64, [String; 7])> = Vec::new();
    for ((policy, backend, limit), of) in groups {
        let ratios = || of.iter().map(|o| o.reserved_peak_bytes as f64 / o.live_peak_bytes as f64);
        let (mean, worst) = (geometric_mean(ratios()), ratios().fold(0.0, f64::max));
        let calls = of.iter().map(|o| o.device_allocations + o.device_frees).sum();
        let allocations = of.iter().map(|o| o.allocations).sum();
        let (mean_text, worst) = (format!("{mean:.3}"), format!("{worst:.3}"));
        let handles = per_1000(of.iter().map(|o| o.device_handles).sum(), allocations);
        let calls = per_1000(calls, allocations);
        let names = [policy, backend, limit].map(str::to_owned);
        let [policy, backend, limit] = names;
        rows.push((mean, [policy, backend, limit, mean_text, worst, calls, handles]));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let columns =
        ["policy", "on", "cached limit", "over live, mean", "worst", "calls/1000", "handles/1000"];
    let mut table = table(&columns);
    for (_, cells) in &rows {
        table.add_row(row(&cells.each_ref().map(String::as_str)));
    }
    table.to_string()
}

/// Replays on streams, one row each.
#[must_use]
pub fn on_streams(outcomes: &[Outcome]) -> String {
    let mut table = table(&[
        "trace",
        "policy",
        "streams",
        "who takes",
        "over live",
        "hit rate",
        "OOM",
        "calls/1000",
        "handles/1000",
        "events/1000",
        "waits/1000",
        "violations",
    ]);
    for (o, on) in outcomes.iter().filter_map(|o| Some((o, o.streams.as_ref()?))) {
        table.add_row(row(&[
            &o.trace,
            &o.policy,
            &on.streams.to_string(),
            on.arrangement,
            &reserved_over_live(o.reserved_peak_bytes, o.live_peak_bytes),
            &percent(o.hit_rate),
            &o.ooms.to_string(),
            &per_1000(o.device_allocations + o.device_frees, o.allocations),
            &per_1000(o.device_handles, o.allocations),
            &per_1000(on.events, o.allocations),
            &per_1000(on.waits, o.allocations),
            &on.violations.to_string(),
        ]));
    }
    table.to_string()
}

/// Workloads, one row for each contender.
#[must_use]
pub fn standings(standings: &[Standing]) -> String {
    let mut table = table(&[
        "workload",
        "policy",
        "on",
        "ns/op p50",
        "ns/op p99",
        "hit rate",
        "calls/1000",
        "handles/1000",
        "over live",
        "evictions",
        "page faults",
        "times as fast as direct",
    ]);
    for s in standings {
        table.add_row(row(&[
            &s.workload.name(),
            &s.policy,
            s.backend.name(),
            &format!("{:.0}", s.ns_per_op_p50),
            &format!("{:.0}", s.ns_per_op_p99),
            &percent(s.hit_rate),
            &per_1000(s.device_allocations + s.device_frees, s.allocations),
            &per_1000(s.device_handles, s.allocations),
            &reserved_over_live(s.reserved_peak_bytes, s.live_peak_bytes),
            &s.evictions.to_string(),
            &s.page_faults.to_string(),
            &s.times_direct.map_or("-".into(), |times| times.to_string()),
        ]));
    }
    table.to_string()
}

/// Contenders case by case, a table for each: nanoseconds, and how many times as long as each
/// reference.
#[must_use]
pub fn contenders(rows: &[Row]) -> Vec<String> {
    let same_case = |a: &Row, b: &Row| (&a.case, a.size) == (&b.case, b.size);
    rows.chunk_by(same_case).map(contenders_of).collect()
}

/// Contenders over all cases, where there are several and each was reserved memory in: geometric
/// means. `None` otherwise.
#[must_use]
pub fn over_cases(rows: &[Row]) -> Option<String> {
    let mut contenders: Vec<&str> = Vec::new();
    for row in rows {
        if !contenders.contains(&row.contender.as_str()) {
            contenders.push(&row.contender);
        }
    }
    let reference = rows.first()?.times.keys().next()?;
    // Cases with another reference, such as two threads, have a table of their own.
    let cases: Vec<&str> = rows
        .iter()
        .filter(|row| row.times.contains_key(reference))
        .map(|row| row.case.as_str())
        .collect();
    let is_beside = |row: &Row| cases.contains(&row.case.as_str());
    let mut table =
        table(&["contender, over all cases", "times as long", "reserved / live, mean", "worst"]);
    for contender in &contenders {
        let is_of = |row: &&Row| row.contender == **contender && is_beside(row);
        let of: Vec<&Row> = rows.iter().filter(is_of).collect();
        let times: Option<Vec<f64>> =
            of.iter().map(|row| Some(row.times.get(reference)?.median)).collect();
        let reserved: Option<Vec<f64>> = of
            .iter()
            .map(|row| Some(row.reserved_peak_bytes? as f64 / row.live_peak_bytes? as f64))
            .collect();
        let (times, reserved) = (times?, reserved?);
        if times.len() < 2 {
            return None;
        }
        table.add_row(row(&[
            contender,
            &format!("{:.2}", geometric_mean(times.into_iter())),
            &format!("{:.3}", geometric_mean(reserved.iter().copied())),
            &format!("{:.3}", reserved.iter().copied().fold(0.0, f64::max)),
        ]));
    }
    Some(table.to_string())
}

/// One case. Columns that no contender fills are left out.
fn contenders_of(case: &[Row]) -> String {
    let mut references: Vec<&String> = case.iter().flat_map(|row| row.times.keys()).collect();
    references.sort();
    references.dedup();
    let mut names = vec!["contender".to_owned(), "settings".to_owned(), "ns".to_owned()];
    names.extend(references.iter().map(|name| format!("times as long as {name}")));
    let last = ["reserved / live", "resident MiB", "page faults", "hits", "does not do"];
    names.extend(last.map(str::to_owned));
    let ratio = |most: Option<u64>, live: Option<u64>| match most.zip(live) {
        Some((most, live)) => reserved_over_live(most, live),
        None => String::new(),
    };
    let cells = |row: &Row| {
        let ns = row.ns.map(|ns| format!("{ns:.1}"));
        let refused = || row.refused.clone().unwrap_or_default();
        let mut cells = vec![row.contender.clone(), row.settings.clone()];
        cells.push(ns.unwrap_or_else(refused));
        let times = |name: &&String| row.times.get(*name).map(ToString::to_string);
        cells.extend(references.iter().map(|name| times(name).unwrap_or_default()));
        cells.push(ratio(row.reserved_peak_bytes, row.live_peak_bytes));
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        cells.push(row.resident_peak_bytes.map(mib).unwrap_or_default());
        cells.push(row.page_faults.map(|faults| faults.to_string()).unwrap_or_default());
        cells.push(row.hit_rate.map(percent).unwrap_or_default());
        cells.push(row.absent.clone());
        cells
    };
    let body: Vec<Vec<String>> = case.iter().map(cells).collect();
    let filled: Vec<bool> =
        (0..names.len()).map(|at| body.iter().any(|cells| !cells[at].is_empty())).collect();
    let kept = |cells: Vec<String>| -> Vec<String> {
        cells.into_iter().zip(&filled).filter(|(_, kept)| **kept).map(|(cell, _)| cell).collect()
    };
    let columns = kept(names);
    let mut table = table(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for cells in body {
        table.add_row(row(&kept(cells).iter().map(String::as_str).collect::<Vec<_>>()));
    }
    let Row { case, size, .. } = &case[0];
    let title = if *size == 0 { case.clone() } else { format!("{case}, {size}") };
    format!("{title}\n\n{table}")
}

fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(columns);
    for (at, column) in table.column_iter_mut().enumerate() {
        if at >= 2 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn row(cells: &[&str]) -> Vec<Cell> {
    cells.iter().map(Cell::new).collect()
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn reserved_over_live(reserved: u64, live: u64) -> String {
    if live == 0 { "-".into() } else { format!("{:.3}", reserved as f64 / live as f64) }
}

fn per_1000(count: u64, allocations: u64) -> String {
    format!("{:.1}", 1000.0 * count as f64 / allocations as f64)
}

#[cfg(test)]
mod tests;

/// The tables of `advise`, its sentence, and the configuration unless a file has it.
#[must_use]
pub fn advised(advised: &Advised, has_file: bool) -> String {
    let mut parts = advice(advised);
    parts.push(advised.choice.sentence());
    if !has_file {
        parts.push(advised.choice.toml().trim_end().to_owned());
    }
    parts.join("\n\n")
}

/// The policies of `advise` on each trace, the least memory first, and the bounds of the traces.
fn advice(advised: &Advised) -> Vec<String> {
    let mut policies = table(&[
        "trace",
        "policy",
        "cached limit",
        "over live",
        "calls/1000",
        "handles/1000",
        "capacity",
        "by",
    ]);
    let (mut rows, choice): (Vec<_>, _) = (advised.advice.iter().collect(), &advised.choice);
    rows.sort_by(|a, b| {
        (&a.trace, a.over_live).partial_cmp(&(&b.trace, b.over_live)).unwrap_or(Equal)
    });
    for one in rows {
        policies.add_row(row(&[
            &one.trace,
            &format!("{}{}", one.shown_policy(), if choice.is_of(one) { " <-" } else { "" }),
            &one.cached_limit,
            &format!("{:.3}", one.over_live),
            &format!("{:.1}", one.calls_per_1000),
            &format!("{:.1}", one.handles_per_1000),
            &one.capacity_over_live.map_or_else(String::new, |over| format!("{over:.3}")),
            one.by,
        ]));
    }
    let mut bounds =
        table(&["trace", "live peak", "plan over live", "classes over pow2, second half", "whole"]);
    for one in &advised.bounds {
        bounds.add_row(row(&[
            &one.trace,
            &Bytes(one.live_peak_bytes).to_string(),
            &reserved_over_live(one.plan_bytes, one.live_peak_bytes),
            &format!("{:.2}", one.second_half_over_pow2),
            &format!("{:.2}", one.whole_over_pow2),
        ]));
    }
    vec![policies.to_string(), LEGEND.into(), bounds.to_string(), BOUNDS_LEGEND.into()]
}

/// How the table of policies is read.
const LEGEND: &str = "over live: reserved peak over live peak. calls, handles: of the device, per 1000 \
                      allocations; one call may cover\nseveral pages with a handle each. capacity: \
                      the smallest device without a refusal, of the three best with few calls.\n\
                      <-: the policy to take.";
/// How the table of bounds is read.
const BOUNDS_LEGEND: &str = "plan over live: what a plan reserves that knows all of the trace beforehand. \
                             classes over pow2: size classes\nlearned from the first half of the \
                             trace, over powers of two, on its second half and on the whole.";
