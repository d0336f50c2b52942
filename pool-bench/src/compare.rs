//! Two records of the same command: whether one repeats the other.
//!
//! The rule: a cell is a ratio with its interval. Two cells disagree if each median lies outside
//! the other's interval. A record repeats another if at most a tenth of the cells disagree.

use crate::input::BadInput;
use crate::statistics::Ratio;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The share of cells that may disagree.
const MOST: f64 = 0.1;
/// Fields that say which cell it is.
const NAMES: [&str; 7] = ["workload", "case", "size", "settings", "contender", "policy", "backend"];

/// Compares two files.
///
/// # Errors
///
/// A file that is no record, or records without a common cell.
pub fn records(a: &Path, b: &Path) -> Result<String, BadInput> {
    let (of_a, of_b) = (command(a)?, command(b)?);
    if of_a != of_b {
        let what = format!("records of `{of_a}` and of `{of_b}`");
        return Err(BadInput::new(what, "two of the same command"));
    }
    let (a, b) = (cells(a)?, cells(b)?);
    let common: Vec<(&String, &Ratio, &Ratio)> =
        a.iter().filter_map(|(name, a)| Some((name, a, b.get(name)?))).collect();
    if common.is_empty() {
        let what = "two records without a common cell";
        return Err(BadInput::new(what, "records of the same command"));
    }
    let disagree =
        |(_, a, b): &&(&String, &Ratio, &Ratio)| !a.holds(b.median) && !b.holds(a.median);
    let apart: Vec<_> = common.iter().filter(disagree).collect();
    let mut text = String::new();
    for (name, a, b) in &apart {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}: {a} and {b}");
    }
    let alone = a.len() + b.len() - 2 * common.len();
    if alone > 0 {
        let _ = writeln!(text, "{alone} cells stand in one of the records only");
    }
    let share = apart.len() as f64 / common.len() as f64;
    let verdict = if share <= MOST { "the second repeats the first" } else { "NOT repeated" };
    let _ = write!(
        text,
        "{} of {} cells disagree ({:.1} %, at most {:.0} % may): {verdict}",
        apart.len(),
        common.len(),
        100.0 * share,
        100.0 * MOST
    );
    Ok(text)
}

/// The command in the first line of a record.
fn command(file: &Path) -> Result<String, BadInput> {
    let bad = |why: String| BadInput::new(format!("{}: {why}", file.display()), "a record");
    let text = fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
    let head: Value = serde_json::from_str(text.lines().next().unwrap_or_default())
        .map_err(|error| bad(error.to_string()))?;
    Ok(head["command"].as_str().unwrap_or_default().to_owned())
}

/// The ratios of a record by name, those of a contender to itself left out.
fn cells(file: &Path) -> Result<BTreeMap<String, Ratio>, BadInput> {
    let bad = |why: String| BadInput::new(format!("{}: {why}", file.display()), "a record");
    let text = fs::read_to_string(file).map_err(|error| bad(error.to_string()))?;
    let mut cells = BTreeMap::new();
    for line in text.lines().skip(1) {
        let object: Value = serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
        let named = NAMES.iter().filter_map(|name| match object.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        });
        let name = named.collect::<Vec<_>>().join(", ");
        let direct = object.get("times_direct").map(|ratio| ("direct", ratio));
        let times = object.get("times").and_then(Value::as_object);
        let times = times.into_iter().flatten().map(|(to, ratio)| (to.as_str(), ratio));
        for (to, ratio) in direct.into_iter().chain(times) {
            let Ok(ratio) = serde_json::from_value::<Ratio>(ratio.clone()) else { continue };
            if ratio != (Ratio { median: 1.0, low: 1.0, high: 1.0 }) {
                cells.insert(format!("{name} over {to}"), ratio);
            }
        }
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, ratios: &[(f64, f64, f64)]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("bucketpool-{}-{name}", std::process::id()));
        let row = |(at, (median, low, high)): (usize, &(f64, f64, f64))| {
            serde_json::json!({
                "case": "pair", "size": at, "contender": "tcache",
                "times": {"floor": {"median": median, "low": low, "high": high}},
            })
            .to_string()
        };
        let lines: Vec<String> = ratios.iter().enumerate().map(row).collect();
        fs::write(&path, format!("{{}}\n{}\n", lines.join("\n"))).unwrap();
        path
    }

    #[test]
    fn cells_disagree_if_each_median_lies_outside_the_others_interval() {
        let a = record("a", &[(2.0, 1.9, 2.1), (3.0, 2.9, 3.1), (4.0, 3.0, 5.0)]);
        let b = record("b", &[(2.05, 2.0, 2.2), (4.0, 3.9, 4.1), (5.5, 3.5, 6.0)]);
        let said = records(&a, &b).unwrap();
        let expected = "pair, 1, tcache over floor: 3.00 [2.90, 3.10] and 4.00 [3.90, 4.10]\n\
                        1 of 3 cells disagree (33.3 %, at most 10 % may): NOT repeated";
        assert_eq!(said, expected);
        let said = records(&a, &a).unwrap();
        assert!(
            said.ends_with("(0.0 %, at most 10 % may): the second repeats the first"),
            "{said}"
        );
        for file in [a, b] {
            fs::remove_file(file).unwrap();
        }
    }
}
