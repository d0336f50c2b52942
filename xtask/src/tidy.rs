//! `cargo xtask tidy`: rules that no compiler checks. Each fault says how to comply.

use crate::{commits, instructions, layers, links, shape, size, source};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options behind `tidy`.
struct Options {
    /// A figure in README must have a record of today's source.
    release: bool,
    /// The commits whose messages are checked, as git names a range.
    commits: Option<String>,
}

/// Prints what is wrong; fails if anything is.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    let options = match options(further) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    let mut faults = [
        layers::check(root),
        dead_files(root),
        links::check(root),
        shape::lengths(root),
        shape::twins(root),
        size::check(root),
        instructions::check_page(root),
        commits::check(root, options.commits.as_deref()),
    ]
    .concat();
    let mut noted = shape::stale_records(root, shape::NOTED);
    let stale = shape::stale_records(root, shape::RELEASED);
    if options.release {
        faults.extend(stale);
    } else {
        noted.extend(stale);
    }
    for record in noted {
        println!("noted: {record}");
    }
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        println!("tidy: layers, files, links, lengths, names and commits are in order");
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {} things to tidy, listed above", faults.len());
    ExitCode::FAILURE
}

fn options(further: &[String]) -> Result<Options, String> {
    let mut options = Options { release: false, commits: None };
    let mut words = further.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--release" => options.release = true,
            "--commits" => {
                let range =
                    words.next().ok_or("`--commits` alone; expected a range such as a..b")?;
                options.commits = Some(range.clone());
            }
            other => {
                return Err(format!(
                    "`{other}` behind `tidy`; expected --release or --commits RANGE"
                ));
            }
        }
    }
    Ok(options)
}

/// Rust files that no `mod` reaches.
fn dead_files(root: &Path) -> Vec<String> {
    let all = source::files(root, "rs");
    let mut reached: BTreeSet<PathBuf> = BTreeSet::new();
    let mut next: Vec<PathBuf> = all.iter().filter(|file| is_root(file)).cloned().collect();
    while let Some(file) = next.pop() {
        next.extend(source::declared(&file));
        reached.insert(file);
    }
    let dead = all.iter().filter(|file| !reached.contains(*file));
    dead.map(|file| format!("{}: no `mod` reaches this file", file.display())).collect()
}

/// Whether cargo compiles a file by itself.
fn is_root(file: &Path) -> bool {
    let stem = file.file_stem().unwrap_or_default();
    let folder = file.parent().unwrap_or(file);
    stem == "lib"
        || stem == "main"
        || stem == "build"
        || folder.ends_with("tests/ui") // trybuild's
        || folder.ends_with("src/bin")
        || (["tests", "benches", "examples"].iter().any(|name| folder.ends_with(name))
            && folder.parent().is_some_and(|package| package.join("Cargo.toml").is_file()))
}
