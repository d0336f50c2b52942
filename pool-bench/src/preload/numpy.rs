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

/// The case, if xtask has made a Python with NumPy.
pub(super) fn case(smoke: bool, notes: &mut Vec<String>) -> Option<ProcessCase> {
    let Some(python) = std::env::var_os(PYTHON).map(PathBuf::from) else {
        notes.push("left out: NumPy, since there is no Python with it".into());
        return None;
    };
    let run = move |malloc: &Malloc| {
        let mut arguments = vec!["-c", SCRIPT];
        arguments.extend(smoke.then_some("--smoke"));
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
    Some(ProcessCase {
        is_numpy: true,
        rounds: ROUNDS,
        name: "NumPy (a+b)*(a-b), f32".into(),
        run: Box::new(run),
    })
}
