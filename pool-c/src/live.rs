//! The buffers of a pool that C has, by their addresses.

use crate::memory::Memory;
use crate::status::{Failure, Status};
#[cfg(not(pool_counts))]
use parking_lot::Mutex;
#[cfg(pool_counts)]
use pool_core::counts::Mutex;
use pool_core::{PooledBuffer, StreamOf};
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Maps by a hash of the address, as a power of two. A block that comes again has its map, so what a thread takes and
/// frees by itself it shares with no other thread, unless both have a block in one map. Eight threads with 64 blocks
/// each hand over 1226 words per 1000 operations with 64 maps, 442 with 1024, and 8192, which take 0.5 MiB, 186
/// (`pool-bench counts --through-c` of the build that counts; 98 in Rust).
const MAPS_LOG2: u32 = 13;

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

type Map<A> = HashMap<usize, Block<A>, FxBuildHasher>;

/// A map on a cache line of its own.
#[repr(align(64))]
struct Part<A: Memory>(Mutex<Map<A>>);

/// All buffers of a pool that C has.
pub(crate) struct Live<A: Memory>(Box<[Part<A>]>);

impl<A: Memory> Live<A> {
    pub(crate) fn new() -> Self {
        Self((0..1 << MAPS_LOG2).map(|_| Part(Mutex::new(Map::default()))).collect())
    }

    /// The map of an address.
    #[inline]
    fn map(&self, at: usize) -> &Mutex<Map<A>> {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let hash = (at as u64).wrapping_mul(GOLDEN) >> (u64::BITS - MAPS_LOG2);
        &self.0[hash as usize].0
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
        let block = Block { buffer, on, handle, late: None, holders: 1 };
        match self.map(at).lock().entry(at) {
            Entry::Vacant(place) => {
                place.insert(block);
                Ok(())
            }
            Entry::Occupied(_) => is_twice(at, block),
        }
    }

    /// Takes a buffer out, if this is the last free of it. If others hold it, `before_others` is called with it.
    #[inline]
    pub(crate) fn take(
        &self,
        at: usize,
        before_others: impl Fn(&Block<A>) -> Result<(), Failure>,
    ) -> Result<Option<Block<A>>, Failure> {
        let mut map = self.map(at).lock();
        let Entry::Occupied(mut known) = map.entry(at) else { return Err(Failure::unknown(at)) };
        if known.get().holders == 1 {
            return Ok(Some(known.remove()));
        }
        known.get_mut().holders -= 1;
        before_others(known.get()).map(|()| None)
    }

    /// One more free must come before the buffer goes.
    pub(crate) fn hold(&self, at: usize) -> Result<(), Failure> {
        self.change(at, |block| {
            let more = block.holders.checked_add(1);
            block.holders =
                more.ok_or_else(|| Failure::invalid("a block with 4294967295 holders"))?;
            Ok(())
        })
    }

    /// Notes what the free of a buffer must wait for.
    #[cold]
    pub(crate) fn note_late(&self, at: usize, note: impl FnOnce(&mut Late)) -> Result<(), Failure> {
        self.change(at, |block| {
            note(block.late.get_or_insert_default());
            Ok(())
        })
    }

    fn change(
        &self,
        at: usize,
        change: impl FnOnce(&mut Block<A>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut map = self.map(at).lock();
        change(map.get_mut(&at).ok_or_else(|| Failure::unknown(at))?)
    }

    /// Calls `with` with the buffer at an address. It must not call for another one.
    pub(crate) fn with<T>(
        &self,
        at: usize,
        with: impl FnOnce(&Block<A>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let map = self.map(at).lock();
        with(map.get(&at).ok_or_else(|| Failure::unknown(at))?)
    }

    /// Whether a buffer begins at an address.
    pub(crate) fn has(&self, at: usize) -> bool {
        self.map(at).lock().contains_key(&at)
    }

    /// The address of the buffer that an address lies in. That of a buffer is found at once; inside of one, all are
    /// looked at.
    pub(crate) fn base_of(&self, at: usize) -> Option<usize> {
        if self.has(at) {
            return Some(at);
        }
        let lies_in = |(base, block): (&usize, &Block<A>)| {
            let offset = at.checked_sub(*base)?;
            ((offset as u64) < block.buffer.size()).then_some(*base)
        };
        self.0.iter().find_map(|part| part.0.lock().iter().find_map(lies_in))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|part| part.0.lock().len()).sum()
    }
}

/// Reports a block that was lent twice. Neither may be freed: both have the memory.
#[cold]
fn is_twice<A: Memory>(at: usize, newer: Block<A>) -> Result<(), Failure> {
    std::mem::forget(newer);
    Err(Failure::new(Status::BpBroken, format!("the block at {at:#x} was lent twice")))
}
