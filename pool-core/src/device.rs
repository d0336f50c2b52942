//! The port: what a kind of memory must offer so that a pool, and anything else that is written
//! once, can run over it.
//!
//! Everything that hands out memory is a [`DeviceAllocator`]; a counter or a fault injector is one
//! over another. `examples/custom_backend.rs` is the shortest complete one.

pub(crate) mod transfer;
pub(crate) mod zero;

use crate::device::zero::ZeroPolicy;
use crate::error::DeviceError;
use crate::stream::clock::StreamClock;
use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Range;

/// Hands out blocks of one kind of memory.
///
/// A call that panics counts as refused: a block that was to be freed is lost, as if the device had
/// kept it, and the panic reaches who asked the pool.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no memory that a pool runs over",
    note = "give a pool an allocator: `HostAllocator::new()`, `CudaAllocator::new(0)?`, \
            `WgpuAllocator`, `SimDevice::new()`, or your own `DeviceAllocator`"
)]
pub trait DeviceAllocator: Send + Sync + 'static {
    /// What the device handed out, whole. Owned: no `Clone`, no `Copy` and no public constructor,
    /// so that a second free cannot be written. No `Drop` either: giving memory back needs the
    /// allocator and an order.
    type Block: Send + Sync + 'static;

    /// What a program uses: an address; a buffer and an offset. The backend's own type, so that it
    /// can carry foreign traits; the orphan rule keeps these off
    /// [`PooledBuffer`](crate::PooledBuffer).
    /// It borrows its block, and should not be `Clone`, so that it cannot outlive its
    /// [`Use`](crate::Use).
    type View<'b>;

    /// What must match, besides the size, before a block can serve again: an alignment, usage
    /// flags, nothing.
    type Kind: Copy + Eq + Hash + Default + Debug + Send + Sync + 'static;

    /// The order in which the device works.
    type Clock: StreamClock;

    /// How this memory behaves.
    const MEMORY: Memory;

    /// The clock of the device behind this allocator.
    fn clock(&self) -> &Self::Clock;

    /// Sizes that the device hands out are multiples of this many bytes. A pool rounds to it, so
    /// that its figures are those of the device.
    fn granule(&self) -> u64 {
        1
    }

    /// The largest block that the device can hand out. A size class above it is not used: the
    /// request goes past the pool as it is.
    fn largest(&self) -> u64 {
        u64::MAX
    }

    /// All the memory that the device has, in bytes, where it says so: what a share of it is
    /// reckoned from.
    fn total_bytes(&self) -> Option<u64> {
        None
    }

    /// The memory that the device has free, in bytes, where its driver tells: for other programs
    /// too. Asks the driver.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// `kind`, with blocks that start at multiples of `alignment` bytes as well.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`](crate::Why::Unsupported) if this memory cannot do that, or if
    /// `alignment` is not a power of two.
    fn aligned(&self, kind: Self::Kind, alignment: u64) -> Result<Self::Kind, DeviceError>;

    /// What blocks of a kind are aligned to, in bytes.
    fn alignment_of(&self, _kind: Self::Kind) -> u64 {
        1
    }

    /// Takes a block of at least `request.bytes` bytes from the device, for work on `on`.
    ///
    /// # Errors
    ///
    /// What the device said; nothing was taken then.
    fn allocate(
        &self,
        request: Request<Self::Kind>,
        on: &StreamOf<Self>,
    ) -> Result<Self::Block, DeviceError>;

    /// Gives a block back. Its memory may serve again once all of `after` is done; until then the
    /// allocator may keep it, and the pool counts it as given back.
    ///
    /// # Errors
    ///
    /// What the device said. The block is gone whatever happens: an error means that the device
    /// would not have it back, and the pool counts it as lost.
    fn free(&self, block: Self::Block, after: &[MarkOf<Self>]) -> Result<(), DeviceError>;

    /// Gives back memory that the allocator itself keeps for its next calls, and that pools do not
    /// count. [`BucketPool::trim`](crate::BucketPool::trim), `shrink_to` and `clear` call it.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    fn release_kept(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// `bytes` bytes of `block` from `offset` on, for work on `on`. The caller stays inside the
    /// block; a backend for which straying would be undefined behaviour checks.
    fn view<'b>(
        &'b self,
        block: &'b Self::Block,
        offset: u64,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Self::View<'b>;

    /// Fills the first `bytes` bytes of a block with zeroes, in the order of `on`. The block is
    /// borrowed alone, so nobody looks at it meanwhile.
    ///
    /// # Errors
    ///
    /// What the device said; the contents are unknown then.
    fn zero(
        &self,
        block: &mut Self::Block,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError>;
}

/// A stream of an allocator's device.
pub type StreamOf<A> = <<A as DeviceAllocator>::Clock as StreamClock>::Stream;
/// A mark of an allocator's device.
pub type MarkOf<A> = <<A as DeviceAllocator>::Clock as StreamClock>::Mark;

/// What a block is asked for with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<K> {
    /// Bytes that the block must hold at least.
    pub bytes: u64,
    /// What sort of memory it must be.
    pub kind: K,
}

/// How a kind of memory behaves, known when the program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The CPU can touch a block without asking a stream. Such a block is reused only when a query
    /// has seen its marks done: the host is a stream that cannot wait on a device.
    pub cpu_touches: bool,
    /// Giving a block back is cheap, cannot fail and is legal anywhere, so a drop may do it. Where
    /// this is false, what a drop would free is owed, and paid by the next call that may.
    pub free_in_drop: bool,
    /// A block fresh from the device reads as zeroes.
    pub fresh_is_zeroed: bool,
    /// When a fresh block may be used.
    pub allocating: Allocating,
    /// When [`DeviceAllocator::zero`] happens.
    pub clearing: Clearing,
    /// When a pool clears blocks unless it is told otherwise: what programs over this memory
    /// expect.
    pub default_zero: ZeroPolicy,
}

/// When a fresh block may be used, in the order of a device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocating {
    /// At once, by anybody.
    AtOnce,
    /// In the order of the stream that it was allocated on; elsewhere by work that is ordered after
    /// that.
    InOrder,
}

/// When clearing happens, in the order of a device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// When it is asked for: it has happened when the call returns.
    AtOnce,
    /// In the order of the stream that it is asked for on.
    InOrder,
    /// Ahead of what is not submitted yet, on a stream that
    /// [`StreamClock::ahead_of`](crate::StreamClock::ahead_of) returns. A block that is to be
    /// cleared must then be ready for that stream.
    Ahead,
}

impl Memory {
    /// Memory behind a driver: only streams touch it, freeing stalls, contents are left over.
    pub const DEVICE: Self = Self {
        cpu_touches: false,
        free_in_drop: false,
        fresh_is_zeroed: false,
        allocating: Allocating::AtOnce,
        clearing: Clearing::InOrder,
        default_zero: ZeroPolicy::Never,
    };
    /// Ordinary memory of this process.
    pub const HOST: Self = Self {
        cpu_touches: true,
        free_in_drop: true,
        fresh_is_zeroed: true,
        clearing: Clearing::AtOnce,
        ..Self::DEVICE
    };
}

/// Memory whose blocks may be cut: any part of a block, at a multiple of 512 bytes, is as good as a
/// block of its own.
#[diagnostic::on_unimplemented(
    message = "blocks of `{Self}` cannot be split, so its pools have no arena",
    note = "leave out `.arena(..)`; of wgpu buffers, `WgpuSlabs` can be split"
)]
pub trait Sliceable: DeviceAllocator {
    /// Parts of a block are multiples of this many bytes, where that is less than whole blocks are.
    fn part_granule(&self) -> u64 {
        self.granule()
    }

    /// The calls of virtual memory, which an arena in pages is made of: [`PageCalls::of`] for a
    /// [`VirtualMemory`], else `None`, and an arena takes whole blocks.
    ///
    /// Required, so that a wrapper cannot lose them: it passes on those of what it wraps.
    fn pages(&self) -> Option<PageCalls<Self>>
    where
        Self: Sized;

    /// Fills a part of a block with zeroes, in the order of `on`.
    ///
    /// # Safety
    ///
    /// Nobody else uses these bytes of the block meanwhile, other than by work that `on` is ordered
    /// after.
    ///
    /// # Errors
    ///
    /// What the device said; the contents are unknown then.
    #[expect(unsafe_code, reason = "who calls it vouches for the bytes")]
    unsafe fn zero_part(
        &self,
        block: &Self::Block,
        bytes: Range<u64>,
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError>;
}

/// Memory whose addresses can be had without memory behind them. Each call does all that it was
/// asked or nothing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no addresses without memory behind them",
    note = "arenas over it take whole segments: `ArenaConfig::segments(bytes)`"
)]
pub trait VirtualMemory: Sliceable {
    /// Memory comes and goes in multiples of this many bytes.
    fn page_bytes(&self) -> u64;

    /// The device's objects behind pages. The pool's figures count a call for each.
    fn handles(&self) -> Handles;

    /// How many bytes of addresses an arena should ask for: more than it will ever commit.
    fn address_space(&self) -> u64;

    /// Takes `bytes` bytes of addresses, a multiple of a page, with no memory behind them.
    ///
    /// # Errors
    ///
    /// What the device said.
    fn reserve(&self, bytes: u64) -> Result<Self::Block, DeviceError>;

    /// Puts memory behind a part of a reservation, whole pages, none of which has any.
    ///
    /// # Errors
    ///
    /// What the device said; nothing was committed then.
    fn commit(&self, block: &Self::Block, pages: Range<u64>) -> Result<(), DeviceError>;

    /// Takes the memory behind a part of a reservation back, whole pages, all of which have some,
    /// once all of `after` is done. May block the host until it is.
    ///
    /// # Errors
    ///
    /// What the device said; all of it is still committed then.
    fn decommit(
        &self,
        block: &Self::Block,
        pages: Range<u64>,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError>;

    /// Gives the addresses back, and whatever memory is still behind them.
    ///
    /// # Errors
    ///
    /// What the device said; the addresses are lost then.
    fn release(&self, block: Self::Block, after: &[MarkOf<Self>]) -> Result<(), DeviceError>;
}

/// The calls of virtual memory as data, so that a pool is one type with and without them. Each is
/// the method of [`VirtualMemory`] of that name.
#[derive(Clone, Copy, Debug)]
pub struct PageCalls<A: DeviceAllocator> {
    /// Memory is committed and decommitted in multiples of this many bytes.
    pub page_bytes: u64,
    /// [`VirtualMemory::handles`].
    pub handles: Handles,
    /// Bytes of addresses that a reservation has.
    pub address_space: u64,
    /// [`VirtualMemory::reserve`].
    pub reserve: fn(&A, u64) -> Result<A::Block, DeviceError>,
    /// [`VirtualMemory::commit`].
    pub commit: CommitCall<A>,
    /// [`VirtualMemory::decommit`].
    pub decommit: DecommitCall<A>,
    /// [`VirtualMemory::release`].
    pub release: ReleaseCall<A>,
}

/// The device's objects behind the pages that one call commits or decommits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handles {
    /// None: a range of pages is one call, however long it is.
    None,
    /// One for each page of the arena, however large a page is.
    Page,
    /// One for each part of this many bytes.
    Bytes(u64),
}

/// The type of [`PageCalls::commit`].
pub type CommitCall<A> =
    fn(&A, &<A as DeviceAllocator>::Block, Range<u64>) -> Result<(), DeviceError>;
/// The type of [`PageCalls::decommit`].
pub type DecommitCall<A> =
    fn(&A, &<A as DeviceAllocator>::Block, Range<u64>, &[MarkOf<A>]) -> Result<(), DeviceError>;
/// The type of [`PageCalls::release`].
pub type ReleaseCall<A> =
    fn(&A, <A as DeviceAllocator>::Block, &[MarkOf<A>]) -> Result<(), DeviceError>;

impl<A: VirtualMemory> PageCalls<A> {
    /// The calls of this allocator.
    ///
    /// ```
    /// # use pool_core as bucketpool;
    /// use bucketpool::{PageCalls, Sliceable, sim::SimDevice};
    ///
    /// let device = SimDevice::new();
    /// let pages = PageCalls::of(&device);
    /// assert_eq!(device.pages().map(|pages| pages.page_bytes), Some(pages.page_bytes));
    /// ```
    #[must_use]
    pub fn of(allocator: &A) -> Self {
        Self {
            page_bytes: allocator.page_bytes(),
            handles: allocator.handles(),
            address_space: allocator.address_space(),
            reserve: A::reserve,
            commit: A::commit,
            decommit: A::decommit,
            release: A::release,
        }
    }
}

impl<A: DeviceAllocator> PageCalls<A> {
    /// The calls that it takes to commit or decommit this many bytes, as the figures count them.
    pub(crate) fn calls_for(&self, bytes: u64) -> u64 {
        match self.handles {
            Handles::None => 1,
            Handles::Page => bytes / self.page_bytes,
            Handles::Bytes(each) => bytes / each,
        }
    }
}

/// An allocator whose blocks are the device's own allocations, not pieces of one, so that a block
/// may leave for code that frees it with the device's own call.
#[diagnostic::on_unimplemented(
    message = "blocks of `{Self}` are pieces of larger allocations, which the device cannot \
            free alone",
    note = "keep the buffer, or `free` what was detached"
)]
pub trait WholeBlocks: DeviceAllocator {}
