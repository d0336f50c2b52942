//! Phrases that are not plain English, in comments and in documents.

use crate::source;
use std::fs;
use std::path::Path;

/// This file and the list of words: they hold what they look for.
const EXEMPT: [&str; 2] = ["xtask/src/plain.rs", "xtask/src/prose.rs"];

/// A phrase, and what to write.
const PHRASES: &[(&str, &str)] = &[
    ("idle block", "cached block"),
    ("idle bytes", "cached bytes"),
    ("idle memory", "cached memory"),
    ("lie idle", "are cached"),
    ("lies idle", "is cached"),
    ("one with its neighbours", "coalesced with its neighbours"),
    ("become one", "coalesce"),
    ("becomes one", "coalesces"),
    ("is owed", "is a deferred free"),
    ("are owed", "are deferred frees"),
    ("the most that there ever was", "the peak"),
    ("somebody", "the actor: the caller, the thread, another stream"),
    ("Somebody", "the actor: the caller, the thread, another stream"),
    ("nobody", "the actor and `not`: `no thread`, `the caller does not`"),
    ("Nobody", "the actor and `not`: `no thread`, `the caller does not`"),
    ("whoever", "the actor: the caller, the thread, the driver"),
    ("Whoever", "the actor: the caller, the thread, the driver"),
    ("what came", "the thing that came"),
    ("it is said", "who says it"),
    ("so many", "the number, or `that many`"),
    ("of its own", "`its own`, before the noun"),
    ("thereof", "`of it`"),
];

/// First words of a doc comment that say neither what an item does nor what it is.
const OPENINGS: &[(&str, &str)] = &[
    ("And ", "a sentence that stands alone"),
    ("The same", "what it does, in full"),
    ("What ", "a noun (`Bytes that ..`) or a verb (`Returns ..`)"),
    ("When what ", "a noun or a verb"),
];

/// Returns the faults of comments and documents.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for extension in ["rs", "md"] {
        for file in source::files(root, extension) {
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            if !EXEMPT.contains(&name.as_str()) {
                faults.extend(faults_of(&name, &fs::read_to_string(&file).unwrap_or_default()));
            }
        }
    }
    faults
}

fn faults_of(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let is_rust = Path::new(name).extension().is_some_and(|extension| extension == "rs");
    let (mut in_code, mut in_doc, mut before) = (false, false, String::new());
    for (at, line) in (1..).zip(text.lines()) {
        in_code ^= !is_rust && line.trim_start().starts_with("```");
        let Some(prose) = (if is_rust { comment(line) } else { Some(line) }) else {
            in_doc = false;
            before.clear();
            continue;
        };
        if is_rust && !line.trim_start().starts_with("//") {
            before.clear(); // a comment behind code stands alone
        }
        let both = format!("{before} {}", words(prose));
        let is_here = |phrase: &str| {
            !in_code && (holds(prose, phrase) || holds(&both, phrase) && !holds(&before, phrase))
        };
        for (phrase, better) in PHRASES.iter().filter(|(phrase, _)| is_here(phrase)) {
            faults.push(format!("{name}:{at}: `{phrase}`: write {better}"));
        }
        before = last_words(words(prose));
        let doc = ["///", "//!"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        if let Some(first) = doc.filter(|_| is_rust && !in_doc) {
            let openings =
                OPENINGS.iter().filter(|(opening, _)| first.trim_start().starts_with(opening));
            for (opening, better) in openings {
                let opening = opening.trim_end();
                faults.push(format!("{name}:{at}: a first line with `{opening}`: write {better}"));
            }
        }
        in_doc = doc.is_some();
    }
    faults
}

/// The text of a comment that begins in this line.
fn comment(line: &str) -> Option<&str> {
    line.find("//").map(|at| &line[at..])
}

/// A line of a comment or a document without the marks of a comment.
fn words(prose: &str) -> &str {
    prose.trim_start_matches(['/', '!']).trim()
}

/// As many words of the end of a line as a phrase can begin with.
fn last_words(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    words[words.len().saturating_sub(6)..].join(" ")
}

/// Whether a line holds a phrase whose first and last word are whole.
fn holds(line: &str, phrase: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(phrase).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_letter)
            && !line[at + phrase.len()..].chars().next().is_some_and(|c| is_letter(c) && c != 's')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_in_comments_count_and_those_in_code_do_not() {
        let text = "/// Evicts idle blocks.\nlet nobody = \"so many\";\n// whoever is last\n";
        let expected = [
            "a.rs:1: `idle block`: write cached block",
            "a.rs:3: `whoever`: write the actor: the caller, the thread, the driver",
        ];
        assert_eq!(faults_of("a.rs", text), expected);
        assert_eq!(faults_of("a.md", "one\n```\nnobody\n```\nnobody\n").len(), 1);
    }

    #[test]
    fn a_phrase_that_two_lines_hold_is_found_once() {
        let text =
            "// a folder of\n// its own, of its\n// sort\nlet a = b; // of its\nc(); // own\n";
        assert_eq!(
            faults_of("a.rs", text),
            ["a.rs:2: `of its own`: write `its own`, before the noun"]
        );
        assert_eq!(faults_of("a.md", "a folder of its\nown\n\nof its\n\nown\n").len(), 1);
    }

    #[test]
    fn only_the_first_line_of_a_doc_comment_is_an_opening() {
        let text = "/// What it holds.\n/// What follows is fine.\nfn f() {}\n/// And its twin.\n";
        let faults = faults_of("a.rs", text);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("a.rs:1: a first line with `What`"), "{faults:?}");
        assert!(faults[1].starts_with("a.rs:4: a first line with `And`"), "{faults:?}");
    }
}
