//! The book of a pool: its lock, the records of its blocks, and the way of a block that no thread
//! cache has: [`Store::take_from_book`] and [`Store::free_to_book`]. No device call is made under
//! the lock.
#![expect(unsafe_code, reason = "records are in slots of the book, blocks of segments in boxes")]

mod blocks;
#[cfg(feature = "check")]
mod check;
mod device;
mod give_back;
mod lease;
mod lend;
mod moves;
mod pages;
mod private;
mod reading;
mod returned;
mod search;
mod segments;
mod survey;
mod warm;

use crate::heap::block::record::{Part, Record, RecordOwner, SegmentBlock, Slab};
use crate::heap::block::request::{Key, PoolRequest};
use crate::heap::book::arena::ArenaConfig;
use crate::heap::book::figures::BookFigures;
use crate::heap::book::list::Group;
use crate::heap::book::{Book, BookRequest};
use crate::heap::cache::ThreadCache;
use crate::heap::store::{Grant, Store};
use crate::limits::CachedLimit;
use crate::observe::{DeviceStats, PoolStats};
use crate::port::{
    Allocating, DeviceAllocator, DeviceError, MarkOf, PageCalls, Sliceable, StreamClock, StreamOf,
};
use crate::stream::Pending;
use crate::sys::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sys::{Lock, LockGuard};
use std::collections::HashMap;
use std::ops::Range;

#[cfg(feature = "check")]
pub use check::{BlockSum, Checked};
use lease::PORTION;
pub(crate) use returned::Returned;
pub(crate) use search::Effort;

/// The book of a pool, and the constants that go with it.
pub(crate) struct PoolBook<A: DeviceAllocator> {
    state: Lock<BookState<A>>,
    /// `None` where segments are whole blocks.
    pages: Option<PageCalls<A>>,
    /// `None` where blocks are lent whole.
    zero_part: Option<ZeroPart<A>>,
    granule: u64,
    /// Alignment of all ranges in their segment, and of blocks of the default kind in memory.
    alignment_in_segment: u64,
    alignment: u64,
    /// Requests up to this many bytes are apart from larger ones.
    apart_above: u64,
    /// Nothing is reused (`PyTorch`: `caching_allocator:False`).
    uncached: bool,
    /// Threads cache blocks.
    caches: bool,
    /// The most bytes that thread caches hold, and so the largest block in one.
    lease_most: u64,
    /// Blocks are lent whole: a pool without an arena.
    blocks: bool,
    /// Allocations a while ago, for frees that do not come here.
    turn: AtomicU64,
}

/// The shown number of allocations may be this far behind, so that a line which all threads read is
/// seldom written.
const TURNS_HIDDEN: u64 = 16;

/// [`Sliceable::zero_part`].
type ZeroPart<A> = unsafe fn(
    &A,
    &<A as DeviceAllocator>::Block,
    Range<u64>,
    &StreamOf<A>,
) -> Result<(), DeviceError>;

/// The part of a book that its lock guards.
pub(crate) struct BookState<A: DeviceAllocator> {
    book: Book<A::Clock, A::Kind>,
    /// The block of each segment, by number.
    blocks: Vec<Option<SegmentBlock<A>>>,
    /// Blocks that threads which only free have put there for those that take: a cache of no
    /// thread. Before the slots of its records.
    transfer: Option<Box<ThreadCache<A>>>,
    records: Slab<Record<A>>,
    figures: BookFigures,
    /// Cold counts; `counted` adds what follows from the figures.
    pub(crate) counts: PoolStats,
    /// Hits on memory that no buffer had before.
    untouched_hits: u64,
    /// Frees of blocks that became no free memory of the book's.
    not_kept: u64,
    /// Blocks that buffers gave back to the book.
    frees: u64,
    /// The calls to the device, and segments.
    calls: DeviceStats,
    /// Bytes that all thread caches may hold, and the transfer cache.
    leased: u64,
    /// A cache was refused a lease that others have, and when their leases may end.
    crowded: bool,
    crowded_at: u64,
    /// Blocks of a size that bins of thread caches may have, under a bucket limit.
    bin_leases: HashMap<(Key<A::Kind>, u64), usize>,
    /// The pool is closed: free memory goes back, and the store counts the holds.
    pub(crate) closed: bool,
    /// The peak that the cached limit was computed from last, and the limit.
    limit_at: (u64, u64),
}

impl<A: Sliceable> PoolBook<A> {
    /// An empty book of this arena.
    pub(crate) fn new(allocator: &A, config: ArenaConfig) -> Self {
        let least = allocator.part_granule().max(allocator.alignment_of(A::Kind::default()));
        let granule = config.granule.max(least);
        let config = config.granule(granule);
        let granule = config.granule;
        let device_pages = config.page_bytes().and_then(|bytes| Some((bytes, allocator.pages()?)));
        let alignment_in_segment = match &device_pages {
            Some((_, pages)) => granule.min(pages.page_bytes),
            None => granule,
        };
        let whole = A::Kind::default();
        let refused = device_pages.is_none() && allocator.aligned(whole, granule).is_err();
        let alignment = match refused {
            true => best_alignment(allocator, granule),
            false => alignment_in_segment,
        };
        let pages = device_pages.map(|(bytes, pages)| PageCalls {
            page_bytes: bytes.max(pages.page_bytes).max(granule),
            ..pages
        });
        Self {
            pages,
            zero_part: Some(A::zero_part),
            granule,
            alignment_in_segment,
            alignment,
            apart_above: config.apart_above,
            uncached: config.uncached,
            caches: !config.is_torch() && !config.uncached,
            lease_most: config.lease_most(),
            blocks: false,
            turn: AtomicU64::new(0),
            state: Lock::new(BookState::new(config)),
        }
    }
}

/// Returns the largest alignment up to `most`, a power of two, that segments can have.
fn best_alignment<A: DeviceAllocator>(allocator: &A, most: u64) -> u64 {
    let whole = A::Kind::default();
    let mut alignments = std::iter::successors(Some(most), |alignment| Some(alignment / 2));
    let offered = |alignment: &u64| *alignment <= 1 || allocator.aligned(whole, *alignment).is_ok();
    let best = alignments.find(offered).unwrap_or(1);
    best.max(most.min(allocator.alignment_of(whole)))
}

impl<A: DeviceAllocator> PoolBook<A> {
    /// Sizes of blocks are multiples of this many bytes.
    pub(crate) fn granule(&self) -> u64 {
        self.granule
    }

    /// An empty book of blocks that are lent whole. `counted`: by size, for a bucket limit.
    pub(crate) fn of_blocks(counted: bool) -> Self {
        let config = ArenaConfig::blocks();
        let mut state = BookState::new(config.clone());
        if counted {
            state.book.count_sizes();
        }
        Self {
            pages: None,
            zero_part: None,
            granule: config.granule,
            alignment_in_segment: u64::MAX,
            alignment: u64::MAX,
            apart_above: 0,
            uncached: false,
            caches: true,
            lease_most: u64::MAX,
            blocks: true,
            turn: AtomicU64::new(0),
            state: Lock::new(state),
        }
    }

    /// Shows how many allocations there were, if it is many more than shown.
    #[inline]
    fn show_turn(&self, turn: u64) {
        if turn >= self.turn.load(Relaxed) + TURNS_HIDDEN {
            self.turn.store(turn, Relaxed);
        }
    }

    /// Whether blocks are lent whole, in a pool without an arena.
    #[inline]
    pub(crate) fn is_blocks(&self) -> bool {
        self.blocks
    }

    /// The bytes that the device must give for a request of this many: whole pages, if it has any.
    pub(crate) fn bytes_to_grow(&self, bytes: u64) -> u64 {
        let page = self.pages.as_ref().map_or(1, |pages| pages.page_bytes);
        bytes.checked_next_multiple_of(page).unwrap_or(bytes)
    }

    /// Whether threads cache blocks: not where it would change where blocks are placed.
    pub(crate) fn has_caches(&self) -> bool {
        self.caches
    }

    /// The largest block that a thread cache can have.
    pub(crate) fn lease_most(&self) -> u64 {
        self.lease_most
    }

    /// Whether nothing is reused.
    pub(crate) fn is_uncached(&self) -> bool {
        self.uncached
    }

    /// Bytes of a page; `None` where segments are whole blocks.
    fn page_bytes(&self) -> Option<u64> {
        self.pages.as_ref().map(|pages| pages.page_bytes)
    }

    /// Whether a block may be larger than any single allocation of the device.
    pub(crate) fn has_pages(&self) -> bool {
        self.pages.is_some()
    }

    /// Whether a thread has the lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.state.is_locked()
    }

    #[inline]
    pub(crate) fn lock(&self) -> LockGuard<'_, BookState<A>> {
        let state = self.state.lock();
        #[cfg(all(feature = "check", debug_assertions))]
        state.book.start_visits();
        state
    }

    #[inline]
    fn book_request(&self, request: &PoolRequest<'_, A>) -> BookRequest<A::Kind> {
        let bytes = request.class.bytes;
        let group = Group { kind: request.key.kind, small: bytes <= self.apart_above };
        let up_to = if self.blocks { request.class.max_block_bytes } else { u64::MAX };
        BookRequest { bytes, up_to, group, stream: request.key.stream_id }
    }
}

impl<A: DeviceAllocator> BookState<A> {
    fn new(config: ArenaConfig) -> Self {
        Self {
            figures: BookFigures::new(config.is_torch()),
            leased: 0,
            transfer: None,
            crowded: false,
            crowded_at: 0,
            bin_leases: HashMap::new(),
            book: Book::new(config),
            blocks: Vec::new(),
            records: Slab::new(),
            counts: PoolStats::default(),
            untouched_hits: 0,
            not_kept: 0,
            frees: 0,
            calls: DeviceStats::default(),
            closed: false,
            limit_at: (u64::MAX, 0),
        }
    }

    /// Counts a buffer out; returns false in a closed store, which has one count for all.
    #[inline]
    pub(crate) fn give_up(&mut self) -> bool {
        if !self.closed {
            self.figures.live.down(1);
        }
        !self.closed
    }

    /// Closes the book. Returns how many buffers are live.
    pub(crate) fn close(&mut self) -> i64 {
        self.closed = true;
        self.figures.live.now().0.cast_signed()
    }

    /// Counts a request that the device refused, before it is asked again.
    pub(crate) fn note_retry(&mut self) {
        self.calls.num_alloc_retries += 1;
    }

    /// Counts a request that was refused in the end.
    pub(crate) fn note_refusal(&mut self) {
        self.calls.num_ooms += 1;
    }

    /// How far free bytes are above the limit.
    #[inline]
    fn excess(&mut self, limit: CachedLimit) -> u64 {
        if self.closed {
            return self.book.cached;
        }
        let limit = self.cached_limit(limit);
        (self.book.cached + self.leased).saturating_sub(limit)
    }

    /// The bound on free bytes at this moment.
    #[inline]
    fn cached_limit(&mut self, limit: CachedLimit) -> u64 {
        let peak = self.book.used_peak;
        if matches!(limit, CachedLimit::Unlimited) {
            return u64::MAX;
        }
        if self.limit_at.0 != peak {
            self.limit_at = (peak, limit.bytes(peak));
        }
        self.limit_at.1
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// A hit of a book: a free range that needs no call to the device. Looks into the thread's own
    /// cache before, closer than [`Store::hit`] does.
    #[inline]
    pub(crate) fn take_from_book(&self, request: &PoolRequest<'_, A>) -> Option<Grant<A>> {
        if self.book.uncached {
            return None;
        }
        let (requester, book_request) = (self.requester(request), self.book.book_request(request));
        let mut own = self.caches.wait_for_own();
        // What thread caches have is no private pool's.
        let shared = request.private.is_none() && request.class.is_cached();
        if let Some(cache) = own.as_mut().filter(|_| shared)
            && let Some(grant) = self.take_cached_in(cache, request)
        {
            return Some(grant);
        }
        let mut state = self.book.lock();
        let id = match &mut own {
            Some(cache) => {
                state.add_counts(cache);
                if request.class.max_block_bytes > request.class.bytes {
                    // The smallest block that serves may be one of them.
                    state.take_back_like(requester.clock, cache, request);
                    state.drain_transfer_cache(|state, transfer| {
                        state.take_back_like(requester.clock, transfer, request)
                    });
                } else if shared
                    && state.take_from_transfer_cache(cache, (request.key, request.class.bytes))
                    && let Some(grant) = self.take_cached_in(cache, request)
                {
                    return Some(grant);
                }
                cache.taken += 1; // a range of the book, or else a block of the device
                let found = state.book.take(&book_request, &requester);
                // What this thread freed a moment ago may coalesce to what it needs.
                let may = found.is_none() && !self.book.blocks;
                let more =
                    may && state.take_back(requester.clock, cache, PORTION, ThreadCache::pop) > 0;
                if more { state.book.take(&book_request, &requester) } else { found }
            }
            None => state.book.take(&book_request, &requester),
        }?;
        let lent = state.lend_hit(id, request, requester.clock, self.bounds.statistics)?;
        self.book.show_turn(state.book.turn);
        drop(state);
        drop(own);
        Some(lent.grant(request))
    }

    /// Frees a block into the book. Returns the book, locked, in which the caller gives up its
    /// hold.
    #[inline]
    pub(crate) fn free_to_book(
        &self,
        mut record: RecordOwner<A>,
        zeroed: bool,
    ) -> LockGuard<'_, BookState<A>> {
        if record.private.is_some() {
            return self.free_private(record);
        }
        record.unzeroed = !zeroed;
        let (state, segment) = self.free_uncached(record);
        if self.book.blocks {
            return self.free_deferred_in_drop(state);
        }
        if state.closed || !matches!(self.bounds.cached, CachedLimit::Unlimited) {
            return self.shrink_after_free(state, segment);
        }
        state
    }

    /// Gives back free bytes above the limit, if a drop may.
    #[cold]
    fn shrink_after_free<'s>(
        &'s self,
        mut state: LockGuard<'s, BookState<A>>,
        segment: Option<u32>,
    ) -> LockGuard<'s, BookState<A>> {
        let may = state.closed || A::MEMORY.free_in_drop;
        if !may || state.excess(self.bounds.cached) == 0 {
            return state;
        }
        drop(state);
        // What the device refuses is counted as lost, or stays free memory.
        let _ = self.give_back_excess(segment);
        self.book.lock()
    }

    /// Closes the book: from now on no thread caches anything. Returns how many buffers are live.
    pub(crate) fn close_book(&self) -> i64 {
        for number in self.caches.numbers() {
            self.empty(number);
        }
        self.book.lock().close()
    }

    /// A kind whose blocks start at multiples of `alignment` bytes as well.
    pub(crate) fn aligned(&self, kind: A::Kind, alignment: u64) -> Result<A::Kind, DeviceError> {
        let most = i64::try_from(self.book.alignment).unwrap_or(i64::MAX);
        let both = |refused: DeviceError| match refused.expected {
            0 => refused,
            expected => refused.expected(expected.min(most)),
        };
        let aligned = self.allocator.aligned(kind, alignment).map_err(both)?;
        DeviceError::check_alignment(alignment, self.book.alignment)?;
        // One kind for all ranges: segments are aligned to the granule.
        Ok(if self.book.blocks { aligned } else { kind })
    }

    /// Whether the ranges of a book have the alignment of a kind.
    #[inline]
    pub(crate) fn offers(&self, kind: A::Kind) -> bool {
        self.allocator.alignment_of(kind) <= self.book.alignment_in_segment
    }

    /// Fills the first `bytes` bytes of a block with zeroes, in the order of `on`.
    pub(crate) fn zero(
        &self,
        part: &mut Part<A>,
        bytes: u64,
        on: &StreamOf<A>,
    ) -> Result<(), DeviceError> {
        let Some(zero_part) = self.book.zero_part else {
            return self.allocator.zero(part.whole(), bytes, on);
        };
        let range = part.offset..part.offset + bytes;
        // SAFETY: the range is borrowed alone, and ranges that are lent do not overlap
        // (book/check.rs; `tests/pool/schedules.rs`).
        unsafe { zero_part(&self.allocator, part.segment(), range, on) }
    }

    /// The marks that guard the unused rest of fresh memory.
    fn fresh_marks(&self, on: &StreamOf<A>) -> Pending<MarkOf<A>> {
        match A::MEMORY.allocating {
            Allocating::InOrder => Pending::One(self.allocator.clock().mark(on)),
            Allocating::AtOnce => Pending::Nothing,
        }
    }
}
