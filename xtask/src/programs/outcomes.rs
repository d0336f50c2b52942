//! The outcome of each test of a program, from a report in JUnit's format.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The name of each test, with its outcome.
pub(super) type Outcomes = BTreeMap<String, String>;

/// Reads a report. Tests of one name, such as subtests, are one test that has the worst outcome.
pub(super) fn read(report: &Path) -> Result<Outcomes, String> {
    let fault = |why: String| format!("{}: {why}", report.display());
    let text = fs::read_to_string(report).map_err(|error| fault(error.to_string()))?;
    let document = roxmltree::Document::parse(&text).map_err(|error| fault(error.to_string()))?;
    let mut outcomes = Outcomes::new();
    for test in document.descendants().filter(|node| node.has_tag_name("testcase")) {
        let part = |name| test.attribute(name).unwrap_or_default();
        let name = format!("{} {}", part("classname"), part("name")).trim().to_owned();
        let has = |tag: &str| test.children().any(|child| child.has_tag_name(tag));
        // In the order of the alphabet, the first is the worst.
        let outcome = match () {
            () if has("error") => "error",
            () if has("failure") => "failed",
            () if has("skipped") => "skipped",
            () => "passed",
        };
        let known = outcomes.entry(name).or_insert_with(|| outcome.to_owned());
        if outcome < known.as_str() {
            outcome.clone_into(known);
        }
    }
    if outcomes.is_empty() { Err(fault("no test in it".into())) } else { Ok(outcomes) }
}

/// Counts the outcomes: `12 passed, 1 skipped`.
pub(super) fn summary(outcomes: &Outcomes) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in outcomes.values() {
        // What is no outcome of a test is the output of a program.
        let known = ["error", "failed", "passed", "skipped"];
        let kind = known.into_iter().find(|kind| kind == outcome).unwrap_or("outputs");
        *counts.entry(kind).or_default() += 1;
    }
    let parts = counts.iter().map(|(kind, count)| format!("{count} {kind}"));
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_of_a_report_has_one_outcome() {
        let file = std::env::temp_dir().join(format!("xtask-outcomes-{}", std::process::id()));
        fs::write(
            &file,
            "<testsuites><testsuite>\
             <testcase name='a' classname='m.T'/><testcase name='b'><skipped/></testcase>\
             <testcase name='c'><failure>why</failure></testcase><testcase name='c'/>\
             <testcase name='d'/><testcase name='d'><error/></testcase>\
             </testsuite></testsuites>",
        )
        .unwrap();
        let outcomes = read(&file).unwrap();
        let expected = [("b", "skipped"), ("c", "failed"), ("d", "error"), ("m.T a", "passed")];
        assert!(outcomes.iter().map(|(a, b)| (a.as_str(), b.as_str())).eq(expected));
        assert_eq!(summary(&outcomes), "1 error, 1 failed, 1 passed, 1 skipped");
        fs::write(&file, "<testsuites/>").unwrap();
        assert!(read(&file).unwrap_err().ends_with("no test in it"));
        fs::remove_file(file).unwrap();
    }
}
