//! Spans: runs of pages that are divided into blocks of one class, for blocks of up to 64 KiB.
//!
//! ```text
//!   pages   |span of a class                    |run of a large block |
//!   map     |class,0|class,1|class,2|class,3|...|length|.|.|.|.|length|
//!   marks   |1.11...                     |...     one bit for each block of a span, set while it is
//!                                                 free: in the first words of the span's pages
//! ```
//!
//! A block has no header: from its address follow the page, from the page's entry the class and the
//! first page of the span. Free blocks are marked beside the pages and not in them, so a write to a
//! freed block breaks nothing here, and a page whose blocks are all free can lose its memory.
//!
//! The [`Spans`] of a class are those that have a free block, in a list. Whoever works on them has the
//! lock of the class; other threads only read which class a page has. A span whose blocks are all
//! free goes back to the pages at once.
#![expect(unsafe_code, reason = "blocks are addresses in pages")]

use super::page::{Links, PageState};
use super::space::PER_WORD;
use super::{PAGE, Pages};
use crate::class::Class;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{mem, ptr};

/// End of the list. Page 0 is in no span.
const NONE: u32 = 0;
/// Marks in a word.
const BITS: usize = u64::BITS as usize;
/// Bits of [`Links::older`] of a span's first page that hold the first word to search.
const WORD_BITS: u32 = 12;
/// In place of a round: the memory of the span's free pages has gone back.
const GONE: u32 = u32::MAX;
/// What [`Spans::give_back`] counts for a system call, where it counts 1 for a span that it looks at
/// and for each [`BLOCKS`] blocks of one.
const CALL: usize = 16;
const BLOCKS: usize = 32;

/// Returns the bytes of the spans of a class.
///
/// A span has at least eight blocks. What is behind the last one is never touched.
pub(crate) const fn span_bytes(class: Class) -> usize {
    match class.bytes() {
        0..=1024 => 64 << 10,
        1025..=8192 => 128 << 10,
        _ => 512 << 10,
    }
}

/// Returns how many blocks a span has.
pub(crate) const fn span_blocks(class: Class) -> usize {
    span_bytes(class) / class.bytes()
}

/// Returns the word and the bit in it that mark a block of a span.
const fn mark_of(block: usize) -> (usize, u64) {
    (block / BITS, 1 << (block % BITS))
}

/// Returns the marks that a word has, in a span of so many blocks.
const fn marks_in(word: usize, blocks: usize) -> u64 {
    match blocks.saturating_sub(word * BITS) {
        left if left < BITS => (1 << left) - 1,
        _ => u64::MAX,
    }
}

/// The spans of a class that have a free block.
#[derive(Debug)]
pub(crate) struct Spans {
    /// The first page of the first span: of those that have become not full, the newest.
    first: u32,
    /// How many spans there are, those without a free block included.
    pub(crate) count: u32,
    /// Free blocks in them.
    pub(crate) free: usize,
    /// Where [`Spans::give_back`] goes on; [`NONE`] for the first span.
    cursor: u32,
    /// The block of that span at which it goes on.
    block: u32,
    /// The round, which [`Spans::tick`] counts.
    now: u32,
    /// A block that came back and was free already, or is none; else null.
    invalid: *mut u8,
}

/// What the entry of a span's first page holds of the span.
///
/// `next` and `previous` link the list, `older` is the number of free blocks and the first word of
/// marks that may have one, and `newer` the round in which a block was last taken or came back, or
/// [`GONE`].
impl Links {
    fn free_blocks(&self) -> usize {
        (self.older.load(Relaxed) >> WORD_BITS) as usize
    }

    fn first_word(&self) -> usize {
        (self.older.load(Relaxed) & ((1 << WORD_BITS) - 1)) as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "a span has at most 4096 blocks")]
    fn set_free_blocks(&self, blocks: usize, first_word: usize, now: u32) {
        self.older.store((blocks as u32) << WORD_BITS | first_word as u32, Relaxed);
        self.newer.store(now, Relaxed);
    }
}

impl Spans {
    /// Without spans.
    pub(crate) const fn new() -> Self {
        let invalid = ptr::null_mut();
        Self { first: NONE, count: 0, free: 0, cursor: NONE, block: 0, now: 0, invalid }
    }

    /// Returns a block that came back and was free already, or is none, the first time; else null.
    ///
    /// Who has the lock of the class frees that and then ends the program (`end_once_for`), since the
    /// program's handler of the signal may allocate and fork.
    pub(crate) fn take_invalid(&mut self) -> *mut u8 {
        mem::replace(&mut self.invalid, ptr::null_mut())
    }

    /// Takes free blocks, at most as many as `blocks` has places, and makes a span if there is none.
    /// Returns how many. 0 if there are no pages for a span.
    pub(crate) fn take(&mut self, class: Class, blocks: &mut [*mut u8], pages: &Pages) -> usize {
        if self.first == NONE && !self.add(class, pages) {
            return 0;
        }
        let mut taken = 0;
        while taken < blocks.len() && self.first != NONE {
            taken += self.take_of(self.first, class, &mut blocks[taken..], pages);
        }
        self.free -= taken;
        taken
    }

    /// Takes free blocks of the first span of the list, those at the lowest addresses.
    fn take_of(
        &mut self,
        first: u32,
        class: Class,
        blocks: &mut [*mut u8],
        pages: &Pages,
    ) -> usize {
        let span = pages.links(first as usize);
        let (free, marks) = (span.free_blocks(), pages.marks_of(first, class));
        let (base, most) = (pages.address(first), free.min(blocks.len()));
        let (mut taken, mut word, mut is_whole) = (0, span.first_word(), true);
        let has_others = |word, marks: u64| marks & !marks_in(word, span_blocks(class)) != 0;
        while taken < most {
            let found = marks.get(word).map(|place| (place, place.load(Relaxed)));
            let Some((place, mut left)) = found.filter(|(_, left)| !has_others(word, *left)) else {
                // The program has written to the marks.
                (self.invalid, is_whole) = (base, false);
                break;
            };
            while left != 0 && taken < most {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                blocks[taken] = base.wrapping_add((word * BITS + bit) * class.bytes());
                taken += 1;
            }
            place.store(left, Relaxed);
            word += usize::from(left == 0);
        }
        span.set_free_blocks(free - taken, word, self.now);
        if taken == free || !is_whole {
            self.unlink(first, pages);
        }
        taken
    }

    /// Makes a span. Returns false if there are no pages for it.
    #[cold]
    fn add(&mut self, class: Class, pages: &Pages) -> bool {
        let bytes = span_bytes(class);
        let Some(run) = pages.take(bytes, PAGE) else { return false };
        let (first, count) = pages.run_of(run.block);
        for before in 0..count {
            pages.tag((first + before) as usize).set_span(class, before);
        }
        for (word, place) in pages.marks_of(first, class).0.iter().rev().enumerate() {
            place.store(marks_in(word, span_blocks(class)), Relaxed);
        }
        pages.links(first as usize).set_free_blocks(span_blocks(class), 0, self.now);
        self.count += 1;
        self.free += span_blocks(class);
        self.link(first, pages);
        true
    }

    /// Takes back a block.
    ///
    /// Notes it for [`Spans::take_invalid`], and does nothing else, if no block of this class begins
    /// there, as far as it finds that out, or if it is free already.
    pub(crate) fn put(&mut self, class: Class, block: *mut u8, pages: &Pages) {
        let Some((its_class, first, from_first)) = pages.span_at(block) else {
            self.invalid = block;
            return;
        };
        let is_block = |number: &usize| its_class == class && *number < span_blocks(class);
        let number = class.blocks_in(from_first).filter(is_block);
        let marks = pages.marks_of(first, class);
        let marked = number.and_then(|number| {
            let (at, mark) = mark_of(number);
            let word = marks.get(at)?;
            let before = word.load(Relaxed);
            (before & mark == 0).then(|| word.store(before | mark, Relaxed))?;
            Some(at)
        });
        let Some(at) = marked else {
            self.invalid = block;
            return;
        };
        let span = pages.links(first as usize);
        let free = span.free_blocks() + 1;
        span.set_free_blocks(free, span.first_word().min(at), self.now);
        self.free += 1;
        if free == 1 {
            self.link(first, pages);
        }
        if free == span_blocks(class) {
            self.remove(first, class, pages);
        }
    }

    /// Gives a span back whose blocks are all free.
    #[cold]
    fn remove(&mut self, first: u32, class: Class, pages: &Pages) {
        self.unlink(first, pages);
        self.count -= 1;
        self.free -= span_blocks(class);
        pages.marks_of(first, class).0.iter().for_each(|word| word.store(0, Relaxed));
        pages.make_run(first, span_bytes(class) / PAGE);
        // SAFETY: this is a used run again, and no thread has a block of it.
        unsafe { pages.give(pages.address(first)) };
    }

    /// Begins a round.
    pub(crate) fn tick(&mut self) {
        self.now = self.now.wrapping_add(1) % GONE;
    }

    /// Gives back the memory of pages that have free blocks only, of spans of which no block was
    /// taken or came back in the last `rounds` rounds. Goes on where the last call stopped, to the end
    /// of the list at most, or until nothing is left of `work`. Returns whether it came to the end.
    ///
    /// Costs a look at each span, and a system call for each stretch of pages.
    pub(crate) fn give_back(
        &mut self,
        class: Class,
        rounds: u32,
        work: &mut usize,
        pages: &Pages,
    ) -> bool {
        let mut at = if self.cursor == NONE { self.first } else { self.cursor };
        while at != NONE && *work > 0 {
            let span = pages.links(at as usize);
            let used_at = span.newer.load(Relaxed);
            *work = work.saturating_sub(1);
            if used_at != GONE && self.now.wrapping_sub(used_at) > rounds {
                let (next, went) = give_back_of(at, class, self.block as usize, work, pages);
                self.block = next;
                if next != 0 {
                    break;
                }
                if went {
                    span.newer.store(GONE, Relaxed);
                }
            }
            (at, self.block) = (span.next.load(Relaxed), 0);
        }
        self.cursor = at;
        at == NONE
    }

    /// Gives back what [`Spans::give_back`] does, of all spans that no request needed since the last
    /// round.
    pub(crate) fn give_back_all(&mut self, class: Class, pages: &Pages) {
        (self.cursor, self.block) = (NONE, 0);
        let mut work = usize::MAX;
        self.give_back(class, 0, &mut work, pages);
    }

    /// Adds a span to the front of the list.
    fn link(&mut self, first: u32, pages: &Pages) {
        let (span, next) = (pages.links(first as usize), self.first);
        span.next.store(next, Relaxed);
        span.previous.store(NONE, Relaxed);
        if next != NONE {
            pages.links(next as usize).previous.store(first, Relaxed);
        }
        self.first = first;
    }

    /// Takes a span out of the list.
    fn unlink(&mut self, first: u32, pages: &Pages) {
        let span = pages.links(first as usize);
        let (next, previous) = (span.next.load(Relaxed), span.previous.load(Relaxed));
        if self.cursor == first {
            (self.cursor, self.block) = (next, 0);
        }
        if next != NONE {
            pages.links(next as usize).previous.store(previous, Relaxed);
        }
        match previous {
            NONE => self.first = next,
            previous => pages.links(previous as usize).next.store(next, Relaxed),
        }
    }
}

/// Gives back the memory of those pages of a span that have free blocks only, from the pages of a block
/// on, until nothing is left of `work`. Returns the block at which to go on, 0 for none, and whether
/// the system has refused none.
#[expect(clippy::cast_possible_truncation, reason = "a span has at most 4096 blocks")]
fn give_back_of(
    first: u32,
    class: Class,
    from_block: usize,
    work: &mut usize,
    pages: &Pages,
) -> (u32, bool) {
    let (bytes, stride) = (span_bytes(class), class.bytes());
    let marks = pages.marks_of(first, class);
    let is_free = |block: usize| {
        let (at, mark) = mark_of(block);
        marks.get(at).is_some_and(|word| word.load(Relaxed) & mark != 0)
    };
    *work = work.saturating_sub((span_blocks(class) - from_block) / BLOCKS);
    // The bytes from the last block that is in use on, up to the next one.
    let (mut start, mut went) = (from_block * stride, true);
    for block in from_block..=span_blocks(class) {
        let end = if block < span_blocks(class) { block * stride } else { bytes };
        if end < bytes && is_free(block) {
            continue;
        }
        let (from, to) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
        if from < to {
            // SAFETY: these pages of a span have no byte of a block that is in use, and the caller
            // has the lock of the class, so no thread gets one.
            went &= unsafe { pages.empty(first, from, to - from) };
            *work = work.saturating_sub(CALL);
            if *work == 0 && block < span_blocks(class) {
                return (block as u32 + 1, went);
            }
        }
        start = (block + 1) * stride;
    }
    (0, went)
}

/// The marks of a span, the first word last.
struct Marks<'p>(&'p [AtomicU64]);

impl<'p> Marks<'p> {
    fn get(&self, word: usize) -> Option<&'p AtomicU64> {
        self.0.get(self.0.len().checked_sub(word + 1)?)
    }
}

impl Pages {
    /// Returns the class of a block of a span; `None` for one of no span.
    #[inline]
    pub(crate) fn part_at(&self, block: *mut u8) -> Option<Class> {
        let number = self.page_at(block)?;
        Some(self.tag(number as usize).span()?.0)
    }

    /// Returns the class of the span in which an address is, the first page of the span, and the bytes
    /// from there to the address; `None` for an address in no span, and if the map contradicts itself.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a page and a span have fewer than 2^32 bytes"
    )]
    fn span_at(&self, block: *mut u8) -> Option<(Class, u32, u32)> {
        let number = self.page_at(block)?;
        let (class, before) = self.tag(number as usize).span()?;
        let first = self.tag(number.checked_sub(before)? as usize);
        if first.span() != Some((class, 0)) {
            return None;
        }
        let in_page = (block.addr() % PAGE) as u32;
        Some((class, number - before, before * PAGE as u32 + in_page))
    }

    /// Returns the marks of a span of the class that begins at a page.
    fn marks_of(&self, first: u32, class: Class) -> Marks<'_> {
        let (before, words) = (first as usize * PAGE / PER_WORD, span_blocks(class).div_ceil(BITS));
        let start = self.range.marks.load(Relaxed).wrapping_sub(before + words);
        // SAFETY: `Space::grow` made the marks of all pages that have entries readable and writable
        // for good, and the caller owns these pages. Zero bytes are valid numbers.
        Marks(unsafe { std::slice::from_raw_parts(start, words) })
    }

    /// Returns the number of the page in which a block begins; `None` if it is in no page of these.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the range has fewer than 2^30 pages")]
    fn page_at(&self, block: *mut u8) -> Option<u32> {
        let number = block.addr().wrapping_sub(self.range.base.load(Relaxed).addr()) / PAGE;
        (number < self.range.end.load(Relaxed) as usize).then_some(number as u32)
    }

    /// Returns the memory of free pages of a span to the system. Returns whether it took it.
    ///
    /// # Safety
    ///
    /// So many bytes, so far behind the first page of the span, are whole pages, and no thread needs
    /// their contents or uses them meanwhile.
    unsafe fn empty(&self, first: u32, from: usize, bytes: usize) -> bool {
        // SAFETY: as the caller says.
        let went = unsafe { self.mapping.empty(self.address(first).wrapping_add(from), bytes) };
        if went {
            self.returned.fetch_add((bytes / PAGE) as u64, Relaxed);
        }
        went
    }

    /// Makes the pages of a span a used run.
    #[expect(clippy::cast_possible_truncation, reason = "a span has fewer pages than 2^29")]
    fn make_run(&self, first: u32, pages: usize) {
        let (first_page, last) = (first as usize, first as usize + pages - 1);
        // A free of a block that was here is an error from now on.
        (first_page..last).for_each(|page| self.tag(page).set(0, PageState::Used));
        for page in [first_page, last] {
            self.tag(page).set(pages as u32, PageState::Used);
        }
        self.links(first as usize).set_room(0);
    }
}
