//! Free memory goes back to the device: above the cached limit, by age, by size, for want of
//! memory. Here are ranges; a lock is held for a portion of them at a time.

use crate::limits::GivenBack;
use crate::limits::InTransit;
use crate::observe::Reason;
use crate::port::{DeviceAllocator, DeviceError, Handles};
use crate::shard::{Removed, State};
use crate::store::moving::Piece;
use crate::store::search::NODES;
use crate::store::{Goal, Store};
use crate::sys::atomic::Ordering::Relaxed;
use std::cell::Cell;
use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

/// A free range that could go back, as it was when it was found.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    shard: usize,
    id: u32,
    freed_at: u64,
    bytes: u64,
}

impl<A: DeviceAllocator> Store<A> {
    /// Gives free memory back, the oldest first, until at least `bytes` bytes went.
    pub(super) fn give_back(&self, goal: Goal) -> GivenBack {
        match self.shape.is_arena() {
            // Not what is freed meanwhile: other threads may free without end.
            false => self.give_back_blocks(goal, self.advance()),
            true => self.give_back_coalesced(goal, |goal| self.give_back_older(goal, u64::MAX)),
        }
    }

    /// Gives free memory back, the largest first, until at least `bytes` bytes went.
    pub(super) fn give_back_largest(&self, goal: Goal) -> GivenBack {
        if !self.shape.is_arena() {
            return self.give_back_largest_blocks(goal);
        }
        self.give_back_coalesced(goal, |goal| {
            let mut found = self.candidates();
            found.sort_unstable_by_key(|candidate| Reverse(candidate.bytes));
            self.give_back_each(&found, goal)
        })
    }

    /// Gives ranges back by `give_back`. Where that is not enough, pages that several streams have
    /// used go too.
    fn give_back_coalesced(&self, goal: Goal, give_back: impl Fn(Goal) -> GivenBack) -> GivenBack {
        let (has_pages, all) = (self.shape.pages.is_some(), goal.bytes >= self.ledger.reserved());
        if has_pages && all {
            self.coalesce_pages();
        }
        let (given_back, refusal) = give_back(goal);
        if !has_pages || all || given_back >= goal.bytes {
            return (given_back, refusal);
        }
        self.coalesce_pages();
        let (more, refused) = give_back(Goal { bytes: goal.bytes - given_back, ..goal });
        (given_back + more, refusal.or(refused))
    }

    /// Gives back what has been free for longer than the retention of the pool.
    pub(super) fn give_back_by_age(&self, now: Duration) -> GivenBack {
        let turn = self.advance();
        // In its own statement, so that the lock is not held over the calls to the device.
        let (before, last) = {
            let ticks = &mut *self.ticks.lock();
            (ticks.tick(now, turn, self.bounds.retention), ticks.note_last(turn))
        };
        // A shard knows the time of the others as of their last round, or as of the last tick.
        let before = if self.shards.count() > 1 { before.min(last) } else { before };
        let goal = Goal::all(Reason::Age);
        match before {
            0 => (0, None),
            before if self.shape.is_arena() => self.give_back_older(goal, before),
            before => self.give_back_blocks(goal, before),
        }
    }

    /// Advances the time of all shards, by which they tell what is old. Returns the time.
    fn advance(&self) -> u64 {
        let turns = (0..self.shards.count()).map(|at| self.shards.lock(at).turn);
        let turn = turns.max().unwrap_or(0).max(self.turn.load(Relaxed)) + 1;
        self.turn.fetch_max(turn, Relaxed);
        for at in 0..self.shards.count() {
            let state = &mut *self.shards.lock(at);
            state.turn = state.turn.max(turn);
        }
        turn
    }

    /// Gives back the smallest run of pages, or segment, that brings free bytes of a shard below the
    /// cached limit; the largest if none does. One call to the device at most. `near`: a segment in
    /// which memory was just freed, perhaps the last of it.
    pub(super) fn give_back_excess(&self, at: usize, near: Option<u32>) -> GivenBack {
        let (clock, limit) = (self.allocator.clock(), self.limit_of(at));
        let first = {
            let state = &mut *self.shards.lock(at);
            let excess = state.excess(limit);
            if excess == 0 {
                return (0, None);
            }
            if let Some(mut segment) = near.filter(|_| self.shape.pages.is_none()) {
                let end = segment + 1;
                state.ranges.coalesce_free_segments(clock, &mut segment, end, NODES);
            }
            let found = state.ranges.pick_returnable(excess);
            let mut ids = found.iter().map(|found| found.id);
            ids.find(|id| state.ranges.is_submitted(clock, *id))
        };
        first.map_or((0, None), |id| self.give_back_range(at, id, Goal::all(Reason::Bound), None))
    }

    /// Bytes that may be free in a shard of an arena. What became free without a free, such as the rest
    /// of a new segment, takes its lease here.
    fn limit_of(&self, at: usize) -> u64 {
        let limit = self.read_limit();
        if self.shards.count() == 1 || limit.bytes == u64::MAX {
            return limit.bytes;
        }
        let (kept, lease) = {
            let state = self.shards.lock(at);
            (state.kept(), state.lease)
        };
        if kept <= lease {
            return lease;
        }
        self.lease(at, kept - lease, limit);
        self.shards.lock(at).lease
    }

    /// Gives back all ranges that are above the cached limit: of all shards, or, for a request of the
    /// shard `of`, of that and of those in which no thread is when they are looked at.
    pub(super) fn give_back_to_limit(&self, of: Option<usize>) -> GivenBack {
        let (mut given_back, mut refusal) = (0, None);
        if !self.shape.is_arena() || self.is_unlimited() {
            return (0, None); // no block is kept above it
        }
        for at in 0..self.shards.count() {
            if self.shards.lock_for(at, of).is_none() {
                continue;
            }
            let limit = self.limit_of(at);
            if self.shards.lock(at).excess(limit) == 0 {
                continue;
            }
            self.coalesce_free_segments(at);
            // A call looks at a portion of the lists.
            let portions = self.shards.lock(at).ranges.lists.portions();
            let mut in_vain = 0;
            while in_vain <= portions {
                let (went, refused) = self.give_back_excess(at, None);
                given_back += went;
                refusal = refusal.or(refused);
                in_vain = if went == 0 { in_vain + 1 } else { 0 };
            }
        }
        (given_back, refusal)
    }

    /// Gives back ranges that were freed before `before`, the oldest first, until at least `bytes`
    /// bytes went.
    fn give_back_older(&self, goal: Goal, before: u64) -> GivenBack {
        if goal.bytes == 0 {
            return (0, None);
        }
        let mut found = self.candidates();
        found.retain(|candidate| candidate.freed_at < before);
        found.sort_unstable_by_key(|candidate| (candidate.freed_at, candidate.id));
        self.give_back_each(&found, goal)
    }

    fn give_back_each(&self, found: &[Candidate], goal: Goal) -> GivenBack {
        let (mut given_back, mut refusal) = (0, None);
        for candidate in found {
            if given_back >= goal.bytes {
                break;
            }
            let Candidate { shard, id, freed_at, .. } = *candidate;
            let rest = Goal { bytes: goal.bytes - given_back, ..goal };
            let (went, refused) = self.give_back_range(shard, id, rest, Some(freed_at));
            given_back += went;
            refusal = refusal.or(refused);
        }
        (given_back, refusal)
    }

    /// Gives a free segment back, or pages of a free range that hold `bytes` bytes, or all of them;
    /// nothing if it is not free any more, or was freed at another time than `freed_at`. What is
    /// behind work that is not submitted stays.
    fn give_back_range(&self, at: usize, id: u32, goal: Goal, freed_at: Option<u64>) -> GivenBack {
        let evicted = u64::from(self.bounds.statistics);
        let Some(pages) = &self.shape.pages else {
            let (removed, _in_transit) = {
                let state = &mut *self.shards.lock(at);
                if !state.may_go(self.allocator.clock(), id, freed_at) {
                    return (0, None);
                }
                let Some(removed) = state.remove_segment(id) else { return (0, None) };
                state.counts.evictions += evicted;
                (removed, InTransit::new(self.transit()))
            };
            return self.free_on_device(at, removed, Some(goal.reason));
        };
        let moving = {
            let state = &mut *self.shards.lock(at);
            if !state.may_go(self.allocator.clock(), id, freed_at) {
                return (0, None);
            }
            let Some(piece) = state.take_pages(id, goal.bytes) else { return (0, None) };
            state.counts.evictions += evicted;
            self.moving(at, vec![piece])
        };
        // A limit is kept when the work is done; only want of memory and the program's call wait.
        let in_time = matches!(goal.reason, Reason::Bound | Reason::Age);
        let wait = !(in_time && pages.handles == Handles::Commit);
        self.decommit(pages, moving, wait, goal.reason)
    }

    /// Coalesces free neighbours that share a page, a portion under the lock at a time: what two
    /// streams used of one page goes back with it.
    fn coalesce_pages(&self) {
        let clock = self.allocator.clock();
        for at in 0..self.shards.count() {
            let mut next = Some(0);
            while let Some(from) = next {
                next = self.shards.lock(at).ranges.coalesce_pages(clock, from, NODES / 8);
            }
        }
    }

    /// Coalesces all segments of a shard that are wholly free, a portion under the lock at a time.
    fn coalesce_free_segments(&self, at: usize) {
        let (clock, mut segment) = (self.allocator.clock(), 0);
        let mut more = self.shape.pages.is_none();
        while more {
            let ranges = &mut self.shards.lock(at).ranges;
            more = ranges.coalesce_free_segments(clock, &mut segment, u32::MAX, NODES);
        }
    }

    /// Finds the free ranges that can go back: with pages those that hold one, else whole segments.
    fn candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        for shard in 0..self.shards.count() {
            self.coalesce_free_segments(shard);
            let mut next = Some(0);
            while let Some(from) = next {
                let state = self.shards.lock(shard);
                let (aged, more) = state.ranges.aged(from, NODES);
                found.extend(aged.into_iter().map(|(freed_at, id)| {
                    let bytes = state.ranges.nodes[id].bytes;
                    Candidate { shard, id, freed_at, bytes }
                }));
                next = more;
            }
        }
        found
    }

    /// Before `bytes` more are taken from the device: gives back segments that have been free for
    /// as long as the average of those that are, or longer, until the pool holds at most its share
    /// of the limit, or of the device's memory where that is less.
    pub(super) fn collect_garbage(&self, bytes: u64) {
        let share = self.shape.arena.as_ref().and_then(|arena| arena.gc_threshold);
        let Some(share) = share else { return };
        let (limit, reserved) = (self.ledger.limit(), self.ledger.reserved());
        let limit = limit.min(self.allocator.total_bytes().unwrap_or(u64::MAX));
        if limit == u64::MAX {
            return; // nothing that it could be a share of
        }
        let wanted = reserved.saturating_add(bytes);
        if wanted as f64 <= limit as f64 * share {
            return;
        }
        let found = self.candidates();
        if found.is_empty() {
            return;
        }
        let sum: u64 = found.iter().map(|candidate| candidate.freed_at).sum();
        let average = sum / found.len() as u64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a limit, which saturates"
        )]
        let most = (limit as f64 * share) as u64;
        // The next device call reports a refusal.
        let goal = Goal { bytes: wanted.saturating_sub(most), reason: Reason::Shortage };
        let _ = self.give_back_older(goal, average + 1);
    }

    /// The store goes: all memory that is left goes back. A panic of the allocator keeps none of the
    /// others.
    pub(super) fn release_all(&self) {
        let mut panic = None;
        let mut call = |call: &dyn Fn() -> Result<(), DeviceError>| {
            // No caller is left to be told of a refusal.
            panic = catch_unwind(AssertUnwindSafe(call)).err().or(panic.take());
        };
        for at in 0..self.shards.count() {
            let (segments, blocks) = self.shards.lock(at).remove_all();
            for (block, marks) in segments {
                let block = Cell::new(Some(block));
                call(&|| match (block.take(), &self.shape.pages) {
                    (Some(block), Some(pages)) => (pages.release)(&self.allocator, block, &marks),
                    (Some(block), None) => self.allocator.free(block, &marks),
                    (None, _) => Ok(()),
                });
            }
            for Removed { block, after, .. } in blocks {
                let block = Cell::new(Some(block));
                call(&|| block.take().map_or(Ok(()), |it| self.allocator.free(it, after.marks())));
            }
        }
        if let Some(panic) = panic.filter(|_| !thread::panicking()) {
            resume_unwind(panic);
        }
    }
}

impl<A: DeviceAllocator> State<A> {
    /// How far free ranges are above the limit.
    fn excess(&self, limit: u64) -> u64 {
        self.ranges.cached.saturating_sub(if self.closed { 0 } else { limit })
    }

    /// Whether a range is free since `freed_at`, or at all, behind submitted work.
    fn may_go(&self, clock: &A::Clock, id: u32, freed_at: Option<u64>) -> bool {
        let same = freed_at.is_none_or(|then| self.ranges.nodes[id].freed_at == then);
        same && self.ranges.is_free(id) && self.ranges.is_submitted(clock, id)
    }

    /// Takes pages out of the end of a free range: as many as hold `bytes` bytes, or all.
    fn take_pages(&mut self, id: u32, bytes: u64) -> Option<Piece<A>> {
        let part = self.ranges.returnable_end(id, bytes);
        if part.is_empty() {
            return None;
        }
        let id = self.ranges.carve(id, &part)?;
        self.piece(id)
    }
}
