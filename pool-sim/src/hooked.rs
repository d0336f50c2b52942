//! One wrapper of an allocator for all tests: its hooks see each call, and may refuse it, panic, or
//! change what the memory says of itself.
#![expect(unsafe_code, reason = "the port's calls, passed on as they are")]

use pool_core::port::{
    Handles, Lent, MarkOf, Memory, PageCalls, Request, Sliceable, TransferLater, VirtualMemory,
    WholeBlocks,
};
use pool_core::{DeviceAllocator, DeviceError, StreamOf, Transfer};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// A call of the device that moves or changes memory.
#[non_exhaustive]
pub enum Call<'c, A: DeviceAllocator> {
    /// [`DeviceAllocator::allocate`] of this many bytes.
    Allocate {
        /// The size of the block.
        bytes: u64,
    },
    /// [`DeviceAllocator::free`].
    Free {
        /// The block, which its last owner has given up.
        block: &'c A::Block,
        /// Its size.
        bytes: u64,
        /// The last uses of it.
        after: &'c [MarkOf<A>],
    },
    /// [`DeviceAllocator::release_kept`].
    ReleaseKept,
    /// [`DeviceAllocator::zero`] or [`Sliceable::zero_part`] on this stream.
    Zero {
        /// The stream.
        on: &'c StreamOf<A>,
    },
    /// [`VirtualMemory::reserve`].
    Reserve,
    /// [`VirtualMemory::commit`].
    Commit,
    /// [`VirtualMemory::decommit`].
    Decommit,
    /// [`VirtualMemory::release`].
    Release,
}

/// What the memory of a [`Hooked`] allocator says of itself; `()` is what the allocator inside says.
pub trait Claims<A>: 'static {
    /// The properties of the memory.
    const MEMORY: Memory;
}

impl<A: DeviceAllocator> Claims<A> for () {
    const MEMORY: Memory = A::MEMORY;
}

/// What a [`Hooked`] allocator does at its calls.
///
/// A closure `Fn(&A, &Call<'_, A>) -> Result<(), DeviceError>` is a hook before each call.
pub trait Hooks<A: DeviceAllocator>: Send + Sync + 'static {
    /// Runs before a call, which is not made if this refuses.
    ///
    /// # Errors
    ///
    /// What the call is to fail with.
    fn before(&self, _inner: &A, _call: &Call<'_, A>) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Runs after each call that moves memory, whatever it returned.
    fn after(&self, _inner: &A) {}

    /// Answers [`DeviceAllocator::aligned`].
    ///
    /// # Errors
    ///
    /// Those of the inner allocator.
    fn aligned(&self, inner: &A, kind: A::Kind, alignment: u64) -> Result<A::Kind, DeviceError> {
        inner.aligned(kind, alignment)
    }

    /// Returns the offset that a view really begins at.
    fn view_offset(&self, offset: u64) -> u64 {
        offset
    }

    /// Returns how many bytes are really zeroed.
    fn bytes_to_zero(&self, bytes: u64) -> u64 {
        bytes
    }
}

impl<A, F> Hooks<A> for F
where
    A: DeviceAllocator,
    F: Fn(&A, &Call<'_, A>) -> Result<(), DeviceError> + Send + Sync + 'static,
{
    fn before(&self, inner: &A, call: &Call<'_, A>) -> Result<(), DeviceError> {
        self(inner, call)
    }
}

/// Hooks that do nothing.
struct NoHooks;

impl<A: DeviceAllocator> Hooks<A> for NoHooks {}

/// An allocator with hooks at its calls. The hooks are not part of its type, since each type would
/// have the code of a whole pool compiled for it.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; }
/// use bucketpool::{BucketPool, DeviceError, Why, sim::{Call, Hooked, SimDevice}};
///
/// let refuse = |_: &SimDevice, call: &Call<'_, SimDevice>| match call {
///     Call::Allocate { bytes } if *bytes > 4096 => Err(DeviceError::new(Why::Other, "too many")),
///     _ => Ok(()),
/// };
/// let pool = BucketPool::new(Hooked::with(SimDevice::new(), refuse));
/// assert!(pool.allocate(4096).is_ok());
/// assert_eq!(pool.allocate(5000).unwrap_err().why(), Why::Other);
/// ```
pub struct Hooked<A: DeviceAllocator, M = ()> {
    /// The allocator inside.
    pub inner: A,
    hooks: Arc<dyn Hooks<A>>,
    claims: PhantomData<fn() -> M>,
}

/// A block of a [`Hooked`] allocator.
pub struct HookedBlock<B> {
    block: B,
    bytes: u64,
}

impl<A: DeviceAllocator> Hooked<A> {
    /// Wraps an allocator with these hooks.
    pub fn with(inner: A, hooks: impl Hooks<A>) -> Self {
        Self { inner, hooks: Arc::new(hooks), claims: PhantomData }
    }

    /// Makes the memory claim something else of itself.
    pub fn claiming<M: Claims<A>>(self) -> Hooked<A, M> {
        Hooked { inner: self.inner, hooks: self.hooks, claims: PhantomData }
    }
}

impl<A: DeviceAllocator, M: Claims<A>> Hooked<A, M> {
    /// Wraps an allocator without hooks.
    pub fn new(inner: A) -> Self {
        Hooked::with(inner, NoHooks).claiming()
    }

    fn call<T>(
        &self,
        call: &Call<'_, A>,
        made: impl FnOnce() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        self.hooks.before(&self.inner, call)?;
        let outcome = made();
        self.hooks.after(&self.inner);
        outcome
    }
}

impl<A: DeviceAllocator, M: Claims<A>> DeviceAllocator for Hooked<A, M> {
    type Block = HookedBlock<A::Block>;
    type View<'b> = A::View<'b>;
    type Kind = A::Kind;
    type Clock = A::Clock;
    const MEMORY: Memory = M::MEMORY;

    fn clock(&self) -> &A::Clock {
        self.inner.clock()
    }

    fn granule(&self) -> u64 {
        self.inner.granule()
    }

    fn largest(&self) -> u64 {
        self.inner.largest()
    }

    fn total_bytes(&self) -> Option<u64> {
        self.inner.total_bytes()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn aligned(&self, kind: A::Kind, alignment: u64) -> Result<A::Kind, DeviceError> {
        self.hooks.aligned(&self.inner, kind, alignment)
    }

    fn alignment_of(&self, kind: A::Kind) -> u64 {
        self.inner.alignment_of(kind)
    }

    fn allocate(
        &self,
        request: Request<A::Kind>,
        on: &StreamOf<Self>,
    ) -> Result<Self::Block, DeviceError> {
        let bytes = request.bytes;
        let block = self.call(&Call::Allocate { bytes }, || self.inner.allocate(request, on))?;
        Ok(HookedBlock { block, bytes })
    }

    fn free(&self, block: Self::Block, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        let HookedBlock { block, bytes } = block;
        self.hooks.before(&self.inner, &Call::Free { block: &block, bytes, after })?;
        let freed = self.inner.free(block, after);
        self.hooks.after(&self.inner);
        freed
    }

    fn prepare(&self) {
        self.inner.prepare();
    }

    fn release_kept(&self) -> Result<(), DeviceError> {
        self.call(&Call::ReleaseKept, || self.inner.release_kept())
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
    ) -> Self::View<'b> {
        self.inner.view(&block.block, self.hooks.view_offset(offset), bytes, on)
    }

    fn lend(view: Self::View<'_>, to: Lent) -> Self::View<'_> {
        A::lend(view, to)
    }

    fn zero(
        &self,
        block: &mut Self::Block,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        let bytes = self.hooks.bytes_to_zero(bytes);
        self.call(&Call::Zero { on }, || self.inner.zero(&mut block.block, bytes, on))
    }
}

impl<A: WholeBlocks, M: Claims<A>> WholeBlocks for Hooked<A, M> {}

impl<A: VirtualMemory + Sliceable, M: Claims<A>> Sliceable for Hooked<A, M> {
    fn pages(&self) -> Option<PageCalls<Self>> {
        self.inner.pages().map(|_| PageCalls::of(self))
    }

    fn part_granule(&self) -> u64 {
        self.inner.part_granule()
    }

    unsafe fn zero_part(
        &self,
        block: &Self::Block,
        bytes: Range<u64>,
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        let bytes = bytes.start..bytes.start + self.hooks.bytes_to_zero(bytes.end - bytes.start);
        // SAFETY: the caller promises what the inner method demands of the whole range.
        self.call(&Call::Zero { on }, || unsafe { self.inner.zero_part(&block.block, bytes, on) })
    }
}

impl<A: VirtualMemory, M: Claims<A>> VirtualMemory for Hooked<A, M> {
    fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }

    fn handles(&self) -> Handles {
        self.inner.handles()
    }

    fn address_space(&self) -> u64 {
        self.inner.address_space()
    }

    fn reserve(&self, bytes: u64) -> Result<Self::Block, DeviceError> {
        let block = self.call(&Call::Reserve, || self.inner.reserve(bytes))?;
        Ok(HookedBlock { block, bytes })
    }

    fn commit(&self, block: &Self::Block, pages: Range<u64>) -> Result<(), DeviceError> {
        self.call(&Call::Commit, || self.inner.commit(&block.block, pages))
    }

    fn decommit(
        &self,
        block: &Self::Block,
        pages: Range<u64>,
        after: &[MarkOf<Self>],
    ) -> Result<(), DeviceError> {
        self.call(&Call::Decommit, || self.inner.decommit(&block.block, pages, after))
    }

    fn release(&self, block: Self::Block, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.call(&Call::Release, || self.inner.release(block.block, after))
    }
}

impl<A: Transfer, M: Claims<A>> Transfer for Hooked<A, M> {
    unsafe fn write(
        &self,
        to: &Self::View<'_>,
        offset: u64,
        from: &[u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller promises what the inner method demands.
        unsafe { self.inner.write(to, offset, from, on) }
    }

    unsafe fn read(
        &self,
        from: &Self::View<'_>,
        offset: u64,
        to: &mut [u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        // SAFETY: as for `write`.
        unsafe { self.inner.read(from, offset, to, on) }
    }
}

impl<A: TransferLater, M: Claims<A>> TransferLater for Hooked<A, M> {
    type Arrival = A::Arrival;

    unsafe fn write_later(
        &self,
        to: &Self::View<'_>,
        offset: u64,
        from: &[u8],
        on: &StreamOf<Self>,
    ) -> Result<(), DeviceError> {
        // SAFETY: as for `write`.
        unsafe { self.inner.write_later(to, offset, from, on) }
    }

    unsafe fn read_later(
        &self,
        from: &Self::View<'_>,
        offset: u64,
        bytes: u64,
        on: &StreamOf<Self>,
    ) -> Result<A::Arrival, DeviceError> {
        // SAFETY: as for `write`.
        unsafe { self.inner.read_later(from, offset, bytes, on) }
    }
}

impl<A: DeviceAllocator> fmt::Debug for Call<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocate { .. } => "Allocate",
            Self::Free { .. } => "Free",
            Self::ReleaseKept => "ReleaseKept",
            Self::Zero { .. } => "Zero",
            Self::Reserve => "Reserve",
            Self::Commit => "Commit",
            Self::Decommit => "Decommit",
            Self::Release => "Release",
        })
    }
}

impl<A: DeviceAllocator + Clone, M> Clone for Hooked<A, M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), hooks: self.hooks.clone(), claims: PhantomData }
    }
}

impl<A: DeviceAllocator + fmt::Debug, M> fmt::Debug for Hooked<A, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooked").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for HookedBlock<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedBlock").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
