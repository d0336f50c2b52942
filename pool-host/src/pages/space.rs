//! The reserved range of addresses. A growing part of it has a map of its pages; of that part, the
//! chunks in which memory is are open.
//!
//! ```text
//!   |     links <--|--> tags            marks <--|open|--> range                      |
//! ```
//!
//! Each part grows where an arrow points. Entries of page 0 come last in those that grow down, so that what
//! a small program uses is two mappings, under few pages of the system's page tables: a fork copies both.
#![expect(unsafe_code, reason = "addresses are mapped")]

use super::mapping::Mapping;
use super::page::{Links, Map, Tag};
use super::runs::Run;
use super::{PAGE, STEP};
use crate::sync::atomic::AtomicU64;
use std::ops::Range;

/// Bytes to reserve: the first of these sizes that the system has addresses for.
const SIZES: [usize; 5] = [1 << 40, 1 << 36, 1 << 33, 1 << 30, 1 << 28];
/// Divisor of `RLIMIT_AS`: at most a quarter of that limit is reserved for blocks, because the rest
/// of the program needs addresses too.
const PART_OF_LIMIT: u64 = 4;
/// Bytes by which the usable part of the range first grows: the tags of their pages are on one page.
const FIRST_STEP: usize = 4 << 20;
/// Alignment of the range's start in bytes.
const ALIGN: usize = CHUNK;
/// Bytes that are opened and closed together. Each call takes about 1 us, and to touch the pages of
/// a chunk for the first time takes 100 us and more.
const CHUNK: usize = 2 << 20;
/// Pages of a chunk.
#[expect(clippy::cast_possible_truncation, reason = "512, or 32 with pages of 64 KiB")]
const CHUNK_PAGES: u32 = (CHUNK / PAGE) as u32;

/// Bytes of the range for which the marks of free blocks have one word: as many as the smallest blocks need,
/// of 16 bytes with one bit each.
pub(super) const PER_WORD: usize = 16 * u64::BITS as usize;

/// A reserved range of addresses, and before it the maps of its pages.
///
/// They stay reserved until the process ends. What is not open counts neither as memory of the
/// process (`RLIMIT_DATA`) nor as memory that the system has promised (`vm.overcommit_memory=2`).
#[derive(Debug)]
pub(super) struct Space {
    pub(super) base: *mut u8,
    pub(super) bytes: usize,
    /// Bytes from `base` on that are reserved: some more, so that the range does not end beside
    /// mappings of others.
    reserved: usize,
    /// The map: a tag for each page, and before them links for each, those of the first page last.
    pub(super) tags: *mut Tag,
    /// Number of pages that have entries in the map.
    usable: usize,
    /// One bit for each chunk, set if it is open.
    open: &'static mut [u64],
    /// A word for every [`PER_WORD`] bytes of the range, for the marks of the free blocks of spans: the end
    /// of the words, the first of which comes last.
    pub(super) marks: *mut AtomicU64,
}

/// An array with an entry for each page, which grows from its start up or down.
#[derive(Clone, Copy)]
struct Growing {
    start: *mut u8,
    /// Bytes of an entry.
    entry: usize,
    is_down: bool,
}

impl Growing {
    /// Returns where the bytes begin that are so far from the start, in its direction.
    fn at(self, bytes: &Range<usize>) -> *mut u8 {
        match self.is_down {
            true => self.start.wrapping_sub(bytes.end),
            false => self.start.wrapping_add(bytes.start),
        }
    }

    /// Returns how far from the start the memory of so many pages' entries ends.
    fn end(self, pages: usize) -> usize {
        (pages * self.entry).next_multiple_of(PAGE)
    }
}

// SAFETY: the pointers are addresses of mappings that belong to no thread and are never unmapped.
// They change in methods only that need `&mut self`.
unsafe impl Send for Space {}

impl Space {
    /// Bytes that are opened and closed together.
    pub(super) const CHUNK: usize = CHUNK;

    /// Reserves the addresses. Returns `None` if the system has too few, for instance under
    /// `RLIMIT_AS`. The range has at most `most` bytes.
    pub(super) fn reserve(most: usize, mapping: &Mapping) -> Option<Self> {
        if cfg!(miri) {
            return None; // Miri cannot map addresses without access
        }
        // A program may lower the limit until here.
        let most = most.min(mapping.address_limit().map_or(usize::MAX, Self::most_under));
        SIZES.iter().filter(|bytes| **bytes <= most).find_map(|bytes| {
            let pages = bytes / PAGE;
            let tag_bytes = (pages * size_of::<Tag>()).next_multiple_of(PAGE);
            let link_bytes = (pages * size_of::<Links>()).next_multiple_of(PAGE);
            let words = (bytes / CHUNK).div_ceil(64);
            let open_bytes = (words * size_of::<u64>()).next_multiple_of(PAGE);
            let mark_bytes = (bytes / PER_WORD * size_of::<AtomicU64>()).next_multiple_of(PAGE);
            let map_bytes = link_bytes + tag_bytes + mark_bytes + open_bytes;
            let all_bytes = map_bytes + bytes + ALIGN;
            let start = mapping.reserve(all_bytes)?;
            let base = start.wrapping_add(map_bytes);
            let base = base.map_addr(|address| address.next_multiple_of(ALIGN));
            let open = base.wrapping_sub(open_bytes);
            // SAFETY: these are pages of what was just reserved.
            if !unsafe { mapping.open(open, open_bytes) } {
                // SAFETY: `reserve` just mapped these bytes, and no other code has their address.
                unsafe { Mapping::give_up(start, all_bytes) };
                return None;
            }
            let marks = open.cast();
            // SAFETY: `open` made these bytes readable and writable, and they are never unmapped. They
            // begin at a page, and any bytes are a `u64`. No other reference to them exists.
            let open = unsafe { std::slice::from_raw_parts_mut(open.cast(), words) };
            let reserved = all_bytes - (base.addr() - start.addr());
            let tags = start.wrapping_add(link_bytes).cast();
            Some(Self { base, bytes: *bytes, reserved, tags, usable: 0, open, marks })
        })
    }

    /// Returns the most bytes of a range of a process that may have so many bytes of addresses.
    pub(super) fn most_under(limit: u64) -> usize {
        let fits = |bytes: &&usize| **bytes as u64 <= limit / PART_OF_LIMIT;
        SIZES.iter().find(fits).copied().unwrap_or(0)
    }

    /// Shortens the range to so many bytes, and gives up what is reserved behind them. `publish` gets
    /// the number of bytes before: what lies behind them may then be another's.
    ///
    /// Whole chunks, of which no code needs those that are left out.
    pub(super) fn shorten(&mut self, bytes: usize, publish: impl FnOnce(usize)) {
        let entries = |bytes: usize| self.usable.max(bytes / PAGE);
        let (before, after) = (entries(self.bytes), entries(bytes));
        let stretches = self.maps().map(|map| (map, map.end(after)..map.end(before)));
        publish(bytes);
        self.bytes = bytes;
        let range = Growing { start: self.base, entry: PAGE, is_down: false };
        let range = (range, bytes + ALIGN..self.reserved);
        self.reserved = self.reserved.min(bytes + ALIGN);
        for (map, stretch) in stretches.into_iter().chain([range]) {
            if !stretch.is_empty() {
                // SAFETY: these are reserved addresses that no code uses: of the range, which is
                // shorter, and of maps, behind the entries that pages may get.
                unsafe { Mapping::give_up(map.at(&stretch), stretch.len()) };
            }
        }
    }

    /// Returns the maps: the links, the tags and the marks.
    fn maps(&self) -> [Growing; 3] {
        let marks = PAGE / PER_WORD * size_of::<AtomicU64>();
        [
            Growing { start: self.tags.cast(), entry: size_of::<Links>(), is_down: true },
            Growing { start: self.tags.cast(), entry: size_of::<Tag>(), is_down: false },
            Growing { start: self.marks.cast(), entry: marks, is_down: true },
        ]
    }

    /// Extends the map by at least `pages` pages, all closed. Returns the map of all pages, or
    /// `None` if there are no addresses or no memory.
    pub(super) fn grow(&mut self, pages: usize, mapping: &Mapping) -> Option<Map> {
        // A program may lower the limit unnoticed.
        let most = mapping.address_limit().map_or(usize::MAX, Self::most_under);
        let most = self.bytes.min(most) / PAGE;
        if self.usable.checked_add(pages)? > most {
            return None;
        }
        // As many again as there are: a small program has entries on few pages, and a large one makes
        // few calls.
        let step = self.usable.clamp(FIRST_STEP / PAGE, STEP / PAGE);
        let usable = self.usable.saturating_add(pages.checked_next_multiple_of(step)?).min(most);
        for map in self.maps() {
            let new = map.end(self.usable)..map.end(usable);
            // SAFETY: these are pages of a reserved map, behind those that have entries, so no code
            // uses them.
            if !new.is_empty() && !unsafe { mapping.open(map.at(&new), new.len()) } {
                return None;
            }
        }
        self.usable = usable;
        // SAFETY: `open` made `usable` tags readable and writable, and they are never unmapped. Their
        // bytes are zero or were written as tags, and zero is a valid one. They are atomic, so shared
        // references may be written through. They begin at a page.
        let tags = unsafe { std::slice::from_raw_parts(self.tags, usable) };
        let links = self.tags.cast::<Links>().wrapping_sub(usable);
        // SAFETY: the same holds for the links, which end where the tags begin.
        let links = unsafe { std::slice::from_raw_parts(links, usable) };
        Some(Map { tags, links })
    }

    /// Gives the memory of these pages' entries in the map back to the system. They read as zeroes
    /// from then on.
    ///
    /// All of the pages must be inside of one free run, where no code needs their entries: neither
    /// its first page nor its last.
    pub(super) fn empty_map(&mut self, pages: Range<u32>, mapping: &Mapping) {
        let [links, tags, _] = self.maps();
        for map in [links, tags] {
            let from = (pages.start as usize * map.entry).next_multiple_of(PAGE);
            let inner = from..pages.end as usize * map.entry / PAGE * PAGE;
            if !inner.is_empty() {
                // SAFETY: these are open pages of the map, whose entries no code needs, as the caller
                // says. Zero is a valid entry, and each access to one is atomic. A refusal changes
                // nothing.
                unsafe { mapping.empty(map.at(&inner), inner.len()) };
            }
        }
    }

    /// Opens all chunks of these pages, so that code may touch them. Returns false if the system
    /// has too little memory.
    pub(super) fn open(&mut self, pages: Range<u32>, mapping: &Mapping) -> bool {
        let chunks = pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES);
        let mut opened = None;
        let is_open = self.change(chunks, true, |start, bytes| {
            // SAFETY: `change` passes whole closed chunks of the range, whose contents no code
            // uses.
            let is_open = unsafe { mapping.open(start, bytes) };
            opened = opened.or(is_open.then_some((start, bytes)));
            is_open
        });
        if let Some((start, bytes)) = opened.filter(|_| !is_open) {
            // The rest was refused. What was opened first is mostly all; more stays open.
            let first = self.chunk_at(start);
            let end = self.chunk_at(start.wrapping_add(bytes));
            self.change(first..end, false, |start, bytes| {
                // SAFETY: these chunks were closed before this call, so no code uses them.
                unsafe { mapping.close(start, bytes) }
            });
        }
        is_open
    }

    /// Returns the number of the chunk that begins at an address of the range.
    #[expect(clippy::cast_possible_truncation, reason = "a range has fewer than 2^20 chunks")]
    fn chunk_at(&self, start: *mut u8) -> u32 {
        ((start.addr() - self.base.addr()) / CHUNK) as u32
    }

    /// Closes the chunks in which some of these clean pages are, and no page that is not in
    /// `clean`, the clean run to which they belong.
    pub(super) fn close(&mut self, pages: Range<u32>, clean: Run, mapping: &Mapping) {
        let first = (pages.start / CHUNK_PAGES).max(clean.first.div_ceil(CHUNK_PAGES));
        let end = pages.end.div_ceil(CHUNK_PAGES).min(clean.end() / CHUNK_PAGES);
        // What the system refuses to close stays open.
        self.change(first..end, false, |start, bytes| {
            // SAFETY: `change` passes whole chunks of the range. All of their pages are in a clean
            // run, so no code uses their contents until a request has opened them again.
            unsafe { mapping.close(start, bytes) }
        });
    }

    /// Calls `call` with the address and the bytes of each stretch of chunks that are not `open`,
    /// and notes that they are if it returns true. Stops when it returns false, and then returns
    /// false.
    fn change(
        &mut self,
        chunks: Range<u32>,
        open: bool,
        mut call: impl FnMut(*mut u8, usize) -> bool,
    ) -> bool {
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let differ = (chunk..chunks.end).take_while(|chunk| self.is_open(*chunk) != open);
            let end = chunk + u32::try_from(differ.count()).unwrap_or(0);
            if end > chunk {
                let start = self.base.wrapping_add(chunk as usize * CHUNK);
                if !call(start, (end - chunk) as usize * CHUNK) {
                    return false;
                }
                (chunk..end).for_each(|chunk| self.note(chunk, open));
            }
            chunk = end + 1;
        }
        true
    }

    fn is_open(&self, chunk: u32) -> bool {
        self.open[chunk as usize / 64] >> (chunk % 64) & 1 == 1
    }

    fn note(&mut self, chunk: u32, open: bool) {
        let (word, bit) = (&mut self.open[chunk as usize / 64], 1 << (chunk % 64));
        if open {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }
}
