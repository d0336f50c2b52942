//! Records: what was measured, with the command, the date and the machine. Written by `--record`
//! and never edited by hand.

use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

/// The first line of a record.
#[derive(Debug, Serialize)]
struct Head {
    command: String,
    date: String,
    version: &'static str,
    processor: String,
    cores: usize,
    memory: String,
    kernel: String,
    /// Name and driver of the GPU, where this program can use one.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<String>,
}

/// Whether a record can be written there: makes the folder, and a file that goes again.
///
/// # Errors
///
/// What the file system said.
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
/// What the file system said.
pub fn write(folder: &Path, command: &str, lines: &[String]) -> io::Result<String> {
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let head = Head {
        command: command.to_owned(),
        version: env!("CARGO_PKG_VERSION"),
        processor: first_of("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory: first_of("/proc/meminfo", "MemTotal"),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
        gpu: gpu(),
        date,
    };
    fs::create_dir_all(folder)?;
    let date = head.date.replace([':', 'Z'], "").replace('T', "-");
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

#[cfg(feature = "cuda")]
fn gpu() -> Option<String> {
    crate::gpu::machine()
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> Option<String> {
    None
}

/// The value of the first line of a `key : value` file that has this key.
fn first_of(file: &str, key: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key));
    line.and_then(|line| line.split_once(':')).map_or_else(String::new, |(_, v)| v.trim().into())
}
