//! `cargo xtask ci`: everything that CI runs, step by step, with a table at the end.

use crate::selection::Selection;
use crate::step::{self, Step, Tool, if_here, words};
use crate::{api, driver, instructions, outside, packages, platforms, test};
use std::path::Path;
use std::process::{Command, ExitCode};

/// The features of the facade that are combined.
const FEATURES: [&str; 4] = ["host", "cuda", "wgpu", "sim"];

/// The doc tests that `cargo xtask test` leaves out.
const OTHER_DOCUMENTED: &str = "test --locked --package pool-sim --package pool-config --package \
                                pool-array --package pool-host --package pool-trace --package \
                                pool-cuda --package pool-wgpu --all-features --doc";
/// The tests that `cargo xtask test` leaves out.
const OTHER_TESTS: [&str; 5] = [
    "test --locked --package pool-wgpu --package pool-python --all-features --all-targets \
     --no-fail-fast",
    "test --locked --package pool-bench --all-features --all-targets --no-fail-fast",
    "test --locked --package pool-preload --no-fail-fast",
    "test --locked --package pool-c --no-fail-fast",
    "test --locked --package pool-core --test mistakes",
];

/// Tests of host memory as static programs: they run on musl's C library.
const ON_MUSL: &str = "test --locked --profile models --target x86_64-unknown-linux-musl --package pool-sim --package \
                       pool-config --package pool-array --package pool-trace --package pool-host \
                       --features pool-array/ndarray,pool-host/trace,pool-host/allocator-api2 --lib \
                       --bins --tests --no-fail-fast";

/// The protocols in all interleavings. Other flags mean another build of everything, elsewhere.
const MODELS: &str =
    "test --quiet --locked --profile models --package pool-core --package pool-trace --lib model";

/// Longer ways with more threads, in random orders.
const LONG_MODELS: [&str; 2] = [
    "test --quiet --locked --profile models --package pool-core --test shuttle",
    "test --quiet --locked --profile models --package pool-host --lib model_",
];

/// Programs beside ours that are workspaces of their own, and the command that fails where a lock
/// file does not go with the manifests.
const PEERS: [&str; 5] =
    ["pool-bench/peers/clients", "pool-bench/peers/cubecl", CLIENTS, EGUI, "fuzz"];
const LOCKED: &str = "update --quiet --locked --workspace";

/// Examples of other people's crates on bucketpool, which have a workspace and a target folder.
const CLIENTS: &str = "examples/clients";
/// A callback of egui, outside of the workspace too.
const EGUI: &str = "examples/egui";

/// What runs with `--deep` alone: what builds nearly everything anew, or has no end of its own.
const DEEP_ONLY: &str = "the Rust clients, PyTorch on the double, the packages, AddressSanitizer, the GPU bundle on the \
                         double, the search for new fuzz inputs, and mutants";

/// Runs the steps of `cargo xtask test` and then all others, also after one that failed. With
/// `--rest` only the others; with `--deep` all steps run, and the outside tools on all tests that
/// they support; with `--only NAME` only steps whose name holds NAME.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    let bad_input = |why: &str| {
        eprintln!("error: {why}");
        ExitCode::from(crate::BAD_INPUT)
    };
    let selection = match Selection::read("ci", further) {
        Ok(selection) => selection,
        Err(why) => return bad_input(&why),
    };
    let deep = selection.deep;
    let mut steps = if selection.rest { Vec::new() } else { test::steps() };
    steps.extend(self::steps(root, deep));
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
    let mut left_out = Vec::new();
    for driver in driver::ALL.iter().filter(|driver| !driver.is_here()) {
        left_out.push(format!("{} on a real device, since {}", driver.backend, driver.absence()));
    }
    for platform in platforms::ALL.iter().filter(|platform| !platform.is_here()) {
        let (feature, cure) = (platform.feature, platform.cure());
        left_out.push(format!("the check of feature {feature}; `{cure}`"));
    }
    if !platforms::has_musl() {
        left_out.push(format!("tests on musl; `{}`", platforms::MUSL_CURE));
    }
    left_out.push("the WebGPU tests; `cargo xtask web` fetches what they need".into());
    for tool in ["deny", "fuzz", "mutants", "public-api"].iter().filter(|tool| !has_cargo(tool)) {
        left_out.push(format!("the step of cargo-{tool}; `cargo install --locked cargo-{tool}`"));
    }
    if !instructions::is_here() {
        left_out.push(format!("instructions; `{}`", instructions::CURE));
    }
    if !deep {
        left_out.push(format!("{DEEP_ONLY}; `cargo xtask ci --deep`"));
    }
    if !has_python() {
        left_out.push("programs and the Python package; they want Python 3.11 with venv".into());
    }
    if !has_nightly {
        left_out.push(format!("Miri and the sanitizers; `{}`", outside::CURE));
    } else if !deep {
        left_out
            .push("the longer tests of Miri and ThreadSanitizer; `cargo xtask ci --deep`".into());
    }
    step::run(root, &steps, &left_out)
}

/// The program for every memory on the simulated device. CUDA's is a test on the double.
const ON_SIM: &str = "run --quiet --locked --features sim --example tiles";

/// The ports on wgpu's noop device, which compare nothing there. With all features, for which the examples on
/// a driver are built too.
const ON_NOOP: &str = "run --quiet --locked --all-features --example ports -- --noop";

/// The examples that need a Vulkan driver, if there is one.
fn examples_on_wgpu() -> Vec<Vec<String>> {
    if !driver::ALL.iter().any(|driver| driver.backend == "wgpu" && driver.is_here()) {
        return Vec::new();
    }
    let example = |name| words(&format!("run --quiet --locked --all-features --example {name}"));
    let mut examples =
        ["tiles", "wgpu_elementwise", "wgpu_frames", "engines", "ports"].map(example).to_vec();
    // In the workspace's folder, so that wgpu is built once.
    examples.push(words(&format!(
        "run --quiet --locked --target-dir target --manifest-path {EGUI}/Cargo.toml"
    )));
    examples
}

fn steps(root: &Path, deep: bool) -> Vec<Step> {
    let step = Step::new;
    let several = |name, commands, tool| Step { name, commands, tool };
    let combined = combinations().map(|features| {
        words(&format!("clippy --quiet --locked --no-default-features {features} -- -D warnings"))
    });
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
    // With wgpu the benches take five minutes to build; their tests have built and run them on it.
    let smoke = if deep { "bench --smoke" } else { "bench --smoke --backend host,sim" };
    let deeply = |commands: Vec<Vec<String>>| if deep { commands } else { Vec::new() };
    vec![
        step("tidy", "run --quiet --locked --package xtask -- tidy"),
        step(
            "lint, all features",
            "clippy --locked --workspace --all-targets --all-features -- -D warnings",
        ),
        several("lock files of the peers", peers.to_vec(), Tool::Plain),
        several("lint, 16 feature sets", combined.collect(), Tool::Plain),
        several("lint, other platforms", platforms, Tool::Plain),
        several("tests on musl", if_here(platforms::has_musl(), ON_MUSL), Tool::Plain),
        several("other tests", OTHER_TESTS.map(words).to_vec(), Tool::Plain),
        step("other doc tests", OTHER_DOCUMENTED),
        step("example on sim", ON_SIM),
        step("doc", "doc --locked --workspace --all-features --no-deps"),
        step("ports on the noop device", ON_NOOP),
        several("examples on wgpu", examples_on_wgpu(), Tool::Plain),
        several("Rust clients", deeply(clients.to_vec()), Tool::Clients),
        several("programs, preloaded", if_here(has_python(), &bench("programs")), Tool::Plain),
        several("Python package", if_here(has_python(), &bench("wheel")), Tool::Plain),
        several(
            "PyTorch on the double",
            deeply(if_here(has_python(), &bench("torch"))),
            Tool::Plain,
        ),
        several("saved fuzz inputs", vec![words(FUZZ_INPUTS)], Tool::Fuzz),
        several("fuzzing", deeply(fuzzing()), Tool::Nightly),
        several("public items", if_here(api::is_here(), &bench("api")), Tool::Plain),
        several(
            "mutants of the diff",
            if_here(deep && has_cargo("mutants"), &bench("mutants --since")),
            Tool::Plain,
        ),
        several("licences and sources", deny(), Tool::Plain),
        several("packages", deeply(vec![words(&packages::line(root))]), Tool::Packages),
        several("models, all orders", vec![words(MODELS)], Tool::Loom),
        several("models, at random", LONG_MODELS.map(words).to_vec(), Tool::Shuttle),
        several("Miri", under(outside::miri(deep)), Tool::Miri),
        several("ThreadSanitizer", under(outside::threads(deep)), Tool::ThreadSanitizer),
        several("AddressSanitizer", deeply(under(outside::addresses())), Tool::AddressSanitizer),
        several(
            "instructions",
            if_here(instructions::is_here(), &bench("bench --instructions")),
            Tool::Plain,
        ),
        several("counts of threads", vec![words(&bench("bench --counts"))], Tool::Plain),
        several("bench --smoke", vec![words(&bench(smoke))], Tool::Plain),
        several(
            "GPU bundle, on the double",
            deeply(vec![words(&bench("gpu-bundle --try"))]),
            Tool::Plain,
        ),
    ]
}

/// The saved inputs of the fuzz targets, without a fuzzer.
const FUZZ_INPUTS: &str = "test --quiet --locked --manifest-path fuzz/Cargo.toml --lib";
/// The targets, and how long each is looked at.
const FUZZ_TARGETS: [&str; 9] =
    ["script", "ptrace", "rmm", "torch", "any_trace", "compressed", "settings", "config", "sizes"];
const FUZZ_SECONDS: u32 = 300;
/// The most that one call of an allocator may ask for, those of C included. zstd asks for 128 MiB
/// where a frame says so, and touches what it needs.
const FUZZ_MALLOC_MB: u32 = 256;

/// A search for new inputs of each fuzz target, which go to its folder in `fuzz/corpus`; git
/// ignores them by their names.
fn fuzzing() -> Vec<Vec<String>> {
    if !has_cargo("fuzz") {
        return Vec::new();
    }
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect();
    let run = |name: &&str| {
        words(format!(
            "fuzz run {name} fuzz/corpus/{name} -- -max_total_time={FUZZ_SECONDS} \
             -malloc_limit_mb={FUZZ_MALLOC_MB}"
        ))
    };
    FUZZ_TARGETS.iter().map(run).collect()
}

/// Licences, sources and wildcards of all dependencies, by `deny.toml`.
fn deny() -> Vec<Vec<String>> {
    if_here(has_cargo("deny"), "deny check bans licenses sources")
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
}
