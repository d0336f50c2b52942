//! An arena is an allocator like any other.
#![expect(unsafe_code, reason = "a part of a block is cleared, and host memory stays host memory")]

use super::{Arena, ArenaBlock};
use crate::device::{Allocating, DeviceAllocator, MarkOf, Memory, Request, Sliceable, StreamOf};
use crate::error::{DeviceError, Why};
use crate::host_memory::HostMemory;
use crate::layer::{Layer, Terms};
use crate::order::After;
use std::ptr::NonNull;

impl<A: Sliceable> DeviceAllocator for Arena<A> {
    type Block = ArenaBlock<A>;
    type View<'b> = A::View<'b>;
    type Kind = A::Kind;
    type Clock = A::Clock;
    const MEMORY: Memory = Memory {
        free_in_drop: true,
        fresh_is_zeroed: false,
        allocating: Allocating::InOrder,
        ..A::MEMORY
    };

    #[inline]
    fn clock(&self) -> &A::Clock {
        self.upstream.clock()
    }

    fn granule(&self) -> u64 {
        self.granule
    }

    fn largest(&self) -> u64 {
        match &self.pages {
            Some(_) => u64::MAX,
            None => self.upstream.largest(),
        }
    }

    fn total_bytes(&self) -> Option<u64> {
        self.upstream.total_bytes()
    }

    /// Ranges begin at multiples of the granule, so no more than that can be had.
    fn aligned(&self, kind: A::Kind, alignment: u64) -> Result<A::Kind, DeviceError> {
        if alignment > self.alignment(kind) {
            return Err(DeviceError::new(Why::Unsupported, "alignment above the granule", 0));
        }
        // One kind for all: segments are aligned to the granule whatever is asked.
        self.upstream.aligned(kind, alignment).map(|_| kind)
    }

    fn alignment_of(&self, kind: A::Kind) -> u64 {
        self.upstream.alignment_of(kind)
    }

    fn allocate(
        &self,
        request: Request<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<ArenaBlock<A>, DeviceError> {
        let want = self.want(&request, on)?;
        match self.ready(&want, on) {
            Some(block) => Ok(block),
            None => self.climb(&want, on),
        }
    }

    #[inline]
    fn reuse(
        &self,
        request: Request<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<Option<ArenaBlock<A>>, DeviceError> {
        let want = self.want(&request, on)?;
        match self.ready(&want, on) {
            Some(block) => Ok(Some(block)),
            None => self.reuse_late(&want, on),
        }
    }

    fn layer(&self) -> Option<&dyn Layer> {
        Some(self)
    }

    fn adopt(&mut self, terms: &Terms) -> bool {
        self.ledger.lower_limit(terms.reserved_limit);
        self.steal = self.steal.min(terms.steal);
        self.retention = terms.retention;
        self.adopted = true;
        true
    }

    #[inline]
    fn free(&self, block: ArenaBlock<A>, after: &[MarkOf<A>]) -> Result<(), DeviceError> {
        let ArenaBlock { segment, ticket, arena, bytes, left_over, .. } = block;
        // The arena has it too; whoever finds the segment wholly free is to be alone with it.
        drop(segment);
        let mut space = self.space.lock();
        let since = space.turn;
        if arena != self.id || !space.give(self.clock(), ticket, After::of(after), since) {
            return Err(DeviceError::new(Why::Foreign, "free a range of another arena", 0));
        }
        space.count_in(bytes, bytes - u64::from(left_over));
        Ok(())
    }

    fn size_of(&self, block: &ArenaBlock<A>) -> Option<u64> {
        Some(block.bytes)
    }

    #[inline]
    fn view<'b>(
        &'b self,
        block: &'b ArenaBlock<A>,
        offset: u64,
        bytes: u64,
        on: &StreamOf<A>,
    ) -> A::View<'b> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= block.bytes);
        let (offset, bytes) = if inside { (offset, bytes) } else { (0, 0) };
        self.upstream.view(&block.segment, block.offset + offset, bytes, on)
    }

    fn zero(
        &self,
        block: &mut ArenaBlock<A>,
        bytes: u64,
        on: &StreamOf<A>,
    ) -> Result<(), DeviceError> {
        let part = block.offset..block.offset + bytes.min(block.bytes);
        // SAFETY: the block is borrowed alone, and ranges that are handed out do not overlap
        // (ranges.rs; checked by `tests/schedules.rs`).
        unsafe { self.upstream.zero_part(&block.segment, part, on) }
    }
}

// SAFETY: segments are host memory, so initialised; ranges that are handed out do not overlap, and
// each lies inside a segment, which lives as long as the block holds it.
unsafe impl<A: Sliceable + HostMemory> HostMemory for Arena<A> {
    #[inline]
    fn bytes(view: &A::View<'_>) -> NonNull<[u8]> {
        A::bytes(view)
    }
}
