//! Memory that is lent: the accounts, and the record.

use crate::block::flags::{CLEAN, PLAIN};
use crate::block::record::{Part, Place, Record, RecordOwner};
use crate::block::request::{Key, PoolRequest};
use crate::port::{DeviceAllocator, MarkOf, StreamClock, StreamOf};
use crate::ranges::plain::Served;
use crate::shard::State;
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

impl<A: DeviceAllocator> State<A> {
    /// Serves a request from the free whole block of its size and stream that came last, if that is
    /// plain, and counts it as lent: the hit of a request.
    #[expect(clippy::inline_always, reason = "a hit is one function: no calls and no spills")]
    #[inline(always)]
    pub(crate) fn take_plain(
        &mut self,
        key: Key<A::Kind>,
        (bytes, requested): (u64, u64),
        (clock, on): (&A::Clock, &StreamOf<A>),
    ) -> Option<RecordOwner<A>> {
        let ready = |record: &mut Record<A>| record.is_plain_and_ready(PLAIN, clock, on);
        let record = self.blocks.take_top(key, bytes, ready)?;
        self.turn += 1;
        self.accounts.out_whole(bytes, requested);
        Some(record)
    }

    /// As [`State::take_plain`], for a request whose memory is zeroed: the block may be zeroed already.
    /// Returns whether it is.
    pub(crate) fn take_to_zero(
        &mut self,
        key: Key<A::Kind>,
        (bytes, requested): (u64, u64),
        (clock, on): (&A::Clock, &StreamOf<A>),
        statistics: bool,
    ) -> Option<(RecordOwner<A>, bool)> {
        let ready = |record: &mut Record<A>| record.is_plain_and_ready(CLEAN, clock, on);
        let mut record = self.blocks.take_top(key, bytes, ready)?;
        self.turn += 1;
        self.accounts.out_whole(bytes, requested);
        let clean = record.is_clean();
        self.untouched_hits += u64::from(clean && statistics);
        record.flags.set(CLEAN, false); // the program may write it
        Some((record, clean))
    }

    /// Serves a request from the free whole block of its size and stream that came last, or a few
    /// below it, and counts it as lent.
    pub(crate) fn take_hit(
        &mut self,
        key: Key<A::Kind>,
        (bytes, requested): (u64, u64),
        requester: &Requester<'_, A::Clock>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        let now = requester.clock.mark(requester.on);
        let ready = |record: &mut Record<A>| {
            let marks = record.marks.get_mut();
            (!requester.cpu_touches && marks.are_all_on(requester.clock, now))
                || marks.is_ready(requester)
        };
        let record = self.blocks.take(key, bytes, ready)?;
        self.turn += 1;
        self.accounts.out_whole(bytes, requested);
        if statistics && record.is_clean() {
            self.untouched_hits += 1;
        }
        Some(record)
    }

    /// Serves a request from a free whole block of its stream, or of no stream, that is ready
    /// without a call to the device, and counts it as lent.
    #[inline]
    pub(crate) fn take_block(
        &mut self,
        request: &PoolRequest<'_, A>,
        requester: &Requester<'_, A::Clock>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        let (bytes, up_to) = (request.class.bytes, request.class.max_block_bytes);
        let sizes = (bytes, request.requested);
        let record = self.take_hit(request.key, sizes, requester, statistics);
        if record.is_some() || up_to == bytes {
            return record;
        }
        let sizes = bytes..=up_to;
        self.take_in_range(request.key, &sizes, request.requested, requester, statistics)
    }

    /// Serves a request from the smallest free whole block of its stream that has one of these sizes.
    pub(crate) fn take_in_range(
        &mut self,
        key: Key<A::Kind>,
        sizes: &RangeInclusive<u64>,
        requested: u64,
        requester: &Requester<'_, A::Clock>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        let ready = |record: &mut Record<A>| record.marks.get_mut().is_ready(requester);
        let record = self.blocks.take_in_range(key, sizes, ready)?;
        self.count_out(record.bytes, requested);
        if statistics && record.is_clean() {
            self.untouched_hits += 1;
        }
        Some(record)
    }

    /// Counts a free whole block as lent.
    #[inline]
    pub(crate) fn lend_block(
        &mut self,
        record: RecordOwner<A>,
        request: &PoolRequest<'_, A>,
        statistics: bool,
    ) -> RecordOwner<A> {
        self.count_out(record.bytes, request.requested);
        self.count_hit(request, record.is_clean(), statistics);
        record
    }

    /// Counts a block that a buffer has from now on.
    #[inline]
    pub(crate) fn count_out(&mut self, bytes: u64, requested: u64) {
        self.turn += 1;
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
        let (bytes, unzeroed, offset) = (node.bytes, node.unzeroed, node.offset);
        let part = Part::new(self.segment_of(id)?, offset, (id, self.number));
        self.ranges.count_out(bytes);
        self.count_out(bytes, request.requested);
        let mut record = Record::new(Place::Part(part), bytes, request, mark);
        record.flags.set(CLEAN, !unzeroed);
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
        let Served { id, bytes, offset, segment, unzeroed } = *served;
        let segment = self.segments.get(segment as usize)?.as_ref()?;
        let part = Part::new(segment, offset, (id, self.number));
        self.ranges.count_out(bytes);
        self.count_out(bytes, requested);
        if statistics && !unzeroed {
            self.untouched_hits += 1;
        }
        let slot = self.slots.slot(id);
        // SAFETY: as in `lend_range`.
        Some(unsafe {
            RecordOwner::plain_in_slot(slot, part, (bytes, requested), kind, mark, store)
        })
    }

    /// Lends a live range that was free memory.
    #[inline]
    pub(crate) fn lend_free_range(
        &mut self,
        id: u32,
        request: &PoolRequest<'_, A>,
        mark: MarkOf<A>,
        statistics: bool,
    ) -> Option<RecordOwner<A>> {
        let record = self.lend_range(id, request, mark)?;
        self.count_hit(request, record.is_clean(), statistics);
        Some(record)
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
