//! `bench` and `replay`: builds the measuring binary for this machine's drivers and runs it.
//!
//! The build is in release mode. All arguments are passed on.

use crate::driver::{self, Driver};
use crate::programs::Python;
use crate::{instructions, preload, sources};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Workspace of the program of real clients.
const CLIENTS: &str = "pool-bench/peers/clients";

/// Runs `pool-bench` with these arguments. Returns its exit status.
pub(crate) fn run(root: &Path, args: &[String]) -> ExitCode {
    let asked = asked_for(args);
    let mut features = Vec::new();
    let mut left_out = Vec::new();
    for driver in driver::ALL {
        let named = asked.as_ref().is_some_and(|names| names.iter().any(|n| n == driver.backend));
        let wanted = named || (asked.is_none() && args.first().is_some_and(|task| task == "bench"));
        match driver.is_here() {
            _ if !wanted => {}
            true => features.push(driver.backend),
            false if named => return refuse(&driver),
            false => left_out.push(driver),
        }
    }
    let is_preload = is_preload(args);
    if is_preload {
        (features, left_out) = (Vec::new(), Vec::new());
    } else if args.iter().any(|arg| arg == "--peers") && asked.is_none() {
        features = vec!["peers"];
        left_out.clear();
    }
    let counts = args.iter().position(|arg| arg == "--instructions");
    if counts.is_some() || args.iter().any(|arg| arg == "--help" || arg == "-h") {
        (features, left_out) = (Vec::new(), Vec::new()); // builds faster
    }
    for driver in left_out {
        eprintln!("left out: {}, since {}", driver.backend, driver.absence());
    }
    let cargo = |task: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(task).args(["--release", "--locked", "--package", "pool-bench"]);
        cargo.args(["--features", &features.join(",")]);
        cargo.arg("--manifest-path").arg(root.join("Cargo.toml"));
        cargo
    };
    // The build runs first and shows its output; the run is quiet, so that the program prints the
    // last line.
    match cargo(&["build"]).status() {
        Ok(status) if status.success() => {}
        Ok(_) => return fail("pool-bench did not build; the compiler says why above"),
        Err(error) => return fail(&format!("cargo did not start: {error}")),
    }
    if let Some(at) = counts {
        let further = [&args[1..at], &args[at + 1..]].concat();
        return instructions::run(root, &program(root), &further);
    }
    let mut run = cargo(&["run", "--quiet"]);
    run.arg("--").args(args).env("BUCKETPOOL_ROOT", root);
    run.env(sources::BUILD, sources::build(root));
    if features.contains(&"peers") && !args.iter().any(|arg| arg == "arena") {
        match clients(root) {
            Ok(program) => {
                run.env("BUCKETPOOL_CLIENTS", program);
            }
            Err(why) => return fail(&why),
        }
    }
    if is_preload {
        match preload::build(root) {
            Ok(library) => run.env("BUCKETPOOL_PRELOAD", library),
            Err(code) => return code,
        };
        match Python::prepare(root).and_then(|python| python.install(root).map(|()| python)) {
            Ok(python) => run.env("BUCKETPOOL_PYTHON", python.path()),
            Err(why) => return fail(&why),
        };
    }
    driver::environment(&mut run);
    match run.status() {
        Ok(status) => ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)),
        Err(error) => fail(&format!("pool-bench did not start: {error}")),
    }
}

/// Returns whether the arguments ask for `--peers preload`.
fn is_preload(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "--peers=preload")
        || args.windows(2).any(|pair| pair == ["--peers", "preload"])
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
    match cargo.status() {
        Ok(status) if status.success() => Ok(target.join("release/bench-clients")),
        _ => Err(format!("{CLIENTS} did not build; the compiler says why above")),
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
    use super::asked_for;

    fn of(line: &str) -> Option<Vec<String>> {
        asked_for(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
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
