//! [`Tcache`]: a global allocator that keeps freed blocks warm.
//!
//! ```text
//!   Tcache::alloc            here            size class, this thread's front
//!     Front::take            front.rs        HOT: a pop; no lock, no line that others write
//!     Cache::allocate        cache.rs        the front has none
//!       Depot::pop           depot.rs        a stack for each class, behind a lock; large blocks
//!                                            come here directly, one at a time
//!       Inner::allocate      inner.rs        a miss
//!   Tcache::dealloc          here
//!     Front::put             front.rs        HOT: a push
//!     Cache::keep            bound.rs        to the depot, within what is leased; oldest out first
//! ```
#![expect(unsafe_code, reason = "the trait of an allocator is unsafe")]

mod aging;
mod bound;
mod cache;
mod checked;
mod front;
mod fronts;
mod inner;
mod settings;
mod stats;
mod thread;

pub use stats::TcacheStats;

use crate::depot::Class;
use crate::system;
use checked::CHECKED;
use inner::Inner;
use settings::{Mode, Settings};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use thread::{CACHE, front, own_front};

/// A global allocator that keeps what a program frees, and hands it out again while it is warm.
///
/// Two lines, and temporaries of `ndarray` and the like stop page-faulting:
///
/// ```
/// use pool_host::Tcache;
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
/// It caches blocks of the allocator below, [`System`] unless another is given, and does nothing
/// else: it cuts nothing up and adds no header. Up to 256 KiB a thread keeps some for itself;
/// everything else lies in a depot that all threads share, at most
/// [`cached_limit`](Tcache::cached_limit) bytes in all, from which the oldest goes first and what
/// nobody needs goes after a while.
///
/// There is one cache in a process. The first `Tcache` that is asked for memory owns it, for good;
/// another passes everything to its own inner allocator, and says so on stderr.
///
/// Like `malloc`, it may not be called from a signal handler. A child process after `fork` may use
/// it; what other threads had to themselves at that moment is lost to the child, at most
/// [`thread_lease`](Tcache::thread_lease) bytes each, and a class whose stack one of them was just
/// working on goes past the cache there (all classes, slowly, if it was just asking the system for
/// bookkeeping). In checked mode the child may not use it.
///
/// # Environment
///
/// `BUCKETPOOL_HOST` is read once, when memory is first asked for: words, separated by commas, of
/// `off`, `on` (even under a sanitizer or Valgrind, where it otherwise passes through), `check`
/// ([`Tcache::checked`]), `limit=SIZE`, `lease=SIZE`, `decay=MILLISECONDS` (0 for never).
#[derive(Debug)]
pub struct Tcache<A = System> {
    inner: A,
    settings: Settings,
    /// What it is to the process: undecided, its cache, or one that passes through.
    role: AtomicU8,
    /// A number of its own, once it wants to own the cache.
    id: AtomicUsize,
}

const UNDECIDED: u8 = 0;
const SERVING: u8 = 1;
const PASSING: u8 = 2;
/// It looks for mistakes, and caches nothing.
const CHECKING: u8 = 3;

/// Who owns the cache.
static OWNER: AtomicUsize = AtomicUsize::new(0);
static NEXT_ID: AtomicUsize = AtomicUsize::new(1);

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

    /// Bytes that may be cached, in all threads together. By default an eighth of the memory that
    /// the process may use, by its control groups and `RLIMIT_AS` too, and at most 1 GiB.
    #[must_use]
    pub const fn cached_limit(mut self, bytes: u64) -> Self {
        // 0 in the settings is the default.
        self.settings.cached_limit = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// Bytes that a thread may keep to itself, within the limit; 1 MiB by default. Others cannot
    /// reach them until it ends.
    #[must_use]
    pub const fn thread_lease(mut self, bytes: u64) -> Self {
        self.settings.thread_lease = bytes;
        self
    }

    /// After how long what nobody needs has gone back to the inner allocator, but for a thousandth:
    /// ten steps, each of which gives back half. 10 s by default; `None` for never. There is no
    /// thread that does it: a thread that allocates looks at the time once in a while, so a process
    /// that allocates nothing at all keeps what it has; [`Tcache::clear`] is for that.
    #[must_use]
    pub const fn decay(mut self, time: Option<Duration>) -> Self {
        self.settings.decay = Settings::milliseconds(time);
        self
    }

    /// It looks for mistakes instead of caching, and aborts with a line on stderr when it finds
    /// one: a write behind the end of a block, to a freed block, a double free, a free of what is
    /// no block or with another layout. Blocks of a page and more end at a page that nobody may
    /// touch. Freed blocks rest: the last 1024 of them, up to 64 MiB. For debugging;
    /// `BUCKETPOOL_HOST=check` does the same to a program that is already built.
    #[must_use]
    pub const fn checked(mut self, on: bool) -> Self {
        self.settings.mode = if on { Mode::Checked } else { Mode::Auto };
        self
    }

    /// Blocks from 4 MiB are aligned to 2 MiB, and the system is advised to make them of huge
    /// pages, where it does that on advice. A first touch is one page fault for 2 MiB then, instead
    /// of 512; it may cost memory. Off by default.
    #[must_use]
    pub const fn huge_pages(mut self, on: bool) -> Self {
        self.settings.huge_pages = on;
        self
    }
}

impl<A: GlobalAlloc> Tcache<A> {
    fn inner(&self) -> Inner<'_, A> {
        Inner { allocator: &self.inner, huge_pages: self.settings.huge_pages }
    }

    /// Whether it is the cache of the process.
    #[inline]
    fn serves(&self) -> bool {
        match self.role.load(Relaxed) {
            SERVING => true,
            PASSING | CHECKING => false,
            _ => self.decide(),
        }
    }

    /// Whether it looks for mistakes; known once [`Tcache::serves`] was asked.
    fn checks(&self) -> bool {
        self.role.load(Relaxed) == CHECKING
    }

    /// Decides what it is, once. Two threads that come here at once decide the same.
    #[cold]
    fn decide(&self) -> bool {
        let settings = self.settings.with_environment();
        let watched = settings.mode == Mode::Auto && system::is_watched();
        let serves = !watched && settings.mode != Mode::Off && self.claim();
        if serves {
            let lease = usize::try_from(settings.thread_lease).unwrap_or(usize::MAX);
            let now = system::coarse_milliseconds();
            CACHE.configure(settings.limit(), lease, settings.decay, now);
        }
        let role = match settings.mode {
            Mode::Checked if serves => CHECKING,
            _ if serves => SERVING,
            _ => PASSING,
        };
        self.role.store(role, Relaxed);
        role == SERVING
    }

    /// Whether this one owns the cache. It never changes hands: its blocks belong to one inner
    /// allocator.
    fn claim(&self) -> bool {
        if self.id.load(Relaxed) == 0 {
            let id = NEXT_ID.fetch_add(1, Relaxed);
            let _ = self.id.compare_exchange(0, id, Relaxed, Relaxed);
        }
        let id = self.id.load(Relaxed);
        match OWNER.compare_exchange(0, id, Relaxed, Relaxed) {
            Ok(_) => true,
            Err(owner) if owner == id => true,
            Err(_) => {
                system::say(&[b"bucketpool: a second Tcache in this process passes through\n"]);
                false
            }
        }
    }

    /// The class of a layout, if this is the cache of the process and knows it.
    fn class_of(&self, layout: Layout) -> Option<Class> {
        if self.serves() { Class::of(layout) } else { None }
    }

    /// A large block of the depot, or else.
    #[inline(never)]
    fn allocate_otherwise(&self, layout: Layout) -> *mut u8 {
        match self.class_of(layout) {
            Some(class) => {
                let large =
                    if class.is_of_front() { None } else { CACHE.take_large(front(), class) };
                large.unwrap_or_else(|| self.allocate_slowly(layout, class, false))
            }
            None => self.allocate_past(layout, false),
        }
    }

    #[inline(never)]
    unsafe fn free_otherwise(&self, block: *mut u8, layout: Layout) {
        match self.class_of(layout) {
            Some(class) if !class.is_of_front() && CACHE.put_large(front(), class, block) => {}
            // SAFETY: as the caller says; what has a class was allocated as a block of it.
            Some(class) => unsafe { CACHE.free(own_front(), class, block, &self.inner()) },
            // SAFETY: as the caller says, or what is wrong with it is found.
            None if self.checks() => unsafe { CHECKED.free(block, layout, &self.inner) },
            // SAFETY: as the caller says; the same layout went past us in `alloc`.
            None => unsafe { self.inner.dealloc(block, layout) },
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_slowly(&self, layout: Layout, class: Class, zeroed: bool) -> *mut u8 {
        let (block, fresh) = CACHE.allocate(own_front(), class, zeroed, &self.inner());
        if zeroed && !fresh {
            // SAFETY: a block of this class holds so many bytes, and is not null if it is not
            // fresh.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    /// Past the cache.
    #[cold]
    fn allocate_past(&self, layout: Layout, zeroed: bool) -> *mut u8 {
        if self.checks() {
            return CHECKED.allocate(layout, zeroed, &self.inner);
        }
        if self.serves() {
            CACHE.counts.bypasses.fetch_add(1, Relaxed);
        }
        if zeroed {
            // SAFETY: the layout is the caller's own, who promises that it is not of 0 bytes.
            unsafe { self.inner.alloc_zeroed(layout) }
        } else {
            // SAFETY: as above.
            unsafe { self.inner.alloc(layout) }
        }
    }

    /// Gives idle blocks of the depot back to the inner allocator, oldest first, until at least
    /// `bytes` went or none is left. Returns the bytes that went.
    pub fn trim(&self, bytes: u64) -> u64 {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.serves() { CACHE.trim(bytes, &self.inner()) as u64 } else { 0 }
    }

    /// Gives all that is idle in the depot and with this thread back to the inner allocator; what
    /// other threads keep to themselves stays. Returns the bytes that went.
    pub fn clear(&self) -> u64 {
        if self.serves() { CACHE.clear(own_front(), &self.inner()) as u64 } else { 0 }
    }

    /// What it has counted, and holds; all zero for one that passes through.
    #[must_use]
    pub fn stats(&self) -> TcacheStats {
        if self.serves() { CACHE.stats() } else { TcacheStats::default() }
    }

    /// Whether it caches: it does not if `BUCKETPOOL_HOST=off` or `check` says so, if a sanitizer
    /// or Valgrind watches the program, or if another `Tcache` was first.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.serves()
    }
}

// SAFETY: blocks come from the inner allocator, whole, at least as large as the layout that was
// asked for and aligned to 16, which is at least what is served here (`Class::of`); while a block
// is idle nobody has it, and it leaves a front or a stack when it is handed out. The same pure
// function of the layout finds its class on the way in and out.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Tcache<A> {
    // Each way out is a return or a call in its place, so nothing is saved on the stack.
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = Class::of_front(layout)
            && self.role.load(Relaxed) == SERVING
            && let Some(block) = front().take(class)
        {
            return block;
        }
        self.allocate_otherwise(layout)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(class) = Class::of_front(layout)
            && self.role.load(Relaxed) == SERVING
            && front().put(class, block)
        {
            return;
        }
        // SAFETY: as the caller says.
        unsafe { self.free_otherwise(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = self.class_of(layout) else { return self.allocate_past(layout, true) };
        let front = front();
        let hit =
            if class.is_of_front() { front.take(class) } else { CACHE.take_large(front, class) };
        let Some(block) = hit else { return self.allocate_slowly(layout, class, true) };
        // SAFETY: a block of this class holds so many bytes.
        unsafe { block.write_bytes(0, layout.size()) };
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size is a valid one for this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_bytes, layout.align()) };
        if !self.serves() && !self.checks() {
            // SAFETY: as the caller says; all of it went past us.
            return unsafe { self.inner.realloc(block, layout, new_bytes) };
        }
        match (self.class_of(layout), self.class_of(new)) {
            (None, None) if !self.checks() => {
                // SAFETY: as above.
                unsafe { self.inner.realloc(block, layout, new_bytes) }
            }
            (Some(old), Some(new)) if old == new => block,
            (Some(old), Some(new)) if !old.is_of_front() && !new.is_of_front() => {
                // SAFETY: as the caller says, and the block is one of this class.
                unsafe { CACHE.resize(own_front(), block, old, new, &self.inner()) }
            }
            _ => {
                // SAFETY: as the caller says.
                let moved = unsafe { self.alloc(new) };
                if !moved.is_null() {
                    let kept = layout.size().min(new_bytes);
                    // SAFETY: both hold so many bytes, and they are two blocks.
                    unsafe { moved.copy_from_nonoverlapping(block, kept) };
                    // SAFETY: as the caller says.
                    unsafe { self.dealloc(block, layout) };
                }
                moved
            }
        }
    }
}
