//! Blocks: a request, and the record of the block that serves it.

pub(crate) mod flags;
pub(crate) mod guards;
pub(crate) mod record;
pub(crate) mod request;
