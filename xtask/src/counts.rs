//! `bench --counts`: what threads hand to each other, beside its snapshot. The counts are the same
//! in each run, so any difference is one of the code.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The counts that are checked in, below the root.
const SNAPSHOT: &str = "pool-bench/counts.jsonl";
/// The name of a row, and what is counted in it.
const NAME: [&str; 2] = ["case", "contender"];
const COUNTED: [&str; 5] = ["transfers", "looks", "failed_looks", "device_calls", "barriers"];

/// Counts, and compares with the snapshot or writes it with `--update`.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    let update = match further {
        [] => false,
        [flag] if flag == "--update" => true,
        [other, ..] => {
            eprintln!("error: `{other}` behind `bench --counts`; expected --update, or nothing");
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    let counted = build(root).and_then(|program| {
        // A variable of the user would change what the tcache does.
        let mut counting = Command::new(&program);
        counting.arg("counts").env_remove("BUCKETPOOL_HOST");
        let output = counting.output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("`pool-bench counts`: {}", output.status)),
        }
    });
    let now = match counted {
        Ok(text) => text,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    };
    if update && let Err(error) = fs::write(root.join(SNAPSHOT), &now) {
        eprintln!("error: {SNAPSHOT}: {error}");
        return ExitCode::FAILURE;
    }
    let before = fs::read_to_string(root.join(SNAPSHOT)).unwrap_or_default();
    let faults = differences(&before, &now);
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        println!("counts of {} rows are those of {SNAPSHOT}", now.lines().count());
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "error: {} counts differ from {SNAPSHOT}; if the change is meant, `cargo xtask bench \
         --counts --update`",
        faults.len()
    );
    ExitCode::FAILURE
}

/// Builds the program that counts. Returns its path. Its flags build everything anew, elsewhere.
pub(crate) fn build(root: &Path) -> Result<PathBuf, String> {
    let target = root.join("target/counts");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "pool-bench", "--bin", "pool-bench"]);
    cargo.arg("--manifest-path").arg(root.join("Cargo.toml"));
    cargo.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "--cfg pool_counts");
    match cargo.status() {
        Ok(status) if status.success() => Ok(target.join("debug/pool-bench")),
        _ => Err("the build that counts failed; the compiler says why above".into()),
    }
}

/// Each count that differs, and each row that only one of the two has.
fn differences(before: &str, now: &str) -> Vec<String> {
    let rows = |text: &str| -> Vec<Value> {
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let (before, now) = (rows(before), rows(now));
    let is_same = |a: &Value, b: &Value| NAME.iter().all(|key| a[*key] == b[*key]);
    let name =
        |row: &Value| NAME.map(|key| row[key].as_str().unwrap_or_default().to_owned()).join(", ");
    let mut faults = Vec::new();
    for row in &now {
        let Some(old) = before.iter().find(|old| is_same(old, row)) else {
            faults.push(format!("{}: the snapshot has no such row", name(row)));
            continue;
        };
        for key in COUNTED.into_iter().filter(|key| old[*key] != row[*key]) {
            faults.push(format!("{}: {key} {} per 1000, was {}", name(row), row[key], old[key]));
        }
    }
    let gone = before.iter().filter(|old| !now.iter().any(|row| is_same(old, row)));
    faults.extend(gone.map(|old| format!("{}: only the snapshot has this row", name(old))));
    faults
}

#[cfg(test)]
mod tests {
    use super::differences;

    #[test]
    fn each_count_that_differs_is_named() {
        let row = |contender: &str, transfers: f64| {
            format!(
                "{{\"case\":\"own\",\"contender\":\"{contender}\",\"transfers\":{transfers},\
                 \"looks\":0.0,\"failed_looks\":0.0,\"device_calls\":1.5,\"barriers\":0.0}}\n"
            )
        };
        let before = [row("pow2", 2.25), row("exact", 3.0)].concat();
        assert_eq!(differences(&before, &before), Vec::<String>::new());
        let now = [row("pow2", 2.5), row("fit", 3.0)].concat();
        let expected = [
            "own, pow2: transfers 2.5 per 1000, was 2.25",
            "own, fit: the snapshot has no such row",
            "own, exact: only the snapshot has this row",
        ];
        assert_eq!(differences(&before, &now), expected);
    }
}
