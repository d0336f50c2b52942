//! Loose ranges: free ranges that are not coalesced with their neighbours yet.
//!
//! Programs ask for the same sizes again and again. A range that is freed therefore stays as it is
//! for the next request of its size, which splits nothing then. It is free memory as any other: in a
//! list, counted, and found by each search. Loose ranges are coalesced when a request finds nothing,
//! when many requests in a row have split others, and before memory is taken from the device or goes
//! back to it (deferred coalescing: Wilson, Johnstone, Neely and Boles, IWMM 1995, section 3.4).

use crate::port::StreamClock;
use crate::ranges::Ranges;
use crate::ranges::list::UsedBy;
use crate::ranges::node::NodeState;
use crate::stream::Pending;

/// Loose ranges at most, all of which are coalesced under one lock.
const LOOSE_MOST: usize = 128;
/// Requests that are served by ranges of other sizes while some are loose.
pub(super) const MISFITS_MOST: u32 = 64;

/// The ranges of a shard that may be loose.
#[derive(Debug, Default)]
pub(crate) struct Loose {
    /// Their numbers, as their nodes say. A number stays here when its range is taken.
    ids: Vec<u32>,
    /// Requests that were served by a range of another size since ranges were coalesced last.
    misfits: u32,
}

#[cfg(feature = "check")]
impl Loose {
    /// Their numbers, in order.
    pub(super) fn numbers(&self) -> std::collections::BTreeSet<u32> {
        self.ids.iter().copied().collect()
    }
}

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// Puts a range that is in no list among the free ones of its stream, or of no stream, and
    /// leaves its neighbours as they are.
    pub(super) fn put_loose(
        &mut self,
        clock: &C,
        id: u32,
        (used_by, marks): (UsedBy, Pending<C::Mark>),
        freed_at: u64,
    ) {
        let node = &mut self.nodes[id];
        (node.marks, node.freed_at) = (marks, freed_at);
        let (bytes, at) = (node.bytes, node.segment);
        self.count_cached(bytes);
        let Some(segment) = self.segments.get_mut(at) else { return };
        segment.used -= 1;
        let group = segment.group;
        let list = self.lists.number(group, used_by);
        self.nodes[id].state = NodeState::Free(list);
        self.insert(list, id);
        self.note_loose(id);
        if self.loose.ids.len() >= LOOSE_MOST {
            self.coalesce_loose(clock);
        }
    }

    /// Notes that a range may have a free neighbour.
    #[inline]
    pub(super) fn note_loose(&mut self, id: u32) {
        if !std::mem::replace(&mut self.nodes[id].loose, true) {
            self.loose.ids.push(id);
        }
    }

    /// Whether a range of the stream serves a request of `bytes` bytes, although it is none of the
    /// size while some are loose.
    #[inline]
    pub(super) fn may_misfit(&mut self, id: u32, bytes: u64) -> bool {
        if self.loose.ids.is_empty() || self.nodes[id].bytes == bytes {
            return true;
        }
        self.loose.misfits += 1;
        self.loose.misfits < MISFITS_MOST
    }

    /// Coalesces all loose ranges. Returns whether there were any.
    #[inline]
    pub(crate) fn coalesce_loose(&mut self, clock: &C) -> bool {
        let any = !self.loose.ids.is_empty();
        if any {
            self.coalesce_each(clock);
        }
        any
    }

    #[inline(never)]
    fn coalesce_each(&mut self, clock: &C) {
        self.loose.misfits = 0;
        // A range that takes in a loose one is loose.
        while let Some(id) = self.loose.ids.pop() {
            self.nodes[id].loose = false;
            let Some(list) = self.list_of(id) else { continue };
            let used_by = self.lists.get(list).used_by;
            if matches!(used_by, UsedBy::NoStream | UsedBy::Stream(_)) {
                let taken = self.take_low(id, list, self.nodes[id].bytes);
                self.put_free(clock, taken, used_by);
            }
        }
    }
}
