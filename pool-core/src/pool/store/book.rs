//! The book of a pool with an arena: its lock, the records of its blocks, and the hot path:
//! [`Store::take_from_book`] and [`Store::free_to_book`]. No device call is made under the lock.
#![expect(unsafe_code, reason = "records are in slots of the book, blocks of segments in boxes")]

mod device;
mod give_back;
mod lend;
mod pages;
mod private;
mod search;
mod segments;
mod survey;
#[cfg(test)]
mod tests;
mod warm;

use super::{Grant, Store};
use crate::block::record::{BlockMemory, Record, RecordOwner, SegmentBlock, Slab};
use crate::block::request::Want;
use crate::book::arena::ArenaConfig;
use crate::book::figures::BookFigures;
use crate::book::list::Group;
use crate::book::{Book, BookRequest};
use crate::device::{Allocating, DeviceAllocator, MarkOf, PageCalls, Sliceable, StreamOf};
use crate::error::{DeviceError, Why};
use crate::lock::{Lock, LockGuard};
use crate::policy::limit::CachedLimit;
use crate::stats::PoolStats;
use crate::stats::device_stats::DeviceStats;
use crate::stream::clock::StreamClock;
use crate::stream::order::After;
use std::ops::Range;

pub(crate) use search::Effort;

/// The book of a pool, and the constants that go with it.
pub(crate) struct PoolBook<A: DeviceAllocator> {
    state: Lock<BookState<A>>,
    /// `None` where segments are whole blocks.
    pages: Option<PageCalls<A>>,
    zero_part: ZeroPart<A>,
    granule: u64,
    /// Alignment of all ranges in their segment, and of blocks of the default kind in memory.
    alignment_in_segment: u64,
    alignment: u64,
    /// Requests up to this many bytes are apart from larger ones.
    apart_above: u64,
    /// Nothing is reused (`PyTorch`: `caching_allocator:False`).
    uncached: bool,
}

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
    records: Slab<Record<A>>,
    figures: BookFigures,
    /// Cold counts; `counted` adds what follows from the figures.
    counts: PoolStats,
    /// Hits on memory that no buffer had before.
    untouched_hits: u64,
    /// Frees of blocks that a private pool kept.
    kept_for_graphs: u64,
    /// The calls to the device, and segments.
    calls: DeviceStats,
    /// The pool is closed: free memory goes back, and the store counts the holds.
    closed: bool,
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
            true => granule.min(allocator.alignment_of(whole)),
            false => alignment_in_segment,
        };
        let pages = device_pages.map(|(bytes, pages)| PageCalls {
            page_bytes: bytes.max(pages.page_bytes).max(granule),
            ..pages
        });
        Self {
            pages,
            zero_part: A::zero_part,
            granule,
            alignment_in_segment,
            alignment,
            apart_above: config.apart_above,
            uncached: config.uncached,
            state: Lock::new(BookState::new(config)),
        }
    }
}

impl<A: DeviceAllocator> PoolBook<A> {
    /// Sizes of blocks are multiples of this many bytes.
    pub(crate) fn granule(&self) -> u64 {
        self.granule
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

    #[inline]
    pub(crate) fn lock(&self) -> LockGuard<'_, BookState<A>> {
        let state = self.state.lock();
        #[cfg(test)]
        state.book.start_visits();
        state
    }

    #[inline]
    fn request(&self, want: &Want<'_, A>) -> BookRequest<A::Kind> {
        let bytes = want.class.bytes;
        let group = Group { kind: want.key.kind, small: bytes <= self.apart_above };
        BookRequest { bytes, group, stream: want.key.lane }
    }
}

impl<A: DeviceAllocator> BookState<A> {
    fn new(config: ArenaConfig) -> Self {
        Self {
            figures: BookFigures::new(config.is_exact()),
            book: Book::new(config),
            blocks: Vec::new(),
            records: Slab::new(),
            counts: PoolStats::default(),
            untouched_hits: 0,
            kept_for_graphs: 0,
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
    pub(crate) fn close(&mut self, clock: &A::Clock) -> i64 {
        self.closed = true;
        self.book.drop_quick(clock);
        self.figures.live.now.cast_signed()
    }

    /// The counts, as a pool reports them.
    pub(crate) fn counted(&self, statistics: bool) -> PoolStats {
        let (live, requested) = (self.figures.live.stat(), self.figures.requested.stat());
        let PoolStats { misses, bypasses, from_device_bytes, .. } = self.counts;
        if !statistics {
            return self.counts;
        }
        let hits = live.allocated.saturating_sub(misses + bypasses);
        PoolStats {
            hits,
            reuses: hits.saturating_sub(self.untouched_hits),
            deallocations: live.freed,
            returns: live.freed.saturating_sub(self.kept_for_graphs),
            from_pool_bytes: requested.allocated.saturating_sub(from_device_bytes),
            ..self.counts
        }
    }

    /// Bytes of free ranges.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.book.cached
    }

    /// The most of them at once.
    pub(crate) fn cached_peak(&self) -> u64 {
        self.book.cached_peak
    }

    /// Bytes of live buffers as they were requested: now, at most.
    pub(crate) fn requested(&self) -> (u64, u64) {
        (self.figures.requested.now, self.figures.requested.peak)
    }

    /// Bytes of their blocks.
    pub(crate) fn allocated(&self) -> (u64, u64) {
        (self.figures.allocated.now, self.figures.allocated.peak)
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
        if matches!(limit, CachedLimit::Unlimited) {
            return 0;
        }
        let peak = self.book.used_peak;
        if self.limit_at.0 != peak {
            self.limit_at = (peak, limit.bytes(peak));
        }
        self.book.cached.saturating_sub(self.limit_at.1)
    }
}

impl<A: DeviceAllocator> Store<A> {
    /// A hit of a book: a free range that needs no call to the device.
    #[inline]
    pub(crate) fn take_from_book(
        &self,
        book: &PoolBook<A>,
        want: &Want<'_, A>,
    ) -> Option<Grant<A>> {
        if book.uncached {
            return None;
        }
        let taker = self.taker(want);
        let mut state = book.lock();
        let id = state.book.take(&book.request(want), &taker)?;
        let lent = state.lend_hit(id, want, taker.clock, self.bounds.statistics)?;
        drop(state);
        Some(lent.grant(want))
    }

    /// Frees a block into the book. Returns the book, locked, in which the caller gives up its
    /// hold.
    #[inline]
    pub(crate) fn free_to_book<'s>(
        &'s self,
        book: &'s PoolBook<A>,
        mut record: RecordOwner<A>,
        zeroed: bool,
    ) -> LockGuard<'s, BookState<A>> {
        if record.private.is_some() {
            return self.free_private(book, record);
        }
        record.dirty = !zeroed;
        let figures = Some((record.bytes, record.requested));
        self.free_record(book, record, figures)
    }

    /// Makes the range of a record free. `figures`: the bytes of the block, and those requested, if
    /// it was live.
    #[inline]
    fn free_record<'s>(
        &'s self,
        book: &'s PoolBook<A>,
        mut record: RecordOwner<A>,
        figures: Option<(u64, u64)>,
    ) -> LockGuard<'s, BookState<A>> {
        let marks = record.marks.get_mut().after(A::MEMORY.cpu_touches);
        let (kind, dirty) = (record.kind, record.dirty);
        let range = record.part().map(|part| part.range);
        // Before the range is free: from then on its slot may be another owner's.
        record.vacate();
        let mut state = book.lock();
        if let Some((bytes, requested)) = figures {
            state.figures.freed(bytes, requested);
        }
        let mut segment = None;
        if let Some(range) = range {
            segment = Some(state.book.nodes[range].segment);
            state.book.free(self.allocator.clock(), (range, kind), marks, dirty);
        }
        if state.closed || !matches!(self.bounds.cached, CachedLimit::Unlimited) {
            return self.shrink_after_free(book, state, segment);
        }
        state
    }

    /// Gives back free bytes above the limit, if a drop may.
    #[cold]
    fn shrink_after_free<'s>(
        &'s self,
        book: &'s PoolBook<A>,
        mut state: LockGuard<'s, BookState<A>>,
        segment: Option<u32>,
    ) -> LockGuard<'s, BookState<A>> {
        let may = state.closed || A::MEMORY.free_in_drop;
        if !may || state.excess(self.bounds.cached) == 0 {
            return state;
        }
        drop(state);
        // What the device refuses is counted as lost, or stays free memory.
        let _ = self.give_back_excess(book, segment);
        book.lock()
    }

    /// A kind whose blocks start at multiples of `alignment` bytes as well.
    pub(crate) fn aligned(&self, kind: A::Kind, alignment: u64) -> Result<A::Kind, DeviceError> {
        let aligned = self.allocator.aligned(kind, alignment);
        match &self.book {
            Some(book) if alignment > book.alignment => {
                Err(DeviceError::new(Why::Unsupported, "alignment above the granule", 0))
            }
            // One kind for all: segments are aligned to the granule.
            Some(_) => aligned.map(|_| kind),
            None => aligned,
        }
    }

    /// Whether the ranges of a book have the alignment of a kind.
    #[inline]
    pub(crate) fn offers(&self, kind: A::Kind) -> bool {
        let most = self.book.as_ref().map_or(u64::MAX, |book| book.alignment_in_segment);
        self.allocator.alignment_of(kind) <= most
    }

    /// Fills the first `bytes` bytes of a block with zeroes, in the order of `on`.
    pub(crate) fn zero(
        &self,
        memory: &mut BlockMemory<A>,
        bytes: u64,
        on: &StreamOf<A>,
    ) -> Result<(), DeviceError> {
        match (memory, &self.book) {
            (BlockMemory::Whole(block), _) => self.allocator.zero(block, bytes, on),
            (BlockMemory::Part(part), Some(book)) => {
                let range = part.offset..part.offset + bytes;
                // SAFETY: the memory is borrowed alone, and ranges that are lent do not overlap
                // (book/check.rs; `tests/schedules.rs`).
                unsafe { (book.zero_part)(&self.allocator, part.segment(), range, on) }
            }
            (BlockMemory::Part(_), None) => Ok(()),
        }
    }

    /// The marks that guard the unused rest of fresh memory.
    fn fresh_marks(&self, on: &StreamOf<A>) -> After<MarkOf<A>> {
        match A::MEMORY.allocating {
            Allocating::InOrder => After::One(self.allocator.clock().mark(on)),
            Allocating::AtOnce => After::Nothing,
        }
    }
}
