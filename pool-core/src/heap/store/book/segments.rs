//! Growth by segments: whole blocks of the device, which the book splits.

use crate::heap::block::record::SegmentBlock;
use crate::heap::block::request::PoolRequest;
use crate::heap::book::list::Group;
use crate::heap::store::book::BookState;
use crate::heap::store::{Grant, Store};
use crate::limits::InTransit;
use crate::port::{DeviceAllocator, DeviceError, Request, Why};

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request with memory from the device.
    #[cold]
    pub(crate) fn grow(&self, request: &PoolRequest<'_, A>) -> Result<Grant<A>, DeviceError> {
        let id = self.grow_range(request)?;
        let nothing = DeviceError::new(Why::Other, "no segment of a range");
        let mut state = self.book.lock();
        let lent = state.lend(id, request, self.allocator.clock()).ok_or(nothing)?;
        state.count_miss(request, self.bounds.statistics);
        self.book.show_turn(state.book.turn);
        Ok(Grant { fresh: true, ..lent.grant(request) })
    }

    /// A live range of memory from the device, which is not lent yet.
    pub(super) fn grow_range(&self, request: &PoolRequest<'_, A>) -> Result<u32, DeviceError> {
        let bytes = self.book.bytes_to_grow(request.class.bytes);
        if !self.ledger.could_hold(bytes) {
            // Refused before anything is given back for it, unless a closure of the budget raises
            // the limit at this.
            drop(self.ledger.reserve(bytes)?);
        }
        match &self.book.pages {
            Some(pages) => self.grow_pages(pages, request),
            None => self.grow_segment(request),
        }
    }

    fn grow_segment(&self, request: &PoolRequest<'_, A>) -> Result<u32, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "round up to a segment");
        let book_request = self.book.book_request(request);
        let segment =
            self.book.lock().book.config.segment_bytes(book_request.bytes).ok_or(too_large)?;
        self.collect_garbage(segment);
        // Its bytes are reserved before its ranges are in the book.
        let _in_transit = InTransit::new(self.transit());
        let (block, bytes) = match self.allocate_segment(request, segment) {
            // What the device lacks for a whole segment it may have for the request alone.
            Err(error) if error.is_out_of_memory() && book_request.bytes < segment => {
                (self.allocate_segment(request, book_request.bytes)?, book_request.bytes)
            }
            taken => (taken?, segment),
        };
        let rest = self.fresh_marks(request.on);
        let mut state = self.book.lock();
        let id = state.add_segment(SegmentBlock::new(block), book_request.group, bytes);
        state.book.nodes[id].unzeroed = !A::MEMORY.fresh_is_zeroed;
        state.calls.segment.up(book_request.group.small, 1);
        state.calls.reserved_bytes.up(book_request.group.small, bytes);
        state.calls.num_device_alloc += 1;
        Ok(state.book.split_live(self.allocator.clock(), id, book_request.bytes, rest))
    }

    fn allocate_segment(
        &self,
        request: &PoolRequest<'_, A>,
        bytes: u64,
    ) -> Result<A::Block, DeviceError> {
        let mut reservation = self.ledger.reserve(bytes)?;
        // The segment has the alignment that its ranges promise.
        let aligned = || self.allocator.aligned(request.key.kind, self.book.alignment).ok();
        let kind = if self.book.is_blocks() { None } else { aligned() };
        let upstream = Request { bytes, kind: kind.unwrap_or(request.key.kind) };
        let block = self.allocator.allocate(upstream, request.on)?;
        reservation.note_allocated(bytes);
        Ok(block)
    }
}

impl<A: DeviceAllocator> BookState<A> {
    /// Adds a segment whose only range is live. Returns that range.
    pub(super) fn add_segment(
        &mut self,
        block: SegmentBlock<A>,
        group: Group<A::Kind>,
        bytes: u64,
    ) -> u32 {
        let id = self.book.add_segment(group, bytes);
        let at = self.book.nodes[id].segment as usize;
        if self.blocks.len() <= at {
            self.blocks.resize_with(at + 1, || None);
        }
        self.blocks[at] = Some(block);
        id
    }
}
