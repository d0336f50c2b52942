//! The interface between a pool and a kind of memory: the traits that a memory implements so that a
//! pool, and other code that is generic over memory, can use it.
//!
//! Every source of memory is a [`DeviceAllocator`]. A counter or a fault injector is a
//! `DeviceAllocator` that wraps another. `examples/custom_backend.rs` is the shortest complete
//! implementation.

use crate::port::clock::StreamClock;
use crate::port::error::DeviceError;
use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Range;

/// An allocator of blocks of one kind of memory.
///
/// If a call panics, the pool treats it as an error of the device, and the panic reaches the caller
/// of the pool. A block whose free panics is lost: the pool counts it as if the device had refused
/// to free it.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{DeviceAllocator, StreamClock, Why, port::Request, sim::SimDevice};
///
/// let device = SimDevice::with_capacity(4096);
/// let stream = device.stream();
/// let kind = device.aligned((), 256)?;
/// let mut block = device.allocate(Request { bytes: 4096, kind }, &stream)?;
/// let second = device.allocate(Request { bytes: 1, kind }, &stream);
/// assert_eq!(second.unwrap_err().why, Why::OutOfMemory);
/// device.zero(&mut block, 4096, &stream)?;
/// device.free(block, &[device.clock().mark(&stream)])?; // after the zeroing
/// device.release_kept()?;
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no memory that a pool runs over",
    note = "give a pool an allocator: `HostAllocator::new()`, `CudaAllocator::new(0)?`, \
            `WgpuAllocator`, `SimDevice::new()`, or your own `DeviceAllocator`"
)]
pub trait DeviceAllocator: Send + Sync + 'static {
    /// A whole allocation of the device. It is owned: no `Clone`, no `Copy` and no public
    /// constructor, so that code cannot free it twice. It has no `Drop` either: a free needs the
    /// allocator and the marks to wait for.
    type Block: Send + Sync + 'static;

    /// The access that a program gets: an address, or a buffer and an offset.
    ///
    /// It is the backend's own type, so that it can implement foreign traits, which the orphan rule
    /// forbids for [`PooledBuffer`](crate::PooledBuffer). It borrows its block, and should not be
    /// `Clone`, so that it cannot outlive its [`Use`](crate::buffer::Use).
    type View<'b>;

    /// The properties, besides the size, in which a cached block must match a request: an
    /// alignment, usage flags, or nothing.
    type Kind: Copy + Eq + Hash + Default + Debug + Send + Sync + 'static;

    /// The clock of the device, which defines the order of its work.
    type Clock: StreamClock;

    /// The behaviour of this memory.
    const MEMORY: Memory;

    /// Returns the clock of the device behind this allocator.
    fn clock(&self) -> &Self::Clock;

    /// Returns the granule: sizes of the device's blocks are multiples of this many bytes. A pool
    /// rounds to it, so that its figures agree with those of the device.
    fn granule(&self) -> u64 {
        1
    }

    /// Returns the size, in bytes, of the largest block that the device can hand out. A size class
    /// above it is not used: the request bypasses the pool with its own size.
    fn largest(&self) -> u64 {
        u64::MAX
    }

    /// Returns the total memory of the device in bytes, or `None` if the device does not report it.
    /// Limits that are a share of the device's memory are computed from it.
    fn total_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the bytes that the device has free, for other programs too, or `None` if its driver
    /// does not report them. Calls the driver.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns `kind` with the additional requirement that blocks start at multiples of `alignment`
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`](crate::Why::Unsupported) if this memory cannot do that, or if
    /// `alignment` is not a power of two.
    fn aligned(&self, kind: Self::Kind, alignment: u64) -> Result<Self::Kind, DeviceError>;

    /// Returns the alignment of blocks of a kind, in bytes.
    fn alignment_of(&self, _kind: Self::Kind) -> u64 {
        1
    }

    /// Allocates a block of at least `request.bytes` bytes for work on `on`.
    ///
    /// # Errors
    ///
    /// The error of the device; nothing is allocated then.
    fn allocate(
        &self,
        request: Request<Self::Kind>,
        on: &StreamOf<Self>,
    ) -> Result<Self::Block, DeviceError>;

    /// Frees a block. The device may reuse its memory once all marks in `after` are done. Until
    /// then the allocator may keep the block, but the pool already counts it as freed.
    ///
    /// # Errors
    ///
    /// The error of the device. The block is consumed in any case: an error means that the device
    /// did not take it back, and the pool counts it as lost.
    fn free(&self, block: Self::Block, after: &[MarkOf<Self>]) -> Result<(), DeviceError>;

    /// Prepares for a pool over this memory, which is being made: for what must not wait for its first
    /// block, such as handlers for forks, which a thread cannot add while another one forks. Does nothing
    /// unless a backend says so.
    fn prepare(&self) {}

    /// Releases the memory that the allocator itself caches for later calls, which pools do not
    /// count. [`BucketPool::trim`](crate::BucketPool::trim), `shrink_to` and `clear` call it.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    fn release_kept(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Gives to the device what was freed and something between still keeps, such as the driver's own
    /// pool. Called for want of memory, when what others hold of the device would help:
    /// [`BucketPool::make_room`](crate::BucketPool::make_room), and trims for another pool of a
    /// [`Budget`](crate::limits::Budget). May wait for the frees.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    fn give_all_back(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns a view of `bytes` bytes of `block` from `offset` on, for work on `on`. The caller
    /// stays inside the block. A backend for which an access outside the block would be undefined
    /// behaviour checks the range.
    fn view<'b>(
        &'b self,
        block: &'b Self::Block,
        offset: u64,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Self::View<'b>;

    /// Returns a view that is lent for less than work on its stream. A backend whose views safe
    /// calls give to late copies, which the CPU would notice, returns one that refuses those that
    /// `to` does not cover.
    #[must_use]
    fn lend(view: Self::View<'_>, _to: Lent) -> Self::View<'_> {
        view
    }

    /// Notes that the program takes a block out of its pool
    /// ([`Detached::into_raw`](crate::buffer::Detached::into_raw)): what was to be done to it later, such as
    /// zeroing, is done now or not at all.
    fn let_go(&self, _block: &Self::Block) {}

    /// Returns whether a whole block can serve again: false where the program has broken what the block
    /// stands for, and the pool then frees the block and takes another. Asked of each free block that
    /// serves a request and is not zeroed, so it is cheap while nothing is known to be wrong.
    #[inline]
    fn is_intact(&self, _block: &Self::Block) -> bool {
        true
    }

    /// Fills the first `bytes` bytes of a block with zeroes, in the order of `on`. The block is
    /// borrowed exclusively, so no other code accesses it meanwhile.
    ///
    /// # Errors
    ///
    /// The error of the device; the contents are unknown then.
    fn zero(
        &self,
        block: &mut Self::Block,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError>;
}

/// What a view is lent for, if not for any work on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the uses of a buffer but one")]
pub enum Lent {
    /// Work on its stream that reads ([`PooledBuffer::read_on`](crate::PooledBuffer::read_on)).
    ToRead,
    /// The CPU, and no stream ([`PooledBuffer::on_cpu`](crate::PooledBuffer::on_cpu)).
    ToCpu,
}

/// A stream of an allocator's device.
pub type StreamOf<A> = <<A as DeviceAllocator>::Clock as StreamClock>::Stream;
/// A mark of an allocator's device.
pub type MarkOf<A> = <<A as DeviceAllocator>::Clock as StreamClock>::Mark;

/// A request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<K> {
    /// The minimum size of the block in bytes.
    pub bytes: u64,
    /// The kind of memory.
    pub kind: K,
}

/// The behaviour of a kind of memory, known at compile time.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the memory")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// True if the CPU can access a block without a stream. The pool reuses such a block only after
    /// a query has found its marks done, because the host cannot wait on the device as a stream
    /// can.
    pub cpu_touches: bool,
    /// True if a free is cheap, cannot fail and is legal anywhere, so that the drop of a buffer may
    /// call it. If false, the drop defers the free to the pool's next call that may call the
    /// device.
    pub free_in_drop: bool,
    /// True if a block fresh from the device reads as zeroes.
    pub fresh_is_zeroed: bool,
    /// True if the device makes a block in about a microsecond. Then the shards of a pool each have
    /// blocks of their own; otherwise a request takes what any shard has ready before it asks the
    /// device.
    pub is_cheap: bool,
    /// The time from which a fresh block may be used.
    pub allocating: Allocating,
    /// The time at which [`DeviceAllocator::zero`] takes effect.
    pub zeroing: Zeroing,
    /// The policy of a pool that sets none: what programs over this memory expect.
    pub default_zero: ZeroPolicy,
}

/// The time from which a fresh block may be used, in the order of a device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocating {
    /// At once, on all streams and by the CPU where it can access the memory.
    AtOnce,
    /// In the order of the stream that it was allocated on; on other streams by work that is
    /// ordered after the allocation.
    InOrder,
}

/// The time at which zeroing takes effect, in the order of a device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroing {
    /// At once: the memory is zeroed when the call returns.
    AtOnce,
    /// In the order of the stream that the call names.
    InOrder,
    /// Ahead of work that is not submitted yet, on a stream that
    /// [`StreamClock::ahead_of`] returns. A block that is to be
    /// zeroed must then be ready for that stream.
    Ahead,
}

impl Memory {
    /// Memory behind a driver: only streams access it, a free stalls, and a block has old contents.
    pub const DEVICE: Self = Self {
        cpu_touches: false,
        free_in_drop: false,
        fresh_is_zeroed: false,
        is_cheap: false,
        allocating: Allocating::AtOnce,
        zeroing: Zeroing::InOrder,
        default_zero: ZeroPolicy::Never,
    };
    /// Ordinary memory of this process.
    pub const HOST: Self = Self {
        cpu_touches: true,
        free_in_drop: true,
        fresh_is_zeroed: true,
        is_cheap: true,
        zeroing: Zeroing::AtOnce,
        ..Self::DEVICE
    };
}

/// Memory whose blocks can be split. A part of a block that starts at a multiple of 512 bytes can
/// be used like a whole block.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{DeviceAllocator, Why, port::{Request, Sliceable}, sim::SimDevice};
///
/// let device = SimDevice::with_capacity(1024);
/// let stream = device.stream();
/// let request = Request { bytes: 1024, kind: () };
/// let block = device.allocate(request, &stream)?;
/// // SAFETY: no other code uses the block.
/// unsafe { device.zero_part(&block, 512..1024, &stream)? };
/// assert_eq!(device.read(&stream, &device.view(&block, 512, 512, &stream)), [0; 512]);
/// assert_eq!(device.allocate(request, &stream).unwrap_err().why, Why::OutOfMemory);
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "blocks of `{Self}` cannot be split, so its pools have no arena",
    note = "leave out `.arena(..)`, and take `PoolConfig::pool_of_blocks` for a file; of wgpu buffers, \
            `WgpuSlabs` can be split"
)]
pub trait Sliceable: DeviceAllocator {
    /// Returns the granule of parts of a block, in bytes, which may be less than that of whole
    /// blocks.
    fn part_granule(&self) -> u64 {
        self.granule()
    }

    /// Returns the functions of [`VirtualMemory`], which an arena that commits pages needs:
    /// [`PageCalls::of`] if this allocator implements the trait, else `None`. With `None` an arena
    /// allocates whole segments.
    ///
    /// The method has no default, so that a wrapper cannot forget to return the functions of the
    /// allocator that it wraps.
    fn pages(&self) -> Option<PageCalls<Self>>
    where
        Self: Sized;

    /// Fills a part of a block with zeroes, in the order of `on`.
    ///
    /// # Safety
    ///
    /// No other code uses these bytes of the block meanwhile, other than work that `on` is ordered
    /// after.
    ///
    /// # Errors
    ///
    /// The error of the device; the contents are unknown then.
    #[expect(unsafe_code, reason = "who calls it vouches for the bytes")]
    unsafe fn zero_part(
        &self,
        block: &Self::Block,
        bytes: Range<u64>,
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError>;
}

/// Memory whose addresses can be reserved without memory behind them. Each call succeeds completely
/// or changes nothing.
///
/// # Examples
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{Why, port::VirtualMemory, sim::SimDevice};
///
/// let device = SimDevice::with_capacity(8192);
/// let page = device.page_bytes();
/// let block = device.reserve(8 * page)?;
/// device.commit(&block, 0..2 * page)?;
/// let error = device.commit(&block, 2 * page..3 * page).unwrap_err();
/// assert_eq!((error.why, device.held_bytes()), (Why::OutOfMemory, 8192));
/// device.decommit(&block, 0..page, &[])?; // no work uses the page
/// device.release(block, &[])?;
/// assert_eq!(device.held_bytes(), 0);
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no addresses without memory behind them",
    note = "arenas over it take whole segments: `ArenaConfig::segments(bytes)`"
)]
pub trait VirtualMemory: Sliceable {
    /// Returns the page size: memory is committed and decommitted in multiples of this many bytes.
    fn page_bytes(&self) -> u64;

    /// Returns the rule for the number of device objects behind pages. The pool's figures count one
    /// call for each object.
    fn handles(&self) -> Handles;

    /// Returns the bytes of addresses that an arena should reserve: more than it will ever commit.
    fn address_space(&self) -> u64;

    /// Reserves `bytes` bytes of addresses, a multiple of a page, with no memory behind them.
    ///
    /// # Errors
    ///
    /// The error of the device.
    fn reserve(&self, bytes: u64) -> Result<Self::Block, DeviceError>;

    /// Commits a part of a reservation: whole pages, none of which is committed.
    ///
    /// # Errors
    ///
    /// The error of the device; nothing was committed then.
    fn commit(&self, block: &Self::Block, pages: Range<u64>) -> Result<(), DeviceError>;

    /// Decommits a part of a reservation: whole pages, all of which are committed, once all of
    /// `after` is done. May block the host until then.
    ///
    /// # Errors
    ///
    /// The error of the device; all pages are still committed then.
    fn decommit(
        &self,
        block: &Self::Block,
        pages: Range<u64>,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError>;

    /// Frees the reservation, and all memory that is still committed in it.
    ///
    /// # Errors
    ///
    /// The error of the device; the addresses are lost then.
    fn release(&self, block: Self::Block, after: &[MarkOf<Self>]) -> Result<(), DeviceError>;
}

/// The calls of virtual memory as function pointers, so that pools with and without them have one
/// type. Each is the method of [`VirtualMemory`] with the same name.
#[derive(Clone, Copy, Debug)]
pub struct PageCalls<A: DeviceAllocator> {
    /// Memory is committed and decommitted in multiples of this many bytes.
    pub page_bytes: u64,
    /// [`VirtualMemory::handles`].
    pub handles: Handles,
    /// Bytes of addresses of a reservation.
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

/// The number of device objects behind the pages that one call commits or decommits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handles {
    /// No objects: a range of pages is one call, whatever its length.
    None,
    /// One object for each page of the arena, whatever the page size.
    Page,
    /// One object for each commit. Each decommit is of whole commits, which are neighbours.
    ///
    /// An arena commits rarely then, since such calls cost time by their number and hardly by their
    /// size: at least
    /// [`ArenaConfig::least_growth`](crate::ArenaConfig::least_growth). It gives
    /// memory back only when it is told to or when memory is short, not to serve a request.
    Commit,
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
    /// Returns the calls of an allocator.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
    /// use bucketpool::{port::{PageCalls, Sliceable}, sim::SimDevice};
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
    /// Returns the number of calls that commit or decommit this many bytes, as the figures count
    /// them.
    pub(crate) fn calls_for(&self, bytes: u64) -> u64 {
        match self.handles {
            Handles::None | Handles::Commit => 1,
            Handles::Page => bytes / self.page_bytes,
        }
    }
}

/// An allocator whose blocks are whole allocations of the device, not parts of one. Other code may
/// therefore take a block and free it with the device's own call.
#[diagnostic::on_unimplemented(
    message = "blocks of `{Self}` are pieces of larger allocations, which the device cannot \
            free alone",
    note = "keep the buffer, or `free` what was detached"
)]
pub trait WholeBlocks: DeviceAllocator {}

/// The rule by which a pool zeroes blocks.
///
/// A reused block contains what its last user left in it. A block fresh from a device may contain
/// what another program left in it: `cuMemAlloc` promises nothing. Pools that serve several
/// tenants, or hold secrets, choose another policy than `Never`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ZeroPolicy {
    /// Blocks are not zeroed and have old contents. This is the cheapest policy, for programs that
    /// overwrite what they allocate.
    #[default]
    Never,
    /// Each block, with its rounding tail, is zeroed before it is handed out.
    OnAllocate,
    /// Each block is zeroed when it is freed, so that cached memory has no old contents. If a drop
    /// must not call the device, the pool zeroes the block when it hands it out again: then no
    /// buffer shows old contents, but the cached block keeps them until then. The pool also zeroes
    /// fresh blocks of a device that does not zero them.
    OnReturn,
}
