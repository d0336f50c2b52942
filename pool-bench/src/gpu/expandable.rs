//! What PyTorch's expandable segments would reserve for a trace: a simulator of its rules.
//!
//! Requests are rounded to 512 bytes. Those up to 1 MiB have a segment of addresses with memory in
//! handles of 2 MiB, larger ones one with handles of 20 MiB. A request takes the smallest free block
//! that holds it, the lowest of equals, and splits it where 512 bytes or more remain. If there is
//! none, handles are mapped behind the last block, or behind the free block at the end. Nothing is
//! unmapped (`c10/cuda/CUDACachingAllocator.cpp`: `try_allocate_expandable_block`, `should_split`).
//! One stream.

use crate::trace::{Step, Trace};
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const ROUND: u64 = 512;

/// What a replay took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    pub(crate) handles: u64,
    /// Calls that set access to newly mapped handles.
    pub(crate) growths: u64,
}

/// A segment of addresses, which begins at 0.
struct Expandable {
    handle: u64,
    /// Where memory ends.
    end: u64,
    /// Free blocks: by address, and by size.
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    taken: Taken,
}

impl Expandable {
    fn new(handle: u64) -> Self {
        let (free, by_size) = (BTreeMap::new(), BTreeSet::new());
        Self { handle, end: 0, free, by_size, taken: Taken::default() }
    }

    fn put(&mut self, at: u64, bytes: u64) {
        self.free.insert(at, bytes);
        self.by_size.insert((bytes, at));
    }

    fn remove(&mut self, at: u64) -> Option<u64> {
        let bytes = self.free.remove(&at)?;
        self.by_size.remove(&(bytes, at));
        Some(bytes)
    }

    /// Returns the address of a block.
    fn take(&mut self, bytes: u64) -> u64 {
        if self.by_size.range((bytes, 0)..).next().is_none() {
            self.grow(bytes);
        }
        let best = self.by_size.range((bytes, 0)..).next().copied();
        let Some((whole, at)) = best else { return self.end };
        self.remove(at);
        if whole > bytes {
            self.put(at + bytes, whole - bytes);
        }
        at
    }

    /// Maps handles at the end until a block of this size is free there.
    fn grow(&mut self, bytes: u64) {
        let last = self.free.last_key_value().map(|(at, bytes)| (*at, at + bytes));
        let start = last.filter(|(_, end)| *end == self.end).map_or(self.end, |(at, _)| at);
        let end = (start + bytes).next_multiple_of(self.handle);
        self.taken.bytes += end - self.end;
        self.taken.handles += (end - self.end) / self.handle;
        self.taken.growths += 1;
        let grown = (self.end, end - self.end);
        self.end = end;
        self.give(grown.0, grown.1);
    }

    /// Frees a block, which coalesces with its neighbours.
    fn give(&mut self, at: u64, bytes: u64) {
        let (mut at, mut bytes) = (at, bytes);
        let before = self.free.range(..at).next_back().map(|(at, bytes)| (*at, *bytes));
        if let Some((low, size)) = before.filter(|(low, size)| low + size == at) {
            self.remove(low);
            (at, bytes) = (low, bytes + size);
        }
        bytes += self.remove(at + bytes).unwrap_or(0);
        self.put(at, bytes);
    }
}

/// Replays a trace.
pub(crate) fn replay(trace: &Trace) -> Taken {
    let mut segments = [Expandable::new(2 * MIB), Expandable::new(20 * MIB)];
    let mut live = vec![None; trace.slots];
    for step in &trace.steps {
        match *step {
            Step::Allocate { slot, bytes, .. } => {
                let bytes = bytes.max(1).next_multiple_of(ROUND);
                let which = usize::from(bytes > MIB);
                live[slot as usize] = Some((which, segments[which].take(bytes), bytes));
            }
            Step::Free { slot, .. } => {
                if let Some((which, at, bytes)) = live[slot as usize].take() {
                    segments[which].give(at, bytes);
                }
            }
            Step::Use { .. } => {}
        }
    }
    let [small, large] = segments.map(|segment| segment.taken);
    Taken {
        bytes: small.bytes + large.bytes,
        handles: small.handles + large.handles,
        growths: small.growths + large.growths,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(steps: &[(u32, u64)]) -> Trace {
        let step = |(slot, bytes): &(u32, u64)| match *bytes {
            0 => Step::Free { slot: *slot, lane: 0 },
            bytes => Step::Allocate { slot: *slot, bytes, lane: 0 },
        };
        Trace { steps: steps.iter().map(step).collect(), slots: 8, ..Trace::default() }
    }

    #[test]
    fn a_request_grows_what_is_free_at_the_end() {
        let taken = replay(&trace(&[(0, 30 * MIB), (1, 15 * MIB)]));
        assert_eq!(taken, Taken { bytes: 60 * MIB, handles: 3, growths: 2 });
    }

    #[test]
    fn small_and_large_requests_are_apart_and_freed_neighbours_serve_again() {
        let steps = [(0, 1), (1, 21 * MIB), (2, 19 * MIB), (1, 0), (2, 0), (3, 40 * MIB)];
        assert_eq!(replay(&trace(&steps)), Taken { bytes: 42 * MIB, handles: 3, growths: 2 });
    }
}
