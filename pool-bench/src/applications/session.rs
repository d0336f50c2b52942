//! A program that runs: it is watched while it has work, and while it rests.

use super::family::{self, Family};
use crate::environment;
use crate::preload::Malloc;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use wait4::Wait4;

/// Time and memory that a program used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Used {
    /// CPU time of all its processes, from its start to the end of the work.
    pub(super) cpu_ns: f64,
    /// Wall time of the work.
    pub(super) wall_ns: f64,
    /// The most that was resident in all its processes at once.
    pub(super) peak_bytes: u64,
    /// What was resident after a rest behind the work; `None` for a program that has ended.
    pub(super) rested_bytes: Option<u64>,
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (cpu, wall) = (self.cpu_ns / 1e9, self.wall_ns / 1e9);
        write!(f, "CPU {cpu:.2} s, wall {wall:.2} s, peak {:.1} MiB", mib(self.peak_bytes))?;
        match self.rested_bytes {
            Some(rested) => write!(f, ", after a rest {:.1} MiB", mib(rested)),
            None => Ok(()),
        }
    }
}

/// Between two looks at the memory of several processes. What one process had at most, the system
/// knows.
const LOOK: Duration = Duration::from_millis(100);
/// After this time a program counts as one that hangs, and is killed.
const DEADLINE: Duration = Duration::from_mins(5);
/// How long a server may take to start, and to end.
const START: Duration = Duration::from_secs(20);

/// A program that runs under a malloc. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Session {
    child: Child,
    library: Option<PathBuf>,
    start: Instant,
    watch: Arc<Watch>,
    log: PathBuf,
}

/// What the thread that looks at the memory has seen.
#[derive(Debug, Default)]
struct Watch {
    most_bytes: AtomicU64,
    /// Whether there were several processes at once.
    several: AtomicBool,
    hung: AtomicBool,
    ended: AtomicBool,
}

impl Session {
    /// Starts a program under a malloc. What it says on stderr goes into a file of `folder`.
    pub(super) fn start(
        malloc: &Malloc,
        mut command: Command,
        folder: &Path,
    ) -> Result<Self, String> {
        let log = folder.join("stderr");
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        environment::clean(&mut command).stderr(file);
        if let Some(library) = &malloc.library {
            command.env("LD_PRELOAD", library);
        }
        let start = Instant::now();
        let child = command.spawn();
        let program = command.get_program().to_string_lossy().into_owned();
        let child = child.map_err(|error| format!("{program}: {error}"))?;
        let (watch, pid) = (Arc::new(Watch::default()), child.id());
        let watcher = Arc::clone(&watch);
        thread::spawn(move || watcher.look_at(pid));
        Ok(Self { child, library: malloc.library.clone(), start, watch, log })
    }

    /// Waits until a server answers.
    pub(super) fn wait_until(&mut self, answers: impl Fn() -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !answers() {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if let Some(status) = ended {
                return Err(self.failed(&format!("ended before it answered: {status}")));
            }
            if start.elapsed() > START {
                return Err(self.failed("did not answer"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits for the line by which a script says that its work is done.
    pub(super) fn wait_for_line(&mut self, expected: &str) -> Result<(), String> {
        let Some(pipe) = &mut self.child.stdout else { return Err("no stdout".into()) };
        let mut line = String::new();
        let read = BufReader::new(pipe).read_line(&mut line);
        match read {
            Ok(_) if line.trim() == expected => Ok(()),
            Ok(_) => Err(self.failed(&format!("said `{}`, not `{expected}`", line.trim()))),
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }

    /// Runs work that the program serves, and returns what that took. A program that works by itself
    /// has its work waited for here.
    pub(super) fn work(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), String>,
        from_start: bool,
    ) -> Result<Used, String> {
        let start = if from_start { self.start } else { Instant::now() };
        let done = work(self);
        let wall_ns = start.elapsed().as_secs_f64() * 1e9;
        if self.watch.hung.load(Relaxed) {
            return Err(self.failed("hung, and was killed"));
        }
        done.map_err(|why| self.failed(&why))?;
        let pid = self.child.id();
        let family = Family::of(pid);
        if family.processes().next().is_none() {
            return Err(self.failed("ended during the work"));
        }
        if let Some(library) = self.library.as_ref().filter(|file| !family::has_mapped(pid, file)) {
            return Err(self.failed(&format!("has not loaded {}", library.display())));
        }
        Ok(Used {
            cpu_ns: family.cpu_ns(),
            wall_ns,
            peak_bytes: self.peak_bytes(),
            rested_bytes: None,
        })
    }

    /// Leaves the program alone, and returns what is resident then.
    pub(super) fn rest(&self, duration: Duration) -> u64 {
        thread::sleep(duration);
        Family::of(self.child.id()).resident_bytes()
    }

    /// Ends a server, which has to end without an error.
    pub(super) fn interrupt(mut self) -> Result<(), String> {
        self.signal(Signal::INT);
        let start = Instant::now();
        while start.elapsed() < START {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.failed(&format!("at its end: {status}"))),
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(self.failed("did not end"))
    }

    /// Waits for the end of a program that has to end without an error. Closes its stdin first.
    pub(super) fn finish(mut self) -> Result<Used, String> {
        drop(self.child.stdin.take());
        let used = self.child.wait4().map_err(|error| error.to_string())?;
        let wall_ns = self.start.elapsed().as_secs_f64() * 1e9;
        if self.watch.hung.load(Relaxed) {
            return Err(self.failed("hung, and was killed"));
        }
        if !used.status.success() {
            return Err(self.failed(&used.status.to_string()));
        }
        let cpu_ns = (used.rusage.utime + used.rusage.stime).as_secs_f64() * 1e9;
        let most = self.watch.most_bytes.load(Relaxed);
        Ok(Used { cpu_ns, wall_ns, peak_bytes: most, rested_bytes: None })
    }

    fn peak_bytes(&self) -> u64 {
        match self.watch.several.load(Relaxed) {
            true => self.watch.most_bytes.load(Relaxed),
            false => family::resident_peak_bytes(self.child.id()).unwrap_or(0),
        }
    }

    fn signal(&self, signal: Signal) {
        signal_to(self.child.id(), signal);
    }

    /// Why the program failed, with the last line that it said.
    fn failed(&self, why: &str) -> String {
        let mut said = String::new();
        let _ = File::open(&self.log).and_then(|mut file| file.read_to_string(&mut said));
        match said.trim().lines().last() {
            Some(last) => format!("{why}: {last}"),
            None => why.into(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.watch.ended.store(true, Relaxed);
        if matches!(self.child.try_wait(), Ok(None)) {
            for pid in Family::of(self.child.id()).processes() {
                signal_to(pid, Signal::KILL);
            }
            let _ = self.child.wait();
        }
        let _ = fs::remove_file(&self.log);
    }
}

impl Watch {
    /// Looks at the memory of a process and its descendants until the session ends; kills the
    /// process if that takes too long.
    fn look_at(&self, pid: u32) {
        let start = Instant::now();
        while !self.ended.load(Relaxed) {
            let family = Family::of(pid);
            self.several.fetch_or(family.processes().count() > 1, Relaxed);
            self.most_bytes.fetch_max(family.resident_bytes(), Relaxed);
            if start.elapsed() > DEADLINE && !self.hung.swap(true, Relaxed) {
                for pid in family.processes() {
                    signal_to(pid, Signal::KILL);
                }
            }
            thread::sleep(LOOK);
        }
    }
}

fn signal_to(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // A process that has ended since needs none.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Runs a client of a server to its end, and returns what it printed. It has the C library's malloc,
/// and a time in which it has to end.
pub(super) fn client(mut command: Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    environment::clean(&mut command).stdin(Stdio::null());
    let said = command.output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if said.status.success() {
        return Ok(text(&said.stdout));
    }
    let why = text(&said.stderr);
    let last = why.trim().lines().last().unwrap_or_default();
    Err(format!("{program}: {}: {last}", said.status))
}
