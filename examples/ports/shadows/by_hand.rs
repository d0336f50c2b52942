//! The renderer with memory of its own, as bevy has it: a cache of textures by descriptor, uniform buffers that
//! grow, and buffers to read back through.

use super::pipelines::{Drawn, Pipelines};
use super::scene::{ENTITY, Frame, shadow_map, vertices};
use crate::gpu::Failure;
use bucketpool::wgpu::wgpu::util::{BufferInitDescriptor, DeviceExt};
use bucketpool::wgpu::wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindingResource, Buffer,
    BufferBinding, BufferDescriptor, BufferSize, BufferUsages, COPY_BYTES_PER_ROW_ALIGNMENT,
    CommandEncoderDescriptor, Device, Extent3d, MapMode, PollType, Queue, TexelCopyBufferInfo,
    TexelCopyBufferLayout, Texture, TextureDescriptor, TextureFormat, TextureUsages, TextureView,
    TextureViewDescriptor,
};
use std::collections::HashMap;

// lines: begin
/// Frames that a texture is kept for which none of them uses.
const KEPT: u32 = 3;

struct Cached {
    texture: Texture,
    view: TextureView,
    taken: bool,
    unused_for: u32,
}

#[derive(Default)]
struct TextureCache(HashMap<(Extent3d, TextureFormat, TextureUsages), Vec<Cached>>);

impl TextureCache {
    fn take(
        &mut self,
        device: &Device,
        descriptor: &TextureDescriptor<'_>,
    ) -> (Texture, TextureView) {
        let key = (descriptor.size, descriptor.format, descriptor.usage);
        let alike = self.0.entry(key).or_default();
        if let Some(found) = alike.iter_mut().find(|cached| !cached.taken) {
            (found.taken, found.unused_for) = (true, 0);
            return (found.texture.clone(), found.view.clone());
        }
        let texture = device.create_texture(descriptor);
        let view = texture.create_view(&TextureViewDescriptor::default());
        let taken = (texture.clone(), view.clone());
        alike.push(Cached { texture, view, taken: true, unused_for: 0 });
        taken
    }

    fn end_frame(&mut self) {
        for alike in self.0.values_mut() {
            alike.retain_mut(|cached| {
                (cached.taken, cached.unused_for) = (false, cached.unused_for + 1);
                cached.unused_for <= KEPT
            });
        }
        self.0.retain(|_, alike| !alike.is_empty());
    }
}

/// A uniform buffer that grows.
struct Uniforms(Buffer);

impl Uniforms {
    fn new(device: &Device, size: u64) -> Self {
        let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
        let (label, mapped_at_creation) = (Some("uniforms"), false);
        let descriptor = BufferDescriptor { label, size, usage, mapped_at_creation };
        Self(device.create_buffer(&descriptor))
    }

    fn write(&mut self, device: &Device, queue: &Queue, data: &[u8]) {
        let bytes = data.len() as u64;
        if bytes > self.0.size() {
            *self = Self::new(device, bytes.next_power_of_two());
        }
        queue.write_buffer(&self.0, 0, data);
    }
}

pub(crate) struct ByHand {
    device: Device,
    queue: Queue,
    pipelines: Pipelines,
    vertices: Buffer,
    globals: Uniforms,
    entities: Uniforms,
    textures: TextureCache,
    backs: HashMap<u64, Vec<Buffer>>,
}

impl ByHand {
    pub(crate) fn new(device: Device, queue: Queue) -> Self {
        let vertices = device.create_buffer_init(&BufferInitDescriptor {
            label: Some("vertices"),
            contents: &vertices(),
            usage: BufferUsages::VERTEX,
        });
        let (globals, entities) = (Uniforms::new(&device, 16), Uniforms::new(&device, 16));
        let (pipelines, textures) = (Pipelines::new(&device), TextureCache::default());
        let backs = HashMap::new();
        Self { device, queue, pipelines, vertices, globals, entities, textures, backs }
    }

    fn group(&self, layout: &BindGroupLayout, resources: Vec<BindingResource<'_>>) -> BindGroup {
        let entries = (0..).zip(resources);
        let entries = entries.map(|(binding, resource)| BindGroupEntry { binding, resource });
        let (label, entries) = (None, &entries.collect::<Vec<_>>()[..]);
        self.device.create_bind_group(&BindGroupDescriptor { label, layout, entries })
    }

    pub(crate) fn draw(&mut self, frame: &Frame) -> Result<Vec<u8>, Failure> {
        let (device, queue) = (&self.device, &self.queue);
        self.globals.write(device, queue, &frame.globals);
        self.entities.write(device, queue, &frame.entities);
        let (_, shadows) = self.textures.take(device, &shadow_map());
        let (_, depth) = self.textures.take(device, &frame.depth());
        let (picture, picture_view) = self.textures.take(device, &frame.picture());
        let pipelines = &self.pipelines;
        let globals = || self.globals.0.as_entire_binding();
        let (buffer, offset, size) = (&self.entities.0, 0, BufferSize::new(ENTITY));
        let entity = BindingResource::Buffer(BufferBinding { buffer, offset, size });
        let entities = &self.group(&pipelines.of_entity, vec![entity]);
        let of_shadows = self.group(&pipelines.of_shadows, vec![globals()]);
        let map = BindingResource::TextureView(&shadows);
        let sampler = BindingResource::Sampler(&pipelines.sampler);
        let of_forward = self.group(&pipelines.of_forward, vec![globals(), map, sampler]);
        let vertices = self.vertices.slice(..);
        let mut encoder = device.create_command_encoder(&CommandEncoderDescriptor::default());
        let drawn = Drawn { globals: &of_shadows, entities, vertices };
        pipelines.draw_shadows(&mut encoder, frame, drawn, &shadows);
        let drawn = Drawn { globals: &of_forward, ..drawn };
        pipelines.draw_forward(&mut encoder, frame, drawn, (&picture_view, &depth));

        let row = frame.size.width * 4;
        let padded = row.next_multiple_of(COPY_BYTES_PER_ROW_ALIGNMENT);
        let bytes = u64::from(padded * frame.size.height);
        let back = self.backs.get_mut(&bytes).and_then(Vec::pop);
        let back = back.unwrap_or_else(|| {
            device.create_buffer(&BufferDescriptor {
                label: Some("read"),
                size: bytes,
                usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        });
        let (bytes_per_row, rows_per_image) = (Some(padded), None);
        let layout = TexelCopyBufferLayout { offset: 0, bytes_per_row, rows_per_image };
        let to = TexelCopyBufferInfo { buffer: &back, layout };
        encoder.copy_texture_to_buffer(picture.as_image_copy(), to, frame.size);
        queue.submit([encoder.finish()]);
        self.textures.end_frame();
        back.map_async(MapMode::Read, .., |_| {});
        device.poll(PollType::wait_indefinitely())?;
        let mut shown = Vec::new();
        for padded in back.get_mapped_range(..)?.chunks(padded as usize) {
            shown.extend_from_slice(&padded[..row as usize]);
        }
        back.unmap();
        self.backs.entry(bytes).or_default().push(back);
        Ok(shown)
    }
}
// lines: end
