//! `cargo xtask ci`: everything that CI runs, step by step, with a table at the end.

use crate::selection::Selection;
use crate::{api, driver, instructions, outside, packages, platforms, shown};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The features of the facade that are combined.
const FEATURES: [&str; 4] = ["host", "cuda", "wgpu", "sim"];

/// The protocols in all interleavings. Other flags mean another build of everything, elsewhere.
const MODELS: &str =
    "test --quiet --locked --release --package pool-core --package pool-host --lib model";

/// Longer ways with more threads, in random orders.
const LONG_MODELS: &str =
    "test --quiet --locked --release --package pool-core --package pool-host --lib model_";

/// Programs beside ours that are workspaces of their own, and the command that fails where a lock
/// file does not go with the manifests.
const PEERS: [&str; 4] = ["pool-bench/peers/clients", "pool-bench/peers/cubecl", CLIENTS, "fuzz"];
const LOCKED: &str = "update --quiet --locked --workspace";

/// Examples of other people's crates on bucketpool, which have a workspace and a target folder.
const CLIENTS: &str = "examples/clients";

/// A step: a name, and the cargo commands that must all pass.
struct Step {
    name: &'static str,
    commands: Vec<Vec<String>>,
    tool: Tool,
}

/// The tool that a step builds and runs for. Each has a target folder, since its flags build
/// everything anew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
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
struct Outcome {
    name: &'static str,
    /// `None` for a step that nothing here can run.
    passed: Option<bool>,
    time: Duration,
    /// Each command that failed, with the last lines that it printed.
    failures: Vec<(String, Vec<String>)>,
}

/// Runs all steps, also after one that failed. With `--deep` the outside tools run on all tests
/// that they support; with `--only NAME` only steps whose name holds NAME.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    let bad_input = |why: &str| {
        eprintln!("error: {why}");
        ExitCode::from(crate::BAD_INPUT)
    };
    let selection = match Selection::read("ci", further) {
        Ok(selection) => selection,
        Err(why) => return bad_input(&why),
    };
    let (start, deep) = (Instant::now(), selection.deep);
    let mut steps = steps(root, deep);
    if !steps.iter().any(|step| selection.holds(step.name)) {
        return bad_input(&selection.none_of("step", steps.iter().map(|step| step.name)));
    }
    steps.retain(|step| selection.holds(step.name));
    let has_nightly = outside::install();
    if !has_nightly {
        for step in steps.iter_mut().filter(|step| step.tool.is_outside()) {
            step.commands.clear(); // shown as not run
        }
    }
    let outcomes: Vec<Outcome> = steps.iter().map(|step| step.run(root)).collect();
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
    for tool in ["deny", "fuzz", "mutants", "public-api"].iter().filter(|tool| !has_cargo(tool)) {
        println!("not run: the step of cargo-{tool}; `cargo install --locked cargo-{tool}`");
    }
    if !deep {
        println!("not run: the search for new fuzz inputs, and mutants; `cargo xtask ci --deep`");
    }
    if !has_python() {
        println!("not run: programs and the Python package; they want Python 3.11 with venv");
    }
    if !has_nightly {
        println!("not run: Miri and the sanitizers; they want `{}`", outside::CURE);
    } else if !deep {
        println!("not run: the longer tests of Miri and the sanitizers; `cargo xtask ci --deep`");
    }
    for (line, said) in outcomes.iter().flat_map(|outcome| &outcome.failures) {
        println!("\n== failed: {line}\n{}", said.join("\n"));
    }
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

fn steps(root: &Path, deep: bool) -> Vec<Step> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let step = |name, line| Step { name, commands: vec![words(line)], tool: Tool::Plain };
    let several = |name, commands, tool| Step { name, commands, tool };
    let example = |name| format!("run --quiet --locked --all-features --example {name}");
    let combined = combinations().map(|features| {
        words(&format!("clippy --quiet --locked --no-default-features {features} -- -D warnings"))
    });
    let vulkan = driver::ALL.iter().any(|driver| driver.backend == "wgpu" && driver.is_here());
    let everywhere = ["custom_backend", "on_host", "on_sim", "tile_batch"];
    let mut examples = everywhere.map(|name| words(&example(name))).to_vec();
    if vulkan {
        for name in ["on_wgpu", "wgpu_elementwise", "wgpu_frames", "engines"] {
            examples.push(words(&example(name)));
        }
    }
    let platforms = platforms::ALL.iter().filter(|platform| platform.is_here());
    let platforms = platforms.flat_map(platforms::Platform::checks);
    let platforms = platforms.map(|line| words(&line)).collect();
    let peers = PEERS.map(|folder| words(&format!("{LOCKED} --manifest-path {folder}/Cargo.toml")));
    let clients = ["arrow", "vortex", "candle"].map(|name| {
        let manifest = format!("--manifest-path {CLIENTS}/Cargo.toml");
        words(&format!("run --quiet --locked --release {manifest} --example {name} -- --smoke"))
    });
    let bench = |further| format!("run --quiet --locked --package xtask -- {further}");
    let under = |lines: Vec<String>| lines.iter().map(|line| words(line)).collect();
    vec![
        step("format", "fmt --all --check"),
        step("tidy", "run --quiet --locked --package xtask -- tidy"),
        step("lint", "clippy --locked --workspace --all-targets --all-features -- -D warnings"),
        several("lock files of the peers", peers.to_vec(), Tool::Plain),
        several("lint, 16 feature sets", combined.collect(), Tool::Plain),
        several("lint, other platforms", platforms, Tool::Plain),
        step("test", "test --locked --workspace --all-features --all-targets --no-fail-fast"),
        step("doc tests", "test --locked --workspace --all-features --doc"),
        step("doc", "doc --locked --workspace --all-features --no-deps"),
        several("examples", examples, Tool::Plain),
        several("Rust clients", clients.to_vec(), Tool::Clients),
        several("programs, preloaded", if_here(has_python(), &bench("programs")), Tool::Plain),
        several("Python package", if_here(has_python(), &bench("wheel")), Tool::Plain),
        several("saved fuzz inputs", vec![words(FUZZ_INPUTS)], Tool::Fuzz),
        several("fuzzing", if deep { fuzzing() } else { Vec::new() }, Tool::Nightly),
        several("public items", if_here(api::is_here(), &bench("api")), Tool::Plain),
        several(
            "mutants of the diff",
            if_here(deep && has_cargo("mutants"), &bench("mutants --since")),
            Tool::Plain,
        ),
        several("licences and sources", deny(), Tool::Plain),
        several("packages", vec![words(&packages::line(root))], Tool::Packages),
        several("models, all orders", vec![words(MODELS)], Tool::Loom),
        several("models, at random", vec![words(LONG_MODELS)], Tool::Shuttle),
        several("Miri", under(outside::miri(deep)), Tool::Miri),
        several("ThreadSanitizer", under(outside::threads(deep)), Tool::ThreadSanitizer),
        several("AddressSanitizer", under(outside::addresses(deep)), Tool::AddressSanitizer),
        several(
            "instructions",
            if_here(instructions::is_here(), &bench("bench --instructions")),
            Tool::Plain,
        ),
        several("bench --smoke", vec![words(&bench("bench --smoke"))], Tool::Plain),
        several("GPU bundle, on the double", vec![words(&bench("gpu-bundle --try"))], Tool::Plain),
    ]
}

/// The saved inputs of the fuzz targets, without a fuzzer.
const FUZZ_INPUTS: &str = "test --quiet --locked --manifest-path fuzz/Cargo.toml --lib";
/// The targets, and how long each is looked at.
const FUZZ_TARGETS: [&str; 8] =
    ["script", "ptrace", "rmm", "torch", "any_trace", "settings", "config", "sizes"];
const FUZZ_SECONDS: u32 = 300;

/// A search for new inputs of each fuzz target, which go to its folder in `fuzz/corpus`; git
/// ignores them by their names.
fn fuzzing() -> Vec<Vec<String>> {
    if !has_cargo("fuzz") {
        return Vec::new();
    }
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect();
    let run = |name: &&str| {
        words(format!("fuzz run {name} fuzz/corpus/{name} -- -max_total_time={FUZZ_SECONDS}"))
    };
    FUZZ_TARGETS.iter().map(run).collect()
}

/// Licences, sources and wildcards of all dependencies, by `deny.toml`.
fn deny() -> Vec<Vec<String>> {
    if_here(has_cargo("deny"), "deny check bans licenses sources")
}

/// The one command of a step, or none where its tool is not here: the step is shown as not run.
fn if_here(is_here: bool, line: &str) -> Vec<Vec<String>> {
    let words = line.split_whitespace().map(str::to_owned).collect();
    if is_here { vec![words] } else { Vec::new() }
}

/// Whether cargo has this command.
fn has_cargo(name: &str) -> bool {
    let asked = Command::new(env!("CARGO")).args([name, "--version"]).output();
    asked.is_ok_and(|said| said.status.success())
}

/// Whether Python can make environments here, for CPython's and NumPy's tests.
fn has_python() -> bool {
    let asked = Command::new("python3")
        .args(["-c", "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"])
        .output();
    asked.is_ok_and(|said| said.status.success())
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
    fn is_outside(self) -> bool {
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
                cargo.env("RUSTFLAGS", "-Zsanitizer=thread --cfg single_fence");
                cargo.env("INSTA_WORKSPACE_ROOT", root);
                target(&mut cargo, "thread-sanitizer");
                cargo
            }
            Self::AddressSanitizer => {
                let mut cargo = outside::nightly();
                cargo.env("RUSTFLAGS", "-Zsanitizer=address");
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
        let outcome = |name, passed| Outcome { name, passed, time: second, failures: vec![] };
        let outcomes =
            [outcome("format", Some(true)), outcome("test", Some(false)), outcome("lint", None)];
        let table = table(&outcomes, 2 * second);
        assert!(table.contains("format                     passed        1.0\n"), "{table}");
        assert!(table.contains("test                       FAILED        1.0\n"), "{table}");
        assert!(table.contains("lint                       not run       1.0\n"), "{table}");
    }
}
