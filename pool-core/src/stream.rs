//! Streams: the last uses of a block, whether they are done, and which streams may use it next.

mod last_uses;
mod order;
mod timeline;

pub(crate) use last_uses::{Access, LastUses};
pub use order::StealPolicy;
pub(crate) use order::{Pending, Requester};
pub use timeline::{EventDriver, Mark, Stream, Timeline};
