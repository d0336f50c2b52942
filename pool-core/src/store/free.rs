//! Frees that are not a push under one lock: what passes a limit goes back to the device.

use crate::block::flags::CLEAN;
use crate::block::record::RecordOwner;
use crate::limits::{GivenBack, InTransit};
use crate::observe::Reason;
use crate::port::{DeviceAllocator, DeviceError, MarkOf, StreamClock};
use crate::shard::{MarkedBlock, Removed, State};
use crate::store::Store;
use crate::sys::LockGuard;

/// Deferred frees of a shard that a miss asks about.
const ASKED: usize = 8;

/// A live block that went: the shard that counts its buffer, the memory, and a note that it is on its
/// way.
type Gone<'s, A> = (usize, Option<Removed<A>>, InTransit<'s>);

/// The shard that a free block belongs in, locked.
pub(super) struct Room<'s, A: DeviceAllocator> {
    pub(super) at: usize,
    pub(super) state: LockGuard<'s, State<A>>,
    /// The cached limit in bytes.
    pub(super) limit: u64,
    /// Blocks of some shard were evicted for the block.
    pub(super) evicted: bool,
}

/// Where a block was freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freed {
    pub(super) at: usize,
    /// The segment that it is a part of.
    pub(super) segment: Option<u32>,
    /// Blocks of other shards were evicted for it.
    pub(super) evicted: bool,
}

impl<A: DeviceAllocator> Store<A> {
    /// Frees a block, but for the buffer, which the caller counts as freed when the call has ended.
    /// Returns the shard that counts it.
    pub(crate) fn free(&self, mut record: RecordOwner<A>, zeroed: bool) -> usize {
        if record.private().is_some() {
            return self.free_private(record);
        }
        record.flags.set(CLEAN, zeroed);
        let freed = self.free_shared(record, true);
        self.give_back_in_drop(freed);
        freed.at
    }

    /// Frees a block that is no private pool's. `counts`: a buffer had it.
    pub(super) fn free_shared(&self, mut record: RecordOwner<A>, counts: bool) -> Freed {
        let (bytes, requested) = (record.bytes, record.requested);
        let clock = self.allocator.clock();
        let Room { at, mut state, limit, evicted } = self.lock_with_room(&mut record);
        let state = &mut *state;
        if counts {
            state.accounts.freed(bytes, requested);
        }
        record.freed_at = self.time_of(state);
        let Some(part) = record.part() else {
            let key = State::key_of(clock, &mut record);
            let stays = state.keep_or_defer(key, record, limit, &self.bounds.keeping);
            state.not_kept += u64::from(counts && !stays);
            return Freed { at, segment: None, evicted };
        };
        let segment = Some(state.ranges.nodes[part.range].segment);
        state.free_range(clock, record);
        state.publish_used(self.shards.published(at));
        Freed { at, segment, evicted }
    }

    /// Locks the shard that a free block belongs in, with room for it under the limits of the cache if
    /// there is any.
    pub(super) fn lock_with_room(&self, record: &mut RecordOwner<A>) -> Room<'_, A> {
        let mut evicted = false;
        loop {
            let limit = self.read_limit();
            let at = self.shard_of(record);
            evicted |= self.make_place(at, record, limit) | self.make_lease(at, record, limit);
            let state = self.shards.lock(at);
            if state.epoch == limit.epoch {
                return Room { at, state, limit: limit.bytes, evicted };
            }
        }
    }

    /// The shard that a block is freed into: that of its last use, or of its segment.
    #[inline]
    pub(super) fn shard_of(&self, record: &mut RecordOwner<A>) -> usize {
        if let Some(part) = record.part() {
            return part.shard as usize;
        }
        let key = State::key_of(self.allocator.clock(), record);
        self.shards.home(&key)
    }

    /// After a free: gives back what passes the limits, if a drop may.
    pub(super) fn give_back_in_drop(&self, Freed { at, segment, evicted }: Freed) {
        let (deferred, closed) = {
            let state = self.shards.lock(at);
            (!state.deferred.is_empty(), state.closed)
        };
        if !A::MEMORY.free_in_drop && !closed {
            return;
        }
        // What the device refuses is counted as lost, or stays free memory.
        if evicted {
            let _ = self.free_deferred();
        } else if deferred {
            let _ = self.free_deferred_of(at, true);
        }
        if self.shape.is_arena() && (closed || !self.is_unlimited()) {
            let _ = self.give_back_excess(at, segment);
        }
    }

    /// Executes the deferred frees of all shards.
    pub(crate) fn free_deferred(&self) -> GivenBack {
        let (mut given_back, mut refusal) = (0, None);
        for at in 0..self.shards.count() {
            let (went, refused) = self.free_deferred_of(at, true);
            given_back += went;
            refusal = refusal.or(refused);
        }
        (given_back, refusal)
    }

    /// Executes the deferred frees that wait for no work: those that were seen done, or that queries
    /// about the first few find done. Of the shards but `home`, those in which a thread is when
    /// they are looked at are left to a later call.
    pub(super) fn free_deferred_done(&self, home: usize) -> GivenBack {
        let clock = self.allocator.clock();
        let (mut given_back, mut refusal) = (0, None);
        for at in 0..self.shards.count() {
            let Some(asked) = self.marks_of_deferred(at, home) else { continue };
            for mark in asked.into_iter().filter(|mark| clock.is_submitted(*mark)) {
                // What a query finds done is seen done from then on. A refusal says nothing of it.
                let _ = clock.is_done(mark);
            }
            let (went, refused) = self.free_deferred_of(at, false);
            given_back += went;
            refusal = refusal.or(refused);
        }
        (given_back, refusal)
    }

    /// The marks of the first few deferred frees of a shard. `None` if it has none, and if a thread is
    /// in a shard that is not `home`.
    fn marks_of_deferred(&self, at: usize, home: usize) -> Option<Vec<MarkOf<A>>> {
        let mut state = self.shards.lock_for(at, Some(home))?;
        let mut asked = Vec::new();
        for record in state.deferred.iter_mut().take(ASKED) {
            record.marks.get_mut().all_are(|mark| {
                asked.push(mark);
                true
            });
        }
        (!state.deferred.is_empty()).then_some(asked)
    }

    /// Executes the deferred frees of a shard; without `wait`, those alone whose work was seen done.
    /// What is behind work that is not submitted waits for a later call, unless it may be freed
    /// anywhere, or the pool is closed.
    pub(super) fn free_deferred_of(&self, at: usize, wait: bool) -> GivenBack {
        let (mut given_back, mut refusal, clock) = (0, None, self.allocator.clock());
        loop {
            let (removed, _in_transit) = {
                let state = &mut *self.shards.lock(at);
                let any = A::MEMORY.free_in_drop || state.closed;
                let goes = |record: &mut RecordOwner<A>| {
                    let may = |mark| clock.is_submitted(mark) && (wait || clock.is_seen_done(mark));
                    any || record.marks.get_mut().all_are(may)
                };
                let Some(record) = state.pop_deferred(goes) else { break };
                (self.remove(state, record), InTransit::new(self.transit()))
            };
            let Some(removed) = removed else { continue };
            let (went, refused) = self.free_on_device(at, removed, Some(Reason::Bound));
            given_back += went;
            refusal = refusal.or(refused);
        }
        (given_back, refusal)
    }

    /// Takes a whole block out of the pool's hands, under the lock of a shard.
    pub(super) fn remove(
        &self,
        state: &mut State<A>,
        record: RecordOwner<A>,
    ) -> Option<Removed<A>> {
        self.owned.lock().remove(&record);
        self.note_gone(record.kind, record.bytes);
        state.remove_block(record)
    }

    /// Frees memory that was taken out of a shard. `reason`: why it was evicted, if it was.
    pub(super) fn free_on_device(
        &self,
        at: usize,
        removed: Removed<A>,
        reason: Option<Reason>,
    ) -> GivenBack {
        let Removed { block, bytes, small, after } = removed;
        let waits = !self.is_seen_done(after.marks());
        let freed = self.allocator.free(block, after.marks());
        {
            let calls = &mut *self.calls.lock();
            calls.num_sync_all_streams += u64::from(waits);
            if let Err(error) = freed
                && !error.is_end_of_device()
            {
                return (0, Some(error)); // the device still has it, so it stays reserved and lost
            }
            calls.segment.down(small, 1);
            calls.reserved_bytes.down(small, bytes);
            calls.num_device_free += 1;
        }
        self.shards.lock(at).counts.lost_bytes -= bytes;
        self.ledger.note_freed(bytes);
        if let Some(reason) = reason {
            self.notify_eviction(reason, bytes);
        }
        (if freed.is_ok() { bytes } else { 0 }, freed.err())
    }

    /// Bytes that the device did not take back; none while a thread has memory on its way, in any
    /// pool of the budget, which counts as lost for as long.
    pub(crate) fn lost_bytes(&self) -> u64 {
        let lost = (0..self.shards.count()).map(|at| self.shards.lock(at).counts.lost_bytes).sum();
        if self.transit().has_pieces() { 0 } else { lost }
    }

    /// Frees a detached whole block on the device now. Returns its refusal, and the shard that
    /// counts the buffer.
    pub(crate) fn free_detached(&self, record: RecordOwner<A>) -> (usize, Option<DeviceError>) {
        let (at, removed, _in_transit) = self.remove_live(record);
        let refusal =
            removed.and_then(|removed| self.free_on_device(at, removed, Some(Reason::Bound)).1);
        (at, refusal)
    }

    /// A detached block leaves the pool's figures for good, not by way of the device. Returns it with
    /// what it is behind, and the shard that counts the buffer.
    pub(crate) fn take_raw(&self, record: RecordOwner<A>) -> (usize, Option<MarkedBlock<A>>) {
        let (at, removed, _in_transit) = self.remove_live(record);
        let Some(Removed { block, bytes, after, .. }) = removed else { return (at, None) };
        self.shards.lock(at).counts.lost_bytes -= bytes;
        self.ledger.note_freed(bytes);
        (at, Some((block, after.marks().to_vec())))
    }

    /// Takes a live whole block out of the pool's hands.
    fn remove_live(&self, mut record: RecordOwner<A>) -> Gone<'_, A> {
        let at = self.shard_of(&mut record);
        let state = &mut *self.shards.lock(at);
        state.accounts.freed(record.bytes, record.requested);
        state.not_kept += 1;
        (at, self.remove(state, record), InTransit::new(self.transit()))
    }
}
