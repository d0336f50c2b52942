//! Which free range serves a request: a few looks into the lists that a bitmap names.

use super::bins::list;
use super::lane::Lane;
use super::space::{ArenaRequest, Space};
use crate::device::DeviceAllocator;
use crate::order::Taker;

/// Ranges that a search turns down before it gives up.
const TURNED_DOWN: usize = 256;

impl<A: DeviceAllocator> Space<A> {
    /// A free range that serves as it is, without an order to make: of the taker's own lane or
    /// untouched, else of other lanes.
    #[inline]
    pub(super) fn ready(
        &self,
        want: &ArenaRequest<A::Kind>,
        taker: &Taker<'_, A::Clock>,
    ) -> Option<u32> {
        let own = |lane| lane == Lane::Nobody || lane == Lane::One(want.lane);
        // Streams of one lane need not be ordered after each other: open scopes of wgpu are not.
        self.best(want, own, |id| self.is_ready(id, taker))
            .or_else(|| self.best(want, |lane| !own(lane), |id| self.is_ready(id, taker)))
    }

    /// The smallest range on the shelves of `lanes` that suits and that `accept` takes.
    #[inline]
    pub(super) fn best(
        &self,
        want: &ArenaRequest<A::Kind>,
        lanes: impl Fn(Lane) -> bool,
        accept: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        self.best_of(want, lanes, accept, TURNED_DOWN)
    }

    /// The same, with a bound on how many are turned down before the search ends.
    #[inline]
    pub(super) fn best_of(
        &self,
        want: &ArenaRequest<A::Kind>,
        lanes: impl Fn(Lane) -> bool,
        accept: impl Fn(u32) -> bool,
        patience: usize,
    ) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        let mut patience = patience;
        for shelf in self.shelves.iter().filter(|shelf| shelf.sort == want.sort) {
            if shelf.bins.bytes() < want.bytes || !lanes(shelf.lane) {
                continue;
            }
            for head in shelf.bins.lists(want.bytes) {
                let found = self.best_in(want, head, &accept, &mut patience);
                let better = found.filter(|found| best.is_none_or(|b| self.is_better(*found, b)));
                best = better.or(best);
                if found.is_some() || patience == 0 {
                    break;
                }
            }
        }
        best.map(|(_, id)| id)
    }

    /// The best of one list, as far as it is looked at.
    #[inline]
    fn best_in(
        &self,
        want: &ArenaRequest<A::Kind>,
        head: u32,
        accept: &impl Fn(u32) -> bool,
        patience: &mut usize,
    ) -> Option<(u64, u32)> {
        let mut best = None;
        let looked_at = if *patience == usize::MAX { usize::MAX } else { self.config.looked_at };
        let fits = |bytes: u64| bytes >= want.bytes && self.config.suits(bytes, want.bytes);
        let ranges = list(&self.ranges.entries, head).take(looked_at);
        for (id, bytes) in ranges.filter(|(_, bytes)| fits(*bytes)) {
            if best.is_some_and(|best| !self.is_better((bytes, id), best)) {
                continue;
            }
            if accept(id) {
                best = Some((bytes, id));
            } else if *patience < usize::MAX {
                *patience -= 1;
                if *patience == 0 {
                    break;
                }
            }
        }
        best
    }

    /// Where all ranges of a size are looked at, ties go to the oldest segment and then to the
    /// lowest address; else to the range that came free last.
    #[inline]
    fn is_better(&self, (bytes, id): (u64, u32), (than, other): (u64, u32)) -> bool {
        if bytes != than || self.config.looked_at != usize::MAX {
            return bytes < than;
        }
        let place = |id| {
            let range = self.ranges.get(id);
            let born = self.segment(range.segment).map_or(0, |segment| segment.born);
            (born, range.offset)
        };
        place(id) < place(other)
    }
}
