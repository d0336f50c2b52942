//! [`CHeap`]: the tcache for an allocator in C, whose `free` knows the address alone.
#![expect(unsafe_code, reason = "blocks of an allocator are pointers")]

use super::inner::Inner;
use super::role::SERVING;
use super::stats::TcacheStats;
use super::thread::{CACHE, own_thread_cache, thread_cache};
use super::{Tcache, background};
use crate::class::Class;
use crate::page_heap::PageHeap;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{stderr, system};
use pool_core::is_vfork_child;
use std::alloc::{GlobalAlloc, Layout};
use std::hint::assert_unchecked;
use std::ptr::{self, NonNull};

/// The heap of a `malloc` that is written in another language.
///
/// It is the cache of the process as [`Tcache`] is, with its settings, but for the inner allocator:
/// what it cannot serve it refuses, for the caller to serve otherwise. A block is freed by its address
/// alone, and [`CHeap::has`] tells whether it is one of this heap. A process has one: a second, and a
/// `Tcache` beside it, serve nothing.
///
/// No function but [`CHeap::start_by_environment`] allocates, but for making the background thread and
/// for registering what runs at the end of a thread, and none changes `errno`; so a `malloc` may call
/// them at any time. Like `malloc` it may not be called from a signal handler. A child after `fork`
/// may use it. While a thread forks, requests of other threads are refused that need a lock.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod host { pub use pool_host::*; } }
/// use bucketpool::host::CHeap;
///
/// static HEAP: CHeap = CHeap::new();
///
/// assert!(HEAP.allocate(100, 16).is_none()); // not started
/// assert!(HEAP.start_by_environment());
/// let block = HEAP.allocate(100, 16).ok_or("no memory")?;
/// assert!(HEAP.has(block.as_ptr()));
/// // SAFETY: `block` came from this heap, and is not used again.
/// assert!(unsafe { HEAP.free(block.as_ptr()) });
/// assert_eq!(HEAP.allocate(100, 16), Some(block)); // the same memory, warm
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
pub struct CHeap {
    tcache: Tcache<Nothing>,
}

/// An inner allocator that has no memory.
#[derive(Debug)]
struct Nothing;

// SAFETY: it returns no block.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        ptr::null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

impl Default for CHeap {
    fn default() -> Self {
        Self::new()
    }
}

const NOTHING: Inner<'static, Nothing> = Inner(&Nothing);

/// Prints the summary when the process ends.
extern "C" fn print_stats() {
    let stats = CACHE.stats();
    if stats.failures > 0 && stats.allocations == stats.failures {
        stderr::summarize(&"no addresses for pages, so the C library served all");
    } else {
        stderr::summarize(&stats);
    }
}

impl CHeap {
    /// Creates a heap that is not started.
    #[must_use]
    pub const fn new() -> Self {
        Self { tcache: Tcache::over(Nothing) }
    }

    /// Starts the heap, so that it serves requests, with the words of the environment variable
    /// `BUCKETPOOL_HOST` ([`Tcache`]). Returns whether it does.
    ///
    /// It does not start if a word is `off`, if a sanitizer or Valgrind watches the program and no
    /// word is `on`, if a `Tcache` of the program was first, or if the C library cannot register
    /// handlers for `fork`. The word `stats` has it say at the end that it was off. A line on stderr reports an unknown word, and `check`, which has no effect.
    ///
    /// In a set-user-ID, set-group-ID or otherwise privileged program (`AT_SECURE`) it reads no
    /// word, since a user without the privileges chooses the environment.
    ///
    /// It reads the environment with `getenv`, and calls `dlsym`, which may allocate.
    pub fn start_by_environment(&'static self) -> bool {
        let settings = self.tcache.settings.with_environment();
        settings.report_ineffective();
        let role = self.tcache.set_up(&settings, print_stats);
        self.tcache.role.store(role, Relaxed);
        role == SERVING
    }

    #[inline]
    fn serves(&self) -> bool {
        self.tcache.role.load(Relaxed) == SERVING
    }

    /// Returns a block of at most 64 KiB that this thread has cached, as [`CHeap::allocate`] does first.
    ///
    /// For a `malloc` that wants this part inlined, and the rest behind a call.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as the rest")]
    pub fn allocate_cached(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let class = Class::of_part(bytes, align)?;
        // Threads without a cache would write to one line, of a static.
        let block = self.serves().then(|| thread_cache().take(class))??;
        // SAFETY: bins hold blocks, none of which is at address 0.
        unsafe { assert_unchecked(!block.is_null()) };
        NonNull::new(block)
    }

    /// Returns a block of at least `bytes` bytes; its contents are not specified.
    ///
    /// Returns `None` if there are no addresses or no memory, for more than 256 GiB, for an
    /// alignment that is no power of two or above 2 MiB, while another thread forks if a lock is
    /// needed, and if the heap is not started.
    #[inline]
    pub fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let cached = self.allocate_cached(bytes, align);
        cached.or_else(|| self.allocate_slow(bytes, align).map(|(block, _)| block))
    }

    /// Returns a block of at least `bytes` bytes that read as zeroes; otherwise as
    /// [`CHeap::allocate`]. Pages that come from the system are not written.
    #[inline]
    pub fn allocate_zeroed(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let (block, is_zero) = match self.allocate_cached(bytes, align) {
            Some(block) => (block, false),
            None => self.allocate_slow(bytes, align)?,
        };
        if !is_zero {
            // SAFETY: the block holds at least that many bytes, and this thread owns it.
            unsafe { CACHE.pages.zero(block.as_ptr(), bytes) };
        }
        Some(block)
    }

    /// Returns a block, and whether it reads as zeroes.
    #[inline(never)]
    fn allocate_slow(&self, bytes: usize, align: usize) -> Option<(NonNull<u8>, bool)> {
        let layout = layout(bytes, align)?;
        if !self.serves() {
            return None;
        }
        let class = Class::of_part(bytes, align);
        if class.is_none()
            && let Some(block) = CACHE.take_large(thread_cache(), layout)
        {
            return Some((NonNull::new(block)?, false));
        }
        system::keeping_errno(|| {
            background::wake();
            let local = own_thread_cache();
            let taken = match class {
                Some(class) => CACHE.take_part(local, class, &NOTHING)?,
                None => CACHE.take_run(local, layout, &NOTHING)?,
            };
            Some((NonNull::new(taken.block)?, taken.zeroed))
        })
    }

    /// Frees a block of at most 64 KiB into the cache of this thread, as [`CHeap::free`] does first.
    /// Returns false if it does not, and then nothing is done.
    ///
    /// # Safety
    ///
    /// A block of this heap must not be used again, unless the result is false.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as the rest")]
    pub unsafe fn free_cached(&self, block: *mut u8) -> bool {
        CACHE.pages.part_at(block).is_some_and(|class| thread_cache().put_new(class, block))
    }

    /// Frees a block of this heap; returns false for one that is not, and then nothing is done. It does
    /// not change `errno`.
    ///
    /// It ends the program at a block that is free already, and at an address of this heap where no
    /// block begins, if it finds that out: of blocks above 64 KiB always; of smaller ones when they go
    /// back to their pages, and for the one that the thread freed last.
    ///
    /// # Safety
    ///
    /// A block of this heap must not be used again.
    pub unsafe fn free(&self, block: *mut u8) -> bool {
        // SAFETY: as the caller says.
        if unsafe { self.free_cached(block) } {
            return true;
        }
        match CACHE.pages.part_at(block) {
            // SAFETY: as the caller says; the block is one of this class.
            Some(class) => system::keeping_errno(|| unsafe {
                CACHE.free(own_thread_cache(), class, block, &NOTHING);
            }),
            None if !CACHE.pages.has(block) => return false,
            // SAFETY: as the caller says.
            None if unsafe { CACHE.put_large(thread_cache(), block) } => {}
            // SAFETY: as the caller says.
            None => system::keeping_errno(|| unsafe { CACHE.free_run(own_thread_cache(), block) }),
        }
        true
    }

    /// Returns whether an address is in this heap.
    ///
    /// It costs two loads and a comparison.
    #[inline]
    #[must_use]
    pub fn has(&self, address: *const u8) -> bool {
        CACHE.pages.has(address.cast_mut())
    }

    /// Returns how many bytes a block holds, which is at least what was asked for.
    ///
    /// # Safety
    ///
    /// The block must come from this heap and must be in use.
    #[inline]
    #[must_use]
    pub unsafe fn usable_bytes(&self, block: NonNull<u8>) -> usize {
        let block = block.as_ptr();
        CACHE.pages.part_at(block).map_or_else(|| CACHE.pages.bytes_of(block), Class::bytes)
    }

    /// Resizes a block to at least `bytes` bytes, in place or by moving what it holds. Returns the
    /// resized block, which is aligned to `align`; `None` if there is no memory, and for a block
    /// that would grow while another thread forks, and then the block is unchanged.
    ///
    /// A block of up to 64 KiB stays in place if it has no more than twice the bytes. A larger one that
    /// moves gets a place with room for more growth; one that shrinks by less than an eighth and
    /// 256 KiB keeps its pages.
    ///
    /// # Safety
    ///
    /// The block must come from this heap with this alignment, and must be in use. Unless the
    /// result is `None`, only the result may be used from then on.
    #[must_use]
    pub unsafe fn resize(
        &self,
        block: NonNull<u8>,
        bytes: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        // SAFETY: as the caller says.
        let held = unsafe { self.usable_bytes(block) };
        let is_part = CACHE.pages.part_at(block.as_ptr()).is_some();
        if is_part && bytes <= held && bytes >= held / 2 {
            return Some(block);
        }
        let (old, new) = (layout(held, align)?, layout(bytes, align)?);
        if !is_part && Class::of_part(bytes, align).is_none() {
            return system::keeping_errno(|| {
                background::wake();
                // SAFETY: as the caller says; the block is a run, and stays one.
                let resized =
                    unsafe { CACHE.resize_run(own_thread_cache(), block.as_ptr(), old, new) };
                NonNull::new(resized?)
            });
        }
        let moved = self.allocate(bytes, align)?;
        // SAFETY: both hold that many bytes, and they are two blocks.
        unsafe { moved.copy_from_nonoverlapping(block, held.min(bytes)) };
        // SAFETY: as the caller says.
        unsafe { self.free(block.as_ptr()) };
        Some(moved)
    }

    /// Gives cached memory back to the system, the oldest first, until at least `bytes` bytes went or
    /// none is left. Returns the bytes that went: 0 while another thread forks. What threads cache for
    /// themselves stays.
    pub fn trim(&self, bytes: u64) -> u64 {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        system::keeping_errno(|| if self.serves() { CACHE.trim(bytes) as u64 } else { 0 })
    }

    /// Prepares for a filter of system calls, as [`Tcache::enter_sandbox`] does. A child of `vfork`
    /// changes nothing.
    pub fn enter_sandbox(&self) {
        if self.serves() {
            self.tcache.enter_sandbox();
        }
    }

    /// Prepares as [`CHeap::enter_sandbox`] does, for a thread that may make no system call at all
    /// (`SECCOMP_MODE_STRICT`): the heap makes none while it has a block for each request, and no memory
    /// goes back from then on.
    pub fn enter_strict_sandbox(&self) {
        if self.serves() && !is_vfork_child() {
            self.tcache.enter_sandbox();
            CACHE.pages.be_silent();
            PageHeap::enter_strict_sandbox();
        }
    }

    /// Heeds a limit that the program has set for its memory (`RLIMIT_DATA`). A child of `vfork` changes
    /// nothing.
    pub fn heed_limits(&self) {
        self.heed(|| {
            CACHE.pages.heed_limits();
            PageHeap::heed_limits();
        });
    }

    /// Heeds a limit that the program has set for its addresses (`RLIMIT_AS`), also behind a filter of
    /// system calls: those that are reserved and not used go back, since they count. `u64::MAX` is none.
    ///
    /// A limit that it does not hear of is heeded when a block needs new addresses or moves, and when 16
    /// MiB have been freed, unless there may be a filter. A child of `vfork` changes nothing.
    pub fn heed_address_limit(&self, bytes: u64) {
        self.heed(|| {
            CACHE.pages.hear_address_limit(bytes);
            PageHeap::hear_address_limit(bytes);
        });
    }

    /// Gives addresses up for a limit that the program is about to set: once it is in force, they count. Call
    /// [`CHeap::heed_address_limit`] after that, too.
    pub fn expect_address_limit(&self, bytes: u64) {
        self.heed(|| {
            CACHE.pages.expect_address_limit(bytes);
            PageHeap::expect_address_limit(bytes);
        });
    }

    fn heed(&self, heed: impl FnOnce()) {
        if self.serves() && !is_vfork_child() {
            system::keeping_errno(heed);
        }
    }

    /// Gives up all reserved addresses that no block has, if the process may have few (`RLIMIT_AS`): for
    /// a request of another allocator that the system has refused. Returns whether there were any.
    pub fn give_up_addresses(&self) -> bool {
        system::keeping_errno(|| self.serves() && CACHE.pages.give_up_addresses())
    }

    /// Returns what it has counted, and the bytes that it has.
    #[must_use]
    pub fn stats(&self) -> TcacheStats {
        if self.serves() { CACHE.stats() } else { TcacheStats::without_cache(self.tcache.state()) }
    }
}

/// Returns the layout of a request; `None` for an alignment that is no power of two, and a size that
/// overflows with it.
fn layout(bytes: usize, align: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), align).ok()
}
