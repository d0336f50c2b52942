//! The Rust files of a crate, and the text of one without what is not code.

use std::fs;
use std::path::{Path, PathBuf};

/// All files below `folder` with this extension, in a stable order. Build outputs and hidden
/// folders are left out.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// `text` with comments and the contents of strings as blanks, lines kept; and without test
/// modules that stand in the file.
pub(crate) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = skipped_length(rest);
        if skipped > 0 {
            code.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    match code.find("#[cfg(test)]\nmod tests {") {
        Some(at) => code[..at].to_owned(),
        None => code,
    }
}

/// How many bytes at the start of `text` are a comment or a literal.
fn skipped_length(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return text.find("*/").map_or(text.len(), |end| end + 2);
    }
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = hashes + 2;
            return text[body..].find(&end).map_or(text.len(), |at| body + at + end.len());
        }
    }
    if let Some(body) = text.strip_prefix('"') {
        return 1 + escaped_length(body, '"');
    }
    // A character, not a lifetime: 'x' or '\n'.
    let mut chars = text.chars();
    if chars.next() == Some('\'') {
        let (second, third) = (chars.next(), chars.next());
        if second == Some('\\') || third == Some('\'') {
            return 1 + escaped_length(&text[1..], '\'');
        }
    }
    0
}

/// The length up to and with the end of a literal.
fn escaped_length(text: &str, end: char) -> usize {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == end {
            return at + 1;
        }
    }
    text.len()
}

/// Whether `text[..at]` ends in the middle of a word.
fn in_word(text: &str, at: usize) -> bool {
    text[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
}

/// The top-level modules of the same crate that `code` names, through `crate::` and, in a file
/// that is `depth` modules deep, as many `super::`.
pub(crate) fn modules_named(code: &str, depth: usize) -> Vec<String> {
    let mut names = Vec::new();
    for prefix in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&prefix).filter(|_| !prefix.is_empty()) {
            let after = &code[at + prefix.len()..];
            if in_word(code, at) || after.starts_with("super::") {
                continue;
            }
            match after.strip_prefix('{') {
                Some(group) => names.extend(heads_of(group)),
                None => names.push(word(after)),
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    names
}

/// The first word of each member of a `{..}` group, which may hold groups.
fn heads_of(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut expected) = (0_usize, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => expected = true,
            c if expected && !c.is_whitespace() => {
                heads.push(word(&group[at..]));
                expected = false;
            }
            _ => {}
        }
    }
    heads
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The files that `mod x;` lines of `code` in `file` name, each with both places it may have.
pub(crate) fn submodules(file: &Path, code: &str) -> Vec<[PathBuf; 2]> {
    let stem = file.file_stem().unwrap_or_default();
    let folder = file.parent().unwrap_or(file);
    let is_root = ["lib", "main", "mod"].iter().any(|root| stem == *root)
        || folder.ends_with("tests")
        || folder.ends_with("benches")
        || folder.ends_with("examples");
    let home = if is_root { folder.to_path_buf() } else { folder.join(stem) };
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("mod ").filter(|(at, _)| !in_word(code, *at)) {
        let name = word(&code[at + 4..]);
        if !name.is_empty() && code[at + 4 + name.len()..].starts_with(';') {
            modules.push([home.join(format!("{name}.rs")), home.join(&name).join("mod.rs")]);
        }
    }
    modules
}

/// The files that `#[path = ".."]` attributes of `text` in `file` name.
pub(crate) fn paths(file: &Path, text: &str) -> Vec<PathBuf> {
    let folder = file.parent().unwrap_or(file);
    let named = text.split("#[path = \"").skip(1).filter_map(|rest| rest.split('"').next());
    named.map(|path| folder.join(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        let text =
            "use crate::a; // crate::b\nlet s = \"crate::c\"; 'x'; fn f<'a>() {} r#\"crate::d\"#";
        assert_eq!(modules_named(&code_of(text), 0), ["a"]);
    }

    #[test]
    fn modules_are_found_in_paths_and_groups() {
        let code =
            "use crate::{store::{Store, X}, pool}; crate::hold::f(); my_crate::no; super::up;";
        assert_eq!(modules_named(code, 0), ["hold", "pool", "store"]);
        assert_eq!(modules_named(code, 1), ["hold", "pool", "store", "up"]);
    }

    #[test]
    fn a_module_has_two_places() {
        let [file, folder] = &submodules(Path::new("src/sim.rs"), "mod engine;")[0];
        assert_eq!(file, Path::new("src/sim/engine.rs"));
        assert_eq!(folder, Path::new("src/sim/engine/mod.rs"));
        assert_eq!(submodules(Path::new("src/lib.rs"), "mod a;")[0][0], Path::new("src/a.rs"));
    }
}
