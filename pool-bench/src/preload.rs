//! Programs that are not changed, under each malloc that can be preloaded: programs in C and C++
//! that allocate much, and NumPy.

mod numpy;
mod process;
mod programs;

use crate::apart::Spread;
use crate::input::BadInput;
use crate::rounds::{self, Row};
use crate::statistics::{Orders, median};
use process::ProcessUse;
use std::path::{Path, PathBuf};

/// Rounds; each contender has a process in each.
const ROUNDS: usize = 5;
/// Rounds of short programs with threads, whose speed differs much between processes.
const SHORT_ROUNDS: usize = 15;
/// The malloc that needs no library.
pub(crate) const GLIBC: &str = "glibc";
/// glibc once more: its difference from glibc is noise.
const CONTROL: &str = "glibc, control";
/// Ours.
pub(crate) const OURS: &str = "bucketpool";
/// The Python package's pool behind NumPy, over the C library's malloc.
const HANDLER: &str = "NumPy's handler";
/// Where xtask says our library is.
const LIBRARY: &str = "BUCKETPOOL_PRELOAD";
/// Other libraries: the name, where Debian installs it, and the package.
const OTHERS: [(&str, &str, &str); 3] = [
    ("mimalloc", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "libmimalloc2.0"),
    ("jemalloc", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libjemalloc2"),
    ("tcmalloc", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
];

/// Ours of an earlier build.
const BEFORE: &str = "bucketpool, before";

/// A malloc.
#[derive(Debug)]
pub(crate) struct Malloc {
    pub(crate) name: &'static str,
    /// The library to preload; `None` for the C library's.
    pub(crate) library: Option<PathBuf>,
    /// Whether NumPy allocates its arrays from a pool of the Python package.
    pub(crate) handler: bool,
}

impl Malloc {
    /// Ours of an earlier build, in a folder.
    ///
    /// # Errors
    ///
    /// A folder without it.
    pub(crate) fn before(folder: &Path) -> Result<Self, BadInput> {
        // Programs run in folders of their own, so the path is from the root.
        let library = folder.join("libbucketpool.so").canonicalize().ok();
        if library.as_ref().is_some_and(|library| library.is_file()) {
            return Ok(Self { name: BEFORE, library, handler: false });
        }
        let what = format!("`--before {}`", folder.display());
        Err(BadInput::new(what, "a folder with libbucketpool.so"))
    }

    /// Whether it is ours or the C library's, and not a peer.
    pub(crate) fn is_ours_or_glibc(&self) -> bool {
        [OURS, BEFORE, GLIBC, CONTROL].contains(&self.name)
    }
}

/// Measures a case under a malloc, in a process.
type Run = dyn Fn(&Malloc) -> Result<Vec<Figure>, BadInput>;

/// A case: what it is called in tables, and the process that measures it.
struct ProcessCase {
    name: String,
    /// Whether it has arrays of NumPy.
    is_numpy: bool,
    /// Rounds, unless it is a smoke test.
    rounds: usize,
    run: Box<Run>,
}

/// One figure that a process measured.
struct Figure {
    /// Added to the case's name in tables; empty if the case has one figure.
    what: &'static str,
    /// Elements of an array; 0 where the case says it all.
    size: u64,
    /// `None` where only the memory is of interest.
    ns: Option<f64>,
    resident_bytes: u64,
}

/// Runs the cases that are chosen, all unless some are named, with the programs of mimalloc-bench
/// if a checkout of it is named.
///
/// # Errors
///
/// A name of no case, a program that does not compile or fails, or no library.
pub(crate) fn run(
    smoke: bool,
    chosen: &[String],
    suite: Option<&Path>,
    spread: &Spread,
    notes: &mut Vec<String>,
    tick: impl Fn(&str),
) -> Result<Vec<Row>, BadInput> {
    let mallocs = mallocs(notes)?;
    let known = programs::names().chain([numpy::NAME]);
    let known: Vec<&str> = known.collect();
    if let Some(unknown) = chosen.iter().find(|case| !known.contains(&case.as_str())) {
        let expected = format!("one of {}", known.join(", "));
        return Err(BadInput::new(format!("case `{unknown}`"), expected));
    }
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|case| case == name);
    let mut cases = programs::cases(smoke, suite, is_chosen, notes)?;
    if is_chosen(numpy::NAME) {
        cases.extend(numpy::cases(smoke, notes));
    }
    let mut rows = Vec::new();
    for case in &cases {
        tick(&case.name);
        let rounds = if smoke { 1 } else { case.rounds };
        let fitting = mallocs.iter().filter(|malloc| case.is_numpy || !malloc.handler);
        rows.extend(one(case, &fitting.collect::<Vec<_>>(), rounds, spread)?);
    }
    Ok(rows)
}

/// How many steps [`run`] tells at most.
pub(crate) fn steps() -> u64 {
    programs::names().count() as u64 + 2
}

/// Runs a case under each malloc, in random order within each round.
fn one(
    case: &ProcessCase,
    mallocs: &[&Malloc],
    rounds: usize,
    spread: &Spread,
) -> Result<Vec<Row>, BadInput> {
    let (mut orders, mut drawn) = (Orders::new(spread.seed), Vec::new());
    let mut figures: Vec<Vec<Vec<Figure>>> = mallocs.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        let order = orders.next(mallocs.len());
        for at in &order {
            figures[*at].push((case.run)(mallocs[*at])?);
        }
        drawn.push(vec![order.iter().map(ToString::to_string).collect()]);
    }
    let mut rows: Vec<Row> = Vec::new();
    let parts = figures[0][0].iter().map(|figure| (figure.what, figure.size)).enumerate();
    for (part, (what, size)) in parts {
        let row = |(malloc, rounds): (&&Malloc, &Vec<Vec<Figure>>)| {
            let of = |round: &Vec<Figure>| round[part].resident_bytes as f64;
            let resident: Vec<f64> = rounds.iter().map(of).collect();
            Row {
                case: format!("{}{what}", case.name),
                size,
                contender: malloc.name.into(),
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "bytes"
                )]
                resident_peak_bytes: Some(median(&resident) as u64),
                // A process has one sample, so each round is a process.
                samples: rounds.iter().map(|round| vec![round[part].ns]).collect(),
                ..Row::default()
            }
        };
        let mut of_part: Vec<Row> = mallocs.iter().zip(&figures).map(row).collect();
        if part == 0 {
            of_part[0].orders.clone_from(&drawn);
        }
        rows.extend(rounds::pool(vec![of_part], &[GLIBC, OURS]));
    }
    Ok(rows)
}

/// The mallocs that are here; those that are not are told in `notes`.
///
/// # Errors
///
/// xtask has not said where ours is.
pub(crate) fn mallocs(notes: &mut Vec<String>) -> Result<Vec<Malloc>, BadInput> {
    let Some(library) = std::env::var_os(LIBRARY).map(PathBuf::from) else {
        let what = "`--peers` with programs: there is no library to preload";
        return Err(BadInput::new(what, "`cargo xtask bench`, which builds it"));
    };
    let mut mallocs = vec![
        Malloc { name: OURS, library: Some(library), handler: false },
        Malloc { name: GLIBC, library: None, handler: false },
        Malloc { name: CONTROL, library: None, handler: false },
        Malloc { name: HANDLER, library: None, handler: true },
    ];
    for (name, library, package) in OTHERS {
        match Path::new(library).is_file() {
            true => {
                mallocs.push(Malloc { name, library: Some(library.into()), handler: false });
            }
            false => notes.push(format!("left out: {name}; `apt-get install {package}` brings it")),
        }
    }
    Ok(mallocs)
}

/// Runs a program under a malloc.
fn measure(
    malloc: &Malloc,
    program: &Path,
    arguments: &[&str],
) -> Result<(ProcessUse, String), BadInput> {
    let failed = |why: String| {
        let what = format!("{} under {}: {why}", program.display(), malloc.name);
        BadInput::new(what, "a run without failures")
    };
    process::run(program, arguments, malloc.library.as_deref()).map_err(failed)
}
