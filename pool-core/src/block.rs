//! Blocks: a request, and the record of the block that serves it.

use crate::port::{DeviceAllocator, StreamOf};
use crate::size::Class;
use std::ops::RangeInclusive;

pub(crate) mod flags;
pub(crate) mod guards;
pub(crate) mod record;

/// The number of a private pool. It is not 0, so that `Option<PrivateId>` needs no second word.
pub(crate) type PrivateId = std::num::NonZeroU32;

/// The kind of memory, which must match, and the number of the stream, whose own blocks are tried
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key<K> {
    pub(crate) kind: K,
    pub(crate) stream_id: u64,
}

/// What a program asks for.
pub(crate) struct Wanted<'r, A: DeviceAllocator> {
    pub(crate) stream: &'r StreamOf<A>,
    pub(crate) bytes: u64,
    pub(crate) kind: A::Kind,
    /// Whether the first `bytes` bytes are to be zero, whatever the pool's policy.
    pub(crate) zeroed: bool,
}

impl<A: DeviceAllocator> Clone for Wanted<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: DeviceAllocator> Copy for Wanted<'_, A> {}

/// A request, with all that a search needs.
pub(crate) struct PoolRequest<'r, A: DeviceAllocator> {
    /// The stream that the memory must be ready for.
    pub(crate) on: &'r StreamOf<A>,
    /// The stream that uses it: another one only where zeroing runs ahead on the default stream.
    pub(crate) stream: &'r StreamOf<A>,
    pub(crate) key: Key<A::Kind>,
    pub(crate) class: Class,
    pub(crate) requested: u64,
    /// The private pool that the stream is bound to.
    pub(crate) private: Option<PrivateId>,
    /// Whether nobody tells of the launches of that pool's graphs: nothing can be ordered in front of them.
    pub(crate) is_untold: bool,
    /// Whether it joins the line of requests that wait if it is refused.
    pub(crate) joins_line: bool,
}

impl<A: DeviceAllocator> Clone for PoolRequest<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: DeviceAllocator> Copy for PoolRequest<'_, A> {}

impl<A: DeviceAllocator> PoolRequest<'_, A> {
    /// The sizes of blocks that may serve.
    pub(crate) fn sizes(&self) -> RangeInclusive<u64> {
        self.class.bytes..=self.class.max_block_bytes
    }
}
