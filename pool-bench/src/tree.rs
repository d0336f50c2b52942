//! Exact best fit from an ordered tree, then the lowest address: the textbook's arena.

use std::collections::BTreeSet;

/// Bytes that sizes are rounded to.
pub const UNIT: u64 = 512;

/// No node.
const NONE: usize = usize::MAX;

/// A range: its bytes, and the ranges beside it.
#[derive(Debug)]
struct Node {
    offset: u64,
    bytes: u64,
    before: usize,
    after: usize,
    free: bool,
}

/// Ranges in the order of addresses, and the free ones by size.
#[derive(Debug, Default)]
pub struct Tree {
    slab: Vec<Node>,
    vacant: Vec<usize>,
    free: BTreeSet<(u64, u64, usize)>,
    last: Option<usize>,
    end: u64,
}

impl Tree {
    /// The number of a block of at least `bytes` bytes. There is always room: it grows at its end.
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> usize {
        let bytes = bytes.max(1).next_multiple_of(UNIT);
        let id = match self.free.range((bytes, 0, 0)..).next().copied() {
            Some(best) => {
                self.free.remove(&best);
                best.2
            }
            None => self.grow(bytes),
        };
        self.slab[id].free = false;
        if self.slab[id].bytes > bytes {
            self.split(id, bytes);
        }
        id
    }

    /// Takes a block back.
    #[inline]
    pub fn free(&mut self, mut id: usize) {
        let Node { before, after, .. } = self.slab[id];
        if self.slab.get(after).is_some_and(|after| after.free) {
            self.unlist(after);
            self.coalesce(id);
        }
        if self.slab.get(before).is_some_and(|before| before.free) {
            self.unlist(before);
            self.coalesce(before);
            id = before;
        }
        self.slab[id].free = true;
        self.free.insert((self.slab[id].bytes, self.slab[id].offset, id));
    }

    /// The most bytes taken from the memory below. The end only moves up: free memory at the end
    /// stays.
    #[must_use]
    pub fn reserved_peak(&self) -> u64 {
        self.end
    }

    fn add(&mut self, node: Node) -> usize {
        let Some(id) = self.vacant.pop() else {
            self.slab.push(node);
            return self.slab.len() - 1;
        };
        self.slab[id] = node;
        id
    }

    /// A range of `bytes` bytes at the end, with what is free there.
    fn grow(&mut self, bytes: u64) -> usize {
        let (before, offset) = (self.last.unwrap_or(NONE), self.end);
        if let Some(last) = self.slab.get_mut(before).filter(|last| last.free) {
            self.free.remove(&(last.bytes, last.offset, before));
            self.end = last.offset + bytes;
            last.bytes = bytes;
            return before;
        }
        let id = self.add(Node { offset, bytes, before, after: NONE, free: false });
        if let Some(before) = self.slab.get_mut(before) {
            before.after = id;
        }
        self.last = Some(id);
        self.end += bytes;
        id
    }

    /// Leaves a range `bytes` bytes; the rest is free.
    fn split(&mut self, id: usize, bytes: u64) {
        let Node { offset, bytes: whole, after, .. } = self.slab[id];
        let (offset, rest) = (offset + bytes, whole - bytes);
        let above = self.add(Node { offset, bytes: rest, before: id, after, free: true });
        (self.slab[id].bytes, self.slab[id].after) = (bytes, above);
        match self.slab.get_mut(after) {
            Some(after) => after.before = above,
            None => self.last = Some(above),
        }
        self.free.insert((rest, offset, above));
    }

    fn unlist(&mut self, id: usize) {
        self.free.remove(&(self.slab[id].bytes, self.slab[id].offset, id));
    }

    /// Merges a range with the one after it.
    fn coalesce(&mut self, id: usize) {
        let next = self.slab[id].after;
        let Node { bytes, after, .. } = self.slab[next];
        self.slab[id].bytes += bytes;
        self.slab[id].after = after;
        match self.slab.get_mut(after) {
            Some(after) => after.before = id,
            None => self.last = Some(id),
        }
        self.vacant.push(next);
    }
}
