//! Memory from the device: whole blocks, and segments that are split.

use crate::block::flags::CLEAN;
use crate::block::record::{Place, Record, RecordOwner, SegmentBlock};
use crate::block::request::PoolRequest;
use crate::limits::InTransit;
use crate::port::{Allocating, DeviceAllocator, DeviceError, Request, StreamClock, Why};
use crate::shard::Grant;
use crate::store::Store;

impl<A: DeviceAllocator> Store<A> {
    /// Serves a request with memory from the device.
    #[cold]
    pub(super) fn grow(&self, request: &PoolRequest<'_, A>) -> Result<Grant<A>, DeviceError> {
        let (clock, statistics) = (self.allocator.clock(), self.bounds.statistics);
        clock.takes_memory(request.stream)?;
        let at = self.home(request);
        if !self.shape.is_arena() {
            let record = self.new_block(request)?;
            {
                let state = &mut *self.shards.lock(at);
                state.count_out(record.bytes, request.requested);
                state.count_miss(request, statistics);
            }
            self.note_slow(at);
            return Ok(Grant { record, fresh: true });
        }
        let id = self.grow_range(at, request)?;
        let mark = clock.mark(request.stream);
        let taken = {
            let state = &mut *self.shards.lock(at);
            state.count_miss(request, statistics);
            let lent = state.lend_range(id, request, mark);
            state.publish_used(self.shards.published(at));
            lent
        };
        self.note_slow(at);
        let nothing = DeviceError::new(Why::Other, "no segment of a range");
        let mut grant = Grant::new(taken.ok_or(nothing)?, request, clock, true);
        // With pages it may be in part a range that other streams had.
        if self.shape.pages.is_none() && A::MEMORY.allocating == Allocating::AtOnce {
            grant.record.marks.get_mut().be_fresh();
        }
        Ok(grant)
    }

    /// Takes the peaks of several shards, and the time, when a slow path has lent memory.
    fn note_slow(&self, at: usize) {
        if self.shards.count() > 1 {
            self.keep_time(&mut self.shards.lock(at));
            self.watch_peaks();
        }
    }

    /// A whole block from the device, which is not counted yet.
    pub(super) fn new_block(
        &self,
        request: &PoolRequest<'_, A>,
    ) -> Result<RecordOwner<A>, DeviceError> {
        self.refuse_early(request.class.bytes)?;
        let bytes = request.class.bytes;
        let _in_transit = InTransit::new(self.transit());
        let block = self.allocate_on_device(request, bytes)?;
        let mark = self.allocator.clock().mark(request.stream);
        let mut record = Record::new(Place::Whole(block), bytes, request, mark);
        record.store = self.own_address();
        record.flags.set(CLEAN, A::MEMORY.fresh_is_zeroed);
        if A::MEMORY.allocating == Allocating::AtOnce {
            record.marks.get_mut().be_fresh();
        }
        let record = RecordOwner::boxed(record);
        self.owned.lock().add(&record);
        self.note_owned(request.key.kind, bytes);
        self.count_allocation(false, bytes);
        Ok(record)
    }

    /// A live range of memory from the device, in a shard, which is not lent yet.
    pub(super) fn grow_range(
        &self,
        at: usize,
        request: &PoolRequest<'_, A>,
    ) -> Result<u32, DeviceError> {
        self.refuse_early(self.shape.bytes_to_grow(request.class.bytes))?;
        match &self.shape.pages {
            Some(pages) => self.grow_pages(at, pages, request),
            None => self.grow_segment(at, request),
        }
    }

    /// Refuses a request that the limits cannot hold before anything is given back for it, unless a
    /// closure of the budget raises the limit at this.
    fn refuse_early(&self, bytes: u64) -> Result<(), DeviceError> {
        if !self.ledger.could_hold(bytes) {
            drop(self.ledger.reserve(bytes)?);
        }
        Ok(())
    }

    fn grow_segment(&self, at: usize, request: &PoolRequest<'_, A>) -> Result<u32, DeviceError> {
        let too_large = DeviceError::new(Why::TooLarge, "round up to a segment");
        let wanted = self.shape.range_request(request);
        let arena = self.shape.arena.as_ref().ok_or(too_large)?;
        let segment = arena.segment_bytes(wanted.bytes).ok_or(too_large)?;
        self.collect_garbage(segment);
        if A::MEMORY.is_cheap && !self.may_take_segment(at, segment) {
            self.note_arena_needs(segment);
        }
        // Its bytes are reserved before its ranges are in the shard.
        let _in_transit = InTransit::new(self.transit());
        let (block, bytes) = match self.allocate_on_device(request, segment) {
            // What the device lacks for a whole segment it may have for the request alone.
            Err(error) if error.is_out_of_memory() && wanted.bytes < segment => {
                (self.allocate_on_device(request, wanted.bytes)?, wanted.bytes)
            }
            taken => (taken?, segment),
        };
        self.count_allocation(wanted.group.small, bytes);
        let rest = self.fresh_marks(request.on);
        let state = &mut *self.shards.lock(at);
        let id = state.add_segment(SegmentBlock::new(block), wanted.group, bytes);
        state.ranges.nodes[id].unzeroed = !A::MEMORY.fresh_is_zeroed;
        let (clock, turn) = (self.allocator.clock(), state.turn);
        Ok(state.ranges.split_live(clock, id, wanted.bytes, (rest, turn)))
    }

    fn count_allocation(&self, small: bool, bytes: u64) {
        let calls = &mut *self.calls.lock();
        calls.segment.up(small, 1);
        calls.reserved_bytes.up(small, bytes);
        calls.num_device_alloc += 1;
    }

    fn allocate_on_device(
        &self,
        request: &PoolRequest<'_, A>,
        bytes: u64,
    ) -> Result<A::Block, DeviceError> {
        let mut reservation = self.ledger.reserve(bytes)?;
        // The segment has the alignment that its ranges promise.
        let aligned = || self.allocator.aligned(request.key.kind, self.shape.alignment).ok();
        let kind = if self.shape.is_arena() { aligned() } else { None };
        let upstream = Request { bytes, kind: kind.unwrap_or(request.key.kind) };
        let block = self.allocator.allocate(upstream, request.on)?;
        reservation.note_allocated(bytes);
        Ok(block)
    }
}
