//! Tables that people read.

use crate::contest::Standing;
use crate::replay::Outcome;
use crate::rounds::Row;
use bucketpool::Bytes;
use comfy_table::{Cell, CellAlignment, Table, presets};

/// Replays, one row each.
#[must_use]
pub fn replays(outcomes: &[Outcome]) -> String {
    let mut table = table(&[
        "trace",
        "policy",
        "on",
        "idle bound",
        "reserved peak",
        "over live",
        "hit rate",
        "past pool",
        "OOM",
        "calls/1000",
        "ns/op",
    ]);
    for o in outcomes.iter().filter(|o| o.streams.is_none()) {
        table.add_row(row(&[
            &o.trace,
            &o.policy,
            &o.backend.name(),
            &o.cached_limit,
            &Bytes(o.reserved_peak_bytes).to_string(),
            &reserved_over_live(o.reserved_peak_bytes, o.live_peak_bytes),
            &percent(o.hit_rate),
            &o.bypasses.to_string(),
            &o.ooms.to_string(),
            &calls_per_1000(o.device_allocations + o.device_frees, o.allocations),
            &format!("{:.0}", o.ns_per_op),
        ]));
    }
    table.to_string()
}

/// Policies over all their traces, the least memory first: the geometric mean of reserved over live
/// peak, and device calls pooled.
#[must_use]
pub fn policies(outcomes: &[Outcome]) -> String {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for o in outcomes.iter().filter(|o| o.streams.is_none() && o.live_peak_bytes > 0) {
        if !names.contains(&(&o.policy, &o.cached_limit)) {
            names.push((&o.policy, &o.cached_limit));
        }
    }
    let mut rows: Vec<(f64, [String; 5])> = Vec::new();
    for (policy, limit) in names {
        let of: Vec<&Outcome> =
            outcomes.iter().filter(|o| o.policy == policy && o.cached_limit == limit).collect();
        let ratios = of.iter().map(|o| o.reserved_peak_bytes as f64 / o.live_peak_bytes as f64);
        let (logs, worst) =
            ratios.fold((0.0, 0.0_f64), |(sum, worst), ratio| (sum + ratio.ln(), worst.max(ratio)));
        let mean = (logs / of.len() as f64).exp();
        let calls = of.iter().map(|o| o.device_allocations + o.device_frees).sum();
        let allocations = of.iter().map(|o| o.allocations).sum();
        let (mean_text, worst) = (format!("{mean:.3}"), format!("{worst:.3}"));
        let calls = calls_per_1000(calls, allocations);
        rows.push((mean, [policy.into(), limit.into(), mean_text, worst, calls]));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut table = table(&["policy", "idle bound", "over live, mean", "worst", "calls/1000"]);
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
            &calls_per_1000(o.device_allocations + o.device_frees, o.allocations),
            &calls_per_1000(on.events, o.allocations),
            &calls_per_1000(on.waits, o.allocations),
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
        "over live",
        "times direct",
    ]);
    for s in standings {
        table.add_row(row(&[
            &s.workload.name(),
            &s.policy,
            &s.backend.name(),
            &format!("{:.0}", s.ns_per_op_p50),
            &format!("{:.0}", s.ns_per_op_p99),
            &percent(s.hit_rate),
            &calls_per_1000(s.device_allocations + s.device_frees, s.allocations),
            &reserved_over_live(s.reserved_peak_bytes, s.live_peak_bytes),
            &format!("{:.2} ±{:.2}", s.times_direct, s.times_direct_error),
        ]));
    }
    table.to_string()
}

/// Allocators case by case; how many times the floor, and the tcache.
#[must_use]
pub fn peers(rows: &[Row]) -> String {
    let mut table = table(&[
        "case",
        "allocator",
        "size",
        "settings",
        "ns",
        "times floor",
        "times tcache",
        "resident over live",
    ]);
    let times = |times: Option<f64>, error: Option<f64>| match times.zip(error) {
        Some((times, error)) => format!("{times:.2} ±{error:.2}"),
        None => "-".into(),
    };
    for r in rows {
        let resident = r.resident_peak_bytes.zip(r.live_peak_bytes);
        table.add_row(row(&[
            &r.case,
            &r.allocator,
            &r.size.to_string(),
            &r.settings,
            &format!("{:.1}", r.ns),
            &times(r.times_floor, r.times_floor_error),
            &times(r.times_tcache, r.times_tcache_error),
            &resident.map_or("-".into(), |(peak, live)| reserved_over_live(peak, live)),
        ]));
    }
    table.to_string()
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

fn calls_per_1000(calls: u64, allocations: u64) -> String {
    format!("{:.1}", 1000.0 * calls as f64 / allocations as f64)
}

#[cfg(test)]
mod tests;
