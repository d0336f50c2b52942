//! Checks the layer tables against the dependencies in the source.
//!
//! The table of crates is in ARCHITECTURE.md, below `### crates`. The table of the modules of a
//! crate is in docs/layers.md, below a heading that names the crate (`### pool-core`). The first
//! column of a row has a name in back ticks. The second column has what it may use: names from rows
//! above.

use crate::crates::{self, Crate};
use crate::source;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The names that each name may use, in the order of the rows.
type Layers = Vec<(String, BTreeSet<String>)>;

/// Files with layer tables.
const FILES: [&str; 2] = ["ARCHITECTURE.md", "docs/layers.md"];

/// Returns the faults in the dependencies between crates and between modules.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let crates = match crates::all(root) {
        Ok(crates) => crates,
        Err(why) => return vec![why],
    };
    let mut faults = Vec::new();
    let mut tables: BTreeMap<String, Layers> = BTreeMap::new();
    for file in FILES {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        tables.extend(self::tables(file, &text, &mut faults));
    }
    match tables.get("crates") {
        None => faults.push("ARCHITECTURE.md: no layer table under `### crates`".into()),
        Some(layers) => compare("crate", layers, &crate_edges(&crates), &mut faults),
    }
    // The package of the root only re-exports, and a crate inside another one is part of its tests.
    let is_inside = |folder: &str| {
        crates.iter().any(|outer| {
            let inner = folder.strip_prefix(&outer.folder).filter(|_| !outer.folder.is_empty());
            inner.is_some_and(|rest| rest.starts_with('/'))
        })
    };
    let has_layers = |krate: &&Crate| !krate.folder.is_empty() && !is_inside(&krate.folder);
    for Crate { name: krate, folder, .. } in crates.iter().filter(has_layers) {
        let folder = root.join(folder).join("src");
        match tables.get(krate) {
            None => faults.push(format!("docs/layers.md: no layer table under `### {krate}`")),
            Some(layers) => {
                compare(&format!("{krate}: module"), layers, &module_edges(&folder), &mut faults);
            }
        }
    }
    faults
}

fn tables(file: &str, text: &str, faults: &mut Vec<String>) -> BTreeMap<String, Layers> {
    let mut tables: BTreeMap<String, Layers> = BTreeMap::new();
    let mut heading = "";
    for line in text.lines() {
        if let Some(new) = line.strip_prefix("### ") {
            heading = new.trim();
        } else if line.starts_with('#') {
            heading = "";
        }
        let mut cells = line.trim().split('|').skip(1).map(quoted);
        let (Some(name), Some(uses)) = (cells.next(), cells.next()) else { continue };
        let [name] = name.as_slice() else { continue };
        let layers = tables.entry(heading.to_owned()).or_default();
        for used in uses.iter().filter(|used| !layers.iter().any(|(above, _)| above == *used)) {
            faults.push(format!(
                "{file}: under `{heading}`, `{name}` uses `{used}`, which stands in no row above it"
            ));
        }
        layers.push((name.clone(), uses.into_iter().collect()));
    }
    tables
}

/// Returns the words in back ticks of a cell.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Checks that each dependency is allowed and that each allowed dependency exists.
///
/// Rows use only rows above them, so a source that agrees with the table has no cycles.
fn compare(
    what: &str,
    layers: &Layers,
    edges: &BTreeMap<String, BTreeSet<String>>,
    faults: &mut Vec<String>,
) {
    let rows: BTreeMap<&String, &BTreeSet<String>> = layers.iter().map(|(n, u)| (n, u)).collect();
    for (name, used) in edges {
        let Some(allowed) = rows.get(name) else {
            faults.push(format!(
                "{what} `{name}` stands in no layer table; add a row to {}",
                table_of(what)
            ));
            continue;
        };
        for upward in used.difference(allowed) {
            faults.push(format!("{what} `{name}` uses `{upward}`, which its layer may not"));
        }
        for unused in allowed.difference(used) {
            faults.push(format!("{what} `{name}` may use `{unused}`, and does not"));
        }
    }
    for name in rows.keys().filter(|name| !edges.contains_key(**name)) {
        faults.push(format!("{what} `{name}` has a row in {}, and does not exist", table_of(what)));
    }
}

/// Returns the file with the table of crates, or of modules.
fn table_of(what: &str) -> &'static str {
    if what == "crate" { FILES[0] } else { FILES[1] }
}

/// Returns the dependencies between the crates.
fn crate_edges(crates: &[Crate]) -> BTreeMap<String, BTreeSet<String>> {
    crates.iter().map(|krate| (krate.name.clone(), krate.uses.clone())).collect()
}

/// Returns the uses between the top-level modules of a crate. The root only declares and
/// re-exports.
fn module_edges(src: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let inside = |file: &Path| file.strip_prefix(src).map(Path::to_path_buf).unwrap_or_default();
    let top = |file: &Path| {
        let first = inside(file).components().next().map(|c| c.as_os_str().to_owned());
        first.unwrap_or_default().to_string_lossy().trim_end_matches(".rs").to_owned()
    };
    let files = source::files(src, "rs");
    let is_test = |file: &Path| file.file_stem().is_some_and(|stem| stem == "tests");
    let code: Vec<_> = files.iter().filter(|file| !is_test(file)).collect();
    let mut names: BTreeSet<String> = code.iter().map(|file| top(file)).collect();
    names.retain(|name| name != "lib" && name != "main");
    let text_of = |file: &Path| source::code_of(&fs::read_to_string(file).unwrap_or_default());
    let reexports = reexports(&text_of(&src.join("lib.rs")), &names);
    for file in code {
        let name = top(file);
        if !names.contains(&name) {
            continue;
        }
        let depth = inside(file).components().count();
        let named = source::modules_named(&text_of(file), depth);
        let used = named.into_iter().filter_map(|named| {
            if names.contains(&named) { Some(named) } else { reexports.get(&named).cloned() }
        });
        let used = used.filter(|used| *used != name);
        edges.entry(name.clone()).or_default().extend(used);
    }
    edges
}

/// Maps each name that `lib.rs` re-exports to its module.
///
/// A use of `crate::Name` is a dependency on that module.
fn reexports(lib: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut origins = BTreeMap::new();
    for statement in lib.split(';').filter_map(|s| s.split("pub use ").nth(1)) {
        let Some((module, names)) = statement.split_once("::") else { continue };
        if modules.contains(module) {
            let words = names.split(|c: char| !c.is_alphanumeric() && c != '_');
            origins.extend(words.map(|word| (word.to_owned(), module.to_owned())));
        }
    }
    origins
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &[&str])]) -> Vec<(String, BTreeSet<String>)> {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        pairs.iter().map(|(name, uses)| ((*name).to_owned(), owned(uses))).collect()
    }

    #[test]
    fn rows_may_only_use_rows_above_them() {
        let text = "### k\n| module | uses |\n|---|---|\n| `a` | `b` |\n| `b` | `a` |\n";
        let mut faults = Vec::new();
        assert_eq!(tables("a.md", text, &mut faults)["k"], of(&[("a", &["b"]), ("b", &["a"])]));
        assert_eq!(faults.len(), 1, "{faults:?}");
    }

    #[test]
    fn an_edge_upward_an_idle_row_and_a_stranger_are_faults() {
        let layers = of(&[("low", &[]), ("mid", &["low"]), ("gone", &[])]);
        let edges = of(&[("low", &["mid"]), ("mid", &[]), ("new", &[])]).into_iter().collect();
        let mut faults = Vec::new();
        compare("module", &layers, &edges, &mut faults);
        let expected = [
            "module `low` uses `mid`, which its layer may not",
            "module `mid` may use `low`, and does not",
            "module `new` stands in no layer table; add a row to docs/layers.md",
            "module `gone` has a row in docs/layers.md, and does not exist",
        ];
        assert_eq!(faults, expected);
    }

    #[test]
    fn a_name_that_the_root_reexports_is_an_edge() {
        let modules = BTreeSet::from(["pool".to_owned()]);
        let origins = reexports("mod pool; pub use pool::{BucketPool, Builder};", &modules);
        assert_eq!(origins.get("BucketPool").map(String::as_str), Some("pool"));
    }
}
