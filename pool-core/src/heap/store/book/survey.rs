//! The figures of a book, read in portions: exact when no thread is inside the pool.

use crate::heap::block::record::Record;
use crate::heap::book::figures::BlockClass;
use crate::heap::book::list::UsedBy;
use crate::heap::book::node::State;
use crate::heap::store::Store;
use crate::heap::store::book::give_back::NODES;
use crate::heap::store::book::{BookState, PoolBook};
use crate::observe::{DeviceStats, MemoryMap, PoolStats, RangeMap, RangeState, SegmentMap};
use crate::port::{DeviceAllocator, MarkOf, StreamClock};
use crate::stream::StealPolicy;
use std::collections::BTreeMap;

/// Sums over the ranges of a book, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Free bytes behind work that is not seen done, or not submitted.
    pub(crate) pending: u64,
    pub(crate) unsubmitted: u64,
    pub(crate) largest_free: u64,
    /// Free bytes by the number of the stream that used them last; `None` for none or several.
    pub(crate) by_stream: BTreeMap<Option<u64>, u64>,
    /// How many free ranges, and live ones, by size.
    pub(crate) free: BTreeMap<u64, usize>,
    pub(crate) live: BTreeMap<u64, usize>,
    /// How many of the free ones are in the book.
    pub(super) free_in_book: u64,
    /// The numbers and bytes of free parts of segments, and of free ranges that are pending: small,
    /// large.
    split: [(u64, u64); 2],
    unseen: [(u64, u64); 2],
}

impl<A: DeviceAllocator> Store<A> {
    /// Reads all ranges, and what thread caches have of them.
    pub(crate) fn survey(&self) -> Survey {
        if self.is_unusable() {
            return Survey::default();
        }
        let mut survey = self.survey_book();
        self.add_counts_of_caches(|record| survey.add_cached(self.allocator.clock(), record));
        survey
    }

    /// Reads all ranges. What thread caches have of them counts as live.
    pub(super) fn survey_book(&self) -> Survey {
        let mut survey = Survey::default();
        self.book.each_range(|state, id| survey.add(self.allocator.clock(), state, id));
        survey.free_in_book = survey.free.values().map(|count| *count as u64).sum();
        survey
    }

    /// Free bytes that a request on the stream of number `stream` may not have under `steal`.
    pub(crate) fn stranded(&self, stream: u64, steal: StealPolicy) -> u64 {
        let clock = self.allocator.clock();
        let out_of_reach = |mark: &MarkOf<A>| {
            clock.stream_id(*mark) != stream
                && !clock.is_retired(*mark)
                && match steal {
                    StealPolicy::Never => true,
                    StealPolicy::Ordered => !clock.has_event(*mark),
                    StealPolicy::Wait => false,
                }
        };
        let mut sum = 0;
        self.book.each_range(|state, id| {
            let node = &state.book.nodes[id];
            if state.book.is_free(id) && node.marks.marks().iter().any(out_of_reach) {
                sum += node.bytes;
            }
        });
        sum
    }

    /// The figures by the names of `PyTorch`.
    pub(crate) fn device_stats(&self) -> DeviceStats {
        self.collect();
        let survey = self.survey();
        let state = self.book.lock();
        let mut stats = state.calls;
        let [blocks, requested, allocated] = state.figures.stats();
        (stats.allocation, stats.requested_bytes, stats.allocated_bytes) =
            (blocks, requested, allocated);
        let by_class = state.figures.are_by_class();
        (stats.active, stats.active_bytes) = (stats.allocation, stats.allocated_bytes);
        for (small, of) in [(true, 0), (false, 1)] {
            let (ranges, bytes) = survey.unseen[of];
            if by_class {
                stats.active.up(small, ranges);
                stats.active_bytes.up(small, bytes);
            } else {
                stats.active.all.up(ranges);
                stats.active_bytes.all.up(bytes);
            }
            let (ranges, bytes) = survey.split[of];
            stats.inactive_split.up(small, ranges);
            stats.inactive_split_bytes.up(small, bytes);
        }
        if let Some(split) = &state.book.split {
            stats.inactive_split = split.ranges.stat();
            stats.inactive_split_bytes = split.bytes.stat();
        }
        stats
    }
}

impl<A: DeviceAllocator> PoolBook<A> {
    /// Calls `look` with each range, a portion of them under the lock at a time.
    fn each_range(&self, mut look: impl FnMut(&BookState<A>, u32)) {
        let mut from = 0;
        loop {
            let state = self.lock();
            let end = state.book.nodes.len().min(from + NODES);
            for id in (from..end).filter(|id| state.book.nodes[*id].state != State::Vacant) {
                look(&state, id);
            }
            if end <= from {
                return;
            }
            from = end;
        }
    }

    /// All segments and their ranges.
    pub(crate) fn map(&self, clock: &A::Clock) -> MemoryMap {
        let mut segments: BTreeMap<u32, Vec<RangeMap>> = BTreeMap::new();
        self.each_range(|state, id| {
            let ranges = segments.entry(state.book.nodes[id].segment).or_default();
            ranges.push(state.range_map(clock, id));
        });
        let segments = segments.into_values().map(|mut ranges| {
            ranges.sort_by_key(|range| range.range.start);
            let bytes = ranges.last().map_or(0, |range| range.range.end);
            SegmentMap { bytes, ranges }
        });
        MemoryMap { segments: segments.collect() }
    }

    /// Sets all counts to 0.
    pub(crate) fn reset_counts(&self) {
        let mut state = self.lock();
        let lost_bytes = state.counts.lost_bytes;
        state.counts = PoolStats { lost_bytes, ..Default::default() };
        (state.untouched_hits, state.not_kept) = (0, 0);
        state.figures.reset_counts();
        if let Some(split) = &mut state.book.split {
            split.ranges.reset_counts();
            split.bytes.reset_counts();
        }
        state.calls.reset_accumulated();
    }

    /// Lets the peaks start again from the current figures.
    pub(crate) fn reset_peaks(&self) {
        let mut state = self.lock();
        state.figures.reset_peaks();
        if let Some(split) = &mut state.book.split {
            split.ranges.reset_peaks();
            split.bytes.reset_peaks();
        }
        state.calls.reset_peak();
        state.book.reset_cached_peak();
    }
}

impl<A: DeviceAllocator> BookState<A> {
    /// A range, as a map shows it.
    fn range_map(&self, clock: &A::Clock, id: u32) -> RangeMap {
        let node = &self.book.nodes[id];
        let marks = node.marks.marks();
        let state = match node.state {
            State::Live => RangeState::Used,
            State::Private => RangeState::Private,
            _ if self.book.is_hole(id) => RangeState::Hole,
            State::Moving { hole: true } => RangeState::Hole,
            _ if marks.iter().all(|mark| clock.is_seen_done(*mark)) => RangeState::Free,
            _ => RangeState::Pending,
        };
        let is_used = state == RangeState::Used;
        let stream = match marks {
            [mark] if !is_used => Some(clock.stream_id(*mark)),
            _ => None,
        };
        let age = if is_used { 0 } else { self.book.turn.saturating_sub(node.freed_at) };
        let id = if is_used { self.records.address(id) } else { 0 };
        RangeMap { range: node.range(), state, stream, id, age }
    }
}

impl Survey {
    /// Adds a block of a thread cache, which was taken for a live one.
    pub(super) fn add_cached<A: DeviceAllocator>(&mut self, clock: &A::Clock, record: &Record<A>) {
        let bytes = record.bytes;
        if let Some(live) = self.live.get_mut(&bytes) {
            *live -= 1;
            if *live == 0 {
                self.live.remove(&bytes);
            }
        }
        let after = record.marks.lock().pending(A::MEMORY.cpu_touches);
        self.add_pending(clock, after.marks(), bytes);
        self.add_free(clock, after.marks(), bytes);
    }

    /// Adds a free block that serves again.
    fn add_free<C: StreamClock>(&mut self, clock: &C, marks: &[C::Mark], bytes: u64) {
        let stream = match UsedBy::of_marks(clock, marks) {
            UsedBy::Stream(number) => Some(number),
            _ => None,
        };
        self.largest_free = self.largest_free.max(bytes);
        *self.by_stream.entry(stream).or_default() += bytes;
        *self.free.entry(bytes).or_default() += 1;
    }

    /// Adds cached bytes behind these marks. Returns whether they are not seen done.
    fn add_pending<C: StreamClock>(&mut self, clock: &C, marks: &[C::Mark], bytes: u64) -> bool {
        let pending = !marks.iter().all(|mark| clock.is_seen_done(*mark));
        let unsubmitted = !marks.iter().all(|mark| clock.is_submitted(*mark));
        self.pending += if pending { bytes } else { 0 };
        self.unsubmitted += if unsubmitted { bytes } else { 0 };
        pending
    }

    fn add<A: DeviceAllocator>(&mut self, clock: &A::Clock, state: &BookState<A>, id: u32) {
        let node = &state.book.nodes[id];
        let bytes = node.bytes;
        match node.state {
            State::Live => *self.live.entry(bytes).or_default() += 1,
            State::Deferred => {
                self.add_pending(clock, node.marks.marks(), bytes);
            }
            State::Free(_) if !state.book.is_hole(id) => {
                let marks = node.marks.marks();
                let pending = self.add_pending(clock, marks, bytes);
                self.add_free(clock, marks, bytes);
                let segment = state.book.segments.get(node.segment);
                if let Some(segment) = segment.filter(|segment| segment.bytes != bytes) {
                    let (ranges, sum) = &mut self.split[usize::from(!segment.group.small)];
                    (*ranges, *sum) = (*ranges + 1, *sum + bytes);
                }
                if pending {
                    let small = BlockClass::of(bytes);
                    let (ranges, sum) = &mut self.unseen[small.index()];
                    (*ranges, *sum) = (*ranges + 1, *sum + bytes);
                }
            }
            _ => {}
        }
    }
}
