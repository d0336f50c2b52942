//! The invariants of segments and ranges, asserted range by range.
#![expect(clippy::panic, clippy::expect_used, reason = "a check panics at what it finds")]

use crate::port::StreamClock;
use crate::ranges::Ranges;
use crate::ranges::list::UsedBy;
use crate::ranges::node::NodeState;
use crate::ranges::segment::Backing;
use crate::ranges::segment::Segment;
use std::collections::BTreeMap;

/// Bytes by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BytesByState {
    pub(crate) live: u64,
    pub(crate) live_ranges: u64,
    pub(crate) private: u64,
    pub(crate) free: u64,
    pub(crate) free_ranges: u64,
    pub(crate) holes: u64,
    pub(crate) moving: u64,
}

impl<C: StreamClock, K: Copy + Eq + Default> Ranges<C, K> {
    /// Asserts invariants 1 to 4 and 6 of decision 027. Returns the bytes of each state.
    pub(crate) fn check(&self, clock: &C) -> BytesByState {
        let mut bytes = BytesByState::default();
        let mut in_lists: BTreeMap<u16, u64> = BTreeMap::new();
        let mut ranges = 0;
        for (at, segment) in self.segments.iter() {
            let (mut end, mut used, mut last, mut before) = (0, 0, None, super::node::NONE);
            for id in self.nodes.walk(segment.first) {
                let node = &self.nodes[id];
                assert_eq!((node.segment, node.offset), (at, end), "range {id}: no gap");
                assert_eq!(node.before, before, "range {id}: the one before it");
                before = id;
                ranges += 1;
                assert!(node.bytes > 0, "range {id} is empty");
                end += node.bytes;
                let list = match node.state {
                    NodeState::Free(list) => Some(list),
                    _ => None,
                };
                used += u32::from(list.is_none());
                match node.state {
                    NodeState::Live => {
                        bytes.live += node.bytes;
                        bytes.live_ranges += 1;
                    }
                    NodeState::Private => bytes.private += node.bytes,
                    NodeState::Free(list) => {
                        *in_lists.entry(list).or_default() += node.bytes;
                        self.check_free(clock, id, (list, last), &mut bytes);
                    }
                    NodeState::Out { .. } => bytes.moving += node.bytes,
                    NodeState::Vacant => panic!("range {id} is vacant"),
                }
                last = list;
            }
            assert_eq!((end, used), (segment.bytes, segment.used), "segment {at}");
            self.check_commits(segment);
        }
        for (at, list) in (0..).zip(self.lists.iter()) {
            assert_eq!(list.bins.bytes(), in_lists.remove(&at).unwrap_or(0), "list {at}");
            assert_eq!(list.bins.bytes(), self.bytes_in_steps(at), "list {at}");
        }
        assert_eq!(bytes.live + bytes.private, self.used);
        assert_eq!(bytes.free, self.cached);
        assert_eq!(ranges + self.nodes.count_vacant(), self.nodes.len(), "a number is lost");
        bytes
    }

    /// Asserts that each byte of a segment that is no hole lies in one commit, and no other does.
    /// What is `Out` may be either.
    fn check_commits(&self, segment: &Segment<K>) {
        let mut last = 0;
        for part in segment.commits.iter() {
            assert!(last <= part.start && part.start < part.end, "commits overlap at {part:?}");
            last = part.end;
        }
        for id in self.nodes.walk(segment.first) {
            let (place, node) = (self.nodes[id].range(), &self.nodes[id]);
            if matches!(node.state, NodeState::Out { .. }) {
                continue;
            }
            let has_memory = matches!(self.backing, Backing::Commits(_)) && !self.is_hole(id);
            let mut at = place.start;
            while has_memory && at < place.end {
                let part = segment.commits.around(at);
                assert!(!part.is_empty(), "range {id} has no memory at {at}");
                at = part.end;
            }
            let begins = segment.commits.iter().any(|part| place.contains(&part.start));
            assert!(has_memory || !begins, "the hole {id} has memory");
        }
    }

    /// Asserts that a free range is in the list of its group and streams, and is coalesced with the
    /// one before it, which is in list `last`.
    fn check_free(
        &self,
        clock: &C,
        id: u32,
        (list, last): (u16, Option<u16>),
        bytes: &mut BytesByState,
    ) {
        let (node, of) = (&self.nodes[id], self.lists.get(list));
        let segment = self.segments.get(node.segment).expect("a range has a segment");
        assert!(of.group == segment.group, "range {id} in a list of another group");
        let used_by = self.used_by(clock, id, list);
        let before = || &self.nodes[node.before].marks;
        let is_alone = |before_in: u16| self.used_by(clock, node.before, before_in) != used_by;
        let alone = last.is_none_or(is_alone) || of.used_by == UsedBy::Several;
        let apart = alone || !before().may_coalesce(clock, &node.marks);
        assert!(apart, "range {id} and the one before it are not coalesced");
        if of.used_by == UsedBy::Hole {
            bytes.holes += node.bytes;
            return;
        }
        bytes.free += node.bytes;
        bytes.free_ranges += 1;
        let of_marks = UsedBy::of_marks(clock, node.marks.marks());
        assert_eq!(used_by, of_marks, "range {id}");
        let fits = of.used_by == of_marks || of.used_by == of_marks.in_common();
        assert!(fits, "range {id} of {of_marks:?} is in the list of {:?}", of.used_by);
    }

    /// The bytes that are found step by step, each range in the step of its size.
    fn bytes_in_steps(&self, at: u16) -> u64 {
        let (bins, mut last, mut sum) = (&self.lists.get(at).bins, None, 0);
        for id in bins.ascending(&self.nodes, 0) {
            let node = &self.nodes[id];
            assert_eq!(node.state, NodeState::Free(at), "range {id}");
            let step = bins.step(node.bytes);
            assert!(bins.finds(id, step), "step {step} has range {id} and no bit");
            if self.config.is_ordered() {
                let key = node.key();
                assert!(last.is_none_or(|last| last < key), "range {id} is out of order");
                last = Some(key);
            }
            sum += node.bytes;
        }
        sum
    }
}
