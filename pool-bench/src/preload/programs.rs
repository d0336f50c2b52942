//! Programs in C and C++ that allocate much: ours, and those of mimalloc-bench if there is a
//! checkout of it.

use super::{Figure, Malloc, ProcessCase, ROUNDS, SHORT_ROUNDS, measure};
use crate::input::BadInput;
use crate::place;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the speed of a program comes from.
#[derive(Clone, Copy)]
enum Speed {
    /// CPU time: it has one thread and the same work each time.
    Cpu,
    /// Wall time: it has several threads and the same work each time.
    Wall,
    /// Operations in a second, which the program prints behind a text, in this unit.
    Rate(&'static str, f64),
}

/// A program and how it is built and run.
struct HeavyProgram {
    name: &'static str,
    /// The folder of its sources: in mimalloc-bench, or a file of ours.
    source: &'static str,
    /// Files of the folder that do not belong to it.
    without: &'static [&'static str],
    flags: &'static [&'static str],
    arguments: &'static [&'static str],
    /// Arguments of a smoke test.
    few: &'static [&'static str],
    speed: Speed,
}

const PLAIN: &[&str] = &["-w"];
const C89: &[&str] = &["-std=gnu89", "-w"];
const CPP: &[&str] = &["-std=c++17", "-w", "-DCPP=1"];
const SIZED: &[&str] = &["-std=c++17", "-w", "-DCPP=1", "-DSIZED=1", "-fsized-deallocation"];
/// Text after which `larson` prints operations in a second.
const LARSON: Speed = Speed::Rate("Throughput =", 1.0);

/// All programs, with the arguments that mimalloc-bench gives them on two cores; `larson` and
/// `xmalloc-test` run for 2 s instead of 5.
const PROGRAMS: [HeavyProgram; 10] = [
    HeavyProgram {
        name: "cfrac",
        source: "cfrac",
        without: &["getopt.c", "ltop.c", "pfactor.c", "ptob.c"],
        flags: &["-std=gnu89", "-w", "-DNOMEMOPT=1"],
        arguments: &["17545186520507317056371138836327483792789528"],
        few: &["175451865205073"],
        speed: Speed::Cpu,
    },
    HeavyProgram {
        name: "espresso",
        source: "espresso",
        without: &[],
        flags: C89,
        arguments: &["largest.espresso"],
        few: &["largest.espresso"],
        speed: Speed::Cpu,
    },
    HeavyProgram {
        name: "larson",
        source: "larson",
        without: &[],
        flags: CPP,
        arguments: &["2", "8", "1000", "5000", "100", "4141", "2"],
        few: &["1", "8", "100", "50", "10", "4141", "2"],
        speed: LARSON,
    },
    HeavyProgram {
        name: "larson-sized",
        source: "larson",
        without: &[],
        flags: SIZED,
        arguments: &["2", "8", "1000", "5000", "100", "4141", "2"],
        few: &["1", "8", "100", "50", "10", "4141", "2"],
        speed: LARSON,
    },
    HeavyProgram {
        name: "mstress",
        source: "mstress",
        without: &[],
        flags: PLAIN,
        arguments: &["2", "50", "25"],
        few: &["2", "1", "1"],
        speed: Speed::Wall,
    },
    HeavyProgram {
        name: "xmalloc",
        source: "xmalloc-test",
        without: &[],
        flags: PLAIN,
        arguments: &["-w", "2", "-t", "2", "-s", "64"],
        few: &["-w", "1", "-t", "1", "-s", "64"],
        speed: Speed::Rate("free/sec:", 1e6),
    },
    HeavyProgram {
        name: "cache-scratch",
        source: "cache-scratch",
        without: &[],
        flags: CPP,
        arguments: &["2", "1000", "1", "2000000", "2"],
        few: &["2", "10", "1", "2000", "2"],
        speed: Speed::Wall,
    },
    HeavyProgram {
        name: "malloc-large",
        source: "malloc-large",
        without: &["malloc-large-old.cpp"],
        flags: CPP,
        arguments: &[],
        few: &[],
        speed: Speed::Cpu,
    },
    HeavyProgram {
        name: "batches",
        source: "batches.c",
        without: &[],
        flags: &["-Wall"],
        arguments: &["2", "400"],
        few: &["2", "1"],
        speed: Speed::Wall,
    },
    HeavyProgram {
        name: "large",
        source: "large.c",
        without: &[],
        flags: &["-Wall"],
        arguments: &["2", "60000"],
        few: &["2", "100"],
        speed: Speed::Wall,
    },
];

/// Windows of random sizes: 16 B to 1 KiB, 4 to 64 KiB, and 64 KiB to 4 MiB.
const WINDOWS: [HeavyProgram; 9] = [
    window("own-small-alone", &["own", "1", "16", "1024", "1000", "10000000"]),
    window("own-small", &["own", "2", "16", "1024", "1000", "10000000"]),
    window("own-medium-alone", &["own", "1", "4096", "65536", "1000", "2000000"]),
    window("own-medium", &["own", "2", "4096", "65536", "1000", "2000000"]),
    window("own-large-alone", &["own", "1", "65536", "4194304", "8", "40000"]),
    window("own-large", &["own", "2", "65536", "4194304", "8", "40000"]),
    window("pass-small", &["pass", "2", "16", "1024", "1000", "5000000"]),
    window("pass-medium", &["pass", "2", "4096", "65536", "1000", "1000000"]),
    window("pass-large", &["pass", "2", "65536", "4194304", "8", "20000"]),
];

const fn window(name: &'static str, arguments: &'static [&'static str; 6]) -> HeavyProgram {
    HeavyProgram {
        name,
        source: "windows.c",
        without: &[],
        flags: &["-Wall"],
        arguments,
        few: &["pass", "2", "16", "65536", "100", "1000"],
        speed: Speed::Wall,
    }
}

fn programs() -> impl Iterator<Item = &'static HeavyProgram> {
    PROGRAMS.iter().chain(&WINDOWS)
}

/// The names of the programs.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    programs().map(|program| program.name)
}

/// Compiles the chosen programs. Those of mimalloc-bench are left out without a checkout, which
/// `notes` tells.
pub(super) fn cases(
    smoke: bool,
    suite: Option<&Path>,
    is_chosen: impl Fn(&str) -> bool,
    notes: &mut Vec<String>,
) -> Result<Vec<ProcessCase>, BadInput> {
    let (mut cases, mut left_out) = (Vec::new(), Vec::new());
    for program in programs().filter(|program| is_chosen(program.name)) {
        let ours = place::root().join("pool-bench/programs");
        let folder = match (program.is_ours(), suite) {
            (true, _) => ours,
            (false, Some(suite)) => suite.join("bench").join(program.source),
            (false, None) => {
                left_out.push(program.name);
                continue;
            }
        };
        let built = program.build(&folder)?;
        let run = move |malloc: &Malloc| program.run(malloc, &built, &folder, smoke);
        let rounds = match program.speed {
            Speed::Rate(..) => SHORT_ROUNDS,
            Speed::Cpu | Speed::Wall => ROUNDS,
        };
        let (name, run) = (program.name.into(), Box::new(run));
        cases.push(ProcessCase { name, is_numpy: false, rounds, run });
    }
    if !left_out.is_empty() {
        notes.push(format!(
            "left out: {}; they are in a checkout of mimalloc-bench, which `--programs` names",
            left_out.join(", ")
        ));
    }
    if let Some(suite) = suite {
        let mut git = Command::new("git");
        let said = git.arg("-C").arg(suite).args(["log", "-1", "--format=%h, %cs"]).output();
        let revision = said.ok().filter(|said| said.status.success());
        let revision = revision.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned());
        let revision = revision.unwrap_or_else(|| "of an unknown revision".into());
        notes.push(format!("mimalloc-bench {revision}"));
    }
    Ok(cases)
}

impl HeavyProgram {
    fn is_ours(&self) -> bool {
        self.source.contains('.')
    }

    /// Compiles the program, and returns its path.
    fn build(&self, folder: &Path) -> Result<PathBuf, BadInput> {
        let fault =
            |why: String| BadInput::new(format!("program `{}`: {why}", self.name), EXPECTED);
        let sources = match self.is_ours() {
            true => vec![folder.join(self.source)],
            false => self
                .sources(folder)
                .map_err(|error| fault(format!("{}: {error}", folder.display())))?,
        };
        let built = place::root().join("target/programs/bench");
        std::fs::create_dir_all(&built).map_err(|error| fault(error.to_string()))?;
        let is_cpp = sources.iter().any(|source| source.extension().is_some_and(|x| x == "cpp"));
        let built = built.join(self.name);
        let mut compiler = Command::new(if is_cpp { "c++" } else { "cc" });
        compiler.arg("-O3").args(self.flags).args(sources).arg("-o").arg(&built);
        let said = compiler.args(["-lm", "-pthread"]).output();
        let said = said.map_err(|error| fault(error.to_string()))?;
        let why = String::from_utf8_lossy(&said.stderr).trim().replace('\n', "; ");
        if said.status.success() { Ok(built) } else { Err(fault(why)) }
    }

    /// The files that belong to the program, in the order of their names.
    fn sources(&self, folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        let files: std::io::Result<Vec<PathBuf>> =
            folder.read_dir()?.map(|entry| Ok(entry?.path())).collect();
        let is_source = |file: &PathBuf| {
            let is_without = |name| self.without.iter().any(|other| name == *other);
            file.extension().is_some_and(|x| x == "c" || x == "cpp")
                && !file.file_name().is_some_and(is_without)
        };
        let mut sources: Vec<PathBuf> = files?.into_iter().filter(is_source).collect();
        sources.sort();
        Ok(sources)
    }

    /// Runs the program once.
    fn run(
        &self,
        malloc: &Malloc,
        built: &Path,
        folder: &Path,
        smoke: bool,
    ) -> Result<Vec<Figure>, BadInput> {
        // An argument that names a file of the program is a file of its folder.
        let arguments = if smoke { self.few } else { self.arguments };
        let full = arguments.iter().map(|argument| {
            let file = folder.join(argument);
            if file.is_file() { file.to_string_lossy().into_owned() } else { (*argument).into() }
        });
        let full: Vec<String> = full.collect();
        let full: Vec<&str> = full.iter().map(String::as_str).collect();
        let (measured, printed) = measure(malloc, built, &full)?;
        let ns = match self.speed {
            Speed::Cpu => measured.cpu_ns,
            Speed::Wall => measured.wall_ns,
            Speed::Rate(before, unit) => 1e9 / (unit * number_after(&printed, before)?),
        };
        let resident_bytes = measured.peak_bytes;
        Ok(vec![Figure { what: "", size: 0, ns: Some(ns), resident_bytes }])
    }
}

const EXPECTED: &str = "a compiler of C and C++, and a checkout of mimalloc-bench";

/// The number that follows a text.
fn number_after(printed: &str, before: &str) -> Result<f64, BadInput> {
    let rest = printed.split_once(before).map(|(_, rest)| rest.trim_start());
    let digits = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    rest.and_then(digits).ok_or_else(|| {
        BadInput::new(format!("a program that prints `{}`", printed.trim()), format!("`{before}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::number_after;

    #[test]
    fn the_rate_of_a_program_is_the_number_behind_its_text() {
        let printed = "Done.\nThroughput =  1234567 operations per second, relative time: 2 s.\n";
        let number = |printed, before| number_after(printed, before).unwrap().to_string();
        assert_eq!(number(printed, "Throughput ="), "1234567");
        assert_eq!(number("rtime: 1, free/sec: 8.25 M\n", "free/sec:"), "8.25");
        assert!(number_after("nothing", "free/sec:").unwrap_err().to_string().contains("nothing"));
    }
}
