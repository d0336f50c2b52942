//! Atomics: the standard library's, or in a build with `--cfg pool_counts` those that count how
//! often they go from one thread to another.

#[cfg(pool_counts)]
pub(crate) use pool_core::counts::atomic;
#[cfg(not(pool_counts))]
pub(crate) use std::sync::atomic;
