//! The contents of a buffer before the program has written to it.

/// The rule by which a pool zeroes blocks.
///
/// A reused block contains what its last user left in it. A block fresh from a device may contain
/// what another program left in it: `cuMemAlloc` promises nothing. Pools that serve several
/// tenants, or hold secrets, choose another policy than `Never`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZeroPolicy {
    /// Blocks are not zeroed and have old contents. This is the cheapest policy, for programs that
    /// overwrite what they allocate.
    #[default]
    Never,
    /// Each block, with its rounding tail, is zeroed before it is handed out.
    OnAllocate,
    /// Each block is zeroed when it is freed, so that cached memory has no old contents. If a drop
    /// must not call the device, the pool zeroes the block when it hands it out again: then no
    /// buffer shows old contents, but the cached block keeps them until then. The pool also zeroes
    /// fresh blocks of a device that does not zero them.
    OnReturn,
}
