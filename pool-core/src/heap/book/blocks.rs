//! Blocks that are lent whole, in a pool without an arena: each is the only range of its segment.

use crate::heap::book::Book;
use crate::heap::book::list::{Group, RangeList, UsedBy};
use crate::heap::book::node::State;
use crate::heap::book::segment::BookSegment;
use crate::heap::book::tree::RangeKey;
use crate::port::StreamClock;
use crate::stream::Pending;
use std::collections::HashMap;

impl<C: StreamClock, K: Copy + Eq + Default> Book<C, K> {
    /// Makes a live block one that goes back to the device, behind `marks`.
    pub(crate) fn defer_live(&mut self, id: u32, marks: Pending<C::Mark>) {
        let node = &mut self.nodes[id];
        (node.marks, node.freed_at) = (marks, self.turn);
        let (segment, bytes) = (node.segment, node.bytes);
        self.used -= bytes;
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.used -= 1;
        }
        self.defer(id);
    }

    /// Makes a free block one that goes back to the device.
    pub(crate) fn defer_cached(&mut self, id: u32) {
        if let Some(list) = self.list_of(id) {
            self.remove(list, id);
            self.cached -= self.nodes[id].bytes;
            self.defer(id);
        }
    }

    fn defer(&mut self, id: u32) {
        self.nodes[id].state = State::Deferred;
        self.deferred_bytes += self.nodes[id].bytes;
        self.deferred.push(id);
    }

    /// Bytes of the free blocks that came first, of a bounded number.
    pub(crate) fn bytes_of_oldest(&self, count: usize) -> u64 {
        self.ages.iter(&self.nodes).take(count).map(|id| self.nodes[id].bytes).sum()
    }

    /// The free block that has been in the book for longest.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.ages.oldest()
    }

    /// Counts free blocks by size from now on, for [`Book::count_of`]. Call it on an empty book.
    pub(crate) fn count_sizes(&mut self) {
        self.counts = Some(HashMap::new());
    }

    /// Notes a free block that comes into a list.
    pub(super) fn insert_block(&mut self, list: u16, id: u32) {
        self.ages.add(&mut self.nodes, id);
        if let Some(counts) = &mut self.counts {
            *counts.entry((self.nodes[id].bytes, list)).or_default() += 1;
        }
    }

    /// Notes a free block that leaves its list.
    pub(super) fn remove_block(&mut self, list: u16, id: u32) {
        self.ages.remove(&mut self.nodes, id);
        let Some(counts) = &mut self.counts else { return };
        let size = (self.nodes[id].bytes, list);
        if let Some(count) = counts.get_mut(&size) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&size);
            }
        }
    }

    /// How many free blocks there are of a size and kind that a stream used last, or no stream or
    /// several did; and the one of them that came first.
    pub(crate) fn count_of(&self, (kind, stream): (K, u64), bytes: u64) -> (usize, Option<u32>) {
        let group = Group { kind, small: false };
        let users = [UsedBy::Stream(stream), UsedBy::NoStream, UsedBy::Several];
        let is = |list: &RangeList<K>| list.group == group && users.contains(&list.used_by);
        let (mut count, mut oldest): (usize, Option<u32>) = (0, None);
        for (at, list) in (0..).zip(self.lists.iter()).filter(|(_, list)| is(list)) {
            let counts = self.counts.as_ref();
            count += counts.and_then(|counts| counts.get(&(bytes, at))).copied().unwrap_or(0);
            let first = list.bins.first_from(&self.nodes, RangeKey::least(bytes));
            let first = first.filter(|id| self.nodes[*id].bytes == bytes);
            oldest =
                [oldest, first].into_iter().flatten().min_by_key(|id| self.nodes[*id].freed_nth);
        }
        (count, oldest)
    }

    /// Removes the last block that goes back to the device. Returns its segment, and what it is
    /// behind.
    pub(crate) fn pop_deferred(
        &mut self,
        goes: impl FnMut(&Pending<C::Mark>) -> bool,
    ) -> Option<(u32, BookSegment<K>, Pending<C::Mark>)> {
        let mut goes = goes;
        let at = self.deferred.iter().rposition(|id| goes(&self.nodes[*id].marks))?;
        let id = self.deferred.swap_remove(at);
        let bytes = self.nodes[id].bytes;
        self.deferred_bytes -= bytes;
        let number = self.nodes[id].segment;
        let marks = std::mem::take(&mut self.nodes[id].marks);
        self.nodes.remove(id);
        Some((number, self.segments.remove(number)?, marks))
    }

    /// Removes the segment that a live block is all of. Returns it with its number.
    pub(crate) fn remove_live(&mut self, id: u32) -> Option<(u32, BookSegment<K>)> {
        let (number, bytes) = (self.nodes[id].segment, self.nodes[id].bytes);
        self.used -= bytes;
        self.nodes.remove(id);
        Some((number, self.segments.remove(number)?))
    }
}
