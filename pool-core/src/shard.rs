//! A shard: a lock over free memory, with the exact accounts of what is under it.
//!
//! Methods of [`Heap`] run under the lock. They call no device, no observer and no code of the
//! program: what is to be done there, they return.
#![expect(unsafe_code, reason = "records are in slots, blocks of segments in boxes")]

mod lend;
mod rules;
mod search;
mod shards;

use crate::block::Key;
use crate::block::record::{Record, RecordOwner, SegmentBlock, Slab};
use crate::blocks::Blocks;
use crate::observe::{Accounts, PoolStats};
use crate::port::{DeviceAllocator, MarkOf, StreamClock};
use crate::ranges::arena::ArenaConfig;
use crate::ranges::list::Group;
use crate::ranges::segment::{Backing, Segment};
use crate::ranges::{Ranges, returnable};
use crate::stream::Pending;
pub(crate) use lend::Grant;
pub(crate) use rules::{KeepRules, MAX_EVICTIONS};
pub(crate) use search::{Behind, MAX_NODES, Search, Taken};
pub(crate) use shards::Shards;

/// Buffers of a round: when it has served so many, a shard counts what happened in it.
const ROUND: u64 = if cfg!(any(loom, shuttle)) { 8 } else { 2048 };
/// A shard goes from one thread to another with one request in this many: that is too often, and the
/// pool takes more shards. (A thread seldom finds a lock taken: it waits for the cache line.)
const PASSES_TO_SPREAD: u64 = 256;

/// The present round of a shard.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// It ends when the shard has served so many buffers; 0 before the first.
    ends: u64,
    /// The thread that took a block last, and how often that was another one than before.
    thread: usize,
    passes: u64,
}

/// What a shard has. One of `blocks` and `ranges` is empty for ever. It is aligned as the word of its lock, so that nothing lies between
/// the two (`sys/lock.rs`).
#[repr(align(8))]
pub(crate) struct Heap<A: DeviceAllocator> {
    /// The number of the shard.
    pub(crate) number: u32,
    /// Whether memory is split: free memory is in `ranges`, else in `blocks`.
    pub(crate) splits: bool,
    pub(crate) blocks: Blocks<A>,
    pub(crate) ranges: Ranges<A::Clock, A::Kind>,
    /// The block of each segment of `ranges`, by number.
    pub(crate) segments: Vec<Option<SegmentBlock<A>>>,
    pub(crate) slots: Slab<Record<A>>,
    /// Whole blocks that go back to the device with the next call that may call it, and their bytes.
    pub(crate) deferred: Vec<RecordOwner<A>>,
    pub(crate) deferred_bytes: u64,
    /// Buffers, and bytes of them. Negative where buffers were taken in one shard and freed in
    /// another: only the sum over all shards means something.
    pub(crate) accounts: Accounts,
    /// Cold counts; the others follow from the accounts.
    pub(crate) counts: PoolStats,
    /// Hits on memory that no buffer had before.
    pub(crate) untouched_hits: u64,
    /// Frees of blocks that became no free memory of the pool's.
    pub(crate) not_kept: u64,
    /// The time of the shard: allocations so far, or what slow paths have seen elsewhere.
    pub(crate) time: u64,
    /// The most bytes that were allocated at once, until the peaks were reset last.
    pub(crate) allocated_peak: u64,
    /// The most free bytes at once, of whole blocks.
    pub(crate) blocks_peak: u64,
    /// Bytes that may be free here, of whole blocks or of ranges.
    pub(crate) lease: u64,
    /// Whether it may keep as many blocks of a size as it has leased places, where buckets are limited: not
    /// in a pool of one shard, which has the whole limit.
    pub(crate) leases_places: bool,
    /// Larger blocks are not kept. Set with the cached limit (`store/leases.rs`).
    pub(crate) largest: u64,
    pub(crate) round: Round,
    /// Changes with the limits of the cache, under all locks.
    pub(crate) epoch: u32,
    /// The pool is closed: free memory goes back, and a free looks at all shards.
    pub(crate) closed: bool,
    /// 1 in the first shard while the pool has an owner, else 0.
    pub(crate) owners: i64,
}

impl<A: DeviceAllocator> Heap<A> {
    /// An empty shard. `split`: how memory is split; `None` for whole blocks. `lease`: bytes that may
    /// be free here.
    pub(crate) fn new(number: u32, split: Option<(ArenaConfig, Backing)>, lease: u64) -> Self {
        let splits = split.is_some();
        let (arena, backing) = split.unwrap_or((ArenaConfig::grow(), Backing::Block));
        let is_torch = arena.is_torch();
        Self {
            number,
            splits,
            blocks: Blocks::new(),
            ranges: Ranges::new(arena, backing),
            segments: Vec::new(),
            slots: Slab::new(),
            deferred: Vec::new(),
            deferred_bytes: 0,
            accounts: Accounts::new(is_torch),
            counts: PoolStats::default(),
            untouched_hits: 0,
            not_kept: 0,
            time: 0,
            allocated_peak: 0,
            blocks_peak: 0,
            lease,
            leases_places: false,
            largest: lease / 2,
            round: Round::default(),
            epoch: 0,
            closed: false,
            owners: i64::from(number == 0),
        }
    }

    /// Counts a request of a thread.
    #[inline]
    pub(crate) fn note_thread(&mut self, thread: usize) {
        if self.round.thread != thread {
            self.round.thread = thread;
            self.round.passes += 1;
        }
    }

    /// Whether a round has ended.
    #[inline]
    pub(crate) fn is_round_over(&self) -> bool {
        self.accounts.live.total() >= self.round.ends
    }

    /// Begins a round. Returns whether threads took turns so often in the one before that the pool
    /// should take more shards.
    pub(crate) fn end_round(&mut self) -> bool {
        let round = &mut self.round;
        let is_crowded = round.ends > 0 && round.passes * PASSES_TO_SPREAD > ROUND;
        (round.ends, round.passes) = (self.accounts.live.total() + ROUND, 0);
        is_crowded
    }

    /// Counts a whole block that a request took.
    #[inline]
    pub(crate) fn count_taken(&mut self, bytes: u64, requested: u64) {
        self.time += 1;
        self.accounts.out_whole(bytes, requested);
    }

    /// Whether a whole block stays without any other going.
    #[inline]
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        self.blocks.bytes + bytes <= self.lease && bytes <= self.largest
    }

    /// Counts a whole block that a buffer gave back and that stays.
    #[inline]
    pub(crate) fn count_put(&mut self, bytes: u64, requested: u64) {
        self.count_kept();
        self.accounts.freed_whole(bytes, requested);
        self.accounts.live.down(1);
    }

    /// Notes the peak of free bytes.
    #[inline]
    fn count_kept(&mut self) {
        if self.blocks.bytes > self.blocks_peak {
            self.blocks_peak = self.blocks.bytes;
        }
    }

    /// Bytes of free memory that serves again.
    pub(crate) fn kept(&self) -> u64 {
        self.blocks.bytes + self.ranges.cached
    }

    /// The most bytes that were allocated at once.
    pub(crate) fn highest_allocated(&self) -> u64 {
        self.allocated_peak.max(self.accounts.allocated.now().1)
    }

    /// The most bytes that were free at once.
    pub(crate) fn cached_peak(&self) -> u64 {
        self.blocks_peak.max(self.ranges.cached_peak)
    }

    /// Lets the peaks start again from the current figures.
    pub(crate) fn reset_peaks(&mut self) {
        self.allocated_peak = self.highest_allocated();
        self.accounts.reset_peaks();
        self.blocks_peak = self.blocks.bytes;
        self.ranges.reset_cached_peak();
        if let Some(split) = &mut self.ranges.split {
            split.ranges.reset_peaks();
            split.bytes.reset_peaks();
        }
    }

    /// Sets all counts to 0.
    pub(crate) fn reset_counts(&mut self) {
        let lost_bytes = self.counts.lost_bytes;
        self.counts = PoolStats { lost_bytes, ..Default::default() };
        (self.untouched_hits, self.not_kept) = (0, 0);
        self.accounts.reset_counts();
        if let Some(split) = &mut self.ranges.split {
            split.ranges.reset_counts();
            split.bytes.reset_counts();
        }
    }

    /// The address of the record of a live range.
    pub(crate) fn record_address(&self, range: u32) -> u64 {
        self.slots.address(range)
    }

    /// The block of a range's segment. There is one.
    pub(crate) fn segment_of(&self, range: u32) -> Option<&SegmentBlock<A>> {
        let at = self.ranges.nodes[range].segment as usize;
        let block = self.segments.get(at).and_then(Option::as_ref);
        invariant!(block.is_some(), "each segment has its block");
        block
    }

    /// Adds a segment whose only range is live. Returns that range.
    pub(crate) fn add_segment(
        &mut self,
        block: SegmentBlock<A>,
        group: Group<A::Kind>,
        bytes: u64,
    ) -> u32 {
        let id = self.ranges.add_segment(group, bytes);
        let at = self.ranges.nodes[id].segment as usize;
        if self.segments.len() <= at {
            self.segments.resize_with(at + 1, || None);
        }
        self.segments[at] = Some(block);
        id
    }

    /// Takes a segment out that a free range is all of.
    pub(crate) fn remove_segment(&mut self, id: u32) -> Option<Removed<A>> {
        let at = self.ranges.nodes[id].segment;
        let (Segment { bytes, group, .. }, after) =
            returnable::remove_segment(&mut self.ranges, id)?;
        let block = self.segments.get_mut(at as usize).and_then(Option::take);
        invariant!(block.is_some(), "each segment has its block");
        // SAFETY: all of the segment was free, and its ranges are gone.
        let block = unsafe { block?.into_inner() };
        Some(self.lose(Removed { block, bytes, small: group.small, after }))
    }

    /// Notes that a block is lost until the device has accepted it: it stays so if the device
    /// refuses, or panics.
    fn lose(&mut self, removed: Removed<A>) -> Removed<A> {
        self.counts.lost_bytes += removed.bytes;
        removed
    }

    /// Takes a whole block out of the pool's hands. Returns it, and what it is behind.
    pub(crate) fn remove_block(&mut self, mut record: RecordOwner<A>) -> Option<Removed<A>> {
        let (after, bytes) = (record.marks.get_mut().pending(A::MEMORY.cpu_touches), record.bytes);
        let block = record.into_block();
        invariant!(block.is_some(), "a block that goes back alone is whole");
        Some(self.lose(Removed { block: block?, bytes, small: false, after }))
    }

    /// Takes all memory out, of a pool that ends: segments with the marks of their ranges, and whole
    /// blocks.
    pub(crate) fn remove_all(&mut self) -> (Vec<MarkedBlock<A>>, Vec<Removed<A>>) {
        let (mut segments, mut blocks) = (Vec::new(), Vec::new());
        for at in 0..self.segments.len() {
            let Some(block) = self.segments[at].take() else { continue };
            // SAFETY: the pool ends, after the last buffer, so no range is lent.
            segments.push((
                unsafe { block.into_inner() },
                returnable::marks_of_segment(&self.ranges, at),
            ));
        }
        let deferred = std::mem::take(&mut self.deferred);
        let free = std::iter::from_fn(|| self.blocks.pop_oldest(u64::MAX, |_| true));
        for record in deferred.into_iter().chain(free.collect::<Vec<_>>()) {
            blocks.extend(self.remove_block(record));
        }
        (segments, blocks)
    }

    /// The bin that a block belongs in.
    #[inline]
    pub(crate) fn key_of(clock: &A::Clock, record: &mut Record<A>) -> Key<A::Kind> {
        let stream_id = clock.stream_id(record.marks.get_mut().own());
        Key { kind: record.kind, stream_id }
    }
}

/// Memory of the device, and what it is behind.
pub(crate) type MarkedBlock<A> = (<A as DeviceAllocator>::Block, Vec<MarkOf<A>>);

/// Memory that goes back to the device: no list has it any more.
pub(crate) struct Removed<A: DeviceAllocator> {
    pub(crate) block: A::Block,
    pub(crate) bytes: u64,
    pub(crate) small: bool,
    pub(crate) after: Pending<MarkOf<A>>,
}
