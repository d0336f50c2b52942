//! Writes outside of live buffers, as guards report them.

use std::fmt;

/// A fault of the program that guards have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The misuse.
    pub misuse: Misuse,
    /// The tag of the buffer's request ([`BucketPool::tagged`](crate::BucketPool::tagged)). For
    /// memory that was written after its free, the tag of the next request that gets the memory.
    pub tag: &'static str,
    /// Bytes that this request has.
    pub requested_bytes: u64,
    /// The first byte that was overwritten, from the start of the buffer.
    pub at: u64,
}

/// The misuses that guards find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// Bytes behind the end of a buffer were written; found when the buffer is freed.
    WrittenBehindEnd,
    /// A cached block was written; found when it is handed out again.
    WrittenAfterFree,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, requested) = (self.at, self.requested_bytes);
        match self.misuse {
            Misuse::WrittenBehindEnd => {
                write!(f, "byte {at} of a buffer of {requested} was written")
            }
            Misuse::WrittenAfterFree => {
                write!(f, "byte {at} was written after it was freed; found for {requested} bytes")
            }
        }?;
        if self.tag.is_empty() { Ok(()) } else { write!(f, ", tag {:?}", self.tag) }
    }
}
