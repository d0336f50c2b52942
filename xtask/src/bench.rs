//! `bench` and `replay`: builds the measuring binary in release mode and passes everything on.

use std::path::Path;
use std::process::{Command, ExitCode};

/// Runs `pool-bench` with these arguments. Its exit status is passed on.
pub(crate) fn run(root: &Path, args: &[String]) -> ExitCode {
    let build = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--package", "pool-bench"])
        .current_dir(root)
        .status();
    match build {
        Ok(status) if status.success() => {}
        Ok(_) => return fail("pool-bench did not build; the compiler says why above"),
        Err(error) => return fail(&format!("cargo did not start: {error}")),
    }
    let mut command = Command::new(target(root).join("release").join("pool-bench"));
    command.args(args).env("BUCKETPOOL_ROOT", root);
    match command.status() {
        Ok(status) => ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)),
        Err(error) => fail(&format!("pool-bench did not start: {error}")),
    }
}

/// Where cargo builds.
fn target(root: &Path) -> std::path::PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder),
        None => root.join("target"),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}
