//! The change of a figure since a moment.

/// A figure's change: now, and at its highest and lowest in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    pub(crate) now: i64,
    pub(crate) peak: i64,
    pub(crate) low: i64,
    /// The sum of all that it went up by.
    pub(crate) total: u64,
}
