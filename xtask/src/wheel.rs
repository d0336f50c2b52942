//! `cargo xtask wheel`: builds the Python package as `pip install .` does, and runs its tests.

use crate::programs::Python;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The type checker that the tests run.
const MYPY: &str = "mypy==2.4.1";

/// Installs the package into the environment of the tests, and runs pytest and mypy.
pub(crate) fn run(root: &Path) -> ExitCode {
    match tests(root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: wheel: {why}");
            ExitCode::FAILURE
        }
    }
}

fn tests(root: &Path) -> Result<(), String> {
    let python = Python::prepare(root)?;
    python.install(root)?;
    python.packages(&[MYPY])?;
    passed(python.command(&["-m", "pytest", "--quiet", "-p", "no:cacheprovider"], root))?;
    passed(python.command(&["-m", "mypy", "--cache-dir", "/dev/null"], root))
}

fn passed(mut command: Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
