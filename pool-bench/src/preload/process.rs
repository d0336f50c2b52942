//! One process: its time, its memory, and what it printed.

use crate::environment;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use wait4::Wait4;

/// Time and memory that a process used.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessUse {
    pub(super) wall_ns: f64,
    /// CPU time of all threads.
    pub(super) cpu_ns: f64,
    /// The most memory that was resident.
    pub(super) peak_bytes: u64,
}

/// Runs a program to its end with a library preloaded. Says why that failed.
pub(super) fn run(
    program: &Path,
    arguments: &[&str],
    library: Option<&Path>,
) -> Result<(ProcessUse, String), String> {
    let mut command = Command::new(program);
    environment::clean(&mut command).args(arguments).stdin(Stdio::null());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let start = Instant::now();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| error.to_string())?;
    // What goes to stderr is short: it fits into the pipe.
    let mut printed = [String::new(), String::new()];
    let [out, err] = &mut printed;
    let read = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(out));
    read.map_err(|error| error.to_string())?;
    let read = child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(err));
    read.map_err(|error| error.to_string())?;
    let used = child.wait4().map_err(|error| error.to_string())?;
    let wall = start.elapsed();
    let [out, err] = printed;
    if !used.status.success() {
        return Err(format!("{}: {}", used.status, err.trim()));
    }
    let cpu = used.rusage.utime + used.rusage.stime;
    let measured = ProcessUse {
        wall_ns: wall.as_secs_f64() * 1e9,
        cpu_ns: cpu.as_secs_f64() * 1e9,
        peak_bytes: used.rusage.maxrss,
    };
    Ok((measured, out + &err))
}
