//! The configuration of an arena: how it takes memory from the device and splits it.

use crate::block::Key;
use crate::error::ConfigError;
use crate::ranges::RangeRequest;
use crate::ranges::list::Group;
use crate::size::{GIB, KIB, LARGEST, MIB};
use crate::stream::StealPolicy;
use std::ops::RangeInclusive;

/// The configuration of an arena: how it takes memory from the device and splits it. Three
/// configurations are ready made; each number can be changed.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
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
    least_growth: (f64, u64),
    pub(crate) gc_threshold: Option<f64>,
    pub(crate) uncached: bool,
    given: Given,
}

/// Values as they were given, which [`ArenaConfig::check`] judges; what is used is in range.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Given {
    granule: u64,
    /// Of the least growth.
    share: f64,
    source: GivenSource,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum GivenSource {
    /// It has no numbers.
    Fixed,
    Segments(u64),
    Pages {
        bytes: u64,
        slack: f64,
    },
}

/// The source of an arena's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    /// Segments whose size depends on the request, as in `PyTorch`.
    Torch,
    /// Segments whose size is a multiple of this many bytes.
    Segments(u64),
    /// Pages of a reservation, of `bytes` bytes each, committed where a block lies. The arena gives
    /// free pages back before committed bytes would exceed `most` times the peak of allocated
    /// bytes.
    ///
    /// Each of several shards is split by itself. Where the program named the slack they keep to it;
    /// else they may have `most_of_several`.
    Pages { bytes: u64, most: f64, most_of_several: f64 },
}

/// What several shards of [`ArenaConfig::grow`] may have, as a multiple of the peak: as much as shards of
/// whole blocks (`store/bound.rs`). With less, threads that free what others allocate take single ranges
/// from each other's shards for ever.
const MOST_OF_SEVERAL_TO_GROW: f64 = 1.5;
/// The share of the slack that may be committed above the peak of allocated bytes. The rest is a
/// reserve for pages that streams still use.
const OWN_SHARE_OF_SLACK: f64 = 0.7;
/// The slack of [`ArenaConfig::grow`].
const SLACK_TO_GROW: f64 = 0.12;
/// The least growth over memory with handles: a share of what is committed, and bytes. Of the
/// bundled traces and a training, shares of 1/16 to 1/64 and 2 to 16 MiB, these reserve least for
/// their calls (docs/decisions/045-handles.md).
const LEAST_GROWTH: (f64, u64) = (1.0 / 32.0, 8 * MIB);
/// The page size of [`ArenaConfig::grow`], unless the device has larger pages.
const PAGE_TO_GROW: u64 = 64 * KIB;
/// Determines the free bytes that an arena in pages always keeps, so that it does not give back
/// pages that it needs next: `peak / KEPT_SHARE`, at least two pages, at most [`KEPT_MOST`].
const KEPT_SHARE: u64 = 24;
const KEPT_MOST: u64 = 512 * KIB;

/// The largest request that `PyTorch`'s allocator calls small (`kSmallSize`,
/// c10/core/AllocatorConfig.h).
pub(crate) const SMALL: u64 = MIB;
/// The segment size for small requests (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 * MIB;
/// The segment size for requests below [`LARGE`] (`kLargeBuffer`), and the most bytes that an
/// oversize block may waste.
pub(crate) const LARGE_SEGMENT: u64 = 20 * MIB;
/// The request size from which a segment is as large as its request (`kMinLargeAlloc`), rounded up
/// to a multiple of [`LARGE_STEP`] (`kRoundLarge`).
const LARGE: u64 = 10 * MIB;
const LARGE_STEP: u64 = 2 * MIB;

impl ArenaConfig {
    /// The bytes that a page of [`ArenaConfig::pages`] may have; also a power of two.
    pub const PAGES: RangeInclusive<u64> = 4 * KIB..=GIB;
    /// The most slack of [`ArenaConfig::pages`], as a share of the peak of live bytes.
    pub const MAX_SLACK: f64 = 10.0;

    /// Returns the configuration of one arena that grows at its end. It grows in steps that follow
    /// its size, up to 12 % above the peak of allocated bytes, or with several shards to 1.5 times the
    /// peak. Before it would exceed that, it gives free pages back. Over memory with handles, such as CUDA's, it grows by
    /// [`ArenaConfig::least_growth`], and gives nothing back to grow.
    pub fn grow() -> Self {
        Self::in_pages(PAGE_TO_GROW, SLACK_TO_GROW, MOST_OF_SEVERAL_TO_GROW)
    }

    /// Returns the configuration of an arena that commits a page of `page_bytes` bytes only where a
    /// block lies.
    ///
    /// The arena gives wholly free pages back before it commits more than `1 + slack` times the
    /// peak of allocated bytes, or two pages more than the peak. While streams still use free
    /// pages, committed bytes may exceed this limit by a sixteenth before the host waits for the
    /// streams. A `slack` of 0.05 is a good start; less memory costs more calls. A page is at least
    /// as large as the device's.
    pub fn pages(page_bytes: u64, slack: f64) -> Self {
        Self::in_pages(page_bytes, slack, 1.0 + slack.max(0.0))
    }

    fn in_pages(page_bytes: u64, slack: f64, most_of_several: f64) -> Self {
        let most = 1.0 + OWN_SHARE_OF_SLACK * slack.max(0.0);
        let bytes = page_bytes.clamp(1, 1 << 40).next_power_of_two();
        let source = GivenSource::Pages { bytes: page_bytes, slack };
        Self::from(Source::Pages { bytes, most, most_of_several }).given(source)
    }

    /// Returns a configuration with the constants of `PyTorch`'s caching allocator.
    ///
    /// Requests are rounded to 512 bytes. Requests up to 1 MiB come from segments of 2 MiB, which
    /// are split if at least 512 bytes remain. Requests under 10 MiB come from segments of 20 MiB,
    /// and requests from 10 MiB on from segments of a multiple of 2 MiB, which are split if more
    /// than 1 MiB remains. A search takes the best fit, then the oldest segment, then the lowest
    /// offset. Small and large requests use different segments.
    pub fn torch() -> Self {
        Self { apart_above: SMALL, ..Self::from(Source::Torch) }
    }

    /// Returns the configuration of an arena whose segments are multiples of `bytes` bytes, for
    /// memory without virtual addresses.
    pub fn segments(bytes: u64) -> Self {
        Self::from(Source::Segments(bytes.max(KIB))).given(GivenSource::Segments(bytes))
    }

    fn from(source: Source) -> Self {
        Self {
            granule: 512,
            source,
            apart_above: 0,
            reserved_limit: u64::MAX,
            steal: StealPolicy::default(),
            max_split: u64::MAX,
            least_growth: LEAST_GROWTH,
            gc_threshold: None,
            uncached: false,
            given: Given { granule: 512, share: LEAST_GROWTH.0, source: GivenSource::Fixed },
        }
    }

    fn given(self, source: GivenSource) -> Self {
        Self { given: Given { source, ..self.given }, ..self }
    }

    /// Refuses values that are out of range, and were replaced by others.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Given { granule, share, source } = self.given;
        match source {
            GivenSource::Segments(bytes) if bytes < KIB => {
                let setting = format!("`segments` of {bytes} B");
                return Err(ConfigError::new(setting, "1 KiB or more"));
            }
            GivenSource::Pages { bytes, .. }
                if !(bytes.is_power_of_two() && Self::PAGES.contains(&bytes)) =>
            {
                let setting = format!("`pages` of {bytes} B");
                return Err(ConfigError::new(setting, "a power of two, 4 KiB to 1 GiB"));
            }
            GivenSource::Pages { slack, .. } if !(0.0..=Self::MAX_SLACK).contains(&slack) => {
                let setting = format!("a slack of {slack}");
                return Err(ConfigError::new(setting, "a share from 0 to 10; 0.05 is 5 %"));
            }
            _ => {}
        }
        if !granule.is_power_of_two() || granule > GIB {
            let setting = format!("`granule` of {granule} B of an arena");
            return Err(ConfigError::new(setting, "a power of two up to 1 GiB"));
        }
        if !(0.0..=1.0).contains(&share) {
            let setting = format!("a `least_growth` of {share}");
            return Err(ConfigError::new(setting, "a share from 0 to 1; 0.03125 is 1/32"));
        }
        match self.gc_threshold {
            Some(share) if !(share > 0.0 && share < 1.0) => {
                let setting = format!("`gc_threshold` of {share}");
                Err(ConfigError::new(setting, "a share above 0 and below 1, such as 0.8"))
            }
            _ => Ok(()),
        }
    }

    /// Sets the granule in bytes: requests are rounded up to a multiple of it. The granule is
    /// rounded up to a power of two, is at least the device's own granule and alignment, and at
    /// most 1 GiB. 512 unless set.
    pub fn granule(self, bytes: u64) -> Self {
        let given = Given { granule: bytes, ..self.given };
        Self { granule: bytes.clamp(1, GIB).next_power_of_two(), given, ..self }
    }

    /// Sets the limit, in bytes, on reserved memory. No limit unless set, here or by
    /// [`PoolBuilder::reserved_limit`](crate::PoolBuilder::reserved_limit); the lower one holds.
    pub fn reserved_limit(self, bytes: u64) -> Self {
        Self { reserved_limit: bytes, ..self }
    }

    /// Sets when a stream may steal memory that another stream freed. [`StealPolicy::Wait`] unless
    /// set.
    pub fn steal(self, steal: StealPolicy) -> Self {
        Self { steal, ..self }
    }

    /// Sets the least growth over memory with handles
    /// ([`Handles::Commit`](crate::port::Handles::Commit)): a share of what the arena has committed,
    /// and bytes, whichever is more. CUDA's calls cost time by their number and hardly by their size.
    /// 1/32 and 8 MiB unless set; less takes less memory ahead of requests, and more calls.
    pub fn least_growth(self, share: f64, bytes: u64) -> Self {
        let given = Given { share, ..self.given };
        Self { least_growth: (share.clamp(0.0, 1.0), bytes), given, ..self }
    }

    /// Sets the size, in bytes, above which free ranges are never split. These ranges serve only
    /// requests that are above this size too and leave less than 20 MiB of the range unused. No
    /// such size unless set. (`PyTorch`: `max_split_size_mb`.)
    pub fn max_split(self, bytes: u64) -> Self {
        Self { max_split: bytes, ..self }
    }

    /// Sets the share of the reserved limit, or of the device's memory where that is less, 0 to 1,
    /// above which the arena gives segments back before it grows. It gives back wholly free
    /// segments, the least recently used first. Off unless set, and off without a limit over a
    /// device that does not tell its memory. (`PyTorch`: `garbage_collection_threshold`.)
    pub fn gc_threshold(self, share: f64) -> Self {
        Self { gc_threshold: Some(share), ..self }
    }

    /// Returns a request whose class has this many bytes, as a search needs it.
    #[inline]
    pub(crate) fn request<K: Copy>(&self, key: &Key<K>, bytes: u64) -> RangeRequest<K> {
        let group = Group { kind: key.kind, small: bytes <= self.apart_above };
        RangeRequest { bytes, group, stream: key.stream_id }
    }

    /// Returns the bytes of the segment that is taken for a request; `None` for one that no address
    /// space holds.
    pub(crate) fn segment_bytes(&self, bytes: u64) -> Option<u64> {
        let rounded = match self.source {
            _ if self.uncached => Some(bytes),
            Source::Torch if bytes <= SMALL => Some(SMALL_SEGMENT),
            Source::Torch if bytes < LARGE => Some(LARGE_SEGMENT),
            Source::Torch => bytes.checked_next_multiple_of(LARGE_STEP),
            Source::Segments(step) | Source::Pages { bytes: step, .. } => {
                bytes.checked_next_multiple_of(step)
            }
        };
        [rounded, Some(bytes)].into_iter().flatten().find(|bytes| *bytes <= LARGEST)
    }

    /// Returns whether the rest of a range is split off when a request of `bytes` bytes takes it.
    #[inline]
    pub(crate) fn splits(&self, range: u64, bytes: u64) -> bool {
        let rest = range - bytes;
        match self.source {
            Source::Torch if bytes > SMALL => rest > SMALL && bytes < self.max_split,
            _ => rest >= self.granule,
        }
    }

    /// Turns caching off: each request is a call to the device with the size of the request. Each
    /// free gives the memory back with the next call that may call the device.
    pub fn uncached(self) -> Self {
        Self { uncached: true, ..self }
    }

    /// Returns the bytes of a page, or `None` if the memory does not come in pages.
    pub(crate) fn page_bytes(&self) -> Option<u64> {
        match self.source {
            Source::Pages { bytes, .. } => Some(bytes),
            Source::Torch | Source::Segments(_) => None,
        }
    }

    /// Returns whether the arena has `PyTorch`'s constants.
    #[inline]
    pub(crate) fn is_torch(&self) -> bool {
        self.source == Source::Torch
    }

    /// Returns whether each search finds the best fit, and among equal fits that in the oldest
    /// segment.
    #[inline]
    pub(crate) fn is_ordered(&self) -> bool {
        self.is_torch()
    }

    /// Returns the bytes that may stay committed in so many shards, given the peak of allocated bytes.
    /// They are at least two pages more than the peak, so that growth does not give a page back for
    /// each page that it takes.
    pub(crate) fn committed_limit(&self, used_peak: u64, page_bytes: u64, shards: usize) -> u64 {
        self.ahead_limit(used_peak, page_bytes, shards)
            .max(used_peak.saturating_add(2 * page_bytes))
    }

    /// Returns the bytes that growth may commit ahead of requests in so many shards without streams.
    /// Each of several is split by itself, so that they have the whole slack, with no reserve.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates, and the factor is 1 or more"
    )]
    pub(crate) fn ahead_limit(&self, used_peak: u64, page_bytes: u64, shards: usize) -> u64 {
        let Source::Pages { most, most_of_several, .. } = self.source else { return u64::MAX };
        let most = if shards == 1 { most } else { most_of_several };
        let kept = KEPT_MOST.min((used_peak / KEPT_SHARE).max(2 * page_bytes));
        ((used_peak as f64 * most) as u64).max(used_peak.saturating_add(kept))
    }

    /// Returns the bytes that one call should commit over memory with handles, given what is
    /// committed and how much is missing.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates, and the share is at most 1"
    )]
    pub(crate) fn growth(&self, committed: u64, missing: u64) -> u64 {
        let (share, bytes) = self.least_growth;
        missing.max((committed as f64 * share) as u64).max(bytes)
    }

    /// Returns the size from which on free ranges are too large for a request of `bytes` bytes.
    #[inline]
    pub(crate) fn too_large_for(&self, bytes: u64) -> u64 {
        if bytes < self.max_split { self.max_split } else { bytes.saturating_add(LARGE_SEGMENT) }
    }
}
