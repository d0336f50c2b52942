//! A paint callback of egui whose uniform comes from a pool: egui's own renderer, without a window.
//!
//! All callbacks of a frame share a scope. What must run ahead of egui's commands is the scope's prologue,
//! which the first `finish_prepare` returns.
//! `cargo run --manifest-path examples/egui/Cargo.toml`, on a machine with a Vulkan driver.

use bucketpool::wgpu::wgpu::{self, CommandBuffer, CommandEncoder, Device, Queue, RenderPass};
use bucketpool::wgpu::{Scope, Uploads, Usage, WgpuAllocator};
use bucketpool::{AllocError, BucketPool, DeviceError, KIB, MIB};
use egui_wgpu::{
    Callback, CallbackResources, CallbackTrait, Renderer, RendererOptions, ScreenDescriptor,
};
use epaint::{ClippedPrimitive, PaintCallbackInfo, Primitive, Rect, pos2};
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use wgpu::{BindGroup, BindGroupLayout, BufferUsages, RenderPipeline, TextureFormat};

const SIDE: u32 = 64;
const FORMAT: TextureFormat = TextureFormat::Rgba8Unorm;
const SHADER: &str = "
    @group(0) @binding(0) var<uniform> color: vec4<f32>;
    @vertex fn corner(@builtin(vertex_index) at: u32) -> @builtin(position) vec4<f32> {
        return vec4<f32>(f32(at & 1u) * 4.0 - 1.0, f32(at >> 1u) * 4.0 - 1.0, 0.0, 1.0);
    }
    @fragment fn paint() -> @location(0) vec4<f32> { return color; }";

/// What all callbacks use.
struct Painter {
    pool: BucketPool<WgpuAllocator>,
    uploads: Uploads,
    layout: BindGroupLayout,
    pipeline: RenderPipeline,
}

/// A rectangle of one color.
struct Filled {
    number: u32,
    color: [f32; 4],
    painter: Arc<Painter>,
}

/// The frame that egui prepares: one scope for all callbacks, and what they bind. Anew in each frame, so
/// that no callback paints with what another frame had.
struct Frame {
    scope: Option<Scope>,
    groups: HashMap<u32, BindGroup>,
}

impl Painter {
    fn new(allocator: &WgpuAllocator) -> Self {
        let device = allocator.device();
        let source = wgpu::ShaderSource::Wgsl(SHADER.into());
        let module =
            device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
            label: None,
            layout: None,
            vertex: wgpu::VertexState {
                module: &module,
                entry_point: Some("corner"),
                compilation_options: Default::default(),
                buffers: &[],
            },
            primitive: Default::default(),
            depth_stencil: None,
            multisample: Default::default(),
            fragment: Some(wgpu::FragmentState {
                module: &module,
                entry_point: Some("paint"),
                compilation_options: Default::default(),
                targets: &[Some(FORMAT.into())],
            }),
            multiview_mask: None,
            cache: None,
        });
        let (pool, uploads) = (BucketPool::new(allocator.clone()), allocator.uploads(KIB, MIB));
        Self { pool, uploads, layout: pipeline.get_bind_group_layout(0), pipeline }
    }

    /// A uniform of this frame, and the group that binds it.
    fn uniform(&self, scope: &mut Scope, color: [f32; 4]) -> Result<BindGroup, Failure> {
        let (on, kind) = (scope.stream(), Usage::new(BufferUsages::UNIFORM));
        let buffer = self.pool.allocate_kind(&on, 16, kind)?;
        let bytes: Vec<u8> = color.iter().flat_map(|part| part.to_ne_bytes()).collect();
        let view = buffer.on(&on)?;
        scope.upload(&self.uploads, &view, 0, &bytes)?;
        Ok(self.pool.allocator().bind_group(&self.layout, &[(0, &view)])?)
    }
}

impl CallbackTrait for Filled {
    fn prepare(
        &self,
        _device: &Device,
        _queue: &Queue,
        _screen: &ScreenDescriptor,
        _egui_encoder: &mut CommandEncoder,
        resources: &mut CallbackResources,
    ) -> Vec<CommandBuffer> {
        // The first callback of a frame begins it.
        if resources.get::<Frame>().is_none_or(|frame| frame.scope.is_none()) {
            let scope = Some(self.painter.pool.allocator().scope());
            resources.insert(Frame { scope, groups: HashMap::new() });
        }
        if let Some(frame) = resources.get_mut::<Frame>()
            && let Some(scope) = &mut frame.scope
        {
            match self.painter.uniform(scope, self.color) {
                Ok(group) => drop(frame.groups.insert(self.number, group)),
                Err(failure) => eprintln!("rectangle {}: {failure}", self.number),
            }
        }
        Vec::new()
    }

    /// The first callback ends the scope: what must run ahead of all of them.
    fn finish_prepare(
        &self,
        _device: &Device,
        _queue: &Queue,
        egui_encoder: &mut CommandEncoder,
        resources: &mut CallbackResources,
    ) -> Vec<CommandBuffer> {
        let frame = resources.get_mut::<Frame>();
        let prologue = frame.and_then(|frame| {
            let prologue = frame.scope.take()?.prologue(egui_encoder);
            prologue.unwrap_or_else(|failure| {
                eprintln!("nothing is painted: {failure}");
                frame.groups.clear();
                None
            })
        });
        prologue.into_iter().collect()
    }

    fn paint(
        &self,
        _info: PaintCallbackInfo,
        pass: &mut RenderPass<'static>,
        resources: &CallbackResources,
    ) {
        let group = resources.get::<Frame>().and_then(|frame| frame.groups.get(&self.number));
        if let Some(group) = group {
            pass.set_pipeline(&self.painter.pipeline);
            pass.set_bind_group(0, group, &[]);
            pass.draw(0..3, 0..1);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let allocator = WgpuAllocator::on_default_adapter()?;
    let (device, queue) = (allocator.device(), allocator.queue());
    let painter = Arc::new(Painter::new(&allocator));
    let mut renderer = Renderer::new(device, FORMAT, RendererOptions::default());
    let (targets, backs) = (allocator.textures(), allocator.read_backs(MIB));
    let size = wgpu::Extent3d { width: SIDE, height: SIDE, depth_or_array_layers: 1 };
    let screen = ScreenDescriptor { size_in_pixels: [SIDE; 2], pixels_per_point: 1.0 };
    for frame in 0..8_u8 {
        // The left half and the right half.
        let colors = [0.5, 1.0].map(|blue| [f32::from(frame) / 8.0, 0.5, blue, 1.0]);
        let half = SIDE as f32 / 2.0;
        let jobs = [0, 1].map(|number| {
            let left = number as f32 * half;
            let rect = Rect::from_min_max(pos2(left, 0.0), pos2(left + half, SIDE as f32));
            let color = colors[number as usize];
            let filled = Filled { number, color, painter: painter.clone() };
            let callback = Primitive::Callback(Callback::new_paint_callback(rect, filled));
            ClippedPrimitive { clip_rect: rect, primitive: callback }
        });
        // What a window's frame is: egui's buffers, its pass, and the submission of both.
        let mut encoder = device.create_command_encoder(&Default::default());
        let ahead = renderer.update_buffers(device, queue, &mut encoder, &jobs, &screen);
        let scope = allocator.scope();
        let target = scope.take_texture(
            &targets,
            &wgpu::TextureDescriptor {
                label: Some("window"),
                size,
                mip_level_count: 1,
                sample_count: 1,
                dimension: wgpu::TextureDimension::D2,
                format: FORMAT,
                usage: wgpu::TextureUsages::RENDER_ATTACHMENT | wgpu::TextureUsages::COPY_SRC,
                view_formats: &[],
            },
        )?;
        let pass = encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
            color_attachments: &[Some(wgpu::RenderPassColorAttachment {
                view: target.view(),
                resolve_target: None,
                ops: Default::default(),
                depth_slice: None,
            })],
            ..Default::default()
        });
        renderer.render(&mut pass.forget_lifetime(), &jobs, &screen);
        scope.submit_all(ahead, encoder)?;
        let mut scope = allocator.scope();
        let back = scope.read_back_texture(&backs, target.as_image_copy(), size)?;
        scope.submit()?;
        let expected = colors.map(|color| color.map(|part| (part * 255.0).round() as u8));
        let is_painted = back.wait(|texels| {
            let mut texels = texels.chunks(4).enumerate();
            texels.all(|(at, texel)| texel == expected[at % SIDE as usize * 2 / SIDE as usize])
        })?;
        assert!(is_painted, "frame {frame}: expected {expected:?} in the halves");
    }
    let stats = painter.pool.stats();
    println!("8 frames of egui, {} uniforms made, {} textures", stats.misses, targets.made());
    assert!(stats.misses < 16, "blocks serve again");
    assert_eq!(allocator.faults(), []);
    Ok(())
}

/// Why nothing is painted.
#[derive(Debug)]
struct Failure(String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self(error.to_string())
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        Self(error.to_string())
    }
}
