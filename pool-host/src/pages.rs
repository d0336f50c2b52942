//! Blocks on pages: one reserved range of addresses that is divided into runs of pages.
//!
//! ```text
//!   Pages::take      here          rounds the request up to pages
//!     Slots::take    slots.rs      HOT: one exchange, for a run of this length that was just freed
//!     Runs::take     runs.rs       under the lock: a dirty run, if need be after the slots are
//!                                  emptied; else one with clean pages around it; else a clean run;
//!                                  else the range grows
//!     Space::open    space.rs      makes the chunks of clean pages accessible
//!   Pages::give      here
//!     Slots::put     slots.rs      HOT: one exchange
//!     Runs::release  runs.rs       under the lock: coalesces the run with its free neighbours
//!     give_back      give_back.rs  returns pages beyond the recent need to the system, the oldest
//!                                  first, a bounded number of pages in a call
//!   Pages::zero      zero.rs       writes a block for a request that wants zeroes, or empties it
//!   Spans::take      span.rs       a run divided into blocks of one class, for blocks of up to 64 KiB
//! ```
//!
//! A free run is dirty (it holds old contents and has memory behind it) or clean (it has no memory
//! behind it and reads as zeroes). A map records where each run begins and ends, so a block has no
//! header and is freed by its address alone. The map's used runs are the program's blocks, the runs
//! in slots, and the runs that are being returned to the system. Nothing in this module allocates.
//!
//! No thread waits for the lock while another thread forks, unless it forks too. A request that
//! needs the lock is then refused, for the caller to serve otherwise; a free is done later
//! (`deferred.rs`); work that gives memory back is left to later calls.
#![expect(unsafe_code, reason = "blocks are addresses in a range that the system reserved")]

mod deferred;
mod give_back;
mod heap;
pub(crate) mod lock;
mod mapping;
mod need;
mod page;
mod resize;
mod runs;
mod setup;
mod slots;
mod space;
pub(crate) mod span;
#[cfg(all(test, not(any(miri, shuttle))))]
pub(crate) mod tests;
mod zero;

use crate::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use crate::{stderr, system};
use deferred::{Deferral, Deferred};
use heap::Heap;
use lock::ForkLock;
use mapping::Mapping;
use page::{Links, PageState, Tag};
use runs::Run;
use slots::Slots;
use space::Space;
use std::ptr;

/// Page size of this module in bytes. At least the system's page size, because the system takes
/// memory back in its own pages.
pub(crate) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };
/// Bytes by which a large mapped part of the range grows: a multiple of this.
const STEP: usize = 64 << 20;
/// Largest request in bytes. The map keeps the length of a run, in pages, in 29 bits.
const LARGEST: usize = 1 << 38;
/// Largest alignment in bytes.
const MOST_ALIGN: usize = 2 << 20;

/// Cached bytes from which on a forked child gives them back.
const CHILD_DROPS_FROM: usize = 1 << 20;

/// Base address before the range is reserved.
///
/// It is so far from all blocks that [`Pages::has`] is false for each of them, in whichever order
/// a thread sees the stores to `base` and `bytes`.
const NOWHERE: *mut u8 = ptr::without_provenance_mut(1 << (usize::BITS - 1));

/// Allocator of large blocks on pages.
///
/// What a fork writes to comes last.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Pages {
    deferred: Deferred,
    slots: Slots,
    range: PageRange,
    /// Whether the system refused to reserve addresses. All requests then fail.
    refused: AtomicBool,
    /// Whether enough pages are dirty that a free into a slot also calls [`Pages::look`].
    is_wet: AtomicBool,
    /// Number of dirty pages when [`Pages::note`] last ran.
    dirty: AtomicU64,
    /// Number of used pages when [`Pages::note`] last ran, and its high-water mark.
    used: AtomicU64,
    used_peak: AtomicU64,
    /// Time in milliseconds from which [`Pages::look`] returns pages to the system.
    next_look: AtomicU64,
    /// Requests that clean pages served. Growth of a block in place is not counted.
    fresh: AtomicU64,
    /// Pages that were returned to the system.
    returned: AtomicU64,
    /// How the system is called.
    mapping: Mapping,
    /// Whether the memory of a freed block goes back at once.
    is_unmapping: AtomicBool,
    /// Number of pages from which on the system may take the memory of freed blocks when it is
    /// short.
    lends_from: AtomicU64,
    /// The most bytes of addresses that the range may have.
    most: AtomicUsize,
    inside: ForkLock<Heap>,
}

/// Where the range and its map are. Each free reads this, and it changes with the range only: it has
/// cache lines of its own, so that the figures beside it take none of them away.
#[derive(Debug)]
#[repr(align(128))]
struct PageRange {
    /// Start of the reserved range; [`NOWHERE`] before the first request.
    base: AtomicPtr<u8>,
    /// Bytes of the reserved range; 0 before the first request.
    bytes: AtomicUsize,
    /// The map: the tag of the range's first page, where also its links end.
    tags: AtomicPtr<Tag>,
    /// The end of the marks of free blocks ([`Space::marks`]).
    marks: AtomicPtr<AtomicU64>,
    /// Number of pages that have entries in the map.
    end: AtomicU32,
}

/// A block, with a flag that is true if all of its bytes are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) block: *mut u8,
    pub(crate) zeroed: bool,
}

/// Figures of [`Pages`]: bytes, and one count of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagesStats {
    /// Bytes of the program's blocks and of the runs in slots.
    pub(crate) used: u64,
    /// The part of `used` that is in slots.
    pub(crate) slots: u64,
    /// Bytes of dirty runs: free, with memory behind them.
    pub(crate) dirty: u64,
    /// Requests that clean pages served. Growth of a block in place is not counted.
    pub(crate) fresh: u64,
    /// High-water mark of `used`.
    pub(crate) used_peak: u64,
    /// Bytes that were returned to the system, in sum.
    pub(crate) returned: u64,
}

impl Pages {
    /// The first byte that a fork writes to, in bytes from the start.
    #[cfg(not(pool_counts))]
    pub(crate) const LOCK_AT: usize =
        std::mem::offset_of!(Self, inside) + ForkLock::<Heap>::OWNER_AT;

    /// Creates pages without a range. The first request reserves it.
    pub(crate) const fn new() -> Self {
        Self {
            inside: ForkLock::new(Heap::new()),
            deferred: Deferred::new(),
            slots: Slots::new(),
            range: PageRange {
                base: AtomicPtr::new(NOWHERE),
                bytes: AtomicUsize::new(0),
                tags: AtomicPtr::new(ptr::null_mut()),
                marks: AtomicPtr::new(ptr::null_mut()),
                end: AtomicU32::new(0),
            },
            refused: AtomicBool::new(false),
            is_wet: AtomicBool::new(false),
            dirty: AtomicU64::new(0),
            used: AtomicU64::new(0),
            used_peak: AtomicU64::new(0),
            next_look: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            mapping: Mapping::new(),
            is_unmapping: AtomicBool::new(false),
            lends_from: AtomicU64::new(u64::MAX),
            most: AtomicUsize::new(usize::MAX),
        }
    }

    /// Runs `work` under the lock, after what was deferred. Returns `None` if another thread forks.
    fn enter<R>(&self, work: impl FnOnce(&mut Heap) -> R) -> Option<R> {
        self.inside.enter(|inside| {
            self.do_deferred(inside);
            work(inside)
        })
    }

    /// Runs `work` under the lock.
    #[cfg(test)]
    pub(crate) fn holding(&self, work: impl FnOnce()) {
        self.enter(|_| work());
    }

    /// Does the work that calls deferred during a fork, if there is any.
    #[inline]
    fn do_deferred(&self, inside: &mut Heap) {
        // A read copies no page after a fork.
        if self.deferred.is_any() {
            self.do_all_deferred(inside);
        }
    }

    #[cold]
    fn do_all_deferred(&self, inside: &mut Heap) {
        for (first, what) in self.deferred.take(|first| self.links(first as usize)) {
            self.release(inside, first, what);
        }
        if let Some((limit, decay)) = self.deferred.take_settings() {
            inside.need.configure((limit / PAGE) as u64, decay);
        }
        if self.deferred.take_reset_peak() {
            inside.need.most = inside.need.live;
        }
        if let Some(most) = self.deferred.take_most() {
            self.shorten_inside(inside, most);
        }
    }

    /// Leaves a used run, which the caller owns, to the next thread that has the lock.
    fn defer(&self, first: u32, what: Deferral) {
        self.deferred.push(first, self.links(first as usize), what);
    }

    /// Releases a used run.
    fn release(&self, inside: &mut Heap, first: u32, what: Deferral) {
        let Run { pages, .. } = inside.runs.at(first);
        if what.is_live() {
            inside.need.down(pages);
        }
        if what.is_closed() {
            // The rest of a chunk may be in use, and to open it once more might lose that. So the
            // addresses stay used for good: the system promises no memory for them.
            return;
        }
        match what.state() {
            PageState::Clean => inside.release_clean(first, pages, &self.mapping),
            state => {
                inside.runs.release(Run { first, pages, state });
            }
        }
    }

    /// Returns whether the range is reserved. The first request reserves it.
    fn is_there(&self) -> bool {
        self.range.bytes.load(Relaxed) > 0
    }

    /// Returns whether an address is in the reserved range, as each block from here is.
    #[inline]
    pub(crate) fn has(&self, block: *mut u8) -> bool {
        let from_base = block.addr().wrapping_sub(self.range.base.load(Relaxed).addr());
        from_base < self.range.bytes.load(Relaxed)
    }

    /// Returns the bytes of a block from here. The caller must own it.
    #[inline]
    pub(crate) fn bytes_of(&self, block: *mut u8) -> usize {
        self.run_of(block).1 as usize * PAGE
    }

    /// Returns the number of a block's first page, and the number of its pages. The caller must own
    /// the block.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the range has fewer than 2^30 pages")]
    fn run_of(&self, block: *mut u8) -> (u32, u32) {
        let first = (block.addr() - self.range.base.load(Relaxed).addr()) / PAGE;
        (first as u32, self.tag(first).pages())
    }

    /// Returns the tag of the first page of a run, or of a page of a span. The caller must own the run,
    /// or a block of the span.
    #[inline]
    fn tag(&self, page: usize) -> &Tag {
        // SAFETY: `Space::grow` made the tags of all usable pages readable and writable for good, and
        // a run has usable pages only. The stores of `base` and `tags` happen before this load: they
        // precede the lock or slot from which the run came, and the caller owns the run. The tag is
        // atomic, and changes only in calls of the run's owner.
        unsafe { &*self.range.tags.load(Relaxed).wrapping_add(page) }
    }

    /// Returns the links of a run. The caller must own the run.
    #[inline]
    fn links(&self, first: usize) -> &Links {
        let end = self.range.tags.load(Relaxed).cast::<Links>();
        // SAFETY: as in `tag`, before which they lie, the first page's last. All fields are atomic.
        unsafe { &*end.wrapping_sub(first + 1) }
    }

    /// Returns the address of a page.
    #[inline]
    fn address(&self, first: u32) -> *mut u8 {
        self.range.base.load(Relaxed).wrapping_add(first as usize * PAGE)
    }

    /// Takes a block of at least `bytes` bytes, which must not be 0.
    ///
    /// Returns `None` if there are no addresses or no memory, for more than [`LARGEST`] bytes, for
    /// an alignment above 2 MiB, and if the lock is needed while another thread forks.
    pub(crate) fn take(&self, bytes: usize, align: usize) -> Option<Taken> {
        if let Some(block) = self.take_recent(bytes, align) {
            return Some(Taken { block, zeroed: false });
        }
        self.take_run(Self::pages_of(bytes)?, Self::align_of(align)?)
    }

    /// Takes a block as [`Pages::take`] does, if one of this length was freed a moment ago.
    #[inline]
    pub(crate) fn take_recent(&self, bytes: usize, align: usize) -> Option<*mut u8> {
        debug_assert!(bytes > 0, "a run of no pages");
        let (pages, align) = (Self::pages_of(bytes)?, Self::align_of(align)?);
        let first = self.slots.take(pages, align, own_shard())?;
        self.tag(first as usize).take(pages);
        Some(self.address(first))
    }

    /// Rounds bytes up to pages; `None` above [`LARGEST`].
    #[expect(clippy::cast_possible_truncation, reason = "LARGEST has fewer than 2^30 pages")]
    fn pages_of(bytes: usize) -> Option<u32> {
        (bytes <= LARGEST).then_some(bytes.div_ceil(PAGE) as u32)
    }

    /// Converts an alignment to pages; `None` above [`MOST_ALIGN`].
    fn align_of(align: usize) -> Option<u32> {
        let align = u32::try_from(align.div_ceil(PAGE)).ok()?;
        (align as usize * PAGE <= MOST_ALIGN).then_some(align)
    }

    /// Takes a run under the lock. If there is no memory, gives all free memory back to the system
    /// and tries once more.
    #[cold]
    fn take_run(&self, pages: u32, align: u32) -> Option<Taken> {
        let taken = self.try_take_run(pages, align);
        let again = || {
            // Others have the addresses then that a limit has refused here.
            self.heed_address_limit();
            (self.trim(usize::MAX) > 0).then(|| self.try_take_run(pages, align))?
        };
        taken.or_else(again)
    }

    fn try_take_run(&self, pages: u32, align: u32) -> Option<Taken> {
        if !self.is_ready() {
            return None;
        }
        let now = system::coarse_milliseconds();
        let taken = self.enter(|inside| {
            let mut found = inside.take_dirty(pages, align);
            // Runs in slots that were just freed serve before clean pages do.
            if found.is_none() && self.sweep(inside) {
                found = inside.take_dirty(pages, align);
            }
            let found = found.or_else(|| inside.take_span(pages, align, &self.mapping));
            let found = found.or_else(|| inside.take_clean(pages, align, &self.mapping));
            self.note_end(inside);
            let (first, state) = found?;
            inside.need.up(pages);
            if state == PageState::Clean {
                self.fresh.fetch_add(1, Relaxed);
                return Some((first, true, self.turn(inside, now, pages)));
            }
            // Dirty pages served, so their number did not rise and no page need return to the
            // system.
            self.note(inside, now);
            Some((first, false, 0))
        });
        let (first, zeroed, budget) = taken??;
        self.give_back(budget);
        Some(Taken { block: self.address(first), zeroed })
    }

    /// Publishes the number of pages for those that free.
    fn note_end(&self, inside: &Heap) {
        let end = inside.runs.end();
        if self.range.end.load(Relaxed) != end {
            self.range.end.store(end, Relaxed);
        }
    }

    /// Takes back a block. Returns its bytes.
    ///
    /// At an address where no block begins, or where the block is free already, it ends the program
    /// if it finds that out.
    ///
    /// # Safety
    ///
    /// The block must come from these pages, the caller must own it, and no thread may use it
    /// again.
    #[inline]
    pub(crate) unsafe fn give(&self, block: *mut u8) -> usize {
        let Some((first, pages)) = self.freed_run(block) else { end_for(block) };
        if self.is_unmapping.load(Relaxed) {
            self.give_emptied(first, pages);
        } else if let Some((older, its_pages)) = self.slots.put(first, pages, own_shard()) {
            self.give_run(older, its_pages);
        } else if self.is_wet.load(Relaxed) {
            self.look();
        }
        pages as usize * PAGE
    }

    /// Marks a block as freed by the program. Returns its first page and its number of pages;
    /// `None` if no block begins here, or if it is free already.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the range has fewer than 2^30 pages")]
    fn freed_run(&self, block: *mut u8) -> Option<(u32, u32)> {
        let from_base = block.addr().wrapping_sub(self.range.base.load(Relaxed).addr());
        // An address inside of a page becomes a number above all pages.
        let (number, end) =
            (from_base.rotate_right(PAGE.trailing_zeros()), self.range.end.load(Relaxed));
        if number >= end as usize {
            return None;
        }
        let last = |further| {
            let last = number + further as usize;
            (last < end as usize).then(|| self.tag(last))
        };
        Some((number as u32, self.tag(number).free(last)?))
    }

    /// Frees a run under the lock, or later if another thread forks.
    #[cold]
    fn give_run(&self, first: u32, pages: u32) {
        let lends_from = self.lends_from.load(Relaxed);
        // Not outside of containers: other threads write these figures.
        let lends = lends_from < u64::MAX / PAGE as u64
            && self.used.load(Relaxed) + self.dirty.load(Relaxed) >= lends_from;
        if lends {
            // SAFETY: the program freed the run, and this thread owns it until `release` below.
            unsafe { self.mapping.lend(self.address(first), pages as usize * PAGE) };
        }
        let now = system::coarse_milliseconds();
        let budget = self.enter(|inside| {
            inside.need.down(pages);
            inside.runs.release(Run { first, pages, state: PageState::Dirty });
            self.turn(inside, now, pages)
        });
        match budget {
            Some(budget) => self.give_back(budget),
            None => self.defer(first, Deferral::Freed),
        }
    }

    /// Returns about how many bytes are cached: dirty runs and runs in slots.
    pub(crate) fn idle_bytes(&self) -> usize {
        let pages = self.dirty.load(Relaxed) + self.slots.pages();
        usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(PAGE)
    }

    /// Returns about how many bytes are used: blocks, spans, and runs in slots.
    pub(crate) fn used_bytes(&self) -> usize {
        usize::try_from(self.used.load(Relaxed)).unwrap_or(usize::MAX).saturating_mul(PAGE)
    }

    /// Returns about how many bytes are used or dirty.
    #[inline]
    pub(crate) fn recent_bytes(&self) -> u64 {
        (self.used.load(Relaxed) + self.dirty.load(Relaxed)) * PAGE as u64
    }

    /// Returns the current figures; while another thread forks, some of them are those that
    /// [`Pages::note`] published last.
    pub(crate) fn stats(&self) -> PagesStats {
        let bytes = |pages: u64| pages * PAGE as u64;
        let figures = |inside: &mut Heap| [inside.need.live, inside.runs.dirty, inside.need.most];
        let published =
            || [&self.used, &self.dirty, &self.used_peak].map(|pages| pages.load(Relaxed));
        let [used, dirty, used_peak] = self.enter(figures).unwrap_or_else(published);
        PagesStats {
            used: bytes(used),
            slots: bytes(self.slots.pages()),
            dirty: bytes(dirty),
            fresh: self.fresh.load(Relaxed),
            used_peak: bytes(used_peak),
            returned: bytes(self.returned.load(Relaxed)),
        }
    }

    /// Returns whether the range is reserved. The first call reserves it, unless another thread
    /// forks.
    fn is_ready(&self) -> bool {
        self.range.bytes.load(Acquire) > 0 || self.reserve()
    }

    /// Reserves the range. Returns whether it is reserved; after a refusal no later call tries
    /// again.
    #[cold]
    fn reserve(&self) -> bool {
        if self.refused.load(Relaxed) {
            return false;
        }
        #[cfg(all(target_env = "gnu", not(any(target_feature = "crt-static", miri))))]
        crate::unloading::prevent();
        let reserved = self.enter(|inside| {
            if inside.space.is_some() {
                return true;
            }
            let Some(space) = Space::reserve(self.most.load(Relaxed), &self.mapping) else {
                return false;
            };
            self.range.base.store(space.base, Relaxed);
            self.range.tags.store(space.tags, Relaxed);
            self.range.marks.store(space.marks, Relaxed);
            self.range.bytes.store(space.bytes, Release);
            inside.space = Some(space);
            true
        });
        let Some(reserved) = reserved else { return false };
        self.refused.store(!reserved, Relaxed);
        reserved
    }

    /// Takes the lock before a fork, so that the child finds the runs consistent.
    pub(crate) fn before_fork(&self) {
        self.inside.before_fork(true);
    }

    /// Returns whether the caller has the lock, or has interrupted code of its own thread that has it.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.is_inside()
    }

    /// Releases the lock after a fork, in the parent.
    pub(crate) fn after_fork(&self) {
        self.inside.after_fork(|inside| self.do_deferred(inside));
    }

    /// Releases the lock after a fork, in the child. If it was not held for the fork and another
    /// thread had it, requests that need it are refused from now on.
    ///
    /// Long runs that are cached go back: a child that idles would keep them. The others wait for the
    /// child's own requests, since most children end or run another program at once.
    pub(crate) fn in_child(&self) {
        self.inside.in_child(|inside| self.do_deferred(inside));
        if self.idle_bytes() >= CHILD_DROPS_FROM {
            self.trim_in_child();
        }
    }
}

/// Ends the program, which has freed an address that is no block of its own.
#[cold]
pub(crate) fn end_for(block: *mut u8) -> ! {
    stderr::say(&[b"bucketpool: free of a block that is free already, or of no block\n"]);
    // In a core dump, the address is this function's argument.
    std::hint::black_box(block);
    std::process::abort()
}

/// Does what [`end_for`] does, the first time. Later, in the program's handler of the signal, nothing:
/// requests of the handler may find more such blocks.
#[cold]
pub(crate) fn end_once_for(block: *mut u8) {
    static ENDS: AtomicBool = AtomicBool::new(false);
    if !ENDS.swap(true, Relaxed) {
        end_for(block);
    }
}

/// Returns a number that differs between most threads.
#[inline]
#[cfg(not(pool_counts))]
pub(crate) fn own_shard() -> usize {
    // The addresses of threads differ by a power of two and some pages, so the top bits of the
    // product differ.
    system::thread_identity().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - 16)
}

/// The number of the thread in a build that counts, which is the same in each run.
#[cfg(pool_counts)]
pub(crate) fn own_shard() -> usize {
    pool_core::counts::thread()
}
