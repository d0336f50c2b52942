//! Thread caches and the book: leases, figures, and blocks that go from one to the other. Who holds
//! both has entered the cache first.

use crate::heap::block::flags::AWAITED;
use crate::heap::block::record::RecordOwner;
use crate::heap::block::request::{Key, PoolRequest};
use crate::heap::cache::tally::Changes;
use crate::heap::cache::{REFUSALS, ThreadCache};
use crate::heap::store::book::BookState;
use crate::heap::store::{Bounds, Effort, Grant, Store};
use crate::limits::CachedLimit;
use crate::port::{DeviceAllocator, StreamClock, StreamOf};
use crate::size::MIB;
use crate::stream::{LastUses, Requester};
use crate::sys::{LockGuard, thread_number};
use std::sync::atomic::Ordering::Relaxed;

/// Blocks that go from a cache to the book at once.
pub(super) const PORTION: usize = if cfg!(shuttle) { 3 } else { 64 };
/// Blocks of its size that a request moves from one cache: more, since those that serve may be
/// below newer ones.
pub(super) const PORTION_LIKE: usize = 256;
/// All leases together are at most this part of the most bytes that were allocated at once, and
/// this part of the cached limit.
const LEASED_PART: u64 = 8;
/// Leases that are in the way are ended at most once in this many allocations.
const TURNS_CROWDED: u64 = 4096;
/// A thread that only frees keeps no block beyond this many bytes.
const ONLY_FREES_MOST: u64 = MIB;
/// A thread that frees this many blocks for each that it takes hands them to others.
const FREES_FOR_A_TAKE: u64 = if cfg!(shuttle) { 1 } else { 8 };
/// Looks into other threads' caches in a row that may find nothing. After that misses do without:
/// one, then one more each time, and at most [`BLIND_MOST`].
const LOOKS: u32 = 8;
/// As above.
const BLIND_MOST: u32 = 256;

impl<A: DeviceAllocator> Store<A> {
    /// A hit in the thread's own cache: a block that one stream used, and that is ready without a
    /// device call.
    #[inline]
    pub(crate) fn take_cached(
        &self,
        stream: &StreamOf<A>,
        kind: A::Kind,
        (bytes, requested): (u64, u64),
    ) -> Option<RecordOwner<A>> {
        let clock = self.allocator.clock();
        let now = clock.mark(stream);
        let key = Key { kind, stream_id: clock.stream_id(now) };
        let (steal, cpu_touches) = (self.bounds.steal, A::MEMORY.cpu_touches);
        let requester = Requester { clock, on: stream, steal, cpu_touches };
        let ready = |marks: &LastUses<A::Clock>| {
            (!cpu_touches && marks.are_all_on(clock, now)) || marks.is_one_and_ready(&requester)
        };
        let mut cache = self.caches.enter_own()?;
        let mut record = cache.take(key, bytes, requested, ready)?;
        drop(cache);
        record.requested = requested;
        record.marks.get_mut().restart_own(now);
        Some(record)
    }

    /// Takes a block out of a cache for a request, if one is ready without a device call.
    pub(super) fn take_cached_in(
        &self,
        cache: &mut ThreadCache<A>,
        request: &PoolRequest<'_, A>,
    ) -> Option<Grant<A>> {
        let requester = self.requester(request);
        let ready = |marks: &LastUses<A::Clock>| marks.is_ready(&requester);
        let mut record = cache.take(request.key, request.class.bytes, request.requested, ready)?;
        record.requested = request.requested;
        record.marks.get_mut().restart(requester.clock.mark(request.stream));
        let zeroed = !record.unzeroed;
        Some(Grant { record, fresh: false, zeroed })
    }

    /// Keeps a block in the thread's own cache, or returns it.
    #[inline]
    pub(crate) fn put_cached(
        &self,
        cache: &mut ThreadCache<A>,
        mut record: RecordOwner<A>,
    ) -> Result<(), RecordOwner<A>> {
        cache.put(self.key(&mut record), record, self.book.turn.load(Relaxed))
    }

    /// The bin that a block belongs in.
    #[inline]
    fn key(&self, record: &mut RecordOwner<A>) -> Key<A::Kind> {
        let stream_id = self.allocator.clock().stream_id(record.marks.get_mut().own());
        Key { kind: record.kind, stream_id }
    }

    /// Frees a block that the thread's own cache had no room for: into it, if its lease can be
    /// longer, or into the book. Returns the book, locked, and the segment that the block is free
    /// in.
    pub(super) fn free_uncached(
        &self,
        mut record: RecordOwner<A>,
    ) -> (LockGuard<'_, BookState<A>>, Option<u32>) {
        let (clock, key, bytes) = (self.allocator.clock(), self.key(&mut record), record.bytes);
        let own = self.caches.wait_for_own();
        let mut state = self.book.lock();
        let Some(mut cache) = own else {
            state.figures.freed(bytes, record.requested);
            let segment = state.free_or_keep(clock, record, &self.bounds);
            return (state, Some(segment));
        };
        state.add_counts(&mut cache);
        state.figures.freed(bytes, record.requested);
        self.book.show_turn(state.book.turn);
        // A request that waits, perhaps of another thread, has the next claim on the block.
        let awaited = self.flags.any(AWAITED);
        let fits = record.pooled && bytes <= self.caches.largest && !awaited;
        let room = fits && state.extend_lease(&mut cache, (key, bytes), &self.bounds);
        let more =
            if room { state.grant_bin_leases(&mut cache, key, bytes, &self.bounds) } else { 0 };
        record.turn = cache.turn();
        let refused = if room { cache.put_counted(key, record, more).err() } else { Some(record) };
        if refused.is_some() && cache.is_limited() {
            // What the bin has no use for now, this block may have. Without a bin it is `more`.
            let room = cache.take_bin_lease(key, bytes).max(more);
            state.end_bin_leases(key, bytes, room);
        }
        match &refused {
            None => {
                cache.freed += 1;
                state.book.count_into_cache(bytes);
            }
            Some(_) => cache.refusals += u32::from(fits),
        }
        if cache.is_stale() {
            state.take_back(clock, &mut cache, PORTION, ThreadCache::pop);
        }
        let segment = refused.map(|record| state.free_or_keep(clock, record, &self.bounds));
        if state.is_crowded() {
            // Threads that ended, or that stand still, may have the leases.
            drop(state);
            drop(cache);
            self.collect();
            state = self.book.lock();
        }
        (state, segment)
    }

    /// The book, locked, when it knows what this thread's cache has counted.
    pub(crate) fn with_own_counts(&self) -> LockGuard<'_, BookState<A>> {
        let own = self.caches.wait_for_own();
        let mut state = self.book.lock();
        if let Some(mut cache) = own {
            state.add_counts(&mut cache);
        }
        state
    }

    /// Moves the blocks of all thread caches into the book, a portion under the locks at a time,
    /// and ends their leases. Returns whether there were any.
    pub(crate) fn collect(&self) -> bool {
        // The transfer cache twice: a thread may take a stack from it before its cache is looked
        // at, and another may put one there after that.
        let any = self.empty_transfer_cache();
        let any = self.caches.with(1).fold(any, |any, number| self.empty(number) | any);
        self.empty_transfer_cache() | any
    }

    /// Moves the blocks in the transfer cache into the book. Returns whether there were any. A pool
    /// with an arena has no transfer cache.
    fn empty_transfer_cache(&self) -> bool {
        if !self.book.is_blocks() {
            return false;
        }
        let (clock, mut any) = (self.allocator.clock(), false);
        loop {
            let blocks = self.book.lock().drain_transfer_cache(|state, transfer| {
                state.take_back(clock, transfer, PORTION, ThreadCache::pop)
            });
            any |= blocks > 0;
            if blocks < PORTION {
                return any;
            }
        }
    }

    /// Moves the blocks of one cache into the book. Returns whether there were any.
    pub(super) fn empty(&self, number: usize) -> bool {
        let (clock, mut any) = (self.allocator.clock(), false);
        while let Some(mut cache) = self.caches.enter(number) {
            let mut state = self.book.lock();
            state.add_counts(&mut cache);
            if !self.book.blocks {
                state.leased -= std::mem::take(&mut cache.lease);
            }
            let blocks = state.take_back(clock, &mut cache, PORTION, ThreadCache::pop);
            any |= blocks > 0;
            if blocks < PORTION {
                state.leased -= std::mem::take(&mut cache.lease);
                cache.end_bin_leases(|key, bytes, room| state.end_bin_leases(key, bytes, room));
                count_look(number, usize::from(any));
                break;
            }
        }
        any
    }

    /// Moves blocks that may serve a request from the caches of all threads into the book; with all
    /// effort, all blocks. Returns whether there were any.
    pub(crate) fn gather(&self, request: &PoolRequest<'_, A>, effort: Effort) -> bool {
        if effort == Effort::All {
            return self.collect();
        }
        let own = thread_number::get();
        let mut with_enough = self.caches.with(request.class.bytes);
        if with_enough.any(|number| number == own) && self.gather_one(own, request) > 0 {
            return true;
        }
        let clock = self.allocator.clock();
        let like = |state: &mut BookState<A>, transfer: &mut _| {
            state.take_back_like(clock, transfer, request)
        };
        let mut found = self.book.lock().drain_transfer_cache(like);
        let blind = self.blind.load(Relaxed);
        if blind > 0 {
            self.blind.store(blind - 1, Relaxed);
            return found > 0;
        }
        let mut looks = 0;
        for number in self.caches.with(request.class.bytes).filter(|number| *number != own) {
            (looks, found) = (looks + 1, found + self.gather_one(number, request));
        }
        if looks > 0 {
            let in_vain = if found > 0 { 0 } else { self.in_vain.load(Relaxed) + 1 };
            self.in_vain.store(in_vain, Relaxed);
            self.blind.store(in_vain.saturating_sub(LOOKS).min(BLIND_MOST), Relaxed);
        }
        found > 0
    }

    fn gather_one(&self, number: usize, request: &PoolRequest<'_, A>) -> usize {
        let Some(mut cache) = self.caches.enter(number) else { return 0 };
        let mut state = self.book.lock();
        state.add_counts(&mut cache);
        let blocks = state.take_back_like(self.allocator.clock(), &mut cache, request);
        count_look(number, blocks);
        blocks
    }

    /// Tells the book what all caches have counted, and looks at their blocks.
    pub(crate) fn add_counts_of_caches(&self, mut look: impl FnMut(&RecordOwner<A>)) {
        for number in self.caches.numbers() {
            let Some(mut cache) = self.caches.enter(number) else { continue };
            self.book.lock().add_counts(&mut cache);
            cache.each(&mut look);
        }
        self.book.lock().transfer.iter().for_each(|transfer| transfer.each(&mut look));
    }
}

/// Counts a look into the cache of another thread, in a build that counts.
fn count_look(number: usize, blocks: usize) {
    #[cfg(pool_counts)]
    if number != thread_number::get() {
        crate::sys::counts::look(blocks > 0);
    }
    #[cfg(not(pool_counts))]
    let _ = (number, blocks);
}

impl<A: DeviceAllocator> BookState<A> {
    /// Takes over what a thread cache has counted.
    pub(in crate::heap::store) fn add_counts(&mut self, cache: &mut ThreadCache<A>) {
        let Some(changes) = cache.changes(self.book.turn) else { return };
        let Changes { live, requested, allocated, .. } = changes;
        self.book.turn += live.total;
        self.figures.live.add(live);
        self.figures.requested.add(requested);
        self.figures.allocated.add(allocated);
        self.book.add_change(allocated);
    }

    /// Extends the lease of a cache so that it has room for one block more, if the bounds allow it:
    /// twice what is needed, so that the next block need not come here. A thread that only frees
    /// hands its blocks to others instead.
    fn extend_lease(
        &mut self,
        cache: &mut ThreadCache<A>,
        (key, bytes): (Key<A::Kind>, u64),
        bounds: &Bounds,
    ) -> bool {
        if cache.cached_bytes() + bytes <= cache.lease {
            return true;
        }
        let (is_blocks, before) = (self.book.config.is_blocks(), cache.lease);
        let many = cache.blocks() >= PORTION as u64 || cache.cached_bytes() >= ONLY_FREES_MOST;
        if is_blocks && many && !cache.takes_enough(FREES_FOR_A_TAKE) {
            cache.refusals = REFUSALS;
            if !self.put_in_transfer_cache(cache, (key, bytes)) {
                return false;
            }
            cache.refusals = 0;
        }
        let needed = cache.cached_bytes() + bytes;
        let most = if cache.is_closed() { 0 } else { self.lease_bound(bounds.cached) };
        let others = self.leased - cache.lease;
        let fits = |lease: &u64| others.saturating_add(*lease) <= most;
        let Some(lease) = [before.max(2 * needed), needed].into_iter().find(fits) else {
            self.crowded |= needed <= most;
            return false;
        };
        if !is_blocks {
            (self.leased, cache.lease) = (others + lease, lease);
            return true;
        }
        // No block goes for room that may not be used.
        let limit = self.cached_limit(bounds.cached);
        let room = limit.saturating_sub(self.book.cached + others);
        let lease = if lease <= room { lease } else { needed };
        let fits = self.evict_down_to(limit.saturating_sub(lease - cache.lease), bounds);
        if fits {
            (self.leased, cache.lease) = (others + lease, lease);
        }
        fits
    }

    /// Whether the leases of other threads have refused this one, now and then.
    fn is_crowded(&mut self) -> bool {
        let due = self.crowded && self.book.turn >= self.crowded_at;
        if due {
            (self.crowded, self.crowded_at) = (false, self.book.turn + TURNS_CROWDED);
        }
        due
    }

    /// The most bytes of all leases under the cached limit.
    fn lease_limit(&mut self, limit: CachedLimit) -> u64 {
        match limit {
            CachedLimit::Unlimited => u64::MAX,
            limit => self.cached_limit(limit) / LEASED_PART,
        }
    }

    /// The most bytes of all leases. Without an arena and a limit there is no bound.
    fn lease_bound(&mut self, limit: CachedLimit) -> u64 {
        let by_limit = self.lease_limit(limit);
        if self.book.config.is_blocks() {
            return by_limit;
        }
        by_limit.min(self.book.config.lease_most()).min(self.book.used_peak / LEASED_PART)
    }

    /// Makes the range of a record free, or keeps the block if the bounds of a pool without an
    /// arena say so. Returns its segment.
    pub(super) fn free_or_keep(
        &mut self,
        clock: &A::Clock,
        mut record: RecordOwner<A>,
        bounds: &Bounds,
    ) -> u32 {
        let marks = record.marks.get_mut().pending(A::MEMORY.cpu_touches);
        let (range, unzeroed, pooled) = (record.part.range, record.unzeroed, record.pooled);
        let key =
            Key { kind: record.kind, stream_id: clock.stream_id(record.marks.get_mut().own()) };
        let bytes = record.bytes;
        record.vacate(); // as above
        let segment = self.book.nodes[range].segment;
        self.frees = self.frees.wrapping_add(1);
        if !self.book.config.is_blocks() || self.makes_room(key, bytes, pooled, bounds) {
            self.book.free(clock, range, marks, unzeroed);
        } else {
            self.not_kept += 1;
            self.book.defer_live(range, marks);
        }
        segment
    }
}
