//! Checks the layer tables against the dependencies in the source.
//!
//! The table of crates is in ARCHITECTURE.md, below `### crates`. The table of the modules of a
//! crate is in docs/layers.md, below a heading that names the crate (`### pool-core`). The first
//! column of a row has a name in back ticks. The second column has what it may use: names from rows
//! above. Below the top level no table is kept: the modules of a folder may not use each other in a
//! circle. A module and its children are one room, so an edge between them counts nowhere.

use crate::crates::{self, Crate};
use crate::source::{ModulePath, Modules};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The names that each name may use, in the order of the rows.
type Layers = Vec<(String, BTreeSet<String>)>;

/// Modules of one folder that use each other in a circle, as `crate folder: members`. This list
/// may only get shorter (a test counts it): a new circle is a fault, and so is a row that is gone.
const CYCLES: [&str; 2] = [
    "cuda-double : capture, device, graph, host, lost, pages, state, store",
    "pool-bench command: bench, peers",
];
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
    let mut circles = BTreeSet::new();
    for krate @ Crate { name, folder, .. } in &crates {
        let modules = Modules::of(&root.join(folder).join("src"));
        circles.extend(cycles(&modules).into_iter().map(|circle| format!("{name} {circle}")));
        if !has_layers(&krate) {
            continue;
        }
        match tables.get(name) {
            None => faults.push(format!("docs/layers.md: no layer table under `### {name}`")),
            Some(layers) => {
                let edges = edges_in(&modules, &Vec::new());
                compare(&format!("{name}: module"), layers, &edges, &mut faults);
            }
        }
    }
    faults.extend(compare_cycles(&CYCLES, &circles));
    faults
}

/// Checks that the circles that exist are those that are listed.
fn compare_cycles(listed: &[&str], found: &BTreeSet<String>) -> Vec<String> {
    let new = found.iter().filter(|circle| !listed.contains(&circle.as_str()));
    let new = new.map(|circle| format!("modules in a circle: {circle}; cut one of their imports"));
    let gone = listed.iter().filter(|circle| !found.contains(**circle));
    let gone = gone.map(|circle| {
        format!("`{circle}` is no circle as listed; shorten CYCLES in xtask/src/layers.rs")
    });
    new.chain(gone).collect()
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

/// Returns the uses between the children of the module at `folder`, and of each module below a
/// child. The module itself, which declares them, is no child.
fn edges_in(modules: &Modules, folder: &ModulePath) -> BTreeMap<String, BTreeSet<String>> {
    let child = |path: &ModulePath| path.strip_prefix(folder.as_slice())?.first().cloned();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, _) in modules.iter() {
        let Some(name) = child(path) else { continue };
        let used = modules.used_by(path).filter_map(|used| child(&used));
        let used = used.filter(|used| *used != name);
        edges.entry(name.clone()).or_default().extend(used);
    }
    edges
}

/// Returns the groups of children of any folder that use each other in a circle, each as
/// `folder: a, b`.
fn cycles(modules: &Modules) -> BTreeSet<String> {
    let in_folder = |(folder, _): (&ModulePath, _)| {
        let edges = edges_in(modules, folder);
        let named: BTreeSet<String> =
            edges.keys().filter_map(|name| circle(&edges, name)).collect();
        let place = folder.join("/");
        named.into_iter().map(move |names| format!("{place}: {names}")).collect::<Vec<_>>()
    };
    modules.iter().flat_map(in_folder).collect()
}

/// Returns the modules that `name` reaches and that reach it, if there are any.
fn circle(edges: &BTreeMap<String, BTreeSet<String>>, name: &String) -> Option<String> {
    let reached = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            next.extend(edges[at].iter().filter(|used| seen.insert((*used).clone())));
        }
        seen
    };
    let members = reached(name).into_iter().filter(|other| reached(other).contains(name));
    let members: Vec<String> = members.collect();
    (!members.is_empty()).then(|| members.join(", "))
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

    /// Writes a crate and reads its modules.
    fn crate_of(name: &str, files: &[(&str, &str)]) -> Modules {
        let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        for (file, text) in files {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let modules = Modules::of(&folder);
        fs::remove_dir_all(folder).unwrap();
        modules
    }

    #[test]
    fn uses_are_found_through_paths_groups_reexports_and_macros() {
        let modules = crate_of(
            "edges",
            &[
                ("lib.rs", "mod a; mod b; mod c; mod d; pub use b::{Deep, Near as Far};"),
                ("a.rs", "use crate::{Deep, c}; fn f() { assert!(super::d::is()); }"),
                ("b.rs", "mod deep; pub use deep::Deep; pub struct Near; // crate::a"),
                ("b/deep.rs", "pub struct Deep; #[cfg(test)] mod tests { use crate::c; }"),
                ("c.rs", "use std::fmt; pub fn g(_: crate::Far) { \"crate::a\"; }"),
                ("d.rs", "pub fn is() -> bool { true }"),
            ],
        );
        let edges = edges_in(&modules, &Vec::new());
        let of = |name: &str| edges[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!((of("a"), of("b"), of("c")), (vec!["b", "c", "d"], vec![], vec!["b"]));
        assert_eq!(cycles(&modules), BTreeSet::new());
    }

    #[test]
    fn a_circle_below_the_top_level_is_found() {
        let modules = crate_of(
            "circle",
            &[
                ("lib.rs", "mod room;"),
                ("room.rs", "mod a; mod b; mod c; pub(crate) use c::C;"),
                ("room/a.rs", "use super::b::B; pub struct A;"),
                ("room/b.rs", "pub struct B(super::C);"),
                ("room/c.rs", "pub struct C(super::a::A);"),
            ],
        );
        let found = cycles(&modules);
        assert_eq!(found, BTreeSet::from(["room: a, b, c".to_owned()]));
        let new = compare_cycles(&[], &found);
        assert_eq!(new, ["modules in a circle: room: a, b, c; cut one of their imports"]);
        assert_eq!(compare_cycles(&["room: a, b, c"], &found), Vec::<String>::new());
        assert_eq!(compare_cycles(&["room: a, b, c", "room: d, e"], &found).len(), 1);
    }

    #[test]
    fn the_list_of_circles_gets_shorter_only() {
        let members = CYCLES.iter().map(|circle| circle.matches(',').count() + 1).sum::<usize>();
        assert!(CYCLES.len() <= 3 && members <= 12, "{} circles of {members}", CYCLES.len());
    }
}
