//! Resources that a bind group holds.

use pool_core::{DeviceError, Why};
use wgpu::{
    BindingResource, Buffer, BufferBinding, BufferSize, BufferUsages, COPY_BUFFER_ALIGNMENT,
    Limits, Sampler, TextureView,
};

/// A resource that a bind group holds, and by which a cached group is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// A buffer, an offset and a number of bytes.
    Buffer(Buffer, u64, BufferSize),
    /// A view of a texture.
    Texture(TextureView),
    /// A sampler.
    Sampler(Sampler),
}

impl Binding {
    /// A range of a buffer, in whole words, which every block holds.
    pub(crate) fn buffer(
        buffer: &Buffer,
        offset: u64,
        bytes: u64,
        limits: &Limits,
    ) -> Result<Self, DeviceError> {
        let refused = |call| DeviceError::new(Why::Unsupported, call);
        let most = match buffer.usage().contains(BufferUsages::STORAGE) {
            true => limits.max_storage_buffer_binding_size,
            false => limits.max_uniform_buffer_binding_size,
        };
        let words = bytes.next_multiple_of(COPY_BUFFER_ALIGNMENT);
        if words > most {
            let call = "bind more bytes than the device's limit for one binding (its code)";
            let code = i64::try_from(most).unwrap_or(i64::MAX);
            return Err(DeviceError::new(Why::TooLarge, call).code(code));
        }
        let size = BufferSize::new(words).ok_or(refused("bind a buffer of 0 bytes"))?;
        Ok(Self::Buffer(buffer.clone(), offset, size))
    }

    pub(crate) fn resource(&self) -> BindingResource<'_> {
        match self {
            Self::Buffer(buffer, offset, size) => BindingResource::Buffer(BufferBinding {
                buffer,
                offset: *offset,
                size: Some(*size),
            }),
            Self::Texture(view) => BindingResource::TextureView(view),
            Self::Sampler(sampler) => BindingResource::Sampler(sampler),
        }
    }
}
