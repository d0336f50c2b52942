//! Commit messages: `area: imperative summary`, an empty line, then why.

use std::path::Path;
use std::process::Command;

/// The last commit before the rule.
const BASE: &str = "11fca01";
/// Characters of a summary at most.
const LONGEST: usize = 72;
/// Summaries that say nothing.
const EMPTY_WORDS: [&str; 5] = ["lines", "lints", "wip", "fixes", "cleanup"];

/// Checks the messages of a range, or of all commits since the rule. Returns the faults. Without
/// git, or in a clone that does not reach back to the rule, only a named range is a fault.
pub(crate) fn check(root: &Path, range: Option<&str>) -> Vec<String> {
    let since = format!("{BASE}..HEAD");
    let mut git = Command::new("git");
    git.args(["log", "--no-merges", "--format=%h%n%B%x00", range.unwrap_or(&since)]);
    let said = git.current_dir(root).output();
    let text = match (said, range) {
        (Ok(output), _) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        (_, None) => return Vec::new(),
        (Ok(output), Some(range)) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return vec![format!("commits `{range}`: {said}; expected a range that git knows")];
        }
        (Err(error), _) => {
            return vec![format!("git cannot be run: {error}; expected it to be installed")];
        }
    };
    let commits = text.split('\0').map(str::trim).filter(|commit| !commit.is_empty());
    commits.flat_map(|commit| faults_of(commit.split_once('\n').unwrap_or((commit, "")))).collect()
}

fn faults_of((hash, message): (&str, &str)) -> Vec<String> {
    let (summary, rest) = message.split_once('\n').unwrap_or((message, ""));
    let mut faults = Vec::new();
    let mut fault = |what: String, comply: &str| {
        faults.push(format!("commit {hash}: {what}: `{summary}`; {comply}"));
    };
    let length = summary.chars().count();
    if length > LONGEST {
        fault(format!("a summary of {length} characters"), "say it in at most 72");
    }
    let area = summary.split_once(": ").map(|(area, rest)| (area, rest.trim()));
    match area {
        Some((area, what)) if is_area(area) => {
            let first = what.split_whitespace().next().unwrap_or_default().to_lowercase();
            if EMPTY_WORDS.contains(&first.as_str()) && what.split_whitespace().count() == 1 {
                fault(
                    "a summary that says nothing".into(),
                    "fold it into the commit it belongs to",
                );
            }
            if what.ends_with('.') {
                fault("a summary with a full stop".into(), "leave the stop out");
            }
        }
        _ => fault("no area".into(), "write `area: imperative summary`, such as `core: ..`"),
    }
    if rest.trim().is_empty() {
        fault("no reason".into(), "write an empty line, then why, and what was measured");
    } else if !rest.starts_with('\n') {
        fault("no empty line behind the summary".into(), "put one there");
    }
    faults
}

/// One or two lower-case words, such as `core`, `xtask tidy` or `core, host`.
fn is_area(area: &str) -> bool {
    !area.is_empty()
        && area.split([' ', ',', '/']).filter(|word| !word.is_empty()).count() <= 3
        && area.chars().all(|c| c.is_lowercase() || c.is_ascii_digit() || " ,/-_".contains(c))
}

#[cfg(test)]
mod tests {
    use super::faults_of;

    #[test]
    fn a_message_has_an_area_a_short_summary_and_a_reason() {
        let good = "core: drop on_shortage at the close\n\nIt may hold buffers.";
        assert_eq!(faults_of(("1a2b3c4", good)), Vec::<String>::new());
        let said = |message: &str| faults_of(("1a2b3c4", message)).join("\n");
        assert!(said("Lines\n\nwhy").contains("no area"));
        assert!(said("core: lints\n\nwhy").contains("says nothing"));
        assert!(said("core: keep the pointer").contains("no reason"));
        assert!(said("core: keep the pointer\nwhy").contains("no empty line"));
        assert!(said(&format!("core: {}\n\nwhy", "x".repeat(72))).contains("78 characters"));
    }
}
