//! A texture that a pool has, and its views: the same ones each time, by which bind groups are cached.

use crate::shared::Shared;
use parking_lot::Mutex;
use pool_core::{DeviceError, Why};
use wgpu::{
    ErrorFilter, Texture, TextureDescriptor, TextureFormat, TextureView, TextureViewDescriptor,
};

/// What textures are alike in that serve the same requests: all but the label.
pub(crate) type Kind = wgpu::wgt::TextureDescriptor<(), Vec<TextureFormat>>;

pub(crate) fn kind_of(descriptor: &TextureDescriptor<'_>) -> Kind {
    descriptor.map_label_and_view_formats(|_| (), |formats| formats.to_vec())
}

pub(crate) struct ViewedTexture {
    pub(crate) texture: Texture,
    pub(crate) kind: Kind,
    /// Of all of it.
    pub(crate) whole: TextureView,
    /// Those that were asked for.
    others: Mutex<Vec<(TextureViewDescriptor<'static>, TextureView)>>,
}

impl ViewedTexture {
    pub(crate) fn new(
        shared: &Shared,
        descriptor: &TextureDescriptor<'_>,
    ) -> Result<Self, DeviceError> {
        let ((texture, invalid), out) = shared.refused(ErrorFilter::OutOfMemory, || {
            shared.refused(ErrorFilter::Validation, || shared.device.create_texture(descriptor))
        });
        match (invalid, out) {
            (false, false) => {
                let whole = texture.create_view(&TextureViewDescriptor::default());
                Ok(Self { texture, kind: kind_of(descriptor), whole, others: Mutex::default() })
            }
            (_, true) => Err(DeviceError::new(Why::OutOfMemory, "create_texture")),
            (true, false) => Err(DeviceError::new(Why::Unsupported, "create_texture")),
        }
    }

    /// The view of this description, made when it is first asked for.
    pub(crate) fn view(
        &self,
        shared: &Shared,
        descriptor: &TextureViewDescriptor<'_>,
    ) -> Result<TextureView, DeviceError> {
        let kind = descriptor.map_label(|_| None);
        let found = |others: &[(TextureViewDescriptor<'_>, TextureView)]| {
            others.iter().find(|(other, _)| *other == kind).map(|(_, view)| view.clone())
        };
        if let Some(view) = found(&self.others.lock()) {
            return Ok(view);
        }
        // Without the lock. Another thread may have made one meanwhile.
        let (made, refused) =
            shared.refused(ErrorFilter::Validation, || self.texture.create_view(descriptor));
        if refused {
            let call = "create_view (`WgpuAllocator::on_refused` is told why)";
            return Err(DeviceError::new(Why::Unsupported, call));
        }
        let mut others = self.others.lock();
        if let Some(view) = found(&others) {
            return Ok(view);
        }
        others.push((kind, made.clone()));
        Ok(made)
    }
}
