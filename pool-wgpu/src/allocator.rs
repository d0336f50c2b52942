//! Whole wgpu buffers, keyed by their usage flags.

use crate::bind;
use crate::clock::{Scopes, WgpuStream};
use crate::groups::BindGroupStats;
use crate::leaked;
use crate::memory;
use crate::readbacks::ReadBacks;
use crate::scope::Scope;
use crate::shared::{Shared, lost, now};
use crate::staging::InFlight;
use crate::textures::Textures;
use crate::uploads::{FrameData, Uploads};
use crate::view::{Access, Bindable, Group, Usage, WgpuBlock, WgpuView};
use crate::zeroing::ToZero;
use pool_core::port::{MarkOf, Memory, Request, WholeBlocks, Zeroing};
use pool_core::{DeviceAllocator, DeviceError, MIB, Why, ZeroPolicy};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wgpu::{
    BindGroup, BindGroupLayout, Buffer, BufferUsages, COPY_BUFFER_ALIGNMENT, Device,
    DeviceLostReason, Features, PollType, Queue, Texture,
};

/// Uses of buffers that the CPU maps: those come and go by callbacks, through [`Uploads`] and
/// [`ReadBacks`].
const MAPPABLE: BufferUsages = BufferUsages::MAP_READ.union(BufferUsages::MAP_WRITE);

/// Bytes of cached memory that the port's copies keep to read through.
const READ_THROUGH_KEPT: u64 = 4 * MIB;

/// Buffers of one wgpu device. Clones are the same.
#[derive(Clone)]
pub struct WgpuAllocator {
    clock: Scopes,
    label: Arc<str>,
    total_bytes: Option<u64>,
    /// The memory that the port's copies read through.
    read_through: ReadBacks,
}

impl WgpuAllocator {
    /// Buffers of this device, within the limits that it was requested with. Ask for
    /// `adapter.limits()`: wgpu's defaults are smaller than most devices.
    ///
    /// It takes the device's one callback for its loss: wgpu drops the
    /// program's, which [`WgpuAllocator::on_lost`] takes instead. If another library takes it later,
    /// [`WgpuAllocator::faults`] tells. A device has one allocator: two would not know of each other's
    /// scopes.
    #[must_use]
    pub fn new(device: Device, queue: Queue) -> Self {
        let new = Self::without_lost_callback(device, queue);
        new.shared().learn_of_loss();
        new
    }

    /// Buffers of a device whose callback for its loss belongs to another library. The program
    /// calls [`WgpuAllocator::mark_lost`] from that callback: without it the pool hands out buffers of a lost
    /// device until a call notices the loss.
    #[must_use]
    pub fn without_lost_callback(device: Device, queue: Queue) -> Self {
        let total_bytes = memory::total_bytes(&device);
        let clock = Scopes::new(Arc::new(Shared::new(device, queue)));
        let read_through = ReadBacks::new(clock.shared().clone(), READ_THROUGH_KEPT);
        Self { clock, label: "bucketpool".into(), total_bytes, read_through }
    }

    /// Names its buffers, for graphics debuggers: `name`, a number and the bytes. `bucketpool`
    /// unless it is called. The allocators of one device may have different names, as one for slabs has;
    /// [`Usage::labelled`] names a single buffer.
    #[must_use]
    pub fn labelled(self, name: &str) -> Self {
        Self { label: name.into(), ..self }
    }

    /// From now on the pool polls the device only where it waits: a request, an upload and a new scope run
    /// none of the program's callbacks, except where they submit. For programs that poll themselves, as
    /// each frame's present does, and that call [`WgpuAllocator::submitted`] behind each submission of a
    /// prologue, since the pool hears of it later otherwise. Clones of the allocator and pools over it are the same.
    ///
    /// Otherwise a new scope polls while a prologue is out, an upload while staging memory is at work, and
    /// a request after wgpu refused a buffer. A poll runs all callbacks that are ready, so a program must
    /// hold no lock in these calls that its callbacks take. A submission runs callbacks too: those of
    /// [`Scope::submit`] and [`Scope::flush`], of a request on the queue's stream for a block that must be
    /// zeroed, and of a scope or an encoder that is dropped with such blocks.
    #[must_use]
    pub fn without_polling(self) -> Self {
        self.shared().stop_polling();
        self
    }

    /// Calls `told` when the device is lost, as `Device::set_device_lost_callback` does, which a program
    /// whose allocator was made by [`WgpuAllocator::new`] must not call: a device has one such callback.
    /// It is called once: by wgpu, in a poll or a submission, or before by the call of the pool that finds the device
    /// lost, so it takes no lock that the program holds in calls of the pool.
    /// A second closure takes the place of the first. One that holds a clone of the allocator or of the device
    /// keeps the device until then ([`WgpuAllocator::on_fault`]).
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// let allocator = WgpuAllocator::new(device, queue);
    /// allocator.on_lost(|reason, message| eprintln!("{reason:?}: {message}"));
    /// # }
    /// ```
    pub fn on_lost(&self, told: impl Fn(DeviceLostReason, &str) + Send + Sync + 'static) {
        self.shared().on_lost(Arc::new(told));
    }

    /// From now on every call says that the device is lost. For a program whose own callback was
    /// told; it may be called from there.
    pub fn mark_lost(&self) {
        self.shared().mark_lost();
    }

    /// Buffers of the adapter that wgpu prefers, with all its limits, and with buffers that the CPU
    /// can map whatever their use, where it has those.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] if there is no adapter or it gives no device.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::WgpuAllocator;
    /// match WgpuAllocator::on_default_adapter() {
    ///     Ok(device) => drop(BucketPool::new(device).allocate(KIB)?),
    ///     Err(error) => assert_eq!(error.why, Why::Unsupported), // there is no adapter
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_default_adapter() -> Result<Self, DeviceError> {
        let refused = |call| DeviceError::new(Why::Unsupported, call);
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
        self.clock.open_scopes().count_one();
        Scope::open(&self.clock)
    }

    /// Opens a scope of the pool's own, which does not age what is cached.
    pub(crate) fn uncounted_scope(&self) -> Scope {
        Scope::open(&self.clock)
    }

    /// Tells that the commands behind a scope's prologue ([`Scope::prologue`]) were submitted, so
    /// that its blocks serve other scopes at once. `on` is the stream of that scope. Called before
    /// the submission, it lets others overwrite what the commands use.
    pub fn submitted(&self, on: &WgpuStream) {
        let open = self.clock.open_scopes();
        if self.clock.made(on) && open.is_yielded(on.scope()) {
            open.close_submitted(on.scope());
        }
    }

    /// Faults of the program since the last call, of the kind that no other call can return, oldest
    /// first, 64 at most:
    ///
    /// - a prologue that was left out, refused by wgpu, or submitted behind the commands that it is
    ///   for, in the same call or a later one; known once those are done;
    /// - in debug builds, a scope that was dropped without [`Scope::submit`] and
    ///   [`Scope::prologue`] after the program had taken buffers of it and not its encoder, so that
    ///   the buffers may be in an encoder that the pool does not know;
    /// - a callback for the loss of the device that replaced the pool's.
    ///
    /// What wgpu does not show: a use of a scope's buffer in another encoder, where the scope's own
    /// encoder was taken too, or where the scope was flushed behind it; an earlier encoder of the
    /// frame that was submitted before the prologue; and a clone of a buffer or a bind group that
    /// outlives its pooled buffer, before the buffer goes back to wgpu
    /// ([`WgpuAllocator::kept_clones`]).
    #[must_use]
    pub fn faults(&self) -> Vec<DeviceError> {
        self.clock.receipts().look();
        self.shared().take_faults()
    }

    /// Calls `told` for each fault of which [`WgpuAllocator::faults`] tells, but the callback that was
    /// replaced: in the call that notices it, at the latest in that of the next prologue. A second
    /// closure takes the place of the first.
    ///
    /// `told` runs under whatever locks the program holds in its calls of the pool, so it takes none of
    /// them: it logs, or sends. Its panic goes on through that call, which has done its work by then. A
    /// closure that holds a clone of the allocator or of the device keeps the device, also once the program
    /// has dropped all of its own: until another closure takes its place.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// let allocator = WgpuAllocator::new(device, queue);
    /// allocator.on_fault(|fault| eprintln!("a frame went wrong: {fault}"));
    /// assert_eq!(allocator.fault_count(), 0);
    /// # }
    /// ```
    pub fn on_fault(&self, told: impl Fn(DeviceError) + Send + Sync + 'static) {
        self.shared().on_fault(Arc::new(told));
    }

    /// Calls `told` with what wgpu says of each call of the pool that it refuses: a buffer, a texture, a bind
    /// group, the commands of a frame. The pool returns these refusals as errors, so that the device's own
    /// handler (`Device::on_uncaptured_error`) is not told of them. A second closure takes the place of the first;
    /// otherwise it is as [`WgpuAllocator::on_fault`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{Unpooled, WgpuAllocator, wgpu};
    /// # use std::sync::mpsc::channel;
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
    /// #     label: None,
    /// #     entries: &[],
    /// # });
    /// # let camera = device.create_buffer(&wgpu::BufferDescriptor {
    /// #     label: None,
    /// #     size: 64,
    /// #     usage: wgpu::BufferUsages::UNIFORM,
    /// #     mapped_at_creation: false,
    /// # });
    /// let allocator = WgpuAllocator::new(device, queue);
    /// let (says, said) = channel();
    /// allocator.on_refused(move |text| says.send(text.to_owned()).unwrap_or_default());
    /// let refused = allocator.bind_group(&layout, &[(0, &Unpooled(&camera))]).unwrap_err();
    /// assert_eq!(refused.why, Why::Unsupported);
    /// assert!(said.try_recv()?.contains("bindings")); // wgpu's own words
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_refused(&self, told: impl Fn(&str) + Send + Sync + 'static) {
        self.shared().on_refused(Arc::new(told));
    }

    /// The number of faults of which [`WgpuAllocator::faults`] and [`WgpuAllocator::on_fault`] tell,
    /// since the allocator was made; also of those that came when 64 were untaken.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.clock.receipts().look();
        self.shared().fault_count()
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared().device
    }

    pub(crate) fn read_through(&self) -> &ReadBacks {
        &self.read_through
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.clock.shared()
    }

    /// Staging memory for uploads, in chunks of `chunk_bytes` bytes, of which at most `kept_bytes`
    /// bytes are kept at rest. What scopes and the device have is not bounded.
    #[must_use]
    pub fn uploads(&self, chunk_bytes: u64, kept_bytes: u64) -> Uploads {
        self.bounded_uploads(chunk_bytes, kept_bytes, InFlight::Unbounded)
    }

    /// Staging memory for uploads with a bound on what scopes and the device have, so that a
    /// program that is faster than its device does not take more and more memory.
    ///
    /// ```
    /// # use pool_core::{KIB, MIB, Why, port::Limit};
    /// # use pool_wgpu::{InFlight, Unpooled, WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let device = WgpuAllocator::new(device, queue);
    /// # let target = device.device().create_buffer(&wgpu::BufferDescriptor {
    /// #     label: None,
    /// #     size: 256 * KIB,
    /// #     usage: wgpu::BufferUsages::COPY_DST,
    /// #     mapped_at_creation: false,
    /// # });
    /// let uploads = device.bounded_uploads(64 * KIB, MIB, InFlight::Refuse(128 * KIB));
    /// let mut scope = device.scope();
    /// let data = vec![0; 64 * 1024];
    /// scope.upload(&uploads, &Unpooled(&target), 0, &data)?;
    /// scope.upload(&uploads, &Unpooled(&target), 64 * KIB, &data)?;
    /// let refused = scope.upload(&uploads, &Unpooled(&target), 128 * KIB, &data);
    /// assert_eq!(refused.unwrap_err().why, Why::Limit(Limit::Device));
    /// # }
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    #[must_use]
    pub fn bounded_uploads(
        &self,
        chunk_bytes: u64,
        kept_bytes: u64,
        in_flight: InFlight,
    ) -> Uploads {
        Uploads::new(self.shared().clone(), (chunk_bytes, kept_bytes), in_flight)
    }

    /// Memory for data of a frame that shaders read where the CPU has put it, in chunks like those
    /// of [`WgpuAllocator::uploads`], for these uses. For copies alone (`BufferUsages::COPY_SRC`), as
    /// `copy_buffer_to_texture` reads them, each device has it.
    ///
    /// See [`FrameData`] for an example on a device that has the feature.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] for other uses on a device without `Features::MAPPABLE_PRIMARY_BUFFERS`, or
    /// that was requested without it: upload through staging memory there.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{KIB, MIB, Why, port::Limit};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// let device = WgpuAllocator::new(device, queue); // without the feature
    /// let refused = device.frame_data(wgpu::BufferUsages::UNIFORM, 64 * KIB, MIB).unwrap_err();
    /// assert_eq!(refused.why, Why::Unsupported);
    /// let uploads = device.uploads(64 * KIB, MIB); // instead
    /// # }
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn frame_data(
        &self,
        usages: BufferUsages,
        chunk_bytes: u64,
        kept_bytes: u64,
    ) -> Result<FrameData, DeviceError> {
        self.bounded_frame_data(usages, chunk_bytes, kept_bytes, InFlight::Unbounded)
    }

    /// Memory for data of a frame with a bound, as [`WgpuAllocator::bounded_uploads`] has.
    ///
    /// # Errors
    ///
    /// As for [`WgpuAllocator::frame_data`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{KIB, MIB, Why, port::Limit};
    /// # use pool_wgpu::{InFlight, WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let required_features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
    /// # let descriptor = wgpu::DeviceDescriptor { required_features, ..Default::default() };
    /// # let (device, queue) = wgpu::Device::noop(&descriptor);
    /// # let device = WgpuAllocator::new(device, queue);
    /// # let usages = wgpu::BufferUsages::UNIFORM;
    /// let data = device.bounded_frame_data(usages, 64 * KIB, MIB, InFlight::Refuse(64 * KIB))?;
    /// let mut scope = device.scope();
    /// let first = scope.place(&data, &[1; 40_000])?;
    /// let refused = scope.place(&data, &[2; 40_000]).unwrap_err(); // needs a second chunk
    /// assert_eq!(refused.why, Why::Limit(Limit::Device));
    /// # scope.submit()?;
    /// # }
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn bounded_frame_data(
        &self,
        usages: BufferUsages,
        chunk_bytes: u64,
        kept_bytes: u64,
        in_flight: InFlight,
    ) -> Result<FrameData, DeviceError> {
        let is_any = !BufferUsages::COPY_SRC.contains(usages);
        if is_any && !self.device().features().contains(Features::MAPPABLE_PRIMARY_BUFFERS) {
            let call = "frame data without MAPPABLE_PRIMARY_BUFFERS";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        let sizes = (chunk_bytes, kept_bytes);
        Ok(FrameData::new(self.shared().clone(), usages, sizes, in_flight))
    }

    /// Textures that serve again, for [`Scope::take_texture`].
    #[must_use]
    pub fn textures(&self) -> Textures {
        Textures::new(self.clock.clone())
    }

    /// Memory to read results back through, of which at most `kept_bytes` are kept idle.
    #[must_use]
    pub fn read_backs(&self, kept_bytes: u64) -> ReadBacks {
        ReadBacks::new(self.shared().clone(), kept_bytes)
    }

    /// A bind group of these resources by their binding numbers, for which [`Scope::bind_group`] is simpler. It is cached for the next time they are
    /// bound alike, by the same layout: a pooled buffer is the same buffer each time. (A layout
    /// that is asked of a pipeline is another one each time it is asked for.) A group goes when none of
    /// the 64 scopes that were opened last has used it ([`WgpuAllocator::forget_after`]), and with a buffer of it that goes back to wgpu.
    ///
    /// A cached group keeps the textures and [`Unpooled`](crate::Unpooled) buffers alive that it binds. Those that
    /// were not used for longest go where the groups and what they keep alive are more than 128 MiB in all, of which a
    /// group counts 16 KiB. The bound doubles each time that a group is asked for which went by it.
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
    ///     let mut scope = pool.allocator().scope();
    ///     let on = scope.stream();
    ///     let buffer = pool.allocate_on(&on, KIB)?;
    ///     let group = pool.allocator().bind_group(&layout, &[(0, &buffer.on(&on)?)])?;
    ///     let mut pass = scope.encoder().begin_compute_pass(&Default::default());
    ///     pass.set_bind_group(0, &group, &[]);
    ///     drop(pass);
    ///     scope.submit()?;
    /// }
    /// let stats = pool.allocator().bind_group_stats();
    /// assert_eq!((stats.cached, stats.hits, stats.misses), (1, 9, 1));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] for a view of no bytes, for an array of several kinds, or for views that the
    /// layout does not take; [`Why::Foreign`] for a view of another device, other than an
    /// [`Unpooled`](crate::Unpooled) buffer or a texture, which nobody can tell; [`Why::OutOfRange`] for a
    /// part that its buffer does not have, and
    /// [`Why::TooLarge`] for one beyond the device's limit; [`Why::Lost`] if the device is lost.
    pub fn bind_group(
        &self,
        layout: &BindGroupLayout,
        views: &[(u32, &dyn Bindable)],
    ) -> Result<BindGroup, DeviceError> {
        let of = Group { device: &self.clock, on: None, access: Access::Write };
        bind::group(of, &self.label, layout, views)
    }

    /// Zeroes a range ahead of what `on` does with it.
    pub(crate) fn zero_range(
        &self,
        block: &WgpuBlock,
        bytes: Range<u64>,
        on: &WgpuStream,
    ) -> Result<(), DeviceError> {
        if self.clock.zero(on, ToZero::new(&block.buffer, bytes)) {
            return Ok(());
        }
        Err(self.shared().lost_or(DeviceError::new(Why::Other, "clear_buffer")))
    }

    /// Drops the bind groups that are cached for a buffer: for one that left its pool.
    pub fn forget_bind_groups(&self, buffer: &Buffer) {
        self.shared().groups.lock().forget_buffer(buffer);
    }

    /// Returns the labels of buffers that went back to wgpu and live on there, since the program
    /// holds a clone of them, a bind group or an encoder that uses them. While such a buffer was
    /// pooled, the program saw the data of others through the clone. For tests, and between frames:
    /// submits what the queue was given to write, and waits for the device.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] in a release build, which remembers no labels, and where wgpu gives no
    /// report of what it holds: it does on Vulkan and DX12. [`Why::Lost`] if the device is lost.
    /// An instance that discards labels (`InstanceFlags::DISCARD_HAL_LABELS`) finds nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// drop(pool.allocate(KIB)?);
    /// pool.clear()?; // gives the buffer back to wgpu
    /// match pool.allocator().kept_clones() {
    ///     Ok(labels) => assert!(labels.is_empty(), "{labels:?}"),
    ///     Err(error) => assert_eq!(error.why, Why::Unsupported), // no report on this device
    /// }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn kept_clones(&self) -> Result<Vec<String>, DeviceError> {
        let shared = self.shared();
        shared.queue.submit([]);
        shared.device.poll(PollType::wait_indefinitely()).map_err(|_| lost())?;
        shared.living()?;
        self.clock.receipts().look(); // which keep what their prologues zeroed
        let unknown = DeviceError::new(Why::Unsupported, "report of kept clones");
        shared.leaked.alive(&shared.device).ok_or(unknown)
    }

    /// Drops the bind groups that are cached for views of a texture, which they keep alive for some
    /// frames.
    pub fn forget_bind_groups_of(&self, texture: &Texture) {
        self.shared().groups.lock().forget_texture(texture);
    }

    /// Forgets cached bind groups that none of the last `scopes` scopes has used; 64 unless it is called. For
    /// programs with many scopes in a frame: a few times as many. Scopes that the pool opens for itself do
    /// not count. Idle textures have an age of their own ([`Textures::forget_after`]).
    pub fn forget_after(&self, scopes: u64) {
        self.shared().set_age(scopes);
    }

    /// Returns what the cache of bind groups has done.
    #[must_use]
    pub fn bind_group_stats(&self) -> BindGroupStats {
        self.shared().groups.lock().stats()
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
        zeroing: Zeroing::Ahead,
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
        self.shared().limits.max_buffer_size
    }

    fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
    }

    /// A whole buffer begins where any binding may.
    fn aligned(&self, kind: Usage, alignment: u64) -> Result<Usage, DeviceError> {
        let most = u64::from(wgpu::Limits::default().min_storage_buffer_offset_alignment);
        DeviceError::check_alignment(alignment, most).map(|()| kind)
    }

    fn allocate(&self, request: Request<Usage>, _: &WgpuStream) -> Result<WgpuBlock, DeviceError> {
        let largest = self.largest();
        if request.bytes > largest {
            let code = i64::try_from(largest).unwrap_or(i64::MAX); // the most that is possible
            return Err(DeviceError::new(Why::TooLarge, "max_buffer_size").code(code));
        }
        if request.kind.flags().intersects(MAPPABLE) {
            // A mapped buffer must not be submitted, and the pool would not know that it is.
            return Err(DeviceError::new(Why::Unsupported, "pool a buffer that can be mapped"));
        }
        let label = leaked::label(request.kind.label().unwrap_or(&self.label), request.bytes);
        let buffer = self.shared().create(&wgpu::BufferDescriptor {
            label: Some(&label),
            size: request.bytes,
            usage: request.kind.flags(),
            mapped_at_creation: false,
        });
        let checked = AtomicU64::new(self.shared().refusals());
        Ok(WgpuBlock { buffer: buffer?, label, checked })
    }

    /// Drops the buffer, and the bind groups that are cached for it. Never destroys it: the
    /// program may hold a clone.
    fn free(&self, block: WgpuBlock, _after: &[MarkOf<Self>]) -> Result<(), DeviceError> {
        self.shared().groups.lock().forget_buffer(&block.buffer);
        let WgpuBlock { buffer, label, .. } = block;
        drop(buffer);
        self.shared().leaked.note(label, self.device());
        Ok(())
    }

    fn view<'b>(
        &'b self,
        block: &'b WgpuBlock,
        offset: u64,
        bytes: u64,
        on: &WgpuStream,
    ) -> WgpuView<'b> {
        WgpuView { buffer: &block.buffer, offset, bytes, on: *on, clock: &self.clock }
    }

    /// A scope that has not run would zero the program's own buffer at its end.
    fn let_go(&self, block: &WgpuBlock) {
        let to_zero = self.clock.open_scopes().take_zeroing_of(&block.buffer);
        self.shared().zero_now(&to_zero, false);
    }

    /// Where wgpu has refused a submission, the program may have destroyed the buffer: it is looked at once
    /// then.
    fn is_intact(&self, block: &WgpuBlock) -> bool {
        let refusals = self.shared().refusals();
        if block.checked.load(Relaxed) == refusals {
            return true;
        }
        let is_intact = !self.shared().is_destroyed(&block.buffer);
        if is_intact {
            block.checked.store(refusals, Relaxed);
        }
        is_intact
    }

    fn zero(&self, block: &mut WgpuBlock, bytes: u64, on: &WgpuStream) -> Result<(), DeviceError> {
        self.zero_range(block, 0..bytes, on)
    }
}

impl WholeBlocks for WgpuAllocator {}

impl fmt::Debug for WgpuAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuAllocator").field("clock", &self.clock).finish_non_exhaustive()
    }
}
