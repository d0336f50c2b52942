//! The last search before a refusal, and the error with the figures of that moment.

use crate::block::record::Record;
use crate::error::{AllocError, CachedOnStream, Figures, Verdict};
use crate::observe::{EventFields, Tag};
use crate::port::{DeviceAllocator, DeviceError, StreamClock, Why};
use crate::ranges::returnable;
use crate::store::{Store, figures, sums};

/// Whether the pool's own limit leaves `bytes` bytes to a request once the pool has given back what
/// it can.
pub(crate) fn could_give_back<A: DeviceAllocator>(store: &Store<A>, bytes: u64) -> bool {
    bytes <= store.ledger.limit().saturating_sub(sums::lost_bytes(store))
}

/// Whether any shard has memory that could serve a request after it went back to the device.
/// Holds all locks, so that no block can move from a shard that was looked at to one that was
/// not.
pub(super) fn has_free<A: DeviceAllocator>(store: &Store<A>) -> bool {
    let clock = store.allocator.clock();
    let goes = |record: &Record<A>| record.marks.lock().all_are(|mark| clock.is_submitted(mark));
    store.shards.lock_all().iter().any(|heap| {
        heap.blocks.iter().any(goes)
            || !heap.deferred.is_empty() && heap.deferred.iter().any(|record| goes(record))
            || returnable::has_any(&heap.ranges, clock)
    })
}

/// An error with the figures of this moment, for a call that is no search for memory.
#[cold]
pub(crate) fn error<A: DeviceAllocator>(
    store: &Store<A>,
    cause: DeviceError,
    requested_bytes: u64,
    rounded_bytes: u64,
    given_back_bytes: u64,
) -> AllocError {
    let figures = figures(store, cause, None);
    AllocError::new(Figures { requested_bytes, rounded_bytes, given_back_bytes, ..figures })
}

/// The figures of this moment, without those of a request. `stream`: the number of the stream
/// that requests memory. Cost: linear in the number of ranges; a call of the device where its
/// memory was short.
#[cold]
pub(crate) fn figures<A: DeviceAllocator>(
    store: &Store<A>,
    cause: DeviceError,
    stream: Option<u64>,
) -> Figures {
    if store.is_unusable() {
        return Figures::unknown(cause);
    }
    let (survey, in_use) = (figures::survey(store, stream), sums::in_use(store));
    let by_stream = survey.by_stream.into_iter();
    let mut cached_by_stream: Vec<_> =
        by_stream.map(|(stream_id, bytes)| CachedOnStream { stream_id, bytes }).collect();
    cached_by_stream.sort_by_key(|cached| std::cmp::Reverse(cached.bytes));
    Figures {
        cause,
        wrong_argument: None,
        requested_bytes: 0,
        rounded_bytes: 0,
        reserved_bytes: store.ledger.reserved(),
        reserved_limit_bytes: store.ledger.limit(),
        budget_reserved_bytes: store.ledger.budget.reserved_bytes(),
        budget_limit_bytes: store.ledger.budget.limit(),
        allocated_bytes: in_use.allocated,
        live_requested_bytes: in_use.requested,
        private_bytes: store.privates.all_idle_bytes(),
        lost_bytes: in_use.lost,
        device_free_bytes: match cause.why {
            Why::OutOfMemory => store.allocator.free_bytes(),
            _ => None,
        },
        cached_bytes: in_use.cached,
        pending_bytes: survey.pending,
        unsubmitted_bytes: survey.unsubmitted,
        stranded_bytes: survey.stranded,
        largest_free_bytes: survey.largest_free,
        given_back_bytes: 0,
        cached_by_stream,
        freed_while_waiting: None,
        in_pages: store.layout.has_pages(),
        verdict: Verdict::of_cause(cause),
    }
}

/// The error of a request that is refused, counted.
#[cold]
pub(crate) fn refuse<A: DeviceAllocator>(
    store: &Store<A>,
    unserved: Unserved,
    requested: u64,
    tag: Tag,
) -> AllocError {
    let Unserved { cause, given_back, rounded, stream, figures, freed_meanwhile, .. } = unserved;
    count_refusal(store, cause);
    let fields =
        EventFields { stream: stream.unwrap_or(0), requested, tag, ..EventFields::default() };
    let fields = EventFields { bytes: rounded, ..fields };
    let mut figures = *figures.unwrap_or_else(|| Box::new(self::figures(store, cause, stream)));
    (figures.requested_bytes, figures.rounded_bytes) = (requested, rounded);
    (figures.given_back_bytes, figures.freed_while_waiting) = (given_back, freed_meanwhile);
    let error = match stream {
        Some(_) => AllocError::judged(figures, cause, A::MEMORY.cpu_touches),
        None => AllocError::new(Figures { cause, ..figures }),
    };
    store.notify_refusal(fields, error.figures());
    error
}

fn count_refusal<A: DeviceAllocator>(store: &Store<A>, cause: DeviceError) {
    if store.settings.statistics && !store.is_unusable() {
        let counts = &mut store.shards.lock(0).counts;
        counts.failures += 1;
        counts.timeouts += u64::from(cause.why == Why::TimedOut);
    }
}

/// Counts a request that begins to wait.
pub(crate) fn count_wait<A: DeviceAllocator>(store: &Store<A>) {
    if store.settings.statistics && !store.is_unusable() {
        store.shards.lock(0).counts.waits += 1;
    }
}

/// Why no stage served a request.
#[derive(Debug)]
pub(crate) struct Unserved {
    pub(crate) cause: DeviceError,
    /// Bytes that went back to the device in the attempt.
    pub(crate) given_back: u64,
    /// Bytes of the block that would have served it.
    pub(crate) rounded: u64,
    /// The number of the stream, for a request that was searched for.
    pub(crate) stream: Option<u64>,
    /// The figures of the pool at the search that failed, for a request that lacked memory.
    pub(crate) figures: Option<Box<Figures>>,
    /// How much other threads had given back before that search.
    pub(crate) returned: Option<u64>,
    /// Buffers that were freed while it waited; `None` if it did not wait.
    pub(crate) freed_meanwhile: Option<u64>,
}

impl Unserved {
    /// A request that is refused before memory is searched.
    pub(crate) fn early(cause: DeviceError, rounded: u64) -> Self {
        let (stream, figures, returned, freed_meanwhile) = (None, None, None, None);
        Self { cause, given_back: 0, rounded, stream, figures, returned, freed_meanwhile }
    }
}
