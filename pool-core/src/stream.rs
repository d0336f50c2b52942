//! Streams: the last uses of a block, whether they are done, and which streams may use it next.

mod marks;
mod order;
mod timeline;

pub(crate) use marks::Marks;
pub use order::StealPolicy;
pub(crate) use order::{After, Taker};
pub use timeline::{EventDriver, Mark, Stream, Timeline};
