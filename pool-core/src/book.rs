//! The book: the record of all memory that a pool with an arena has from its device. Segments, the
//! ranges that they are divided into, and free lists by size, under one lock of the pool's.
//!
//! **The hot path of an arena** is [`Book::take`] and [`Book::free`]. Nothing here calls a device.
//! `docs/decisions/027-the-book.md` has the invariants; `check.rs` asserts them.

mod bins;
#[cfg(test)]
mod check;
mod figures;
mod find;
mod free;
mod give;
mod list;
mod node;
mod place;
mod quick;
mod segment;
#[cfg(test)]
mod tests;

use crate::arena::ArenaConfig;
use crate::clock::StreamClock;
use crate::order::{After, Taker};
use crate::size::KIB;
use figures::BookFigures;
use list::{Group, RangeLists};
use node::{Nodes, State};
use quick::QuickTable;
use segment::Segments;

/// Quick blocks that coalesce in one call.
const PORTION: usize = 64;
/// Bytes of quick blocks: at most a sixteenth of the peak and this many, and a further 1/128 of the
/// peak.
const QUICK_MOST: u64 = 256 * KIB;

/// All memory that a pool has from its device.
#[derive(Debug)]
pub(crate) struct Book<C: StreamClock, K> {
    pub(crate) config: ArenaConfig,
    pub(crate) nodes: Nodes<C::Mark>,
    pub(crate) segments: Segments<K>,
    pub(crate) lists: RangeLists<K>,
    /// `None` where it would change where blocks are placed.
    quick: Option<QuickTable<K>>,
    pub(crate) figures: BookFigures,
    /// Allocations so far.
    turn: u64,
}

/// A request, with all that a search needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BookRequest<K> {
    /// After rounding.
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) group: Group<K>,
    /// The number of the stream.
    pub(crate) stream: u64,
}

impl<C: StreamClock, K: Copy + Eq> Book<C, K> {
    pub(crate) fn new(config: ArenaConfig) -> Self {
        let unit_bits = config.granule.trailing_zeros();
        let quick = (!config.is_exact()).then(|| QuickTable::new(unit_bits));
        Self {
            nodes: Nodes::new(),
            segments: Segments::new(),
            lists: RangeLists::new(unit_bits),
            quick,
            figures: BookFigures::default(),
            turn: 0,
            config,
        }
    }

    /// Adds a segment whose only range is live. Returns that range.
    pub(crate) fn add_segment(&mut self, group: Group<K>, bytes: u64) -> u32 {
        let at = self.segments.add(group, bytes);
        let first = self.nodes.add(at, (0, bytes), (node::NONE, node::NONE));
        if let Some(segment) = self.segments.get_mut(at) {
            (segment.first, segment.used) = (first, 1);
        }
        first
    }

    /// Serves a request from ranges that need no call to the device: a block of the same size that
    /// was freed a moment ago, or a part of a free range of the same stream, or of no stream.
    #[inline]
    pub(crate) fn take(&mut self, request: &BookRequest<K>, taker: &Taker<'_, C>) -> Option<u32> {
        let id = match self.take_quick(request, taker) {
            Some(id) => id,
            None => self.take_own(request, taker)?,
        };
        self.count_out(id, request.requested);
        Some(id)
    }

    #[inline]
    fn take_quick(&mut self, request: &BookRequest<K>, taker: &Taker<'_, C>) -> Option<u32> {
        let nodes = &self.nodes;
        let ready = |id: u32| nodes[id].marks.marks().iter().all(|mark| taker.is_ready(*mark));
        let id = self.quick.as_mut()?.take(request.group, request.bytes, ready)?;
        self.nodes[id].state = State::Live;
        Some(id)
    }

    #[inline]
    fn take_own(&mut self, request: &BookRequest<K>, taker: &Taker<'_, C>) -> Option<u32> {
        let found = self.find_own(request, taker);
        match found {
            Some(id) => Some(self.take_part(id, request.bytes)),
            None => self.take_coalesced(request, taker),
        }
    }

    /// Coalesces a portion of the quick blocks, and searches again.
    #[cold]
    fn take_coalesced(&mut self, request: &BookRequest<K>, taker: &Taker<'_, C>) -> Option<u32> {
        if !self.coalesce_quick(taker.clock, PORTION) {
            return None;
        }
        let id = self.find_own(request, taker)?;
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

    #[inline]
    pub(crate) fn count_out(&mut self, id: u32, requested: u64) {
        self.turn += 1;
        self.figures.out(self.nodes[id].bytes, requested);
    }

    /// Takes a block back. A new owner must be ordered after all of `marks`.
    #[inline]
    pub(crate) fn free(&mut self, clock: &C, id: u32, marks: After<C::Mark>, requested: u64) {
        let bytes = self.nodes[id].bytes;
        self.figures.freed(bytes, requested);
        if self.keep_quick(id, bytes) {
            let node = &mut self.nodes[id];
            (node.state, node.marks, node.freed_at) = (State::Quick, marks, self.turn);
            return;
        }
        self.release(clock, id, marks, self.turn);
        if self.quick.as_ref().is_some_and(QuickTable::is_stale) {
            self.coalesce_quick(clock, PORTION);
        }
    }

    #[inline]
    fn keep_quick(&mut self, id: u32, bytes: u64) -> bool {
        let Some(quick) = &mut self.quick else { return false };
        let Some(segment) = self.segments.get(self.nodes[id].segment) else { return false };
        let peak = self.figures.allocated.peak();
        let limit = (peak / 16).min(QUICK_MOST) + peak / 128;
        quick.keep(id, segment.group, bytes, limit)
    }

    /// Coalesces at most `portion` quick blocks. Returns whether there were any.
    pub(crate) fn coalesce_quick(&mut self, clock: &C, portion: usize) -> bool {
        let mut any = false;
        for _ in 0..portion {
            let Some(id) = self.quick.as_mut().and_then(QuickTable::pop) else { break };
            let node = &mut self.nodes[id];
            let (marks, freed_at) = (std::mem::take(&mut node.marks), node.freed_at);
            self.release(clock, id, marks, freed_at);
            any = true;
        }
        any
    }
}
