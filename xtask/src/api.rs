//! `cargo xtask api`: the public items of each library crate, beside their listings in `docs/api`.
//! A change of them is seen in review, and is made on purpose.

use crate::crates::{self, Crate};
use crate::outside;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

const FOLDER: &str = "docs/api";
/// Lines of a difference that are printed for a crate.
const SHOWN: usize = 20;

/// Whether the tool that lists items is here.
pub(crate) fn is_here() -> bool {
    let asked = outside::nightly().args(["public-api", "--version"]).output();
    asked.is_ok_and(|said| said.status.success())
}

/// Compares all listings, or with `--write` writes them; `further` are the arguments behind `api`.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    let writes = match further {
        [] => false,
        [one] if one == "--write" => true,
        [other, ..] => {
            eprintln!("error: `{other}` behind `api`; expected --write or nothing");
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    let crates = match crates::all(root) {
        Ok(crates) => crates,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut passed = true;
    // The facade only re-exports.
    let named = |krate: &Crate| krate.is_published && krate.is_library && !krate.folder.is_empty();
    for Crate { name, .. } in crates.into_iter().filter(named) {
        let file = root.join(FOLDER).join(format!("{name}.txt"));
        let outcome = listing(root, &name).and_then(|now| {
            if writes {
                return fs::write(&file, &now).map_err(|error| error.to_string());
            }
            let before = fs::read_to_string(&file).map_err(|error| error.to_string())?;
            match difference(&before, &now).as_str() {
                "" => Ok(()),
                lines => Err(format!("differs from {FOLDER}/{name}.txt:\n{lines}")),
            }
        });
        match outcome {
            Ok(()) => println!("{name}: {}", if writes { "written" } else { "as listed" }),
            Err(error) => {
                eprintln!("error: {name}: {error}");
                passed = false;
            }
        }
    }
    if passed {
        return ExitCode::SUCCESS;
    }
    if !writes {
        eprintln!("If this is meant: `cargo xtask api --write`, and a line in CHANGELOG.md.");
    }
    ExitCode::FAILURE
}

/// The public items of a crate with all features, without what derives and blanket implementations
/// add.
fn listing(root: &Path, name: &str) -> Result<String, String> {
    let mut cargo = outside::nightly();
    cargo.args(["public-api", "--package", name, "--all-features", "-sss"]).current_dir(root);
    cargo.env("CARGO_TARGET_DIR", root.join("target/api"));
    let said = cargo.output().map_err(|error| format!("cargo public-api: {error}"))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    let all = String::from_utf8_lossy(&said.stderr);
    let last: Vec<&str> = all.lines().rev().take(SHOWN).collect();
    Err(format!("no listing:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n")))
}

/// The lines that are gone and those that are new; empty for the same items.
fn difference(before: &str, now: &str) -> String {
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (before.lines().collect(), now.lines().collect());
    let gone = old.difference(&new).map(|line| format!("- {line}"));
    let added = new.difference(&old).map(|line| format!("+ {line}"));
    gone.chain(added).take(SHOWN).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_is_gone_and_what_is_new() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), "");
        assert_eq!(difference("a\nb\n", "a\nc\n"), "- b\n+ c");
    }
}
