//! Who asks for memory: what requests that wait, and pools of a budget, are told apart by.

use std::any::TypeId;

/// The pool of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    /// The address of its store.
    pub(crate) pool: usize,
    pub(crate) device: DeviceId,
}

/// The device of a pool: the type of its clock, and where streams order its work, the address of the
/// clock that all its pools share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId {
    pub(crate) clock: TypeId,
    pub(crate) address: usize,
}
