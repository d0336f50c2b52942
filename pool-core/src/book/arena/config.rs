//! How an arena takes memory from the device and splits it.

use crate::size::{GIB, KIB, MIB};
use crate::stream::order::StealPolicy;

/// How an arena takes memory from the device and splits it. Three are ready made; each number can
/// be changed.
///
/// ```
/// # use pool_core as bucketpool;
/// use bucketpool::{ArenaConfig, KIB};
///
/// let config = ArenaConfig::pages(64 * KIB, 0.05).granule(256);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct ArenaConfig {
    pub(crate) granule: u64,
    pub(crate) source: Source,
    pub(crate) apart_above: u64,
    pub(crate) reserved_limit: u64,
    pub(crate) steal: StealPolicy,
    pub(crate) max_split: u64,
    pub(crate) gc_threshold: Option<f64>,
    pub(crate) uncached: bool,
}

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    /// Segments whose size follows from the request.
    Torch,
    /// Segments of a multiple of this many bytes.
    Segments(u64),
    /// Pages of a reservation, of so many bytes each, committed where a block lies. Free pages go
    /// back once committed bytes would pass `most` times the most bytes handed out at once.
    Pages { bytes: u64, most: f64 },
    /// Each block is a segment that is lent whole: a pool without an arena.
    Blocks,
}

/// The part of the slack that is committed beyond the most allocated bytes. The rest is a reserve
/// for pages that streams still use.
const OWN_SHARE_OF_SLACK: f64 = 0.7;
/// An arena in pages that may commit this many times the peak bounds what its thread caches hold
/// by the peak only.
const LEASES_FROM_SLACK: f64 = 1.08;
/// The slack of an arena that only has to grow gracefully.
const SLACK_TO_GROW: f64 = 0.12;
/// Its pages, where the device has no larger ones.
const PAGE_TO_GROW: u64 = 64 * KIB;
/// Free bytes that an arena in pages always keeps, so that it does not give back what it needs
/// next: this share of the most allocated bytes, at least two pages, at most [`KEPT_MOST`].
const KEPT_SHARE: u64 = 24;
const KEPT_MOST: u64 = 512 * KIB;

/// What `PyTorch`'s allocator calls small (`kSmallSize`, c10/core/AllocatorConfig.h).
pub(crate) const SMALL: u64 = MIB;
/// Its segments for small requests (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 * MIB;
/// Its segments for requests below [`LARGE`] (`kLargeBuffer`); what an oversize block may waste.
pub(crate) const LARGE_SEGMENT: u64 = 20 * MIB;
/// From here on a segment is as large as its request (`kMinLargeAlloc`), a multiple of
/// [`LARGE_STEP`] (`kRoundLarge`).
const LARGE: u64 = 10 * MIB;
const LARGE_STEP: u64 = 2 * MIB;

impl ArenaConfig {
    /// One arena that grows at its end, in steps that follow its size, up to 12 % beyond the most
    /// bytes that were ever handed out at once. Before it would pass that, free pages inside go
    /// back.
    pub fn grow() -> Self {
        Self::pages(PAGE_TO_GROW, SLACK_TO_GROW)
    }

    /// Commits a page of `page_bytes` bytes only where a block lies, and gives wholly free pages
    /// back before it commits more than `1 + slack` times the most bytes that were ever handed out
    /// at once, or two pages more than those. While streams still use what is free, that may be
    /// passed by a sixteenth before the host waits for them. A `slack` of 0.05 is a good start;
    /// less memory costs more calls. A page is at least as large as the device's.
    pub fn pages(page_bytes: u64, slack: f64) -> Self {
        let most = 1.0 + OWN_SHARE_OF_SLACK * slack.max(0.0);
        Self::from(Source::Pages { bytes: page_bytes.clamp(1, 1 << 40).next_power_of_two(), most })
    }

    /// The constants of `PyTorch`'s caching allocator: requests rounded to 512 bytes; up to 1 MiB
    /// from segments of 2 MiB, split if at least 512 bytes remain; under 10 MiB from segments of
    /// 20 MiB, from 10 MiB on from segments of a multiple of 2 MiB, split if more than 1 MiB
    /// remains; the best fit, then the oldest segment, then the lowest offset; small and large
    /// apart.
    pub fn torch() -> Self {
        Self { apart_above: SMALL, ..Self::from(Source::Torch) }
    }

    /// Segments of a multiple of `bytes` bytes, for memory without virtual addresses.
    pub fn segments(bytes: u64) -> Self {
        Self::from(Source::Segments(bytes.max(KIB)))
    }

    /// What a pool without an arena has: blocks of the device as they are.
    pub(crate) fn blocks() -> Self {
        Self { granule: 1, ..Self::from(Source::Blocks) }
    }

    fn from(source: Source) -> Self {
        Self {
            granule: 512,
            source,
            apart_above: 0,
            reserved_limit: u64::MAX,
            steal: StealPolicy::default(),
            max_split: u64::MAX,
            gc_threshold: None,
            uncached: false,
        }
    }

    /// Requests are rounded up to a multiple of this many bytes: a power of two, or the next one.
    /// At least the device's own granule and alignment, at most 1 GiB. 512 unless set.
    pub fn granule(self, bytes: u64) -> Self {
        Self { granule: bytes.clamp(1, GIB).next_power_of_two(), ..self }
    }

    /// A hard ceiling, in bytes, on what is taken from the device. None unless set, here or by
    /// [`PoolBuilder::reserved_limit`](crate::PoolBuilder::reserved_limit); the lower one holds.
    pub fn reserved_limit(self, bytes: u64) -> Self {
        Self { reserved_limit: bytes, ..self }
    }

    /// When a stream may take what another used last. [`StealPolicy::Wait`] unless set.
    pub fn steal(self, steal: StealPolicy) -> Self {
        Self { steal, ..self }
    }

    /// Free ranges above this many bytes are never split, and serve only requests that are above it
    /// too and leave less than 20 MiB over. None unless set. (`PyTorch`: `max_split_size_mb`.)
    pub fn max_split(self, bytes: u64) -> Self {
        Self { max_split: bytes, ..self }
    }

    /// Wholly free segments that nobody used for longest go back before the arena grows beyond this
    /// share of its reserved limit: 0 to 1. Off unless set, and without a limit.
    /// (`PyTorch`: `garbage_collection_threshold`.)
    pub fn gc_threshold(self, share: f64) -> Self {
        Self { gc_threshold: Some(share), ..self }
    }

    /// The bytes of a segment taken for a request.
    pub(crate) fn segment_bytes(&self, bytes: u64) -> Option<u64> {
        match self.source {
            _ if self.uncached => Some(bytes),
            Source::Torch if bytes <= SMALL => Some(SMALL_SEGMENT),
            Source::Torch if bytes < LARGE => Some(LARGE_SEGMENT),
            Source::Torch => bytes.checked_next_multiple_of(LARGE_STEP),
            Source::Segments(step) | Source::Pages { bytes: step, .. } => {
                bytes.checked_next_multiple_of(step)
            }
            Source::Blocks => Some(bytes),
        }
    }

    /// Whether what a request leaves of a range is cut off.
    #[inline]
    pub(crate) fn splits(&self, range: u64, bytes: u64) -> bool {
        let rest = range - bytes;
        match self.source {
            Source::Torch if bytes > SMALL => rest > SMALL && bytes < self.max_split,
            Source::Blocks => false,
            _ => rest >= self.granule,
        }
    }

    /// Keeps nothing: each request is a call to the device of its own size, and each free gives
    /// that back, with the next call that may call the device.
    pub fn uncached(self) -> Self {
        Self { uncached: true, ..self }
    }

    /// Bytes of a page, where memory comes in pages.
    pub(crate) fn page_bytes(&self) -> Option<u64> {
        match self.source {
            Source::Pages { bytes, .. } => Some(bytes),
            Source::Torch | Source::Segments(_) | Source::Blocks => None,
        }
    }

    /// Whether it has `PyTorch`'s constants.
    #[inline]
    pub(crate) fn is_torch(&self) -> bool {
        self.source == Source::Torch
    }

    /// Whether segments are blocks that are lent whole.
    #[inline]
    pub(crate) fn is_blocks(&self) -> bool {
        self.source == Source::Blocks
    }

    /// Whether each search finds the best fit, and of equals the one of the oldest segment.
    #[inline]
    pub(crate) fn is_ordered(&self) -> bool {
        matches!(self.source, Source::Torch | Source::Blocks)
    }

    /// Returns the bytes that may stay committed, given the most bytes that were handed out at
    /// once: at least two pages more than those, so that growth does not give a page back for each
    /// that it takes.
    pub(crate) fn committed_limit(&self, used_peak: u64, page_bytes: u64) -> u64 {
        self.ahead_limit(used_peak, page_bytes).max(used_peak.saturating_add(2 * page_bytes))
    }

    /// Returns the bytes that growth may commit ahead of requests.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates, and the factor is 1 or more"
    )]
    pub(crate) fn ahead_limit(&self, used_peak: u64, page_bytes: u64) -> u64 {
        let Source::Pages { most, .. } = self.source else { return u64::MAX };
        let kept = KEPT_MOST.min((used_peak / KEPT_SHARE).max(2 * page_bytes));
        ((used_peak as f64 * most) as u64).max(used_peak.saturating_add(kept))
    }

    /// The most bytes that thread caches hold. Where the slack is small there is no room for more,
    /// and pages would come and go.
    pub(crate) fn lease_most(&self) -> u64 {
        match self.source {
            Source::Pages { most, .. } if most < LEASES_FROM_SLACK => 64 * KIB,
            _ => u64::MAX,
        }
    }

    /// Whether a range is one that a request may have.
    #[inline]
    pub(crate) fn suits(&self, range: u64, bytes: u64) -> bool {
        self.max_split == u64::MAX
            || (range < self.max_split)
            || (bytes >= self.max_split && range < bytes.saturating_add(LARGE_SEGMENT))
    }
}
