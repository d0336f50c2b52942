//! `gpu-bundle`: a folder that a machine with a GPU needs nothing else for: stripped binaries, the
//! traces, the peers' sources, and a script that runs all of it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io};

/// What the script does; it tells its own use.
const RUN: &str = include_str!("bundle/run");
/// Programs: what cargo is asked to build, and the names under which they are run.
const BUILDS: [&[&str]; 3] = [
    &["test", "--no-run", "--package", "pool-cuda", "--test", "gpu"],
    &["build", "--package", "pool-bench", "--features", "cuda", "--bin", "pool-bench"],
    &[
        "build",
        "--package",
        "bucketpool",
        "--features",
        "cuda",
        "--example",
        "cuda_tiles",
        "--example",
        "cuda_embedding",
        "--example",
        "cuda_monte_carlo",
    ],
];

/// Makes the bundle in `target/gpu-bundle`.
pub(crate) fn run(root: &Path) -> ExitCode {
    match make(root) {
        Ok(folder) => {
            println!("{}: carry it to a machine with a GPU and run `./run`", folder.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: gpu-bundle: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(root: &Path) -> io::Result<PathBuf> {
    let folder = root.join("target/gpu-bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("bin"))?;
    for build in BUILDS {
        for program in built(root, build)? {
            let name = program.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            // A test's file ends in a hash.
            let name = name.unwrap_or_default().replace('-', "_");
            let name = name.split_once("gpu_").map_or(name.as_str(), |_| "gpu_test");
            let target = folder.join("bin").join(name);
            fs::copy(&program, &target)?;
            // Smaller by a factor; without `strip` it is only larger.
            let _ = Command::new("strip").arg(&target).status();
        }
    }
    copy_all(&root.join("traces"), &folder.join("traces"))?;
    copy_all(&root.join("pool-bench/peers/gpu"), &folder.join("peers"))?;
    let script = folder.join("run");
    fs::write(&script, RUN)?;
    executable(&script)?;
    Ok(folder)
}

/// Builds, and returns the programs that came of it.
fn built(root: &Path, arguments: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(["--release", "--locked", "--message-format=json"]);
    let output = cargo.current_dir(root).stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("cargo {} failed", arguments.join(" "))));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    let program = |message: serde_json::Value| message["executable"].as_str().map(PathBuf::from);
    Ok(messages.filter_map(program).collect())
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn executable(file: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn executable(_: &Path) -> io::Result<()> {
    Ok(())
}
