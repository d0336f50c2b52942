//! What is in a pool, what it is for, and how it is lent.

use pool_core::{DeviceAllocator, DeviceError, Use, Why};
use wgpu::{
    BindingResource, Buffer, BufferBinding, BufferSize, BufferUsages, COPY_BUFFER_ALIGNMENT,
};

/// What a buffer may be used for; a block serves again for the same flags only.
///
/// Storage, and copying in both directions, by default. `COPY_DST` is always among them, since that
/// is what clearing needs. Buffers that can be mapped are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage(BufferUsages);

/// A wgpu buffer, whole.
#[derive(Debug)]
pub struct WgpuBlock {
    pub(crate) buffer: Buffer,
    /// In debug builds, to find clones by.
    pub(crate) label: Option<String>,
}

/// A range of a buffer in use.
#[derive(Debug)]
pub struct WgpuView<'b> {
    pub(crate) buffer: &'b Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// What a kept bind group is made of
/// ([`WgpuAllocator::bind_group`](crate::WgpuAllocator::bind_group)): a view of a whole buffer, or
/// of a piece of a slab.
pub trait Bindable: sealed::Piece {}

/// Views are ours: nobody else's say what they show.
pub(crate) mod sealed {
    use super::WgpuView;

    pub trait Piece {
        fn piece(&self) -> &WgpuView<'_>;
    }
}

impl sealed::Piece for WgpuView<'_> {
    fn piece(&self) -> &WgpuView<'_> {
        self
    }
}

impl Bindable for WgpuView<'_> {}

impl<'b, A: DeviceAllocator> sealed::Piece for Use<'b, A>
where
    A::View<'b>: sealed::Piece,
{
    fn piece(&self) -> &WgpuView<'_> {
        (**self).piece()
    }
}

impl<'b, A: DeviceAllocator> Bindable for Use<'b, A> where A::View<'b>: Bindable {}

impl Usage {
    /// These uses, and `COPY_DST`.
    #[must_use]
    pub fn new(usages: BufferUsages) -> Self {
        Self(usages | BufferUsages::COPY_DST)
    }

    /// The flags.
    #[must_use]
    pub fn flags(self) -> BufferUsages {
        self.0
    }
}

impl Default for Usage {
    fn default() -> Self {
        Self::new(BufferUsages::STORAGE | BufferUsages::COPY_SRC)
    }
}

impl WgpuBlock {
    /// The buffer itself, for a block that left its pool.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl<'b> WgpuView<'b> {
    /// The buffer. A clone of it that is kept past the pooled buffer sees the next owner's data.
    #[must_use]
    pub fn buffer(&self) -> &'b Buffer {
        self.buffer
    }

    /// Where the bytes begin in it.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes there are.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.bytes
    }

    /// What a bind group takes.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] for a view of no bytes, which wgpu cannot bind.
    pub fn binding(&self) -> Result<BindingResource<'b>, DeviceError> {
        let empty = DeviceError::new(Why::Unsupported, "bind a buffer of 0 bytes", 0);
        // In whole words, which every block holds.
        let words = self.bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT);
        let size = BufferSize::new(words).ok_or(empty)?;
        let (buffer, offset) = (self.buffer, self.offset);
        Ok(BindingResource::Buffer(BufferBinding { buffer, offset, size: Some(size) }))
    }
}
