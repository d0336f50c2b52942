//! Free memory goes back to the device: above the cached limit, by age, by size, for want of
//! memory. The lock is held for a portion of the ranges at a time.
#![expect(unsafe_code, reason = "the block of a segment leaves its box")]

use crate::heap::block::record::SegmentBlock;
use crate::heap::book::segment::BookSegment;
use crate::heap::store::book::BookState;
use crate::heap::store::book::device::Piece;
use crate::heap::store::{Goal, Store};
use crate::limits::{GivenBack, InTransit};
use crate::observe::Reason;
use crate::port::{DeviceAllocator, MarkOf, PageCalls};
use crate::stream::Pending;
use crate::sys::LockGuard;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

/// Nodes that are looked at in one section under the lock.
pub(super) const NODES: u32 = 256;

/// A free range that could go back, as it was when it was found.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    freed_at: u64,
    /// Of blocks that were freed at once, which one.
    nth: u64,
    bytes: u64,
}

/// A segment that was taken out of the book.
pub(super) struct RemovedSegment<A: DeviceAllocator> {
    pub(super) block: SegmentBlock<A>,
    pub(super) bytes: u64,
    small: bool,
    pub(super) after: Pending<MarkOf<A>>,
}

impl<A: DeviceAllocator> Store<A> {
    /// Gives free memory back, the oldest first, until at least `bytes` bytes went.
    pub(crate) fn trim_book(&self, goal: Goal) -> GivenBack {
        self.give_back_coalesced(goal, |goal| self.give_back_older(goal, u64::MAX))
    }

    /// Gives free memory back, the largest range first, until at least `bytes` bytes went.
    pub(crate) fn shrink_book(&self, goal: Goal) -> GivenBack {
        self.give_back_coalesced(goal, |goal| {
            let mut found = self.candidates();
            found.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.bytes));
            self.give_back_each(&found, goal)
        })
    }

    /// Gives memory back by `give_back`. Where that is not enough, pages that several streams have
    /// used go too.
    fn give_back_coalesced(&self, goal: Goal, give_back: impl Fn(Goal) -> GivenBack) -> GivenBack {
        let (page, all) = (self.book.page_bytes(), goal.bytes >= self.ledger.reserved());
        if let Some(page) = page.filter(|_| all) {
            self.coalesce_pages(page);
        }
        let (given_back, refusal) = give_back(goal);
        let Some(page) = page.filter(|_| !all && given_back < goal.bytes) else {
            return (given_back, refusal);
        };
        self.coalesce_pages(page);
        let (more, refused) = give_back(Goal { bytes: goal.bytes - given_back, ..goal });
        (given_back + more, refusal.or(refused))
    }

    /// Gives back what has been free for longer than the retention of the pool.
    pub(crate) fn tick_book(&self, now: Duration) -> GivenBack {
        self.add_counts_of_caches(|_| {}); // they know how many allocations there were
        let at = {
            let mut state = self.book.lock();
            state.book.turn += 1;
            state.book.turn
        };
        // In its own statement, so that the lock is not held over the calls to the device.
        let before = self.ticks.lock().tick(now, at, self.bounds.retention);
        match before {
            0 => (0, None),
            before => self.give_back_older(Goal::all(Reason::Age), before),
        }
    }

    /// Gives back the smallest run of pages, or segment, that brings free bytes below the cached
    /// limit; the largest if none does. One call to the device at most. `near`: a segment in which
    /// memory was just freed, perhaps the last of it.
    pub(crate) fn give_back_excess(&self, near: Option<u32>) -> GivenBack {
        let (clock, mut state) = (self.allocator.clock(), self.book.lock());
        let excess = state.excess(self.bounds.cached);
        if excess == 0 {
            return (0, None);
        }
        if let Some(mut at) = near.filter(|_| self.book.pages.is_none()) {
            let end = at + 1;
            state.book.coalesce_free_segments(clock, &mut at, end, NODES);
        }
        let found = state.book.pick_returnable(excess, self.book.page_bytes());
        let mut ids = found.iter().map(|found| found.id);
        let first = ids.find(|id| state.book.is_submitted(clock, *id));
        first.map_or((0, None), |id| self.give_back_range(state, id, Goal::all(Reason::Bound)))
    }

    /// Gives back all that is above the cached limit.
    pub(crate) fn trim_to_cached_limit(&self) -> GivenBack {
        let (mut given_back, mut refusal) = (0, None);
        if self.book.lock().excess(self.bounds.cached) == 0 {
            return (0, None);
        }
        self.collect();
        self.coalesce_free_segments();
        // A call looks at a portion of the lists.
        let portions = self.book.lock().book.lists.portions();
        let mut in_vain = 0;
        while in_vain <= portions {
            let (went, refused) = self.give_back_excess(None);
            given_back += went;
            refusal = refusal.or(refused);
            in_vain = if went == 0 { in_vain + 1 } else { 0 };
        }
        (given_back, refusal)
    }

    /// Gives back memory that was freed before `before`, the oldest first, until at least `bytes`
    /// bytes went.
    pub(super) fn give_back_older(&self, goal: Goal, before: u64) -> GivenBack {
        if goal.bytes == 0 {
            return (0, None);
        }
        let mut found = self.candidates();
        found.retain(|candidate| candidate.freed_at < before);
        found.sort_unstable_by_key(|candidate| (candidate.freed_at, candidate.nth));
        self.give_back_each(&found, goal)
    }

    fn give_back_each(&self, found: &[Candidate], goal: Goal) -> GivenBack {
        let (mut given_back, mut refusal) = (0, None);
        for candidate in found {
            if given_back >= goal.bytes {
                break;
            }
            let rest = Goal { bytes: goal.bytes - given_back, ..goal };
            let (went, refused) = self.give_back_one(candidate, rest);
            given_back += went;
            refusal = refusal.or(refused);
        }
        (given_back, refusal)
    }

    /// Gives one free range back, or enough pages of it; nothing if it has changed meanwhile.
    fn give_back_one(&self, found: &Candidate, goal: Goal) -> GivenBack {
        let state = self.book.lock();
        let same = state.book.nodes[found.id].freed_at == found.freed_at;
        match same && state.book.is_free(found.id) {
            true => self.give_back_range(state, found.id, goal),
            false => (0, None),
        }
    }

    /// Gives a free segment back, or pages of a free range that hold `bytes` bytes, or all of them.
    /// What is behind work that is not submitted stays.
    fn give_back_range(
        &self,
        mut state: LockGuard<'_, BookState<A>>,
        id: u32,
        goal: Goal,
    ) -> GivenBack {
        if !state.book.is_submitted(self.allocator.clock(), id) {
            return (0, None);
        }
        let Some(pages) = &self.book.pages else {
            let Some(segment) = state.remove_segment(id) else { return (0, None) };
            state.counts.evictions += u64::from(self.bounds.statistics);
            let _in_transit = InTransit::new(self.transit());
            drop(state);
            return self.free_segment(segment, Some(goal.reason));
        };
        let Some(piece) = state.take_pages(pages, id, goal.bytes) else { return (0, None) };
        state.counts.evictions += u64::from(self.bounds.statistics);
        let moving = self.moving(vec![piece]);
        drop(state);
        self.decommit(pages, moving, true, goal.reason)
    }

    /// Coalesces free neighbours that share a page, a portion under the lock at a time: what two
    /// streams used of one page goes back with it.
    fn coalesce_pages(&self, page: u64) {
        self.collect();
        let mut next = Some(0);
        while let Some(from) = next {
            let mut state = self.book.lock();
            next = state.book.coalesce_pages(self.allocator.clock(), from, NODES / 8, page);
        }
    }

    /// Coalesces all segments that are wholly free, a portion under the lock at a time.
    pub(super) fn coalesce_free_segments(&self) {
        let (clock, mut at) = (self.allocator.clock(), 0);
        let mut more = self.book.pages.is_none();
        while more {
            more = self.book.lock().book.coalesce_free_segments(clock, &mut at, u32::MAX, NODES);
        }
    }

    /// Finds the free ranges that can go back: with pages those that hold one, else whole segments.
    fn candidates(&self) -> Vec<Candidate> {
        let page = self.book.page_bytes();
        self.collect();
        self.coalesce_free_segments();
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let state = self.book.lock();
            let (aged, more) = state.book.aged(from, NODES, page);
            found.extend(aged.into_iter().map(|(freed_at, id)| Candidate {
                id,
                freed_at,
                nth: state.book.nodes[id].freed_nth,
                bytes: state.book.nodes[id].bytes,
            }));
            next = more;
        }
        found
    }

    /// Before `bytes` more are taken from the device: gives back segments that have been free for
    /// as long as the average of those that are, or longer, until the pool holds at most its share
    /// of the limit, or of the device's memory where that is less.
    pub(super) fn collect_garbage(&self, bytes: u64) {
        let Some(share) = self.book.lock().book.config.gc_threshold else { return };
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

    /// Frees a segment that was taken out of the book. `reason`: why it was evicted, if it was.
    pub(super) fn free_segment(
        &self,
        segment: RemovedSegment<A>,
        reason: Option<Reason>,
    ) -> GivenBack {
        let RemovedSegment { block, bytes, small, after } = segment;
        let waits = !self.is_seen_done(after.marks());
        // SAFETY: `remove_segment` gives a segment only if all of it was free, and its ranges are
        // gone from the book.
        let block = unsafe { block.into_inner() };
        let freed = self.allocator.free(block, after.marks());
        let mut state = self.book.lock();
        state.calls.num_sync_all_streams += u64::from(waits);
        match freed {
            // The device still has it, so it stays reserved; a lost device has nothing.
            Err(error) if !error.is_end_of_device() => (0, Some(error)),
            freed => {
                state.counts.lost_bytes -= bytes;
                state.calls.segment.down(small, 1);
                state.calls.reserved_bytes.down(small, bytes);
                state.calls.num_device_free += 1;
                self.ledger.note_freed(bytes);
                drop(state);
                if let Some(reason) = reason {
                    self.notify_eviction(reason, bytes);
                }
                (if freed.is_ok() { bytes } else { 0 }, freed.err())
            }
        }
    }

    /// The store goes: all segments go back, with what memory is still behind them.
    /// A panic of the allocator keeps none of the others.
    pub(in crate::heap::store) fn release_segments(&self) {
        let mut state = self.book.lock();
        let segments = state.blocks.iter().filter(|block| block.is_some()).count();
        let mut released = Vec::with_capacity(segments);
        for at in 0..state.blocks.len() {
            let Some(block) = state.blocks[at].take() else { continue };
            released.push((block, state.book.marks_of_segment(at)));
        }
        drop(state);
        let mut panic = None;
        for (block, marks) in released {
            // SAFETY: the store goes, after the last buffer, so no range is lent.
            let block = unsafe { block.into_inner() };
            let call = || match &self.book.pages {
                Some(pages) => (pages.release)(&self.allocator, block, &marks),
                None => self.allocator.free(block, &marks),
            };
            // No caller is left to be told of a refusal.
            panic = catch_unwind(AssertUnwindSafe(call)).err().or(panic);
        }
        if let Some(panic) = panic.filter(|_| !thread::panicking()) {
            resume_unwind(panic);
        }
    }
}

impl<A: DeviceAllocator> BookState<A> {
    /// Takes the segment out that a free range is all of.
    fn remove_segment(&mut self, id: u32) -> Option<RemovedSegment<A>> {
        let at = self.book.nodes[id].segment;
        let (segment, after) = self.book.remove_segment(id)?;
        self.removed(at, &segment, after)
    }

    /// A segment that was removed from the book, with its block.
    pub(super) fn removed(
        &mut self,
        at: u32,
        segment: &BookSegment<A::Kind>,
        after: Pending<MarkOf<A>>,
    ) -> Option<RemovedSegment<A>> {
        let block = self.blocks.get_mut(at as usize)?.take()?;
        // Lost until the device has accepted it: it stays so if the device refuses, or panics.
        self.counts.lost_bytes += segment.bytes;
        Some(RemovedSegment { block, bytes: segment.bytes, small: segment.group.small, after })
    }

    /// Takes pages out of the end of a free range: as many as hold `bytes` bytes, or all.
    fn take_pages(&mut self, pages: &PageCalls<A>, id: u32, bytes: u64) -> Option<Piece<A>> {
        let run = self.book.whole_pages(id, pages.page_bytes);
        let wanted = bytes.checked_next_multiple_of(pages.page_bytes).unwrap_or(u64::MAX);
        let start = run.start.max(run.end.saturating_sub(wanted));
        if start >= run.end {
            return None;
        }
        let id = self.book.carve(id, &(start..run.end));
        self.piece(id)
    }
}
