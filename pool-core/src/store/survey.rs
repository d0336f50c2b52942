//! All blocks and ranges of a pool, read in portions: exact when no thread is inside the pool.

use crate::block::record::Record;
use crate::observe::levels::BlockClass;
use crate::observe::{DeviceStats, MemoryMap, RangeMap, RangeState, SegmentMap};
use crate::port::{DeviceAllocator, MarkOf, StreamClock};
use crate::ranges::list::UsedBy;
use crate::ranges::node::NodeState as Node;
use crate::shard::State;
use crate::store::Store;
use crate::store::owned::id_of;
use crate::store::search::NODES;
use crate::stream::StealPolicy;
use std::collections::BTreeMap;

/// Sums over the blocks and ranges of a pool, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Free bytes behind work that is not seen done, or not submitted.
    pub(crate) pending: u64,
    pub(crate) unsubmitted: u64,
    pub(crate) largest_free: u64,
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

impl<A: DeviceAllocator> Store<A> {
    /// Reads all blocks and ranges.
    pub(crate) fn survey(&self) -> Survey {
        let mut survey = Survey::default();
        if self.is_unusable() {
            return survey;
        }
        let clock = self.allocator.clock();
        for (_, bytes) in self.owned.lock().iter() {
            *survey.live.entry(bytes).or_default() += 1;
        }
        self.each_block(|record, deferred| survey.add_block::<A>(clock, record, deferred));
        self.privates.each(|record| {
            if record.part().is_none() {
                survey.no_live(record.bytes);
            }
        });
        self.each_range(|_, state, id| survey.add_range(clock, state, id));
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
        self.each_block(|record, deferred| {
            let after = record.marks.lock().pending(A::MEMORY.cpu_touches);
            if !deferred && after.marks().iter().any(out_of_reach) {
                sum += record.bytes;
            }
        });
        self.each_range(|_, state, id| {
            let node = &state.ranges.nodes[id];
            if state.ranges.is_free(id) && node.marks.marks().iter().any(out_of_reach) {
                sum += node.bytes;
            }
        });
        sum
    }

    /// The figures by the names of `PyTorch`.
    pub(crate) fn device_stats(&self) -> DeviceStats {
        let survey = self.survey();
        let mut stats = *self.calls.lock();
        let sum = self.sum();
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
        if let Some(split) = &self.shards.lock(0).ranges.split {
            stats.inactive_split = split.ranges.stat();
            stats.inactive_split_bytes = split.bytes.stat();
        }
        stats
    }

    /// Calls `look` with each free whole block, and whether it goes back with the next call that may
    /// call the device.
    fn each_block(&self, mut look: impl FnMut(&Record<A>, bool)) {
        for at in 0..self.shards.count() {
            let state = self.shards.lock(at);
            state.blocks.iter().for_each(|record| look(record, false));
            state.deferred.iter().for_each(|record| look(record, true));
        }
    }

    /// Calls `look` with each range of each shard, a portion of them under the lock at a time.
    fn each_range(&self, mut look: impl FnMut(usize, &State<A>, u32)) {
        for at in 0..self.shards.count() {
            let mut from = 0;
            loop {
                let state = self.shards.lock(at);
                let end = state.ranges.nodes.len().min(from + NODES);
                for id in (from..end).filter(|id| state.ranges.nodes[*id].state != Node::Vacant) {
                    look(at, &state, id);
                }
                if end <= from {
                    break;
                }
                from = end;
            }
        }
    }

    /// All segments and their ranges; a whole block is a segment.
    pub(crate) fn map(&self) -> MemoryMap {
        let clock = self.allocator.clock();
        let mut blocks: BTreeMap<u64, RangeMap> = BTreeMap::new();
        for (id, bytes) in self.owned.lock().iter() {
            let state = RangeState::Used;
            blocks.insert(id, RangeMap { range: 0..bytes, state, stream: None, id, age: 0 });
        }
        for at in 0..self.shards.count() {
            let state = self.shards.lock(at);
            for record in state.blocks.iter() {
                blocks.insert(id_of(record), block_map::<A>(clock, record, state.turn));
            }
            for record in &state.deferred {
                blocks.insert(id_of(record), block_map::<A>(clock, record, state.turn));
            }
        }
        self.privates.each(|record| {
            if let Some(block) = blocks.get_mut(&id_of(record)) {
                (block.state, block.id) = (RangeState::Private, 0);
            }
        });
        let mut segments: BTreeMap<(usize, u32), Vec<RangeMap>> = BTreeMap::new();
        self.each_range(|at, state, id| {
            let ranges = segments.entry((at, state.ranges.nodes[id].segment)).or_default();
            ranges.push(state.range_map(clock, id));
        });
        let of_blocks = blocks.into_values().map(|block| vec![block]);
        let all = of_blocks.chain(segments.into_values()).map(|mut ranges| {
            ranges.sort_by_key(|range| range.range.start);
            let bytes = ranges.last().map_or(0, |range| range.range.end);
            SegmentMap { bytes, ranges }
        });
        MemoryMap { segments: all.collect() }
    }
}

/// A free whole block, as a map shows it.
fn block_map<A: DeviceAllocator>(clock: &A::Clock, record: &Record<A>, turn: u64) -> RangeMap {
    let after = record.marks.lock().pending(A::MEMORY.cpu_touches);
    let is_done = after.marks().iter().all(|mark| clock.is_seen_done(*mark));
    let stream = match after.marks() {
        [mark] => Some(clock.stream_id(*mark)),
        _ => None,
    };
    RangeMap {
        range: 0..record.bytes,
        state: if is_done { RangeState::Free } else { RangeState::Pending },
        stream,
        id: 0,
        age: turn.saturating_sub(record.freed_at),
    }
}

impl<A: DeviceAllocator> State<A> {
    /// A range, as a map shows it.
    fn range_map(&self, clock: &A::Clock, id: u32) -> RangeMap {
        let node = &self.ranges.nodes[id];
        let marks = node.marks.marks();
        let state = match node.state {
            Node::Live => RangeState::Used,
            Node::Private => RangeState::Private,
            _ if self.ranges.is_hole(id) => RangeState::Hole,
            Node::Moving { hole: true } => RangeState::Hole,
            _ if marks.iter().all(|mark| clock.is_seen_done(*mark)) => RangeState::Free,
            _ => RangeState::Pending,
        };
        let is_used = state == RangeState::Used;
        let stream = match marks {
            [mark] if !is_used => Some(clock.stream_id(*mark)),
            _ => None,
        };
        let age = if is_used { 0 } else { self.turn.saturating_sub(node.freed_at) };
        let id = if is_used { self.record_address(id) } else { 0 };
        RangeMap { range: node.range(), state, stream, id, age }
    }
}

impl Survey {
    /// Takes one block from those that count as live.
    fn no_live(&mut self, bytes: u64) {
        if let Some(live) = self.live.get_mut(&bytes) {
            *live -= 1;
            if *live == 0 {
                self.live.remove(&bytes);
            }
        }
    }

    /// Adds a free whole block, which was taken for a live one.
    fn add_block<A: DeviceAllocator>(
        &mut self,
        clock: &A::Clock,
        record: &Record<A>,
        deferred: bool,
    ) {
        let bytes = record.bytes;
        self.no_live(bytes);
        let after = record.marks.lock().pending(A::MEMORY.cpu_touches);
        self.add_pending(clock, after.marks(), bytes);
        if !deferred {
            self.add_free(clock, after.marks(), bytes);
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

    fn add_range<A: DeviceAllocator>(&mut self, clock: &A::Clock, state: &State<A>, id: u32) {
        let node = &state.ranges.nodes[id];
        let bytes = node.bytes;
        match node.state {
            Node::Live => *self.live.entry(bytes).or_default() += 1,
            Node::Free(_) if !state.ranges.is_hole(id) => {
                let marks = node.marks.marks();
                let pending = self.add_pending(clock, marks, bytes);
                self.add_free(clock, marks, bytes);
                let segment = state.ranges.segments.get(node.segment);
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
