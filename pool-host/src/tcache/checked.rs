//! The tcache when it looks for mistakes instead of caching: each block is known by its address and
//! layout, bears a canary behind its last byte, is poisoned when it is freed, and rests before its
//! memory serves anybody again. From a page on it ends at a page that nobody may touch.
//!
//! A mistake is told on stderr, and the process aborts. One lock for all threads, and a few hundred
//! nanoseconds a call.
#![expect(unsafe_code, reason = "blocks are looked into, which is the point")]

mod book;

use crate::depot::TryLock;
use crate::{system, virtual_memory};
use book::{Book, Entry, State};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// Bytes behind a block that nobody may write.
const CANARY: usize = 16;
const CANARY_BYTE: u8 = 0xca;
/// What freed and fresh blocks are filled with: as f32 it is a NaN, so that a sum shows it.
const POISON: [u8; 4] = 0x7fed_beef_u32.to_le_bytes();
/// Blocks that rest at once, and their bytes.
const RESTING: usize = 1024;
const RESTING_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Checked {
    inside: TryLock<CheckedInside>,
}

#[derive(Debug)]
struct CheckedInside {
    book: Book,
    /// Freed blocks, oldest at `first`, in a ring.
    resting: [usize; RESTING],
    first: usize,
    count: usize,
    bytes: usize,
}

/// The checks of the process.
pub(super) static CHECKED: Checked = Checked {
    inside: TryLock::new(CheckedInside {
        book: Book::new(),
        resting: [0; RESTING],
        first: 0,
        count: 0,
        bytes: 0,
    }),
};

/// What is wrong with a block, and the end of the process.
fn die(what: &[u8], block: usize, bytes: usize) -> ! {
    let (mut address, mut size) = ([0; 18], [0; 20]);
    let size = decimal(bytes, &mut size);
    system::say(&[b"bucketpool: ", what, b": block ", hexadecimal(block, &mut address)]);
    system::say(&[b" of ", size, b" bytes\n"]);
    std::process::abort()
}

fn hexadecimal(number: usize, digits: &mut [u8; 18]) -> &[u8] {
    *digits = *b"0x0000000000000000";
    for (at, digit) in digits.iter_mut().skip(2).enumerate() {
        let nibble = (number >> (60 - 4 * at)) & 15;
        *digit = b"0123456789abcdef"[nibble];
    }
    digits
}

fn decimal(number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let (mut rest, mut at) = (number, digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            return &digits[at..];
        }
    }
}

/// Whether a block has pages of its own.
fn is_guarded(layout: Layout) -> bool {
    let page = page();
    layout.size() >= page && layout.align() <= page
}

fn page() -> usize {
    usize::try_from(system::page_bytes()).unwrap_or(4096)
}

/// Where a guarded block lies: bytes of its mapping without the guard, and its offset in it, so
/// that it ends as close to the guard as its alignment allows.
fn guarded(layout: Layout) -> (usize, usize) {
    let pages = layout.size().next_multiple_of(page());
    (pages, (pages - layout.size()) / layout.align() * layout.align())
}

/// A small block with its canary.
fn with_canary(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(layout.size().checked_add(CANARY)?, layout.align()).ok()
}

/// Bytes of a block's own behind its last, and how many.
fn canary_of(layout: Layout) -> usize {
    if is_guarded(layout) {
        let (pages, offset) = guarded(layout);
        pages - offset - layout.size()
    } else {
        CANARY
    }
}

impl Checked {
    fn enter<R>(&self, mut work: impl FnMut(&mut CheckedInside) -> R) -> R {
        loop {
            if let Some(result) = self.inside.enter(&mut work) {
                return result;
            }
        }
    }

    /// A block that looks as if it had never been written, or zeroes; null if there is no memory.
    pub(super) fn allocate<A: GlobalAlloc>(
        &self,
        layout: Layout,
        zeroed: bool,
        inner: &A,
    ) -> *mut u8 {
        let block = if is_guarded(layout) {
            let (pages, offset) = guarded(layout);
            let base = virtual_memory::with_guard(pages, page());
            // SAFETY: so many bytes are mapped.
            base.map_or(ptr::null_mut(), |base| unsafe { base.as_ptr().add(offset) })
        } else {
            // SAFETY: 16 bytes and more.
            with_canary(layout).map_or(ptr::null_mut(), |layout| unsafe { inner.alloc(layout) })
        };
        if block.is_null() {
            return block;
        }
        if zeroed {
            // SAFETY: so many bytes were just allocated, and so below.
            unsafe { block.write_bytes(0, layout.size()) };
        } else {
            // SAFETY: as above.
            unsafe { poison(block, layout.size()) };
        }
        // SAFETY: the canary lies behind the block, in the same allocation.
        let canary = unsafe { block.add(layout.size()) };
        // SAFETY: as above.
        unsafe { canary.write_bytes(CANARY_BYTE, canary_of(layout)) };
        let entry = Entry::new(block.expose_provenance(), layout);
        if !self.enter(|inside| inside.book.insert(entry)) {
            die(b"no memory for the book of blocks", entry.address, layout.size());
        }
        block
    }

    /// Takes a block back, and looks at it.
    ///
    /// # Safety
    ///
    /// `inner` is the allocator that it was allocated with. Whatever else is wrong is found, or is
    /// what `dealloc` forbids.
    pub(super) unsafe fn free<A: GlobalAlloc>(&self, block: *mut u8, layout: Layout, inner: &A) {
        let address = block.expose_provenance();
        let known = self.enter(|inside| inside.book.mark_resting(address, layout));
        match known {
            None => die(b"free of what is not a block", address, layout.size()),
            Some(entry) if entry.state == State::Resting => {
                die(b"double free", address, entry.layout.size());
            }
            Some(entry) if entry.layout != layout => {
                die(
                    b"free with another layout than it was allocated with",
                    address,
                    entry.layout.size(),
                );
            }
            Some(_) => {}
        }
        // SAFETY: the book says that it is a live block of this layout, so the canary is there.
        let canary = unsafe { block.add(layout.size()) };
        // SAFETY: as above.
        if !unsafe { all_are(canary, canary_of(layout), |_| CANARY_BYTE) } {
            die(b"write behind the end", address, layout.size());
        }
        if is_guarded(layout) {
            let (pages, offset) = guarded(layout);
            virtual_memory::forbid(address - offset, pages);
        } else {
            // SAFETY: as above.
            unsafe { poison(block, layout.size()) };
        }
        self.rest(address, layout.size(), inner);
    }

    /// A freed block rests; the oldest may have to go for it.
    fn rest<A: GlobalAlloc>(&self, address: usize, bytes: usize, inner: &A) {
        let mut new = Some((address, bytes));
        // One goes for each that comes, and more while they are too many.
        while let Some(oldest) = self.enter(|inside| inside.rest(&mut new)) {
            let_go(oldest, inner);
        }
    }
}

/// The memory of a block may serve again, if nobody wrote to it while it rested.
fn let_go<A: GlobalAlloc>(Entry { address, layout, .. }: Entry, inner: &A) {
    if is_guarded(layout) {
        let (pages, offset) = guarded(layout);
        return virtual_memory::unmap_guarded(address - offset, pages + page());
    }
    let block = ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: it came out of the book, so nobody but us may use it.
    if !unsafe { all_are(block, layout.size(), |at| POISON[at % POISON.len()]) } {
        die(b"write after free", address, layout.size());
    }
    if let Some(layout) = with_canary(layout) {
        // SAFETY: `allocate` had it from there with this layout.
        unsafe { inner.dealloc(block, layout) };
    }
}

impl CheckedInside {
    /// Puts the new one into the ring and takes the oldest out, if there are too many.
    fn rest(&mut self, new: &mut Option<(usize, usize)>) -> Option<Entry> {
        let full = self.count == RESTING || self.bytes > RESTING_BYTES;
        if full && self.count > 0 {
            let address = self.resting[self.first];
            (self.first, self.count) = ((self.first + 1) % RESTING, self.count - 1);
            let entry = self.book.remove(address)?;
            self.bytes -= entry.layout.size();
            return Some(entry);
        }
        let (address, bytes) = new.take()?;
        self.resting[(self.first + self.count) % RESTING] = address;
        self.count += 1;
        self.bytes += bytes;
        if self.bytes > RESTING_BYTES { self.rest(new) } else { None }
    }
}

/// # Safety
///
/// So many bytes may be written there.
unsafe fn poison(block: *mut u8, bytes: usize) {
    for at in 0..bytes {
        // SAFETY: as the caller says.
        let byte = unsafe { block.add(at) };
        // SAFETY: as above.
        unsafe { byte.write(POISON[at % POISON.len()]) };
    }
}

/// # Safety
///
/// So many bytes may be read there.
unsafe fn all_are(block: *const u8, bytes: usize, expected: impl Fn(usize) -> u8) -> bool {
    (0..bytes).all(|at| {
        // SAFETY: as the caller says.
        let byte = unsafe { block.add(at) };
        // SAFETY: as above.
        unsafe { byte.read() == expected(at) }
    })
}
