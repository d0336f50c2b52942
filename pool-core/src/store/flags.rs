//! Flags that send allocations and frees the slow way. A hit reads them before it locks its
//! shard; a free reads them under the lock of its shard.
//!
//! Who sets [`AWAITED`] or [`CLOSED`] takes the lock of each shard once afterwards: every free that has not
//! seen the flag has ended then, or asks again. No such order holds for hits ([`OF_HIT`]): one that is
//! under way may end after the flag is set. A flag that must stop them is to be read under the lock.

#[cfg(any(loom, shuttle))]
use crate::checker::sync::atomic::AtomicU32;
#[cfg(not(any(loom, shuttle)))]
use crate::sys::atomic::AtomicU32;
use crate::sys::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// The pool has observers or guards.
pub(crate) const OBSERVED: u32 = 1;
/// A request waits for memory.
pub(crate) const AWAITED: u32 = 2;
/// Blocks are zeroed when they are freed.
pub(crate) const ZEROES: u32 = 4;
/// A stream is bound to a private pool.
pub(crate) const BOUND: u32 = 8;
/// An invariant is broken, and the pool serves no more.
pub(crate) const BROKEN: u32 = 16;
/// The pool limits its buckets.
pub(crate) const LIMITED: u32 = 32;
/// The pool is closed.
pub(crate) const CLOSED: u32 = 64;
/// The pool splits its memory.
pub(crate) const ARENA: u32 = 128;
/// Nothing is reused.
pub(crate) const UNCACHED: u32 = 512;
/// Always set: a handle that asks about it has no hits.
pub(crate) const ALWAYS: u32 = 256;

/// The flags that every free of a whole block asks about.
pub(crate) const OF_FREE: u32 = OBSERVED | AWAITED | ZEROES | BROKEN | LIMITED | CLOSED;
/// The flags that every hit asks about.
pub(crate) const OF_HIT: u32 = OBSERVED | BOUND | BROKEN | ARENA | UNCACHED;

/// The flags of a pool.
#[derive(Debug)]
pub(crate) struct Flags(AtomicU32);

impl Flags {
    pub(crate) fn new(flags: u32) -> Self {
        Self(AtomicU32::new(flags | ALWAYS))
    }

    /// Whether any of these is set.
    #[inline]
    pub(crate) fn any(&self, of: u32) -> bool {
        self.0.load(Relaxed) & of != 0
    }

    /// All flags that are set.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, flag: u32, on: bool) {
        match on {
            true => self.0.fetch_or(flag, SeqCst),
            false => self.0.fetch_and(!flag, SeqCst),
        };
    }
}
