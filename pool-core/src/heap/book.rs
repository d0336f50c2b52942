//! The book: the record of all memory that a pool has from its device. Segments, the ranges that
//! they are divided into, and free lists by size, under one lock of the pool's. Without an arena
//! each segment is one block, which is lent whole ([`blocks`]).
//!
//! [`Book::take`] and [`Book::free`] are the way of a block that no thread cache has. Nothing here
//! calls a device.
//! `docs/decisions/027-the-book.md` has the invariants; `check.rs` asserts them.

mod ages;
pub(crate) mod arena;
mod bins;
mod blocks;
#[cfg(feature = "check")]
mod check;
pub(crate) mod figures;
pub(crate) mod find;
mod free;
mod give;
pub(crate) mod list;
mod listed;
pub(crate) mod node;
pub(crate) mod place;
pub(crate) mod segment;
#[cfg(test)]
mod tests;
mod tree;
#[cfg(all(feature = "check", debug_assertions))]
mod visits;

use crate::heap::book::arena::ArenaConfig;
use crate::heap::change::Change;
use crate::port::StreamClock;
use crate::stream::{Pending, Requester};
use ages::Ages;
use list::{Group, RangeLists};
use listed::SplitFigures;
use node::{Nodes, State};
use segment::Segments;
use std::collections::HashMap;

/// All memory that a pool has from its device.
#[derive(Debug)]
pub(crate) struct Book<C: StreamClock, K> {
    pub(crate) config: ArenaConfig,
    pub(crate) nodes: Nodes<C::Mark>,
    pub(crate) segments: Segments<K>,
    pub(crate) lists: RangeLists<K>,
    /// Bytes of live and private ranges.
    used: u64,
    /// Of those, the bytes that thread caches hold, as far as they have told. Negative for a moment
    /// where one thread put what another took, and told first.
    in_caches: i64,
    /// The most bytes that buffers and private pools had at once.
    pub(crate) used_peak: u64,
    /// Bytes of free ranges.
    pub(crate) cached: u64,
    /// The most of that at once, with what thread caches held.
    pub(crate) cached_peak: u64,
    /// Counted under `PyTorch`'s rules only.
    pub(crate) split: Option<SplitFigures>,
    /// Allocations so far, warmed up blocks and ticks among them: the clock of ages.
    pub(crate) turn: u64,
    /// Whether free neighbours were ever left apart because work on one had not reached the device.
    apart: bool,
    /// The number of the node that the next portion of a search for neighbours begins with.
    pub(crate) cursor: u32,
    /// The list that the next search of other streams' ranges begins with.
    find_from: usize,
    /// Free blocks of a size in a list, where blocks are lent whole and a limit counts them.
    counts: Option<HashMap<(u64, u16), usize>>,
    /// Free blocks by age, where blocks are lent whole.
    ages: Ages,
    /// Blocks that go back to the device with the next call that may call it.
    pub(crate) deferred: Vec<u32>,
    /// Their bytes.
    deferred_bytes: u64,
}

/// A request, with all that a search needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BookRequest<K> {
    /// After rounding.
    pub(crate) bytes: u64,
    /// The largest range that may serve it.
    pub(crate) up_to: u64,
    pub(crate) group: Group<K>,
    /// The number of the stream.
    pub(crate) stream: u64,
}

impl<C: StreamClock, K: Copy + Eq + Default> Book<C, K> {
    pub(crate) fn new(config: ArenaConfig) -> Self {
        let unit_bits = config.granule.trailing_zeros();
        Self {
            nodes: Nodes::new(),
            segments: Segments::new(),
            lists: RangeLists::new(unit_bits, config.is_ordered()),
            used: 0,
            in_caches: 0,
            used_peak: 0,
            cached: 0,
            cached_peak: 0,
            split: config.is_torch().then(SplitFigures::default),
            turn: 0,
            apart: false,
            cursor: 0,
            find_from: 0,
            counts: None,
            ages: Ages::EMPTY,
            deferred: Vec::new(),
            deferred_bytes: 0,
            config,
        }
    }

    /// Adds a segment whose only range is live. Returns that range.
    pub(crate) fn add_segment(&mut self, group: Group<K>, bytes: u64) -> u32 {
        let at = self.segments.add(group, bytes);
        let first = self.nodes.add(at, (0, bytes), (node::NONE, node::NONE));
        if let Some(segment) = self.segments.get_mut(at) {
            (segment.first, segment.used) = (first, 1);
            // Blocks that are lent whole have another order (tree.rs).
            self.nodes[first].born = if self.config.is_blocks() { 0 } else { segment.born };
        }
        first
    }

    /// Serves a request from ranges that need no call to the device: a part of a free range of the
    /// same stream, or of no stream.
    #[inline]
    pub(crate) fn take(
        &mut self,
        request: &BookRequest<K>,
        requester: &Requester<'_, C>,
    ) -> Option<u32> {
        let id = self.find_own(request, requester)?;
        Some(self.take_part(id, request.bytes))
    }

    /// Makes a free range live, whole or split to `bytes` bytes.
    #[inline]
    pub(crate) fn take_part(&mut self, id: u32, bytes: u64) -> u32 {
        let Some(list) = self.list_of(id) else {
            debug_assert!(false, "range {id} is not free");
            return id;
        };
        let whole = self.nodes[id].bytes;
        let splits = whole > bytes && self.config.splits(whole, bytes);
        let taken = self.take_low(id, list, if splits { bytes } else { whole });
        self.nodes[taken].state = State::Live;
        taken
    }

    /// Counts a range of this many bytes that became live. Each range that was taken is counted
    /// once.
    #[inline]
    pub(crate) fn count_out(&mut self, bytes: u64) {
        self.turn += 1;
        self.used += bytes;
        let used = self.used();
        if used > self.used_peak {
            self.used_peak = used;
        }
    }

    /// Bytes that buffers and private pools have.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.used.saturating_sub_signed(self.in_caches)
    }

    /// Bytes that thread caches hold, as far as they have told.
    #[cfg(feature = "check")]
    pub(crate) fn in_caches(&self) -> i64 {
        self.in_caches
    }

    /// Bytes of free memory that serves again: free ranges, and what thread caches hold.
    #[inline]
    pub(crate) fn kept(&self) -> u64 {
        self.cached.saturating_add_signed(self.in_caches)
    }

    /// Bytes of free memory, with that which goes back to the device.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.kept() + self.deferred_bytes
    }

    /// Lets the peak of free bytes start again.
    pub(crate) fn reset_cached_peak(&mut self) {
        self.cached_peak = self.kept();
    }

    /// Takes over how a thread cache has changed the allocated bytes.
    pub(crate) fn add_change(&mut self, allocated: Change) {
        self.used_peak = self.used_peak.max(self.used().saturating_add_signed(allocated.peak));
        let cached = self.kept().saturating_sub_signed(allocated.low);
        self.cached_peak = self.cached_peak.max(cached);
        self.in_caches -= allocated.now;
    }

    /// Notes that a thread cache has this live range from now on.
    pub(crate) fn count_into_cache(&mut self, bytes: u64) {
        self.in_caches += bytes.cast_signed();
        self.cached_peak = self.cached_peak.max(self.kept());
    }

    /// Takes back a range that a thread cache had, freed at `freed_at`.
    pub(crate) fn free_cached(
        &mut self,
        clock: &C,
        range: u32,
        marks: Pending<C::Mark>,
        (unzeroed, freed_at): (bool, u64),
    ) {
        self.in_caches -= self.nodes[range].bytes.cast_signed();
        self.free_at(clock, range, marks, (unzeroed, freed_at));
    }

    /// Takes a block back. A new owner must be ordered after all of `marks`. `unzeroed`: whether
    /// old contents may show.
    #[inline]
    pub(crate) fn free(&mut self, clock: &C, range: u32, marks: Pending<C::Mark>, unzeroed: bool) {
        self.free_at(clock, range, marks, (unzeroed, self.turn));
    }

    #[inline]
    fn free_at(
        &mut self,
        clock: &C,
        id: u32,
        marks: Pending<C::Mark>,
        (unzeroed, freed_at): (bool, u64),
    ) {
        let node = &mut self.nodes[id];
        let bytes = node.bytes;
        node.unzeroed = unzeroed;
        node.freed_nth = 0;
        self.used -= bytes;
        self.release(clock, id, marks, freed_at);
    }

    /// Counts a range of this many bytes that became free.
    #[inline]
    fn count_cached(&mut self, bytes: u64) {
        self.cached += bytes;
        let cached = self.kept();
        if cached > self.cached_peak {
            self.cached_peak = cached;
        }
    }
}
