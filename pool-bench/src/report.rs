//! Tables that people read.

use crate::contest::Standing;
use crate::replay::Outcome;
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
    for o in outcomes {
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
