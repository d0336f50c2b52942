//! Whole wgpu buffers, keyed by their usage flags.

use crate::scope::{Scope, Scopes, WgpuStream};
use pool_core::{
    Clearing, DeviceAllocator, DeviceError, MarkOf, Memory, Request, WholeBlocks, Why, ZeroPolicy,
};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use wgpu::{
    Buffer, BufferUsages, COPY_BUFFER_ALIGNMENT, CommandEncoderDescriptor, Device, ErrorFilter,
    Queue,
};

/// Uses of buffers that the CPU maps. Pooling them needs their callbacks, and comes later.
const MAPPABLE: BufferUsages = BufferUsages::MAP_READ.union(BufferUsages::MAP_WRITE);

/// Buffers of one wgpu device.
pub struct WgpuAllocator {
    clock: Scopes,
    largest: u64,
}

/// What a buffer may be used for; a block serves again for the same flags only.
///
/// Storage, and copying in both directions, by default. `COPY_DST` is always among them, since that
/// is what clearing needs. Buffers that can be mapped are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage(BufferUsages);

/// A wgpu buffer, whole.
#[derive(Debug)]
pub struct WgpuBlock(Buffer);

/// A range of a buffer in use.
#[derive(Debug)]
pub struct WgpuView<'b> {
    buffer: &'b Buffer,
    offset: u64,
    bytes: u64,
}

impl WgpuAllocator {
    /// Buffers of this device, within the limits that it was requested with. Ask for
    /// `adapter.limits()`: wgpu's defaults are smaller than most devices.
    #[must_use]
    pub fn new(device: Device, queue: Queue) -> Self {
        let largest = device.limits().max_buffer_size;
        Self { clock: Scopes::new(device, queue), largest }
    }

    /// Buffers of the adapter that wgpu prefers, with all its limits.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if there is no adapter or it gives no device.
    pub fn on_default_adapter() -> Result<Self, DeviceError> {
        let refused = |call| DeviceError::new(Why::Unsupported, call, 0);
        let descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        let instance = wgpu::Instance::new(descriptor);
        let adapter = now(instance.request_adapter(&wgpu::RequestAdapterOptions::default()));
        let adapter = adapter.and_then(Result::ok).ok_or(refused("no wgpu adapter (Vulkan)"))?;
        let descriptor = wgpu::DeviceDescriptor {
            required_limits: adapter.limits(),
            ..wgpu::DeviceDescriptor::default()
        };
        let device = now(adapter.request_device(&descriptor));
        let (device, queue) =
            device.and_then(Result::ok).ok_or(refused("Adapter::request_device"))?;
        Ok(Self::new(device, queue))
    }

    /// Opens a scope: a stream of commands that are submitted together.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.clock.open()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.clock.device()
    }

    /// Its queue. What it writes belongs to the default stream.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        self.clock.queue()
    }
}

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
        self.0
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
}

impl DeviceAllocator for WgpuAllocator {
    type Block = WgpuBlock;
    type View<'b> = WgpuView<'b>;
    type Kind = Usage;
    type Clock = Scopes;
    /// Dropping a buffer is cheap and legal at any time: wgpu keeps what a submission uses.
    const MEMORY: Memory = Memory {
        free_in_drop: true,
        fresh_is_zeroed: true,
        clearing: Clearing::Ahead,
        default_zero: ZeroPolicy::OnAllocate,
        ..Memory::DEVICE
    };

    fn clock(&self) -> &Scopes {
        &self.clock
    }

    fn granule(&self) -> u64 {
        COPY_BUFFER_ALIGNMENT
    }

    fn largest(&self) -> u64 {
        self.largest
    }

    /// A whole buffer begins where any binding may.
    fn aligned(&self, kind: Usage, alignment: u64) -> Result<Usage, DeviceError> {
        let most = u64::from(wgpu::Limits::default().min_storage_buffer_offset_alignment);
        if alignment.is_power_of_two() && alignment <= most {
            return Ok(kind);
        }
        Err(DeviceError::new(Why::Unsupported, "alignment of a wgpu buffer", 0))
    }

    fn allocate(&self, request: Request<Usage>, _: &WgpuStream) -> Result<WgpuBlock, DeviceError> {
        if request.bytes > self.largest {
            let code = i64::try_from(self.largest).unwrap_or(i64::MAX);
            return Err(DeviceError::new(Why::TooLarge, "max_buffer_size", code));
        }
        if request.kind.flags().intersects(MAPPABLE) {
            // What is mapped must not be submitted, and nobody here would know.
            return Err(DeviceError::new(Why::Unsupported, "pool a buffer that can be mapped", 0));
        }
        let device = self.clock.device();
        // A buffer is returned even where it is invalid; the scopes tell, innermost first.
        let memory = device.push_error_scope(ErrorFilter::OutOfMemory);
        let validation = device.push_error_scope(ErrorFilter::Validation);
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: request.bytes,
            usage: request.kind.flags(),
            mapped_at_creation: false,
        });
        let (invalid, out) = (now(validation.pop()).flatten(), now(memory.pop()).flatten());
        match (invalid, out) {
            (None, None) => Ok(WgpuBlock(buffer)),
            (_, Some(_)) => Err(DeviceError::new(Why::OutOfMemory, "create_buffer", 0)),
            (Some(_), None) => Err(DeviceError::new(Why::Unsupported, "create_buffer", 0)),
        }
    }

    /// Drops the buffer. Never destroys it: somebody may hold a clone.
    fn free(&self, _block: WgpuBlock, _after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn view<'b>(
        &'b self,
        block: &'b WgpuBlock,
        offset: u64,
        bytes: u64,
        _on: &WgpuStream,
    ) -> WgpuView<'b> {
        WgpuView { buffer: &block.0, offset, bytes }
    }

    /// Ahead of what is not submitted yet, whatever the stream.
    fn zero(&self, block: &mut WgpuBlock, bytes: u64, _on: &WgpuStream) -> Result<(), DeviceError> {
        let device = self.clock.device();
        let validation = device.push_error_scope(ErrorFilter::Validation);
        let mut encoder = device.create_command_encoder(&CommandEncoderDescriptor::default());
        let bytes = bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT).min(block.0.size());
        encoder.clear_buffer(&block.0, 0, Some(bytes));
        self.clock.queue().submit([encoder.finish()]);
        match now(validation.pop()).flatten() {
            None => Ok(()),
            Some(_) => Err(DeviceError::new(Why::Other, "clear_buffer", 0)),
        }
    }
}

impl WholeBlocks for WgpuAllocator {}

/// What a future gives at once: native devices do not make anybody wait here.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

impl fmt::Debug for WgpuAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuAllocator").field("clock", &self.clock).finish_non_exhaustive()
    }
}
