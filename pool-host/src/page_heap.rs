//! [`PageHeap`]: large blocks on pages, for allocators that do not know the size of what is freed.
//!
//! ```text
//!   PageHeap::allocate     here
//!     Pages::take_recent   pages.rs   HOT: one exchange
//!     allocate_slow        here       under the lock
//!   PageHeap::free         here
//!     Pages::give          pages.rs   HOT: one exchange
//!     check_limit          here       after 16 MiB: whether too much is cached
//!   all heaps              heaps.rs   forks, the background thread
//! ```
#![expect(unsafe_code, reason = "blocks are addresses")]

mod heaps;
mod stats;
#[cfg(all(test, not(any(miri, shuttle))))]
mod tests;

pub use stats::PageHeapStats;

use crate::limits::Memory;
use crate::pages::{Pages, Taken, own_shard};
use crate::settings::Settings;
use crate::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use crate::system;
use stats::ShardCounts;
use std::ptr::{self, NonNull};
use std::time::Duration;

/// Freed bytes of one shard after which [`PageHeap::free`] looks whether too much is cached.
const CHECKED_EVERY: usize = 16 << 20;
/// Bytes beyond the limit that one look of the background thread gives back.
const STEP: usize = 16 << 20;
/// Bytes of pages from which on the background thread is worth having.
const THREAD_FROM: u64 = 8 << 20;

/// A heap of large blocks on pages of 4 KiB, which finds a block by its address.
///
/// It is for allocators whose `free` gets an address and no size, such as C's `malloc` family. A
/// block has no header. A block that a thread just freed serves the next request of its length, in
/// about 10 ns; pages that no request needs return to the system.
///
/// A heap is static, since its blocks may outlive each other user of it. It serves requests once
/// [`PageHeap::start`] was called. Requests and frees use no thread-local variable and no memory of
/// another allocator, but for making the background thread, so a `malloc` may call them at any
/// time. Like `malloc` it may not be called from a signal handler. A child after `fork` may use it.
/// While a thread forks, requests of other threads are refused unless a recently freed block serves
/// them: an allocator over the heap passes them to another one, as where there is no memory.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod host { pub use pool_host::*; } }
/// use bucketpool::host::PageHeap;
///
/// static HEAP: PageHeap = PageHeap::new().cached_limit(512 << 20);
///
/// assert!(HEAP.allocate(1 << 20, 16).is_none()); // not started
/// assert!(HEAP.start());
/// let block = HEAP.allocate(1 << 20, 16).ok_or("no memory")?;
/// assert!(HEAP.has(block.as_ptr()));
/// // SAFETY: `block` came from this heap, and is not used again.
/// unsafe { HEAP.free(block) };
/// assert_eq!(HEAP.allocate(1 << 20, 16), Some(block)); // the same memory, warm
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
pub struct PageHeap {
    pages: Pages,
    counts: ShardCounts,
    settings: Settings,
    /// The most bytes of addresses to reserve.
    addresses: u64,
    /// Whether a call has begun to start the heap.
    starts: AtomicBool,
    /// Whether requests are served.
    started: AtomicBool,
    /// Limit on cached bytes.
    limit: AtomicUsize,
    /// The heap that was started before this one; null for the first.
    next: AtomicPtr<PageHeap>,
}

impl Default for PageHeap {
    fn default() -> Self {
        Self::new()
    }
}

impl PageHeap {
    /// Creates a heap that is not started.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pages: Pages::new(),
            counts: ShardCounts::new(),
            settings: Settings::DEFAULT,
            addresses: u64::MAX,
            starts: AtomicBool::new(false),
            started: AtomicBool::new(false),
            limit: AtomicUsize::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Sets how many bytes may be cached. By default an eighth of what its control groups leave
    /// the process when the heap starts, of the machine's memory, `RLIMIT_AS` and `RLIMIT_DATA`, and
    /// at most 1 GiB.
    ///
    /// A thread looks at it after each 16 MiB that it frees, and gives back up to twice what it
    /// freed. So a block of 4 GiB goes back at once, as it does in glibc.
    #[must_use]
    pub const fn cached_limit(mut self, bytes: u64) -> Self {
        // 0 in the settings is the default.
        self.settings.cached_limit = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// Sets after how long pages that no request needs have gone back; 1 s by default, `None` for
    /// never. Pages keep what the peaks of the last such time needed, a quarter of it, and 1 MiB.
    #[must_use]
    pub const fn decay(mut self, time: Option<Duration>) -> Self {
        self.settings.decay = Settings::milliseconds(time);
        self
    }

    /// Whether a thread looks after the heap, so that pages return to the system while the program
    /// sleeps or takes no large block: it does by default. All heaps of the process share one
    /// thread. It starts when a heap has 8 MiB of pages, and ends when none has. If the system
    /// makes none, a call after ten seconds tries again. It runs as the main thread does, never in
    /// real time, with a stack of 128 KiB and of all capabilities with `CAP_SETUID` and
    /// `CAP_SETGID` only; if a seccomp filter is in force it keeps what it inherits.
    ///
    /// Without it, calls of this heap do that work, and a program that makes none keeps its pages,
    /// unless another heap of the process has requested the thread.
    #[must_use]
    pub const fn background(mut self, on: bool) -> Self {
        self.settings.background = on;
        self
    }

    /// Sets how many bytes of addresses the heap may reserve: all of its blocks have their place
    /// there. By default 1 TiB, or less if the system has fewer. A process has 128 TiB on x86-64,
    /// so a program with many heaps should set it; at least 256 MiB.
    #[must_use]
    pub const fn addresses(mut self, bytes: u64) -> Self {
        self.addresses = bytes;
        self
    }

    /// Starts the heap, so that it serves requests. Returns whether it does; a second call changes
    /// nothing.
    ///
    /// It does not if the C library cannot register handlers for `fork`.
    pub fn start(&'static self) -> bool {
        // The limits are read from files, now rather than with the first request: later a program
        // may have forbidden itself to open files.
        self.start_under(Memory::read)
    }

    /// Starts a heap whose cached limit is set, for blocks of pools. It opens no file for that, and
    /// what the program did to its pages may stay when their memory goes back.
    ///
    /// Returns false while another thread starts it, also one that is missing in a forked child.
    pub(crate) fn start_for_pools(&'static self) -> bool {
        if self.started.load(Acquire) || self.starts.load(Relaxed) {
            return self.started.load(Acquire);
        }
        self.pages.keep_advice();
        self.start_under(Memory::default)
    }

    fn start_under(&'static self, memory: impl FnOnce() -> Memory) -> bool {
        let settings = &self.settings;
        if self.starts.swap(true, Relaxed) {
            return self.is_started_soon();
        }
        // Before the first entry into the lock.
        pool_core::watch_forks();
        heaps::be_quiet_in_sandbox(&self.pages);
        self.pages.reserve_at_most(usize::try_from(self.addresses).unwrap_or(usize::MAX));
        let memory = memory();
        self.pages.start(settings, memory);
        self.apply(settings, memory);
        // Without decay, a thread would have nothing to do.
        let added = heaps::add(self, settings.background && settings.decay > 0);
        self.started.store(added, Release);
        self.starts.store(added, Relaxed);
        added
    }

    /// Returns whether the heap serves requests, once the call that starts it had time to end. A
    /// thread that made the call may not exist, in a forked child.
    fn is_started_soon(&self) -> bool {
        const MAX_YIELDS: u32 = 1000;
        (0..MAX_YIELDS).any(|_| {
            let is_started = self.started.load(Acquire);
            if !is_started {
                std::thread::yield_now();
            }
            is_started
        })
    }

    /// Whether the program has said that it limits its calls of the system.
    pub(crate) fn is_in_sandbox() -> bool {
        heaps::is_in_sandbox()
    }

    /// Requests the background thread (see [`PageHeap::background`]) for all heaps of the process.
    pub fn request_background(&'static self) {
        heaps::request_thread();
    }

    /// Prepares all heaps of the process for a filter of system calls (seccomp) that permits what
    /// another allocator needs. Call it before the filter is in force. Later calls change nothing,
    /// nor does one of a child of `vfork`, whose memory is its parent's.
    ///
    /// From then on the heaps call the system by `mmap`, `munmap` and `futex` only. The background
    /// thread ends, which this waits for, at most about a second, and starts no more, so pages go
    /// back in calls of the program only.
    pub fn enter_sandbox() {
        heaps::enter_sandbox();
    }

    /// Prepares as [`PageHeap::enter_sandbox`] does for a thread that may make no call at all
    /// (`SECCOMP_MODE_STRICT`): no memory goes back from then on, whichever thread has freed it.
    pub(crate) fn enter_strict_sandbox() {
        heaps::enter_strict_sandbox();
    }

    /// Has all heaps heed a limit on addresses that the program is about to set.
    pub(crate) fn expect_address_limit(bytes: u64) {
        heaps::expect_address_limit(bytes);
    }

    /// Has all heaps heed a limit on addresses that the program has set; `u64::MAX` is none.
    pub(crate) fn hear_address_limit(bytes: u64) {
        heaps::hear_address_limit(bytes);
    }

    /// Has all heaps heed limits that the program has set (`setrlimit`).
    pub(crate) fn heed_limits() {
        heaps::heed_limits();
    }

    /// Changes the limit on cached bytes and the decay of a heap that serves requests. `None`
    /// stands for the default limit, and for pages that never go back.
    ///
    /// What is beyond the new limit goes back with the next calls.
    pub fn configure(&self, cached_limit: Option<u64>, decay: Option<Duration>) {
        let is_set = cached_limit.is_some();
        let cached_limit = cached_limit.map_or(0, |bytes| bytes.max(1));
        let decay = Settings::milliseconds(decay);
        let settings = Settings { cached_limit, decay, ..Settings::DEFAULT };
        self.apply(&settings, if is_set { Memory::default() } else { Memory::read() });
    }

    fn apply(&self, settings: &Settings, memory: Memory) {
        let limit = settings.limit(memory);
        self.limit.store(limit, Relaxed);
        self.pages.configure(limit, settings.decay);
    }

    /// Returns a block of at least `bytes` bytes; its contents are not specified.
    ///
    /// Returns `None` if there are no addresses or no memory, for more than 256 GiB, for an
    /// alignment that is no power of two or above 2 MiB, while another thread forks, and if the
    /// heap is not started. It uses whole pages, so it is meant for blocks of 64 KiB and more.
    #[inline]
    pub fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if !align.is_power_of_two() {
            return None;
        }
        let recent = self.pages.take_recent(bytes.max(1), align);
        let Some(block) = recent else { return self.allocate_slow(bytes, align, false) };
        self.counts.add_allocation(own_shard());
        NonNull::new(block)
    }

    /// Returns a block of at least `bytes` bytes that read as zeroes; otherwise as
    /// [`PageHeap::allocate`]. Pages that come from the system are not written.
    #[inline]
    pub fn allocate_zeroed(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if !align.is_power_of_two() {
            return None;
        }
        let recent = self.pages.take_recent(bytes.max(1), align);
        let Some(block) = recent else { return self.allocate_slow(bytes, align, true) };
        self.counts.add_allocation(own_shard());
        // SAFETY: the block holds at least that many bytes, and this thread owns it.
        unsafe { self.pages.zero(block, bytes) };
        NonNull::new(block)
    }

    #[cold]
    fn allocate_slow(&self, bytes: usize, align: usize, zeroed: bool) -> Option<NonNull<u8>> {
        if !self.started.load(Acquire) {
            return None;
        }
        system::keeping_errno(|| {
            let Taken { block, zeroed: is_zero } = self.pages.take(bytes.max(1), align)?;
            self.counts.add_allocation(own_shard());
            heaps::wake_thread(&self.pages);
            if zeroed && !is_zero {
                // SAFETY: the block holds at least that many bytes, and this thread owns it.
                unsafe { self.pages.zero(block, bytes) };
            }
            NonNull::new(block)
        })
    }

    /// Frees a block. It does not change `errno`.
    ///
    /// # Safety
    ///
    /// The block must come from this heap and must not be used again.
    #[inline]
    pub unsafe fn free(&self, block: NonNull<u8>) {
        // SAFETY: as the caller says.
        let bytes = unsafe { self.pages.give(block.as_ptr()) };
        if let Some(freed) = self.counts.add_freed(own_shard(), bytes, CHECKED_EVERY) {
            self.check_limit(freed);
        }
    }

    /// Gives back what is beyond the limit, at most twice what was freed since the last call. Runs
    /// in slots, which the pages do not count as free, may be more than the limit.
    #[cold]
    fn check_limit(&self, freed: usize) {
        self.pages.heed_limits();
        if self.pages.idle_bytes() > self.limit.load(Relaxed) {
            self.pages.give_back_beyond_limit(freed.saturating_mul(2));
        }
    }

    /// Returns whether an address is in this heap.
    ///
    /// It costs two loads and a comparison.
    #[inline]
    #[must_use]
    pub fn has(&self, address: *const u8) -> bool {
        self.pages.has(address.cast_mut())
    }

    /// Returns how many bytes a block holds, which is at least what was asked for.
    ///
    /// # Safety
    ///
    /// The block must come from this heap and must be in use.
    #[inline]
    #[must_use]
    pub unsafe fn usable_bytes(&self, block: NonNull<u8>) -> usize {
        self.pages.bytes_of(block.as_ptr())
    }

    /// Resizes a block to at least `bytes` bytes, in place or by moving what it holds. Returns the
    /// resized block, which is aligned to `align`; `None` if there is no memory, and for a block
    /// that would grow while another thread forks, and then the block is unchanged.
    ///
    /// A block that moves gets a place with room for more growth. A block that shrinks by less than
    /// an eighth and 256 KiB keeps its pages.
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
        let (start, bytes) = (block.as_ptr(), bytes.max(1));
        let kept = self.pages.bytes_of(start).min(bytes);
        system::keeping_errno(|| {
            // SAFETY: the caller guarantees that the block is in use and from this heap. Both it
            // and the result hold `kept` bytes.
            let resized = unsafe { self.pages.resize_or_move(start, kept, bytes, align) }?;
            heaps::wake_thread(&self.pages);
            NonNull::new(resized)
        })
    }

    /// Gives cached pages back to the system, the oldest first, until at least `bytes` bytes went
    /// or none is left. Returns the bytes that went: 0 while another thread forks.
    pub fn trim(&self, bytes: u64) -> u64 {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        system::keeping_errno(|| self.pages.trim(bytes) as u64)
    }

    /// Gives back what [`PageHeap::trim`] does, and the memory of the map of free pages.
    pub(crate) fn trim_all(&self) {
        self.trim(u64::MAX);
        system::keeping_errno(|| self.pages.trim_map());
    }

    /// Returns what it has counted, and the bytes that it has.
    #[must_use]
    pub fn stats(&self) -> PageHeapStats {
        PageHeapStats::of(&self.pages.stats(), &self.counts, self.limit.load(Relaxed))
    }

    /// Sets the high-water mark of the live bytes to what is live now.
    pub fn reset_peak(&self) {
        self.pages.reset_peak();
    }

    /// Runs the work that is due, for the background thread. Returns the cached bytes.
    ///
    /// It opens no file: a program that is not ours may have forbidden itself to.
    fn look(&self) -> usize {
        self.check_limit(STEP / 2);
        self.pages.look();
        self.pages.idle_bytes()
    }
}
