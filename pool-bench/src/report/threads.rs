//! Tables of `bench --threads`.

use super::{row, table};
use crate::rounds::Row;
use serde_json::Value;
use std::collections::BTreeSet;

/// Nanoseconds of an operation on its thread: a table for each load, contenders by numbers of
/// threads. In brackets: how many times as long as on one thread. Below each load of pools, what they
/// reserve.
#[must_use]
pub fn times(rows: &[Row]) -> Vec<String> {
    let mut cases: Vec<&String> = rows.iter().map(|row| &row.case).collect();
    cases.dedup();
    let tables = |case: &String| [Some(times_of(case, rows)), reserved_of(case, rows)];
    cases.into_iter().flat_map(tables).flatten().collect()
}

/// What pools reserve on several threads, as a multiple of what one shard does in the same run.
fn reserved_of(case: &str, rows: &[Row]) -> Option<String> {
    let over_one = |row: &Row| {
        let one = row.reserved_peak_of_one_shard_bytes? as f64;
        Some(row.reserved_peak_bytes? as f64 / one)
    };
    let cell = |row: &Row| over_one(row).map(|over| format!("{over:.2}"));
    let table = by_threads(case, rows, |row, _| cell(row));
    let any = rows.iter().any(|row| row.case == case && over_one(row).is_some());
    any.then(|| format!("{case}: reserved, times as much as a pool of one shard\n\n{table}"))
}

fn times_of(case: &str, rows: &[Row]) -> String {
    let cell = |row: &Row, first: &Row| match (row.ns, first.ns) {
        (Some(ns), Some(alone)) if row.size > first.size => {
            Some(format!("{ns:.1} ({:.1}x)", ns / alone))
        }
        (Some(ns), _) => Some(format!("{ns:.1}")),
        (None, _) => None,
    };
    let table = by_threads(case, rows, cell);
    format!("{case}: ns of an operation on its thread\n\n{table}")
}

/// A table of one load: a line for each contender, a column for each number of threads. `cell` gets
/// a row, and that of the contender on the fewest threads.
fn by_threads(
    case: &str,
    rows: &[Row],
    cell: impl Fn(&Row, &Row) -> Option<String>,
) -> comfy_table::Table {
    let of_case: Vec<&Row> = rows.iter().filter(|row| row.case == case).collect();
    let numbers: BTreeSet<u64> = of_case.iter().map(|row| row.size).collect();
    let mut columns = vec!["contender".to_owned()];
    columns.extend(numbers.iter().map(|threads| match threads {
        1 => "1 thread".into(),
        threads => format!("{threads} threads"),
    }));
    let mut table = table(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for first in of_case.iter().filter(|row| Some(&row.size) == numbers.first()) {
        let text = |threads: &u64| {
            let is_it = |row: &&&Row| row.contender == first.contender && row.size == *threads;
            of_case.iter().find(is_it).and_then(|row| cell(row, first)).unwrap_or_default()
        };
        let mut cells = vec![first.contender.clone()];
        cells.extend(numbers.iter().map(text));
        table.add_row(row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    table
}

/// A table for each kind of counts, per 1000 operations on eight threads.
#[must_use]
pub fn counts(lines: &[Value]) -> Vec<String> {
    let (calls, counted): (Vec<&Value>, Vec<&Value>) =
        lines.iter().partition(|line| line["system_calls_per_1000"].is_object());
    let mut tables = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number =
        |value: &Value| value.as_f64().map_or_else(String::new, |number| format!("{number:.1}"));
    if !counted.is_empty() {
        let keys = ["transfers", "looks", "failed_looks", "device_calls", "barriers"];
        let names = [
            "load",
            "contender",
            "transfers",
            "looks",
            "found nothing",
            "device calls",
            "membarrier",
        ];
        let mut table = table(&names);
        for line in counted {
            let mut cells = vec![text(&line["case"]), text(&line["contender"])];
            cells.extend(keys.map(|key| number(&line[key])));
            table.add_row(row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        tables.push(format!("per 1000 operations of eight threads that take turns\n\n{table}"));
    }
    if !calls.is_empty() {
        let keys: BTreeSet<&String> = calls
            .iter()
            .filter_map(|line| line["system_calls_per_1000"].as_object())
            .flat_map(serde_json::Map::keys)
            .collect();
        let mut names = vec!["load", "contender"];
        names.extend(keys.iter().map(|key| key.as_str()));
        let mut table = table(&names);
        for line in calls {
            let mut cells = vec![text(&line["case"]), text(&line["contender"])];
            cells.extend(
                keys.iter().map(|key| number(&line["system_calls_per_1000"][key.as_str()])),
            );
            table.add_row(row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        let title =
            "system calls per 1000 operations of eight threads that run at once (told, not judged)";
        tables.push(format!("{title}\n\n{table}"));
    }
    tables
}
