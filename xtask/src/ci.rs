//! `cargo xtask ci`: everything that CI runs, step by step, with a table at the end.

use crate::{driver, platforms};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The features of the facade that are combined.
const FEATURES: [&str; 4] = ["host", "cuda", "wgpu", "sim"];

/// The protocols in all interleavings. Other flags mean another build of everything, elsewhere.
const MODELS: &str =
    "test --quiet --locked --release --package pool-core --package pool-host --lib model";

/// Longer ways with more threads, in random orders.
const LONG_MODELS: &str = "test --quiet --locked --release --package pool-host --lib model_";

/// A step: a name, and the cargo commands that must all pass.
struct Step {
    name: &'static str,
    commands: Vec<Vec<String>>,
    /// The model checker that it is built for, if any.
    checker: &'static str,
}

/// What became of a step.
struct Outcome {
    name: &'static str,
    /// `None` for a step that nothing here can run.
    passed: Option<bool>,
    time: Duration,
}

/// Runs all steps, also after one that failed.
pub(crate) fn run(root: &Path) -> ExitCode {
    let start = Instant::now();
    let outcomes: Vec<Outcome> = steps().iter().map(|step| step.run(root)).collect();
    let of = |what| outcomes.iter().filter(|outcome| outcome.passed == Some(what)).count();
    let (passed, failed) = (of(true), of(false));
    print!("{}", table(&outcomes, start.elapsed()));
    for driver in driver::ALL.iter().filter(|driver| !driver.is_here()) {
        println!("not run: {} on a real device, since {}", driver.backend, driver.absence());
    }
    for platform in platforms::ALL.iter().filter(|platform| !platform.is_here()) {
        let (feature, cure) = (platform.feature, platform.cure());
        println!("not run: the check of feature {feature}; it wants `{cure}`");
    }
    println!("not run: the WebGPU tests; `cargo xtask web` fetches what they need");
    println!("\n{passed} passed, {failed} failed");
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
    for Outcome { name, passed, time } in outcomes {
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

fn steps() -> Vec<Step> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let step = |name, line| Step { name, commands: vec![words(line)], checker: "" };
    let example = |name| format!("run --quiet --locked --all-features --example {name}");
    let combined = combinations().map(|features| {
        words(&format!("clippy --quiet --locked --no-default-features {features} -- -D warnings"))
    });
    let vulkan = driver::ALL.iter().any(|driver| driver.backend == "wgpu" && driver.is_here());
    let mut examples = vec![words(&example("custom_backend")), words(&example("on_host"))];
    if vulkan {
        for name in ["on_wgpu", "wgpu_elementwise", "wgpu_frames"] {
            examples.push(words(&example(name)));
        }
    }
    let platforms = platforms::ALL.iter().filter(|platform| platform.is_here());
    let platforms = platforms.flat_map(platforms::Platform::checks);
    let platforms = platforms.map(|line| words(&line)).collect();
    vec![
        step("format", "fmt --all --check"),
        step("tidy", "run --quiet --locked --package xtask -- tidy"),
        step("lint", "clippy --locked --workspace --all-targets --all-features -- -D warnings"),
        Step { name: "lint, 16 feature sets", commands: combined.collect(), checker: "" },
        Step { name: "lint, other platforms", commands: platforms, checker: "" },
        step("test", "test --locked --workspace --all-features --all-targets --no-fail-fast"),
        step("doc tests", "test --locked --workspace --all-features --doc"),
        step("doc", "doc --locked --workspace --all-features --no-deps"),
        Step { name: "examples", commands: examples, checker: "" },
        Step { checker: "loom", ..step("models, all orders", MODELS) },
        Step { checker: "shuttle", ..step("models, at random", LONG_MODELS) },
        step("bench --smoke", "run --quiet --locked --package xtask -- bench --smoke"),
    ]
}

/// All combinations of the features, as arguments of cargo.
fn combinations() -> impl Iterator<Item = String> {
    (0..1 << FEATURES.len()).map(|set| {
        let chosen = FEATURES.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0);
        let names: Vec<&str> = chosen.map(|(_, name)| *name).collect();
        if names.is_empty() { String::new() } else { format!("--features {}", names.join(",")) }
    })
}

impl Step {
    fn run(&self, root: &Path) -> Outcome {
        let start = Instant::now();
        let mut passed = true;
        for args in &self.commands {
            println!("\n== {}: cargo {}", self.name, args.join(" "));
            let mut command = Command::new(env!("CARGO"));
            command.args(args).current_dir(root);
            command.env("INSTA_UPDATE", "no").env("RUSTDOCFLAGS", "-D warnings");
            driver::environment(&mut command);
            if !self.checker.is_empty() {
                let checker = format!("--cfg {}", self.checker);
                let target = root.join("target").join(self.checker);
                command.env("RUSTFLAGS", checker).env("CARGO_TARGET_DIR", target);
            }
            passed &= command.status().is_ok_and(|status| status.success());
        }
        let passed = (!self.commands.is_empty()).then_some(passed);
        Outcome { name: self.name, passed, time: start.elapsed() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_features_are_combined_in_sixteen_ways() {
        let all: Vec<String> = combinations().collect();
        assert_eq!((all.len(), all[0].as_str()), (16, ""));
        assert_eq!(all[15], "--features host,cuda,wgpu,sim");
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 16);
    }

    #[test]
    fn the_table_names_what_failed() {
        let second = Duration::from_secs(1);
        let outcome = |name, passed| Outcome { name, passed, time: second };
        let outcomes =
            [outcome("format", Some(true)), outcome("test", Some(false)), outcome("lint", None)];
        let table = table(&outcomes, 2 * second);
        assert!(table.contains("format                     passed        1.0\n"), "{table}");
        assert!(table.contains("test                       FAILED        1.0\n"), "{table}");
        assert!(table.contains("lint                       not run       1.0\n"), "{table}");
    }
}
