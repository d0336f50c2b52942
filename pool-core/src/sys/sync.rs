//! Locks and atomics: the library's, or in a build with `--cfg pool_counts` those that count how
//! often they go from one thread to another.

#[cfg(pool_counts)]
pub(crate) use crate::sys::counts::{Mutex, RwLock, atomic};
#[cfg(not(pool_counts))]
pub(crate) use parking_lot::{Mutex, RwLock};
#[cfg(not(pool_counts))]
pub(crate) use std::sync::atomic;
