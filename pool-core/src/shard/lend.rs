//! Memory that is lent: the accounts, and the record.

use crate::block::flags::CLEAN;
use crate::block::record::{Part, Place, Record, RecordOwner};
use crate::block::{Key, PoolRequest};
use crate::port::{DeviceAllocator, MarkOf, StreamClock};
use crate::ranges::plain::Served;
use crate::shard::Heap;
use crate::stream::Requester;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

/// A block that serves a request.
pub(crate) struct Grant<A: DeviceAllocator> {
    pub(crate) record: RecordOwner<A>,
    /// Whether the block is fresh from the device.
    pub(crate) fresh: bool,
}

impl<A: DeviceAllocator> Grant<A> {
    /// Grants a block that is counted as lent. Call it after the last device call for a request,
    /// since the record gets the mark that its stream has reached.
    #[inline]
    pub(crate) fn new(
        mut record: RecordOwner<A>,
        request: &PoolRequest<'_, A>,
        clock: &A::Clock,
        fresh: bool,
    ) -> Self {
        record.requested = request.requested;
        record.uses_mut().restart(clock.mark(request.stream));
        Self { record, fresh }
    }
}

impl<A: DeviceAllocator> Heap<A> {
    /// Serves a request from the free whole block of its size and stream that came last, or a few
    /// below it, else from the smallest of its stream that has one of these sizes; it is ready without a
    /// call to the device. Counts it as lent.
    pub(crate) fn lend_block(
        &mut self,
        key: Key<A::Kind>,
        sizes: RangeInclusive<u64>,
        requested: u64,
        requester: &Requester<'_, A::Clock>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        let (bytes, now) = (*sizes.start(), requester.clock.mark(requester.on));
        let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(requester);
        let own_or_ready = |record: &mut Record<A>| {
            let is_own =
                |record: &mut Record<A>| record.marks.get_mut().are_all_on(requester.clock, now);
            (!requester.needs_done() && is_own(record)) || ready(record)
        };
        let mut found = self.blocks.pop(key, bytes, own_or_ready);
        if found.is_none() && *sizes.end() > bytes {
            found = self.blocks.pop_in_range(key, &sizes, ready);
        }
        let record = found?;
        self.count_taken(record.bytes, requested);
        self.untouched_hits += u64::from(statistics && record.is_clean());
        Some(record)
    }

    /// As [`Heap::lend_block`], for a request.
    pub(crate) fn lend_own_block(
        &mut self,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        self.lend_block(request.key, request.sizes(), request.requested, requester, statistics)
    }

    /// Counts a block that a buffer has from now on.
    #[inline]
    pub(crate) fn count_out(&mut self, bytes: u64, requested: u64) {
        self.time += 1;
        self.accounts.out(bytes, requested);
    }

    /// Lends a live range: writes its record, as of `mark`.
    #[inline]
    pub(crate) fn lend_range(
        &mut self,
        id: u32,
        request: &PoolRequest<'_, A>,
        mark: MarkOf<A>,
    ) -> Option<RecordOwner<A>> {
        let node = &self.ranges.nodes[id];
        let (bytes, dirty, offset) = (node.bytes, node.dirty, node.offset);
        let part = Part::new(self.segment_of(id)?, offset, (id, self.number));
        self.ranges.count_out(bytes);
        self.count_out(bytes, request.requested);
        let mut record = Record::new(Place::Part(part), bytes, request, mark);
        record.flags.set(CLEAN, !dirty);
        // SAFETY: slots do not move. The range is live and was not lent before, so no code has the
        // record of its number, and none gets it before the owner frees the range.
        Some(unsafe { RecordOwner::in_slot(self.slots.slot(id), record) })
    }

    /// Lends free memory that serves a plain request, and writes its record in place. `store`: its
    /// address, and whether it counts.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn lend_served(
        &mut self,
        served: &Served,
        (kind, requested): (A::Kind, u64),
        mark: MarkOf<A>,
        (store, statistics): (Option<NonNull<()>>, bool),
    ) -> Option<RecordOwner<A>> {
        let Served { id, bytes, offset, segment, dirty } = *served;
        let segment = self.segments.get(segment as usize)?.as_ref()?;
        let part = Part::new(segment, offset, (id, self.number));
        self.ranges.count_out(bytes);
        self.count_out(bytes, requested);
        if statistics && !dirty {
            self.untouched_hits += 1;
        }
        let slot = self.slots.slot(id);
        // SAFETY: as in `lend_range`.
        Some(unsafe {
            RecordOwner::plain_in_slot(slot, part, (bytes, requested), kind, mark, store)
        })
    }

    /// Counts a request that free memory served.
    #[inline]
    pub(crate) fn count_hit(
        &mut self,
        request: &PoolRequest<'_, A>,
        zeroed: bool,
        statistics: bool,
    ) {
        // The rest follows from the accounts.
        if statistics && (zeroed || !request.class.is_cached()) {
            let pooled = request.class.is_cached();
            *(if pooled { &mut self.untouched_hits } else { &mut self.counts.bypasses }) += 1;
        }
    }

    /// Counts a request that the device served.
    pub(crate) fn count_miss(&mut self, request: &PoolRequest<'_, A>, statistics: bool) {
        if !statistics {
            return;
        }
        let counts = &mut self.counts;
        *(if request.class.is_cached() { &mut counts.misses } else { &mut counts.bypasses }) += 1;
        counts.from_device_bytes = counts.from_device_bytes.saturating_add(request.requested);
    }
}
