//! Steps of `test` and `ci`: cargo commands that must pass, each step timed, a table at the end.

use crate::{driver, outside, packages, shown};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Bytes of stack of each test under a sanitizer. A cache of the tcache has 600 KB, and is made on the
/// stack, in frames that sanitizers make larger.
const SANITIZED_STACK: &str = "16777216";

/// The double of libcuda, which a test loads, finds the functions of the sanitizer in the test.
const EXPORTED: &str = "-Clink-arg=-rdynamic";

/// A step: a name, and the cargo commands that must all pass.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) commands: Vec<Vec<String>>,
    pub(crate) tool: Tool,
}

/// The tool that a step builds and runs for. Each has a target folder, since its flags build
/// everything anew.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Plain,
    Clients,
    Packages,
    Loom,
    Shuttle,
    Miri,
    ThreadSanitizer,
    AddressSanitizer,
    Fuzz,
    Nightly,
}

/// The outcome of a step.
pub(crate) struct Outcome {
    name: &'static str,
    /// `None` for a step that nothing here can run.
    passed: Option<bool>,
    time: Duration,
    /// Each command that failed, with the last lines that it printed.
    failures: Vec<(String, Vec<String>)>,
}

/// Splits a command line at its blanks.
pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The one command of a step, or none where its tool is not here: the step is shown as not run.
pub(crate) fn if_here(is_here: bool, line: &str) -> Vec<Vec<String>> {
    if is_here { vec![words(line)] } else { Vec::new() }
}

/// Runs steps, also after one that failed, and prints their table and then `left_out`: what was not
/// run, and the command that helps. Last come the ends of the commands that failed.
pub(crate) fn run(root: &Path, steps: &[Step], left_out: &[String]) -> ExitCode {
    let start = Instant::now();
    let outcomes: Vec<Outcome> = steps.iter().map(|step| step.run(root)).collect();
    let of = |what| outcomes.iter().filter(|outcome| outcome.passed == Some(what)).count();
    let (passed, failed) = (of(true), of(false));
    print!("{}", table(&outcomes, start.elapsed()));
    for (line, said) in outcomes.iter().flat_map(|outcome| &outcome.failures) {
        println!("\n== failed: {line}\n{}", said.join("\n"));
    }
    println!("\n{passed} passed, {failed} failed");
    for line in left_out {
        println!("not run: {line}");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table(outcomes: &[Outcome], all: Duration) -> String {
    let line = |name: &str, result: &str, time: Duration| {
        format!("{name:<26} {result:<8} {:>8.1}\n", time.as_secs_f64())
    };
    let mut lines = vec![
        format!("\n{:<26} {:<8} {:>8}\n", "step", "result", "seconds"),
        format!("{:-<26} {:-<8} {:->8}\n", "", "", ""),
    ];
    for Outcome { name, passed, time, .. } in outcomes {
        let result = match passed {
            Some(true) => "passed",
            Some(false) => "FAILED",
            None => "not run",
        };
        lines.push(line(name, result, *time));
    }
    lines.push(line("all", "", all));
    lines.concat()
}

impl Step {
    /// A step of one command of cargo.
    pub(crate) fn new(name: &'static str, line: &str) -> Self {
        Self { name, commands: vec![words(line)], tool: Tool::Plain }
    }

    fn run(&self, root: &Path) -> Outcome {
        let start = Instant::now();
        let mut failures = Vec::new();
        for args in &self.commands {
            let line = format!("{}: cargo {}", self.name, args.join(" "));
            println!("\n== {line}");
            let mut command = self.tool.cargo(root);
            command.args(args).current_dir(root);
            command.env("INSTA_UPDATE", "no").env("RUSTDOCFLAGS", "-D warnings");
            driver::environment(&mut command);
            failures.extend(shown::run(command).map(|lines| (line, lines)));
        }
        let passed = (!self.commands.is_empty()).then_some(failures.is_empty());
        Outcome { name: self.name, passed, time: start.elapsed(), failures }
    }
}

impl Tool {
    /// Whether it wants a nightly toolchain.
    pub(crate) fn is_outside(self) -> bool {
        matches!(self, Self::Miri | Self::ThreadSanitizer | Self::AddressSanitizer | Self::Nightly)
    }

    fn cargo(self, root: &Path) -> Command {
        let target = |command: &mut Command, name: &str| {
            command.env("CARGO_TARGET_DIR", root.join("target").join(name));
        };
        match self {
            Self::Plain => Command::new(env!("CARGO")),
            Self::Clients | Self::Fuzz => {
                let mut cargo = Command::new(env!("CARGO"));
                target(&mut cargo, if self == Self::Fuzz { "fuzz" } else { "clients" });
                cargo
            }
            Self::Packages => packages::cargo(root),
            Self::Nightly => outside::nightly(),
            Self::Loom | Self::Shuttle => {
                let checker = if self == Self::Loom { "loom" } else { "shuttle" };
                let mut cargo = Command::new(env!("CARGO"));
                cargo.env("RUSTFLAGS", format!("--cfg {checker}"));
                target(&mut cargo, checker);
                cargo
            }
            Self::Miri => {
                let mut cargo = outside::nightly();
                cargo.env("MIRIFLAGS", outside::MIRIFLAGS).env("INSTA_WORKSPACE_ROOT", root);
                cargo.env("PROPTEST_CASES", "4").env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
                target(&mut cargo, "miri");
                cargo
            }
            Self::ThreadSanitizer => {
                let mut cargo = outside::nightly();
                cargo.env("RUSTFLAGS", format!("-Zsanitizer=thread {EXPORTED}"));
                // A `Tcache` passes all on under a sanitizer, unless it is told to serve.
                cargo.env("BUCKETPOOL_HOST", "on");
                cargo.env("RUST_MIN_STACK", SANITIZED_STACK);
                cargo.env("INSTA_WORKSPACE_ROOT", root);
                target(&mut cargo, "thread-sanitizer");
                cargo
            }
            Self::AddressSanitizer => {
                let mut cargo = outside::nightly();
                cargo.env("RUSTFLAGS", format!("-Zsanitizer=address {EXPORTED}"));
                cargo.env("RUST_MIN_STACK", SANITIZED_STACK);
                cargo.env("ASAN_OPTIONS", outside::ASAN_OPTIONS);
                cargo.env("INSTA_WORKSPACE_ROOT", root);
                target(&mut cargo, "address-sanitizer");
                cargo
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_what_failed() {
        let second = Duration::from_secs(1);
        let outcome = |name, passed| Outcome { name, passed, time: second, failures: vec![] };
        let outcomes =
            [outcome("format", Some(true)), outcome("test", Some(false)), outcome("lint", None)];
        let table = table(&outcomes, 2 * second);
        assert!(table.contains("format                     passed        1.0\n"), "{table}");
        assert!(table.contains("test                       FAILED        1.0\n"), "{table}");
        assert!(table.contains("lint                       not run       1.0\n"), "{table}");
    }
}
