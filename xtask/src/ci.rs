//! `cargo xtask ci`: everything that CI runs, step by step, with a table at the end.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// A step: its name, and the arguments of cargo.
struct Step {
    name: &'static str,
    args: Vec<String>,
    rustdocflags: bool,
}

/// Runs all steps, also after one that failed.
pub(crate) fn run(root: &Path) -> ExitCode {
    let start = Instant::now();
    let results: Vec<(&str, bool, Duration)> = steps().iter().map(|step| step.run(root)).collect();
    println!("\n{:<34} {:<8} {:>8}", "step", "result", "seconds");
    println!("{:-<34} {:-<8} {:->8}", "", "", "");
    for (name, passed, time) in &results {
        let result = if *passed { "passed" } else { "FAILED" };
        println!("{name:<34} {result:<8} {:>8.1}", time.as_secs_f64());
    }
    let passed = results.iter().filter(|(_, passed, _)| *passed).count();
    println!("{:<34} {:<8} {:>8.1}", "all", "", start.elapsed().as_secs_f64());
    println!("\n{passed} passed, {} failed", results.len() - passed);
    if passed == results.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn steps() -> Vec<Step> {
    let step = |name, args: &str| Step {
        name,
        args: args.split_whitespace().map(str::to_owned).collect(),
        rustdocflags: name == "doc",
    };
    vec![
        step("format", "fmt --all --check"),
        step("tidy", "run --quiet --locked --package xtask -- tidy"),
        step("lint", "clippy --locked --workspace --all-targets -- -D warnings"),
        step("lint, no features", "clippy --locked --no-default-features -- -D warnings"),
        step("lint, all features", "clippy --locked --all-features -- -D warnings"),
        step("test", "test --locked --workspace --all-features --all-targets"),
        step("doc tests", "test --locked --workspace --all-features --doc"),
        step("doc", "doc --locked --workspace --all-features --no-deps"),
        step("example: custom backend", "run --locked --all-features --example custom_backend"),
        step("bench --smoke", "run --quiet --locked --package xtask -- bench --smoke"),
    ]
}

impl Step {
    fn run(&self, root: &Path) -> (&'static str, bool, Duration) {
        println!("\n== {}: cargo {}", self.name, self.args.join(" "));
        let start = Instant::now();
        let mut command = Command::new(env!("CARGO"));
        command.args(&self.args).current_dir(root).env("INSTA_UPDATE", "no");
        if self.rustdocflags {
            command.env("RUSTDOCFLAGS", "-D warnings");
        }
        let passed = command.status().is_ok_and(|status| status.success());
        (self.name, passed, start.elapsed())
    }
}
