//! Flags that send allocations and frees the slow way. A hit reads them once before it locks its
//! shard; a free reads them once under the lock of its shard.

#[cfg(any(loom, shuttle))]
use crate::checker::sync::atomic::AtomicU8;
#[cfg(not(any(loom, shuttle)))]
use crate::sys::atomic::AtomicU8;
use crate::sys::atomic::{Ordering::Relaxed, Ordering::SeqCst};

/// A stream is bound to a private pool.
pub(crate) const BOUND: u8 = 8;
/// The pool has observers or guards.
pub(crate) const OBSERVED: u8 = 1;
/// A request waits for memory.
pub(crate) const AWAITED: u8 = 2;
/// An invariant is broken, and the pool serves no more.
pub(crate) const BROKEN: u8 = 16;
/// Blocks are zeroed when they are freed.
pub(crate) const ZEROES: u8 = 4;

/// The flags of a pool.
#[derive(Debug)]
pub(crate) struct Flags(AtomicU8);

impl Flags {
    pub(crate) fn new(flags: u8) -> Self {
        Self(AtomicU8::new(flags))
    }

    /// Whether any of these is set.
    #[inline]
    pub(crate) fn any(&self, of: u8) -> bool {
        self.0.load(Relaxed) & of != 0
    }

    /// All flags that are set.
    #[inline]
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, flag: u8, on: bool) {
        match on {
            true => self.0.fetch_or(flag, SeqCst),
            false => self.0.fetch_and(!flag, SeqCst),
        };
    }
}
