//! The figures of a pool, with what thread caches have counted and not told the book: no thread
//! that takes and frees blocks of its cache is stopped.

use crate::heap::book::figures::BookFigures;
use crate::heap::store::Store;
use crate::heap::store::book::BookState;
use crate::heap::store::book::survey::Survey;
use crate::observe::PoolStats;
use crate::port::DeviceAllocator;

/// Bytes of one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InUse {
    /// Of the blocks that buffers have, and as they were requested.
    pub(crate) allocated: u64,
    pub(crate) requested: u64,
    /// Of free memory.
    pub(crate) cached: u64,
    /// Bytes that the device did not take back.
    pub(crate) lost: u64,
}

/// Figures of one moment.
pub(super) struct Reading {
    pub(super) figures: BookFigures,
    /// Bytes that thread caches have, beyond those that the book knows of.
    pub(super) cached: i64,
    /// The most that was free and serves again.
    cached_peak: u64,
    /// Blocks that thread caches have.
    blocks: u64,
}

impl<A: DeviceAllocator> Store<A> {
    pub(super) fn reading(&self, state: &BookState<A>) -> Reading {
        let (figures, cached_peak) = (state.figures.clone(), state.book.cached_peak);
        let mut reading = Reading { figures, cached: 0, cached_peak, blocks: 0 };
        reading.blocks = state.transfer.as_ref().map_or(0, |transfer| transfer.blocks());
        for (changes, blocks) in self.caches.untold() {
            let kept = state.book.kept().saturating_add_signed(reading.cached);
            let most = kept.saturating_sub_signed(changes.allocated.low);
            reading.cached_peak = reading.cached_peak.max(most);
            reading.cached -= changes.allocated.now;
            reading.blocks += blocks;
            reading.figures.live.add(changes.live);
            reading.figures.requested.add(changes.requested);
            reading.figures.allocated.add(changes.allocated);
        }
        reading
    }

    /// Bytes in buffers, in caches and lost, at one moment.
    pub(crate) fn in_use(&self) -> InUse {
        let state = self.book.lock();
        let Reading { figures, cached, .. } = self.reading(&state);
        InUse {
            allocated: figures.allocated.now().0,
            requested: figures.requested.now().0,
            cached: state.book.cached_bytes().saturating_add_signed(cached),
            lost: state.counts.lost_bytes,
        }
    }

    /// Bytes of free memory.
    pub(crate) fn cached_bytes(&self) -> u64 {
        if self.is_unusable() {
            return 0;
        }
        let state = self.book.lock();
        let cached = self.reading(&state).cached;
        state.book.cached_bytes().saturating_add_signed(cached)
    }

    /// Bytes of the blocks that buffers have.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        if self.is_unusable() {
            return 0;
        }
        let state = self.book.lock();
        self.reading(&state).figures.allocated.now().0
    }

    /// The figures of this moment. `exact`: after a look into each thread cache.
    pub(crate) fn stats(&self, exact: bool) -> PoolStats {
        if self.is_unusable() {
            return PoolStats::default();
        }
        let survey = if exact { self.survey() } else { self.survey_alone() };
        let private_bytes = self.privates.all_idle_bytes();
        let mut state = self.book.lock();
        let cached_limit = state.cached_limit(self.bounds.cached);
        let Reading { figures, cached, cached_peak, blocks } = self.reading(&state);
        let (requested_bytes, requested_peak_bytes) = figures.requested.now();
        let (allocated_bytes, allocated_peak_bytes) = figures.allocated.now();
        let cached_bytes = state.book.cached_bytes().saturating_add_signed(cached);
        // Peaks add up what each thread had at most, not at one moment. The device was asked for at
        // least as much as was ever allocated at once.
        let reserved_peak_bytes = self.ledger.peak();
        let allocated_peak_bytes = allocated_peak_bytes.min(reserved_peak_bytes);
        let requested_peak_bytes = requested_peak_bytes.min(allocated_peak_bytes);
        PoolStats {
            keys: survey.free.len() as u64,
            cached_buffers: survey.free_in_book + blocks,
            requested_bytes,
            requested_peak_bytes,
            allocated_bytes,
            allocated_peak_bytes,
            active_bytes: allocated_bytes + survey.pending,
            cached_bytes,
            deferred_bytes: cached_bytes
                .saturating_sub(state.book.kept().saturating_add_signed(cached)),
            peak_cached_bytes: cached_peak.min(reserved_peak_bytes),
            reserved_bytes: self.ledger.reserved(),
            reserved_peak_bytes,
            reserved_limit_bytes: limit(self.ledger.limit().min(self.ledger.budget.limit())),
            cached_limit_bytes: limit(cached_limit),
            private_bytes,
            ..state.counted(&figures, self.bounds.statistics)
        }
    }

    /// Reads all ranges of the book, and what this thread's own cache has of them.
    fn survey_alone(&self) -> Survey {
        let mut survey = self.survey_book();
        if let Some(own) = self.caches.wait_for_own() {
            own.each(|record| survey.add_cached(self.allocator.clock(), record));
        }
        let state = self.book.lock();
        if let Some(transfer) = &state.transfer {
            transfer.each(|record| survey.add_cached(self.allocator.clock(), record));
        }
        drop(state);
        survey
    }
}

/// A limit as it is reported.
fn limit(bytes: u64) -> Option<u64> {
    (bytes != u64::MAX).then_some(bytes)
}

impl<A: DeviceAllocator> BookState<A> {
    /// The counts, as a pool reports them.
    fn counted(&self, figures: &BookFigures, statistics: bool) -> PoolStats {
        let (live, requested) = (figures.live.stat(), figures.requested.stat());
        let PoolStats { misses, bypasses, from_device_bytes, .. } = self.counts;
        if !statistics {
            return self.counts;
        }
        let hits = live.allocated.saturating_sub(misses + bypasses);
        PoolStats {
            allocations: hits + misses + bypasses + self.counts.failures,
            hits,
            reuses: hits.saturating_sub(self.untouched_hits),
            deallocations: live.freed,
            returns: live.freed.saturating_sub(self.not_kept),
            from_pool_bytes: requested.allocated.saturating_sub(from_device_bytes),
            ..self.counts
        }
    }
}
