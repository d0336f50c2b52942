//! `bench` and other tasks that measure: builds `pool-bench` for this machine's drivers and runs
//! it.
//!
//! The build is in release mode. All arguments are passed on.

use crate::driver::{self, Driver};
use crate::programs::Python;
use crate::{counts, instructions, platforms, preload, progress, sources};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Workspace of the program of real clients.
const CLIENTS: &str = "pool-bench/peers/clients";

/// Runs `pool-bench` with these arguments. Returns its exit status.
pub(crate) fn run(root: &Path, args: &[String]) -> ExitCode {
    let at = |flag: &str| args.iter().position(|arg| arg == flag);
    let without = |at: usize| [&args[1..at], &args[at + 1..]].concat();
    if let Some(at) = at("--counts").filter(|_| args[0] == "bench") {
        return counts::run(root, &without(at));
    }
    let (features, left_out) = match features(args) {
        Ok(found) => found,
        Err(driver) => return refuse(&driver),
    };
    let on_musl = args.iter().any(|arg| arg == "--musl");
    if on_musl && !platforms::has_musl() {
        eprintln!("error: `--musl`: no static program can be built; `{}`", platforms::MUSL_CURE);
        return ExitCode::from(crate::BAD_INPUT);
    }
    let cargo = |task: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(task).args(["--release", "--locked", "--package", "pool-bench"]);
        cargo.args(["--features", &features.join(",")]);
        cargo.arg("--manifest-path").arg(root.join("Cargo.toml"));
        if on_musl {
            cargo.args(["--target", platforms::MUSL]);
        }
        cargo
    };
    // The build runs first and shows its output; the run is quiet, so that the program prints the
    // last line.
    if !progress::build("pool-bench", cargo(&["build"])) {
        return fail("pool-bench did not build; the compiler says why above");
    }
    if let Some(at) = at("--instructions") {
        return instructions::run(root, &program(root), &without(at));
    }
    let mut run = cargo(&["run", "--quiet"]);
    run.arg("--").args(args).env("BUCKETPOOL_ROOT", root);
    run.env(sources::BUILD, sources::build(root));
    if let Err(why) = programs_beside(root, args, &features, &mut run) {
        return fail(&why);
    }
    driver::environment(&mut run);
    soak_environment(&mut run, args);
    match run.status() {
        Ok(status) if status.success() => {
            // Behind a failure the last line is what was wrong.
            for line in left_out {
                eprintln!("{line}");
            }
            ExitCode::SUCCESS
        }
        Ok(status) => ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)),
        Err(error) => fail(&format!("pool-bench did not start: {error}")),
    }
}

/// Builds the programs that the measuring one runs beside itself, and tells it where they are.
fn programs_beside(
    root: &Path,
    args: &[String],
    features: &[&str],
    run: &mut Command,
) -> Result<(), String> {
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if has("--threads") {
        if !has("--smoke") && !has("--musl") {
            run.env("BUCKETPOOL_COUNTING", counts::build(root)?);
        }
    } else if features.contains(&"peers") && !has("arena") && !has("--peers=arena") {
        run.env("BUCKETPOOL_CLIENTS", clients(root)?);
    }
    if is_preload(args) {
        let library = preload::build(root).map_err(|_| "the preload library did not build")?;
        run.env("BUCKETPOOL_PRELOAD", library);
        let python = Python::prepare(root)?;
        if asks_for(args, "preload") {
            python.install(root)?;
        }
        run.env("BUCKETPOOL_PYTHON", python.path());
    }
    Ok(())
}

/// Features of `pool-bench` that these arguments want, and a line for each whose driver is not here:
/// it is left out. Returns the driver that a named one lacks.
fn features(args: &[String]) -> Result<(Vec<&'static str>, Vec<String>), Driver> {
    let counts_wgpu = || asked_for(args).is_some_and(|names| names == ["wgpu"]);
    if args.iter().any(|arg| arg == "--instructions") && counts_wgpu() {
        return Ok((vec!["noop"], Vec::new()));
    }
    let quick = ["--instructions", "--help", "-h"]; // builds faster
    if is_preload(args) || args.iter().any(|arg| quick.contains(&arg.as_str())) {
        return Ok((Vec::new(), Vec::new()));
    }
    let asked = asked_for(args);
    let on_threads = args.iter().any(|arg| arg == "--threads");
    if asked.is_none() && (on_threads || are_peers(args)) {
        return Ok((vec!["peers"], Vec::new()));
    }
    let (mut features, mut left_out) = (Vec::new(), Vec::new());
    for driver in driver::ALL {
        let named = asked.as_ref().is_some_and(|names| names.iter().any(|n| n == driver.backend));
        let wanted = named || (asked.is_none() && args.first().is_some_and(|task| task == "bench"));
        match driver.is_here() {
            _ if !wanted => {}
            true => features.push(driver.backend),
            false if named => return Err(driver),
            false => left_out.push(format!(
                "left out: {}, since {}; it wants {}",
                driver.backend,
                driver.absence(),
                driver.cure
            )),
        }
    }
    Ok((features, left_out))
}

/// Without this glibc keeps up to 64 MiB at the end of its heap, now and then: noise in what is
/// resident.
fn soak_environment(run: &mut Command, args: &[String]) {
    if args.first().is_some_and(|task| task == "soak") {
        run.env("MALLOC_TRIM_THRESHOLD_", "131072");
    }
}

/// Returns whether the arguments ask for `--peers`, of any group.
fn are_peers(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "--peers" || arg.starts_with("--peers="))
}

/// Returns whether the arguments ask for programs with the library preloaded: `--peers preload` or
/// `--peers applications`.
fn is_preload(args: &[String]) -> bool {
    asks_for(args, "preload") || asks_for(args, "applications")
}

/// Returns whether the arguments ask for this group of peers.
fn asks_for(args: &[String], group: &str) -> bool {
    args.iter().any(|arg| arg.strip_prefix("--peers=") == Some(group))
        || args.windows(2).any(|pair| pair == ["--peers", group])
}

/// Returns the path of the measuring binary.
fn program(root: &Path) -> PathBuf {
    target(root).join("release/pool-bench")
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Builds the program of real clients.
fn clients(root: &Path) -> Result<PathBuf, String> {
    let target = target(root).join("clients");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--locked", "--manifest-path"]);
    cargo.arg(root.join(CLIENTS).join("Cargo.toml")).env("CARGO_TARGET_DIR", &target);
    match progress::build("the programs of clients", cargo) {
        true => Ok(target.join("release/bench-clients")),
        false => Err(format!("{CLIENTS} did not build; the compiler says why above")),
    }
}

/// Returns the backends that the arguments name, or `None` if they name none.
fn asked_for(args: &[String]) -> Option<Vec<String>> {
    let (mut args, mut named) = (args.iter(), None);
    while let Some(arg) = args.next() {
        let list = match arg.strip_prefix("--backend") {
            Some("") => args.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        if let Some(list) = list {
            let names: &mut Vec<String> = named.get_or_insert_default();
            names.extend(list.split(',').map(str::to_owned));
        }
    }
    named
}

fn refuse(driver: &Driver) -> ExitCode {
    eprintln!(
        "error: backend `{}`: {}; expected {}",
        driver.backend,
        driver.absence(),
        driver.cure
    );
    ExitCode::from(crate::BAD_INPUT)
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::{are_peers, asked_for, is_preload};

    fn of(line: &str) -> Option<Vec<String>> {
        asked_for(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_group_of_peers_is_named_in_two_ways_or_not_at_all() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for line in ["bench --peers", "bench --peers arena", "bench --peers=arena --json"] {
            assert!(are_peers(&words(line)) && !is_preload(&words(line)), "{line}");
        }
        for line in [
            "bench --peers preload",
            "bench --peers=preload",
            "bench --peers applications --smoke",
            "bench --peers=applications",
        ] {
            assert!(is_preload(&words(line)), "{line}");
        }
        assert!(!are_peers(&words("bench --smoke")));
    }

    #[test]
    fn backends_are_named_in_two_ways_or_not_at_all() {
        let both = Some(vec!["host".to_owned(), "cuda".to_owned()]);
        assert_eq!(of("bench --backend host,cuda --json"), both);
        assert_eq!(of("bench --json --backend=host,cuda"), both);
        assert_eq!(
            of("bench --backend host --json --backend cuda"),
            of("bench --backend host,cuda")
        );
        assert_eq!(of("bench --smoke"), None);
        assert_eq!(of("bench --backend"), None);
    }
}
