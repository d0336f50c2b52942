//! A map of the memory of a pool: its segments and their ranges, and their picture for a terminal.

use crate::size::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// All memory that a pool has from its device, at one moment.
///
/// `Display` draws the parts that have memory for a terminal, with a legend: one line or more for
/// each segment, all on one scale. A character shows the state of most of its bytes.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{ArenaConfig, BucketPool, MIB, sim::SimDevice};
///
/// let config = ArenaConfig::segments(4 * MIB);
/// let pool = BucketPool::builder(SimDevice::new()).arena(config).build();
/// let held = [(); 3].map(|()| pool.allocate(MIB));
/// let [_first, second, _third] = held;
/// drop(second);
/// let map = pool.map();
/// assert_eq!((map.free_bytes(), map.largest_free_bytes()), (2 * MIB, MIB));
/// assert_eq!(map.fragmentation(), 0.5);
/// // The pool has not asked yet whether the stream of the second is done: `~`.
/// let picture = map.to_string();
/// assert!(picture.lines().last().unwrap().starts_with("one character is 16.00 KiB (# used  "));
/// assert_eq!(picture.matches('~').count(), 64 + 1); // 1 MiB, and the legend
/// # Ok::<(), pool_core::AllocError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryMap {
    /// The segments, the oldest number first.
    pub segments: Vec<SegmentMap>,
}

/// A segment: a block of the device, or a reservation of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SegmentMap {
    /// Its bytes.
    pub bytes: u64,
    /// Its ranges in the order of their addresses. They tile it. Without an arena there is one.
    pub ranges: Vec<RangeMap>,
}

/// A range of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RangeMap {
    /// Offsets in bytes from the start of the segment.
    pub range: Range<u64>,
    /// Its state.
    pub state: RangeState,
    /// The id of the stream that used the range last; `None` while the range is in use, and if no
    /// stream or several streams used it.
    #[serde(default)]
    pub stream: Option<u64>,
    /// The id of the range's buffer in events ([`PoolEvent::id`](crate::observe::PoolEvent::id)),
    /// by which a `LeakTracker` finds its tag and its requested bytes; 0 while the range is not in
    /// use.
    #[serde(default)]
    pub id: u64,
    /// Allocations of the pool since it was freed; 0 while it is used.
    #[serde(default)]
    pub age: u64,
}

/// The state of a range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RangeState {
    /// A buffer has it.
    Used,
    /// Kept for a graph.
    Private,
    /// Free, with memory behind it.
    Free,
    /// Free, behind work that is not seen done.
    Pending,
    /// Addresses without memory.
    Hole,
}

impl RangeMap {
    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it is free: pending or not.
    #[must_use]
    pub fn is_free(&self) -> bool {
        matches!(self.state, RangeState::Free | RangeState::Pending)
    }
}

impl SegmentMap {
    fn bytes_of(&self, states: &[RangeState]) -> u64 {
        let ranges = self.ranges.iter().filter(|range| states.contains(&range.state));
        ranges.map(RangeMap::bytes).sum()
    }

    /// Bytes that have memory behind them.
    #[must_use]
    pub fn committed_bytes(&self) -> u64 {
        self.bytes - self.bytes_of(&[RangeState::Hole])
    }

    /// Bytes that buffers and graphs have.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.bytes_of(&[RangeState::Used, RangeState::Private])
    }
}

impl MemoryMap {
    fn free_ranges(&self) -> impl Iterator<Item = u64> {
        let ranges = self.segments.iter().flat_map(|segment| &segment.ranges);
        ranges.filter(|range| range.is_free()).map(RangeMap::bytes)
    }

    /// Free bytes, those of pending ranges included.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_ranges().sum()
    }

    /// Bytes of the largest free range: the largest request that needs nothing from the device.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        self.free_ranges().max().unwrap_or(0)
    }

    /// External fragmentation, from 0 to 1: `1 - largest_free_bytes / free_bytes`; 0 if nothing is
    /// free.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        match self.free_bytes() {
            0 => 0.0,
            free => 1.0 - self.largest_free_bytes() as f64 / free as f64,
        }
    }
}

/// Characters of a line.
const WIDTH: usize = 64;
/// Characters of a picture that stand for memory, beyond one for each segment.
const MAX_CELLS: usize = 4 * WIDTH;
/// Segments that are drawn; of further ones the picture has the sums.
const MAX_SEGMENTS: usize = 32;
/// The fewest bytes of a character.
const MIN_UNIT: u64 = 512;
/// The states that have memory; where two have as many bytes of a character, the first is drawn.
const STATES: [RangeState; 4] =
    [RangeState::Used, RangeState::Private, RangeState::Free, RangeState::Pending];

/// The bytes of each of [`STATES`] that one character of a picture stands for.
type Cell = [u64; STATES.len()];

impl RangeState {
    fn sign(self) -> char {
        match self {
            Self::Used => '#',
            Self::Private => 'p',
            Self::Free => '.',
            Self::Pending => '~',
            Self::Hole => ' ',
        }
    }
}

/// The parts of a segment that have memory, `unit` bytes each, by their number.
fn cells(segment: &SegmentMap, unit: u64) -> BTreeMap<u64, Cell> {
    let mut cells: BTreeMap<u64, Cell> = BTreeMap::new();
    for one in &segment.ranges {
        let Some(state) = STATES.iter().position(|state| *state == one.state) else { continue };
        let mut start = one.range.start;
        while start < one.range.end {
            let number = start / unit;
            let end = (number + 1).saturating_mul(unit).min(one.range.end);
            cells.entry(number).or_default()[state] += end - start;
            start = end;
        }
    }
    cells
}

/// Returns how many parts of `unit` bytes of a segment have memory. A part that holds several
/// ranges counts once.
fn count_cells(segment: &SegmentMap, unit: u64) -> usize {
    let (mut count, mut last) = (0, None);
    for one in segment.ranges.iter().filter(|one| one.state != RangeState::Hole && one.bytes() > 0)
    {
        let (first, end) = (one.range.start / unit, (one.range.end - 1) / unit + 1);
        let first = first.max(last.unwrap_or(0));
        count += usize::try_from(end.saturating_sub(first)).unwrap_or(usize::MAX / 2);
        last = Some(end);
    }
    count
}

/// Returns the bytes of a character: one scale for all segments, so that they can be compared.
fn unit_of(segments: &[SegmentMap]) -> u64 {
    let fits = |unit: &u64| {
        let count: usize = segments.iter().map(|segment| count_cells(segment, *unit)).sum();
        count <= MAX_CELLS + segments.len()
    };
    let mut units = std::iter::successors(Some(MIN_UNIT), |unit| unit.checked_mul(2));
    units.find(fits).unwrap_or(1 << 63)
}

/// Returns the lines of a segment, each with the offset of its first byte. Parts without memory
/// between others are one space.
fn lines(segment: &SegmentMap, unit: u64) -> Vec<(u64, String)> {
    let mut lines: Vec<(u64, String)> = Vec::new();
    let mut last = None;
    for (number, bytes) in cells(segment, unit) {
        // If several states have the most bytes, `max_by_key` returns the last of them, and `rev`
        // makes that the first of `STATES`.
        let most = (0..STATES.len()).rev().max_by_key(|state| bytes[*state]).unwrap_or(0);
        let has_gap = last.map_or(number > 0, |last| number > last + 1);
        last = Some(number);
        match lines.last_mut() {
            Some((_, line)) if line.len() + usize::from(has_gap) < WIDTH => {
                line.extend(has_gap.then_some(RangeState::Hole.sign()));
                line.push(STATES[most].sign());
            }
            // The first line is drawn without its offset. A space shows that a part without memory
            // comes before it.
            None if has_gap => lines.push((number * unit, format!(" {}", STATES[most].sign()))),
            _ => lines.push((number * unit, STATES[most].sign().into())),
        }
    }
    lines
}

impl fmt::Display for MemoryMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, others) = self.segments.split_at(self.segments.len().min(MAX_SEGMENTS));
        let unit = unit_of(shown);
        for (number, segment) in shown.iter().enumerate() {
            let (committed, used) = (segment.committed_bytes(), segment.used_bytes());
            let mut lines = lines(segment, unit).into_iter();
            let (_, first) = lines.next().unwrap_or_default();
            let committed = Bytes(committed).to_string();
            writeln!(f, "{number:>4} {committed:>12} |{first}| {} used", Bytes(used))?;
            for (offset, line) in lines {
                writeln!(f, "from {:>12} |{line}|", Bytes(offset))?;
            }
        }
        if !others.is_empty() {
            let committed: u64 = others.iter().map(SegmentMap::committed_bytes).sum();
            let used: u64 = others.iter().map(SegmentMap::used_bytes).sum();
            let (count, committed, used) = (others.len(), Bytes(committed), Bytes(used));
            writeln!(f, "{count} more segments: {committed}, {used} used")?;
        }
        let (free, largest) = (Bytes(self.free_bytes()), Bytes(self.largest_free_bytes()));
        write!(f, "{free} free, the largest range {largest}")?;
        writeln!(f, ", fragmentation {:.2}", self.fragmentation())?;
        write!(
            f,
            "one character is {} (# used  . free  ~ free, its last work not seen done  p kept for a \
             graph), a space is addresses without memory",
            Bytes(unit)
        )
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod picture_tests {
    use super::*;
    use crate::observe::map::RangeMap;
    use crate::size::{GIB, KIB, MIB};

    fn segment(parts: &[(u64, RangeState)]) -> SegmentMap {
        let mut start = 0;
        let ranges = parts.iter().map(|(bytes, state)| {
            let range = start..start + bytes;
            start += bytes;
            RangeMap { range, state: *state, stream: None, id: 0, age: 0 }
        });
        let ranges: Vec<_> = ranges.collect();
        SegmentMap { bytes: start, ranges }
    }

    #[test]
    fn only_what_has_memory_is_drawn_with_a_space_for_a_gap() {
        use RangeState::{Free, Hole, Pending, Private, Used};
        let arena = segment(&[
            (8 * MIB, Used),
            (2 * MIB, Free),
            (2 * MIB, Pending),
            (GIB, Hole),
            (MIB, Private),
            (46 * GIB, Hole),
        ]);
        let small = segment(&[(64 * KIB, Hole), (64 * KIB, Used), (GIB, Hole), (64 * KIB, Free)]);
        let map = MemoryMap { segments: vec![arena, small] };
        insta::assert_snapshot!(map);
    }

    #[test]
    fn a_long_segment_has_several_lines_with_their_offsets() {
        let mut parts = Vec::new();
        for _ in 0..20 {
            parts.extend([(5 * MIB, RangeState::Used), (5 * MIB, RangeState::Free)]);
        }
        parts.push((47 * GIB, RangeState::Hole));
        let map = MemoryMap { segments: vec![segment(&parts)] };
        insta::assert_snapshot!(map);
    }

    #[test]
    fn a_picture_has_a_bounded_number_of_lines() {
        let page = [(64 * KIB, RangeState::Used), (64 * KIB, RangeState::Hole)];
        let pages = segment(&page.repeat(100_000));
        let blocks: Vec<_> = (0..1000).map(|_| segment(&[(MIB, RangeState::Free)])).collect();
        for segments in [vec![pages], blocks, Vec::new()] {
            let map = MemoryMap { segments };
            let picture = map.to_string();
            assert!(picture.lines().count() <= MAX_SEGMENTS + 2 * MAX_CELLS / WIDTH, "{picture}");
            assert!(picture.lines().all(|line| line.len() <= 160), "{picture}");
        }
    }
}
