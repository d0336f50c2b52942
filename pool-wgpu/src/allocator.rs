//! Whole wgpu buffers, keyed by their usage flags.

use crate::clock::{Scopes, WgpuStream};
use crate::gone;
use crate::groups::Groups;
use crate::readbacks::ReadBacks;
use crate::scope::Scope;
use crate::shared::{Owed, Shared, lost, now};
use crate::uploads::{FrameData, Uploads};
use crate::view::{Bindable, Usage, WgpuBlock, WgpuView};
use parking_lot::Mutex;
use pool_core::{
    Clearing, DeviceAllocator, DeviceError, MarkOf, Memory, Request, WholeBlocks, Why, ZeroPolicy,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, Buffer, BufferUsages,
    COPY_BUFFER_ALIGNMENT, Device, ErrorFilter, Features, PollType, Queue,
};

/// Uses of buffers that the CPU maps: those come and go by callbacks, through [`Uploads`] and
/// [`ReadBacks`].
const MAPPABLE: BufferUsages = BufferUsages::MAP_READ.union(BufferUsages::MAP_WRITE);

/// Buffers of one wgpu device. Clones are the same.
#[derive(Clone)]
pub struct WgpuAllocator {
    clock: Scopes,
    largest: u64,
    groups: Arc<Mutex<Groups>>,
}

impl WgpuAllocator {
    /// Buffers of this device, within the limits that it was requested with. Ask for
    /// `adapter.limits()`: wgpu's defaults are smaller than most devices.
    ///
    /// It takes the device's one callback for its loss, after which every call says so. A device
    /// has one allocator: two would not know of each other's scopes.
    #[must_use]
    pub fn new(device: Device, queue: Queue) -> Self {
        let largest = device.limits().max_buffer_size;
        let clock = Scopes::new(Arc::new(Shared::new(device, queue)));
        Self { clock, largest, groups: Arc::default() }
    }

    /// Buffers of the adapter that wgpu prefers, with all its limits, and with buffers that the CPU
    /// can map whatever their use, where it has those.
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
            required_features: adapter.features() & Features::MAPPABLE_PRIMARY_BUFFERS,
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
        Scope::open(&self.clock)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared().device
    }

    fn shared(&self) -> &Arc<Shared> {
        self.clock.shared()
    }

    /// Staging memory for uploads, in chunks of so many bytes, of which at most `kept_bytes` are
    /// kept.
    #[must_use]
    pub fn uploads(&self, chunk_bytes: u64, kept_bytes: u64) -> Uploads {
        Uploads::new(self.shared().clone(), None, chunk_bytes, kept_bytes)
    }

    /// Memory for data of a frame that shaders read where the CPU has put it, in chunks like those
    /// of [`WgpuAllocator::uploads`], for these uses.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] for a device without `Features::MAPPABLE_PRIMARY_BUFFERS`, or that was
    /// requested without it: upload through staging memory there.
    pub fn frame_data(
        &self,
        usages: BufferUsages,
        chunk_bytes: u64,
        kept_bytes: u64,
    ) -> Result<FrameData, DeviceError> {
        if !self.device().features().contains(Features::MAPPABLE_PRIMARY_BUFFERS) {
            let call = "frame data without MAPPABLE_PRIMARY_BUFFERS";
            return Err(DeviceError::new(Why::Unsupported, call, 0));
        }
        let limits = self.device().limits();
        let uniform = limits.min_uniform_buffer_offset_alignment;
        let alignment = u64::from(uniform.max(limits.min_storage_buffer_offset_alignment));
        let chunks = Uploads::new(self.shared().clone(), Some(usages), chunk_bytes, kept_bytes);
        Ok(FrameData { chunks, alignment })
    }

    /// Memory to read results back through, of which at most `kept_bytes` are kept.
    #[must_use]
    pub fn read_backs(&self, kept_bytes: u64) -> ReadBacks {
        ReadBacks::new(self.shared().clone(), kept_bytes)
    }

    /// A bind group of these views by their binding numbers, kept for the next time they are bound
    /// alike, by the same layout: a pooled buffer is the same buffer each time. (A layout that is
    /// asked of a pipeline is another one each time it is asked for.) At most 256 are kept, and
    /// those of a buffer that goes back to wgpu go first.
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
    /// #     label: None,
    /// #     entries: &[wgpu::BindGroupLayoutEntry {
    /// #         binding: 0,
    /// #         visibility: wgpu::ShaderStages::COMPUTE,
    /// #         ty: wgpu::BindingType::Buffer {
    /// #             ty: wgpu::BufferBindingType::Storage { read_only: false },
    /// #             has_dynamic_offset: false,
    /// #             min_binding_size: None,
    /// #         },
    /// #         count: None,
    /// #     }],
    /// # });
    /// let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// for _ in 0..10 {
    ///     let scope = pool.allocator().scope();
    ///     let on = scope.stream();
    ///     let buffer = pool.allocate_on(&on, KIB)?;
    ///     let group = pool.allocator().bind_group(&layout, &[(0, &buffer.on(&on)?)])?;
    ///     scope.submit();
    /// }
    /// assert_eq!(pool.allocator().kept_bind_groups(), 1);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] for a view of no bytes, or for views that the layout does not take;
    /// [`Why::Lost`] if the device is gone.
    pub fn bind_group(
        &self,
        layout: &BindGroupLayout,
        views: &[(u32, &dyn Bindable)],
    ) -> Result<BindGroup, DeviceError> {
        self.shared().living()?; // or the group would be invalid, and kept
        let mut entries = Vec::new();
        for (binding, view) in views {
            entries.push(BindGroupEntry { binding: *binding, resource: view.piece().binding()? });
        }
        let bound = |(number, view): &(u32, &dyn Bindable)| {
            let WgpuView { buffer, offset, bytes } = view.piece();
            (*number, Buffer::clone(buffer), *offset, *bytes)
        };
        let key = (layout.clone(), views.iter().map(bound).collect());
        if let Some(group) = self.groups.lock().find(&key) {
            return Ok(group);
        }
        let descriptor = BindGroupDescriptor { label: None, layout, entries: &entries };
        let (group, refused) = self
            .shared()
            .refused(ErrorFilter::Validation, || self.device().create_bind_group(&descriptor));
        if refused {
            return Err(DeviceError::new(Why::Unsupported, "create_bind_group", 0));
        }
        self.groups.lock().keep(key, group.clone());
        Ok(group)
    }

    /// Clears a range ahead of what `on` does with it.
    pub(crate) fn clear(
        &self,
        block: &WgpuBlock,
        bytes: Range<u64>,
        on: &WgpuStream,
    ) -> Result<(), DeviceError> {
        if self.clock.clear(on, Owed::new(&block.buffer, bytes)) {
            return Ok(());
        }
        Err(DeviceError::new(Why::Other, "clear_buffer", 0))
    }

    /// Lets go of the bind groups that are kept for a buffer: for one that left its pool.
    pub fn forget_bind_groups(&self, buffer: &Buffer) {
        self.groups.lock().forget(buffer);
    }

    /// What went back to wgpu and lives on there, since somebody holds a clone of the buffer, a
    /// bind group of it or an encoder that uses it: its labels. While it was pooled, that somebody
    /// saw the data of others. For tests, and between frames: submits what the queue was given to
    /// write, and waits for the device.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] in a release build, which labels no buffers, and where wgpu gives no
    /// report of what it holds: it does on Vulkan and DX12. [`Why::Lost`] if the device is gone.
    /// An instance that discards labels (`InstanceFlags::DISCARD_HAL_LABELS`) finds nothing.
    pub fn kept_clones(&self) -> Result<Vec<String>, DeviceError> {
        let shared = self.shared();
        shared.queue.submit([]);
        shared.device.poll(PollType::wait_indefinitely()).map_err(|_| lost())?;
        shared.living()?;
        let unknown = DeviceError::new(Why::Unsupported, "report of kept clones", 0);
        shared.gone.alive(&shared.device).ok_or(unknown)
    }

    /// Bind groups that are kept.
    #[must_use]
    pub fn kept_bind_groups(&self) -> usize {
        self.groups.lock().len()
    }

    /// Its queue. What it writes belongs to the default stream.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.shared().queue
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
        let label = gone::label(request.bytes);
        let buffer = self.shared().create(&wgpu::BufferDescriptor {
            label: label.as_deref(),
            size: request.bytes,
            usage: request.kind.flags(),
            mapped_at_creation: false,
        });
        Ok(WgpuBlock { buffer: buffer?, label })
    }

    /// Drops the buffer, and the bind groups that are kept for it. Never destroys it: somebody may
    /// hold a clone.
    fn free(&self, block: WgpuBlock, _after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.groups.lock().forget(&block.buffer);
        let WgpuBlock { buffer, label } = block;
        drop(buffer);
        self.shared().gone.note(label, self.device());
        Ok(())
    }

    fn view<'b>(
        &'b self,
        block: &'b WgpuBlock,
        offset: u64,
        bytes: u64,
        _on: &WgpuStream,
    ) -> WgpuView<'b> {
        WgpuView { buffer: &block.buffer, offset, bytes }
    }

    fn zero(&self, block: &mut WgpuBlock, bytes: u64, on: &WgpuStream) -> Result<(), DeviceError> {
        self.clear(block, 0..bytes, on)
    }
}

impl WholeBlocks for WgpuAllocator {}

impl fmt::Debug for WgpuAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuAllocator").field("clock", &self.clock).finish_non_exhaustive()
    }
}
