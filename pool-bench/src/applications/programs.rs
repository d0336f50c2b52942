//! Programs that come to an end: scripts with NumPy and PyTorch, and a build with cargo.

use super::session::Session;
use super::{Run, Scale};
use crate::place;
use crate::preload::Malloc;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where xtask says a Python with NumPy is.
const PYTHON: &str = "BUCKETPOOL_PYTHON";
/// Where Debian's Python is, for which it has PyTorch without CUDA.
const DEBIANS: &str = "/usr/bin/python3";
/// What a script prints when its work is done; then it waits for the end of its input.
const DONE: &str = "done";
/// Makes arrays of five sizes and computes with them.
const ARRAYS: &str = include_str!("../../programs/arrays.py");
/// Trains convolutions with pictures that workers make.
const TRAINING: &str = include_str!("../../programs/training.py");

/// NumPy, with arrays that are made in one of two ways.
pub(super) fn numpy(kind: &'static str, scale: Scale) -> Result<Box<Run>, String> {
    let python = std::env::var_os(PYTHON).map(PathBuf::from);
    let python = python.ok_or("there is no Python with NumPy")?;
    imports(&python, "numpy")?;
    Ok(script(python, ARRAYS, vec![kind], scale))
}

/// PyTorch on the CPU, with workers.
pub(super) fn pytorch(scale: Scale) -> Result<Box<Run>, String> {
    let pythons = std::env::var_os(PYTHON).map(PathBuf::from).into_iter().chain([DEBIANS.into()]);
    let python = pythons.into_iter().find(|python| imports(python, "torch").is_ok());
    let python = python.ok_or("there is no Python with PyTorch")?;
    Ok(script(python, TRAINING, Vec::new(), scale))
}

fn imports(python: &Path, module: &str) -> Result<(), String> {
    let mut command = Command::new(python);
    command.args(["-c", &format!("import {module}")]);
    super::session::client(command).map(|_| ())
}

fn script(
    python: PathBuf,
    script: &'static str,
    arguments: Vec<&'static str>,
    scale: Scale,
) -> Box<Run> {
    let run = move |malloc: &Malloc, folder: &Path| {
        let mut command = Command::new(&python);
        command.args(["-c", script]).args(&arguments).args(scale.is_smoke.then_some("--smoke"));
        command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut session = Session::start(malloc, command, folder)?;
        let mut used = session.work(|session| session.wait_for_line(DONE), true)?;
        used.rested_bytes = Some(session.rest(scale.rest()));
        session.finish()?;
        Ok(used)
    };
    Box::new(run)
}

/// A build of a crate of this workspace with its dependencies, in a new folder. rustc has an
/// allocator of its own linked in; cargo, build scripts and the linker have the malloc.
pub(super) fn build(scale: Scale) -> Result<Box<Run>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut version = Command::new(&cargo);
    version.arg("--version");
    super::session::client(version)?;
    let root = place::root();
    let run = move |malloc: &Malloc, folder: &Path| {
        let mut command = Command::new(&cargo);
        // A smoke test lists what would be built.
        command.arg(if scale.is_smoke { "tree" } else { "build" });
        command.args(["--offline", "--locked", "--package", "pool-host"]);
        if !scale.is_smoke {
            command.args(["--jobs", "2", "--target-dir"]).arg(folder.join("target"));
        }
        command.current_dir(&root);
        command.env_remove("CARGO_TARGET_DIR").stdout(Stdio::null()).stdin(Stdio::null());
        Session::start(malloc, command, folder)?.finish()
    };
    Ok(Box::new(run))
}
