//! Large buffers that an arena may cut, one role each.
//!
//! wgpu tracks the use of a buffer as a whole: within a dispatch, a buffer that one binding writes
//! may have no binding of another sort, and a copy may not stay inside of one buffer. So pieces of
//! a slab are sound only where all of them are bound alike. The role is a type.
#![expect(unsafe_code, reason = "the port's; wgpu checks every range")]

use crate::allocator::WgpuAllocator;
use crate::binding::Binding;
use crate::clock::{Scopes, WgpuStream};
use crate::view::sealed::{Bound, Part};
use crate::view::{Access, Bindable, BufferPart, Group, Place, Usage, WgpuBlock, WgpuView};
use pool_core::port::{MarkOf, Memory, PageCalls, Request, Sliceable};
use pool_core::{DeviceAllocator, DeviceError};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use wgpu::{BindingResource, Buffer, BufferSlice, BufferUsages, Limits};

/// The uses that all pieces of a slab have.
///
/// A role of the program's own promises that commands use all pieces alike: within a dispatch or a draw
/// that one piece is written in, all others are bound in the same way, and nothing copies between two
/// pieces. A dispatch whose arguments are in a slab binds none of its pieces to be written.
///
/// ```
/// # use pool_core::{ArenaConfig, BucketPool, KIB, MIB};
/// # use pool_wgpu::{Role, WgpuAllocator, WgpuSlabs, wgpu};
/// # #[cfg(feature = "noop")] {
/// # let (device, queue) = wgpu::Device::noop(&Default::default());
/// # let device = WgpuAllocator::new(device, queue);
/// use wgpu::BufferUsages;
///
/// /// Tensors, as burn has them: all bindings are `read_write`.
/// enum Tensors {}
///
/// impl Role for Tensors {
///     const USAGES: BufferUsages =
///         BufferUsages::STORAGE.union(BufferUsages::INDIRECT).union(BufferUsages::COPY_SRC);
/// }
///
/// let slabs = WgpuSlabs::<Tensors>::new(device.clone().labelled("tensors"));
/// let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
/// let mut scope = device.scope();
/// let _ = scope.encoder(); // whose commands use it
/// let on = scope.stream();
/// let sum = scope.take(&pool, 4 * KIB)?; // begins as zeroes
/// let product = scope.take_to_fill(&pool, 4 * KIB)?; // a kernel writes all of it
/// let view = product.on(&on)?;
/// let entry = wgpu::BindGroupEntry { binding: 0, resource: view.binding()? };
/// assert!(view.buffer()?.usage().contains(BufferUsages::INDIRECT));
/// # scope.submit()?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Role: Send + Sync + 'static {
    /// The uses of a slab, to which `COPY_DST` is added.
    const USAGES: BufferUsages;

    /// Pieces begin at multiples of this many bytes: where each of the uses may begin, unless the role says
    /// otherwise. For vertices that is 16, which fits four floats; wgpu's own is 4.
    fn alignment(limits: &Limits) -> u32 {
        let uses = [
            (BufferUsages::UNIFORM, limits.min_uniform_buffer_offset_alignment),
            (BufferUsages::STORAGE, limits.min_storage_buffer_offset_alignment),
            (BufferUsages::VERTEX, 16),
        ];
        let uses = uses.into_iter().filter(|(usage, _)| Self::USAGES.contains(*usage));
        uses.map(|(_, alignment)| alignment).fold(4, u32::max)
    }
}

/// Uniform data: written by copies and by the queue, read by shaders.
#[derive(Clone, Copy, Debug)]
pub enum Uniform {}

/// Storage that shaders read and write, all of whose bindings are `read_write`: for layouts that say
/// `read_only: false`.
#[derive(Clone, Copy, Debug)]
pub enum ReadWrite {}

/// Vertices: written by copies and by the queue, read by draws.
#[derive(Clone, Copy, Debug)]
pub enum Vertex {}

/// Indices: written by copies and by the queue, read by draws.
#[derive(Clone, Copy, Debug)]
pub enum Index {}

/// Arguments of indirect draws and dispatches: written by copies and by the queue.
#[derive(Clone, Copy, Debug)]
pub enum Indirect {}

impl Role for Uniform {
    const USAGES: BufferUsages = BufferUsages::UNIFORM.union(BufferUsages::COPY_SRC);
}

impl Role for ReadWrite {
    const USAGES: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_SRC);
}

impl Role for Vertex {
    const USAGES: BufferUsages = BufferUsages::VERTEX.union(BufferUsages::COPY_SRC);
}

impl Role for Index {
    const USAGES: BufferUsages = BufferUsages::INDEX.union(BufferUsages::COPY_SRC);
}

impl Role for Indirect {
    const USAGES: BufferUsages = BufferUsages::INDIRECT.union(BufferUsages::COPY_SRC);
}

/// Buffers of one device that a pool with an arena splits.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod wgpu { pub use pool_wgpu::*; } }
/// use bucketpool::{ArenaConfig, BucketPool, MIB};
/// use bucketpool::wgpu::{Uniform, WgpuAllocator, WgpuSlabs};
///
/// # #[cfg(feature = "noop")] {
/// # let (device, queue) = pool_wgpu::wgpu::Device::noop(&Default::default());
/// let device = WgpuAllocator::new(device, queue);
/// let slabs = WgpuSlabs::<Uniform>::new(device.clone());
/// let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
/// let scope = device.scope();
/// let on = scope.stream();
/// let (a, b) = (pool.allocate_on(&on, 64)?, pool.allocate_on(&on, 64)?);
/// let (a, b) = (a.on(&on)?, b.on(&on)?);
/// assert_eq!(a.buffer()?, b.buffer()?); // two pieces of one
/// assert_eq!((b.offset() - a.offset()) % 256, 0);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WgpuSlabs<R: Role> {
    device: WgpuAllocator,
    role: PhantomData<R>,
}

/// A piece of a slab in use.
#[derive(Debug)]
pub struct SlabView<'b, R: Role> {
    view: WgpuView<'b>,
    role: PhantomData<R>,
}

impl<R: Role> WgpuSlabs<R> {
    /// Slabs of a device.
    #[must_use]
    pub fn new(device: WgpuAllocator) -> Self {
        Self { device, role: PhantomData }
    }
}

impl<R: Role> WgpuSlabs<R> {
    pub(crate) fn device(&self) -> &WgpuAllocator {
        &self.device
    }
}

impl<'b, R: Role> SlabView<'b, R> {
    /// The slab.
    ///
    /// See [`WgpuSlabs`] for an example.
    ///
    /// # Errors
    ///
    /// As for [`WgpuView::buffer`].
    pub fn buffer(&self) -> Result<&'b Buffer, DeviceError> {
        self.view.buffer()
    }

    /// The binding of the piece, for a bind group; for [`Uniform`] a uniform binding, for the other roles
    /// that can be bound a storage binding.
    ///
    /// # Errors
    ///
    /// As for [`WgpuView::binding`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{ArenaConfig, BucketPool, MIB, Why};
    /// # use pool_wgpu::{ReadWrite, WgpuAllocator, WgpuSlabs, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let device = WgpuAllocator::new(device, queue);
    /// let slabs = WgpuSlabs::<ReadWrite>::new(device.clone());
    /// let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
    /// let mut scope = device.scope();
    /// let _ = scope.encoder(); // whose commands use it
    /// let on = scope.stream();
    /// let piece = pool.allocate_on(&on, 256)?;
    /// let view = piece.on(&on)?;
    /// let entry = wgpu::BindGroupEntry { binding: 0, resource: view.binding()? };
    /// scope.submit()?;
    /// assert_eq!(view.binding().unwrap_err().why, Why::Foreign); // the scope has ended
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn binding(&self) -> Result<BindingResource<'b>, DeviceError> {
        self.view.binding()
    }

    /// The bytes of the piece, for `RenderPass::set_vertex_buffer` and `set_index_buffer`.
    ///
    /// # Errors
    ///
    /// As for [`WgpuView::buffer`].
    pub fn slice(&self) -> Result<BufferSlice<'b>, DeviceError> {
        self.view.slice()
    }

    /// Writes `data` at `offset` of the piece by the queue.
    ///
    /// # Errors
    ///
    /// As for [`WgpuView::write`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{ArenaConfig, BucketPool, MIB, Why};
    /// # use pool_wgpu::{Uniform, WgpuAllocator, WgpuSlabs, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let device = WgpuAllocator::new(device, queue);
    /// let slabs = WgpuSlabs::<Uniform>::new(device.clone());
    /// let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
    /// let piece = pool.allocate(64)?;
    /// piece.on(pool.default_stream())?.write(0, &[1; 64])?;
    ///
    /// let scope = device.scope();
    /// let on = scope.stream();
    /// let view = piece.on(&on)?;
    /// let entry = wgpu::BindGroupEntry { binding: 0, resource: view.binding()? };
    /// let refused = view.write(0, &[2; 64]).unwrap_err(); // in a scope, `Scope::upload` writes
    /// assert_eq!(refused.why, Why::Unsupported);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.view.write(offset, data)
    }

    pub(crate) fn view(&self) -> &WgpuView<'b> {
        &self.view
    }

    /// Where the piece begins in it.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.view.offset()
    }

    /// How many bytes it has.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.view.size()
    }
}

impl<R: Role> Bound for SlabView<'_, R> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        self.view.bound(of, part)
    }
}

impl<R: Role> Part for SlabView<'_, R> {
    fn place<'s>(&'s self, on: &'s WgpuStream, access: Access) -> Result<Place<'s>, DeviceError> {
        self.view.place(on, access)
    }
}

impl<R: Role> Bindable for SlabView<'_, R> {}
impl<R: Role> BufferPart for SlabView<'_, R> {}

impl<R: Role> DeviceAllocator for WgpuSlabs<R> {
    type Block = WgpuBlock;
    type View<'b> = SlabView<'b, R>;
    type Kind = ();
    type Clock = Scopes;
    const MEMORY: Memory = WgpuAllocator::MEMORY;

    fn clock(&self) -> &Scopes {
        self.device.clock()
    }

    fn granule(&self) -> u64 {
        u64::from(R::alignment(&self.device.shared().limits))
    }

    fn largest(&self) -> u64 {
        self.device.largest()
    }

    fn total_bytes(&self) -> Option<u64> {
        self.device.total_bytes()
    }

    fn aligned(&self, _kind: (), alignment: u64) -> Result<(), DeviceError> {
        DeviceError::check_alignment(alignment, self.granule())
    }

    fn allocate(&self, request: Request<()>, on: &WgpuStream) -> Result<WgpuBlock, DeviceError> {
        let kind = Usage::new(R::USAGES);
        self.device.allocate(Request { bytes: request.bytes, kind }, on)
    }

    fn free(&self, block: WgpuBlock, after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.device.free(block, after)
    }

    fn is_intact(&self, block: &WgpuBlock) -> bool {
        self.device.is_intact(block)
    }

    fn view<'b>(
        &'b self,
        block: &'b WgpuBlock,
        offset: u64,
        bytes: u64,
        on: &WgpuStream,
    ) -> SlabView<'b, R> {
        SlabView { view: self.device.view(block, offset, bytes, on), role: PhantomData }
    }

    fn zero(&self, block: &mut WgpuBlock, bytes: u64, on: &WgpuStream) -> Result<(), DeviceError> {
        self.device.zero(block, bytes, on)
    }
}

impl<R: Role> Sliceable for WgpuSlabs<R> {
    fn pages(&self) -> Option<PageCalls<Self>> {
        None
    }

    unsafe fn zero_part(
        &self,
        block: &WgpuBlock,
        bytes: Range<u64>,
        on: &WgpuStream,
    ) -> Result<(), DeviceError> {
        self.device.zero_range(block, bytes, on)
    }
}

impl<R: Role> fmt::Debug for WgpuSlabs<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuSlabs").field("device", &self.device).finish_non_exhaustive()
    }
}
