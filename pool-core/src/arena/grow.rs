//! Growing by segments: whole blocks of the allocator below.

use super::space::{ArenaRequest, Free};
use super::{Arena, ArenaBlock};
use crate::device::{DeviceAllocator, Request, StreamOf};
use crate::error::{DeviceError, Why};

impl<A: DeviceAllocator> Arena<A> {
    /// Serves a request with memory from the device.
    #[cold]
    pub(super) fn grow(
        &self,
        want: &ArenaRequest<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<ArenaBlock<A>, DeviceError> {
        match &self.pages {
            Some(calls) => self.grow_pages(calls, want, on),
            None => self.grow_segment(want, on),
        }
    }

    fn grow_segment(
        &self,
        want: &ArenaRequest<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<ArenaBlock<A>, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "round up to a segment", 0);
        let segment = self.space.lock().config.segment_bytes(want.bytes).ok_or(too_large)?;
        self.collect_garbage(segment);
        let (block, bytes) = match self.take_segment(want, segment, on) {
            // What the device lacks for a whole segment it may have for the request alone.
            Err(error) if error.is_want_of_memory() && want.bytes < segment => {
                (self.take_segment(want, want.bytes, on)?, want.bytes)
            }
            taken => (taken?, segment),
        };
        let (clock, fresh) = (self.clock_of(), self.fresh_after(on));
        let mut space = self.space.lock();
        let since = space.turn;
        let id = space.add_segment(block, want.sort, bytes);
        space.count_segment(want.sort.small, bytes);
        if bytes > want.bytes && space.config.splits(bytes, want.bytes) {
            let rest = space.ranges.cut(id, want.bytes);
            let ticket = space.ranges.ticket(rest);
            space.give(clock, ticket, fresh.clone(), since);
        }
        let lent = space.lent(id, Free { after: fresh, since }).ok_or(too_large)?;
        space.count_out(lent.bytes.end - lent.bytes.start, want.requested);
        drop(space);
        Ok(self.block(lent, want))
    }

    fn take_segment(
        &self,
        want: &ArenaRequest<A::Kind>,
        bytes: u64,
        on: &StreamOf<A>,
    ) -> Result<A::Block, DeviceError> {
        self.ledger.reserve(bytes)?;
        // As the ranges that it is cut into are to be.
        let kind = self.upstream.aligned(want.sort.kind, self.granule);
        let request = Request { bytes, kind: kind.unwrap_or(want.sort.kind) };
        let block = self.upstream.allocate(request, on);
        let block = block.inspect_err(|_| self.ledger.cancel(bytes))?;
        self.ledger.took(bytes);
        Ok(block)
    }
}
