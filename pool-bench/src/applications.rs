//! Applications that people run, under each malloc that can be preloaded: servers under load,
//! NumPy, PyTorch and a build. Their CPU time and wall time, the most memory, and what stays
//! resident when they rest.

mod family;
mod memcached;
mod postgresql;
mod programs;
mod servers;
mod session;

use crate::apart::Spread;
use crate::input::BadInput;
use crate::preload::{self, GLIBC, Malloc, OURS};
use crate::rounds::{self, Row};
use crate::statistics::Orders;
use session::Used;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Rounds; each contender has a run in each.
const ROUNDS: usize = 3;
/// How long an application rests before its memory is looked at again.
const REST: Duration = Duration::from_secs(12);
/// The contenders of this comparison among those that can be preloaded.
const PEERS: [&str; 2] = ["mimalloc", "jemalloc"];
/// What is measured of an application: the end of a case's name.
pub(crate) const MEASURES: [&str; 4] = ["CPU time", "wall time", "peak", "after a rest"];
/// What brings the applications.
const CURE: &str = "`pool-bench/programs/applications` brings it";

/// Runs an application once under a malloc, in a folder of its own that is there. Says why that
/// failed.
type Run = dyn Fn(&Malloc, &Path) -> Result<Used, String>;

/// How much an application has to do.
#[derive(Clone, Copy, Debug)]
struct Scale {
    is_smoke: bool,
}

impl Scale {
    /// A number of requests or elements, or few of them.
    fn of(self, number: usize) -> usize {
        if self.is_smoke { number.div_ceil(200) } else { number }
    }

    fn rest(self) -> Duration {
        if self.is_smoke { Duration::ZERO } else { REST }
    }
}

/// Looks for an application. Says what is missing if it is not here.
type Find = fn(Scale) -> Result<Box<Run>, String>;

/// All applications, by the names that `--case` takes.
const APPLICATIONS: [(&str, Find); 8] = [
    ("redis", servers::redis),
    ("postgresql", postgresql::find),
    ("nginx", servers::nginx),
    ("memcached", memcached::find),
    ("numpy-ones", |scale| programs::numpy("ones", scale)),
    ("numpy-rand", |scale| programs::numpy("rand", scale)),
    ("pytorch", programs::pytorch),
    ("cargo-build", programs::build),
];

/// Runs the chosen applications, all unless some are named, beside an earlier library if its folder
/// is named. Those that are not here are told in `notes`, and so is a run that fails. What each run
/// used is told at once, since all of them take long.
///
/// # Errors
///
/// A name of no application, no library, or a folder that cannot be written.
pub(crate) fn run(
    is_smoke: bool,
    chosen: &[String],
    before: Option<&Path>,
    spread: &Spread,
    notes: &mut Vec<String>,
    tick: impl Fn(&str),
    tell: impl Fn(String),
) -> Result<Vec<Row>, BadInput> {
    if let Some(unknown) = chosen.iter().find(|case| APPLICATIONS.iter().all(|it| it.0 != *case)) {
        let expected = format!("one of {}", APPLICATIONS.map(|it| it.0).join(", "));
        return Err(BadInput::new(format!("case `{unknown}`"), expected));
    }
    let mut mallocs = preload::mallocs(notes)?;
    mallocs.retain(|it| !it.handler && (it.is_ours_or_glibc() || PEERS.contains(&it.name)));
    if let Some(folder) = before {
        mallocs.insert(1, Malloc::before(folder)?);
    }
    let scale = Scale { is_smoke };
    let mut rows = Vec::new();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|case| case == name);
    for (name, find) in APPLICATIONS.into_iter().filter(|it| is_chosen(it.0)) {
        tick(name);
        match find(scale) {
            Err(missing) => notes.push(format!("left out: {name}, since {missing}; {CURE}")),
            Ok(run) => {
                let rounds = if is_smoke { 1 } else { ROUNDS };
                let (used, drawn) = in_turns(&*run, &mallocs, rounds, spread.seed, |at, used| {
                    let under = format!("{name} under {}", mallocs[at].name);
                    match used {
                        Ok(used) => tell(format!("{under}: {used}")),
                        Err(why) => notes.push(format!("failed: {under}: {why}")),
                    }
                })?;
                let names: Vec<&str> = mallocs.iter().map(|malloc| malloc.name).collect();
                rows.extend(self::rows(name, &names, &used, &drawn));
            }
        }
    }
    Ok(rows)
}

/// How many steps [`run`] tells at most.
pub(crate) fn steps() -> u64 {
    APPLICATIONS.len() as u64
}

/// What each malloc's runs used, by rounds; a run that failed has no figures.
type UsedByMalloc = Vec<Vec<Option<Used>>>;

/// Runs an application under each malloc, in random order within each round. Returns what the runs
/// used, and the order of each round. A run that fails is told, and the others go on.
fn in_turns(
    run: &Run,
    mallocs: &[Malloc],
    rounds: usize,
    seed: u64,
    mut told: impl FnMut(usize, &Result<Used, String>),
) -> Result<(UsedByMalloc, Vec<Vec<String>>), BadInput> {
    let mut orders = Orders::new(seed);
    let mut drawn = Vec::new();
    let mut used: UsedByMalloc = mallocs.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        let order = orders.next(mallocs.len());
        for at in &order {
            let folder = Folder::new(*at)?;
            let measured = run(&mallocs[*at], &folder.0);
            told(*at, &measured);
            used[*at].push(measured.ok());
        }
        drawn.push(vec![order.iter().map(ToString::to_string).collect()]);
    }
    Ok((used, drawn))
}

/// The rows of an application: one for each malloc and measure.
fn rows(
    name: &str,
    mallocs: &[&str],
    used: &[Vec<Option<Used>>],
    drawn: &[Vec<String>],
) -> Vec<Row> {
    let of = |measure: usize, used: &Used| match measure {
        0 => Some(used.cpu_ns),
        1 => Some(used.wall_ns),
        2 => Some(used.peak_bytes as f64),
        _ => used.rested_bytes.map(|bytes| bytes as f64),
    };
    let mut rows = Vec::new();
    for (measure, what) in MEASURES.into_iter().enumerate() {
        let row = |(malloc, rounds): (&&str, &Vec<Option<Used>>)| {
            let sample = |used: &Option<Used>| vec![used.as_ref().and_then(|it| of(measure, it))];
            Row {
                case: format!("{name}, {what}"),
                contender: (*malloc).into(),
                // Each round is a process.
                samples: rounds.iter().map(sample).collect(),
                refused: rounds.iter().any(Option::is_none).then(|| "a run failed".into()),
                ..Row::default()
            }
        };
        let mut of_measure: Vec<Row> = mallocs.iter().zip(used).map(row).collect();
        if of_measure.iter().all(|row| row.samples.iter().flatten().all(Option::is_none)) {
            continue; // it ends with its work, and so cannot rest
        }
        if measure == 0 {
            of_measure[0].orders = drawn.to_vec();
        }
        let mut pooled = rounds::pool(vec![of_measure], &[GLIBC, OURS]);
        if measure >= 2 {
            pooled.iter_mut().for_each(into_bytes);
        }
        rows.extend(pooled);
    }
    rows
}

/// Says that a row's median is one of bytes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
fn into_bytes(row: &mut Row) {
    row.resident_peak_bytes = row.ns.take().map(|bytes| bytes as u64);
}

/// An empty folder for one run, which goes when it is dropped. Its path is short, since the paths of
/// sockets are.
struct Folder(PathBuf);

impl Folder {
    /// Folders that one process has at once differ in their numbers.
    fn new(number: usize) -> Result<Self, BadInput> {
        let name = format!("bucketpool-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        let unwritable = |error| {
            BadInput::new(format!("{}: {error}", path.display()), "a folder that can be written")
        };
        fs::create_dir_all(&path).map_err(unwritable)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The first of these files that is there.
fn first_of(files: &[PathBuf]) -> Result<PathBuf, String> {
    let found = files.iter().find(|file| file.is_file()).cloned();
    let names = || files.iter().map(|it| it.display().to_string()).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("there is no {}", names()))
}

/// Writes a file.
fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests;
