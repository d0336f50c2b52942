//! The calls of the allocator for whole blocks and segments, with what is counted of each; and the zeroes.
//! Pages are in `pieces.rs`. No lock of a shard is held in any of them.
#![expect(unsafe_code, reason = "parts of segments are zeroed")]

use crate::block::PoolRequest;
use crate::block::flags::CLEAN;
use crate::block::record::{Place, Record, RecordOwner};
use crate::limits::{GivenBack, InTransit};
use crate::observe::Reason;
use crate::port::{
    Allocating, DeviceAllocator, DeviceError, MarkOf, Request, StreamClock, StreamOf,
};
use crate::shard::Removed;
use crate::store::{Store, bound, pieces};
use crate::stream::Pending;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// Frees memory that was taken out of a shard. `reason`: why it was evicted, if it was.
pub(super) fn free<A: DeviceAllocator>(
    store: &Store<A>,
    at: usize,
    removed: Removed<A>,
    reason: Option<Reason>,
) -> GivenBack {
    let Removed { block, bytes, small, after } = removed;
    let waits = !pieces::is_seen_done(store, after.marks());
    let freed = store.allocator.free(block, after.marks());
    {
        let calls = &mut *store.calls.lock();
        calls.num_sync_all_streams += u64::from(waits);
        if let Err(error) = freed
            && !error.is_end_of_device()
        {
            // The device still has it, so it stays reserved and lost.
            return GivenBack { bytes: 0, refusal: Some(error) };
        }
        calls.segment.down(small, 1);
        calls.reserved_bytes.down(small, bytes);
        calls.num_device_free += 1;
    }
    store.shards.lock(at).counts.lost_bytes -= bytes;
    store.ledger.note_freed(bytes);
    if let Some(reason) = reason {
        store.notify_eviction(reason, bytes);
    }
    GivenBack { bytes: if freed.is_ok() { bytes } else { 0 }, refusal: freed.err() }
}

/// The store goes: all memory that is left goes back. A panic of the allocator keeps none of the
/// others.
pub(super) fn release_all<A: DeviceAllocator>(store: &Store<A>) {
    let mut panic = None;
    let mut call = |call: &dyn Fn() -> Result<(), DeviceError>| {
        // No caller is left to be told of a refusal.
        panic = catch_unwind(AssertUnwindSafe(call)).err().or(panic.take());
    };
    for at in 0..store.shards.count() {
        let (segments, blocks) = store.shards.lock(at).remove_all();
        for (block, marks) in segments {
            let block = Cell::new(Some(block));
            call(&|| match (block.take(), &store.layout.pages) {
                (Some(block), Some(pages)) => (pages.release)(&store.allocator, block, &marks),
                (Some(block), None) => store.allocator.free(block, &marks),
                (None, _) => Ok(()),
            });
        }
        for Removed { block, after, .. } in blocks {
            let block = Cell::new(Some(block));
            call(&|| block.take().map_or(Ok(()), |it| store.allocator.free(it, after.marks())));
        }
    }
    if let Some(panic) = panic.filter(|_| !thread::panicking()) {
        resume_unwind(panic);
    }
}

/// A whole block from the device, which is not counted yet.
pub(super) fn allocate_block<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
) -> Result<RecordOwner<A>, DeviceError> {
    refuse_early(store, request.class.bytes)?;
    let bytes = request.class.bytes;
    let _in_transit = InTransit::new(store.transit());
    let block = allocate(store, request, bytes)?;
    let mark = store.allocator.clock().mark(request.stream);
    let mut record = Record::new(Place::Whole(block), bytes, request, mark);
    record.store = store.own_address();
    record.flags.set(CLEAN, A::MEMORY.fresh_is_zeroed);
    if A::MEMORY.allocating == Allocating::AtOnce {
        record.marks.get_mut().set_fresh();
    }
    let record = RecordOwner::boxed(record);
    store.owned.lock().add(&record);
    bound::note_owned(store, request.key.kind, bytes);
    count_allocation(store, false, bytes);
    Ok(record)
}

pub(super) fn count_allocation<A: DeviceAllocator>(store: &Store<A>, small: bool, bytes: u64) {
    let calls = &mut *store.calls.lock();
    calls.segment.up(small, 1);
    calls.reserved_bytes.up(small, bytes);
    calls.num_device_alloc += 1;
}

pub(super) fn allocate<A: DeviceAllocator>(
    store: &Store<A>,
    request: &PoolRequest<'_, A>,
    bytes: u64,
) -> Result<A::Block, DeviceError> {
    let mut reservation = store.ledger.reserve(bytes)?;
    // The segment has the alignment that its ranges promise.
    let aligned = || store.allocator.aligned(request.key.kind, store.layout.alignment).ok();
    let kind = if store.layout.is_arena() { aligned() } else { None };
    let upstream = Request { bytes, kind: kind.unwrap_or(request.key.kind) };
    let block = store.allocator.allocate(upstream, request.on)?;
    reservation.note_allocated(bytes);
    Ok(block)
}

/// The bytes of each block, by the address of its record, which no other live buffer has.
#[derive(Debug, Default)]
pub(crate) struct Owned(BTreeMap<u64, u64>);

impl Owned {
    pub(crate) fn add<A: DeviceAllocator>(&mut self, record: &RecordOwner<A>) {
        self.0.insert(id_of(record), record.bytes);
    }

    pub(crate) fn remove<A: DeviceAllocator>(&mut self, record: &RecordOwner<A>) {
        let known = self.0.remove(&id_of(record));
        invariant!(
            known == Some(record.bytes),
            "a block of the device is known until it goes back"
        );
    }

    /// The number and bytes of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(id, bytes)| (*id, *bytes))
    }
}

/// The number of a record, as events have it.
pub(crate) fn id_of<A: DeviceAllocator>(record: &Record<A>) -> u64 {
    std::ptr::from_ref(record) as u64
}

/// A kind whose blocks start at multiples of `alignment` bytes as well.
pub(crate) fn aligned<A: DeviceAllocator>(
    store: &Store<A>,
    kind: A::Kind,
    alignment: u64,
) -> Result<A::Kind, DeviceError> {
    let most = i64::try_from(store.layout.alignment).unwrap_or(i64::MAX);
    let both = |refused: DeviceError| match refused.expected {
        0 => refused,
        expected => refused.expected(expected.min(most)),
    };
    let aligned = store.allocator.aligned(kind, alignment).map_err(both)?;
    DeviceError::check_alignment(alignment, store.layout.alignment)?;
    // One kind for all ranges: segments are aligned to the granule.
    Ok(if store.layout.is_arena() { kind } else { aligned })
}

/// Whether the pool's blocks have the alignment of a kind.
#[inline]
pub(crate) fn offers<A: DeviceAllocator>(store: &Store<A>, kind: A::Kind) -> bool {
    store.allocator.alignment_of(kind) <= store.layout.alignment_in_segment
}

/// Fills the first `bytes` bytes of a block with zeroes, in the order of `on`.
pub(crate) fn zero<A: DeviceAllocator>(
    store: &Store<A>,
    place: &mut Place<A>,
    bytes: u64,
    on: &StreamOf<A>,
) -> Result<(), DeviceError> {
    match (place, store.layout.zero_part) {
        (Place::Whole(block), _) => store.allocator.zero(block, bytes, on),
        (Place::Part(part), Some(zero_part)) => {
            let range = part.offset..part.offset + bytes;
            // SAFETY: the range is borrowed alone, and ranges that are lent do not overlap
            // (ranges/check.rs; `tests/pool/schedules.rs`).
            unsafe { zero_part(&store.allocator, part.segment(), range, on) }
        }
        (Place::Part(_), None) => unreachable!("only an arena has parts of segments"),
    }
}

/// The marks that guard the unused rest of fresh memory.
pub(crate) fn fresh_marks<A: DeviceAllocator>(
    store: &Store<A>,
    on: &StreamOf<A>,
) -> Pending<MarkOf<A>> {
    match A::MEMORY.allocating {
        Allocating::InOrder => Pending::One(store.allocator.clock().mark(on)),
        Allocating::AtOnce => Pending::Nothing,
    }
}

/// Refuses a request that the limits cannot hold before anything is given back for it. The attempt to reserve its
/// bytes calls the budget's functions for high water, which may raise the limit.
pub(super) fn refuse_early<A: DeviceAllocator>(
    store: &Store<A>,
    bytes: u64,
) -> Result<(), DeviceError> {
    if !store.ledger.could_hold(bytes) {
        drop(store.ledger.reserve(bytes)?);
    }
    Ok(())
}
