//! Memory that is split: segments, the ranges that they are divided into, and free lists by size. A
//! pure structure: no lock, no call to a device, no time.
//!
//! [`Ranges::take`] and [`Ranges::free`] are the way of a block. Who takes memory from the device
//! adds it as a segment; who gives it back asks which ranges can go ([`returnable`]).
//! `docs/decisions/027-the-book.md` has the invariants; `check.rs` asserts them.

pub(crate) mod arena;
#[cfg(feature = "check")]
mod check;
pub(crate) mod find;
mod free;
pub(crate) mod list;
pub(crate) mod node;
pub(crate) mod place;
pub(crate) mod plain;
pub(crate) mod returnable;
pub(crate) mod segment;
#[cfg(test)]
mod tests;
#[cfg(all(feature = "check", debug_assertions))]
mod visits;

use crate::port::StreamClock;
use crate::ranges::arena::ArenaConfig;
use crate::ranges::segment::Backing;
use crate::stream::{Pending, Requester};
use list::SplitFigures;
use list::{Group, RangeLists};
use node::{NodeState, Nodes};
use segment::Segments;

/// The segments of a shard, and their ranges.
#[derive(Debug)]
pub(crate) struct Ranges<C: StreamClock, K> {
    pub(crate) config: ArenaConfig,
    pub(crate) backing: Backing,
    pub(crate) nodes: Nodes<C::Mark>,
    pub(crate) segments: Segments<K>,
    pub(crate) lists: RangeLists<K>,
    /// Bytes of live and private ranges.
    used: u64,
    /// The most of that at once.
    pub(crate) used_peak: u64,
    /// Bytes of free ranges.
    pub(crate) cached: u64,
    /// The most of that at once.
    pub(crate) cached_peak: u64,
    /// Counted under `PyTorch`'s rules only.
    pub(crate) split: Option<SplitFigures>,
    /// Whether free neighbours were ever left apart because work on one had not reached the device.
    apart: bool,
    /// The number of the node that the next portion of a search for neighbours begins with.
    pub(crate) cursor: u32,
    /// The list that the next search of other streams' ranges begins with.
    find_from: usize,
}

/// A request, with all that a search needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeRequest<K> {
    /// After rounding.
    pub(crate) bytes: u64,
    pub(crate) group: Group<K>,
    /// The number of the stream.
    pub(crate) stream: u64,
}

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    pub(crate) fn new(config: ArenaConfig, backing: Backing) -> Self {
        let unit_bits = config.granule.trailing_zeros();
        Self {
            nodes: Nodes::new(),
            segments: Segments::new(),
            lists: RangeLists::new(unit_bits, config.is_ordered()),
            used: 0,
            used_peak: 0,
            cached: 0,
            cached_peak: 0,
            split: config.is_torch().then(SplitFigures::default),
            apart: false,
            cursor: 0,
            find_from: 0,
            config,
            backing,
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

    /// As [`Ranges::take`], of a range that no record is made of: it keeps its marks.
    pub(crate) fn take_with_marks(
        &mut self,
        request: &RangeRequest<K>,
        requester: &Requester<'_, C>,
    ) -> Option<u32> {
        let found = self.find_own(request, requester)?;
        self.take_part(found.id, request.bytes)
    }

    /// Makes a free range live, whole or split to `bytes` bytes. Returns no range that is not free: it
    /// has another owner.
    #[inline]
    pub(crate) fn take_part(&mut self, id: u32, bytes: u64) -> Option<u32> {
        let list = self.list_of(id);
        invariant!(list.is_some(), "a range that a list has is free");
        let list = list?;
        let whole = self.nodes[id].bytes;
        let splits = whole > bytes && self.config.splits(whole, bytes);
        let taken = self.take_low(id, list, if splits { bytes } else { whole });
        self.nodes[taken].state = NodeState::Live;
        Some(taken)
    }

    /// Counts a range of this many bytes that became live. Each range that was taken is counted
    /// once.
    #[inline]
    pub(crate) fn count_out(&mut self, bytes: u64) {
        self.used += bytes;
        if self.used > self.used_peak {
            self.used_peak = self.used;
        }
    }

    /// Bytes of all ranges that have memory behind them.
    pub(crate) fn committed(&self) -> u64 {
        self.used + self.cached
    }

    /// Bytes that buffers and private pools have.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Lets the peak of free bytes start again.
    pub(crate) fn reset_cached_peak(&mut self) {
        self.cached_peak = self.cached;
    }

    /// Takes a block back that was freed at `freed_at`. A new owner must be ordered after all of
    /// `marks`. `dirty`: whether old contents may show.
    #[expect(clippy::inline_always, reason = "a free is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn free(
        &mut self,
        clock: &C,
        id: u32,
        marks: Pending<C::Mark>,
        (dirty, freed_at): (bool, u64),
    ) {
        let one = match &marks {
            Pending::Nothing => Some(None),
            Pending::One(mark) => Some(Some(*mark)),
            Pending::Many(_) => None,
        };
        if let Some(mark) = one
            && self.free_plain(clock, id, mark, (dirty, freed_at))
        {
            return;
        }
        self.free_not_plain(clock, id, marks, (dirty, freed_at));
    }

    /// As [`Ranges::free`], whatever the range is.
    #[inline(never)]
    fn free_not_plain(
        &mut self,
        clock: &C,
        id: u32,
        marks: Pending<C::Mark>,
        (dirty, freed_at): (bool, u64),
    ) {
        let node = &mut self.nodes[id];
        let bytes = node.bytes;
        node.dirty = dirty;
        self.used -= bytes;
        self.release(clock, id, marks, freed_at);
    }

    /// Counts a range of this many bytes that became free.
    #[inline]
    fn count_cached(&mut self, bytes: u64) {
        self.cached += bytes;
        if self.cached > self.cached_peak {
            self.cached_peak = self.cached;
        }
    }
}
