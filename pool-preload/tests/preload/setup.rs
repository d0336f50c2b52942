//! The built library, and small programs in C and C++ that use it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Programs compiled so far.
static PROGRAMS: AtomicU32 = AtomicU32::new(0);

/// Returns this package's folder.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder for what the tests build.
pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns the script that runs programs with the library.
pub(crate) fn script() -> PathBuf {
    package().join("bucketpool-run")
}

/// Builds the library as `cargo xtask run` does, and returns its path.
pub(crate) fn library() -> PathBuf {
    let target = folder().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "pool-preload"]);
    cargo.args(["--profile", "preload", "--target-dir"]).arg(target).current_dir(package());
    // Flags of a sanitizer or a model are for the tests, and would build another library.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    assert!(cargo.status().unwrap().success(), "the library does not build");
    target.join("preload").join("libbucketpool.so")
}

/// Builds the library of `examples/plugin.rs`, and returns its path.
pub(crate) fn plugin() -> PathBuf {
    let target = folder().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--quiet",
        "--locked",
        "--package",
        "pool-preload",
        "--example",
        "plugin",
    ]);
    cargo.arg("--target-dir").arg(target).current_dir(package());
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    assert!(cargo.status().unwrap().success(), "the plugin does not build");
    target.join("debug/examples/libplugin.so")
}

/// Compiles a program of `tests/programs` with further arguments, and returns its path.
pub(crate) fn compiled(source: &str, further: &[&str]) -> PathBuf {
    let (name, language) = source.split_once('.').unwrap();
    let compiler = if language == "c" { "cc" } else { "c++" };
    // Tests may compile the same program at once.
    let number = PROGRAMS.fetch_add(1, Relaxed);
    let program = folder().join(format!("{name}-{}-{number}", std::process::id()));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    command.arg(package().join("tests/programs").join(source)).arg("-o").arg(&program);
    match command.args(further).status() {
        Ok(status) => assert!(status.success(), "{source} does not compile"),
        Err(error) => panic!("{compiler}: {error}; install a compiler of C and C++"),
    }
    program
}

/// Runs a program with the library and these settings.
pub(crate) fn run(program: &Path, arguments: &[&Path], settings: &str) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library()).env("BUCKETPOOL_HOST", settings);
    command.output().unwrap()
}

/// Runs a program without the library.
pub(crate) fn run_plain(program: &Path, arguments: &[&Path]) -> Output {
    Command::new(program).args(arguments).env_remove("LD_PRELOAD").output().unwrap()
}

/// Returns what a program wrote to stderr.
pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Checks that a program ended well and said so.
pub(crate) fn is_done(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {}", output.status, errors(output));
    assert_eq!(text, "done\n");
}
