//! Models, Miri, and systems without `fork` have one process.

/// Returns the number of the process: there is one.
#[inline]
#[must_use]
pub fn forks() -> u32 {
    1
}

/// The same.
#[inline]
pub(crate) fn forks_seen() -> u32 {
    1
}

/// No process is the child of another.
#[must_use]
pub fn is_vfork_child() -> bool {
    false
}

/// There is one.
pub fn note_process() {}

/// Nobody asks.
pub fn stop_asking() {}

/// Nothing forks.
pub fn watch_forks() {}
