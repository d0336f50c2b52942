//! [`Tcache`]: a global allocator that caches freed blocks.
//!
//! ```text
//!   Tcache::alloc            here               size class, this thread's cache
//!     ThreadCache::take      thread_cache.rs    HOT: a pop; no lock, no line that others write
//!     Cache::allocate        cache.rs           the thread cache has none
//!       Depot::take          depot.rs           a batch of what all threads share
//!         Spans::take        pages/span.rs      blocks of pages
//!       Pages::take          pages.rs           above 64 KiB: a run of pages
//!       Inner::allocate      inner.rs           where there are no addresses or no memory
//!   Tcache::dealloc          here
//!     ThreadCache::put       thread_cache.rs    HOT: a push
//!     Cache::free            cache.rs           the bin is full: a batch goes to the depot
//!   Cache::look              decay.rs           what no request needs goes back with time
//! ```
#![expect(unsafe_code, reason = "the trait of an allocator is unsafe")]

mod background;
mod barrier;
mod c_heap;
mod cache;
mod checked;
mod clocks;
mod decay;
mod inner;
mod large;
mod role;
mod slow;
mod stats;
mod thread;
mod thread_cache;
mod thread_caches;

pub use c_heap::CHeap;
pub use stats::{TcacheState, TcacheStats};

use crate::class::Class;
use crate::page_heap::PageHeap;
use crate::settings::{Mode, Settings};
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use inner::Inner;
use pool_core::is_vfork_child;
use role::{SERVING, UNDECIDED};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::cold_path;
use std::ptr;
use std::time::Duration;
use thread::{CACHE, own_thread_cache, thread_cache};

/// A global allocator that caches the blocks that a program frees.
///
/// Two lines, and temporaries of `ndarray` and the like stop page-faulting:
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod host { pub use pool_host::*; } }
/// use bucketpool::host::Tcache;
///
/// #[global_allocator]
/// static ALLOCATOR: Tcache = Tcache::new();
///
/// let first = vec![1.0_f32; 1 << 20];
/// let address = first.as_ptr();
/// drop(first);
/// let again: Vec<f32> = Vec::with_capacity(1 << 20);
/// assert_eq!(again.as_ptr(), address); // the same memory, warm
/// ```
///
/// Blocks are parts of pages of its own, which go back to the system; none has a header. The inner
/// allocator, [`System`] unless another is given, serves where those have no addresses or no memory,
/// and what is aligned to more than 2 MiB. Each thread caches blocks up to 256 KiB for itself, as many
/// as it needs again and at most [`thread_limit`](Tcache::thread_limit) bytes; all threads share the
/// rest. At most [`cached_limit`](Tcache::cached_limit) bytes are cached, the oldest go back first,
/// and what no request needs goes back after [`decay`](Tcache::decay).
///
/// A block has at least the bytes that were asked for, and at most an eighth and 15 bytes more. The
/// blocks up to 64 KiB share pages with others of about their size; above that pages serve
/// alignments up to 2 MiB.
///
/// There is one cache in a process. The first `Tcache` that is asked for memory owns it, for good;
/// another passes everything to its own inner allocator, and says so on stderr.
///
/// Like `malloc`, it may not be called from a signal handler. A child process after `fork` may use
/// it, also the child of a process with many threads: it finds the pages whole, and takes over what
/// the other threads had cached, unless one of them was just moving blocks. In checked mode the
/// child may not use it.
///
/// # Environment
///
/// `BUCKETPOOL_HOST` is read once, when memory is first asked for: words, separated by commas, of
/// `off`, `on` (even under a sanitizer or Valgrind, where it otherwise passes through), `check`
/// ([`Tcache::checked`]), `background` and `background=off` ([`Tcache::background`]), `huge`
/// ([`Tcache::huge_pages`]), `stats` (a summary on stderr when the process exits), `limit=SIZE`,
/// `thread=SIZE`, `decay=MILLISECONDS` (0 for never), and with the feature `trace` `trace=FILE`,
/// which records all requests and frees to a `.ptrace.csv.zst` file. A set-user-ID, set-group-ID or
/// otherwise privileged program (`AT_SECURE`) does not read it.
#[derive(Debug)]
pub struct Tcache<A = System> {
    inner: A,
    settings: Settings,
    /// Its part in the process: undecided, the cache, or one that passes through.
    role: AtomicU8,
    /// Its number, once it wants to own the cache.
    id: AtomicUsize,
}

impl Tcache<System> {
    /// Over the system's allocator.
    #[must_use]
    pub const fn new() -> Self {
        Self::over(System)
    }
}

impl Default for Tcache<System> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> Tcache<A> {
    /// Over another allocator.
    #[must_use]
    pub const fn over(inner: A) -> Self {
        let (role, id) = (AtomicU8::new(UNDECIDED), AtomicUsize::new(0));
        Self { inner, settings: Settings::DEFAULT, role, id }
    }

    /// Sets how many bytes may be cached. By default an eighth of what its control groups leave the
    /// process at its first request, of the machine's memory, `RLIMIT_AS` and `RLIMIT_DATA`, and at
    /// most 1 GiB.
    ///
    /// Pages keep to it when a thread has freed 16 MiB since it read the clock, 32 MiB and so on. What threads cache
    /// counts as of the last tenth of the [`decay`](Tcache::decay). Free parts of pages of which other
    /// parts are in use do not count.
    #[must_use]
    pub const fn cached_limit(mut self, bytes: u64) -> Self {
        // 0 in the settings is the default.
        self.settings.cached_limit = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// Sets how many bytes of blocks up to 256 KiB a thread may cache for itself; 64 MiB by default. All
    /// threads together may cache about half of the [`cached_limit`](Tcache::cached_limit), of which
    /// those that make no requests leave most to the others.
    ///
    /// A thread begins with a few blocks of each size and may cache more when it has to ask for more.
    /// Each tenth of the [`decay`](Tcache::decay) half of what it did not need goes, and all after two
    /// if it makes no request.
    #[must_use]
    pub const fn thread_limit(mut self, bytes: u64) -> Self {
        self.settings.thread_limit = bytes;
        self
    }

    /// Sets after how long memory that no request needs has gone back; 1 s by default, `None` for
    /// never. Pages keep what the peaks of the last such time needed, and a quarter of it; of blocks
    /// in thread caches and of those that threads share, half goes in each tenth of the time.
    ///
    /// The calls of the program do that, a bounded part in each: at most 16 MiB of pages. A program
    /// that calls the allocator no more leaves it to the thread of
    /// [`background`](Tcache::background); without one it keeps what it has, until [`Tcache::trim`]
    /// or [`Tcache::clear`].
    #[must_use]
    pub const fn decay(mut self, time: Option<Duration>) -> Self {
        self.settings.decay = Settings::milliseconds(time);
        self
    }

    /// Looks for mistakes of the program instead of caching, and aborts with a line on stderr at
    /// one: a write behind the end of a block, a write to a freed block, a double free, a free of
    /// an address that is no block or with another layout. Blocks of a page and more end at a page
    /// without access, which takes two mappings each: with the usual `vm.max_map_count` some 30 000
    /// of them may live, and then a request is refused. Freed blocks are held back: the last 1024
    /// of them, up to 64 MiB. For debugging; `BUCKETPOOL_HOST=check` does the same to a built
    /// program.
    #[must_use]
    pub const fn checked(mut self, on: bool) -> Self {
        self.settings.mode = if on { Mode::Checked } else { Mode::Auto };
        self
    }

    /// Whether a thread gives memory back while the program sleeps: it does by default. It starts
    /// when 8 MiB of pages are used or cached, and ends when they are fewer. It looks every 50 ms, and every 500 ms when nothing changes. It is made as that of
    /// [`PageHeap::background`](crate::PageHeap::background), so frees of the inner allocator get
    /// 128 KiB of stack there. Over an inner allocator with fields there is none, since it would
    /// have no reference to one.
    #[must_use]
    pub const fn background(mut self, on: bool) -> Self {
        self.settings.background = on;
        self
    }

    /// Advises the system to make pages of huge pages, and aligns blocks from 4 MiB to 2 MiB. A
    /// first touch is one page fault for 2 MiB then, instead of 512. It may cost memory: the system
    /// may merge pages that were given back. Off by default.
    #[must_use]
    pub const fn huge_pages(mut self, on: bool) -> Self {
        self.settings.huge_pages = on;
        self
    }
}

impl<A: GlobalAlloc + Sync + 'static> Tcache<A> {
    fn inner(&self) -> Inner<'_, A> {
        Inner(&self.inner)
    }

    /// Allocates a block without a class. A function, so that [`GlobalAlloc::alloc`] saves no
    /// registers for it.
    #[inline(never)]
    fn allocate_large(&self, layout: Layout) -> *mut u8 {
        if self.role.load(Relaxed) == SERVING
            && let Some(block) = CACHE.take_large(thread_cache(), layout)
        {
            return block;
        }
        self.allocate_otherwise(layout, false)
    }

    /// Frees a block without a class.
    ///
    /// # Safety
    ///
    /// As for [`GlobalAlloc::dealloc`].
    #[inline(never)]
    unsafe fn free_large(&self, block: *mut u8, layout: Layout) {
        if self.role.load(Relaxed) == SERVING
            // SAFETY: as the caller says.
            && unsafe { CACHE.put_large(thread_cache(), block) }
        {
            return;
        }
        // SAFETY: as the caller says.
        unsafe { self.free_otherwise(block, layout) }
    }

    /// Gives cached memory back, pages first and then free parts of pages, oldest first, until at least
    /// `bytes` bytes went or none is left. Returns the bytes that went. What threads cache for themselves
    /// stays.
    pub fn trim(&self, bytes: u64) -> u64 {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.serves() { CACHE.trim(bytes) as u64 } else { 0 }
    }

    /// Gives all cached memory back, also what other threads have cached and do not use meanwhile.
    /// Returns the bytes that went.
    pub fn clear(&self) -> u64 {
        if self.serves() { CACHE.clear(own_thread_cache(), &self.inner()) as u64 } else { 0 }
    }

    /// Prepares for a filter of system calls (seccomp) that permits what the inner allocator needs.
    ///
    /// From then on blocks need `mmap`, `munmap` and `futex` only, beside what the inner allocator
    /// calls. The background thread ends, which this waits for, at most about a second, and starts no
    /// more; the system's memory pressure is not read, and blocks of parked threads stay with them.
    /// Memory goes back in calls of the program only. Call it before the filter is in force. It does the
    /// same for all page heaps, from which pools of [`HostAllocator`](crate::HostAllocator) have blocks.
    pub fn enter_sandbox(&self) {
        PageHeap::enter_sandbox();
        if self.serves() && !background::THREAD.is_forbidden() && !is_vfork_child() {
            background::THREAD.forbid();
            CACHE.enter_sandbox();
        }
    }

    /// Returns what it has counted, and the bytes that it has. For one that has no cache it says why
    /// ([`TcacheStats::state`]), and all else is zero.
    #[must_use]
    pub fn stats(&self) -> TcacheStats {
        if self.serves() { CACHE.stats() } else { TcacheStats::without_cache(self.state()) }
    }

    /// Returns whether it caches: it does not if `BUCKETPOOL_HOST=off` or `check` says so, if a
    /// sanitizer or Valgrind watches the program, or if another `Tcache` was first.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.serves()
    }
}

// SAFETY: a block comes from the inner allocator, or is a run of pages or a part of one, is at least as large and as
// aligned as the layout that was asked for (`Class::of`, `Pages::take`), and leaves the thread
// cache, the free list or the pages when it is handed out. The same pure function of the layout
// finds its class on the way in and out.
unsafe impl<A: GlobalAlloc + Sync + 'static> GlobalAlloc for Tcache<A> {
    // Each way out is a return or a tail call, so no register is saved on the stack.
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = Class::of(layout) else { return self.allocate_large(layout) };
        if self.role.load(Relaxed) == SERVING
            && let Some(block) = thread_cache().take(class)
        {
            return block;
        }
        cold_path();
        self.allocate_otherwise(layout, false)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = Class::of(layout) else {
            // SAFETY: as the caller says.
            return unsafe { self.free_large(block, layout) };
        };
        if self.role.load(Relaxed) == SERVING && thread_cache().put(class, block) {
            return;
        }
        cold_path();
        // SAFETY: as the caller says.
        unsafe { self.free_otherwise(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = Class::of(layout)
            && self.role.load(Relaxed) == SERVING
            && let Some(block) = thread_cache().take(class)
        {
            // SAFETY: a block of this class holds that many bytes.
            unsafe { block.write_bytes(0, layout.size()) };
            return block;
        }
        self.allocate_otherwise(layout, true)
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size is a valid one for this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_bytes, layout.align()) };
        if self.serves() {
            let (old_class, new_class) = (Class::of(layout), Class::of(new));
            let old = (block, layout.size());
            if old_class.is_some() && old_class == new_class {
                self.resized(old, new_bytes, || block);
                return block;
            }
            let is_run = |class: Option<Class>| class.is_none_or(Class::is_paged);
            let on_pages = is_run(old_class) && is_run(new_class) && CACHE.pages.has(block);
            // SAFETY: as the caller says, and the block is on pages.
            let resize = || unsafe { CACHE.resize(own_thread_cache(), block, layout, new) };
            let resize = || resize().unwrap_or(ptr::null_mut());
            if on_pages && let Some(resized) = self.resized(old, new_bytes, resize) {
                return resized;
            }
            if old_class.is_none() && new_class.is_none() && !CACHE.pages.has(block) {
                // SAFETY: as the caller says; pages had none, and the inner allocator was asked.
                let resize = || unsafe { self.inner.realloc(block, layout, new_bytes) };
                if let Some(resized) = self.resized(old, new_bytes, resize) {
                    return resized;
                }
                // `alloc` below gives back what is cached before it gives up.
            }
        } else if !self.checks() {
            // SAFETY: as the caller says; all of it went past us.
            return unsafe { self.inner.realloc(block, layout, new_bytes) };
        }
        // SAFETY: as the caller says.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both hold that many bytes, and they are two blocks.
            unsafe { moved.copy_from_nonoverlapping(block, layout.size().min(new_bytes)) };
            // SAFETY: as the caller says.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}
