//! `cargo xtask run` and `cargo xtask install`: the library that is preloaded.

use crate::progress;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

/// The programs that leave a trace.
const TRACED: &str = "a dynamically linked program that allocates memory";
/// The script that checks a program and runs it with the library.
const SCRIPT: &str = "pool-preload/bucketpool-run";

/// Builds the library. Returns its path, or the code to end with if it does not build.
pub(crate) fn build(root: &Path) -> Result<PathBuf, ExitCode> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(["build", "--locked", "--package", "pool-preload"]);
    command.args(["--profile", "preload"]).current_dir(root);
    if !progress::build("libbucketpool.so", command) {
        eprintln!("error: libbucketpool.so does not build; the lines above say why");
        return Err(ExitCode::FAILURE);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("preload").join("libbucketpool.so"))
}

/// Builds the library and runs a program with it.
pub(crate) fn run(root: &Path, args: &[String]) -> ExitCode {
    let args = args.strip_prefix(&["--".to_owned()]).unwrap_or(args);
    if args.is_empty() {
        eprintln!("error: nothing behind `run`; expected a program and its arguments");
        return ExitCode::from(crate::BAD_INPUT);
    }
    let library = match build(root) {
        Ok(library) => library,
        Err(code) => return code,
    };
    let error = command(root, &library).args(args).exec();
    eprintln!("error: {SCRIPT}: {error}");
    ExitCode::FAILURE
}

/// Returns the script, in the environment that the program would have without cargo.
fn command(root: &Path, library: &Path) -> Command {
    let mut command = Command::new(root.join(SCRIPT));
    // Cargo's own settings are not for the program.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_cargos(name)) {
        command.env_remove(name);
    }
    if let Some(folders) = std::env::var_os("LD_LIBRARY_PATH") {
        let folders = without_cargos(&folders, library);
        command.env("LD_LIBRARY_PATH", &folders);
        if folders.is_empty() {
            command.env_remove("LD_LIBRARY_PATH");
        }
    }
    command.env("BUCKETPOOL_LIBRARY", library);
    command
}

/// The ends of the names of traces.
const TRACES: [&str; 2] = [".ptrace.csv.zst", ".ptrace.csv"];

/// Returns whether the first word behind `record` is a file and no command: a trace, or a name by
/// which a trace was meant.
pub(crate) fn is_file(word: &str) -> bool {
    word.contains(".ptrace") || [".csv", ".zst"].iter().any(|end| word.ends_with(end))
}

/// Builds the library, runs a program with it, and keeps the trace of the process with the most
/// operations as `file`. A program may be a script that starts others, each of which has a trace.
pub(crate) fn record(root: &Path, file: &Path, args: &[String]) -> ExitCode {
    let args = args.strip_prefix(&["--".to_owned()]).unwrap_or(args);
    let name = file.to_string_lossy();
    let Some(end) = TRACES.into_iter().find(|end| name.ends_with(end)) else {
        eprintln!(
            "error: `{name}` behind `record`; expected a file whose name ends in .ptrace.csv.zst, \
             or in .ptrace.csv for plain text"
        );
        return ExitCode::from(crate::BAD_INPUT);
    };
    if args.is_empty() {
        eprintln!(
            "error: nothing behind `{}`; expected a program and its arguments",
            file.display()
        );
        return ExitCode::from(crate::BAD_INPUT);
    }
    let library = match build(root) {
        Ok(library) => library,
        Err(code) => return code,
    };
    let folder = file.with_extension(format!("parts-{}", std::process::id()));
    // The program may change its folder, so the name of its trace is a full one.
    let folder = match fs::create_dir(&folder).and_then(|()| fs::canonicalize(&folder)) {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("error: {}: {error}; expected a folder that can be written", file.display());
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    let is_replaced = file.exists();
    let part = folder.join(format!("part{end}"));
    if part.to_str().is_none_or(|part| part.contains(',')) {
        let _ = fs::remove_dir_all(&folder);
        eprintln!("error: {}: a folder without a comma, in UTF-8, is expected", folder.display());
        return ExitCode::from(crate::BAD_INPUT);
    }
    // Ctrl-C and SIGTERM end the program, which shares them, and then its trace is kept. Should
    // there be no handler, they end this process too.
    let _ = ctrlc::set_handler(|| ());
    let words = std::env::var("BUCKETPOOL_HOST").map_or(String::new(), |words| words + ",");
    let words = format!("{words}silent,trace={}", part.display());
    let status = command(root, &library).args(args).env("BUCKETPOOL_HOST", words).status();
    let code = match status {
        Ok(status) => exit_code(status),
        Err(error) => {
            eprintln!("error: {SCRIPT}: {error}");
            1
        }
    };
    let parts = fs::read_dir(&folder).into_iter().flatten().flatten();
    let parts = parts.filter_map(|part| Some((part.metadata().ok()?.len(), part.path())));
    let kept = match parts.max() {
        Some((bytes, part)) if bytes > 0 => fs::rename(&part, file).map_err(|error| {
            let (file, part) = (file.display(), part.display());
            format!("{file}: {error}; expected a file that can be written. The trace is {part}")
        }),
        _ => {
            let _ = fs::remove_dir_all(&folder);
            Err(format!("no process left a trace; expected {TRACED}"))
        }
    };
    match &kept {
        Ok(()) => {
            let _ = fs::remove_dir_all(&folder);
            let before = if is_replaced { ", in place of the file before" } else { "" };
            eprintln!("recorded {}{before}; next: cargo xtask advise {0}", file.display());
        }
        Err(why) => eprintln!("error: {why}"),
    }
    ExitCode::from(if code == 0 && kept.is_err() { crate::BAD_INPUT } else { code })
}

/// Returns the exit code of a program; 128 and the number of the signal that ended it, as shells
/// do.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Returns whether cargo sets this variable for the programs that it runs.
fn is_cargos(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name == "CARGO" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Returns the folders of libraries without those that cargo has added: the folder of builds, and
/// the toolchain's.
fn without_cargos(folders: &OsStr, library: &Path) -> OsString {
    let builds = library.ancestors().nth(2);
    let toolchain = std::env::var_os("CARGO").map(PathBuf::from);
    let toolchain = toolchain.as_deref().and_then(|cargo| cargo.ancestors().nth(2));
    let is_cargos = |folder: &PathBuf| {
        [builds, toolchain].into_iter().flatten().any(|cargos| folder.starts_with(cargos))
    };
    let kept = std::env::split_paths(folders).filter(|folder| !is_cargos(folder));
    std::env::join_paths(kept).unwrap_or_default()
}

/// Builds the library, and copies it and the script into a folder.
pub(crate) fn install(root: &Path, args: &[String]) -> ExitCode {
    let [folder] = args else {
        eprintln!("error: {} words behind `install`; expected one folder", args.len());
        return ExitCode::from(crate::BAD_INPUT);
    };
    let library = match build(root) {
        Ok(library) => library,
        Err(code) => return code,
    };
    let folder = Path::new(folder);
    let copied = fs::create_dir_all(folder).and_then(|()| {
        // A program may have the old library mapped, so it is not written over.
        let _ = fs::remove_file(folder.join("libbucketpool.so"));
        fs::copy(&library, folder.join("libbucketpool.so"))?;
        fs::copy(root.join(SCRIPT), folder.join("bucketpool-run"))
    });
    if let Err(error) = copied {
        eprintln!("error: {}: {error}; expected a folder that can be written", folder.display());
        return ExitCode::FAILURE;
    }
    println!("{}", folder.join("bucketpool-run").display());
    ExitCode::SUCCESS
}
