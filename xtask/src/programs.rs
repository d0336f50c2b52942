//! `cargo xtask programs`: programs that know nothing of bucketpool, with the C library's malloc
//! and with ours. Both must give the same results.

mod outcomes;
mod python;
mod tools;

pub(crate) use python::Python;

use crate::preload;
use crate::selection::Selection;
use outcomes::Outcomes;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Runs of a program whose results differ, after which they count as different. Tests of threads
/// and time fail now and then under any malloc.
const ATTEMPTS: usize = 3;

/// Runs a program with a malloc; returns its results, or why there are none.
type Run = dyn Fn(&Malloc<'_>) -> Result<Outcomes, String>;

/// A program that is run twice.
struct Program {
    name: String,
    run: Box<Run>,
}

/// The malloc of a run.
struct Malloc<'a> {
    /// The library to preload; `None` for the C library's malloc.
    library: Option<&'a Path>,
    /// An empty folder for the run.
    folder: PathBuf,
}

impl Malloc<'_> {
    /// Creates a command that runs in the folder with this malloc.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env_remove("BUCKETPOOL_HOST").env_remove("LD_PRELOAD");
        if let Some(library) = self.library {
            command.env("LD_PRELOAD", library);
        }
        command
    }
}

/// Runs the programs, or with `--deep` many more of them, and prints a line for each. With
/// `--only NAME` only those whose name holds NAME.
pub(crate) fn run(root: &Path, args: &[String]) -> ExitCode {
    let selection = match Selection::read("programs", args) {
        Ok(selection) => selection,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(crate::BAD_INPUT);
        }
    };
    let library = match preload::build(root) {
        Ok(library) => library,
        Err(code) => return code,
    };
    let folder = root.join("target/programs");
    let mut programs = tools::programs(root);
    match Python::prepare(root).and_then(|python| python.install(root).map(|()| python)) {
        Ok(python) => programs.extend(python.programs(root, selection.deep)),
        Err(why) => {
            eprintln!("error: no Python with NumPy: {why}");
            return ExitCode::FAILURE;
        }
    }
    if let Err(why) = is_loaded(&folder, &library) {
        eprintln!("error: {why}");
        return ExitCode::FAILURE;
    }
    if !programs.iter().any(|program| selection.holds(&program.name)) {
        let names = programs.iter().map(|program| program.name.as_str());
        eprintln!("error: {}", selection.none_of("program", names));
        return ExitCode::from(crate::BAD_INPUT);
    }
    programs.retain(|program| selection.holds(&program.name));
    let mut differ = 0;
    for program in &programs {
        let start = Instant::now();
        let result = compared(program, &folder, &library);
        let seconds = start.elapsed().as_secs();
        match result {
            Ok(same) => println!("same      {:<44} {same} {seconds:>6} s", program.name),
            Err(why) => {
                differ += 1;
                println!("DIFFERENT {:<44} {why}", program.name);
            }
        }
    }
    println!("\n{} programs give the same results, {differ} do not", programs.len() - differ);
    if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks that the dynamic linker loads the library: otherwise all results would be the same.
fn is_loaded(folder: &Path, library: &Path) -> Result<(), String> {
    let malloc = Malloc { library: Some(library), folder: folder.to_path_buf() };
    let said = malloc.command("cat").arg("/proc/self/maps").output();
    let said = said.map_err(|error| format!("cat: {error}"))?;
    let maps = String::from_utf8_lossy(&said.stdout);
    match maps.contains("libbucketpool.so") {
        true => Ok(()),
        false => Err(format!("{} is not loaded into programs", library.display())),
    }
}

/// Runs a program with both mallocs until each result with ours was seen without it too. Returns
/// the number of results as text, or which differ.
fn compared(program: &Program, folder: &Path, library: &Path) -> Result<String, String> {
    let run = |library| {
        let folder = folder.join("work");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        (program.run)(&Malloc { library, folder })
    };
    let (mut seen, mut ours) = (BTreeMap::<String, Vec<String>>::new(), Outcomes::new());
    let mut different = Vec::new();
    for _ in 0..ATTEMPTS {
        for (name, outcome) in run(None)? {
            seen.entry(name).or_default().push(outcome);
        }
        ours = run(Some(library))?;
        let is_seen = |name: &str, outcome: &String| {
            seen.get(name).is_some_and(|outcomes| outcomes.contains(outcome))
        };
        let missing = seen.keys().filter(|name| !ours.contains_key(*name));
        let new = ours.iter().filter(|(name, outcome)| !is_seen(name, outcome));
        let new = new.map(|(name, outcome)| format!("{name}: {outcome}"));
        different = new.chain(missing.map(|name| format!("{name}: missing"))).collect();
        if different.is_empty() {
            return Ok(outcomes::summary(&ours));
        }
    }
    different.truncate(20);
    Err(format!("{}, of {}", different.join("; "), outcomes::summary(&ours)))
}
