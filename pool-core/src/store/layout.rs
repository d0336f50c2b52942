//! How the memory of a pool is divided: constants of its arena and of its device.

use crate::port::{DeviceAllocator, DeviceError, Handles, PageCalls, Sliceable, StreamOf};
use crate::ranges::arena::ArenaConfig;
use crate::ranges::segment::Backing;
use std::ops::Range;

/// How memory is divided.
pub(crate) struct Layout<A: DeviceAllocator> {
    /// `None` where blocks are lent whole.
    pub(crate) arena: Option<ArenaConfig>,
    /// `None` where segments are whole blocks of the device.
    pub(crate) pages: Option<PageCalls<A>>,
    /// `None` where blocks are lent whole.
    pub(super) zero_part: Option<ZeroPart<A>>,
    granule: u64,
    /// Alignment of all ranges in their segment, and of blocks of the default kind in memory.
    pub(super) alignment_in_segment: u64,
    pub(crate) alignment: u64,
    /// Nothing is reused (`PyTorch`: `caching_allocator:False`).
    pub(crate) uncached: bool,
}

/// [`Sliceable::zero_part`].
pub(super) type ZeroPart<A> = unsafe fn(
    &A,
    &<A as DeviceAllocator>::Block,
    Range<u64>,
    &StreamOf<A>,
) -> Result<(), DeviceError>;

impl<A: Sliceable> Layout<A> {
    /// Memory that is split as an arena says.
    pub(crate) fn of_arena(allocator: &A, config: ArenaConfig) -> Self {
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
            uncached: config.uncached,
            arena: Some(config),
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

impl<A: DeviceAllocator> Layout<A> {
    /// Whole blocks.
    pub(crate) fn of_blocks() -> Self {
        Self {
            arena: None,
            pages: None,
            zero_part: None,
            granule: 1,
            alignment_in_segment: u64::MAX,
            alignment: u64::MAX,
            uncached: false,
        }
    }

    /// Whether memory is split.
    #[inline]
    pub(crate) fn is_arena(&self) -> bool {
        self.arena.is_some()
    }

    /// How memory is split, for a shard; `None` where blocks are lent whole.
    pub(crate) fn split(&self) -> Option<(ArenaConfig, Backing)> {
        let arena = self.arena.clone()?;
        let backing = match &self.pages {
            None => Backing::Block,
            Some(pages) if pages.handles == Handles::Commit => Backing::Commits(pages.page_bytes),
            Some(pages) => Backing::Pages(pages.page_bytes),
        };
        Some((arena, backing))
    }

    /// Whether the arena has `PyTorch`'s constants.
    pub(crate) fn is_torch(&self) -> bool {
        self.arena.as_ref().is_some_and(ArenaConfig::is_torch)
    }

    /// Sizes of blocks are multiples of this many bytes.
    pub(crate) fn granule(&self) -> u64 {
        self.granule
    }

    /// The bytes that the device must give for a request of this many: whole pages, if it has any.
    pub(crate) fn bytes_to_grow(&self, bytes: u64) -> u64 {
        let page = self.page_bytes().unwrap_or(1);
        bytes.checked_next_multiple_of(page).unwrap_or(bytes)
    }

    /// Bytes of a page; `None` where segments are whole blocks of the device.
    pub(crate) fn page_bytes(&self) -> Option<u64> {
        self.pages.as_ref().map(|pages| pages.page_bytes)
    }

    /// Whether a block may be larger than any single allocation of the device.
    pub(crate) fn has_pages(&self) -> bool {
        self.pages.is_some()
    }
}
