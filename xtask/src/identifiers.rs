//! Words that names in the pools' code do not have: pictures, each of which needs a key.

use crate::source;
use std::fs;
use std::path::Path;

/// The crates that it applies to. A trace has lanes: threads, or streams.
const CRATES: [&str; 4] = ["pool-core", "pool-host", "pool-cuda", "pool-wgpu"];

/// A part of a name, and what to write.
const PARTS: &[(&str, &str)] = &[
    ("claim", "reference"),
    ("debt", "deferred"),
    ("gone", "what happened: lost, removed, freed, leaked"),
    ("home", "the store's address, or the block's own stream"),
    ("lane", "stream_id"),
    ("owe", "defer"),
    ("owed", "deferred"),
    ("parcel", "block"),
    ("settle", "what it does: add_counts, free_deferred, compact"),
    ("settled", "what happened: added, compacted"),
    ("shelf", "transfer cache, or size class"),
    ("spot", "placement"),
    ("want", "request"),
];

/// Returns each name with such a part.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for folder in CRATES.map(|krate| root.join(krate).join("src")) {
        for file in source::files(&folder, "rs") {
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            faults.extend(faults_of(&name, &fs::read_to_string(&file).unwrap_or_default()));
        }
    }
    faults
}

fn faults_of(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, line) in (1..).zip(source::code_of(text).lines()) {
        for name in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
            let parts = parts_of(name);
            // Several of one count too.
            let has =
                |part: &str| parts.iter().any(|one| one.strip_suffix('s').unwrap_or(one) == part);
            for (part, better) in PARTS.iter().filter(|(part, _)| has(part)) {
                faults.push(format!("{file}:{at}: `{name}`: write {better} instead of {part}"));
            }
        }
    }
    faults
}

/// The words of a name in snake case, in capitals or in camel case, in small letters.
fn parts_of(name: &str) -> Vec<String> {
    let is_constant = !name.chars().any(char::is_lowercase);
    let mut parts = vec![String::new()];
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && !is_constant) {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut().filter(|_| letter != '_') {
            last.extend(letter.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_names_count_and_comments_do_not() {
        let text = "let of_lane = 1; // the lane\nstruct ToShelf;\nlet claims;\n\
                    const OWED: u8 = 0;\nlet plane;";
        let expected = [
            "a.rs:1: `of_lane`: write stream_id instead of lane",
            "a.rs:2: `ToShelf`: write transfer cache, or size class instead of shelf",
            "a.rs:3: `claims`: write reference instead of claim",
            "a.rs:4: `OWED`: write deferred instead of owed",
        ];
        assert_eq!(faults_of("a.rs", text), expected);
    }
}
