//! Segments cut into ranges: which are free, and what lies beside what.
//!
//! Ranges live in a slab of numbered nodes, out of band. A segment is tiled by its ranges at all
//! times; each knows the one before and the one after it, so a free range finds its neighbours, and
//! becomes one with them, without a search. A number is used again with another generation, so a
//! range that was given back twice, or to the wrong arena, is noticed.
//!
//! Nothing here knows about devices; `T` is what a free range remembers.

use super::bins::{FreeLink, NONE};

/// Where a range lies, what lies beside it, and whether it is free. Half a cache line, since a free
/// and its neighbours are far apart in a large arena.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) segment: u32,
    generation: u32,
    before: u32,
    after: u32,
    /// The shelf that it lies on while it is free, or [`HOLE`]; [`USED`] while it is handed out.
    pub(crate) shelf: u32,
}

/// Handed out.
pub(crate) const USED: u32 = u32::MAX;
/// Free, with no memory behind it, and on no shelf.
pub(crate) const HOLE: u32 = u32::MAX - 1;

/// A range that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) id: u32,
    generation: u32,
}

#[derive(Debug)]
pub(crate) struct Ranges<T> {
    /// Sizes, and places in bins: what a search looks at, four to a cache line.
    pub(crate) entries: Vec<FreeLink>,
    nodes: Vec<Range>,
    /// What free ranges remember.
    notes: Vec<T>,
    vacant: Vec<u32>,
}

impl<T: Default> Ranges<T> {
    pub(crate) fn new() -> Self {
        let (entries, nodes) = (Vec::new(), Vec::new());
        Self { entries, nodes, notes: Vec::new(), vacant: Vec::new() }
    }

    /// The one range of a new segment, handed out.
    pub(crate) fn segment(&mut self, segment: u32, bytes: u64) -> u32 {
        self.add(segment, 0, bytes, NONE, NONE)
    }

    #[inline]
    fn add(&mut self, segment: u32, offset: u64, bytes: u64, before: u32, after: u32) -> u32 {
        let range = Range { segment, offset, generation: 0, before, after, shelf: USED };
        if let Some(id) = self.vacant.pop() {
            let generation = self.nodes[id as usize].generation;
            self.nodes[id as usize] = Range { generation, ..range };
            self.entries[id as usize] = FreeLink::new(bytes);
            return id;
        }
        self.nodes.push(range);
        self.entries.push(FreeLink::new(bytes));
        self.notes.push(T::default());
        u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Range {
        &self.nodes[id as usize]
    }

    /// What a free range remembers.
    pub(crate) fn free(&self, id: u32) -> Option<&T> {
        (self.get(id).shelf != USED).then(|| &self.notes[id as usize])
    }

    pub(crate) fn is_hole(&self, id: u32) -> bool {
        self.get(id).shelf == HOLE
    }

    /// Makes a range free.
    #[inline]
    pub(crate) fn set_free(&mut self, id: u32, shelf: u32, note: T) {
        self.nodes[id as usize].shelf = shelf;
        self.notes[id as usize] = note;
    }

    /// Makes a free range handed out. Returns its shelf, and what it remembered.
    #[inline]
    pub(crate) fn set_used(&mut self, id: u32) -> Option<(u32, T)> {
        let shelf = std::mem::replace(&mut self.nodes[id as usize].shelf, USED);
        (shelf != USED).then(|| (shelf, std::mem::take(&mut self.notes[id as usize])))
    }

    #[inline]
    pub(crate) fn bytes(&self, id: u32) -> u64 {
        self.entries[id as usize].bytes
    }

    pub(crate) fn ticket(&self, id: u32) -> Ticket {
        Ticket { id, generation: self.get(id).generation }
    }

    /// The range of a ticket, if it is still handed out.
    #[inline]
    pub(crate) fn redeem(&self, ticket: Ticket) -> Option<u32> {
        let range = self.nodes.get(ticket.id as usize)?;
        (range.generation == ticket.generation && range.shelf == USED).then_some(ticket.id)
    }

    /// The range of a ticket, if it is free and has memory behind it.
    pub(crate) fn redeem_free(&self, ticket: Ticket) -> Option<u32> {
        let range = self.nodes.get(ticket.id as usize)?;
        let free = range.shelf != USED && range.shelf != HOLE;
        (range.generation == ticket.generation && free).then_some(ticket.id)
    }

    /// Cuts a range in two; it keeps the first `bytes` bytes. Returns the rest, handed out as well.
    #[inline]
    pub(crate) fn cut(&mut self, id: u32, bytes: u64) -> u32 {
        let whole = std::mem::replace(&mut self.entries[id as usize].bytes, bytes);
        let Range { segment, offset, after, .. } = self.nodes[id as usize];
        let rest = self.add(segment, offset + bytes, whole - bytes, id, after);
        self.nodes[id as usize].after = rest;
        if let Some(after) = self.nodes.get_mut(after as usize) {
            after.before = rest;
        }
        rest
    }

    /// Makes a range one with the one after it, which is gone then.
    #[inline]
    pub(crate) fn join_next(&mut self, id: u32) {
        let next = self.nodes[id as usize].after;
        let (bytes, after) = (self.bytes(next), self.nodes[next as usize].after);
        self.entries[id as usize].bytes += bytes;
        self.nodes[id as usize].after = after;
        if let Some(after) = self.nodes.get_mut(after as usize) {
            after.before = id;
        }
        self.drop_range(next);
    }

    /// A segment goes: its only range with it.
    pub(crate) fn drop_range(&mut self, id: u32) {
        let range = &mut self.nodes[id as usize];
        range.generation = range.generation.wrapping_add(1);
        range.shelf = USED;
        self.entries[id as usize].bytes = 0;
        self.vacant.push(id);
    }

    /// The neighbour before a range.
    #[inline]
    pub(crate) fn before(&self, id: u32) -> Option<u32> {
        Some(self.get(id).before).filter(|before| *before != NONE)
    }

    /// The neighbour after a range.
    #[inline]
    pub(crate) fn after(&self, id: u32) -> Option<u32> {
        Some(self.get(id).after).filter(|after| *after != NONE)
    }

    /// All ranges of the segments whose first ranges are given, in the order of their addresses.
    pub(crate) fn walk(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(first).filter(|first| *first != NONE), |id| self.after(*id))
    }
}

#[cfg(test)]
mod tests;
