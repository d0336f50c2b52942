//! Blocks of a pool, their uses, and views of them.

use crate::binding::Binding;
use crate::clock::{Scopes, WgpuStream};
use pool_core::buffer::Use;
use pool_core::{DeviceAllocator, DeviceError, StreamClock, Why};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use wgpu::{
    BindingResource, Buffer, BufferBinding, BufferSize, BufferSlice, BufferUsages,
    COPY_BUFFER_ALIGNMENT, Sampler, TextureView, WriteOnly,
};

/// Uses of a buffer, and its name if it has one; a block serves again for the same uses and the same name only.
///
/// Storage, and copying in both directions, by default. `COPY_DST` is always among them, since that
/// is what zeroing needs. Buffers that can be mapped are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage {
    flags: BufferUsages,
    label: Option<&'static str>,
}

/// A wgpu buffer, whole.
#[derive(Debug)]
pub struct WgpuBlock {
    pub(crate) buffer: Buffer,
    /// Its number, by which debug builds find clones.
    pub(crate) label: String,
    /// How many submissions wgpu had refused when it was seen whole.
    pub(crate) checked: AtomicU64,
}

/// A range of a buffer in use on one stream.
#[derive(Debug)]
pub struct WgpuView<'b> {
    pub(crate) buffer: &'b Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) on: WgpuStream,
    pub(crate) clock: &'b Scopes,
}

/// A buffer that no pool has, as the source or target of a scope's copies and in bind groups: its order
/// is the program's business.
#[derive(Clone, Copy, Debug)]
pub struct Unpooled<'b>(pub &'b Buffer);

/// A resource of a bind group that commands only read, as [`Scope::lend_to_read`](crate::Scope::lend_to_read) lends
/// it: any number of open scopes may bind the buffer so. The layout must not let a shader write it.
///
/// ```
/// # use pool_core::{BucketPool, KIB, Why};
/// # use pool_wgpu::{ToRead, WgpuAllocator, wgpu};
/// # #[cfg(feature = "noop")] {
/// # let (device, queue) = wgpu::Device::noop(&Default::default());
/// # let ty = wgpu::BufferBindingType::Storage { read_only: true };
/// # let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
/// #     label: None,
/// #     entries: &[wgpu::BindGroupLayoutEntry {
/// #         binding: 0,
/// #         visibility: wgpu::ShaderStages::COMPUTE,
/// #         ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
/// #         count: None,
/// #     }],
/// # });
/// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
/// let lights = pool.allocate(KIB)?; // which both views read
/// let (left, right) = (pool.allocator().scope(), pool.allocator().scope());
/// let group = left.bind_group(&layout, &[(0, &ToRead(&lights))])?;
/// assert_eq!(right.bind_group(&layout, &[(0, &ToRead(&lights))])?, group);
/// assert_eq!(right.bind_group(&layout, &[(0, &lights)]).unwrap_err().why, Why::NotSubmitted);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct ToRead<'b>(pub &'b dyn Bindable);

/// A resource of a cached bind group ([`Scope::bind_group`](crate::Scope::bind_group)): a pooled buffer, a
/// pooled texture, a piece of a slab, placed data, an [`Unpooled`] buffer, a texture view, a sampler, a part of a
/// buffer, or an array of these ([`BindingArray`]).
/// [`WgpuAllocator::bind_group`](crate::WgpuAllocator::bind_group) takes views of pooled buffers instead of the
/// buffers.
pub trait Bindable: sealed::Bound {
    /// A part of a buffer: so many bytes from its beginning. With the size of one element it is the
    /// binding for dynamic offsets.
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{Bindable, WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
    /// #     label: None,
    /// #     entries: &[wgpu::BindGroupLayoutEntry {
    /// #         binding: 0,
    /// #         visibility: wgpu::ShaderStages::COMPUTE,
    /// #         ty: wgpu::BindingType::Buffer {
    /// #             ty: wgpu::BufferBindingType::Storage { read_only: false },
    /// #             has_dynamic_offset: true,
    /// #             min_binding_size: None,
    /// #         },
    /// #         count: None,
    /// #     }],
    /// # });
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let scope = pool.allocator().scope();
    /// let on = scope.stream();
    /// let objects = scope.take(&pool, 16 * KIB)?;
    /// let objects = objects.on(&on)?;
    /// let group = pool.allocator().bind_group(&layout, &[(0, &objects.part(0..256))])?;
    /// let beyond = pool.allocator().bind_group(&layout, &[(0, &objects.part(0..32 * KIB))]);
    /// assert_eq!(beyond.unwrap_err().why, Why::OutOfRange);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn part(&self, bytes: Range<u64>) -> BindingPart<'_>
    where
        Self: Sized,
    {
        BindingPart { of: self, bytes }
    }
}

/// A part of a buffer in a bind group ([`Bindable::part`]).
#[derive(Clone)]
pub struct BindingPart<'b> {
    of: &'b dyn Bindable,
    bytes: Range<u64>,
}

/// Resources of one kind for a binding that is an array, on a device with the feature for it
/// (`BUFFER_BINDING_ARRAY`, `TEXTURE_BINDING_ARRAY`).
#[derive(Clone, Copy)]
pub struct BindingArray<'b>(pub &'b [&'b dyn Bindable]);

/// Bytes of a buffer that a scope copies to or from: a pooled buffer or a piece of a slab, a view of one,
/// which must be of that scope's stream, or an [`Unpooled`] buffer.
pub trait BufferPart: sealed::Part {}

/// Traits that only this crate implements: another's view could show any memory.
pub(crate) mod sealed {
    use super::{Access, Binding, DeviceError, Group, Place, Range, WgpuStream};

    pub trait Bound {
        /// Returns the resource, or a part of it, for a group.
        ///
        /// # Errors
        ///
        /// Why it cannot be bound.
        fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError>;
    }

    pub trait Part {
        /// Returns where the bytes are, for commands of a scope's stream.
        ///
        /// # Errors
        ///
        /// Why the scope may not use them.
        fn place<'b>(
            &'b self,
            on: &'b WgpuStream,
            access: Access,
        ) -> Result<Place<'b>, DeviceError>;
    }
}

/// Whose a bind group is.
#[derive(Clone, Copy, Debug)]
pub struct Group<'g> {
    pub(crate) device: &'g Scopes,
    /// The scope whose commands use it; `None` where each resource is of a scope by itself.
    pub(crate) on: Option<&'g WgpuStream>,
    /// What commands do with a pooled buffer.
    pub(crate) access: Access,
}

/// What commands do with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// A range of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Place<'b> {
    pub(crate) buffer: &'b Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl sealed::Bound for WgpuView<'_> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        of.takes(self.clock, &self.on)?;
        self.lend()?;
        let limits = &of.device.shared().limits;
        Binding::buffer(self.buffer, (self.offset, self.bytes), part, Some(limits))
    }
}

impl sealed::Part for WgpuView<'_> {
    fn place<'s>(&'s self, on: &'s WgpuStream, _: Access) -> Result<Place<'s>, DeviceError> {
        if self.on != *on {
            let call = "a view of another stream: use the buffer on this scope";
            return Err(DeviceError::new(Why::Foreign, call));
        }
        Ok(self.whole())
    }
}

impl sealed::Part for Unpooled<'_> {
    fn place<'s>(&'s self, _: &'s WgpuStream, _: Access) -> Result<Place<'s>, DeviceError> {
        Ok(Place { buffer: self.0, offset: 0, bytes: self.0.size() })
    }
}

impl sealed::Bound for Unpooled<'_> {
    fn bound(&self, _: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        Binding::buffer(self.0, (0, self.0.size()), part, None)
    }
}

impl sealed::Bound for TextureView {
    fn bound(&self, _: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        whole(part).map(|()| Binding::Texture(self.clone()))
    }
}

impl sealed::Bound for Sampler {
    fn bound(&self, _: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        whole(part).map(|()| Binding::Sampler(self.clone()))
    }
}

impl sealed::Bound for BindingPart<'_> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        whole(part)?;
        self.of.bound(of, Some(&self.bytes))
    }
}

impl sealed::Bound for ToRead<'_> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        self.0.bound(Group { access: Access::Read, ..of }, part)
    }
}

impl sealed::Bound for BindingArray<'_> {
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        whole(part)?;
        let elements = self.0.iter().map(|element| element.bound(of, None));
        Ok(Binding::Array(elements.collect::<Result<_, _>>()?))
    }
}

impl Group<'_> {
    /// Refuses what is of another device: wgpu would bind what has the same number on this one, where their
    /// instances are two.
    pub(crate) fn is_of(&self, clock: &Scopes) -> Result<(), DeviceError> {
        match clock.shared().id == self.device.shared().id {
            true => Ok(()),
            false => Err(DeviceError::new(Why::Foreign, "bind a view of another device")),
        }
    }

    /// Refuses a view of another device or of another scope.
    pub(crate) fn takes(&self, clock: &Scopes, stream: &WgpuStream) -> Result<(), DeviceError> {
        self.is_of(clock)?;
        match self.on.is_none_or(|on| on == stream) {
            true => Ok(()),
            false => Err(DeviceError::new(Why::Foreign, "bind a view of another scope")),
        }
    }
}

/// What has no parts.
fn whole(part: Option<&Range<u64>>) -> Result<(), DeviceError> {
    let refused = DeviceError::new(Why::Unsupported, "bind a part of what is no buffer");
    part.map_or(Ok(()), |_| Err(refused))
}

impl<'b, A: DeviceAllocator> sealed::Bound for Use<'b, A>
where
    A::View<'b>: sealed::Bound,
{
    fn bound(&self, of: Group<'_>, part: Option<&Range<u64>>) -> Result<Binding, DeviceError> {
        (**self).bound(of, part)
    }
}

impl<'b, A: DeviceAllocator> sealed::Part for Use<'b, A>
where
    A::View<'b>: sealed::Part,
{
    fn place<'s>(&'s self, on: &'s WgpuStream, access: Access) -> Result<Place<'s>, DeviceError> {
        (**self).place(on, access)
    }
}

impl Bindable for WgpuView<'_> {}
impl Bindable for TextureView {}
impl Bindable for Sampler {}
impl Bindable for Unpooled<'_> {}
impl Bindable for BindingPart<'_> {}
impl Bindable for ToRead<'_> {}
impl Bindable for BindingArray<'_> {}
impl<'b, A: DeviceAllocator> Bindable for Use<'b, A> where A::View<'b>: Bindable {}
impl BufferPart for WgpuView<'_> {}
impl BufferPart for Unpooled<'_> {}
impl<'b, A: DeviceAllocator> BufferPart for Use<'b, A> where A::View<'b>: BufferPart {}

impl Usage {
    /// These uses, and `COPY_DST`.
    #[must_use]
    pub fn new(usages: BufferUsages) -> Self {
        Self { flags: usages | BufferUsages::COPY_DST, label: None }
    }

    /// Names the buffer in wgpu's errors and in captures: `name`, a number and the bytes.
    ///
    /// wgpu names a buffer once, when it is made. So buffers of one name serve only requests of that name, and a
    /// pool holds as many as each name needs. A program that wants names while it is debugged leaves them out
    /// otherwise. [`WgpuAllocator::labelled`](crate::WgpuAllocator::labelled) names all others.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB};
    /// # use pool_wgpu::{Usage, WgpuAllocator, wgpu};
    /// # use std::sync::{Arc, Mutex};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue));
    /// let said = Arc::new(Mutex::new(String::new()));
    /// let says = said.clone();
    /// pool.allocator().on_refused(move |text| says.lock().unwrap().push_str(text));
    ///
    /// let scope = pool.allocator().scope();
    /// let bins = Usage::new(wgpu::BufferUsages::STORAGE).labelled("bins");
    /// let bins = scope.take_kind(&pool, KIB, bins)?;
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// let target = scope.lend(&scope.take(&pool, KIB)?)?;
    /// encoder.copy_buffer_to_buffer(&scope.lend(&bins)?, 0, &target, 0, KIB); // without COPY_SRC
    /// assert!(scope.submit_with(encoder).is_err());
    /// assert!(said.lock().unwrap().contains("Buffer with 'bins "));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn labelled(self, name: &'static str) -> Self {
        Self { label: Some(name), ..self }
    }

    /// These uses more.
    pub(crate) fn and(self, usages: BufferUsages) -> Self {
        Self { flags: self.flags | usages, ..self }
    }

    /// The flags.
    #[must_use]
    pub fn flags(self) -> BufferUsages {
        self.flags
    }

    /// The name.
    #[must_use]
    pub fn label(self) -> Option<&'static str> {
        self.label
    }
}

impl From<BufferUsages> for Usage {
    fn from(usages: BufferUsages) -> Self {
        Self::new(usages)
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
    /// Lends the buffer, for commands of the view's scope or of the encoder that its prologue is
    /// for ([`Scope::prologue`](crate::Scope::prologue)). A clone of it that is kept past the
    /// pooled buffer sees the next owner's data.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] for a view on the queue's own stream: the pool could not know when an
    /// encoder that uses the buffer is submitted, and would hand it on before. Use the buffer on a
    /// scope instead (`buffer.on(&scope.stream())`); [`WgpuView::write`] needs no scope.
    /// [`Why::Foreign`] once the scope was submitted or dropped, or its prologue was made.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let mut scope = pool.allocator().scope();
    /// let on = scope.stream();
    /// let buffer = pool.allocate_on(&on, KIB)?;
    /// let view = buffer.on(&on)?;
    /// scope.encoder().clear_buffer(view.buffer()?, view.offset(), Some(view.size()));
    /// scope.submit()?;
    ///
    /// let queue = *pool.default_stream();
    /// let refused = buffer.on(&queue)?.buffer().unwrap_err();
    /// assert_eq!(refused.why, Why::Unsupported);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffer(&self) -> Result<&'b Buffer, DeviceError> {
        self.lend()?;
        Ok(self.buffer)
    }

    /// The bytes of the view, for `RenderPass::set_vertex_buffer` and `set_index_buffer`.
    ///
    /// # Errors
    ///
    /// As for [`WgpuView::buffer`], which has an example.
    pub fn slice(&self) -> Result<BufferSlice<'b>, DeviceError> {
        Ok(self.buffer()?.slice(self.offset..self.offset + self.bytes))
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

    /// The binding of these bytes, for a bind group.
    ///
    /// # Errors
    ///
    /// As for [`WgpuView::buffer`]; [`Why::Unsupported`] for a view of no bytes, which wgpu cannot
    /// bind, and [`Why::TooLarge`] for one beyond the device's limit for one binding.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let mut scope = pool.allocator().scope();
    /// let _ = scope.encoder(); // whose commands use it
    /// let on = scope.stream();
    /// let buffer = pool.allocate_on(&on, KIB)?;
    /// let view = buffer.on(&on)?;
    /// let entry = wgpu::BindGroupEntry { binding: 0, resource: view.binding()? };
    /// scope.submit()?;
    /// assert_eq!(view.binding().unwrap_err().why, Why::Foreign); // the scope has ended
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn binding(&self) -> Result<BindingResource<'b>, DeviceError> {
        self.lend()?;
        let (buffer, offset) = (self.buffer, self.offset);
        let limits = &self.clock.shared().limits;
        match Binding::buffer(buffer, (offset, self.bytes), None, Some(limits))? {
            Binding::Buffer(_, offset, size, _) => {
                Ok(BindingResource::Buffer(BufferBinding { buffer, offset, size: Some(size) }))
            }
            _ => Ok(BindingResource::Buffer(BufferBinding { buffer, offset, size: None })),
        }
    }

    /// Writes `data` at `offset` of the view by the queue (`Queue::write_buffer`): ahead of what is
    /// submitted next.
    ///
    /// # Errors
    ///
    /// [`Why::Unsupported`] for a view of a scope, whose own commands may come before
    /// ([`Scope::upload`](crate::Scope::upload) writes in their order), [`Why::Unaligned`] where
    /// offset or length is no multiple of 4 bytes, unless the data ends with the view: zeroes fill the
    /// last word then; [`Why::OutOfRange`] where the view is too short, and [`Why::Lost`] if the device
    /// is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let queue = *pool.default_stream();
    /// let buffer = pool.allocate(KIB)?;
    /// let view = buffer.on(&queue)?;
    /// view.write(0, &[7; 16])?;
    /// assert_eq!(view.write(0, &[7; 3]).unwrap_err().why, Why::Unaligned);
    /// assert_eq!(view.write(KIB, &[7; 4]).unwrap_err().why, Why::OutOfRange);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let words = self.whole().in_words(offset, data.len() as u64)?;
        self.write_with(offset, words, |memory| fill(memory, data))
    }

    /// Writes by the queue as [`WgpuView::write`] does what `write` puts into staging memory itself,
    /// without a copy before. `write` must fill all of it.
    ///
    /// # Errors
    ///
    /// As for [`WgpuView::write`]; [`Why::Other`] where wgpu has no staging memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use pool_core::{BucketPool, KIB, Why};
    /// # use pool_wgpu::{WgpuAllocator, wgpu};
    /// # #[cfg(feature = "noop")] {
    /// # let (device, queue) = wgpu::Device::noop(&Default::default());
    /// # let pool = BucketPool::new(WgpuAllocator::new(device, queue));
    /// let buffer = pool.allocate(KIB)?;
    /// let view = buffer.on(pool.default_stream())?;
    /// view.write_with(0, KIB, |mut memory| memory.fill(7))?;
    /// let refused = view.write_with(KIB, 64, |mut memory| memory.fill(7)).unwrap_err();
    /// assert_eq!(refused.why, Why::OutOfRange); // nothing was written
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_with<R>(
        &self,
        offset: u64,
        bytes: u64,
        write: impl FnOnce(WriteOnly<'_, [u8]>) -> R,
    ) -> Result<R, DeviceError> {
        let at = self.may_write(offset, bytes)?;
        let Some(size) = BufferSize::new(bytes) else {
            return Ok(write(WriteOnly::from_mut(&mut [])));
        };
        let queue = &self.clock.shared().queue;
        let none = DeviceError::new(Why::Other, "Queue::write_buffer_with");
        match queue.write_buffer_with(self.buffer, at, size) {
            Some(mut memory) => Ok(write(memory.slice(..))),
            None => Err(self.clock.shared().lost_or(none)),
        }
    }

    /// Where the queue may write so many bytes.
    fn may_write(&self, offset: u64, bytes: u64) -> Result<u64, DeviceError> {
        self.clock.shared().living()?;
        if !self.on.is_queue() {
            let call = "write by the queue in a scope: upload in it";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        let place = self.whole();
        Ok(place.range(BufferUsages::COPY_DST, offset, bytes, "write")?.0)
    }

    /// All of its bytes.
    pub(crate) fn whole(&self) -> Place<'b> {
        Place { buffer: self.buffer, offset: self.offset, bytes: self.bytes }
    }

    /// Notes that the program has the buffer, if it may use it in an encoder.
    fn lend(&self) -> Result<(), DeviceError> {
        if self.on.is_queue() {
            let call = "a buffer of the queue's stream in an encoder: use it on a scope";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        if !self.clock.owns(&self.on) {
            let call = "a use that outlives its scope's submit: use the buffer on another scope";
            return Err(DeviceError::new(Why::Foreign, call));
        }
        let bytes = self.offset..self.offset + self.bytes;
        self.clock.open_scopes().lend(self.on.scope(), self.buffer, &bytes);
        Ok(())
    }
}

impl Place<'_> {
    /// Its bytes, counted from the beginning of the buffer.
    pub(crate) fn bytes_of_buffer(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }

    /// The length of a copy of so many bytes: whole words. The last one may be filled up where the bytes
    /// end with the view, whose rounding tail it is.
    pub(crate) fn in_words(&self, offset: u64, bytes: u64) -> Result<u64, DeviceError> {
        let end = offset.saturating_add(bytes);
        if bytes.is_multiple_of(COPY_BUFFER_ALIGNMENT) || end == self.bytes {
            return Ok(bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT));
        }
        let call = "write a part of a word, other than at the end of a buffer";
        Err(DeviceError::new(Why::Unaligned, call).code(value_of(end)))
    }

    /// Where a copy of these bytes begins and ends in the buffer. wgpu would refuse the whole
    /// submission for one that does not fit.
    pub(crate) fn range(
        &self,
        usage: BufferUsages,
        offset: u64,
        bytes: u64,
        call: &'static str,
    ) -> Result<(u64, u64), DeviceError> {
        let words = COPY_BUFFER_ALIGNMENT;
        if !self.buffer.usage().contains(usage) {
            return Err(DeviceError::new(Why::Unsupported, "copy without COPY_SRC or COPY_DST"));
        }
        for count in [offset, bytes] {
            if !count.is_multiple_of(words) {
                return Err(DeviceError::new(Why::Unaligned, call).code(value_of(count)));
            }
        }
        let at = self.offset.checked_add(offset);
        let end = at.and_then(|at| at.checked_add(bytes));
        // The rounding tail belongs to the view.
        let most = (self.offset + self.bytes).next_multiple_of(words).min(self.buffer.size());
        match (at, end) {
            (Some(at), Some(end)) if end <= most => Ok((at, end)),
            _ => {
                let end = value_of(offset.saturating_add(bytes));
                Err(DeviceError::new(Why::OutOfRange, call).code(end))
            }
        }
    }
}

/// Fills staging memory with data, and the rest of the last word with zeroes.
pub(crate) fn fill(memory: WriteOnly<'_, [u8]>, data: &[u8]) {
    let (mut whole, mut rest) = memory.split_at(data.len());
    whole.copy_from_slice(data);
    rest.fill(0);
}

/// A number of bytes as an error has it.
pub(crate) fn value_of(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl fmt::Debug for BindingPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BindingPart").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for ToRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToRead").finish_non_exhaustive()
    }
}

impl fmt::Debug for BindingArray<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BindingArray").field("len", &self.0.len()).finish()
    }
}
