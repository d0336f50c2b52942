//! Free memory by its size: a bit for each step of sizes that has any, and the entries of a step as a
//! list or as a tree. Ranges of an arena are such entries, and bins of whole blocks.

mod steps;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use steps::SizeSteps;
pub(crate) use tree::SizeKey;

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// Entries by number. Their links are in them, and not in the memory that they stand for, which the
/// CPU may not be able to write.
pub(crate) trait Entries {
    /// The place of an entry in the order.
    fn key(&self, id: u32) -> SizeKey;
    fn links(&self, id: u32) -> SizeLinks;
    fn links_mut(&mut self, id: u32) -> &mut SizeLinks;
}

/// The links of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeLinks {
    /// The neighbours in the list of a step, or the children in its tree, or [`NONE`].
    pub(crate) older: u32,
    pub(crate) newer: u32,
    /// The step that it is in.
    pub(crate) step: u16,
}

impl SizeLinks {
    pub(crate) const NONE: Self = Self { older: NONE, newer: NONE, step: 0 };
}
