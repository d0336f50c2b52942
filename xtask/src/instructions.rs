//! `bench --instructions`: instructions of each hit path, counted by callgrind, beside a snapshot.
//! Counts repeat where times do not, so this is how small costs are judged on a busy machine.

use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The counts that are checked in, below the root.
const SNAPSHOT: &str = "pool-bench/instructions.json";
/// The page that shows them, and the head of its table.
const PAGE: &str = "docs/benchmarks.md";
const HEAD: &str = "| path | instructions |\n|---|---:|\n";
/// A path may take this many hundredths of its snapshot.
const MOST: u64 = 105;
/// How paths begin that only a build with wgpu has: their names.
const OF_WGPU: &str = "wgpu, ";
/// Pairs of the two runs whose difference is counted, so that start and end do not count.
const PAIRS: [u64; 2] = [2000, 4000];
/// Installs callgrind on Debian.
pub(crate) const CURE: &str = "apt-get install valgrind";

/// Counts, prints a table, and compares with the snapshot, or writes it with `--update`. wgpu takes minutes to
/// build, so its paths are counted with `--backend wgpu` alone, and stay as they are without.
pub(crate) fn run(root: &Path, program: &Path, further: &[String]) -> ExitCode {
    let (of_wgpu, further) = match further {
        [flag, name, rest @ ..] if flag == "--backend" && name == "wgpu" => (true, rest),
        all => (false, all),
    };
    let update = match further {
        [] => false,
        [flag] if flag == "--update" => true,
        [other, ..] => {
            eprintln!(
                "error: `{other}` behind `bench --instructions`; expected --backend wgpu, --update, or nothing"
            );
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    let file = root.join(SNAPSHOT);
    let before = read(&file);
    let mut counts = match count(program) {
        Ok(counts) => counts,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    };
    if !of_wgpu {
        counts.extend(before.clone().into_iter().filter(|(name, _)| name.starts_with(OF_WGPU)));
    }
    if update {
        let text = serde_json::to_string_pretty(&counts).unwrap_or_default();
        if let Err(error) = fs::write(&file, format!("{text}\n")) {
            eprintln!("error: {SNAPSHOT}: {error}");
            return ExitCode::FAILURE;
        }
        if let Err(error) = with_table(root, &counts)
            .and_then(|page| fs::write(root.join(PAGE), page).map_err(|error| error.to_string()))
        {
            eprintln!("error: {PAGE}: {error}");
            return ExitCode::FAILURE;
        }
    }
    let (table, faults) = compared(&counts, if update { &counts } else { &before });
    print!("{table}");
    for fault in &faults {
        eprintln!("error: {fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether callgrind can be run.
pub(crate) fn is_here() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|said| said.status.success())
}

fn count(program: &Path) -> Result<BTreeMap<String, u64>, String> {
    if !is_here() {
        return Err(format!("valgrind cannot be run; expected it to be installed: `{CURE}`"));
    }
    let listed = Command::new(program).arg("hit").output();
    let listed = listed.map_err(|error| format!("{}: {error}", program.display()))?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let count = |name: &str| {
        let [few, many] = PAIRS.map(|pairs| collected(program, name, pairs));
        let (few, many) = (few?, many?);
        Ok((name.to_owned(), many.saturating_sub(few) / (PAIRS[1] - PAIRS[0])))
    };
    names.lines().map(count).collect()
}

/// Instructions of a run.
fn collected(program: &Path, path: &str, pairs: u64) -> Result<u64, String> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    valgrind.args(["hit", path, &pairs.to_string()]);
    // Under Valgrind the tcache steps aside unless it is told to stay.
    for name in ["GLIBC_TUNABLES", "MALLOC_PERTURB_", "LD_PRELOAD"] {
        valgrind.env_remove(name);
    }
    let output = valgrind.env("BUCKETPOOL_HOST", "on").output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    count.filter(|_| output.status.success()).ok_or_else(|| format!("`{path}`: callgrind: {said}"))
}

/// What is wrong with the table of the page: it is that of the snapshot.
pub(crate) fn check_page(root: &Path) -> Vec<String> {
    let there = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    match with_table(root, &read(&root.join(SNAPSHOT))) {
        Ok(page) if page == there => Vec::new(),
        Ok(_) => vec![format!(
            "{PAGE}: the table of instructions is not {SNAPSHOT}; \
             `cargo xtask bench --instructions --update` writes both"
        )],
        Err(why) => vec![format!("{PAGE}: {why}")],
    }
}

/// The page with a table of these counts, the dearest path first.
fn with_table(root: &Path, counts: &BTreeMap<String, u64>) -> Result<String, String> {
    let page = fs::read_to_string(root.join(PAGE)).map_err(|error| error.to_string())?;
    let (before, rest) =
        page.split_once(HEAD).ok_or_else(|| format!("no table; expected the line {HEAD:?}"))?;
    let after: String =
        rest.split_inclusive('\n').skip_while(|line| line.starts_with('|')).collect();
    let mut rows: Vec<_> = counts.iter().collect();
    rows.sort_by_key(|(name, count)| (Reverse(**count), (*name).clone()));
    let row = |(name, count): &(&String, &u64)| format!("| {name} | {count} |\n");
    let rows = rows.iter().map(row).collect::<Vec<_>>().concat();
    Ok([before, HEAD, &rows, &after].concat())
}

fn read(file: &PathBuf) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let object: Value = serde_json::from_str(&text).unwrap_or_default();
    let counts = object.as_object().into_iter().flatten();
    counts.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect()
}

/// The table, and what is wrong: a path that takes more than it may, or that has no snapshot.
fn compared(
    counts: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> (String, Vec<String>) {
    let mut table = format!(
        "{:<34} {:>12} {:>9} {:>8}\n",
        "instructions of a pair", "now", "snapshot", "change"
    );
    let mut faults = Vec::new();
    let update = "`cargo xtask bench --instructions --update` writes a new one";
    for (name, now) in counts {
        let Some(then) = before.get(name) else {
            // Writing to a string does not fail.
            let _ = writeln!(table, "{name:<34} {now:>12} {:>9} {:>8}", "-", "-");
            faults.push(format!("`{name}` has no snapshot in {SNAPSHOT}; {update}"));
            continue;
        };
        let change = *now as f64 / (*then).max(1) as f64 - 1.0;
        let _ = writeln!(table, "{name:<34} {now:>12} {then:>9} {:>+7.1}%", 100.0 * change);
        if 100 * now > MOST * then {
            faults.push(format!(
                "`{name}` takes {now} instructions, {then} in {SNAPSHOT}; expected at most {} % \
                 more; {update}, if the cost is worth it",
                MOST - 100
            ));
        }
    }
    for gone in before.keys().filter(|name| !counts.contains_key(*name)) {
        faults.push(format!("`{gone}` stands in {SNAPSHOT} and is no path any more; {update}"));
    }
    (table, faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_five_in_a_hundred_is_a_fault_and_fewer_is_none() {
        let of = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
            pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let before = of(&[("a", 100), ("b", 100), ("c", 100)]);
        let (table, mut faults) =
            compared(&of(&[("a", 105), ("b", 106), ("c", 50), ("d", 9)]), &before);
        let before = of(&[("z", 1)]);
        faults.extend(compared(&of(&[]), &before).1);
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[2].starts_with("`z` stands in"), "{faults:?}");
        assert!(faults[0].starts_with("`b` takes 106 instructions, 100 in"), "{faults:?}");
        assert!(faults[1].starts_with("`d` has no snapshot"), "{faults:?}");
        assert!(table.contains("-50.0%"), "{table}");
    }
}
