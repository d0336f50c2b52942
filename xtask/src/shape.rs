//! How long documents may be, and names that a crate has twice.

use crate::crates::{self, Crate};
use crate::source::Modules;
use crate::sources;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Documents, their lines at most, and where the rest belongs.
const LONGEST: [(&str, usize, &str); 2] =
    [("README.md", 150, "docs/"), ("ARCHITECTURE.md", 250, "docs/")];
/// The document whose records must be of today's source before a release.
pub(crate) const RELEASED: &str = "README.md";
/// Another that quotes records.
pub(crate) const NOTED: &str = "docs/benchmarks.md";

/// Documents that are too long.
pub(crate) fn lengths(root: &Path) -> Vec<String> {
    let too_long = |(file, most, elsewhere): &(&str, usize, &str)| {
        let lines = fs::read_to_string(root.join(file)).unwrap_or_default().lines().count();
        let fault = format!("{file}: {lines} lines; keep {most}, and move the rest to {elsewhere}");
        (lines > *most).then_some(fault)
    };
    LONGEST.iter().filter_map(too_long).collect()
}

/// Types of one name in one crate.
pub(crate) fn twins(root: &Path) -> Vec<String> {
    let of = |krate: &Crate| twins_of(&krate.name, &root.join(&krate.folder).join("src"));
    crates::all(root).map_or_else(|why| vec![why], |crates| crates.iter().flat_map(of).collect())
}

fn twins_of(name: &str, folder: &Path) -> Vec<String> {
    let modules = Modules::of(folder);
    let mut places: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (path, module) in modules.iter() {
        for found in &module.types {
            places.entry(found).or_default().insert(path.join("::"));
        }
    }
    let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
    let fault = |(found, places): (&str, BTreeSet<String>)| {
        let places = Vec::from_iter(places).join("` and in `");
        format!("{name}: `{found}` is a type in `{places}`; rename all but one")
    };
    twice.map(fault).collect()
}

/// Records that a document quotes and that no longer speak of today's source.
pub(crate) fn stale_records(root: &Path, file: &str) -> Vec<String> {
    let now = sources::hashes(root);
    let text = fs::read_to_string(root.join(file)).unwrap_or_default();
    let stale = |name: String| {
        let record = root.join("pool-bench/records").join(&name);
        let why = sources::staleness(&record, &now)?;
        Some(format!("{file}: record {name}: {why}; take it again"))
    };
    quoted(&text).into_iter().filter_map(stale).collect()
}

/// The records that a text links to.
fn quoted(text: &str) -> Vec<String> {
    let ends = text.match_indices("records/").map(|(at, found)| &text[at + found.len()..]);
    let names = ends.filter_map(|rest| {
        let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)))?;
        let is_record = |name: &String| Path::new(name).extension().is_some_and(|e| e == "jsonl");
        Some(rest[..length].to_owned()).filter(is_record)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_records_are_found_once() {
        let text = "([1](pool-bench/records/2026-11-21-1.jsonl), [2](../records/a.jsonl)) and \
                    [1](pool-bench/records/2026-11-21-1.jsonl), records/README.md)";
        assert_eq!(quoted(text), ["2026-11-21-1.jsonl", "a.jsonl"]);
    }
}
