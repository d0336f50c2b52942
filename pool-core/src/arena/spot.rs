//! Where in a reservation a request goes when no free range serves it: over holes, where the fewest
//! pages are missing; and which free pages make room for those.
//!
//! Looks at every hole and its free neighbours, which is fine where the device is called next.

use super::space::{ArenaRequest, Piece, Space};
use crate::clock::StreamClock;
use crate::device::DeviceAllocator;
use crate::order::Taker;
use std::ops::Range;

/// Where a block would lie, and what that takes.
pub(super) struct Spot {
    /// The lowest of the free ranges and holes that it lies in.
    first: u32,
    /// The bytes of the block in its segment.
    pub(super) block: Range<u64>,
    pub(super) missing_bytes: u64,
}

/// A free range or hole as a spot is chosen from it.
struct Part {
    id: u32,
    bytes: Range<u64>,
    hole: bool,
}

/// How good a spot is, best first: bytes missing, calls that commit them, how large the free
/// neighbourhood is (the end of the reservation last), address.
type Rank = (u64, u64, u64, u64);

impl<A: DeviceAllocator> Space<A> {
    /// The best spot for a request. Whole pages count.
    pub(super) fn spot(
        &self,
        want: &ArenaRequest<A::Kind>,
        taker: &Taker<'_, A::Clock>,
        page: u64,
    ) -> Option<Spot> {
        let mut best: Option<(Rank, Spot)> = None;
        for hole in &self.holes {
            let Some(parts) = self.neighbourhood(*hole, want, taker) else { continue };
            let (Some(first), Some(last)) = (parts.first(), parts.last()) else { continue };
            let all = first.bytes.start..last.bytes.end;
            if all.end - all.start < want.bytes {
                continue;
            }
            let at_end = self.ranges.after(last.id).is_none();
            let size = if at_end { u64::MAX } else { all.end - all.start };
            for start in starts(&parts, &all, want.bytes, at_end) {
                let block = start..start + want.bytes;
                let (missing_bytes, calls) = missing(&parts, &block, page);
                let rank = (missing_bytes, calls, size, start);
                if best.as_ref().is_none_or(|(best, _)| rank < *best) {
                    best = Some((rank, Spot { first: first.id, block, missing_bytes }));
                }
            }
        }
        best.map(|(_, spot)| spot)
    }

    /// The free ranges and holes around a hole that a taker may have. `None` if another hole lies
    /// before it, so that each neighbourhood is looked at once.
    fn neighbourhood(
        &self,
        hole: u32,
        want: &ArenaRequest<A::Kind>,
        taker: &Taker<'_, A::Clock>,
    ) -> Option<Vec<Part>> {
        if !self.is_of_sort(hole, &want.sort) {
            return None;
        }
        let mut first = hole;
        while let Some(before) = self.ranges.before(first).filter(|id| self.may_have(*id, taker)) {
            if self.ranges.is_hole(before) {
                return None;
            }
            first = before;
        }
        let parts = self.ranges.walk(first).take_while(|id| self.may_have(*id, taker));
        Some(
            parts
                .map(|id| Part { id, bytes: self.place(id), hole: self.ranges.is_hole(id) })
                .collect(),
        )
    }

    /// Whether a range is free, and ready for the taker or can be made so for certain.
    fn may_have(&self, id: u32, taker: &Taker<'_, A::Clock>) -> bool {
        let can = |mark| {
            taker.is_ready(mark)
                || !taker.cpu_touches && taker.may_ask(mark) && taker.clock.is_submitted(mark)
        };
        let free = self.ranges.free(id);
        free.is_some_and(|free| free.after.marks().iter().all(|mark| can(*mark)))
    }

    /// Takes out what a spot needs: the free parts that the block lies in, and pages of holes.
    /// Where the block ends in a hole, up to `ahead` bytes more of that hole, since the call that
    /// commits them is made anyway.
    pub(super) fn take_out(&mut self, spot: &Spot, page: u64, ahead: u64) -> Vec<Piece<A>> {
        let (block, mut pieces) = (&spot.block, Vec::new());
        let mut next = Some(spot.first);
        while let Some(id) = next.filter(|id| self.place(*id).start < block.end) {
            let place = self.place(id);
            next = self.ranges.after(id);
            if place.end <= block.start {
                continue;
            }
            let part = if self.ranges.is_hole(id) {
                let extra = if place.end > block.end { ahead / page * page } else { 0 };
                pages_of(block, page, extra, &place)
            } else {
                place.start.max(block.start)..place.end.min(block.end)
            };
            pieces.extend(self.take_part(id, &part));
        }
        pieces
    }

    /// Takes out free pages, at least `bytes` bytes or all there are: the shortest run that is
    /// enough, else the longest, and each run whole, since a call costs the same for any length.
    pub(super) fn idle_pages(&mut self, page: u64, bytes: u64) -> Vec<Piece<A>> {
        let (mut pieces, mut missing) = (Vec::new(), bytes);
        while missing > 0 {
            let runs = self.free_from(page).filter_map(|(id, _)| {
                let run = self.whole_pages(id, page);
                (run.start < run.end).then(|| (run.end - run.start, run, id))
            });
            let best = runs.max_by_key(|(size, run, _)| {
                let enough = *size >= missing;
                (enough, if enough { u64::MAX - size } else { *size }, run.start)
            });
            let Some((size, run, id)) = best else { break };
            missing = missing.saturating_sub(size);
            pieces.extend(self.take_part(id, &run));
        }
        pieces
    }

    /// The pages that lie wholly inside a range.
    pub(super) fn whole_pages(&self, id: u32, page: u64) -> Range<u64> {
        let place = self.place(id);
        let start = place.start.next_multiple_of(page);
        start..(place.end / page * page).max(start)
    }
}

/// Where a block may start in a neighbourhood: at its ends, and at the ends of its free ranges.
fn starts(parts: &[Part], all: &Range<u64>, bytes: u64, at_end: bool) -> impl Iterator<Item = u64> {
    let free = parts.iter().filter(|part| !part.hole);
    let free =
        free.flat_map(move |part| [Some(part.bytes.start), part.bytes.end.checked_sub(bytes)]);
    let at_the_end = if at_end { None } else { all.end.checked_sub(bytes) };
    let all = all.clone();
    let ends = [Some(all.start), at_the_end];
    let fits = move |start: &u64| *start >= all.start && *start + bytes <= all.end;
    free.chain(ends).flatten().filter(fits)
}

/// The bytes that a block lacks, in whole pages, and how many calls commit them.
fn missing(parts: &[Part], block: &Range<u64>, page: u64) -> (u64, u64) {
    let (mut bytes, mut calls) = (0, 0);
    for part in parts.iter().filter(|part| part.hole) {
        let lacks = pages_of(block, page, 0, &part.bytes);
        if lacks.start < lacks.end {
            bytes += lacks.end - lacks.start;
            calls += 1;
        }
    }
    (bytes, calls)
}

/// The pages that hold a block, and `extra` bytes more, as far as they lie in a hole.
fn pages_of(block: &Range<u64>, page: u64, extra: u64, hole: &Range<u64>) -> Range<u64> {
    let end = block.end.next_multiple_of(page).saturating_add(extra);
    let start = hole.start.max(block.start / page * page);
    start..hole.end.min(end).max(start)
}
