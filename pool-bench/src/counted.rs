//! An allocator wrapper that counts the calls that reach the device.
#![expect(unsafe_code, reason = "host memory stays host memory when it is counted")]

use bucketpool::observe::DeviceStats;
use bucketpool::port::{HostMemory, Lent, MarkOf, Memory, PageCalls, Request, Sliceable};
use bucketpool::{DeviceAllocator, DeviceError, StreamOf, Why};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An allocator that counts successful calls and bytes of the allocator inside.
#[derive(Debug)]
pub struct Counted<A> {
    inner: A,
    calls: Arc<Calls>,
}

/// Counters of the calls to a device.
#[derive(Debug, Default)]
pub struct Calls {
    allocations: AtomicU64,
    frees: AtomicU64,
    bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

/// Values of the counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Successful calls that took memory, whatever the number of pages of each.
    pub allocations: u64,
    /// Successful calls that gave memory back.
    pub frees: u64,
    /// Peak of the bytes held at once.
    pub peak_bytes: u64,
    /// Pieces of memory that these calls made and freed: the handles of a range of pages, where the
    /// device has one for each page, and else as many as calls.
    pub handles: u64,
}

impl Asked {
    /// Takes the handles from the statistics of an arena, which knows how many a range of pages has.
    #[must_use]
    pub fn with_handles_of(self, arena: Option<DeviceStats>) -> Self {
        let of = |stats: DeviceStats| stats.num_device_alloc + stats.num_device_free;
        Self { handles: arena.map_or(self.handles, of), ..self }
    }
}

/// A block that carries its size.
#[derive(Debug)]
pub struct CountedBlock<B> {
    block: B,
    bytes: u64,
}

impl<A> Counted<A> {
    /// Wraps `inner` with counters that start at zero.
    pub fn new(inner: A) -> Self {
        Self { inner, calls: Arc::default() }
    }

    /// Wraps `inner` with counters shared with other allocators of the same device.
    pub fn together(inner: A, calls: Arc<Calls>) -> Self {
        Self { inner, calls }
    }

    /// Returns the counters, which outlive the allocator.
    #[must_use]
    pub fn calls(&self) -> Arc<Calls> {
        self.calls.clone()
    }
}

impl Calls {
    /// Returns the current values of the counters.
    pub fn asked(&self) -> Asked {
        let (allocations, frees) = (self.allocations.load(Relaxed), self.frees.load(Relaxed));
        let peak_bytes = self.peak_bytes.load(Relaxed);
        Asked { allocations, frees, peak_bytes, handles: allocations + frees }
    }

    fn took(&self, bytes: u64) {
        self.allocations.fetch_add(1, Relaxed);
        let held = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        self.peak_bytes.fetch_max(held, Relaxed);
    }

    fn gave_back(&self, bytes: u64) {
        self.frees.fetch_add(1, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

impl<A: DeviceAllocator> DeviceAllocator for Counted<A> {
    type Block = CountedBlock<A::Block>;
    type View<'b> = A::View<'b>;
    type Kind = A::Kind;
    type Clock = A::Clock;
    /// The properties of the inner memory, except that fresh memory does not count as zeroed.
    ///
    /// Therefore `allocate_zeroed` writes all of it, as a program would.
    const MEMORY: Memory = Memory { fresh_is_zeroed: false, ..A::MEMORY };

    fn clock(&self) -> &A::Clock {
        self.inner.clock()
    }
    fn granule(&self) -> u64 {
        self.inner.granule()
    }
    fn largest(&self) -> u64 {
        self.inner.largest()
    }
    fn alignment_of(&self, kind: A::Kind) -> u64 {
        self.inner.alignment_of(kind)
    }
    fn total_bytes(&self) -> Option<u64> {
        self.inner.total_bytes()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
    fn aligned(&self, kind: A::Kind, alignment: u64) -> Result<A::Kind, DeviceError> {
        self.inner.aligned(kind, alignment)
    }
    fn allocate(
        &self,
        request: Request<A::Kind>,
        on: &StreamOf<Self>,
    ) -> Result<Self::Block, DeviceError> {
        let block = self.inner.allocate(request, on)?;
        self.calls.took(request.bytes);
        Ok(CountedBlock { block, bytes: request.bytes })
    }
    fn free(&self, block: Self::Block, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.inner.free(block.block, after)?;
        self.calls.gave_back(block.bytes);
        Ok(())
    }
    fn prepare(&self) {
        self.inner.prepare();
    }

    fn release_kept(&self) -> Result<(), DeviceError> {
        self.inner.release_kept()
    }

    fn give_all_back(&self) -> Result<(), DeviceError> {
        self.inner.give_all_back()
    }

    fn view<'b>(
        &'b self,
        block: &'b Self::Block,
        offset: u64,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> A::View<'b> {
        self.inner.view(&block.block, offset, bytes, on)
    }
    fn lend(view: A::View<'_>, to: Lent) -> A::View<'_> {
        A::lend(view, to)
    }
    fn zero(
        &self,
        block: &mut Self::Block,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        self.inner.zero(&mut block.block, bytes, on)
    }
}

impl<A: Sliceable> Sliceable for Counted<A> {
    fn pages(&self) -> Option<PageCalls<Self>> {
        let PageCalls { page_bytes, handles, address_space, .. } = self.inner.pages()?;
        Some(PageCalls {
            page_bytes,
            handles,
            address_space,
            // Reserved addresses are not counted; committed ranges count as allocations.
            reserve: |counted, bytes| {
                let pages = counted.inner.pages().ok_or_else(no_pages)?;
                Ok(CountedBlock { block: (pages.reserve)(&counted.inner, bytes)?, bytes: 0 })
            },
            commit: |counted, block, range| {
                let pages = counted.inner.pages().ok_or_else(no_pages)?;
                (pages.commit)(&counted.inner, &block.block, range.clone())?;
                counted.calls.took(range.end - range.start);
                Ok(())
            },
            decommit: |counted, block, range, after| {
                let pages = counted.inner.pages().ok_or_else(no_pages)?;
                (pages.decommit)(&counted.inner, &block.block, range.clone(), after)?;
                counted.calls.gave_back(range.end - range.start);
                Ok(())
            },
            release: |counted, block, after| {
                let pages = counted.inner.pages().ok_or_else(no_pages)?;
                (pages.release)(&counted.inner, block.block, after)
            },
        })
    }

    unsafe fn zero_part(
        &self,
        block: &Self::Block,
        bytes: Range<u64>,
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise to this function is what the inner function requires.
        unsafe { self.inner.zero_part(&block.block, bytes, on) }
    }
}

fn no_pages() -> DeviceError {
    DeviceError::new(Why::Unsupported, "virtual memory")
}

// SAFETY: blocks and views are those of the inner allocator, which makes the same promise.
unsafe impl<A: HostMemory> HostMemory for Counted<A> {
    fn bytes(view: &Self::View<'_>) -> NonNull<[u8]> {
        A::bytes(view)
    }
}
