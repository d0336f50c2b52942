//! Programs of random system calls beside a heap, with the C library's malloc and with the library.
//!
//! A number chooses a program (`random_calls.c`); each runs with both mallocs. The library must end it as the
//! C library does, and may refuse no request where that refuses none. 500 programs, or as many as
//! `BUCKETPOOL_PROGRAMS` says, from the number `BUCKETPOOL_SEED` on.
#![expect(clippy::unwrap_used, reason = "tests")]

use crate::setup::{compiled, library, package};
use std::fmt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The kinds of calls, in the order of `enum kind` in `random_system.h`, and whether programs make them.
const KINDS: [(&str, bool); 22] = [
    ("a timer", true),
    ("fork in a handler", true),
    ("fork", true),
    ("_Fork and clone", true),
    ("vfork", true),
    ("a child in the same memory", true),
    ("posix_spawn", true),
    ("threads", true),
    ("dlopen", true),
    ("RLIMIT_AS", true),
    ("RLIMIT_DATA", true),
    ("other limits", true),
    ("all mappings", true),
    ("attributes of pages", true),
    ("closed descriptors", true),
    ("personality", true),
    ("malloc_trim", true),
    ("a filter that permits all", true),
    ("a filter for mremap", true),
    ("a filter for the calls of malloc", true),
    ("a filter for the calls of malloc and their arguments", true),
    ("SECCOMP_MODE_STRICT", true),
];

/// Whether one program in eight has functions `mmap`, `munmap`, `mprotect`, `madvise` and `mremap` of its
/// own, which allocate.
const OWN_CALLS: bool = true;

/// Settings that programs run with, in turns.
const SETTINGS: [&str; 5] = ["", "limit=1M,decay=1", "", "unmap", "decay=20,background=off"];

/// A program that takes longer stands still: one takes 0.05 s, or 0.3 s with all mappings.
const LONGEST: Duration = Duration::from_secs(20);
/// The same for the runs that look for the calls which a fault needs.
const SHORTER: Duration = Duration::from_secs(2);

/// Requests that may be refused to a program which fills the mappings of its process and has none, or few,
/// refused with the C library's malloc, as binary digits of their number: where none is left, a malloc that
/// has had one mapping more is the one that gets no other, and a program asks again for what it was refused.
/// In ten runs of each of 16 programs it was refused 7 requests at most, all above 512 KiB; one of 10 000
/// programs was refused up to 15.
const OF_MAPPINGS: i32 = 4;

fn fills_mappings(seed: u64) -> bool {
    seed.is_multiple_of(32)
}

fn has_own_calls(seed: u64) -> bool {
    OWN_CALLS && seed % 8 == 3
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It ran to its end. Of the requests that were refused under a limit of its own, and without, the
    /// numbers of binary digits.
    Finished { under_limit: i32, without: i32 },
    /// It found wrong contents of a block, or a call that failed.
    Failed(i32),
    /// A signal ended it.
    Killed(i32),
    /// It stood still.
    Hung,
}

impl End {
    fn of(child: &mut Child, longest: Duration) -> Self {
        let start = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() > longest => {
                    let group = i32::try_from(child.id()).unwrap();
                    // SAFETY: `kill` takes numbers; the group is the child's own.
                    unsafe { libc::kill(-group, libc::SIGKILL) };
                    child.wait().unwrap();
                    return Self::Hung;
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        match (status.code(), status.signal()) {
            (Some(0), _) => Self::Finished { under_limit: 0, without: 0 },
            (Some(code @ 20..60), _) => Self::Finished { under_limit: code - 20, without: 0 },
            (Some(code @ 60..), _) => Self::Finished { under_limit: 0, without: code - 60 },
            (Some(code), _) => Self::Failed(code),
            (None, signal) => Self::Killed(signal.unwrap_or_default()),
        }
    }

    /// Whether a program that ended like this with the C library's malloc may end like `other` with another:
    /// with `spare` digits of refusals under a limit, whatever that had.
    fn permits(self, other: Self, spare: i32) -> bool {
        match (self, other) {
            // What one malloc needs more than another counts under a limit: four times as many.
            (
                Self::Finished { under_limit, without },
                Self::Finished { under_limit: limited, without: free },
            ) => {
                let more = if under_limit > 0 { under_limit + 2 } else { 0 };
                free <= without && limited <= more.max(spare)
            }
            // A fork in a handler stands still by chance, with one malloc or the other.
            (Self::Hung, Self::Finished { without: 0, .. }) => true,
            _ => self == other,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished { under_limit: 0, without: 0 } => f.write_str("finished"),
            Self::Finished { under_limit, without } => {
                let below = |digits: &i32| 1_u64 << digits;
                let (limited, free) = (below(under_limit), below(without));
                write!(f, "finished, under {limited} requests refused by a limit, {free} without")
            }
            Self::Failed(code) => write!(f, "failed with status {code}"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
            Self::Hung => f.write_str("stood still"),
        }
    }
}

/// The compiled programs.
struct Programs {
    plain: PathBuf,
    with_own_calls: PathBuf,
    loaded: PathBuf,
    library: PathBuf,
}

impl Programs {
    fn compile() -> Self {
        let own_calls = package().join("tests/programs/random_own_calls.c").display().to_string();
        Self {
            plain: compiled("random_calls.c", &[]),
            with_own_calls: compiled("random_calls.c", &[&own_calls]),
            loaded: compiled("random_loaded.c", &["-shared", "-fPIC"]),
            library: library(),
        }
    }

    fn run(&self, seed: u64, kinds: u32, library: Option<&Path>, longest: Duration) -> End {
        let program = if has_own_calls(seed) { &self.with_own_calls } else { &self.plain };
        let mut command = Command::new(program);
        command.arg(seed.to_string()).arg(kinds.to_string()).arg(&self.loaded).process_group(0);
        command.env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(library) = library {
            let settings = SETTINGS[usize::try_from(seed % 5).unwrap()];
            command.env("LD_PRELOAD", library).env("BUCKETPOOL_HOST", settings);
        }
        End::of(&mut command.spawn().unwrap(), longest)
    }

    /// Returns what is wrong with a program; `None` if nothing is.
    fn fault(&self, seed: u64, kinds: u32, longest: Duration) -> Option<String> {
        let expected = self.run(seed, kinds, None, LONGEST);
        let ours = self.run(seed, kinds, Some(&self.library), longest);
        let spare = if fills_mappings(seed) { OF_MAPPINGS } else { 0 };
        (!expected.permits(ours, spare))
            .then(|| format!("{ours}; with the C library's malloc {expected}"))
    }

    /// Returns the kinds of calls that a fault needs: those without which it is not seen.
    fn kinds_of(&self, seed: u64, all: u32) -> Vec<&'static str> {
        let mut kinds = all;
        for kind in 0..KINDS.len() {
            let fewer = kinds & !(1 << kind);
            if fewer != kinds && self.fault(seed, fewer, SHORTER).is_some() {
                kinds = fewer;
            }
        }
        let names = KINDS.iter().enumerate().filter(|(kind, _)| kinds >> kind & 1 == 1);
        let own_calls = has_own_calls(seed).then_some("its own mmap");
        names.map(|(_, (name, _))| *name).chain(own_calls).collect()
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn programs_of_random_system_calls_end_as_with_the_c_library() {
    let programs = Programs::compile();
    let first = number("BUCKETPOOL_SEED", 0);
    let count = number("BUCKETPOOL_PROGRAMS", 500);
    let all = { KINDS.iter().enumerate() }.map(|(kind, (_, on))| u32::from(*on) << kind).sum();
    let mut faults = Vec::new();
    for seed in first..first + count {
        if let Some(fault) = programs.fault(seed, all, LONGEST) {
            let needed = programs.kinds_of(seed, all).join(", ");
            faults.push(format!(
                "BUCKETPOOL_SEED={seed} BUCKETPOOL_PROGRAMS=1: {fault}; calls: {needed}"
            ));
        }
        if faults.len() == 5 {
            break; // those are enough to read
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
