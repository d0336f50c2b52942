//! Contenders beside each other in cases: what a round of each took, over what the first took in
//! the same round.

use crate::contest::quantile;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// One contender in one case; one line of `--json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the documentation; records/README.md tells them")]
pub struct Row {
    pub case: String,
    pub peer: String,
    pub rounds: usize,
    /// Nanoseconds of a pair, of an operation, or of the whole, as the case says: the median.
    pub ns: f64,
    /// This over what the first contender took, within each round: the median, and half the
    /// distance between the quartiles.
    pub times: f64,
    pub times_error: f64,
    pub reserved_peak_bytes: u64,
    /// The most requested bytes alive at once; 0 where that is not the question.
    pub live_peak_bytes: u64,
    /// The most page faults of the whole process in a round, where that is the question.
    pub page_faults: Option<u64>,
    /// Why there is no figure; empty if there is one.
    pub refused: String,
}

impl Row {
    /// What a contender came to, given its rounds and those of the first. Rounds that were refused
    /// are `None`.
    #[must_use]
    pub fn new(case: &str, peer: &str, ns: &[Option<f64>], first: &[Option<f64>]) -> Self {
        let both = ns.iter().zip(first).filter_map(|(ns, first)| ns.zip(*first));
        let mut times: Vec<f64> = both.map(|(ns, first)| ns / first).collect();
        let mut ns: Vec<f64> = ns.iter().copied().flatten().collect();
        let spread = (quantile(&mut times, 0.25), quantile(&mut times, 0.75));
        Self {
            case: case.to_owned(),
            peer: peer.to_owned(),
            rounds: ns.len(),
            ns: quantile(&mut ns, 0.5),
            times: quantile(&mut times, 0.5),
            times_error: (spread.1 - spread.0) / 2.0,
            reserved_peak_bytes: 0,
            live_peak_bytes: 0,
            page_faults: None,
            refused: String::new(),
        }
    }
}

/// The rows as tables, one for each case.
#[must_use]
pub fn report(rows: &[Row]) -> String {
    let mut text = String::new();
    for case in rows.chunk_by(|a, b| a.case == b.case) {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header(["", "ns", "times the first", "reserved / live", "page faults"]);
        for row in case {
            let reserved = row.reserved_peak_bytes as f64 / row.live_peak_bytes as f64;
            let figures = if row.refused.is_empty() {
                [format!("{:.1}", row.ns), format!("{:.2} +-{:.2}", row.times, row.times_error)]
            } else {
                [row.refused.clone(), String::new()]
            };
            let reserved =
                if reserved.is_normal() { format!("{reserved:.3}") } else { String::new() };
            let faults = row.page_faults.map(|faults| faults.to_string()).unwrap_or_default();
            let last = [reserved, faults];
            table.add_row([row.peer.clone()].into_iter().chain(figures).chain(last));
        }
        let _ = writeln!(text, "{}\n\n{table}\n", case[0].case);
    }
    text
}
