//! The facts about the build that a record has: the commit, a hash of each crate's source, the
//! compiler, and the versions of other people's crates.

use crate::{crates, source};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Other people's crates whose version changes a figure.
const PEERS: [&str; 16] = [
    "mimalloc",
    "libmimalloc-sys",
    "tikv-jemallocator",
    "tikv-jemalloc-sys",
    "snmalloc-rs",
    "snmalloc-sys",
    "ndarray",
    "offset-allocator",
    "rlsf",
    "parking_lot",
    "wgpu",
    "wgpu-core",
    "cudarc",
    "candle-core",
    "candle-nn",
    "arrow",
];
/// Hexadecimal digits of a hash that are kept.
const DIGITS: usize = 12;

/// The variable in which `pool-bench` is told.
pub(crate) const BUILD: &str = "BUCKETPOOL_BUILD";

/// The build as `pool-bench` writes it into the head of a record, in JSON.
pub(crate) fn build(root: &Path) -> String {
    // A record that was just written is no difference of the source.
    let changed = ["status", "--porcelain", "--untracked-files=no"];
    let dirty = !said(root, "git", &changed).is_empty();
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut peers = versions(&root.join("Cargo.lock"));
    peers.extend(versions(&root.join("pool-bench/peers/clients/Cargo.lock")));
    json!({
        "commit": said(root, "git", &["rev-parse", "HEAD"]),
        "dirty": dirty,
        "sources": hashes(root),
        "rustc": said(root, "rustc", &["--version"]),
        "flags": format!("release {flags}").trim(),
        "crates": peers,
    })
    .to_string()
}

/// A hash of each crate: of the names and contents of its Rust files below `src`, and of its
/// manifest.
pub(crate) fn hashes(root: &Path) -> BTreeMap<String, String> {
    let crates = crates::all(root).unwrap_or_else(|why| {
        eprintln!("noted: no hashes of the sources: {why}");
        Vec::new()
    });
    let crates = crates.into_iter().filter(|krate| !krate.folder.is_empty());
    crates.map(|krate| (krate.folder.clone(), hash(&root.join(krate.folder)))).collect()
}

fn hash(folder: &Path) -> String {
    let mut hash = Sha256::new();
    let mut files = source::files(&folder.join("src"), "rs");
    files.push(folder.join("Cargo.toml"));
    for file in files {
        let name = file.strip_prefix(folder).unwrap_or(&file);
        hash.update(name.to_string_lossy().as_bytes());
        let text = fs::read(&file).unwrap_or_default();
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let nibbles = hash.finalize().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
    nibbles.take(DIGITS).filter_map(|nibble| char::from_digit(nibble.into(), 16)).collect()
}

/// The versions of the peers in a lock file.
fn versions(lock: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(lock).unwrap_or_default();
    let mut found = BTreeMap::new();
    for package in text.split("[[package]]") {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version)) = (value("name = "), value("version = "))
            && PEERS.contains(&name.as_str())
        {
            found.insert(name, version);
        }
    }
    found
}

fn said(root: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().trim().to_owned()
}

/// Why a record no longer speaks of today's source; `None` if it does. What it measured are the
/// crates of its backends, so a change elsewhere does not matter.
pub(crate) fn staleness(record: &Path, now: &BTreeMap<String, String>) -> Option<String> {
    let text = fs::read_to_string(record).unwrap_or_default();
    let Some(first) = text.lines().next() else { return Some("it cannot be read".into()) };
    let head: Value = serde_json::from_str(first).unwrap_or_default();
    let Some(then) = head["sources"].as_object() else {
        return Some("it names no hashes of sources".into());
    };
    let changed: Vec<&str> = measured(head["command"].as_str().unwrap_or_default())
        .into_iter()
        .filter(|name| {
            then.get(*name).and_then(Value::as_str) != now.get(*name).map(String::as_str)
        })
        .collect();
    (!changed.is_empty()).then(|| format!("{} changed since", changed.join(", ")))
}

/// The crates that a command measures.
fn measured(command: &str) -> Vec<&'static str> {
    let names = |name: &str| command.contains(name);
    let only = names("--backend");
    let mut crates = vec!["pool-core", "pool-config", "pool-bench"];
    if !only || names("host") {
        crates.push("pool-host");
    }
    if !only || names("sim") {
        crates.push("pool-sim");
    }
    if names("programs") || names("numpy") {
        crates.push("pool-preload");
    }
    if names("cuda") {
        crates.push("pool-cuda");
    }
    if names("wgpu") || (!only && !names("--peers") && !names("--threads")) {
        crates.push("pool-wgpu");
    }
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_changes_with_a_byte_and_not_with_the_time() {
        let folder = std::env::temp_dir().join(format!("xtask-sources-{}", std::process::id()));
        fs::create_dir_all(folder.join("src")).unwrap();
        let write = |text| fs::write(folder.join("src/lib.rs"), text).unwrap();
        write("fn a() {}");
        let first = hash(&folder);
        write("fn a() {}");
        assert_eq!((hash(&folder), first.len()), (first.clone(), DIGITS));
        write("fn b() {}");
        assert_ne!(hash(&folder), first);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_record_is_stale_when_what_it_measures_changed() {
        let file = std::env::temp_dir().join(format!("xtask-record-{}", std::process::id()));
        let record = |command: &str| {
            let sources = json!({"pool-core": "a", "pool-config": "e", "pool-sim": "f", "pool-host": "b",
                       "pool-wgpu": "c", "pool-bench": "d"});
            let head = json!({"command": command, "sources": sources});
            fs::write(&file, format!("{head}\n")).unwrap();
        };
        let now = |core: &str, wgpu: &str| -> BTreeMap<String, String> {
            [
                ("pool-core", core),
                ("pool-config", "e"),
                ("pool-sim", "f"),
                ("pool-host", "b"),
                ("pool-wgpu", wgpu),
                ("pool-bench", "d"),
            ]
            .map(|(name, hash)| (name.to_owned(), hash.to_owned()))
            .into()
        };
        record("cargo xtask bench --peers --record");
        assert_eq!(staleness(&file, &now("a", "z")), None);
        assert_eq!(staleness(&file, &now("z", "c")), Some("pool-core changed since".into()));
        record("cargo xtask bench --record");
        assert_eq!(staleness(&file, &now("a", "z")), Some("pool-wgpu changed since".into()));
        fs::write(&file, "{\"command\": \"cargo xtask bench\"}\n").unwrap();
        assert!(staleness(&file, &now("a", "c")).is_some());
        fs::remove_file(file).unwrap();
    }
}
