//! Programs in C and C++ on the library: on host memory, and on the double of libcuda.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot build its programs fails")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Builds a library of the workspace and returns its file.
fn built(package: &str, library: &str) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--package", package, "--message-format=json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    let file_of = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let files =
            message["filenames"].as_array().filter(|_| message["target"]["name"] == library)?;
        let mut files = files.iter().filter_map(|file| file.as_str()).map(PathBuf::from);
        files.find(|file| file.extension().is_some_and(|end| end == "so"))
    };
    messages.lines().rev().find_map(file_of).unwrap()
}

/// A folder with the libraries by the names that programs load.
static LIBRARIES: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let ours = built("pool-c", "bucketpool_c");
    std::os::unix::fs::symlink(ours, folder.path().join("libbucketpool_c.so")).unwrap();
    let double = built("cuda-double", "cuda_double");
    std::os::unix::fs::symlink(double, folder.path().join("libcuda.so")).unwrap();
    folder
});

/// Compiles a program without a warning and runs it.
fn run(compiler: &[&str], source: &str, arguments: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = LIBRARIES.path();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let compiled = Command::new(compiler[0])
        .args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-I"])
        .arg(root.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(root.join("tests/programs").join(source))
        .arg("-L")
        .arg(libraries)
        .args(["-lbucketpool_c", "-ldl", "-lpthread"])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran =
        Command::new(&program).args(arguments).env("LD_LIBRARY_PATH", libraries).output().unwrap();
    let (out, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{source} {arguments:?}: {}\n{out}{errors}", ran.status);
    assert!(out.ends_with("passed\n"), "{out}");
}

const C: [&str; 2] = ["cc", "-std=gnu11"];

#[test]
fn host_memory() {
    run(&C, "host.c", &[]);
}

#[test]
#[cfg(feature = "cuda")]
fn device_memory() {
    for memory in ["cuda", "cuda-vmm", "cuda-async"] {
        run(&C, "cuda.c", &[memory]);
    }
}

#[test]
fn an_exception_goes_through_the_library() {
    run(&["g++", "-std=c++17"], "throws.cpp", &[]);
}
