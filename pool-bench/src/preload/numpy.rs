//! NumPy: expressions with temporaries, and what stays resident after them.

use super::{Figure, Malloc, ProcessCase, ROUNDS, measure};
use crate::input::BadInput;
use serde::Deserialize;
use std::path::PathBuf;

/// The name of the case on the command line.
pub(super) const NAME: &str = "numpy";
/// Where xtask says a Python with NumPy is.
const PYTHON: &str = "BUCKETPOOL_PYTHON";
/// Computes expressions and prints what it measured.
const SCRIPT: &str = include_str!("../../programs/expression.py");

/// A line that the script prints.
#[derive(Deserialize)]
struct NumpyLine {
    elements: u64,
    /// Nanoseconds of one expression.
    ns: Option<f64>,
    resident_bytes: u64,
}

/// The names of the cases in tables, and whether a larger array is freed before each size, after
/// which glibc keeps freed memory.
const CASES: [(&str, bool); 2] = [
    ("NumPy (a+b)*(a-b), f32", false),
    ("NumPy (a+b)*(a-b), f32, after a larger array was freed", true),
];

/// The cases, if xtask has made a Python with NumPy.
pub(super) fn cases(smoke: bool, notes: &mut Vec<String>) -> Vec<ProcessCase> {
    let Some(python) = std::env::var_os(PYTHON).map(PathBuf::from) else {
        notes.push("left out: NumPy, since there is no Python with it".into());
        return Vec::new();
    };
    CASES.map(|(name, larger_freed)| case(python.clone(), name, larger_freed, smoke)).into()
}

fn case(python: PathBuf, name: &str, larger_freed: bool, smoke: bool) -> ProcessCase {
    let run = move |malloc: &Malloc| {
        let mut arguments = vec!["-c", SCRIPT];
        arguments.extend(smoke.then_some("--smoke"));
        arguments.extend(larger_freed.then_some("--larger-freed"));
        arguments.extend(malloc.handler.then_some("--install"));
        let (_, printed) = measure(malloc, &python, &arguments)?;
        let read = |line: &str| {
            let told: NumpyLine = serde_json::from_str(line).map_err(|error| {
                BadInput::new(format!("NumPy under {}: {error}", malloc.name), "a line of JSON")
            })?;
            let what = if told.ns.is_none() { ", 12 s after it" } else { "" };
            let (ns, resident_bytes) = (told.ns, told.resident_bytes);
            Ok(Figure { what, size: told.elements, ns, resident_bytes })
        };
        printed.lines().map(read).collect()
    };
    ProcessCase { is_numpy: true, rounds: ROUNDS, name: name.into(), run: Box::new(run) }
}
