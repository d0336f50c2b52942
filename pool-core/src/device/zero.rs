//! What a buffer shows before anybody has written to it.

/// When a pool clears blocks.
///
/// A block that is reused shows what its last user left, and a block fresh from a device may show
/// what somebody else left: `cuMemAlloc` promises nothing. Pools that serve several tenants, or
/// hold secrets, choose something else than `Never`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZeroPolicy {
    /// Old contents are shown. For programs that overwrite what they ask for; the cheapest.
    #[default]
    Never,
    /// Each block is cleared, its rounding tail too, before it is handed out.
    OnAllocate,
    /// Each block is cleared when it comes back, so that nothing stays in idle memory. Where a drop
    /// must not call the device, the block is cleared before it is handed out again instead, and so
    /// are blocks fresh from a device that does not clear them: nobody sees old contents, but they
    /// stay in the idle block until then.
    OnReturn,
}
