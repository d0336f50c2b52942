//! The checked mode of the tcache: it detects heap errors instead of caching.
//!
//! The book records each block by address, with its layout. A block has a canary after its last
//! byte, and is poisoned when it is allocated. A block of at least a page, whose alignment is at
//! most a page, ends as close to a guard page as its alignment allows. When a block is freed, a
//! small one is poisoned again, and the pages of a guarded one become inaccessible. A freed block
//! rests before its memory is used again; it is looked at then, or when the process exits.
//!
//! An error is reported on stderr, and the process aborts; an access to a guard page, or to a freed
//! block that was guarded, ends it with SIGSEGV. One lock serves all threads, and a call costs a
//! few hundred nanoseconds.
#![expect(unsafe_code, reason = "blocks are looked into, which is the point")]

mod book;

use crate::pages::lock::ForkLock;
use crate::{stderr, system, virtual_memory};
use book::{Book, Entry, State};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// Bytes after a small block that the program may not write.
const CANARY: usize = 16;
/// The value of each canary byte.
const CANARY_BYTE: u8 = 0xca;
/// The pattern that fills fresh blocks and small freed ones. As `f32` it is a NaN, so a sum that
/// includes it shows the error.
const POISON: [u8; 4] = 0x7fed_beef_u32.to_le_bytes();
/// The most blocks that rest at once.
const RESTING: usize = 1024;
/// The most bytes of resting blocks.
const RESTING_BYTES: usize = 64 << 20;

/// The state of the checked mode, behind one lock.
#[derive(Debug)]
pub(super) struct Checked {
    inside: ForkLock<CheckedInside>,
}

/// The book, and the freed blocks that rest.
#[derive(Debug)]
struct CheckedInside {
    book: Book,
    /// Addresses of the resting blocks in a ring; the oldest is at `first`.
    resting: [usize; RESTING],
    first: usize,
    /// Number of resting blocks.
    count: usize,
    /// Bytes of the resting blocks.
    bytes: usize,
}

/// The checked mode of the process.
pub(super) static CHECKED: Checked = Checked {
    inside: ForkLock::new(CheckedInside {
        book: Book::new(),
        resting: [0; RESTING],
        first: 0,
        count: 0,
        bytes: 0,
    }),
};

/// Reports an error of the program on stderr and aborts the process.
fn die(what: &[u8], block: usize, bytes: usize) -> ! {
    let (mut address, mut size) = ([0; 18], [0; 20]);
    let size = decimal(bytes, &mut size);
    stderr::say(&[b"bucketpool: ", what, b": block ", hexadecimal(block, &mut address)]);
    stderr::say(&[b" of ", size, b" bytes\n"]);
    std::process::abort()
}

/// Formats an address without allocating.
fn hexadecimal(number: usize, digits: &mut [u8; 18]) -> &[u8] {
    *digits = *b"0x0000000000000000";
    for (at, digit) in digits.iter_mut().skip(2).enumerate() {
        let nibble = (number >> (60 - 4 * at)) & 15;
        *digit = b"0123456789abcdef"[nibble];
    }
    digits
}

/// Formats a number without allocating.
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

/// Returns whether a block is mapped on its own pages, with a guard page after them.
fn is_guarded(layout: Layout) -> bool {
    let page = page();
    layout.size() >= page && layout.align() <= page
}

/// Returns the size of a page in bytes.
fn page() -> usize {
    usize::try_from(system::page_bytes()).unwrap_or(4096)
}

/// Returns the bytes of a guarded block's mapping without the guard page, and the block's offset in
/// it.
///
/// The block ends as close to the guard page as its alignment allows.
fn guarded(layout: Layout) -> (usize, usize) {
    let pages = layout.size().next_multiple_of(page());
    (pages, (pages - layout.size()) / layout.align() * layout.align())
}

/// Returns the layout of a small block with its canary; `None` if the size overflows.
fn with_canary(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(layout.size().checked_add(CANARY)?, layout.align()).ok()
}

/// Returns the number of canary bytes after a block's last byte.
fn canary_of(layout: Layout) -> usize {
    if is_guarded(layout) {
        let (pages, offset) = guarded(layout);
        pages - offset - layout.size()
    } else {
        CANARY
    }
}

impl Checked {
    /// Works on the state under the lock, and waits for it without end.
    fn enter<R>(&self, mut work: impl FnMut(&mut CheckedInside) -> R) -> R {
        loop {
            if let Some(result) = self.inside.enter(&mut work) {
                return result;
            }
        }
    }

    /// Allocates a block that is poisoned, or zeroed with `zeroed`; null if there is no memory.
    pub(super) fn allocate<A: GlobalAlloc>(
        &self,
        layout: Layout,
        zeroed: bool,
        inner: &A,
    ) -> *mut u8 {
        let block = if is_guarded(layout) {
            let (pages, offset) = guarded(layout);
            let base = virtual_memory::with_guard(pages, page());
            // SAFETY: `with_guard` mapped `pages` bytes at `base`, and `offset` is less than that.
            base.map_or(ptr::null_mut(), |base| unsafe { base.as_ptr().add(offset) })
        } else {
            // SAFETY: the layout has at least the 16 bytes of the canary.
            with_canary(layout).map_or(ptr::null_mut(), |layout| unsafe { inner.alloc(layout) })
        };
        if block.is_null() {
            return block;
        }
        if zeroed {
            // SAFETY: the block was just allocated for `layout`, so `layout.size()` bytes of it can
            // be written, and no other code knows it.
            unsafe { block.write_bytes(0, layout.size()) };
        } else {
            // SAFETY: as above, for `layout.size()` bytes.
            unsafe { poison(block, layout.size()) };
        }
        // SAFETY: the allocation continues after the block: by `CANARY` bytes, or up to the guard
        // page. The end of the block is thus inside it, or one past it.
        let canary = unsafe { block.add(layout.size()) };
        // SAFETY: `canary_of` returns how many bytes of the allocation follow the block; no other
        // code knows them yet.
        unsafe { canary.write_bytes(CANARY_BYTE, canary_of(layout)) };
        let entry = Entry::new(block.expose_provenance(), layout);
        if !self.enter(|inside| inside.book.insert(entry)) {
            die(b"no memory for the book of blocks", entry.address, layout.size());
        }
        block
    }

    /// Takes a block back, and aborts if it detects an error.
    ///
    /// # Safety
    ///
    /// `inner` is the allocator that was passed to [`Checked::allocate`]. If the book has a live
    /// block of this address and layout, the caller owns it and does not use it again. Other values
    /// of `block` and `layout` are detected.
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
        // SAFETY: the book had a live block of this address and layout, so its canary is in the
        // same allocation.
        let canary = unsafe { block.add(layout.size()) };
        // SAFETY: `allocate` wrote these `canary_of(layout)` bytes, and the allocation is not freed
        // before the block has rested.
        if !unsafe { all_are(canary, canary_of(layout), |_| CANARY_BYTE) } {
            die(b"write behind the end", address, layout.size());
        }
        if is_guarded(layout) {
            let (pages, offset) = guarded(layout);
            // If the system refuses, a use of the freed block is not found.
            // SAFETY: the pages of a block of `with_guard` that the program has freed.
            let _ = unsafe { virtual_memory::forbid(address - offset, pages) };
        } else {
            // SAFETY: the block was live and holds `layout.size()` bytes; its owner gave it up.
            unsafe { poison(block, layout.size()) };
        }
        self.rest(address, layout.size(), inner);
    }

    /// Looks at all resting blocks, when the process exits. Aborts if the program wrote to one.
    pub(super) fn check_resting(&self) {
        // Not without end: this thread may have been inside when it called `exit`.
        let written = self.inside.enter(|inside| {
            let resting = (0..inside.count).filter_map(|step| {
                inside.book.get(inside.resting[(inside.first + step) % RESTING])
            });
            resting.into_iter().find(|entry| is_written(*entry))
        });
        if let Some(entry) = written.flatten() {
            die_for_write(entry);
        }
    }

    /// Makes a freed block rest, and frees the oldest resting blocks while there are too many.
    fn rest<A: GlobalAlloc>(&self, address: usize, bytes: usize, inner: &A) {
        let mut new = Some((address, bytes));
        // Each call of `CheckedInside::rest` takes at most one block out; the last one takes none.
        while let Some(oldest) = self.enter(|inside| inside.rest(&mut new)) {
            free_entry(oldest, inner);
        }
    }
}

/// Returns whether the program wrote to a resting block.
///
/// A guarded block is not checked: its pages are inaccessible, unless the system refused that.
fn is_written(Entry { address, layout, .. }: Entry) -> bool {
    if is_guarded(layout) {
        return false;
    }
    let block = ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the program freed the block, and its memory is still allocated: the caller holds the
    // lock of the book in which it rests, or has just removed it. `free` wrote its `layout.size()`
    // bytes.
    !unsafe { all_are(block, layout.size(), |at| POISON[at % POISON.len()]) }
}

fn die_for_write(Entry { address, layout, .. }: Entry) -> ! {
    die(b"write after free", address, layout.size())
}

/// Frees the memory of a block that has rested; aborts if the program wrote to the block meanwhile.
fn free_entry<A: GlobalAlloc>(entry: Entry, inner: &A) {
    let Entry { address, layout, .. } = entry;
    if is_written(entry) {
        die_for_write(entry);
    }
    if is_guarded(layout) {
        let (pages, offset) = guarded(layout);
        // SAFETY: the mapping of a block of `with_guard` that is in the book no more.
        return unsafe { virtual_memory::unmap_guarded(address - offset, pages + page()) };
    }
    let block = ptr::with_exposed_provenance_mut::<u8>(address);
    if let Some(layout) = with_canary(layout) {
        // SAFETY: `allocate` got the block from the inner allocator with this layout, which
        // `with_canary` computes from the same layout. One `Tcache` owns `CHECKED`, so `inner` is
        // that allocator. The entry was just removed from the book, so only this call has it.
        unsafe { inner.dealloc(block, layout) };
    }
}

impl CheckedInside {
    /// Adds the new block to the ring, and takes the oldest one out if there are too many.
    ///
    /// While there are too many, the oldest is returned and `new` stays for the next call.
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

/// Fills `bytes` bytes with the poison pattern.
///
/// # Safety
///
/// `bytes` bytes at `block` may be written.
unsafe fn poison(block: *mut u8, bytes: usize) {
    for at in 0..bytes {
        // SAFETY: `at` is less than `bytes`, and the caller guarantees that many bytes at `block`.
        let byte = unsafe { block.add(at) };
        // SAFETY: the caller guarantees that this byte may be written.
        unsafe { byte.write(POISON[at % POISON.len()]) };
    }
}

/// Returns whether each of `bytes` bytes has its expected value.
///
/// # Safety
///
/// `bytes` bytes at `block` are initialized and may be read.
unsafe fn all_are(block: *const u8, bytes: usize, expected: impl Fn(usize) -> u8) -> bool {
    (0..bytes).all(|at| {
        // SAFETY: `at` is less than `bytes`, and the caller guarantees that many bytes at `block`.
        let byte = unsafe { block.add(at) };
        // SAFETY: the caller guarantees that this byte may be read.
        unsafe { byte.read() == expected(at) }
    })
}
