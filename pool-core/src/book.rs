//! The book: the record of all memory that a pool with an arena has from its device. Segments, the
//! ranges that they are divided into, and free lists by size, under one lock of the pool's.
//!
//! **The hot path of an arena** is [`Book::take`] and [`Book::free`]. Nothing here calls a device.
//! `docs/decisions/027-the-book.md` has the invariants; `check.rs` asserts them.

pub(crate) mod arena;
mod bins;
#[cfg(test)]
mod check;
pub(crate) mod figures;
pub(crate) mod find;
mod free;
mod give;
pub(crate) mod list;
mod listed;
pub(crate) mod node;
pub(crate) mod place;
pub(crate) mod quick;
mod segment;
#[cfg(test)]
mod tests;
mod tree;
#[cfg(test)]
mod visits;

use crate::book::arena::ArenaConfig;
use crate::stream::clock::StreamClock;
use crate::stream::order::{After, Taker};
use list::{Group, RangeLists};
use listed::SplitFigures;
use node::{Nodes, State};
use quick::QuickTable;
use segment::Segments;

/// Quick blocks that coalesce in one call.
pub(crate) const PORTION: usize = 64;
/// Bytes of quick blocks are at most this part of the peak ([`ArenaConfig::quick_most`] too).
const QUICK_PART: u64 = 8;

/// All memory that a pool has from its device.
#[derive(Debug)]
pub(crate) struct Book<C: StreamClock, K> {
    pub(crate) config: ArenaConfig,
    pub(crate) nodes: Nodes<C::Mark>,
    pub(crate) segments: Segments<K>,
    pub(crate) lists: RangeLists<K>,
    /// `None` where it would change where blocks are placed.
    quick: Option<QuickTable<K>>,
    quick_most: u64,
    /// Bytes of live and private ranges, and the most at once.
    pub(crate) used: u64,
    pub(crate) used_peak: u64,
    /// Bytes of quick blocks and free ranges, and the most at once.
    pub(crate) cached: u64,
    pub(crate) cached_peak: u64,
    /// Counted under `PyTorch`'s rules only.
    pub(crate) split: Option<SplitFigures>,
    /// Allocations so far, warmed up blocks and ticks among them: the clock of ages.
    pub(crate) turn: u64,
    /// Whether free neighbours were ever left apart because work on one had not reached the device.
    apart: bool,
    /// The number of the node that the next portion of a search for neighbours begins with.
    pub(crate) cursor: u32,
}

/// A request, with all that a search needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BookRequest<K> {
    /// After rounding.
    pub(crate) bytes: u64,
    pub(crate) group: Group<K>,
    /// The number of the stream.
    pub(crate) stream: u64,
}

impl<C: StreamClock, K: Copy + Eq + Default> Book<C, K> {
    pub(crate) fn new(config: ArenaConfig) -> Self {
        let unit_bits = config.granule.trailing_zeros();
        let quick = (!config.is_exact()).then(|| QuickTable::new(unit_bits, K::default()));
        Self {
            nodes: Nodes::new(),
            segments: Segments::new(),
            lists: RangeLists::new(unit_bits, config.is_exact()),
            quick,
            quick_most: config.quick_most(),
            used: 0,
            used_peak: 0,
            cached: 0,
            cached_peak: 0,
            split: config.is_exact().then(SplitFigures::default),
            turn: 0,
            apart: false,
            cursor: 0,
            config,
        }
    }

    /// Adds a segment whose only range is live. Returns that range.
    pub(crate) fn add_segment(&mut self, group: Group<K>, bytes: u64) -> u32 {
        let at = self.segments.add(group, bytes);
        let first = self.nodes.add(at, (0, bytes), (node::NONE, node::NONE));
        if let Some(segment) = self.segments.get_mut(at) {
            (segment.first, segment.used) = (first, 1);
            self.nodes[first].born = segment.born;
        }
        first
    }

    /// Serves a request from ranges that need no call to the device: a block of the same size that
    /// was freed a moment ago, or a part of a free range of the same stream, or of no stream.
    #[inline]
    pub(crate) fn take(&mut self, request: &BookRequest<K>, taker: &Taker<'_, C>) -> Option<u32> {
        match self.take_quick(request, taker) {
            Some(id) => Some(id),
            None => self.take_own(*request, *taker),
        }
    }

    #[inline]
    fn take_quick(&mut self, request: &BookRequest<K>, taker: &Taker<'_, C>) -> Option<u32> {
        let quick = self.quick.as_mut()?;
        let newest = quick.newest(request.group.kind, request.bytes)?;
        let node = &mut self.nodes[newest];
        let id = if taker.are_ready(&node.marks) {
            quick.take_newest(request.bytes);
            node.state = State::Live;
            newest
        } else {
            self.take_older(*request, *taker)?
        };
        self.cached -= request.bytes;
        Some(id)
    }

    /// Takes a quick block that is not the newest of its size.
    #[cold]
    fn take_older(&mut self, request: BookRequest<K>, taker: Taker<'_, C>) -> Option<u32> {
        let nodes = &self.nodes;
        let ready = |id: u32| taker.are_ready(&nodes[id].marks);
        let id = self.quick.as_mut()?.take(request.group.kind, request.bytes, ready)?;
        self.nodes[id].state = State::Live;
        Some(id)
    }

    /// Takes a part of a free range. Not inlined, so that a quick block costs nothing more.
    #[inline(never)]
    fn take_own(&mut self, request: BookRequest<K>, taker: Taker<'_, C>) -> Option<u32> {
        match self.find_own(&request, &taker) {
            Some(id) => Some(self.take_part(id, request.bytes)),
            None => self.take_coalesced(request, taker),
        }
    }

    /// Coalesces a portion of the quick blocks, and searches again.
    #[cold]
    fn take_coalesced(&mut self, request: BookRequest<K>, taker: Taker<'_, C>) -> Option<u32> {
        if !self.coalesce_quick(taker.clock, PORTION) {
            return None;
        }
        let id = self.find_own(&request, &taker)?;
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
        if self.used > self.used_peak {
            self.used_peak = self.used;
        }
    }

    /// Takes a block back. A new owner must be ordered after all of `marks`. `dirty`: whether old
    /// contents may show.
    #[inline]
    pub(crate) fn free(
        &mut self,
        clock: &C,
        (id, kind): (u32, K),
        marks: After<C::Mark>,
        dirty: bool,
    ) {
        let node = &mut self.nodes[id];
        let bytes = node.bytes;
        node.dirty = dirty;
        self.used -= bytes;
        let limit = (self.used_peak / QUICK_PART).min(self.quick_most);
        if self.quick.as_mut().is_some_and(|quick| quick.keep(id, kind, bytes, limit)) {
            (node.state, node.marks, node.freed_at) = (State::Quick, marks, self.turn);
            self.count_cached(bytes);
        } else {
            self.release(clock, id, marks, self.turn);
            if self.quick.as_ref().is_some_and(QuickTable::is_stale) {
                self.coalesce_quick(clock, PORTION);
            }
        }
    }

    /// Counts a range of this many bytes that became free.
    #[inline]
    fn count_cached(&mut self, bytes: u64) {
        self.cached += bytes;
        if self.cached > self.cached_peak {
            self.cached_peak = self.cached;
        }
    }

    /// Keeps no quick blocks from now on. Those that there are coalesce.
    pub(crate) fn drop_quick(&mut self, clock: &C) {
        while self.coalesce_quick(clock, PORTION) {}
        self.quick = None;
    }

    /// Coalesces at most `portion` quick blocks. Returns whether there were any.
    pub(crate) fn coalesce_quick(&mut self, clock: &C, portion: usize) -> bool {
        let mut any = false;
        for _ in 0..portion {
            let Some(id) = self.quick.as_mut().and_then(QuickTable::pop) else { break };
            let node = &mut self.nodes[id];
            let (marks, freed_at) = (std::mem::take(&mut node.marks), node.freed_at);
            self.cached -= node.bytes;
            self.release(clock, id, marks, freed_at);
            any = true;
        }
        any
    }
}
