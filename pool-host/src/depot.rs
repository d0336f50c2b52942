//! Free blocks that all threads share: for each size class a list behind a lock of its own.
//!
//! ```text
//!   thread caches         batches of blocks
//!        |  ^
//!        v  |
//!     recent              the last blocks that came, in an array
//!        |  ^
//!        v  |
//!     spans               pages/span.rs: marks beside the pages; a span without a used block goes
//!                         back to the pages
//! ```
//!
//! Blocks that one thread frees and another takes pass through `recent` and touch no span. What no
//! request needed for a while moves to the spans ([`Depot::age`]).
//!
//! Like the pages, no list is waited for while another thread forks. A request is then refused, and
//! a block that comes back is linked to those that the next thread takes in which has the lock.
#![expect(unsafe_code, reason = "blocks that wait are linked through their bytes")]

use crate::class::{CLASSES, Class};
use crate::pages::lock::ForkLock;
use crate::pages::span::{Spans, span_bytes};
use crate::pages::{Pages, end_once_for};
use crate::sync::atomic::{
    AtomicPtr, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::ptr;

/// The most blocks of a batch.
pub(crate) const BATCH: usize = 32;
/// The most bytes of a batch of more than one block.
const BATCH_BYTES: usize = 256 << 10;
/// The most recent blocks of a class, and their most bytes.
const RECENT: usize = 16 * BATCH;
const RECENT_BYTES: usize = 8 * BATCH_BYTES;
/// Calls of [`Depot::age`] after which a span that nobody used loses the memory of its free pages.
const CALLS: u32 = 10;
/// The most spans of a class that one call looks at, and that lose memory in it.
const LOOKS: usize = 256;
const SPANS: usize = 16;

/// Returns how many blocks of a class move at once.
pub(crate) const fn batch_len(class: Class) -> usize {
    at_most(BATCH, BATCH_BYTES, class)
}

/// Returns how many blocks have at most so many bytes: at most `most`, and at least one.
const fn at_most(most: usize, bytes: usize, class: Class) -> usize {
    let fit = bytes / class.bytes();
    if fit > most {
        most
    } else if fit == 0 {
        1
    } else {
        fit
    }
}

/// Blocks of one class that move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    blocks: [*mut u8; BATCH],
    len: usize,
}

impl Batch {
    /// A batch without blocks.
    pub(crate) const EMPTY: Self = Self { blocks: [ptr::null_mut(); BATCH], len: 0 };

    /// Adds a block. A full batch, of [`BATCH`] blocks, does not take it.
    pub(crate) fn add(&mut self, block: *mut u8) {
        if let Some(place) = self.blocks.get_mut(self.len) {
            *place = block;
            self.len += 1;
        }
    }

    /// Takes the block that was added last.
    pub(crate) fn pop(&mut self) -> Option<*mut u8> {
        self.len = self.len.checked_sub(1)?;
        self.blocks.get(self.len).copied()
    }

    /// Returns the blocks in the order in which they were added.
    pub(crate) fn as_slice(&self) -> &[*mut u8] {
        self.blocks.get(..self.len).unwrap_or_default()
    }
}

/// The free blocks of all classes. Those on pages only: blocks of an inner allocator go back to it.
#[derive(Debug)]
pub(crate) struct Depot {
    lists: [ClassList; CLASSES],
}

/// The free blocks of one class, and figures that are read without its lock.
///
/// It is aligned to two cache lines, because processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct ClassList {
    inside: ForkLock<Contents>,
    /// Blocks that came back while another thread forked, linked through their first bytes.
    late: AtomicPtr<u8>,
    /// Recent blocks, as of the last call under the lock.
    recent: AtomicUsize,
    /// Free blocks of spans, as of the last call under the lock.
    free: AtomicUsize,
    /// Spans, as of the last call under the lock.
    spans: AtomicUsize,
    /// Requests of threads without a thread cache, and blocks that these threads freed.
    cacheless: [AtomicU64; 2],
}

/// The part of a list that its lock guards.
#[derive(Debug)]
struct Contents {
    /// Free blocks, the newest last.
    recent: [*mut u8; RECENT],
    len: usize,
    /// The fewest of them since the last call of [`Depot::age`]: no request needed these.
    low: usize,
    spans: Spans,
}

// SAFETY: the pointers are blocks that no thread owns.
unsafe impl Send for Contents {}

impl Contents {
    /// Moves the oldest recent blocks to their spans.
    fn retire(&mut self, class: Class, blocks: usize, pages: &Pages) {
        for block in &self.recent[..blocks] {
            self.spans.put(class, *block, pages);
        }
        self.recent.copy_within(blocks..self.len, 0);
        self.len -= blocks;
        self.low = self.low.min(self.len);
    }

    /// Takes in a free block.
    fn put(&mut self, class: Class, block: *mut u8, pages: &Pages) {
        let most = at_most(RECENT, RECENT_BYTES, class);
        if self.len >= most {
            self.retire(class, most.div_ceil(2), pages);
        }
        self.recent[self.len] = block;
        self.len += 1;
    }

    /// Takes free blocks: at least one, and at most `most` and [`BATCH`] of them. `None` if there is
    /// no memory.
    fn take(&mut self, class: Class, most: usize, pages: &Pages) -> Option<Batch> {
        let mut batch = Batch::EMPTY;
        if self.len == 0 {
            let places = &mut batch.blocks[..most.clamp(1, BATCH)];
            batch.len = self.spans.take(class, places, pages);
            return (batch.len > 0).then_some(batch);
        }
        let stays = self.len.saturating_sub(most.clamp(1, BATCH));
        self.recent[stays..self.len].iter().for_each(|block| batch.add(*block));
        self.len = stays;
        self.low = self.low.min(stays);
        Some(batch)
    }
}

impl ClassList {
    const fn new() -> Self {
        let inside =
            Contents { recent: [ptr::null_mut(); RECENT], len: 0, low: 0, spans: Spans::new() };
        Self {
            inside: ForkLock::new(inside),
            late: AtomicPtr::new(ptr::null_mut()),
            recent: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            spans: AtomicUsize::new(0),
            cacheless: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// Runs `work` under the lock, after what came during a fork. `None` if another thread forks.
    ///
    /// Then ends the program if a block came back that is none, or was free already.
    fn enter<R>(
        &self,
        class: Class,
        pages: &Pages,
        work: impl FnOnce(&mut Contents) -> R,
    ) -> Option<R> {
        let (result, invalid) = self.inside.enter(|inside| {
            if !self.late.load(Relaxed).is_null() {
                self.take_late(class, inside, pages);
            }
            let result = work(inside);
            self.recent.store(inside.len, Relaxed);
            self.free.store(inside.spans.free, Relaxed);
            self.spans.store(inside.spans.count, Relaxed);
            (result, inside.spans.take_invalid())
        })?;
        if !invalid.is_null() {
            end_once_for(invalid);
        }
        Some(result)
    }

    /// Leaves a block to the next thread that has the lock.
    #[cold]
    #[expect(clippy::cast_ptr_alignment, reason = "blocks are aligned to 16 bytes")]
    fn put_late(&self, block: *mut u8) {
        let mut next = self.late.load(Relaxed);
        loop {
            // SAFETY: the program has freed the block, which has 16 bytes and more and is as aligned,
            // and this thread owns it.
            unsafe { block.cast::<*mut u8>().write(next) };
            match self.late.compare_exchange_weak(next, block, Release, Relaxed) {
                Ok(_) => return,
                Err(other) => next = other,
            }
        }
    }

    /// Takes in the blocks that came during a fork.
    #[cold]
    #[expect(clippy::cast_ptr_alignment, reason = "blocks are aligned to 16 bytes")]
    fn take_late(&self, class: Class, inside: &mut Contents, pages: &Pages) {
        let mut block = self.late.swap(ptr::null_mut(), Acquire);
        while !block.is_null() {
            // SAFETY: `put_late` wrote that, and no thread has used the block since.
            let next = unsafe { block.cast::<*mut u8>().read() };
            inside.put(class, block, pages);
            block = next;
        }
    }
}

impl Depot {
    /// Without blocks.
    pub(crate) const fn new() -> Self {
        #[expect(clippy::large_stack_arrays, reason = "made by the compiler, in a static")]
        let lists = [const { ClassList::new() }; CLASSES];
        Self { lists }
    }

    #[inline]
    fn list(&self, class: Class) -> &ClassList {
        &self.lists[class.number()]
    }

    /// Takes blocks of a class, at most `most`: the newest. `None` if there is no memory for one, and
    /// while another thread forks.
    pub(crate) fn take(&self, class: Class, most: usize, pages: &Pages) -> Option<Batch> {
        self.list(class).enter(class, pages, |inside| inside.take(class, most, pages))?
    }

    /// Takes blocks of a class back, as the newest.
    pub(crate) fn put(&self, class: Class, batch: &Batch, pages: &Pages) {
        if batch.len == 0 {
            return;
        }
        let list = self.list(class);
        let put = list.enter(class, pages, |inside| {
            batch.as_slice().iter().for_each(|block| inside.put(class, *block, pages));
        });
        if put.is_none() {
            batch.as_slice().iter().for_each(|block| list.put_late(*block));
        }
    }

    /// Moves half of the recent blocks that no request needed since the last call to their spans, and
    /// gives back the memory of spans that no request needed for [`CALLS`] calls.
    pub(crate) fn age(&self, pages: &Pages) {
        for (class, list) in self.in_use() {
            list.enter(class, pages, |inside| {
                inside.retire(class, inside.low.div_ceil(2), pages);
                inside.low = inside.len;
                inside.spans.give_back(class, CALLS, (LOOKS, SPANS), pages);
            });
        }
    }

    /// Moves all recent blocks to their spans, and gives back the memory of free pages of spans.
    pub(crate) fn clear(&self, pages: &Pages) {
        for (class, list) in self.in_use() {
            list.enter(class, pages, |inside| {
                inside.retire(class, inside.len, pages);
                inside.spans.give_back(class, 0, (usize::MAX, usize::MAX), pages);
            });
        }
    }

    /// Returns the classes that have free blocks.
    fn in_use(&self) -> impl Iterator<Item = (Class, &ClassList)> {
        let all = Class::all().zip(&self.lists);
        all.filter(|(_, list)| {
            let free = list.recent.load(Relaxed) + list.free.load(Relaxed);
            free > 0 || !list.late.load(Relaxed).is_null()
        })
    }

    /// Returns the bytes of the recent blocks of a class.
    pub(crate) fn recent_bytes(&self, class: Class) -> usize {
        self.list(class).recent.load(Relaxed) * class.bytes()
    }

    /// Returns the bytes of the free blocks of spans of a class.
    pub(crate) fn free_bytes(&self, class: Class) -> usize {
        self.list(class).free.load(Relaxed) * class.bytes()
    }

    /// Returns the bytes of the spans of a class.
    pub(crate) fn span_bytes(&self, class: Class) -> usize {
        self.list(class).spans.load(Relaxed) * span_bytes(class)
    }

    /// Counts a request from a thread without a thread cache.
    pub(crate) fn count_allocation(&self, class: Class) {
        self.list(class).cacheless[0].fetch_add(1, Relaxed);
    }

    /// Counts a block that a thread without a thread cache freed.
    pub(crate) fn count_free(&self, class: Class) {
        self.list(class).cacheless[1].fetch_add(1, Relaxed);
    }

    /// Returns the requests from threads without a thread cache, and the blocks that they freed.
    pub(crate) fn cacheless(&self, class: Class) -> [u64; 2] {
        self.list(class).cacheless.each_ref().map(|count| count.load(Relaxed))
    }

    /// Takes all locks before a fork, so that the child finds the lists whole.
    pub(crate) fn before_fork(&self) {
        self.lists.iter().for_each(|list| list.inside.before_fork());
    }

    /// Releases the locks after a fork, in the parent.
    pub(crate) fn after_fork(&self) {
        self.lists.iter().for_each(|list| list.inside.after_fork(|_| ()));
    }

    /// Releases the locks after a fork, in the child.
    ///
    /// Blocks that came during the fork are lost to it: the program may have told the system to give
    /// a child not the pages through which they are linked.
    pub(crate) fn in_child(&self) {
        for list in &self.lists {
            list.late.store(ptr::null_mut(), Relaxed);
            list.inside.in_child(|_| ());
        }
    }
}
