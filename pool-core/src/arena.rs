//! An arena: an allocator that cuts blocks out of large ones, and makes neighbours one again.
//!
//! ```text
//!   Arena::reuse, Arena::allocate     here
//!     Space::ready                    search.rs   HOT: a bitmap says which bin holds a fit
//!     Arena::steal                    steal.rs    another stream's range, by a wait on the device
//!     Arena::grow                     grow.rs     a segment, or pages, from the device
//!   Arena::free                       here
//!     Space::give                     space.rs    HOT: one with its free neighbours, in O(1)
//! ```
//!
//! Books are out of band, so the memory may be the GPU's. A free makes no call to the device; what
//! goes back goes before the arena grows, or when somebody asks.

mod bins;
mod config;
mod give_back;
mod grow;
mod lane;
mod lanes;
mod map;
mod pages;
mod port;
mod ranges;
mod search;
mod segments;
mod space;
mod spot;
mod steal;

use crate::clock::StreamClock;
use crate::device::{DeviceAllocator, Request, Sliceable, StreamOf, VirtualMemory};
use crate::device_stats::DeviceStats;
use crate::error::{DeviceError, Why};
use crate::layer::{Layer, Retention, Ticks};
use crate::limit::Ledger;
use crate::lock::Lock;
use crate::order::{StealPolicy, Taker};
use pages::PageCalls;
use parking_lot::Mutex;
use ranges::Ticket;
use space::{ArenaRequest, Lent, Sort, Space};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use config::ArenaConfig;
pub use map::{RangeState, SegmentMap};

/// Cuts blocks out of segments of an allocator below, or out of pages of its virtual memory.
///
/// An allocator like any other, so a pool runs over it; the pool then keeps little itself, since
/// what it keeps cannot become one with its neighbours.
///
/// ```
/// use pool_core::{Arena, ArenaConfig, BucketPool, MIB, sim::SimDevice};
///
/// let device = SimDevice::new();
/// let pool = BucketPool::new(Arena::over_pages(device.clone(), ArenaConfig::grow()));
/// let tensors = [pool.allocate(3 * MIB)?, pool.allocate(5 * MIB)?];
/// drop(tensors);
/// let merged = pool.allocate(8 * MIB)?; // both, and nothing more from the device
/// assert_eq!(device.calls().commits, 2);
/// # Ok::<(), pool_core::AllocError>(())
/// ```
pub struct Arena<A: DeviceAllocator> {
    id: u32,
    upstream: A,
    /// Calls for virtual memory, if that is where memory comes from.
    pages: Option<PageCalls<A>>,
    space: Lock<Space<A>>,
    /// What is taken from the device.
    ledger: Ledger,
    steal: StealPolicy,
    retention: Retention,
    ticks: Mutex<Ticks>,
    /// A pool above gives free memory back when the device is short; alone, the arena does.
    adopted: bool,
    granule: u64,
    apart_above: u64,
    uncached: bool,
}

/// A block of an arena: a range of one of its segments.
pub struct ArenaBlock<A: DeviceAllocator> {
    segment: Arc<A::Block>,
    ticket: Ticket,
    offset: u64,
    bytes: u64,
    /// Bytes that nobody asked for: less than a granule, or what was not worth cutting off.
    left_over: u32,
    arena: u32,
}

impl<A: Sliceable> Arena<A> {
    /// An arena over blocks of `upstream`. With a configuration in pages it takes segments of a
    /// multiple of a page; see [`Arena::over_pages`].
    #[must_use]
    pub fn new(upstream: A, config: ArenaConfig) -> Self {
        let config = raised(config, &upstream);
        Self::over(upstream, config, None)
    }
}

impl<A: VirtualMemory> Arena<A> {
    /// An arena over the virtual memory of `upstream`. With a configuration in segments it takes
    /// these as whole blocks.
    #[must_use]
    pub fn over_pages(upstream: A, config: ArenaConfig) -> Self {
        let config = raised(config, &upstream);
        let pages = PageCalls::new(&upstream, &config);
        Self::over(upstream, config, pages)
    }
}

impl<A: DeviceAllocator> Arena<A> {
    fn over(upstream: A, config: ArenaConfig, pages: Option<PageCalls<A>>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            granule: config.granule,
            apart_above: config.apart_above,
            uncached: config.uncached,
            id: NEXT.fetch_add(1, Relaxed),
            upstream,
            pages,
            ledger: Ledger::new(config.reserved_limit),
            steal: config.steal,
            retention: Retention::default(),
            ticks: Mutex::default(),
            adopted: false,
            space: Lock::new(Space::new(config)),
        }
    }

    /// The allocator below.
    #[must_use]
    pub fn upstream(&self) -> &A {
        &self.upstream
    }

    /// The figures of this moment. Active ones count free ranges that a stream still uses.
    #[must_use]
    pub fn device_stats(&self) -> DeviceStats {
        let space = self.space.lock();
        let mut stats = space.stats;
        (stats.active, stats.active_bytes) = (stats.allocation, stats.allocated_bytes);
        for (id, free) in space.free_ranges() {
            if !self.is_seen_done(free.after.marks()) {
                let bytes = space.ranges.bytes(id);
                stats.active.up(bytes <= config::SMALL, 1);
                stats.active_bytes.up(bytes <= config::SMALL, bytes);
            }
        }
        stats
    }

    /// Lets the peaks start again from the current figures.
    pub fn reset_peak_stats(&self) {
        self.space.lock().stats.reset_peak();
        self.ledger.reset_peak();
    }

    /// Sets all that came and went to 0. Current figures and peaks stay.
    pub fn reset_stats(&self) {
        self.space.lock().stats.reset_accumulated();
    }

    /// The alignment of ranges inside a segment.
    fn inner_alignment(&self) -> u64 {
        let pages = self.pages.as_ref();
        pages.map_or(self.granule, |calls| self.granule.min(calls.device_page_bytes))
    }

    /// The alignment of all blocks of a kind: that of ranges, where segments have it.
    fn alignment(&self, kind: A::Kind) -> u64 {
        if self.pages.is_none() && self.upstream.aligned(kind, self.granule).is_err() {
            return self.granule.min(self.upstream.alignment_of(kind));
        }
        self.inner_alignment()
    }

    fn taker<'r>(&'r self, on: &'r StreamOf<A>) -> Taker<'r, A::Clock> {
        let cpu_touches = A::MEMORY.cpu_touches;
        Taker { clock: self.clock_of(), on, steal: self.steal, cpu_touches }
    }

    fn want(
        &self,
        request: &Request<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<ArenaRequest<A::Kind>, DeviceError> {
        let clock = self.clock_of();
        let refuse = |why, call| Err(DeviceError::new(why, call, 0));
        if !clock.owns(on) {
            return refuse(Why::Foreign, "allocate on a stream that this device does not have");
        }
        if self.upstream.alignment_of(request.kind) > self.inner_alignment() {
            return refuse(Why::Unsupported, "alignment above the granule");
        }
        let too_large = DeviceError::new(Why::TooLarge, "round up to a granule of the arena", 0);
        let bytes = request.bytes.max(1).checked_next_multiple_of(self.granule).ok_or(too_large)?;
        let (kind, lane) = (request.kind, clock.lane(clock.mark(on)));
        let small = bytes <= self.apart_above;
        Ok(ArenaRequest { bytes, requested: request.bytes, sort: Sort { kind, small }, lane })
    }

    /// Hands a range out. It is ordered for its taker.
    #[inline]
    fn block(&self, lent: Lent<A>, want: &ArenaRequest<A::Kind>) -> ArenaBlock<A> {
        self.block_at(lent.block, lent.ticket, &lent.bytes, want)
    }

    #[inline]
    fn block_at(
        &self,
        segment: Arc<A::Block>,
        ticket: Ticket,
        place: &Range<u64>,
        want: &ArenaRequest<A::Kind>,
    ) -> ArenaBlock<A> {
        let bytes = place.end - place.start;
        let left_over = u32::try_from(bytes.saturating_sub(want.requested)).unwrap_or(u32::MAX);
        ArenaBlock { segment, ticket, offset: place.start, bytes, left_over, arena: self.id }
    }

    /// A free range that is ready. The block is made in place, since it is too large to be moved
    /// for nothing.
    #[inline]
    fn ready(&self, want: &ArenaRequest<A::Kind>, on: &StreamOf<A>) -> Option<ArenaBlock<A>> {
        if self.uncached {
            return None;
        }
        let mut space = self.space.lock();
        let id = space.ready(want, &self.taker(on))?;
        space.take_ready(id, want.bytes)?;
        let (place, ticket) = (space.place(id), space.ranges.ticket(id));
        space.count_out(place.end - place.start, want.requested);
        let segment = space.segment(space.ranges.get(id).segment)?.block.clone();
        Some(self.block_at(segment, ticket, &place, want))
    }

    /// A free range that is not ready, without asking the device for memory.
    #[cold]
    fn reuse_late(
        &self,
        want: &ArenaRequest<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<Option<ArenaBlock<A>>, DeviceError> {
        if self.uncached {
            // What frees left is the device's; a refusal is counted there.
            let _ = self.give_back(u64::MAX);
            return Ok(None);
        }
        self.steal(want, &self.taker(on))
    }

    /// All rungs of an arena that stands alone; under a pool, what the pool asks for.
    #[cold]
    fn climb(
        &self,
        want: &ArenaRequest<A::Kind>,
        on: &StreamOf<A>,
    ) -> Result<ArenaBlock<A>, DeviceError> {
        let search = || match self.ready(want, on) {
            Some(block) => Ok(block),
            None => match self.reuse_late(want, on) {
                Ok(Some(block)) => Ok(block),
                Ok(None) => self.grow(want, on),
                // What an event refuses is told only if the device refuses too.
                Err(refused) => self.grow(want, on).map_err(|_| refused),
            },
        };
        let mut found = search();
        for bytes in [want.bytes, u64::MAX] {
            match &found {
                Err(error) if error.is_want_of_memory() && !self.adopted => {
                    self.note_retry();
                    self.give_back(bytes);
                    found = search();
                }
                _ => return found,
            }
        }
        if found.is_err() {
            self.note_refusal();
        }
        found
    }
}

/// The configuration with a granule that the device's sizes and alignment are multiples of.
fn raised<A: Sliceable>(config: ArenaConfig, upstream: &A) -> ArenaConfig {
    let least = upstream.part_granule().max(upstream.alignment_of(A::Kind::default()));
    let granule = config.granule.max(least);
    config.granule(granule)
}

impl<A: DeviceAllocator> Drop for Arena<A> {
    /// Gives all segments back. Blocks that are still out are the pool's, which keeps the arena.
    fn drop(&mut self) {
        self.close();
    }
}

impl<A: DeviceAllocator> fmt::Debug for Arena<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("reserved", &self.ledger.reserved()).finish_non_exhaustive()
    }
}

impl<A: DeviceAllocator> fmt::Debug for ArenaBlock<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.offset + self.bytes;
        f.debug_struct("ArenaBlock").field("bytes", &(self.offset..end)).finish_non_exhaustive()
    }
}
