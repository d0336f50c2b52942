//! The rules of `PyTorch`'s CUDA caching allocator (`CUDACachingAllocator.cpp`, 2.11), for one
//! stream and without a limit: two pools, segments of 2 MiB, of 20 MiB or of the request, split and
//! coalesced, best fit by size and then by address.

use super::{Region, Reserved};
use crate::tree::UNIT;
use std::collections::BTreeSet;

/// Requests up to this many bytes are small.
const SMALL: u64 = 1 << 20;
/// Segments of small requests.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Below this a large request has a segment of [`LARGE_SEGMENT`].
const LARGE: u64 = 10 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
/// Above it a segment is the request, rounded to this.
const ROUND_LARGE: u64 = 2 << 20;
/// No block.
const NONE: usize = usize::MAX;

struct TorchBlock {
    at: u64,
    bytes: u64,
    before: usize,
    after: usize,
    free: bool,
    small: bool,
}

/// Blocks, and the free ones of each pool by size and address.
#[derive(Default)]
pub(super) struct Torch {
    blocks: Vec<TorchBlock>,
    vacant: Vec<usize>,
    small: BTreeSet<(u64, u64, usize)>,
    large: BTreeSet<(u64, u64, usize)>,
    reserved: u64,
}

impl Torch {
    fn pool(&mut self, small: bool) -> &mut BTreeSet<(u64, u64, usize)> {
        if small { &mut self.small } else { &mut self.large }
    }

    fn add(&mut self, block: TorchBlock) -> usize {
        let Some(id) = self.vacant.pop() else {
            self.blocks.push(block);
            return self.blocks.len() - 1;
        };
        self.blocks[id] = block;
        id
    }

    fn segment(&mut self, bytes: u64, small: bool) -> usize {
        let bytes = match bytes {
            _ if small => SMALL_SEGMENT,
            bytes if bytes < LARGE => LARGE_SEGMENT,
            bytes => bytes.next_multiple_of(ROUND_LARGE),
        };
        let at = self.reserved;
        self.reserved += bytes;
        self.add(TorchBlock { at, bytes, before: NONE, after: NONE, free: false, small })
    }

    fn list(&mut self, id: usize) {
        let TorchBlock { at, bytes, small, .. } = self.blocks[id];
        self.blocks[id].free = true;
        self.pool(small).insert((bytes, at, id));
    }

    /// Merges a block with a free neighbour that comes after it.
    fn coalesce(&mut self, id: usize, next: usize) {
        let TorchBlock { at, bytes, after, small, .. } = self.blocks[next];
        if self.blocks[next].free {
            self.pool(small).remove(&(bytes, at, next));
        }
        self.blocks[id].bytes += bytes;
        self.blocks[id].after = after;
        if let Some(after) = self.blocks.get_mut(after) {
            after.before = id;
        }
        self.vacant.push(next);
    }
}

impl Region for Torch {
    type Block = usize;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<usize> {
        let bytes = bytes.max(1).next_multiple_of(UNIT);
        let small = bytes <= SMALL;
        let best = self.pool(small).range((bytes, 0, 0)..).next().copied();
        let id = match best {
            Some(best) => {
                self.pool(small).remove(&best);
                best.2
            }
            None => self.segment(bytes, small),
        };
        self.blocks[id].free = false;
        let rest = self.blocks[id].bytes - bytes;
        if (small && rest >= UNIT) || rest > SMALL {
            let TorchBlock { at, after, .. } = self.blocks[id];
            let above =
                TorchBlock { at: at + bytes, bytes: rest, before: id, after, free: true, small };
            let above = self.add(above);
            (self.blocks[id].bytes, self.blocks[id].after) = (bytes, above);
            if let Some(after) = self.blocks.get_mut(after) {
                after.before = above;
            }
            self.list(above);
        }
        Some(id)
    }

    #[inline]
    fn free(&mut self, mut id: usize) {
        let TorchBlock { before, after, .. } = self.blocks[id];
        if self.blocks.get(after).is_some_and(|after| after.free) {
            self.coalesce(id, after);
        }
        if let Some(lower) = self.blocks.get(before).filter(|before| before.free) {
            let key = (lower.bytes, lower.at, before);
            let small = lower.small;
            self.pool(small).remove(&key);
            self.coalesce(before, id);
            id = before;
        }
        self.list(id);
    }
}

impl Reserved for Torch {
    fn reserved_peak(&self) -> u64 {
        self.reserved
    }
}
