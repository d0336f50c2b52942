//! Tables of `bench --peers applications`.

use super::{row, table};
use crate::rounds::Row;
use crate::statistics::Ratio;

/// The malloc that the others are compared with.
const GLIBC: &str = "glibc";
/// The malloc whose losses come first.
const OURS: &str = "bucketpool";

/// A table for each measure, in the order of the rows: an application a line, how many times as much
/// as with glibc each malloc took, and what glibc took. The rows in which ours took the most come
/// first.
#[must_use]
pub fn tables(rows: &[Row]) -> Vec<String> {
    let mut measures: Vec<&str> = Vec::new();
    for (_, measure) in rows.iter().filter_map(|row| row.case.rsplit_once(", ")) {
        if !measures.contains(&measure) {
            measures.push(measure);
        }
    }
    measures.into_iter().map(|measure| table_of(measure, rows)).collect()
}

fn table_of(measure: &str, rows: &[Row]) -> String {
    let of_measure: Vec<(&str, &Row)> = rows
        .iter()
        .filter_map(|row| Some((row.case.rsplit_once(", ")?, row)))
        .filter(|((_, other), _)| *other == measure)
        .map(|((application, _), row)| (application, row))
        .collect();
    let (mut applications, mut contenders) = (Vec::new(), Vec::new());
    for (application, row) in &of_measure {
        if !applications.contains(application) {
            applications.push(*application);
        }
        if !contenders.contains(&row.contender.as_str()) && row.contender != GLIBC {
            contenders.push(row.contender.as_str());
        }
    }
    let find = |application: &str, contender: &str| {
        let is_it = |it: &&(&str, &Row)| it.0 == application && it.1.contender == contender;
        of_measure.iter().find(is_it).map(|(_, row)| *row)
    };
    let ratio = |application: &str, contender: &str| -> Option<&Ratio> {
        find(application, contender)?.times.get(GLIBC)
    };
    let ours = |application: &str| ratio(application, OURS).map_or(f64::INFINITY, |it| it.median);
    applications.sort_by(|a, b| ours(b).total_cmp(&ours(a)));
    let mut columns = vec![measure];
    columns.extend(&contenders);
    columns.push(GLIBC);
    let mut table = table(&columns);
    for application in applications {
        let mut cells = vec![application.to_owned()];
        cells.extend(contenders.iter().map(|contender| {
            let text = match ratio(application, contender) {
                Some(ratio) if *contender == OURS => ratio.to_string(),
                Some(ratio) => format!("{:.2}", ratio.median),
                None => String::new(),
            };
            let refused = find(application, contender).and_then(|row| row.refused.as_deref());
            [text.as_str(), refused.unwrap_or_default()].join(" ").trim().to_owned()
        }));
        cells.push(find(application, GLIBC).map(absolute).unwrap_or_default());
        table.add_row(row(&cells.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    table.to_string()
}

/// The median of a row, with its unit.
fn absolute(row: &Row) -> String {
    match (row.ns, row.resident_peak_bytes) {
        (Some(ns), _) => format!("{:.2} s", ns / 1e9),
        (None, Some(bytes)) => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::tables;
    use crate::rounds::Row;
    use crate::statistics::Ratio;

    fn one(case: &str, contender: &str, median: f64) -> Row {
        let ratio = Ratio { median, low: median - 0.1, high: median + 0.1 };
        Row {
            case: case.into(),
            contender: contender.into(),
            ns: case.ends_with("time").then_some(median * 1e9),
            resident_peak_bytes: case.ends_with("peak").then_some(3 << 20),
            times: [("glibc".to_owned(), ratio)].into(),
            ..Row::default()
        }
    }

    #[test]
    fn rows_that_ours_loses_come_first_in_a_table_for_each_measure() {
        let mut rows = Vec::new();
        for (name, ours) in [("nginx", 0.9), ("redis", 1.3)] {
            for measure in ["CPU time", "peak"] {
                let case = format!("{name}, {measure}");
                rows.push(one(&case, "bucketpool", ours));
                rows.push(one(&case, "glibc", 1.0));
                rows.push(one(&case, "jemalloc", 0.5));
            }
        }
        rows[5].times.clear();
        rows[5].refused = Some("a run failed".into());
        insta::assert_snapshot!(tables(&rows).join("\n\n"));
    }
}
