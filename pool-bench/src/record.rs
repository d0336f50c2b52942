//! Records: what was measured, with all that is needed to repeat it. Written by `--record` and
//! never edited by hand.

use crate::backend::Backend;
use crate::environment;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// The build, as xtask tells it in the variable [`BUILD`], in JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Build {
    commit: String,
    /// Whether the working tree differed from the commit.
    dirty: bool,
    /// A hash of the source of each crate.
    sources: BTreeMap<String, String>,
    rustc: String,
    /// `RUSTFLAGS` and the profile.
    flags: String,
    /// Versions of other crates, from Cargo.lock.
    crates: BTreeMap<String, String>,
}

/// See [`Build`].
const BUILD: &str = "BUCKETPOOL_BUILD";

/// The first line of a record.
#[derive(Debug, Serialize)]
struct Head<'r> {
    command: &'r str,
    date: &'r str,
    #[serde(flatten)]
    build: Build,
    /// The seed of the orders of contenders, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    processor: String,
    cores: usize,
    memory: String,
    kernel: String,
    huge_pages: String,
    glibc: String,
    /// Name and driver of the GPU, where this program can use one.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<String>,
    /// Name and driver of wgpu's adapter, where this program can use one.
    #[serde(skip_serializing_if = "Option::is_none")]
    wgpu: Option<String>,
    /// Processes that wanted to run, over 1, 5 and 15 minutes: `/proc/loadavg`.
    load_before: &'r str,
    load_after: String,
    /// Variables that would have changed a contender; none of them reached one.
    environment_removed: &'r [String],
}

/// A run that may be recorded: what has to be known when it begins.
#[derive(Debug)]
pub struct Run {
    command: String,
    seed: Option<u64>,
    load_before: String,
    environment: Vec<String>,
}

impl Run {
    /// Notes the load of the machine and the environment.
    #[must_use]
    pub fn begin(command: &str, seed: Option<u64>) -> Self {
        let (command, load_before) = (command.to_owned(), load());
        Self { command, seed, load_before, environment: environment::found() }
    }

    /// The command, as typed.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.command
    }
}

/// Returns processor, cores and memory in one line, and the date.
#[must_use]
pub fn machine_and_date() -> (String, String) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (processor, memory) =
        (first_of("/proc/cpuinfo", "model name"), first_of("/proc/meminfo", "MemTotal"));
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let kib = memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok());
    let memory = kib.map_or(memory, |kib| bucketpool::size::Bytes(kib << 10).to_string());
    (format!("{processor}, {cores} cores, {memory}"), date)
}

/// Whether a record can be written there: makes the folder, and a file that goes again.
///
/// # Errors
///
/// The error of the file system.
pub fn probe(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let probe = folder.join(format!(".{}", std::process::id()));
    fs::File::create_new(&probe)?;
    fs::remove_file(probe)
}

/// Writes JSON lines into a new file of `folder`, under a head that says where they come from.
/// Returns its name.
///
/// # Errors
///
/// The error of the file system.
pub fn write(folder: &Path, run: &Run, lines: &[String]) -> io::Result<String> {
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let build = std::env::var(BUILD).ok().and_then(|json| serde_json::from_str(&json).ok());
    let head = Head {
        command: &run.command,
        date: &date,
        build: build.unwrap_or_default(),
        seed: run.seed,
        processor: first_of("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory: first_of("/proc/meminfo", "MemTotal"),
        kernel: text_of("/proc/sys/kernel/osrelease"),
        huge_pages: text_of("/sys/kernel/mm/transparent_hugepage/enabled"),
        glibc: said_by("getconf", "GNU_LIBC_VERSION"),
        gpu: device("cuda"),
        wgpu: device("wgpu"),
        load_before: &run.load_before,
        load_after: load(),
        environment_removed: &run.environment,
    };
    fs::create_dir_all(folder)?;
    let date = date.replace([':', 'Z'], "").replace('T', "-");
    // Two of one second are told apart.
    let names = (1..10).map(|n| match n {
        1 => format!("{date}.jsonl"),
        n => format!("{date}-{n}.jsonl"),
    });
    let mut tried = Err(io::Error::other("no record was tried"));
    for name in names {
        tried = fs::File::create_new(folder.join(&name)).map(|file| (name, file));
        if !matches!(&tried, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            break;
        }
    }
    let (name, mut file) = tried?;
    writeln!(file, "{}", serde_json::to_string(&head)?)?;
    for line in lines {
        writeln!(file, "{line}")?;
    }
    Ok(name)
}

/// Name and driver of the device of this kind of memory, if this program can use one.
fn device(name: &str) -> Option<String> {
    Backend::named(name)?.device()
}

fn load() -> String {
    text_of("/proc/loadavg")
}

fn text_of(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

/// The first line that a program prints; empty where it cannot be run.
fn said_by(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

/// The value of the first line of a `key : value` file that has this key.
fn first_of(file: &str, key: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key));
    line.and_then(|line| line.split_once(':')).map_or_else(String::new, |(_, v)| v.trim().into())
}
