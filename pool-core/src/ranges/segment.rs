//! Segments: blocks of the device that are divided into ranges.

use crate::ranges::backing::Commits;
use crate::ranges::list::Group;
use crate::ranges::node::{NONE, number};

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
