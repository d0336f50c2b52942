//! Giving free memory back to the device: by hand, by age, for want of memory, and at the end.

use super::Arena;
use super::ranges::Ticket;
use super::space::{Lent, Segment, Space};
use crate::clock::StreamClock;
use crate::device::{DeviceAllocator, MarkOf};
use crate::error::{DeviceError, Why};
use crate::layer::{GivenBack, Held, Layer};
use crate::order::StealPolicy;
use std::sync::Arc;
use std::time::Duration;

/// A free segment or run of pages that could go back, by age: when it came free, and its range.
type ByAge = (u64, u32);

impl<A: DeviceAllocator> Arena<A> {
    /// Whether all marks were seen done, so that giving back waits for nothing.
    pub(super) fn is_seen_done(&self, marks: &[MarkOf<A>]) -> bool {
        marks.iter().all(|mark| self.clock_of().is_seen_done(*mark))
    }

    /// The clock of the device below.
    pub(super) fn clock_of(&self) -> &A::Clock {
        self.upstream.clock()
    }

    /// Gives back what came free before `before`, the oldest first, until at least `bytes` bytes
    /// went.
    fn give_back_older(&self, bytes: u64, before: u64) -> GivenBack {
        let mut oldest: Vec<(u64, Ticket)> = {
            let mut space = self.space.lock();
            if self.pages.is_none() {
                space.join_free_segments(self.clock_of());
            }
            let page = self.pages.as_ref().map(|calls| calls.page_bytes);
            let all = space.could_go(page).filter(|(since, _)| *since < before);
            all.map(|(since, id)| (since, space.ranges.ticket(id))).collect()
        };
        oldest.sort_unstable_by_key(|(since, _)| *since);
        let (mut given_back, mut refusal) = (0, None);
        for (_, ticket) in oldest {
            if given_back >= bytes {
                break;
            }
            let (went, refused) = self.give_back_one(ticket, bytes - given_back);
            given_back += went;
            refusal = refusal.or(refused);
        }
        (given_back, refusal)
    }

    /// Gives one free range back, or enough pages of it; nothing if another thread has it by now.
    fn give_back_one(&self, ticket: Ticket, bytes: u64) -> GivenBack {
        let mut space = self.space.lock();
        let Some(id) = space.ranges.redeem_free(ticket) else { return (0, None) };
        let Some(calls) = &self.pages else {
            let segment = space.take_free_segment(id);
            drop(space);
            return segment.map_or((0, None), |segment| self.free_segment(segment));
        };
        let run = space.whole_pages(id, calls.page_bytes);
        let wanted = bytes.checked_next_multiple_of(calls.page_bytes).unwrap_or(u64::MAX);
        let start = run.start.max(run.end.saturating_sub(wanted));
        if start >= run.end {
            return (0, None);
        }
        let piece = space.take_part(id, &(start..run.end));
        drop(space);
        self.decommit(calls, piece.into_iter().collect(), true)
    }

    fn free_segment(&self, (segment, lent): (Segment<A>, Lent<A>)) -> GivenBack {
        let bytes = segment.bytes;
        let waits = !self.is_seen_done(lent.after.marks());
        drop(lent.block);
        // Nobody else has it: all its ranges were free.
        let freed = match Arc::into_inner(segment.block) {
            Some(block) => self.upstream.free(block, lent.after.marks()),
            None => Err(DeviceError::new(Why::Other, "a segment in use", 0)),
        };
        let mut space = self.space.lock();
        space.stats.num_sync_all_streams += u64::from(waits);
        match freed {
            // The device still has it, so it stays reserved; a lost device has nothing.
            Err(error) if !error.is_end_of_device() => {
                space.lost += bytes;
                (0, Some(error))
            }
            freed => {
                space.count_segment_gone(segment.sort.small, bytes);
                self.ledger.give_back(bytes);
                (if freed.is_ok() { bytes } else { 0 }, freed.err())
            }
        }
    }

    /// Before the arena takes `bytes` more: gives back segments that have been free for as long as
    /// the average of those that are, or longer, until it holds at most its share of the limit.
    pub(super) fn collect_garbage(&self, bytes: u64) {
        let (limit, reserved) = (self.ledger.limit(), self.ledger.reserved());
        let (average, share) = {
            let space = self.space.lock();
            let Some(share) = space.config.gc_threshold.filter(|_| limit != u64::MAX) else {
                return;
            };
            let over = (reserved.saturating_add(bytes)) as f64 > limit as f64 * share;
            let ages: Vec<u64> = space.could_go(None).map(|(since, _)| since).collect();
            if !over || ages.is_empty() {
                return;
            }
            (ages.iter().sum::<u64>() / ages.len() as u64, share)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a limit, which saturates"
        )]
        let most = (limit as f64 * share) as u64;
        let needed = reserved.saturating_add(bytes).saturating_sub(most);
        // A refusal is the next call's to tell.
        let _ = self.give_back_older(needed, average + 1);
    }

    /// The arena goes: all segments go back. Blocks that are out would keep theirs; the pool above
    /// gives them back first.
    pub(super) fn close(&mut self) {
        let space = self.space.get_mut();
        for at in 0..space.segments.len() {
            let Some(segment) = space.segments[at].take() else { continue };
            let ranges = space.ranges.walk(segment.first);
            let marks = ranges.filter_map(|id| space.ranges.free(id));
            let marks: Vec<MarkOf<A>> =
                marks.flat_map(|free| free.after.marks().to_vec()).collect();
            let Some(block) = Arc::into_inner(segment.block) else { continue };
            // Nobody is left to be told.
            let _ = match &self.pages {
                Some(calls) => (calls.release)(&self.upstream, block, &marks),
                None => self.upstream.free(block, &marks),
            };
        }
    }
}

impl<A: DeviceAllocator> Layer for Arena<A> {
    fn held(&self) -> Held {
        let (space, clock) = (self.space.lock(), self.clock_of());
        let mut held = Held {
            reserved_bytes: self.ledger.reserved(),
            reserved_peak_bytes: self.ledger.peak(),
            lost_bytes: space.lost,
            by_lane: space.by_lane(),
            ..Held::default()
        };
        held.free_bytes = held.by_lane.iter().map(|(_, bytes)| bytes).sum();
        for (id, bytes) in space.free_from(0) {
            let marks = space.marks(id);
            held.largest_free_bytes = held.largest_free_bytes.max(bytes);
            if !self.is_seen_done(marks) {
                held.pending_bytes += bytes;
            }
            if !marks.iter().all(|mark| clock.is_submitted(*mark)) {
                held.unsubmitted_bytes += bytes;
            }
        }
        held
    }

    fn give_back(&self, bytes: u64) -> GivenBack {
        self.give_back_older(bytes, u64::MAX)
    }

    fn tick(&self, now: Duration) -> GivenBack {
        let at = {
            let mut space = self.space.lock();
            space.turn += 1;
            space.turn
        };
        let before = self.ticks.lock().tick(now, at, self.retention);
        self.give_back_older(u64::MAX, before)
    }

    fn note_retry(&self) {
        self.space.lock().stats.num_alloc_retries += 1;
    }

    fn note_refusal(&self) {
        self.space.lock().stats.num_ooms += 1;
    }

    fn stranded(&self, lane: u64, steal: StealPolicy) -> u64 {
        let (space, clock) = (self.space.lock(), self.clock_of());
        let out_of_reach = |mark: &MarkOf<A>| {
            clock.lane(*mark) != lane
                && !clock.is_retired(*mark)
                && match steal.min(self.steal) {
                    StealPolicy::Never => true,
                    StealPolicy::Ordered => !clock.has_event(*mark),
                    StealPolicy::Wait => false,
                }
        };
        let stranded =
            space.free_from(0).filter(|(id, _)| space.marks(*id).iter().any(out_of_reach));
        stranded.map(|(_, bytes)| bytes).sum()
    }

    fn reset_peaks(&self) {
        self.reset_peak_stats();
    }

    fn reserved_bytes(&self) -> u64 {
        self.ledger.reserved()
    }

    fn reserved_limit(&self) -> u64 {
        self.ledger.limit()
    }
}

impl<A: DeviceAllocator> Space<A> {
    /// Wholly free segments; or, with pages, free ranges with a whole page.
    fn could_go(&self, page: Option<u64>) -> impl Iterator<Item = ByAge> {
        let ranges = self.free_from(page.unwrap_or(0)).filter(move |(id, bytes)| {
            if let Some(page) = page {
                return !self.whole_pages(*id, page).is_empty();
            }
            let segment = self.segment(self.ranges.get(*id).segment);
            segment.is_some_and(|segment| segment.bytes == *bytes)
        });
        ranges.filter_map(|(id, _)| Some((self.ranges.free(id)?.since, id)))
    }

    /// Takes out a wholly free segment by its range.
    fn take_free_segment(&mut self, id: u32) -> Option<(Segment<A>, Lent<A>)> {
        let at = self.ranges.get(id).segment;
        let whole = self.ranges.bytes(id);
        if self.segment(at)?.bytes != whole {
            return None;
        }
        let lent = self.take(id, whole)?;
        Some((self.drop_segment(at)?, lent))
    }
}
