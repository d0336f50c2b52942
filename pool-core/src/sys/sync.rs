//! Locks and atomics: the library's, or in a build with `--cfg pool_counts` those that count how
//! often they go from one thread to another.

#[cfg(pool_counts)]
pub(crate) use crate::sys::counts::{Mutex, RwLock, atomic};
#[cfg(not(pool_counts))]
pub(crate) use parking_lot::{Mutex, RwLock};
#[cfg(not(pool_counts))]
pub(crate) use std::sync::atomic;

/// A word beside a lock of another kind, which counts as the word of that lock.
#[cfg(pool_counts)]
pub(crate) use crate::sys::counts::LineState as Word;

/// Nothing, in a build that does not count.
#[cfg(not(pool_counts))]
pub(crate) struct Word;

#[cfg(not(pool_counts))]
impl Word {
    pub(crate) const NEW: Self = Self;

    #[inline]
    #[expect(clippy::unused_self, reason = "as in a build that counts")]
    pub(crate) fn written(&self) {}
}
