//! `Pool`, and the functions that look at all pools.

use crate::handler;
use crate::heap::{self, Heap};
use pool_host::{PageHeap, PageHeapStats};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::Duration;

/// Memory for NumPy arrays that is used again, with its own limits.
///
/// limit: how many bytes of freed arrays may be kept: a number, or text such as "512M". By default
/// an eighth of the memory that the process may use, and at most 1 GiB.
/// decay: after how many seconds memory that no array needed goes back to the system; None for
/// never.
/// background: whether a thread gives memory back while the program does something else. It starts
/// when a pool has 8 MiB. Without it the arrays of this pool do that, and the
/// thread if another pool has it.
///
/// Arrays from 64 KiB are in the pool. They may outlive it.
#[pyclass(module = "bucketpool", frozen)]
#[derive(Debug)]
pub(crate) struct Pool {
    heap: Arc<Heap>,
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (limit=None, decay=Some(1.0), background=true))]
    fn new(
        limit: Option<&Bound<'_, PyAny>>,
        decay: Option<f64>,
        background: bool,
    ) -> PyResult<Self> {
        let limit = limit.map(bytes_of).transpose()?;
        let decay = decay.map(duration_of).transpose()?;
        let heap = Heap::new(limit, decay, background);
        let heap = heap.ok_or_else(|| PyMemoryError::new_err("no memory for another pool"))?;
        Ok(Self { heap })
    }

    /// Returns the counts of the pool, and the bytes that it has, as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dict_of(py, &self.heap.stats())
    }

    /// Gives kept memory back to the system: at least this many bytes, or all of it. Returns the
    /// bytes that went.
    #[pyo3(signature = (bytes=None))]
    fn trim(&self, py: Python<'_>, bytes: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let bytes = bytes.map_or(Ok(u64::MAX), bytes_of)?;
        let pages = self.heap.pages();
        Ok(py.detach(|| pages.trim(bytes)))
    }

    /// The capsule that `set_handler` takes.
    fn _handler<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        handler::capsule(py, &self.heap)
    }

    fn __repr__(&self) -> String {
        format!("<bucketpool.Pool: {}>", self.heap.stats())
    }
}

/// Returns the sums over all pools of the process as a dict. Counts are those of pools that are
/// gone too. The limits, and the peaks, which were at different times, are not added up.
#[pyfunction]
pub(crate) fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let sum = PyDict::new(py);
    let each = heap::all().into_iter().map(PageHeap::stats);
    for stats in each.chain([PageHeapStats::default()]) {
        for (name, value) in figures(&stats).into_iter().filter(|(name, _)| ADDED.contains(name)) {
            let before: u64 = match sum.get_item(name)? {
                Some(before) => before.extract()?,
                None => 0,
            };
            sum.set_item(name, before.saturating_add(value))?;
        }
    }
    Ok(sum)
}

/// Gives kept memory of all pools back to the system: at least this many bytes, or all of it.
/// Returns the bytes that went.
#[pyfunction]
#[pyo3(signature = (bytes=None))]
pub(crate) fn trim(py: Python<'_>, bytes: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
    let bytes = bytes.map_or(Ok(u64::MAX), bytes_of)?;
    // Listed with the interpreter lock held, so that no fork comes in between.
    let heaps = heap::all();
    let trim = |went: u64, heap: &&PageHeap| match went < bytes {
        true => went + heap.trim(bytes - went),
        false => went,
    };
    Ok(py.detach(|| heaps.iter().fold(0, trim)))
}

/// Figures that can be added up over pools.
const ADDED: [&str; 6] =
    ["allocations", "hits", "misses", "live_bytes", "cached_bytes", "returned_bytes"];

fn figures(stats: &PageHeapStats) -> [(&'static str, u64); 8] {
    [
        ("allocations", stats.allocations),
        ("hits", stats.hits()),
        ("misses", stats.misses),
        ("live_bytes", stats.live_bytes),
        ("live_peak_bytes", stats.live_peak_bytes),
        ("cached_bytes", stats.cached_bytes),
        ("returned_bytes", stats.returned_bytes),
        ("cached_limit_bytes", stats.cached_limit_bytes),
    ]
}

fn dict_of<'py>(py: Python<'py>, stats: &PageHeapStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in figures(stats) {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

/// Reads a size: a number of bytes, or a number with K, M or G (powers of 1024). Refuses 1 to 4095
/// bytes, which are far more often meant in MiB.
fn bytes_of(size: &Bound<'_, PyAny>) -> PyResult<u64> {
    let too_few = |bytes: u64| {
        (1..4096).contains(&bytes).then(|| {
            let error = format!("{bytes} bytes; expected 4096 or more, or \"{bytes}M\" for MiB");
            PyValueError::new_err(error)
        })
    };
    if let Ok(bytes) = size.extract::<u64>() {
        return too_few(bytes).map_or(Ok(bytes), Err);
    }
    let expected = "expected bytes, or text such as \"512M\" (K, M or G)";
    let Ok(text) = size.extract::<String>() else {
        let given = size.repr()?;
        let is_number = size.extract::<f64>().is_ok();
        let error = format!("{given} is no size; {expected}");
        return Err(if is_number {
            PyValueError::new_err(error)
        } else {
            PyTypeError::new_err(error)
        });
    };
    let (number, unit) = match text.trim_end_matches(['K', 'M', 'G']) {
        number if number.len() + 1 < text.len() => ("", 0),
        number => (
            number,
            match text.chars().last() {
                Some('K') => 1 << 10,
                Some('M') => 1 << 20,
                Some('G') => 1 << 30,
                _ => 1,
            },
        ),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    if let Some(error) = bytes.filter(|_| unit == 1).and_then(too_few) {
        return Err(error);
    }
    bytes.ok_or_else(|| PyValueError::new_err(format!("\"{text}\" is no size; {expected}")))
}

fn duration_of(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        PyValueError::new_err(format!("decay: {seconds} s: {error}; expected seconds, or None"))
    })
}
