//! How boids fly and are drawn: the part of the program that a pool does not change.

use crate::gpu::{compute, shader};
use bucketpool::wgpu::wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, Buffer, Color,
    ColorTargetState, CommandEncoder, ComputePassDescriptor, ComputePipeline, Device, Extent3d,
    FragmentState, LoadOp, MultisampleState, Operations, PipelineCompilationOptions,
    PrimitiveState, PrimitiveTopology, RenderPassColorAttachment, RenderPassDescriptor,
    RenderPipeline, RenderPipelineDescriptor, ShaderModule, StoreOp, TexelCopyBufferInfo,
    TexelCopyBufferLayout, Texture, TextureDescriptor, TextureDimension, TextureFormat,
    TextureUsages, TextureViewDescriptor, VertexAttribute, VertexBufferLayout, VertexFormat,
    VertexState, VertexStepMode,
};

pub(crate) const FRAMES: u32 = 30;
/// Boids, and bytes of all: a place and a speed each.
const BOIDS: u32 = 512;
pub(crate) const BYTES: u64 = BOIDS as u64 * 16;
/// Pixels of a side, and bytes of the picture.
const SIDE: u32 = 64;
pub(crate) const PICTURE: u64 = SIDE as u64 * SIDE as u64 * 4;

const SHADER: &str = "
struct Boid { place: vec2<f32>, speed: vec2<f32> }
@group(0) @binding(0) var<storage, read> now: array<Boid>;
@group(0) @binding(1) var<storage, read_write> next: array<Boid>;

@compute @workgroup_size(64)
fn fly(@builtin(global_invocation_id) id: vec3<u32>) {
    let many = arrayLength(&now);
    if id.x >= many { return; }
    let me = now[id.x];
    var middle = vec2<f32>(0.0);
    var away = vec2<f32>(0.0);
    var along = vec2<f32>(0.0);
    var near = 0.0;
    for (var i = 0u; i < many; i++) {
        if i == id.x { continue; }
        let other = now[i];
        let apart = other.place - me.place;
        let far = dot(apart, apart);
        if far < 0.01 { middle += other.place; along += other.speed; near += 1.0; }
        if far < 0.0006 { away -= apart; }
    }
    var speed = me.speed;
    if near > 0.0 {
        speed += (middle / near - me.place) * 0.02 + away * 0.05 + along / near * 0.005;
    }
    speed = normalize(speed + vec2<f32>(0.00001)) * clamp(length(speed), 0.01, 0.1);
    let place = fract(me.place + speed * 0.04 + vec2<f32>(1.0));
    next[id.x] = Boid(place, speed);
}

struct Corner { @builtin(position) at: vec4<f32>, @location(0) speed: vec2<f32> }

@vertex
fn corner(
    @builtin(vertex_index) corner: u32,
    @location(0) place: vec2<f32>,
    @location(1) speed: vec2<f32>,
) -> Corner {
    var corners = array(vec2(-0.04, -0.04), vec2(0.04, -0.04), vec2(0.0, 0.06));
    return Corner(vec4(place * 2.0 - 1.0 + corners[corner], 0.0, 1.0), speed);
}

@fragment
fn colour(corner: Corner) -> @location(0) vec4<f32> {
    return vec4(abs(corner.speed) * 10.0, 0.5, 1.0);
}";

pub(crate) struct Boids {
    fly: ComputePipeline,
    draw: RenderPipeline,
    picture: Texture,
}

impl Boids {
    pub(crate) fn new(device: &Device) -> Self {
        let module = shader(device, SHADER);
        let (fly, draw) = (compute(device, &module, "fly"), drawing(device, &module));
        let picture = device.create_texture(&TextureDescriptor {
            label: None,
            size: size(),
            mip_level_count: 1,
            sample_count: 1,
            dimension: TextureDimension::D2,
            format: TextureFormat::Rgba8Unorm,
            usage: TextureUsages::RENDER_ATTACHMENT | TextureUsages::COPY_SRC,
            view_formats: &[],
        });
        Self { fly, draw, picture }
    }

    /// Where the boids are in the beginning.
    pub(crate) fn begin() -> Vec<u8> {
        let number = |at: u32| f64::from(at.wrapping_mul(2_654_435_761)) / f64::from(u32::MAX);
        let boid = |at: u32| {
            let speed = |at| number(at) * 0.1 - 0.05;
            [number(4 * at), number(4 * at + 1), speed(4 * at + 2), speed(4 * at + 3)]
        };
        #[expect(clippy::cast_possible_truncation, reason = "numbers between -1 and 1")]
        let bytes = |number: f64| (number as f32).to_ne_bytes();
        (0..BOIDS).flat_map(boid).flat_map(bytes).collect()
    }

    /// Moves all boids by one frame.
    pub(crate) fn fly(
        &self,
        device: &Device,
        encoder: &mut CommandEncoder,
        from: &Buffer,
        to: &Buffer,
    ) {
        let group = bound(device, &self.fly.get_bind_group_layout(0), from, to);
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(&self.fly);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(BOIDS.div_ceil(64), 1, 1);
    }

    /// Draws all boids, and copies the picture into `to`.
    pub(crate) fn draw(&self, encoder: &mut CommandEncoder, boids: &Buffer, to: &Buffer) {
        let view = self.picture.create_view(&TextureViewDescriptor::default());
        let ops = Operations { load: LoadOp::Clear(Color::BLACK), store: StoreOp::Store };
        let target =
            RenderPassColorAttachment { view: &view, depth_slice: None, resolve_target: None, ops };
        let mut pass = encoder.begin_render_pass(&RenderPassDescriptor {
            color_attachments: &[Some(target)],
            ..RenderPassDescriptor::default()
        });
        pass.set_pipeline(&self.draw);
        pass.set_vertex_buffer(0, boids.slice(..BYTES));
        pass.draw(0..3, 0..BOIDS);
        drop(pass);
        let layout = TexelCopyBufferLayout {
            offset: 0,
            bytes_per_row: Some(SIDE * 4),
            rows_per_image: None,
        };
        let to = TexelCopyBufferInfo { buffer: to, layout };
        encoder.copy_texture_to_buffer(self.picture.as_image_copy(), to, size());
    }
}

fn size() -> Extent3d {
    Extent3d { width: SIDE, height: SIDE, depth_or_array_layers: 1 }
}

fn bound(device: &Device, layout: &BindGroupLayout, from: &Buffer, to: &Buffer) -> BindGroup {
    device.create_bind_group(&BindGroupDescriptor {
        label: None,
        layout,
        entries: &[
            BindGroupEntry { binding: 0, resource: from.as_entire_binding() },
            BindGroupEntry { binding: 1, resource: to.as_entire_binding() },
        ],
    })
}

fn drawing(device: &Device, module: &ShaderModule) -> RenderPipeline {
    let attribute = |location: u32| VertexAttribute {
        format: VertexFormat::Float32x2,
        offset: u64::from(location) * 8,
        shader_location: location,
    };
    device.create_render_pipeline(&RenderPipelineDescriptor {
        label: None,
        layout: None,
        vertex: VertexState {
            module,
            entry_point: Some("corner"),
            compilation_options: PipelineCompilationOptions::default(),
            buffers: &[Some(VertexBufferLayout {
                array_stride: 16,
                step_mode: VertexStepMode::Instance,
                attributes: &[attribute(0), attribute(1)],
            })],
        },
        primitive: PrimitiveState {
            topology: PrimitiveTopology::TriangleList,
            ..PrimitiveState::default()
        },
        depth_stencil: None,
        multisample: MultisampleState::default(),
        fragment: Some(FragmentState {
            module,
            entry_point: Some("colour"),
            compilation_options: PipelineCompilationOptions::default(),
            targets: &[Some(ColorTargetState::from(TextureFormat::Rgba8Unorm))],
        }),
        multiview_mask: None,
        cache: None,
    })
}
