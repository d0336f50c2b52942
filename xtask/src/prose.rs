//! Words that have a better one here, and links that lead nowhere.

use crate::source;
use std::fs;
use std::path::Path;

/// A word that is not used here, and what is.
const WORDS: &[(&str, &str)] = &[
    ("freelist", "free list"),
    ("high-watermark", "high-water mark"),
    ("whitelist", "what is allowed"),
    ("blacklist", "what is refused"),
    ("utilize", "use"),
    ("leverage", "use"),
    ("blazing", "a figure with its record"),
    ("super fast", "a figure with its record"),
    ("TODO", "an issue"),
    ("FIXME", "an issue"),
    ("XXX", "an issue"),
    ("HACK", "an issue"),
];
/// Module names that say nothing.
const MODULES: &[&str] = &["utils", "util", "base", "common", "helpers", "misc", "types"];
const LONGEST_LINE: usize = 100;

/// What is wrong with words, lines and links.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for file in source::files(root, "rs") {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let name = relative(root, &file);
        words(&name, &text, &mut faults);
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if MODULES.contains(&stem.as_str()) {
            faults.push(format!("{name}: `{stem}` names no idea; what is in it?"));
        }
        for (at, line) in (1..).zip(text.lines()) {
            if line.chars().count() > LONGEST_LINE {
                faults.push(format!("{name}:{at}: longer than {LONGEST_LINE} characters"));
            }
        }
    }
    for file in source::files(root, "md") {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let name = relative(root, &file);
        words(&name, &text, &mut faults);
        for target in links(&text) {
            let path = target.split('#').next().unwrap_or_default();
            let there = path.is_empty() || file.parent().is_some_and(|f| f.join(path).exists());
            if !there {
                faults.push(format!("{name}: the link to `{target}` leads nowhere"));
            }
        }
    }
    faults
}

fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).display().to_string()
}

fn words(name: &str, text: &str, faults: &mut Vec<String>) {
    if name.ends_with("xtask/src/prose.rs") {
        return; // the list itself
    }
    for (at, line) in (1..).zip(text.lines()) {
        for (word, better) in WORDS.iter().filter(|(word, _)| contains_word(line, word)) {
            faults.push(format!("{name}:{at}: `{word}`: say {better}"));
        }
    }
}

fn contains_word(line: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_letter)
            && !line[at + word.len()..].chars().next().is_some_and(is_letter)
    })
}

/// The targets of Markdown links that are not addresses on the web.
fn links(text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut targets = Vec::new();
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let ends = line.match_indices("](").filter(|_| !in_code);
        let found = ends.filter_map(|(at, _)| line[at + 2..].split(')').next());
        targets.extend(found.filter(|t| !t.contains("://")).map(str::to_owned));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_whole_words() {
        assert!(contains_word("// TODO: this", "TODO"));
        assert!(!contains_word("// TODOS", "TODO"));
        assert!(!contains_word("my_TODO", "TODO"));
    }

    #[test]
    fn links_are_found_outside_code() {
        let text = "[a](b.md#c) and [d](https://e.f)\n```\n[x](y)\n```\n[g](h)";
        assert_eq!(links(text), ["b.md#c", "h"]);
    }
}
