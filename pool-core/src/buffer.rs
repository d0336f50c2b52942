//! Buffers: the memory that a program has, its uses on streams, and how it goes back.

mod detached;
mod freeing;
mod host;
mod pooled;
mod transfer;
mod uses;

pub use detached::Detached;
pub use pooled::PooledBuffer;
pub use uses::Use;
