//! The buffers of a pool that C has, by their addresses.

use crate::memory::Memory;
use crate::status::Failure;
use dashmap::DashMap;
use pool_core::{PooledBuffer, StreamOf};
use rustc_hash::FxBuildHasher;

/// Maps by a hash of the address, each with a lock of its own: a call for one block takes one of them.
const MAPS: usize = 64;

/// A buffer that C has.
pub(crate) struct Block<A: Memory> {
    pub(crate) buffer: PooledBuffer<A>,
    /// The stream of its allocation, and its handle.
    pub(crate) on: StreamOf<A>,
    pub(crate) handle: usize,
    /// What its free must wait for on the host, if anything.
    pub(crate) late: Option<Box<Late>>,
    /// The frees that it waits for: one, and one for each `bp_hold`.
    holders: u32,
}

/// What no stream of the pool's device can be ordered behind.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// Whether all work of the device may use the block.
    pub(crate) behind_all: bool,
    /// The handles of streams of other devices that use it.
    pub(crate) strangers: Vec<usize>,
}

impl Late {
    pub(crate) fn add_stranger(&mut self, handle: usize) {
        if !self.strangers.contains(&handle) {
            self.strangers.push(handle);
        }
    }
}

/// All buffers of a pool that C has.
pub(crate) struct Live<A: Memory>(DashMap<usize, Block<A>, FxBuildHasher>);

impl<A: Memory> Live<A> {
    pub(crate) fn new() -> Self {
        Self(DashMap::with_hasher_and_shard_amount(FxBuildHasher, MAPS))
    }

    /// Notes a buffer. Two blocks at one address are a fault of the pool: the older one stays.
    #[inline]
    pub(crate) fn insert(
        &self,
        at: usize,
        buffer: PooledBuffer<A>,
        on: StreamOf<A>,
        handle: usize,
    ) -> Result<(), Failure> {
        match self.0.insert(at, Block { buffer, on, handle, late: None, holders: 1 }) {
            None => Ok(()),
            Some(older) => self.is_twice(at, older),
        }
    }

    #[cold]
    fn is_twice(&self, at: usize, older: Block<A>) -> Result<(), Failure> {
        // Neither may be freed: both have the memory.
        std::mem::forget(self.0.insert(at, older));
        let text = format!("the block at {at:#x} was lent twice");
        Err(Failure::new(crate::status::Status::BpBroken, text))
    }

    /// Takes a buffer out, if this is the last free of it. If others hold it, `before_others` is called with it.
    #[inline]
    pub(crate) fn take(
        &self,
        at: usize,
        before_others: impl Fn(&Block<A>) -> Result<(), Failure>,
    ) -> Result<Option<Block<A>>, Failure> {
        loop {
            if let Some((_, block)) = self.0.remove_if(&at, |_, block| block.holders == 1) {
                return Ok(Some(block));
            }
            let Some(mut block) = self.0.get_mut(&at) else { return Err(Failure::unknown(at)) };
            if block.holders > 1 {
                block.holders -= 1;
                before_others(&block)?;
                return Ok(None);
            }
            // Another holder has freed it meanwhile: this is the last one now.
        }
    }

    /// One more free must come before the buffer goes.
    pub(crate) fn hold(&self, at: usize) -> Result<(), Failure> {
        let mut block = self.0.get_mut(&at).ok_or_else(|| Failure::unknown(at))?;
        let more = block.holders.checked_add(1);
        block.holders = more.ok_or_else(|| Failure::invalid("a block with 4294967295 holders"))?;
        Ok(())
    }

    /// Notes what the free of a buffer must wait for.
    #[cold]
    pub(crate) fn note_late(&self, at: usize, note: impl FnOnce(&mut Late)) -> Result<(), Failure> {
        let mut block = self.0.get_mut(&at).ok_or_else(|| Failure::unknown(at))?;
        note(block.late.get_or_insert_default());
        Ok(())
    }

    /// Calls `with` with the buffer at an address. It must not call for another one.
    pub(crate) fn with<T>(
        &self,
        at: usize,
        with: impl FnOnce(&Block<A>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let block = self.0.get(&at).ok_or_else(|| Failure::unknown(at))?;
        with(&block)
    }

    /// Whether a buffer begins at an address.
    pub(crate) fn has(&self, at: usize) -> bool {
        self.0.contains_key(&at)
    }

    /// The address of the buffer that an address lies in. That of a buffer is found at once; inside of one, all are
    /// looked at.
    pub(crate) fn base_of(&self, at: usize) -> Option<usize> {
        if self.has(at) {
            return Some(at);
        }
        let lies_in = |base: usize, bytes: u64| {
            at.checked_sub(base).is_some_and(|offset| (offset as u64) < bytes)
        };
        let inside = |block: dashmap::mapref::multiple::RefMulti<'_, usize, Block<A>>| {
            lies_in(*block.key(), block.buffer.size()).then(|| *block.key())
        };
        self.0.iter().find_map(inside)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}
