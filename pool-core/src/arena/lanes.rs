//! Whose free ranges are whose, and how those of several streams become one.

use super::lane::{Lane, lane_of};
use super::space::{FreeList, Segment, Space};
use crate::device::{DeviceAllocator, MarkOf};

impl<A: DeviceAllocator> Space<A> {
    /// Joins free neighbours of different lanes whose marks `may` all be waited for. Walks all
    /// ranges, so it is for the moment before a call to the device. Returns whether any were.
    pub(super) fn join_lanes(
        &mut self,
        clock: &A::Clock,
        may: impl Fn(&[MarkOf<A>]) -> bool,
    ) -> bool {
        let mut joined = false;
        self.apart = false;
        for at in 0..self.segments.len() {
            let Some(Segment { first, sort, .. }) = &self.segments[at] else { continue };
            let (mut id, sort) = (*first, *sort);
            while let Some(next) = self.ranges.after(id) {
                let fit = [id, next].into_iter().all(|id| {
                    let free = self.ranges.free(id).filter(|_| !self.ranges.is_hole(id));
                    free.is_some_and(|free| may(free.after.marks()))
                });
                if !fit {
                    let is_memory = |id| self.ranges.free(id).is_some() && !self.ranges.is_hole(id);
                    self.apart |= is_memory(id) && is_memory(next);
                    id = next;
                    continue;
                }
                let Some((_, free)) = self.unshelve(id) else { break };
                let free = self.join(clock, id, next, free);
                let shelf = self.shelf(sort, lane_of(clock, free.after.marks()));
                self.shelve(id, shelf, free);
                joined = true;
            }
        }
        joined
    }

    /// Joins the ranges of segments that are wholly free, whoever used them last: they go back to
    /// the device behind all of their marks.
    pub(super) fn join_free_segments(&mut self, clock: &A::Clock) {
        for at in 0..self.segments.len() {
            let Some(Segment { first, sort, .. }) = &self.segments[at] else { continue };
            let (first, sort) = (*first, *sort);
            let is_free = |id| self.ranges.free(id).is_some() && !self.ranges.is_hole(id);
            if self.ranges.after(first).is_none() || !self.ranges.walk(first).all(is_free) {
                continue;
            }
            let Some((_, mut free)) = self.unshelve(first) else { continue };
            while let Some(next) = self.ranges.after(first) {
                free = self.join(clock, first, next, free);
            }
            let shelf = self.shelf(sort, lane_of(clock, free.after.marks()));
            self.shelve(first, shelf, free);
        }
    }

    /// Whether other lanes than this one have free ranges.
    pub(super) fn has_other_lanes(&self, lane: u64) -> bool {
        let other = |shelf: &FreeList<A::Kind>| {
            shelf.bins.bytes() > 0 && shelf.lane != Lane::Nobody && shelf.lane != Lane::One(lane)
        };
        self.shelves.iter().any(other)
    }

    /// The free bytes of each lane.
    pub(super) fn by_lane(&self) -> Vec<(Option<u64>, u64)> {
        let mut lanes: Vec<(Option<u64>, u64)> = Vec::new();
        for shelf in self.shelves.iter().filter(|shelf| shelf.bins.bytes() > 0) {
            let name = if let Lane::One(lane) = shelf.lane { Some(lane) } else { None };
            match lanes.iter_mut().find(|(known, _)| *known == name) {
                Some((_, bytes)) => *bytes += shelf.bins.bytes(),
                None => lanes.push((name, shelf.bins.bytes())),
            }
        }
        lanes
    }
}
