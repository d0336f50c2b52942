//! `web`: the WebGPU tests (`pool-wgpu/tests/web.rs`) in Node, over Dawn, Chrome's WebGPU.
//!
//! What it needs beyond Node it fetches into `target/web`: Dawn from npm, the runner of the tests,
//! and, where Dawn accepts no driver of this machine, SwiftShader, a Vulkan driver on the CPU.

use crate::{driver, platforms};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

const DAWN: &str = "webgpu@0.6.2";
const SWIFTSHADER: &str = "@sparticuz/chromium@147.0.0";
/// The target that the tests are built for.
const TARGET: &str = "wasm32-unknown-unknown";

/// Fetches what is missing and runs the tests.
pub(crate) fn run(root: &Path) -> ExitCode {
    match tests(root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: web: {why}");
            ExitCode::FAILURE
        }
    }
}

fn tests(root: &Path) -> Result<(), String> {
    let wasm = platforms::ALL.iter().find(|platform| platform.target == TARGET);
    if let Some(missing) = wasm.filter(|platform| !platform.is_here()) {
        return Err(format!("no standard library of {TARGET}: `{}`", missing.cure()));
    }
    for (tool, least) in [("node", 20), ("npm", 0)] {
        let here = Command::new(tool).arg("--version").output();
        let said = here.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned());
        if !said.as_ref().is_ok_and(|said| major(said) >= Some(least)) {
            let found = said.unwrap_or_else(|error| error.to_string());
            return Err(format!(
                "`{tool} --version`: {found}; expected Node 20 or later, with npm"
            ));
        }
    }
    let folder = root.join("target/web");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for (name, text) in
        [("dawn.mjs", include_str!("web/dawn.mjs")), ("unpack.mjs", include_str!("web/unpack.mjs"))]
    {
        fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))?;
    }
    package(&folder, DAWN)?;
    let runner = runner(root, &folder)?;
    let driver = driver(&folder)?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--locked", "--package", "pool-wgpu", "--features", "webgpu"]);
    cargo.args(["--test", "web", "--target", TARGET]).current_dir(root);
    cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER", runner);
    cargo.env("NODE_ARGS", format!("--import={}", folder.join("dawn.mjs").display()));
    passed(with(&mut cargo, driver.as_deref()), "the tests")
}

/// The first number of a version such as `v20.1.2`.
fn major(version: &str) -> Option<u32> {
    version.trim_start_matches('v').split('.').next()?.parse().ok()
}

/// Gives a program the driver that was chosen.
fn with<'c>(command: &'c mut Command, chosen: Option<&Path>) -> &'c mut Command {
    driver::environment(command);
    if let Some(chosen) = chosen {
        // The second name is what older loaders read.
        command.env("VK_DRIVER_FILES", chosen).env("VK_ICD_FILENAMES", chosen);
    }
    command
}

fn passed(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what}: {status}")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// A package of npm, installed without running its scripts.
fn package(folder: &Path, package: &str) -> Result<(), String> {
    let mut npm = Command::new("npm");
    npm.args([
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--prefix",
        ".",
    ]);
    passed(npm.arg(package).current_dir(folder), &format!("npm install {package}"))
}

/// The runner of wasm-bindgen's tests, of the version that the tests are built with.
fn runner(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    let lock = fs::read_to_string(root.join("Cargo.lock")).map_err(|error| error.to_string())?;
    let version = locked(&lock, "wasm-bindgen").ok_or("Cargo.lock: no version of wasm-bindgen")?;
    let installed = folder.join(format!("wasm-bindgen-{version}"));
    let runner =
        installed.join("bin").join(format!("wasm-bindgen-test-runner{}", env::consts::EXE_SUFFIX));
    if !runner.is_file() {
        let mut cargo = Command::new(env!("CARGO"));
        // Not `--locked`: its lock names releases that not every mirror has.
        cargo.args(["install", "wasm-bindgen-cli", "--version", version, "--root"]);
        cargo.arg(&installed).env("CARGO_TARGET_DIR", folder.join("build"));
        passed(&mut cargo, "cargo install wasm-bindgen-cli")?;
    }
    Ok(runner)
}

/// The version of a package in a lock file.
fn locked<'l>(lock: &'l str, package: &str) -> Option<&'l str> {
    let (_, behind) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    behind.split('"').next()
}

/// The driver for Dawn: `None` for one of this machine, else SwiftShader's description.
fn driver(folder: &Path) -> Result<Option<PathBuf>, String> {
    let accepts = |chosen: Option<&Path>| {
        let mut node = Command::new("node");
        let said = with(node.args(["dawn.mjs", "probe"]).current_dir(folder), chosen).output();
        said.is_ok_and(|said| said.status.success())
    };
    if accepts(None) {
        return Ok(None);
    }
    let swiftshader = folder.join("swiftshader/vk_swiftshader_icd.json");
    if !swiftshader.is_file() {
        package(folder, SWIFTSHADER)?;
        let mut node = Command::new("node");
        passed(node.arg("unpack.mjs").current_dir(folder), "unpacking SwiftShader")?;
    }
    if accepts(Some(&swiftshader)) {
        return Ok(Some(swiftshader));
    }
    Err("Dawn accepts neither a driver of this machine nor SwiftShader; expected one with Vulkan \
         1.1"
    .into())
}

#[cfg(test)]
mod tests {
    use super::{locked, major};

    #[test]
    fn versions_are_compared_by_their_first_number() {
        assert_eq!((major("v20.20.2"), major("9.1"), major("no")), (Some(20), Some(9), None));
        assert!(major("v18.0.0") < Some(20) && major("") < Some(0));
    }

    #[test]
    fn the_version_is_the_packages_own() {
        let lock = "name = \"wasm-bindgen-test\"\nversion = \"0.3.1\"\n\n[[package]]\n\
                    name = \"wasm-bindgen\"\nversion = \"0.2.7\"\n";
        assert_eq!(locked(lock, "wasm-bindgen"), Some("0.2.7"));
        assert_eq!(locked(lock, "wasm"), None);
    }
}
