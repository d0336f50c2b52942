//! The figures that a pool reports: from its sums, and from all blocks and ranges, which are read in portions:
//! exact when no thread is inside the pool.

use crate::observe::levels::BlockClass;
use crate::observe::{DeviceStats, MemoryMap, PoolStats, RangeMap, RangeState, SegmentMap};
use crate::port::{DeviceAllocator, MarkOf, StreamClock};
use crate::ranges::list::UsedBy;
use crate::store::sums::Sum;
use crate::store::visit::{self, Is, Of, Seen};
use crate::store::{Store, sums};
use crate::stream::StealPolicy;
use std::collections::BTreeMap;

/// Sums over the blocks and ranges of a pool, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Free bytes behind work that is not seen done, or not submitted.
    pub(crate) pending: u64,
    pub(crate) unsubmitted: u64,
    pub(crate) largest_free: u64,
    /// Free bytes that the stream of a request may not have under the pool's `StealPolicy`.
    pub(crate) stranded: u64,
    /// Free bytes by the number of the stream that used them last; `None` for none or several.
    pub(crate) by_stream: BTreeMap<Option<u64>, u64>,
    /// How many free blocks or ranges, and live ones, by size.
    pub(crate) free: BTreeMap<u64, usize>,
    pub(crate) live: BTreeMap<u64, usize>,
    /// The numbers and bytes of free parts of segments, and of free ranges that are pending: small,
    /// large.
    split: [(u64, u64); 2],
    unseen: [(u64, u64); 2],
}

/// Reads all blocks and ranges. `stream`: the number of a stream that requests memory, whose figures are wanted too.
pub(crate) fn survey<A: DeviceAllocator>(store: &Store<A>, stream: Option<u64>) -> Survey {
    let mut survey = Survey::default();
    if store.is_unusable() {
        return survey;
    }
    let (clock, steal) = (store.allocator.clock(), store.settings.steal);
    let out_of_reach = |stream: u64, mark: MarkOf<A>| {
        clock.stream_id(mark) != stream
            && !clock.is_retired(mark)
            && match steal {
                StealPolicy::Never => true,
                StealPolicy::Ordered => !clock.has_event(mark),
                StealPolicy::Wait => false,
            }
    };
    visit::each(store, |seen| {
        survey.add::<A>(clock, seen);
        if let Some(stream) = stream
            && seen.is == Is::Free
            && seen.after.iter().any(|mark| out_of_reach(stream, *mark))
        {
            survey.stranded += seen.bytes();
        }
    });
    survey
}

/// All segments and their ranges; a whole block is a segment.
pub(crate) fn map<A: DeviceAllocator>(store: &Store<A>) -> MemoryMap {
    let clock = store.allocator.clock();
    let mut segments: BTreeMap<Of, Vec<RangeMap>> = BTreeMap::new();
    visit::each(store, |seen| add_to_map(&mut segments, seen.of, seen.range_map(clock)));
    let all = segments.into_values().map(|mut ranges| {
        ranges.sort_by_key(|range| range.range.start);
        let bytes = ranges.last().map_or(0, |range| range.range.end);
        SegmentMap { bytes, ranges }
    });
    MemoryMap { segments: all.collect() }
}

/// A whole block that was seen twice, since it moved meanwhile, is where it was seen last.
fn add_to_map(segments: &mut BTreeMap<Of, Vec<RangeMap>>, of: Of, range: RangeMap) {
    let ranges = segments.entry(of).or_default();
    if matches!(of, Of::Block(_)) {
        ranges.clear();
    }
    ranges.push(range);
}

impl<C: StreamClock> Seen<'_, C> {
    /// As a map shows it.
    fn range_map(&self, clock: &C) -> RangeMap {
        let state = match self.is {
            Is::Used => RangeState::Used,
            Is::Private => RangeState::Private,
            Is::Hole => RangeState::Hole,
            Is::Free | Is::Going if self.after.iter().all(|mark| clock.is_seen_done(*mark)) => {
                RangeState::Free
            }
            Is::Free | Is::Going => RangeState::Pending,
        };
        let is_used = self.is == Is::Used;
        let stream = match self.after {
            [mark] if !is_used => Some(clock.stream_id(*mark)),
            _ => None,
        };
        let (id, age) = if is_used { (self.id, 0) } else { (0, self.age) };
        RangeMap { range: self.range.clone(), state, stream, id, age }
    }
}

impl Survey {
    fn add<A: DeviceAllocator>(&mut self, clock: &A::Clock, seen: &Seen<'_, A::Clock>) {
        let bytes = seen.bytes();
        match seen.is {
            Is::Used => *self.live.entry(bytes).or_default() += 1,
            Is::Going if matches!(seen.of, Of::Block(_)) => {
                self.add_pending(clock, seen.after, bytes); // a deferred free
            }
            Is::Free => {
                let is_pending = self.add_pending(clock, seen.after, bytes);
                self.add_free(clock, seen.after, bytes);
                let Of::Segment { small, .. } = seen.of else { return };
                let add = |(ranges, sum): &mut (u64, u64)| {
                    (*ranges, *sum) = (*ranges + 1, *sum + bytes);
                };
                if seen.is_part {
                    add(&mut self.split[usize::from(!small)]);
                }
                if is_pending {
                    add(&mut self.unseen[BlockClass::of(bytes).index()]);
                }
            }
            Is::Private | Is::Hole | Is::Going => {}
        }
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
}

/// The figures by the names of `PyTorch`.
pub(crate) fn device_stats<A: DeviceAllocator>(store: &Store<A>) -> DeviceStats {
    let survey = survey(store, None);
    let mut stats = *store.calls.lock();
    let sum = sums::sum(store);
    let [blocks, requested, allocated] = sum.accounts.stats();
    (stats.allocation, stats.requested_bytes, stats.allocated_bytes) =
        (blocks, requested, allocated);
    let by_class = sum.accounts.are_by_class();
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
    if let Some(split) = &store.shards.lock(0).ranges.split {
        stats.inactive_split = split.ranges.stat();
        stats.inactive_split_bytes = split.bytes.stat();
    }
    stats
}

/// The figures of this moment.
pub(crate) fn stats<A: DeviceAllocator>(store: &Store<A>) -> PoolStats {
    if store.is_unusable() {
        return PoolStats::default();
    }
    let survey = survey(store, None);
    let private_bytes = store.privates.all_idle_bytes();
    let sum = sums::sum(store);
    let (requested_bytes, requested_peak_bytes) = sum.accounts.requested.now();
    let (allocated_bytes, allocated_peak_bytes) = sum.accounts.allocated.now();
    // The device was asked for at least as much as was ever allocated at once.
    let reserved_peak_bytes = store.ledger.peak();
    let allocated_peak_bytes = allocated_peak_bytes.min(reserved_peak_bytes);
    let requested_peak_bytes = requested_peak_bytes.min(allocated_peak_bytes);
    PoolStats {
        keys: survey.free.len() as u64,
        cached_buffers: survey.free.values().map(|count| *count as u64).sum(),
        requested_bytes,
        requested_peak_bytes,
        allocated_bytes,
        allocated_peak_bytes,
        active_bytes: allocated_bytes + survey.pending,
        cached_bytes: sum.kept + sum.deferred,
        deferred_bytes: sum.deferred,
        peak_cached_bytes: sum.cached_peak.min(reserved_peak_bytes),
        reserved_bytes: store.ledger.reserved(),
        reserved_peak_bytes,
        reserved_limit_bytes: limit(store.ledger.limit().min(store.ledger.budget.limit())),
        cached_limit_bytes: limit(sums::cached_limit(store)),
        private_bytes,
        ..counted(store, &sum)
    }
}

/// The counts, as a pool reports them.
fn counted<A: DeviceAllocator>(store: &Store<A>, sum: &Sum) -> PoolStats {
    let (live, requested) = (sum.accounts.live.stat(), sum.accounts.requested.stat());
    let PoolStats { misses, bypasses, from_device_bytes, .. } = sum.counts;
    if !store.settings.statistics {
        return sum.counts;
    }
    let hits = live.allocated.saturating_sub(misses + bypasses);
    PoolStats {
        allocations: hits + misses + bypasses + sum.counts.failures,
        hits,
        reuses: hits.saturating_sub(sum.untouched_hits),
        deallocations: live.freed,
        returns: live.freed.saturating_sub(sum.not_kept),
        from_pool_bytes: requested.allocated.saturating_sub(from_device_bytes),
        ..sum.counts
    }
}

/// A limit as it is reported.
fn limit(bytes: u64) -> Option<u64> {
    (bytes != u64::MAX).then_some(bytes)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_seen_twice_is_in_a_map_once() {
        let range = |bytes| RangeMap {
            range: 0..bytes,
            state: RangeState::Free,
            stream: None,
            id: 0,
            age: 0,
        };
        let mut segments = BTreeMap::new();
        add_to_map(&mut segments, Of::Block(7), range(512));
        add_to_map(&mut segments, Of::Block(7), range(4096));
        assert_eq!(segments[&Of::Block(7)], [range(4096)], "where it was seen last");
        let of = Of::Segment { shard: 0, number: 0, small: false };
        add_to_map(&mut segments, of, range(512));
        add_to_map(&mut segments, of, range(4096));
        assert_eq!(segments[&of].len(), 2);
    }
}
