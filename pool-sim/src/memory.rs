//! The memory of a simulated device: handed-out blocks, reservations, and contents.

use pool_core::{DeviceError, Why};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks start at multiples of this many bytes.
pub(super) const ALIGNMENT: u64 = 4096;
/// The byte that fresh memory contains: any value but zero.
const FRESH: u8 = 0xA5;
/// Bytes of a chunk of contents. The first write to a chunk creates it, so memory that is not
/// written to costs nothing.
const CHUNK: u64 = 4096;

#[derive(Debug)]
pub(super) struct SimMemory {
    pub(super) capacity: u64,
    pub(super) held: u64,
    pub(super) held_peak: u64,
    next: u64,
    /// Addresses of freed blocks, by bytes and alignment. The newest is reused first, so that tests
    /// meet addresses that now mean another block.
    spare: BTreeMap<(u64, u64), Vec<u64>>,
    blocks: BTreeMap<u64, Block>,
    contents: BTreeMap<u64, Box<[u8]>>,
}

/// A block, or a reservation with the ranges that have memory behind them.
#[derive(Debug)]
struct Block {
    bytes: u64,
    alignment: u64,
    committed: Option<BTreeMap<u64, u64>>,
}

fn full(call: &'static str) -> DeviceError {
    DeviceError::new(Why::OutOfMemory, call)
}

fn unknown(call: &'static str) -> DeviceError {
    DeviceError::new(Why::Foreign, call)
}

/// Converts an offset in a chunk to an index.
fn index(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl SimMemory {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            held: 0,
            held_peak: 0,
            next: ALIGNMENT,
            spare: BTreeMap::new(),
            blocks: BTreeMap::new(),
            contents: BTreeMap::new(),
        }
    }

    /// Adds `bytes` to the bytes in use, if the capacity allows it.
    fn hold(&mut self, bytes: u64, call: &'static str) -> Result<(), DeviceError> {
        let held = self.held.checked_add(bytes).filter(|held| *held <= self.capacity);
        self.held = held.ok_or(full(call))?;
        self.held_peak = self.held_peak.max(self.held);
        Ok(())
    }

    fn addresses(
        &mut self,
        bytes: u64,
        alignment: u64,
        call: &'static str,
    ) -> Result<u64, DeviceError> {
        if let Some(at) = self.spare.get_mut(&(bytes, alignment)).and_then(Vec::pop) {
            return Ok(at);
        }
        let start = self.next.checked_next_multiple_of(alignment).ok_or(full(call))?;
        let taken = bytes.max(1).checked_next_multiple_of(ALIGNMENT);
        self.next = taken.and_then(|taken| start.checked_add(taken)).ok_or(full(call))?;
        Ok(start)
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let before = self.held;
        self.hold(bytes, "sim allocate")?;
        let at = self.addresses(bytes, ALIGNMENT, "sim allocate");
        let at = at.inspect_err(|_| self.held = before)?;
        self.blocks.insert(at, Block { bytes, alignment: ALIGNMENT, committed: None });
        Ok(at)
    }

    pub(super) fn reserve(&mut self, bytes: u64, alignment: u64) -> Result<u64, DeviceError> {
        let at = self.addresses(bytes, alignment, "sim reserve")?;
        self.blocks.insert(at, Block { bytes, alignment, committed: Some(BTreeMap::new()) });
        Ok(at)
    }

    /// Frees a block or a reservation. Returns the ranges that had memory behind them.
    pub(super) fn free(&mut self, at: u64) -> Result<Vec<Range<u64>>, DeviceError> {
        let block = self.blocks.remove(&at).ok_or(unknown("sim free"))?;
        self.spare.entry((block.bytes, block.alignment)).or_default().push(at);
        let all = BTreeMap::from([(at, at + block.bytes)]);
        let ranges = block.committed.unwrap_or(all).into_iter();
        let ranges: Vec<Range<u64>> = ranges.map(|(start, end)| start..end).collect();
        for range in &ranges {
            self.held -= range.end - range.start;
            self.forget(range);
        }
        Ok(ranges)
    }

    /// Commits memory to a range of a reservation in which nothing is committed.
    pub(super) fn commit(&mut self, pages: &Range<u64>) -> Result<(), DeviceError> {
        let committed = self.reservation(pages, "sim commit")?;
        if committed.range(..pages.end).next_back().is_some_and(|(_, end)| *end > pages.start) {
            return Err(DeviceError::new(Why::Other, "sim commit of committed pages"));
        }
        self.hold(pages.end - pages.start, "sim commit")?;
        self.reservation(pages, "sim commit")?.insert(pages.start, pages.end);
        Ok(())
    }

    /// Decommits a range of a reservation, all of which is committed; `whole`: by whole commits.
    pub(super) fn decommit(&mut self, pages: &Range<u64>, whole: bool) -> Result<(), DeviceError> {
        if !self.holds(pages) {
            return Err(DeviceError::new(Why::Other, "sim decommit of missing pages"));
        }
        let committed = self.reservation(pages, "sim decommit")?;
        let below = committed.range(..pages.end).rev().map(|(start, end)| (*start, *end));
        let overlapping: Vec<_> = below.take_while(|(_, end)| *end > pages.start).collect();
        if whole && overlapping.iter().any(|(start, end)| *start < pages.start || *end > pages.end)
        {
            return Err(DeviceError::new(Why::Other, "sim decommit of a part of a commit"));
        }
        for (start, end) in overlapping {
            committed.remove(&start);
            if start < pages.start {
                committed.insert(start, pages.start);
            }
            if end > pages.end {
                committed.insert(pages.end, end);
            }
        }
        self.held -= pages.end - pages.start;
        self.forget(pages);
        Ok(())
    }

    fn reservation(
        &mut self,
        pages: &Range<u64>,
        call: &'static str,
    ) -> Result<&mut BTreeMap<u64, u64>, DeviceError> {
        let block = self.blocks.range_mut(..=pages.start).next_back();
        let (at, block) = block.ok_or(unknown(call))?;
        let inside = pages.end <= at + block.bytes;
        block.committed.as_mut().filter(|_| inside).ok_or(unknown(call))
    }

    /// Returns whether all of a range is memory that is handed out, in one block.
    pub(super) fn holds(&self, bytes: &Range<u64>) -> bool {
        let Some((at, block)) = self.blocks.range(..=bytes.start).next_back() else { return false };
        let Some(committed) = &block.committed else { return bytes.end <= at + block.bytes };
        let mut until = bytes.start;
        // Adjacent committed ranges are not merged.
        let first = committed.range(..=bytes.start).next_back().map(|(start, _)| *start);
        for (start, end) in committed.range(first.unwrap_or(bytes.start)..bytes.end) {
            if *start <= until && *end > until {
                until = *end;
            }
        }
        until >= bytes.end
    }

    fn forget(&mut self, bytes: &Range<u64>) {
        if !self.contents.is_empty() {
            self.contents.retain(|chunk, _| !bytes.contains(&(chunk * CHUNK)));
        }
    }

    /// Splits a range by chunk. Each item is a chunk's number and the range inside the chunk.
    fn chunks(bytes: &Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let Range { start, end } = *bytes;
        let chunks = if start < end { start / CHUNK..end.div_ceil(CHUNK) } else { 0..0 };
        chunks.map(move |chunk| {
            let first = start.max(chunk * CHUNK) - chunk * CHUNK;
            let last = end.min((chunk + 1) * CHUNK) - chunk * CHUNK;
            (chunk, index(first)..index(last))
        })
    }

    pub(super) fn fill(&mut self, bytes: &Range<u64>, byte: u8) {
        for (chunk, part) in Self::chunks(bytes) {
            self.chunk(chunk)[part].fill(byte);
        }
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (chunk, part) in Self::chunks(&(at..at + bytes.len() as u64)) {
            let (now, later) = rest.split_at(part.len());
            self.chunk(chunk)[part].copy_from_slice(now);
            rest = later;
        }
    }

    pub(super) fn read(&mut self, bytes: &Range<u64>) -> Vec<u8> {
        let mut shown = Vec::new();
        for (chunk, part) in Self::chunks(bytes) {
            match self.contents.get(&chunk) {
                Some(contents) => shown.extend_from_slice(&contents[part]),
                None => shown.resize(shown.len() + part.len(), FRESH),
            }
        }
        shown
    }

    fn chunk(&mut self, chunk: u64) -> &mut [u8] {
        let fresh = || vec![FRESH; index(CHUNK)].into_boxed_slice();
        self.contents.entry(chunk).or_insert_with(fresh)
    }
}
