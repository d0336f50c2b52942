//! Segments: blocks of the device that are divided into ranges; what lies behind their addresses, and which parts of
//! that can go back.

use crate::ranges::list::Group;
use crate::ranges::node::{NONE, number};
use std::collections::BTreeMap;
use std::ops::Range;

/// A block of the device, or a reservation of its addresses.
#[derive(Debug)]
pub(crate) struct Segment<K> {
    pub(crate) group: Group<K>,
    pub(crate) bytes: u64,
    /// Its lowest range.
    pub(crate) first: u32,
    /// Segments that the shard had before it.
    pub(crate) born: u32,
    /// Ranges of it that are not in a free list. At 0 it can go back to the device.
    pub(crate) used: u32,
    /// Where what one call committed goes back whole.
    pub(crate) commits: Commits,
}

/// All segments of a shard, by number.
#[derive(Debug)]
pub(crate) struct Segments<K> {
    all: Vec<Option<Segment<K>>>,
    vacant: Vec<u32>,
    born: u32,
}

impl<K> Segments<K> {
    pub(crate) fn new() -> Self {
        Self { all: Vec::new(), vacant: Vec::new(), born: 0 }
    }

    /// Adds a segment without ranges. Returns its number.
    pub(crate) fn add(&mut self, group: Group<K>, bytes: u64) -> u32 {
        let (first, commits) = (NONE, Commits::default());
        let segment = Segment { group, bytes, first, born: self.born, used: 0, commits };
        self.born = self.born.wrapping_add(1);
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.all.push(None);
            number(self.all.len() - 1)
        });
        self.all[at as usize] = Some(segment);
        at
    }

    /// Removes a segment. Its number serves again.
    pub(crate) fn remove(&mut self, at: u32) -> Option<Segment<K>> {
        let segment = self.all.get_mut(at as usize).and_then(Option::take);
        invariant!(segment.is_some(), "each range has a segment");
        self.vacant.extend(segment.is_some().then_some(at));
        segment
    }

    /// Numbers below this were in use at some time.
    pub(crate) fn len(&self) -> u32 {
        number(self.all.len())
    }

    /// The segment of a range. There is one.
    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&Segment<K>> {
        let segment = self.find(at);
        invariant!(segment.is_some(), "each range has a segment");
        segment
    }

    /// As [`Segments::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut Segment<K>> {
        let segment = self.all.get_mut(at as usize).and_then(Option::as_mut);
        invariant!(segment.is_some(), "each range has a segment");
        segment
    }

    /// The segment of a number, if it is in use.
    #[inline]
    pub(crate) fn find(&self, at: u32) -> Option<&Segment<K>> {
        self.all.get(at as usize)?.as_ref()
    }

    /// All segments with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Segment<K>)> {
        let numbered = self.all.iter().enumerate();
        numbered.filter_map(|(at, segment)| Some((number(at), segment.as_ref()?)))
    }
}

/// What lies behind the addresses of all segments of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A segment is one block of the device, which goes back whole.
    Block,
    /// Pages of this many bytes, each of which goes back alone.
    Pages(u64),
    /// Pages of this many bytes; what one call committed goes back whole.
    Commits(u64),
}

impl Backing {
    /// The bytes that memory is committed in multiples of.
    #[inline]
    pub(crate) fn page(self) -> u64 {
        match self {
            Self::Block => 1,
            Self::Pages(page) | Self::Commits(page) => page,
        }
    }
}

/// The parts of a segment that one call each committed: where each begins and ends. Nothing where
/// pages go back alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commits(BTreeMap<u64, u64>);

impl Commits {
    pub(crate) fn add(&mut self, part: Range<u64>) {
        self.0.insert(part.start, part.end);
    }

    /// Removes what begins in a range.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        while let Some(at) = self.0.range(range.clone()).next().map(|(at, _)| *at) {
            self.0.remove(&at);
        }
    }

    /// The part that a byte lies in; empty if nothing is behind it.
    pub(crate) fn around(&self, at: u64) -> Range<u64> {
        let last = self.0.range(..=at).next_back();
        last.filter(|(_, end)| **end > at).map_or(at..at, |(start, end)| *start..*end)
    }

    /// Of a range that has memory behind all of it: what whole parts cover.
    pub(crate) fn whole(&self, range: &Range<u64>) -> Range<u64> {
        let start = self.0.range(range.start..).next().map_or(range.end, |(at, _)| *at);
        let last = self.around(range.end);
        // A part that goes beyond the end stays.
        let end = if last.start < range.end { last.start } else { range.end };
        start..end.max(start)
    }

    /// All parts, by address.
    #[cfg(feature = "check")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod backing_tests {
    use super::*;

    #[test]
    fn whole_parts_are_those_that_begin_and_end_inside() {
        let mut commits = Commits::default();
        for part in [10..20, 20..50, 50..60] {
            commits.add(part);
        }
        let whole = |range: Range<u64>| commits.whole(&range);
        assert_eq!(whole(10..60), 10..60);
        assert_eq!(whole(11..60), 20..60);
        assert_eq!(whole(10..59), 10..50);
        assert_eq!(whole(20..50), 20..50);
        assert!(whole(21..49).is_empty() && whole(12..18).is_empty() && whole(11..30).is_empty());
        assert_eq!((commits.around(19), commits.around(20)), (10..20, 20..50));
        assert_eq!((commits.around(5), commits.around(60)), (5..5, 60..60));
    }

    #[test]
    fn what_begins_in_a_range_is_removed() {
        let mut commits = Commits::default();
        for part in [10..20, 20..50, 50..60] {
            commits.add(part);
        }
        commits.remove(&(20..60));
        assert_eq!((commits.around(15), commits.around(25)), (10..20, 25..25));
    }
}
