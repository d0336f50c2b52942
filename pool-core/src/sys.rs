//! System support for a pool: locks, detection of forks, and numbers of threads.

#[cfg(pool_counts)]
pub mod counts;
pub(crate) mod fork;
#[cfg(not(any(loom, shuttle)))]
mod lock;
#[cfg(any(loom, shuttle))]
#[path = "sys/lock/modelled.rs"]
mod lock;
#[cfg(all(unix, not(any(miri, loom, shuttle))))]
pub(crate) mod process;
#[cfg(not(all(unix, not(any(miri, loom, shuttle)))))]
#[path = "sys/process/one.rs"]
pub(crate) mod process;
pub(crate) mod thread_number;

pub(crate) use fork::ForkCheck;
pub(crate) use lock::{Lock, LockGuard};
pub(crate) use process::{forks, watch_forks};

// Locks and atomics: the library's, or in a build with `--cfg pool_counts` those that count how
// often they go from one thread to another.
#[cfg(pool_counts)]
pub(crate) use counts::{Mutex, RwLock, atomic};
#[cfg(not(pool_counts))]
pub(crate) use parking_lot::{Mutex, RwLock};
#[cfg(not(pool_counts))]
pub(crate) use std::sync::atomic;

/// Atomics whose orders a checker tries, where one runs.
#[cfg(any(loom, shuttle))]
pub(crate) use crate::checker::sync::atomic as modelled;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use atomic as modelled;

/// Whether a lock of this type has no bytes but its word and its value. Locks of a checker are its own, and
/// those of a build that counts have more than a word.
pub(crate) const fn has_no_padding<T>() -> bool {
    cfg!(any(loom, shuttle, pool_counts))
        || size_of::<Lock<T>>() == size_of::<u64>() + size_of::<T>()
}
