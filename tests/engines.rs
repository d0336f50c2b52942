//! The lines that a program with its own frame loop changes for a pool: `examples/engines`, and
//! their difference in `docs/wgpu.md`.
#![expect(clippy::unwrap_used, reason = "tests")]

use similar::{ChangeTag, TextDiff};
use std::fs;

/// The frame loop of a program.
fn frame_loop(program: &str) -> String {
    let path = format!("{}/examples/engines/{program}.rs", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with("    for "));
    let mut inside = Vec::new();
    for line in lines {
        inside.push(line.strip_prefix("    ").unwrap_or(line));
        if line == "    }" {
            break;
        }
    }
    inside.join("\n") + "\n"
}

#[test]
fn a_frame_loop_changes_by_at_most_five_lines_and_the_docs_show_which() {
    let docs = format!("{}/docs/wgpu.md", env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_to_string(docs).unwrap();
    for program in ["pipeline", "boids"] {
        let [before, after] =
            ["before", "after"].map(|which| frame_loop(&format!("{program}_{which}")));
        let diff = TextDiff::from_lines(&before, &after);
        let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count();
        let changed = count(ChangeTag::Insert).max(count(ChangeTag::Delete));
        assert!((1..=5).contains(&changed), "{program}: {changed} lines");
        let lines =
            diff.iter_all_changes().map(|change| (change.tag().to_string(), change.value()));
        let shown: String = lines.map(|(tag, line)| tag + line).collect();
        assert!(docs.contains(&shown), "docs/wgpu.md: expected this difference:\n{shown}");
    }
}
