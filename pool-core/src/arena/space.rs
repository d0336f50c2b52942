//! The book of an arena, under one lock: segments, the ranges that they are cut into, and the free
//! ones by sort and size. **The hot path of an arena** is [`Space::take_ready`] and
//! [`Space::give`]; `search.rs` finds what is taken.
//!
//! Nothing here calls a device.

use super::bins::{Bins, list};
use super::config::{ArenaConfig, SMALL};
use super::lane::{Lane, lane_of};
use super::ranges::{HOLE, Ranges, Ticket, USED};
use crate::device::{DeviceAllocator, MarkOf};
use crate::device_stats::DeviceStats;
use crate::order::{After, Taker};
use std::ops::Range;
use std::sync::Arc;

/// What ranges have in common that may serve the same requests, and become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort<K> {
    pub(super) kind: K,
    pub(super) small: bool,
}

/// A request, with all that a search needs.
pub(super) struct ArenaRequest<K> {
    pub(super) bytes: u64,
    pub(super) requested: u64,
    pub(super) sort: Sort<K>,
    pub(super) lane: u64,
}

/// What a free range remembers.
#[derive(Clone, Debug)]
pub(super) struct Free<M> {
    pub(super) after: After<M>,
    /// How many allocations there had been when it came free.
    pub(super) since: u64,
}

pub(super) struct FreeList<K> {
    pub(super) sort: Sort<K>,
    pub(super) lane: Lane,
    pub(super) bins: Bins,
}

pub(super) struct Segment<A: DeviceAllocator> {
    pub(super) block: Arc<A::Block>,
    pub(super) sort: Sort<A::Kind>,
    pub(super) bytes: u64,
    /// Its lowest range, which keeps its number as long as the segment lives.
    pub(super) first: u32,
    pub(super) born: u64,
}

/// A range on its way to somebody: what it is, and what it is behind.
pub(super) struct Lent<A: DeviceAllocator> {
    pub(super) block: Arc<A::Block>,
    pub(super) ticket: Ticket,
    pub(super) bytes: Range<u64>,
    pub(super) after: After<MarkOf<A>>,
    pub(super) since: u64,
}

/// A free range or hole that was taken out, or a part of one.
pub(super) struct Piece<A: DeviceAllocator> {
    pub(super) lent: Lent<A>,
    /// Whether no memory is behind it.
    pub(super) hole: bool,
    /// Whether it was a hole when it was taken out, and is none any more.
    pub(super) fresh: bool,
}

pub(super) struct Space<A: DeviceAllocator> {
    pub(super) config: ArenaConfig,
    pub(super) ranges: Ranges<Free<MarkOf<A>>>,
    pub(super) segments: Vec<Option<Segment<A>>>,
    pub(super) vacant_segments: Vec<u32>,
    pub(super) shelves: Vec<FreeList<A::Kind>>,
    /// Allocations so far.
    pub(super) turn: u64,
    pub(super) born: u64,
    /// Bytes handed out, after rounding, and the most at once.
    pub(super) used: u64,
    pub(super) used_peak: u64,
    /// Ranges of reservations without memory behind them.
    pub(super) holes: Vec<u32>,
    pub(super) stats: DeviceStats,
    /// Bytes that the device would not have back.
    pub(super) lost: u64,
    /// Whether free neighbours were left apart because work on one had not reached the device.
    pub(super) apart: bool,
}

impl<M> Default for Free<M> {
    fn default() -> Self {
        Self { after: After::Nothing, since: 0 }
    }
}

impl<A: DeviceAllocator> Space<A> {
    pub(super) fn new(config: ArenaConfig) -> Self {
        Self {
            config,
            ranges: Ranges::new(),
            segments: Vec::new(),
            vacant_segments: Vec::new(),
            shelves: Vec::new(),
            turn: 0,
            used: 0,
            used_peak: 0,
            born: 0,
            holes: Vec::new(),
            stats: DeviceStats::default(),
            lost: 0,
            apart: false,
        }
    }

    /// Whether a range is in a segment of this sort.
    pub(super) fn is_of_sort(&self, id: u32, sort: &Sort<A::Kind>) -> bool {
        self.segment(self.ranges.get(id).segment).is_some_and(|segment| segment.sort == *sort)
    }

    pub(super) fn segment(&self, at: u32) -> Option<&Segment<A>> {
        self.segments.get(at as usize)?.as_ref()
    }

    /// The bytes of a range in its segment.
    #[inline]
    pub(super) fn place(&self, id: u32) -> Range<u64> {
        let offset = self.ranges.get(id).offset;
        offset..offset + self.ranges.bytes(id)
    }

    pub(super) fn marks(&self, id: u32) -> &[MarkOf<A>] {
        self.ranges.free(id).map_or(&[], |free| free.after.marks())
    }

    pub(super) fn is_ready(&self, id: u32, taker: &Taker<'_, A::Clock>) -> bool {
        self.marks(id).iter().all(|mark| taker.is_ready(*mark))
    }

    pub(super) fn may_ask(&self, id: u32, taker: &Taker<'_, A::Clock>) -> bool {
        self.marks(id).iter().all(|mark| taker.may_ask(*mark))
    }

    /// Takes a free range out, whole or cut to `bytes` bytes. The rest stays free, behind the same
    /// marks.
    pub(super) fn take(&mut self, id: u32, bytes: u64) -> Option<Lent<A>> {
        let free = self.take_ready(id, bytes)?;
        self.lent(id, free)
    }

    /// A range that is handed out, as its taker gets it.
    pub(super) fn lent(&self, id: u32, free: Free<MarkOf<A>>) -> Option<Lent<A>> {
        let block = self.segment(self.ranges.get(id).segment)?.block.clone();
        let (ticket, bytes) = (self.ranges.ticket(id), self.place(id));
        let Free { after, since } = free;
        Some(Lent { block, ticket, bytes, after, since })
    }

    /// The same; what the range was behind is all that it tells.
    #[inline]
    pub(super) fn take_ready(&mut self, id: u32, bytes: u64) -> Option<Free<MarkOf<A>>> {
        let whole = self.ranges.bytes(id);
        let (shelf, free) = self.unshelve(id)?;
        if whole > bytes && self.config.splits(whole, bytes) {
            let rest = self.ranges.cut(id, bytes);
            self.shelve(rest, shelf, free.clone());
        }
        Some(free)
    }

    /// Takes a part out of a free range or hole; what is below and above stays what it was.
    pub(super) fn take_part(&mut self, mut id: u32, part: &Range<u64>) -> Option<Piece<A>> {
        let place = self.place(id);
        let (shelf, free) = self.unshelve(id)?;
        if place.start < part.start {
            let below = id;
            id = self.ranges.cut(below, part.start - place.start);
            self.shelve(below, shelf, free.clone());
        }
        if part.end < place.end {
            let above = self.ranges.cut(id, part.end - part.start);
            self.shelve(above, shelf, free.clone());
        }
        let segment = self.ranges.get(id).segment;
        let block = self.segment(segment)?.block.clone();
        let (hole, ticket) = (shelf == HOLE, self.ranges.ticket(id));
        let Free { after, since } = free;
        let lent = Lent { block, ticket, bytes: part.clone(), after, since };
        Some(Piece { lent, hole, fresh: false })
    }

    /// Makes a piece free again, as the hole or range that it is now.
    pub(super) fn give_piece(&mut self, clock: &A::Clock, piece: Piece<A>) {
        let Piece { lent: Lent { ticket, after, since, .. }, hole, .. } = piece;
        if hole {
            self.give_hole(clock, ticket.id);
        } else {
            self.give(clock, ticket, after, since);
        }
    }

    /// Counts a range out of the arena's hands.
    #[inline]
    pub(super) fn count_out(&mut self, bytes: u64, requested: u64) {
        let small = bytes <= SMALL;
        self.turn += 1;
        self.used += bytes;
        self.used_peak = self.used_peak.max(self.used);
        self.stats.allocation.up(small, 1);
        self.stats.allocated_bytes.up(small, bytes);
        self.stats.requested_bytes.up(small, requested);
    }

    #[inline]
    pub(super) fn count_in(&mut self, bytes: u64, requested: u64) {
        let small = bytes <= SMALL;
        self.used -= bytes;
        self.stats.allocation.down(small, 1);
        self.stats.allocated_bytes.down(small, bytes);
        self.stats.requested_bytes.down(small, requested);
    }

    /// Makes a range free again, one with its free neighbours of the same lane. False if the ticket
    /// is none of ours.
    #[inline]
    pub(super) fn give(
        &mut self,
        clock: &A::Clock,
        ticket: Ticket,
        after: After<MarkOf<A>>,
        since: u64,
    ) -> bool {
        let Some(id) = self.ranges.redeem(ticket) else { return false };
        let lane = lane_of(clock, after.marks());
        self.settle(clock, id, Free { after, since }, lane);
        true
    }

    /// Makes a range that is handed out a hole: nothing is behind it any more.
    pub(super) fn give_hole(&mut self, clock: &A::Clock, id: u32) {
        self.settle(clock, id, Free::default(), Lane::Hole);
    }

    /// Joins a range with its neighbours of the same lane, and shelves it.
    #[inline]
    fn settle(&mut self, clock: &A::Clock, mut id: u32, mut free: Free<MarkOf<A>>, mut lane: Lane) {
        // Both are looked at before either is judged, so that the two cache misses overlap.
        let [next, before] = [self.ranges.after(id), self.ranges.before(id)]
            .map(|neighbour| neighbour.map(|id| (id, self.ranges.get(id).shelf)));
        if let Some((next, shelf)) = next
            && let Some(joined) = self.joinable(shelf, lane)
            && self.may_coalesce(clock, next, &free)
        {
            lane = joined;
            free = self.join(clock, id, next, free);
        }
        if let Some((before, shelf)) = before
            && let Some(joined) = self.joinable(shelf, lane)
            && self.may_coalesce(clock, before, &free)
        {
            lane = joined;
            free = self.join(clock, before, id, free);
            id = before;
        }
        let shelf = match (lane, self.segment(self.ranges.get(id).segment)) {
            (Lane::Hole, _) | (_, None) => HOLE,
            (lane, Some(segment)) => self.shelf(segment.sort, lane),
        };
        self.shelve(id, shelf, free);
    }

    /// Whether a range may coalesce with its free neighbour now. If not, [`Space::join_lanes`] does
    /// it before the device is called.
    #[inline]
    fn may_coalesce(&mut self, clock: &A::Clock, neighbour: u32, free: &Free<MarkOf<A>>) -> bool {
        let other = self.ranges.free(neighbour);
        let may = other.is_some_and(|other| other.after.may_coalesce(clock, &free.after));
        self.apart |= !may;
        may
    }

    /// The lane of a neighbour on `shelf` joined with `lane`, if it is free and they may be one.
    #[inline]
    fn joinable(&self, shelf: u32, lane: Lane) -> Option<Lane> {
        let other = match shelf {
            USED => return None,
            HOLE => Lane::Hole,
            shelf => self.shelves[shelf as usize].lane,
        };
        match (lane, other) {
            (Lane::Several, _) | (_, Lane::Several) => None,
            (lane, other) if lane == other => Some(lane),
            (Lane::Hole, _) | (_, Lane::Hole) => None,
            (Lane::Nobody, lane) | (lane, Lane::Nobody) => Some(lane),
            _ => None,
        }
    }

    /// Makes `id` one with the range after it, one of which is `free` and on no shelf, and the
    /// other is on one.
    #[inline]
    pub(super) fn join(
        &mut self,
        clock: &A::Clock,
        id: u32,
        next: u32,
        free: Free<MarkOf<A>>,
    ) -> Free<MarkOf<A>> {
        let on_shelf = if self.ranges.get(id).shelf == USED { next } else { id };
        let other = self.unshelve(on_shelf);
        self.ranges.join_next(id);
        match other {
            Some((_, other)) => {
                let after = free.after.join(clock, other.after);
                Free { after, since: free.since.max(other.since) }
            }
            None => free,
        }
    }

    /// Puts a free range on its shelf.
    #[inline]
    pub(super) fn shelve(&mut self, id: u32, shelf: u32, free: Free<MarkOf<A>>) {
        let (bytes, segment) = (self.ranges.bytes(id), self.ranges.get(id).segment);
        self.ranges.set_free(id, shelf, free);
        let Some(of) = self.segments.get_mut(segment as usize).and_then(Option::as_mut) else {
            return;
        };
        if shelf == HOLE {
            self.holes.push(id);
            return;
        }
        if bytes != of.bytes {
            self.stats.inactive_split.up(of.sort.small, 1);
            self.stats.inactive_split_bytes.up(of.sort.small, bytes);
        }
        self.shelves[shelf as usize].bins.insert(&mut self.ranges.entries, id);
    }

    /// Takes a free range off its shelf.
    #[inline]
    pub(super) fn unshelve(&mut self, id: u32) -> Option<(u32, Free<MarkOf<A>>)> {
        let (bytes, segment) = (self.ranges.bytes(id), self.ranges.get(id).segment);
        let (shelf, free) = self.ranges.set_used(id)?;
        let of = self.segments.get_mut(segment as usize)?.as_mut()?;
        if shelf == HOLE {
            self.holes.retain(|hole| *hole != id);
            return Some((shelf, free));
        }
        if bytes != of.bytes {
            self.stats.inactive_split.down(of.sort.small, 1);
            self.stats.inactive_split_bytes.down(of.sort.small, bytes);
        }
        self.shelves[shelf as usize].bins.remove(&mut self.ranges.entries, id);
        Some((shelf, free))
    }

    /// The shelf of a sort and lane. An empty one serves again under another name, so that streams
    /// that come and go leave nothing behind.
    #[inline]
    pub(super) fn shelf(&mut self, sort: Sort<A::Kind>, lane: Lane) -> u32 {
        let known = |shelf: &FreeList<A::Kind>| shelf.sort == sort && shelf.lane == lane;
        if let Some(at) = self.shelves.iter().position(known) {
            return number(at);
        }
        if let Some(at) = self.shelves.iter().position(|shelf| shelf.bins.bytes() == 0) {
            (self.shelves[at].sort, self.shelves[at].lane) = (sort, lane);
            return number(at);
        }
        let bins = Bins::new(self.config.granule.trailing_zeros());
        self.shelves.push(FreeList { sort, lane, bins });
        number(self.shelves.len() - 1)
    }

    /// Free ranges of at least so many bytes.
    pub(super) fn free_from(&self, bytes: u64) -> impl Iterator<Item = (u32, u64)> {
        let heads = self.shelves.iter().flat_map(move |shelf| shelf.bins.lists(bytes));
        heads.flat_map(|head| list(&self.ranges.entries, head))
    }

    /// All free ranges, in the order of their segments and addresses.
    pub(super) fn free_ranges(&self) -> impl Iterator<Item = (u32, &Free<MarkOf<A>>)> {
        let firsts = self.segments.iter().flatten().map(|segment| segment.first);
        let ids = firsts.flat_map(|first| self.ranges.walk(first));
        ids.filter_map(|id| Some((id, self.ranges.free(id)?)))
    }
}

/// Shelves and segments are far fewer than there are numbers.
pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
