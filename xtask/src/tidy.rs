//! `cargo xtask tidy`: what compilers do not check about this house.

use crate::{layers, prose, source};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints what is wrong; fails if anything is.
pub(crate) fn run(root: &Path) -> ExitCode {
    let faults = [layers::check(root), dead_files(root), prose::check(root)].concat();
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        println!("tidy: layers, knots, dead files, words and links are in order");
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {} things to tidy, listed above", faults.len());
    ExitCode::FAILURE
}

/// Rust files that no `mod` reaches.
fn dead_files(root: &Path) -> Vec<String> {
    let all = source::files(root, "rs");
    let mut reached: BTreeSet<PathBuf> = BTreeSet::new();
    let mut next: Vec<PathBuf> = all.iter().filter(|file| is_root(file)).cloned().collect();
    while let Some(file) = next.pop() {
        let text = fs::read_to_string(&file).unwrap_or_default();
        next.extend(source::submodules(&file, &source::code_of(&text)).into_iter().flatten());
        next.extend(source::paths(&file, &text));
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
        || (["tests", "benches", "examples"].iter().any(|name| folder.ends_with(name))
            && folder.parent().is_some_and(|package| package.join("Cargo.toml").is_file()))
}
