//! The reserved range of addresses. A growing part of it has a map of its pages; of that part, the
//! chunks in which memory is are open.
#![expect(unsafe_code, reason = "addresses are mapped")]

use super::mapping::Mapping;
use super::page::Page;
use super::runs::Run;
use super::{PAGE, STEP};
use crate::sync::atomic::AtomicU64;
use crate::system;
use std::ops::Range;

/// Bytes to reserve: the first of these sizes that the system has addresses for.
const SIZES: [usize; 5] = [1 << 40, 1 << 36, 1 << 33, 1 << 30, 1 << 28];
/// Divisor of `RLIMIT_AS`: at most a quarter of that limit is reserved for blocks, because the rest
/// of the program needs addresses too.
const PART_OF_LIMIT: u64 = 4;
/// Alignment of the range's start in bytes.
const ALIGN: usize = CHUNK;
/// Bytes that are opened and closed together. Each call takes about 1 us, and to touch the pages of
/// a chunk for the first time takes 100 us and more.
const CHUNK: usize = 2 << 20;
/// Pages of a chunk.
#[expect(clippy::cast_possible_truncation, reason = "512, or 32 with pages of 64 KiB")]
const CHUNK_PAGES: u32 = (CHUNK / PAGE) as u32;

/// Bytes of the range for which the marks of free blocks have one bit. Blocks of spans begin at multiples of it.
pub(super) const PER_MARK: usize = 16;
/// Bytes of the range for which they have one word.
const PER_WORD: usize = PER_MARK * u64::BITS as usize;

/// A reserved range of addresses, and another for the map of its pages.
///
/// Both stay reserved until the process ends. What is not open counts neither as memory of the
/// process (`RLIMIT_DATA`) nor as memory that the system has promised (`vm.overcommit_memory=2`).
#[derive(Debug)]
pub(super) struct Space {
    pub(super) base: *mut u8,
    pub(super) bytes: usize,
    pub(super) map: *mut Page,
    /// Number of pages that have entries in the map.
    usable: usize,
    /// One bit for each chunk, set if it is open. It lies behind the map.
    open: &'static mut [u64],
    /// One bit for every [`PER_MARK`] bytes of the range, set if a free block of a span begins there.
    pub(super) marks: *mut AtomicU64,
}

// SAFETY: the pointers are addresses of mappings that belong to no thread and are never unmapped.
// They change in methods only that need `&mut self`.
unsafe impl Send for Space {}

impl Space {
    /// Reserves the addresses. Returns `None` if the system has too few, for instance under
    /// `RLIMIT_AS`. The range has at most `most` bytes.
    pub(super) fn reserve(most: usize, mapping: &Mapping) -> Option<Self> {
        if cfg!(miri) {
            return None; // Miri cannot map addresses without access
        }
        // A program may lower the limit until here, and may have forbidden itself to ask for it.
        let limit = if mapping.is_quiet() { None } else { system::address_limit_bytes() };
        let part = limit.map(|limit| limit / PART_OF_LIMIT);
        let may =
            |bytes: &&usize| **bytes <= most && part.is_none_or(|part| **bytes as u64 <= part);
        SIZES.iter().filter(may).find_map(|bytes| {
            let base = mapping.reserve(bytes + ALIGN)?;
            let (map, open, marks) = Self::reserve_map(*bytes, mapping).or_else(|| {
                // SAFETY: `reserve` just mapped these bytes, and no other code has their address.
                unsafe { libc::munmap(base.cast(), bytes + ALIGN) };
                None
            })?;
            let base = base.map_addr(|address| address.next_multiple_of(ALIGN));
            Some(Self { base, bytes: *bytes, map, usable: 0, open, marks })
        })
    }

    /// Reserves the map of so many bytes, the bits behind it, which become usable, and the marks.
    fn reserve_map(
        bytes: usize,
        mapping: &Mapping,
    ) -> Option<(*mut Page, &'static mut [u64], *mut AtomicU64)> {
        let map_bytes = (bytes / PAGE * size_of::<Page>()).next_multiple_of(PAGE);
        let words = (bytes / CHUNK).div_ceil(64);
        let open_bytes = (words * size_of::<u64>()).next_multiple_of(PAGE);
        let mark_bytes = bytes / PER_WORD * size_of::<AtomicU64>();
        let all_bytes = map_bytes + open_bytes + mark_bytes;
        let map = mapping.reserve(all_bytes)?;
        let open = map.wrapping_add(map_bytes);
        // SAFETY: these are pages of what was just reserved.
        if !unsafe { mapping.open(open, open_bytes) } {
            // SAFETY: `reserve` just mapped these bytes, and no other code has their address.
            unsafe { libc::munmap(map.cast(), all_bytes) };
            return None;
        }
        let marks = open.wrapping_add(open_bytes).cast();
        // SAFETY: `open` made these bytes readable and writable, and they are never unmapped. They
        // begin at a page, and any bytes are a `u64`. No other reference to them exists.
        let open = unsafe { std::slice::from_raw_parts_mut(open.cast(), words) };
        Some((map.cast(), open, marks))
    }

    /// Extends the map by at least `pages` pages, all closed. Returns the map of all pages, or
    /// `None` if there are no addresses or no memory.
    pub(super) fn grow(&mut self, pages: usize, mapping: &Mapping) -> Option<&'static [Page]> {
        let usable = self.usable.checked_add(pages.checked_next_multiple_of(STEP / PAGE)?)?;
        if usable > self.bytes / PAGE {
            return None;
        }
        let entries = |pages: usize| (pages * size_of::<Page>()).next_multiple_of(PAGE);
        let (from, to) = (entries(self.usable), entries(usable));
        let more = self.map.cast::<u8>().wrapping_add(from);
        // SAFETY: these are pages of the reserved map, behind those that have entries, so no code
        // uses them.
        if to > from && !unsafe { mapping.open(more, to - from) } {
            return None;
        }
        let words = |pages: usize| pages * PAGE / PER_WORD * size_of::<AtomicU64>();
        let (from, to) = (words(self.usable), words(usable));
        // SAFETY: these are whole pages of the reserved marks, since `STEP` bytes have 512 KiB of
        // them. They are behind those that are open, so no code uses them.
        if !unsafe { mapping.open(self.marks.cast::<u8>().wrapping_add(from), to - from) } {
            return None;
        }
        self.usable = usable;
        // SAFETY: `open` made `usable` entries of the map readable and writable, and they are never
        // unmapped. Their bytes are zero or were written as entries, and zero bytes are a valid
        // `Page`. All fields are atomic, so shared references may be written through. The map is
        // aligned to a page.
        Some(unsafe { std::slice::from_raw_parts(self.map, usable) })
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
