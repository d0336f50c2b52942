//! `gpu-bundle`: a folder with all that a machine with a GPU needs for the tests and benches.
//!
//! The folder has stripped binaries, the traces, the peers' sources, and a script that runs all of
//! it.

use crate::{counts, sources};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io};

/// The script of the bundle; it documents its own usage.
const RUN: &str = include_str!("bundle/run");
/// Arguments of cargo that build the programs of the bundle.
const BUILDS: [&[&str]; 4] = [
    &["test", "--no-run", "--package", "pool-cuda", "--features", "gpu-tests", "--test", "gpu"],
    &["test", "--no-run", "--package", "pool-wgpu", "--tests"],
    &["build", "--package", "pool-bench", "--features", "cuda,peers", "--bin", "pool-bench"],
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
///
/// With `--try` it then runs a small version there on the double of libcuda. This only shows that
/// every step can be run, because the double has no kernels.
pub(crate) fn run(root: &Path, further: &[String]) -> ExitCode {
    let on_double = match further {
        [] => false,
        [flag] if flag == "--try" => true,
        [other, ..] => {
            eprintln!("error: `{other}` behind `gpu-bundle`; expected --try, or nothing");
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    let made = make(root, on_double).and_then(|folder| match on_double {
        true => try_on_double(root, &folder).map(|()| folder),
        false => Ok(folder),
    });
    match made {
        Ok(folder) => {
            match on_double {
                true => println!("{}: every step ran on the double", folder.display()),
                false => {
                    println!(
                        "{}: carry it to a machine with a GPU and run `./run`",
                        folder.display()
                    );
                }
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: gpu-bundle: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the questions and the benches on the double of libcuda.
///
/// The double frees memory at once, as a driver may. A contender that frees a block while work uses
/// it then loses the device.
fn try_on_double(root: &Path, folder: &Path) -> io::Result<()> {
    let double = root.join("target/cuda-double");
    fs::create_dir_all(&double)?;
    let library = built(root, &["build", "--package", "cuda-double"])?;
    let library = library.into_iter().find(|file| file.extension().is_some_and(|e| e == "so"));
    let library = library.ok_or_else(|| io::Error::other("cuda-double is no library"))?;
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::copy(&library, double.join(name))?;
    }
    let out = folder.join("tried");
    let mut run = Command::new(folder.join("run"));
    run.arg(&out).arg("--smoke");
    for step in ["threads", "questions", "slow-work", "peers", "workloads"] {
        run.args(["--only", step]);
    }
    // The double computes on the CPU, which other work may share.
    run.env("RUN_SECONDS", "2400").env("STEP_FACTOR", "8");
    run.env("LD_LIBRARY_PATH", &double).env("CUDA_DOUBLE", "at-once");
    let status = run.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("./run on the double: {status}")));
    }
    check_answers(&out)
}

/// Checks that each question has one line, that none failed, and that no contender lost the device.
fn check_answers(out: &Path) -> io::Result<()> {
    let mut answered = Vec::new();
    for line in fs::read_to_string(out.join("questions.jsonl"))?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        let number = line["question"].as_u64().unwrap_or_default();
        if number > 0 {
            answered.push(number);
        }
        if let Some(why) = line["failed"].as_str() {
            return Err(io::Error::other(format!("question {number} failed: {why}")));
        }
    }
    if answered != (2..=12).collect::<Vec<u64>>() {
        return Err(io::Error::other(format!("questions {answered:?} of 2 to 12 were answered")));
    }
    let mut cases = 0;
    for line in fs::read_to_string(out.join("slow-work.jsonl"))?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        cases += 1;
        if line["good"] == serde_json::Value::Bool(false) {
            return Err(io::Error::other(format!("a case of slow work: {line}")));
        }
    }
    if cases < 20 {
        return Err(io::Error::other(format!("{cases} of 20 cases of slow work have a line")));
    }
    for line in fs::read_to_string(out.join("peers.jsonl"))?.lines() {
        if line.contains("CUDA_ERROR_ILLEGAL_ADDRESS") || line.contains("code 700") {
            return Err(io::Error::other(format!("a contender freed under running work: {line}")));
        }
    }
    Ok(())
}

/// Makes the folder. On the double there is no device of wgpu, so its tests are left out.
fn make(root: &Path, on_double: bool) -> io::Result<PathBuf> {
    let folder = root.join("target/gpu-bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("bin"))?;
    for build in BUILDS.iter().filter(|build| !(on_double && build.contains(&"pool-wgpu"))) {
        for program in built(root, build)? {
            let name = program.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            // The file name of a test ends in a hash, which those of programs do not have.
            let name = match (build[0], name.rsplit_once('-')) {
                ("test", Some((test, _))) if build.contains(&"pool-wgpu") => {
                    format!("wgpu_test_{test}")
                }
                ("test", Some((test, _))) => format!("{test}_test"),
                _ => name.replace('-', "_"),
            };
            let target = folder.join("bin").join(name);
            fs::copy(&program, &target)?;
            // `strip` makes the file several times smaller; if it is missing, the file is only
            // larger.
            let _ = Command::new("strip").arg(&target).status();
        }
    }
    let counting = counts::build(root).map_err(io::Error::other)?;
    let counts = folder.join("bin/pool_bench_counts");
    fs::copy(counting, &counts)?;
    let _ = Command::new("strip").arg(&counts).status();
    copy_all(&root.join("traces"), &folder.join("traces"))?;
    copy_all(&root.join("pool-bench/peers/gpu"), &folder.join("peers"))?;
    fs::write(folder.join("build.json"), sources::build(root))?;
    let script = folder.join("run");
    fs::write(&script, RUN)?;
    executable(&script)?;
    Ok(folder)
}

/// Runs cargo. Returns the programs that it built.
pub(crate) fn built(root: &Path, arguments: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(["--release", "--locked", "--message-format=json"]);
    let output = cargo.current_dir(root).stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("cargo {} failed", arguments.join(" "))));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    // The message for a library has no `executable`, only `filenames`.
    let program = |message: serde_json::Value| {
        let library = message["filenames"].as_array().and_then(|files| files.first().cloned());
        let is_library = message["target"]["crate_types"][0] == "cdylib";
        let file = message["executable"].as_str().map(PathBuf::from);
        file.or_else(|| library?.as_str().map(PathBuf::from).filter(|_| is_library))
    };
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
