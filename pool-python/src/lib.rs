//! The part of the Python package `bucketpool` that is written in Rust: pools, and the functions
//! through which NumPy allocates from them (NEP 49).
//!
//! Python calls [`pool::Pool`], [`pool::stats`] and [`pool::trim`]; NumPy calls the functions of
//! [`handler`] from then on, for each array, without Python. The Python files are in
//! `python/bucketpool`.
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]

mod handler;
mod heap;
mod pool;

use pyo3::prelude::*;

/// Pools for NumPy's arrays.
// The list of heaps is guarded over a fork by the interpreter lock.
#[pymodule(name = "_bucketpool", gil_used = true)]
fn bucketpool(contents: &Bound<'_, PyModule>) -> PyResult<()> {
    contents.add_class::<pool::Pool>()?;
    contents.add_function(wrap_pyfunction!(pool::stats, contents)?)?;
    contents.add_function(wrap_pyfunction!(pool::trim, contents)?)?;
    contents.add_function(wrap_pyfunction!(handler::set_handler, contents)?)
}
