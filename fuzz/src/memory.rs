//! An allocator that counts the bytes of each thread, and a limit on what a reader takes of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and the most of that so far.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(more: usize, less: usize) {
    let _ = BYTES.try_with(|bytes| {
        let (now, peak) = bytes.get();
        let now = now + more.cast_signed() - less.cast_signed();
        bytes.set((now, peak.max(now)));
    });
}

// SAFETY: each call goes to `System` as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    // A block that grows may be in two places while it is copied.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes, 0);
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

/// Bytes that a reader may have for each byte of plain text.
const FACTOR: usize = 200;
/// Bytes that a reader may have whatever the text.
const SLACK: usize = 1 << 20;

/// Reads a text of this many bytes. Panics if that takes more memory than the text times a constant.
pub fn limited<T>(text: usize, read: impl FnOnce() -> T) -> T {
    let before = BYTES.with(|bytes| {
        let (now, _) = bytes.get();
        bytes.set((now, now));
        now
    });
    let done = read();
    let peak = BYTES.with(|bytes| bytes.get().1) - before;
    let most = FACTOR * text + SLACK;
    assert!(peak <= most.cast_signed(), "{peak} bytes to read {text}, at most {most}");
    done
}

/// Returns how many bytes of text a reader may take from a compressed file of this many bytes.
pub fn readable(compressed: usize) -> usize {
    compressed * 100 + (1 << 20)
}
