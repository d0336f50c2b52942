//! Blocks of private pools: kept whole, with their records, until the graph goes.

use crate::block::flags::CLEAN;
use crate::block::record::{Record, RecordOwner};
use crate::block::request::{PoolRequest, PrivateId};
use crate::limits::InTransit;
use crate::port::{DeviceAllocator, MarkOf, StreamClock};
use crate::ranges::node::NodeState;
use crate::shard::Grant;
use crate::store::Store;
use crate::stream::LastUses;

impl<A: DeviceAllocator> Store<A> {
    /// Takes a block of the private pool that the stream is bound to: a hit in stream order.
    pub(super) fn take_private(
        &self,
        request: &PoolRequest<'_, A>,
        id: PrivateId,
    ) -> Option<Grant<A>> {
        let requester = self.requester(request);
        // What the CPU touches, it may touch only when no launch uses it.
        let is_done = |mark: &MarkOf<A>| requester.clock.is_done(*mark) == Ok(true);
        if requester.cpu_touches && !self.privates.behind(id).iter().all(is_done) {
            return None;
        }
        let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(&requester);
        let mut record = self.privates.take(id, request, ready)?;
        let at = self.shard_of(&mut record);
        let state = &mut *self.shards.lock(at);
        if let Some(part) = record.part() {
            state.ranges.nodes[part.range].state = NodeState::Live;
        }
        record.requested = request.requested;
        *record.uses_mut() = LastUses::new(requester.clock.mark(request.stream));
        state.accounts.out(record.bytes, request.requested);
        state.count_hit(request, record.is_clean(), self.bounds.statistics);
        Some(Grant { record, fresh: false })
    }

    /// Frees a block into the private pool that it belongs to, or into the shards if that is gone.
    /// Returns the shard that counts the buffer.
    #[cold]
    pub(super) fn free_private(&self, mut record: RecordOwner<A>) -> usize {
        record.flags.set(CLEAN, false); // a later launch of the graph may write it
        let _in_transit = InTransit::new(self.transit());
        let at = self.shard_of(&mut record);
        {
            let state = &mut *self.shards.lock(at);
            state.accounts.freed(record.bytes, record.requested);
            if let Some(part) = record.part() {
                state.ranges.nodes[part.range].state = NodeState::Private;
            }
        }
        match self.privates.keep(self.allocator.clock(), record) {
            Some(anybodys) => self.give_back_in_drop(self.free_shared(anybodys, false)),
            None => self.shards.lock(at).not_kept += 1,
        }
        at
    }

    /// Frees the blocks that lay in a private pool which is gone. All of them are free memory
    /// before the device is called, so a panic of the device loses one block at most.
    pub(crate) fn free_private_blocks(
        &self,
        records: Vec<RecordOwner<A>>,
        in_transit: InTransit<'_>,
    ) {
        let freed: Vec<_> =
            records.into_iter().map(|record| self.free_shared(record, false)).collect();
        drop(in_transit);
        for freed in freed {
            self.give_back_in_drop(freed);
        }
    }
}
