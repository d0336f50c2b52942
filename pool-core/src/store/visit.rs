//! All memory of a pool, one block or range after the other: what figures, maps and errors are made of. Read in
//! portions, so it is exact when no thread is inside the pool.

use crate::block::record::Record;
use crate::port::{DeviceAllocator, StreamClock};
use crate::ranges::node::NodeState as Node;
use crate::shard::{Heap, MAX_NODES};
use crate::store::Store;
use crate::store::device::id_of;
use std::collections::BTreeMap;
use std::ops::Range;

/// What memory is to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    Used,
    /// Kept for a graph.
    Private,
    Free,
    /// On its way: a block whose free is deferred, or a range that is in no list.
    Going,
    /// Addresses without memory.
    Hole,
}

/// What a range is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    /// A whole block, by the number of its record.
    Block(u64),
    /// A segment of a shard, by their numbers, and whether it is for small requests.
    Segment { shard: usize, number: u32, small: bool },
}

/// A whole block, or a range of a segment.
pub(super) struct Seen<'s, C: StreamClock> {
    pub(super) of: Of,
    /// Bytes from the start of the segment.
    pub(super) range: Range<u64>,
    /// Whether it is not all of its segment.
    pub(super) is_part: bool,
    pub(super) is: Is,
    /// What a new owner must be ordered after, of what is free.
    pub(super) after: &'s [C::Mark],
    /// Allocations since it was freed.
    pub(super) age: u64,
    /// The number of its buffer in events, if it has one.
    pub(super) id: u64,
}

impl<C: StreamClock> Seen<'_, C> {
    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn block(id: u64, bytes: u64, is: Is) -> Self {
        let of = Of::Block(id);
        Self { of, range: 0..bytes, is_part: false, is, after: &[], age: 0, id }
    }
}

/// Calls `look` with all memory: free whole blocks, those of private pools, those in use, and the ranges of each
/// shard, a portion of them under the lock at a time.
pub(super) fn each<A: DeviceAllocator>(
    store: &Store<A>,
    mut look: impl FnMut(&Seen<'_, A::Clock>),
) {
    let mut used: BTreeMap<u64, u64> = store.owned.lock().iter().collect();
    let mut free = Vec::new();
    for at in 0..store.shards.count() {
        let heap = store.shards.lock(at);
        let mut see = |record: &Record<A>, is| {
            let id = id_of(record);
            free.push(id);
            let after = record.marks.lock().pending(A::MEMORY.cpu_touches);
            let age = heap.time.saturating_sub(record.freed_at);
            look(&Seen { after: after.marks(), age, ..Seen::block(id, record.bytes, is) });
        };
        heap.blocks.iter().for_each(|record| see(record, Is::Free));
        heap.deferred.iter().for_each(|record| see(record, Is::Going));
    }
    for id in free {
        used.remove(&id); // not under the lock of a shard
    }
    store.privates.each(|record| {
        if let Some(bytes) = used.remove(&id_of(record)) {
            look(&Seen::block(id_of(record), bytes, Is::Private));
        }
    });
    for (id, bytes) in used {
        look(&Seen::block(id, bytes, Is::Used));
    }
    for at in 0..store.shards.count() {
        let mut from = 0;
        loop {
            let heap = store.shards.lock(at);
            let end = heap.ranges.nodes.len().min(from + MAX_NODES);
            for id in (from..end).filter(|id| heap.ranges.nodes[*id].state != Node::Vacant) {
                see_range(&heap, id, &mut look);
            }
            if end <= from {
                break;
            }
            from = end;
        }
    }
}

fn see_range<A: DeviceAllocator>(
    heap: &Heap<A>,
    id: u32,
    look: &mut impl FnMut(&Seen<'_, A::Clock>),
) {
    let node = &heap.ranges.nodes[id];
    let is = match node.state {
        Node::Live => Is::Used,
        Node::Private => Is::Private,
        Node::Out { hole: true } => Is::Hole,
        _ if heap.ranges.is_hole(id) => Is::Hole,
        Node::Free(_) => Is::Free,
        Node::Out { hole: false } | Node::Vacant => Is::Going,
    };
    let Some(segment) = heap.ranges.segments.get(node.segment) else { return };
    let (shard, small) = (heap.number as usize, segment.group.small);
    look(&Seen {
        of: Of::Segment { shard, number: node.segment, small },
        range: node.range(),
        is_part: segment.bytes != node.bytes,
        is,
        after: node.marks.marks(),
        age: heap.time.saturating_sub(node.freed_at),
        id: if is == Is::Used { heap.record_address(id) } else { 0 },
    });
}
