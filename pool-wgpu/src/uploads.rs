//! Uploads, and data that shaders read where the CPU has put it.

use crate::binding::Binding;
use crate::clock::{Scopes, WgpuStream};
use crate::shared::Shared;
use crate::staging::{InFlight, Staging};
use crate::view::sealed::{Bound, Part};
use crate::view::{Access, Bindable, BufferPart, Group, Place};
use pool_core::{DeviceError, Why};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use wgpu::{Buffer, BufferUsages};

/// Staging memory for uploads, in chunks. Clones are the same.
///
/// A scope writes into its own chunk ([`Scope::upload`](crate::Scope::upload)). When the scope is
/// submitted the chunk is unmapped, and asked to be mapped again once its copies are done; wgpu
/// tells that from inside a later submit or poll, and then the chunk serves again.
///
/// What it costs: a copy by the CPU, one by the device, and as much memory as the frames in flight
/// upload. No buffer is made once there are enough.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod wgpu { pub use pool_wgpu::*; } }
/// use bucketpool::{BucketPool, KIB, MIB};
/// use bucketpool::wgpu::WgpuAllocator;
///
/// # #[cfg(feature = "noop")] {
/// # let (device, queue) = pool_wgpu::wgpu::Device::noop(&Default::default());
/// let device = WgpuAllocator::new(device, queue);
/// let (uploads, backs) = (device.uploads(64 * KIB, MIB), device.read_backs(MIB));
/// let pool = BucketPool::new(device.clone());
/// for frame in 0..10_u8 {
///     let mut scope = device.scope();
///     let on = scope.stream();
///     let buffer = pool.allocate_on(&on, KIB)?;
///     let view = buffer.on(&on)?;
///     scope.upload(&uploads, &view, 0, &[frame; 1024])?;
///     let back = scope.read_back(&backs, &view, 0, KIB)?;
///     scope.submit()?;
///     assert!(back.wait(|bytes| bytes == [frame; 1024])?);
/// }
/// assert!(uploads.reserved_bytes() <= 128 * KIB);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Uploads(pub(crate) Arc<Staging>);

/// Data of a frame that shaders read where the CPU has put it: chunks like those of [`Uploads`]
/// that are bound themselves, so that no device copy is made. For devices whose memory the CPU
/// reaches (`Features::MAPPABLE_PRIMARY_BUFFERS`): integrated ones, and those that are a CPU.
///
/// What a scope places ([`Scope::place`](crate::Scope::place)) is that scope's only. Bytes beyond
/// it are another frame's.
///
/// ```
/// # mod bucketpool { pub use pool_core::*; pub mod wgpu { pub use pool_wgpu::*; } }
/// use bucketpool::{KIB, MIB};
/// use bucketpool::wgpu::{WgpuAllocator, wgpu};
///
/// # #[cfg(feature = "noop")] {
/// # let required_features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
/// # let descriptor = wgpu::DeviceDescriptor { required_features, ..Default::default() };
/// # let (device, queue) = wgpu::Device::noop(&descriptor);
/// let device = WgpuAllocator::new(device, queue);
/// let uniforms = device.frame_data(wgpu::BufferUsages::UNIFORM, 64 * KIB, MIB)?;
/// let mut scope = device.scope();
/// let first = scope.place(&uniforms, &[1; 100])?;
/// let second = scope.place(&uniforms, &[2; 100])?;
/// assert_eq!(first.buffer(), second.buffer());
/// assert_eq!(second.offset() - first.offset(), 256); // where a binding may begin
/// scope.submit()?;
/// # }
/// # Ok::<(), pool_core::DeviceError>(())
/// ```
#[derive(Clone)]
pub struct FrameData {
    pub(crate) staging: Arc<Staging>,
    /// Data begins at multiples of this many bytes.
    pub(crate) alignment: u64,
}

/// Data that a scope has placed, for its bindings ([`WgpuAllocator::bind_group`]) and copies. Other
/// scopes refuse it. Its buffer used after the scope is a validation error, since it is mapped
/// then.
///
/// [`WgpuAllocator::bind_group`]: crate::WgpuAllocator::bind_group
#[derive(Clone)]
pub struct Placed {
    pub(crate) buffer: Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) on: WgpuStream,
    pub(crate) clock: Scopes,
}

impl Uploads {
    /// Bytes of all chunks: those that scopes fill, those at work and those at rest.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.0.reserved_bytes()
    }

    /// Bytes of staging memory that were mapped for writing so far. A browser copies what is mapped
    /// twice more.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.0.mapped_bytes()
    }

    pub(crate) fn new(shared: Arc<Shared>, sizes: (u64, u64), in_flight: InFlight) -> Self {
        Self(Staging::new(shared, None, sizes, in_flight))
    }
}

impl FrameData {
    /// Bytes of all chunks: those that scopes fill, those at work and those at rest.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.staging.reserved_bytes()
    }

    pub(crate) fn new(
        shared: Arc<Shared>,
        usages: BufferUsages,
        sizes: (u64, u64),
        in_flight: InFlight,
    ) -> Self {
        let (uniform, storage) = (
            shared.limits.min_uniform_buffer_offset_alignment,
            shared.limits.min_storage_buffer_offset_alignment,
        );
        let staging = Staging::new(shared, Some(usages), sizes, in_flight);
        Self { staging, alignment: u64::from(uniform.max(storage)) }
    }
}

impl Placed {
    /// The chunk.
    #[must_use]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where the data begins in it.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes there are.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.bytes
    }
}

impl Bound for Placed {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        of.takes(&self.clock, &self.on)?;
        if !self.clock.open_scopes().takes_work(self.on.scope()) {
            let call = "bind placed data after its scope";
            return Err(DeviceError::new(Why::Foreign, call));
        }
        let limits = &of.device.shared().limits;
        Binding::buffer(&self.buffer, (self.offset, self.bytes), part, Some(limits))
    }
}

impl Part for Placed {
    fn place<'s>(&'s self, on: &'s WgpuStream, _: Access) -> Result<Place<'s>, DeviceError> {
        if self.on != *on {
            let call = "data that another scope has placed";
            return Err(DeviceError::new(Why::Foreign, call));
        }
        let Self { buffer, offset, bytes, .. } = self;
        Ok(Place { buffer, offset: *offset, bytes: *bytes })
    }
}

impl Bindable for Placed {}
impl BufferPart for Placed {}

impl fmt::Debug for Uploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploads").field("reserved_bytes", &self.reserved_bytes()).finish()
    }
}

impl fmt::Debug for FrameData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameData").field("reserved_bytes", &self.reserved_bytes()).finish()
    }
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed")
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
