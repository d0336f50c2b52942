//! Resources that a bind group holds.

use pool_core::{DeviceError, Why};
use std::ops::Range;
use wgpu::{
    BindingResource, Buffer, BufferBinding, BufferSize, BufferUsages, COPY_BUFFER_ALIGNMENT,
    Features, Limits, Sampler, Texture, TextureView,
};

/// A resource that a bind group holds, and by which a cached group is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// A buffer, an offset and a number of bytes, and whether a pool has it.
    Buffer(Buffer, u64, BufferSize, Owner),
    /// A view of a texture.
    Texture(TextureView),
    /// A sampler.
    Sampler(Sampler),
    /// Resources of one kind, for a binding that is an array.
    Array(Vec<Self>),
}

/// Who keeps a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A pool, which drops the buffer's groups before the buffer.
    Pool,
    /// The program. A group keeps the buffer alive.
    Program,
}

/// What a group keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Resource {
    Buffer(Buffer),
    Texture(Texture),
}

/// The elements of a binding that is an array, as wgpu wants them.
pub(crate) enum Elements<'b> {
    Buffers(Vec<BufferBinding<'b>>),
    Textures(Vec<&'b TextureView>),
    Samplers(Vec<&'b Sampler>),
}

impl Elements<'_> {
    /// The feature of a device that has such arrays.
    pub(crate) fn feature(&self) -> Features {
        match self {
            Self::Buffers(_) => Features::BUFFER_BINDING_ARRAY,
            Self::Textures(_) | Self::Samplers(_) => Features::TEXTURE_BINDING_ARRAY,
        }
    }
}

impl Binding {
    /// A range of a buffer, in whole words, which every block holds; a part of it, if one is named. Where
    /// the limits are not known, wgpu compares.
    pub(crate) fn buffer(
        buffer: &Buffer,
        (offset, bytes): (u64, u64),
        part: Option<&Range<u64>>,
        limits: Option<&Limits>,
    ) -> Result<Self, DeviceError> {
        let part = part.map_or(0..bytes, Range::clone);
        if part.start > part.end || part.end > bytes {
            let call = "bind a part that is not in the buffer (its end)";
            let end = i64::try_from(part.end).unwrap_or(i64::MAX);
            return Err(DeviceError::new(Why::OutOfRange, call).code(end));
        }
        let (offset, bytes) = (offset + part.start, part.end - part.start);
        let words = bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT);
        let most = limits.map_or(u64::MAX, |limits| {
            // Which binding it is, the layout says.
            let (storage, uniform) =
                (limits.max_storage_buffer_binding_size, limits.max_uniform_buffer_binding_size);
            let usages = buffer.usage();
            match usages.contains(BufferUsages::STORAGE) {
                true if usages.contains(BufferUsages::UNIFORM) => storage.max(uniform),
                true => storage,
                false => uniform,
            }
        });
        if words > most {
            let call = "bind more bytes than the device's limit for one binding (its code)";
            let code = i64::try_from(most).unwrap_or(i64::MAX);
            return Err(DeviceError::new(Why::TooLarge, call).code(code));
        }
        let refused = DeviceError::new(Why::Unsupported, "bind a buffer of 0 bytes");
        let owner = if limits.is_some() { Owner::Pool } else { Owner::Program };
        Ok(Self::Buffer(buffer.clone(), offset, BufferSize::new(words).ok_or(refused)?, owner))
    }

    /// The buffers and textures among it, and how many bytes of them it keeps alive.
    pub(crate) fn resources(&self) -> impl Iterator<Item = (Resource, u64)> {
        self.parts().iter().filter_map(|part| match part {
            Self::Buffer(buffer, _, _, owner) => {
                let bytes = if *owner == Owner::Pool { 0 } else { buffer.size() };
                Some((Resource::Buffer(buffer.clone()), bytes))
            }
            Self::Texture(view) => {
                let texture = view.texture();
                Some((Resource::Texture(texture.clone()), bytes_of(texture)))
            }
            Self::Sampler(_) | Self::Array(_) => None,
        })
    }

    fn parts(&self) -> &[Self] {
        match self {
            Self::Array(elements) => elements,
            one => std::slice::from_ref(one),
        }
    }

    /// The elements of an array, `None` for another resource.
    ///
    /// # Errors
    ///
    /// Elements of several kinds, or none.
    pub(crate) fn elements(&self) -> Result<Option<Elements<'_>>, DeviceError> {
        let Self::Array(elements) = self else { return Ok(None) };
        let mixed =
            DeviceError::new(Why::Unsupported, "an array of no or several kinds of binding");
        let found = match elements.first() {
            Some(Self::Buffer(..)) => all(elements, Self::as_buffer).map(Elements::Buffers),
            Some(Self::Texture(_)) => all(elements, Self::as_view).map(Elements::Textures),
            Some(Self::Sampler(_)) => all(elements, Self::as_sampler).map(Elements::Samplers),
            Some(Self::Array(_)) | None => None,
        };
        found.map(Some).ok_or(mixed)
    }

    fn as_buffer(&self) -> Option<BufferBinding<'_>> {
        match self {
            Self::Buffer(buffer, offset, size, _) => {
                Some(BufferBinding { buffer, offset: *offset, size: Some(*size) })
            }
            _ => None,
        }
    }

    fn as_view(&self) -> Option<&TextureView> {
        if let Self::Texture(view) = self { Some(view) } else { None }
    }

    fn as_sampler(&self) -> Option<&Sampler> {
        if let Self::Sampler(sampler) = self { Some(sampler) } else { None }
    }

    /// The resource. `elements` are those of this binding.
    pub(crate) fn resource<'b>(
        &'b self,
        elements: Option<&'b Elements<'b>>,
    ) -> BindingResource<'b> {
        match (self, elements) {
            (Self::Buffer(buffer, offset, size, _), _) => BindingResource::Buffer(BufferBinding {
                buffer,
                offset: *offset,
                size: Some(*size),
            }),
            (Self::Texture(view), _) => BindingResource::TextureView(view),
            (Self::Sampler(sampler), _) => BindingResource::Sampler(sampler),
            (Self::Array(_), Some(Elements::Buffers(all))) => BindingResource::BufferArray(all),
            (Self::Array(_), Some(Elements::Textures(all))) => {
                BindingResource::TextureViewArray(all)
            }
            (Self::Array(_), Some(Elements::Samplers(all))) => BindingResource::SamplerArray(all),
            (Self::Array(_), None) => BindingResource::BufferArray(&[]),
        }
    }
}

/// How many bytes a texture has, but for what a driver adds.
pub(crate) fn bytes_of(texture: &Texture) -> u64 {
    let (size, format) = (texture.size(), texture.format());
    let level = |mip| size.mip_level_size(mip, texture.dimension());
    let levels = (0..texture.mip_level_count())
        .map(|mip| format.theoretical_memory_footprint(level(mip).physical_size(format)));
    levels.sum::<u64>().saturating_mul(u64::from(texture.sample_count()))
}

/// The elements, if all are of one kind.
fn all<'b, T>(elements: &'b [Binding], is: impl Fn(&'b Binding) -> Option<T>) -> Option<Vec<T>> {
    elements.iter().map(is).collect()
}
