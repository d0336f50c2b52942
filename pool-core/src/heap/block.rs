//! Blocks: a request, the record of the block that serves it, and the blocks that graphs keep.

pub(crate) mod flags;
pub(crate) mod private;
pub(crate) mod record;
pub(crate) mod request;
