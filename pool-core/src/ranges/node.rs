//! The ranges of all segments: each knows its size, its neighbours by address and its state.
//!
//! A number names a node, by its place in one vector; a vacant number serves again.

use crate::by_size::{Entries, SizeKey, SizeLinks};
use crate::stream::Pending;
use std::ops::{Index, IndexMut, Range};

pub(crate) use crate::by_size::NONE;

/// What a range is to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// The number names no range.
    Vacant,
    /// A buffer has it.
    Live,
    /// A cached block of a private pool.
    Private,
    /// Free, in the list of this number.
    Free(u16),
    /// In no list, for a device call without the lock; as a hole it has no memory.
    Out { hole: bool },
}

/// A range of a segment.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct RangeNode<M> {
    pub(crate) bytes: u64,
    /// Bytes from the start of the segment.
    pub(crate) offset: u64,
    /// The neighbours by address, or [`NONE`].
    pub(crate) before: u32,
    pub(crate) after: u32,
    /// Its links among the free ranges of a list.
    pub(crate) links: SizeLinks,
    pub(crate) segment: u32,
    /// Segments that the shard had before that of the range.
    pub(crate) born: u32,
    pub(crate) state: NodeState,
    /// Whether the contents may be other than zeroes.
    pub(crate) dirty: bool,
    /// Allocations so far when the larger part of the range was freed.
    pub(crate) freed_at: u64,
    /// The marks that a new owner must be ordered after, while the range is not live.
    pub(crate) marks: Pending<M>,
}

impl<M> RangeNode<M> {
    /// Its place in the order of free ranges.
    #[inline]
    pub(crate) fn key(&self) -> SizeKey {
        SizeKey { bytes: self.bytes, born: self.born, offset: self.offset }
    }

    /// Its bytes in its segment.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }
}

/// All nodes of a shard.
#[derive(Debug)]
pub(crate) struct Nodes<M> {
    all: Vec<RangeNode<M>>,
    /// The first vacant number; the next is its `older`.
    vacant: u32,
    #[cfg(all(feature = "check", debug_assertions))]
    pub(super) visits: super::visits::Visits,
}

impl<M: Clone> Nodes<M> {
    pub(crate) fn new() -> Self {
        Self {
            all: Vec::new(),
            vacant: NONE,
            #[cfg(all(feature = "check", debug_assertions))]
            visits: super::visits::Visits::default(),
        }
    }

    /// Returns the number of a new live range.
    #[inline]
    pub(crate) fn add(
        &mut self,
        segment: u32,
        place: (u64, u64),
        (before, after): (u32, u32),
    ) -> u32 {
        let id = self.vacant();
        let node = &mut self[id];
        let next = node.links.older;
        (node.offset, node.bytes) = place;
        (node.before, node.after) = (before, after);
        node.segment = segment;
        (node.state, node.dirty, node.freed_at) = (NodeState::Live, false, 0);
        self.vacant = next;
        id
    }

    /// The first vacant number, and the next one.
    #[inline]
    pub(super) fn next_vacant(&mut self) -> (u32, u32) {
        let id = self.vacant();
        (id, self[id].links.older)
    }

    /// Sets the first vacant number: the one before it names a range now.
    #[inline]
    pub(super) fn set_vacant(&mut self, id: u32) {
        self.vacant = id;
    }

    /// The first vacant number; there is one then.
    #[inline]
    fn vacant(&mut self) -> u32 {
        if self.vacant == NONE {
            self.grow();
        }
        self.vacant
    }

    /// Adds a vacant node.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.vacant = number(self.all.len());
        self.all.push(RangeNode {
            bytes: 0,
            offset: 0,
            before: NONE,
            after: NONE,
            links: SizeLinks::NONE,
            segment: NONE,
            born: 0,
            state: NodeState::Vacant,
            dirty: false,
            freed_at: 0,
            marks: Pending::Nothing,
        });
    }

    /// Makes a number vacant.
    #[inline]
    pub(crate) fn remove(&mut self, id: u32) {
        let vacant = self.vacant;
        let node = &mut self[id];
        node.state = NodeState::Vacant;
        node.links.older = vacant;
        node.marks = Pending::Nothing;
        self.vacant = id;
    }

    /// The state of a neighbour; `None` past the end of a segment.
    #[inline]
    pub(crate) fn state(&self, id: u32) -> Option<NodeState> {
        (id != NONE).then(|| self[id].state)
    }

    /// Splits the low `bytes` bytes off a range. They become a new live range, whose number is
    /// returned; the rest keeps its number, its state and its marks.
    #[inline]
    pub(crate) fn split_low(&mut self, id: u32, bytes: u64) -> u32 {
        let low = self.vacant();
        let rest = &mut self[id];
        let RangeNode { segment, born, offset, before, dirty, freed_at, .. } = *rest;
        (rest.offset, rest.bytes, rest.before) = (offset + bytes, rest.bytes - bytes, low);
        let marks = rest.marks.clone();
        let node = &mut self[low];
        let next = node.links.older;
        (node.offset, node.bytes, node.before, node.after) = (offset, bytes, before, id);
        (node.segment, node.born, node.state) = (segment, born, NodeState::Live);
        (node.dirty, node.freed_at, node.marks) = (dirty, freed_at, marks);
        self.vacant = next;
        if before != NONE {
            self[before].after = low;
        }
        low
    }

    /// Takes a neighbour by address into a range, and makes its number vacant. The age is that of
    /// the larger of the two. `join` gets the marks of both.
    #[inline]
    pub(crate) fn absorb(
        &mut self,
        into: u32,
        from: u32,
        join: impl FnOnce(&mut Pending<M>, Pending<M>),
    ) {
        let vacant = std::mem::replace(&mut self.vacant, from);
        let absorbed = &mut self[from];
        let RangeNode { bytes, offset, before, after, dirty, freed_at, .. } = *absorbed;
        let marks = std::mem::take(&mut absorbed.marks);
        (absorbed.state, absorbed.links.older) = (NodeState::Vacant, vacant);
        let node = &mut self[into];
        join(&mut node.marks, marks);
        node.dirty |= dirty;
        if bytes > node.bytes {
            node.freed_at = freed_at;
        }
        node.bytes += bytes;
        if offset < node.offset {
            (node.offset, node.before) = (offset, before);
            if before != NONE {
                self[before].after = into;
            }
        } else {
            node.after = after;
            if after != NONE {
                self[after].before = into;
            }
        }
    }

    /// The ranges from `first` on, in the order of their addresses.
    pub(crate) fn walk(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |id: u32| (id != NONE).then_some(id);
        std::iter::successors(some(first), move |id| some(self[*id].after))
    }

    /// The vacant numbers from one on.
    #[cfg(feature = "check")]
    pub(crate) fn list(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |id: u32| (id != NONE).then_some(id);
        std::iter::successors(some(head), move |id| some(self[*id].links.older))
    }

    /// How many numbers are vacant.
    #[cfg(feature = "check")]
    pub(crate) fn count_vacant(&self) -> u32 {
        number(self.list(self.vacant).count())
    }

    /// Numbers below this were in use at some time.
    pub(crate) fn len(&self) -> u32 {
        number(self.all.len())
    }
}

impl<M: Clone> Entries for Nodes<M> {
    #[inline]
    fn key(&self, id: u32) -> SizeKey {
        self[id].key()
    }
    #[inline]
    fn links(&self, id: u32) -> SizeLinks {
        self[id].links
    }
    #[inline]
    fn links_mut(&mut self, id: u32) -> &mut SizeLinks {
        &mut self[id].links
    }
}

impl<M> Index<u32> for Nodes<M> {
    type Output = RangeNode<M>;
    #[inline]
    fn index(&self, id: u32) -> &RangeNode<M> {
        #[cfg(all(feature = "check", debug_assertions))]
        self.visits.count();
        &self.all[id as usize]
    }
}

impl<M> IndexMut<u32> for Nodes<M> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut RangeNode<M> {
        #[cfg(all(feature = "check", debug_assertions))]
        self.visits.count();
        &mut self.all[id as usize]
    }
}

/// An index as a number of a node. There are fewer than 2^32 of them.
pub(crate) fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}
