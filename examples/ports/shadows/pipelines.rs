//! The two passes of a frame, which no way to manage memory changes.

use super::scene::{DEPTH, ENTITY, Frame, PICTURE, VERTEX};
use bucketpool::wgpu::wgpu::{
    BindGroup, BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType,
    BufferBindingType, BufferSize, BufferSlice, Color, CommandEncoder, CompareFunction,
    DepthBiasState, DepthStencilState, Device, FilterMode, FragmentState, LoadOp, MultisampleState,
    Operations, PipelineCompilationOptions, PipelineLayoutDescriptor, PrimitiveState,
    RenderPassColorAttachment, RenderPassDepthStencilAttachment, RenderPassDescriptor,
    RenderPipeline, RenderPipelineDescriptor, Sampler, SamplerBindingType, SamplerDescriptor,
    ShaderModule, ShaderModuleDescriptor, ShaderSource, ShaderStages, StencilState, StoreOp,
    TextureSampleType, TextureView, TextureViewDimension, VertexBufferLayout, VertexState,
    VertexStepMode, vertex_attr_array,
};

const SOURCE: &str = "
struct Globals { light: mat4x4<f32>, camera: mat4x4<f32>, towards_light: vec4<f32> }
struct Entity { model: mat4x4<f32>, colour: vec4<f32> }
@group(0) @binding(0) var<uniform> globals: Globals;
@group(0) @binding(1) var shadows: texture_depth_2d;
@group(0) @binding(2) var is_nearer: sampler_comparison;
@group(1) @binding(0) var<uniform> entity: Entity;

@vertex
fn shadow(@location(0) position: vec3<f32>) -> @builtin(position) vec4<f32> {
    return globals.light * entity.model * vec4<f32>(position, 1.0);
}

struct Seen {
    @builtin(position) clip: vec4<f32>,
    @location(0) world: vec3<f32>,
    @location(1) normal: vec3<f32>,
}

@vertex
fn forward(@location(0) position: vec3<f32>, @location(1) normal: vec3<f32>) -> Seen {
    let world = entity.model * vec4<f32>(position, 1.0);
    let turned = normalize((entity.model * vec4<f32>(normal, 0.0)).xyz);
    return Seen(globals.camera * world, world.xyz, turned);
}

@fragment
fn lit(seen: Seen) -> @location(0) vec4<f32> {
    let place = globals.light * vec4<f32>(seen.world, 1.0);
    let texel = place.xy * vec2<f32>(0.5, -0.5) + 0.5;
    let light = textureSampleCompareLevel(shadows, is_nearer, texel, place.z - 0.01);
    let facing = max(dot(seen.normal, globals.towards_light.xyz), 0.0);
    return vec4<f32>(entity.colour.rgb * (0.2 + 0.8 * light * facing), 1.0);
}";

pub(crate) struct Pipelines {
    /// The globals, for the shadow pass.
    pub(crate) of_shadows: BindGroupLayout,
    /// The globals, the shadow map and its sampler, for the forward pass.
    pub(crate) of_forward: BindGroupLayout,
    /// An entity, at a dynamic offset.
    pub(crate) of_entity: BindGroupLayout,
    pub(crate) sampler: Sampler,
    shadow: RenderPipeline,
    forward: RenderPipeline,
}

/// What a pass draws with.
#[derive(Clone, Copy)]
pub(crate) struct Drawn<'d> {
    pub(crate) globals: &'d BindGroup,
    pub(crate) entities: &'d BindGroup,
    pub(crate) vertices: BufferSlice<'d>,
}

impl Pipelines {
    pub(crate) fn new(device: &Device) -> Self {
        let source = ShaderSource::Wgsl(SOURCE.into());
        let module = &device.create_shader_module(ShaderModuleDescriptor { label: None, source });
        let uniform = |has_dynamic_offset| BindingType::Buffer {
            ty: BufferBindingType::Uniform,
            has_dynamic_offset,
            min_binding_size: BufferSize::new(if has_dynamic_offset { ENTITY } else { 144 }),
        };
        let depth = BindingType::Texture {
            sample_type: TextureSampleType::Depth,
            view_dimension: TextureViewDimension::D2,
            multisampled: false,
        };
        let compares = BindingType::Sampler(SamplerBindingType::Comparison);
        let of_shadows = layout(device, &[uniform(false)]);
        let of_forward = layout(device, &[uniform(false), depth, compares]);
        let of_entity = layout(device, &[uniform(true)]);
        let sampler = device.create_sampler(&SamplerDescriptor {
            mag_filter: FilterMode::Linear,
            min_filter: FilterMode::Linear,
            compare: Some(CompareFunction::LessEqual),
            ..SamplerDescriptor::default()
        });
        let shadow = pipeline(device, module, "shadow", [&of_shadows, &of_entity]);
        let forward = pipeline(device, module, "forward", [&of_forward, &of_entity]);
        Self { of_shadows, of_forward, of_entity, sampler, shadow, forward }
    }

    pub(crate) fn draw_shadows(
        &self,
        encoder: &mut CommandEncoder,
        frame: &Frame,
        drawn: Drawn<'_>,
        shadows: &TextureView,
    ) {
        draw(encoder, &self.shadow, frame, drawn, (None, shadows));
    }

    pub(crate) fn draw_forward(
        &self,
        encoder: &mut CommandEncoder,
        frame: &Frame,
        drawn: Drawn<'_>,
        (picture, depth): (&TextureView, &TextureView),
    ) {
        draw(encoder, &self.forward, frame, drawn, (Some(picture), depth));
    }
}

/// A pass over all entities. It clears its targets.
fn draw(
    encoder: &mut CommandEncoder,
    pipeline: &RenderPipeline,
    frame: &Frame,
    drawn: Drawn<'_>,
    (picture, depth): (Option<&TextureView>, &TextureView),
) {
    let colour = picture.map(|view| RenderPassColorAttachment {
        view,
        depth_slice: None,
        resolve_target: None,
        ops: Operations { load: LoadOp::Clear(Color::BLACK), store: StoreOp::Store },
    });
    let colours = [colour];
    let mut pass = encoder.begin_render_pass(&RenderPassDescriptor {
        color_attachments: if picture.is_some() { &colours } else { &[] },
        depth_stencil_attachment: Some(RenderPassDepthStencilAttachment {
            view: depth,
            depth_ops: Some(Operations { load: LoadOp::Clear(1.0), store: StoreOp::Store }),
            stencil_ops: None,
        }),
        ..RenderPassDescriptor::default()
    });
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, drawn.globals, &[]);
    pass.set_vertex_buffer(0, drawn.vertices);
    let vertices = u32::try_from(drawn.vertices.size() / VERTEX).unwrap_or(0);
    for offset in frame.offsets() {
        pass.set_bind_group(1, drawn.entities, &[offset]);
        pass.draw(0..vertices, 0..1);
    }
}

fn layout(device: &Device, kinds: &[BindingType]) -> BindGroupLayout {
    let visibility = ShaderStages::VERTEX_FRAGMENT;
    let entry = |(binding, ty)| BindGroupLayoutEntry { binding, visibility, ty, count: None };
    let entries: Vec<_> = (0..).zip(kinds.iter().copied()).map(entry).collect();
    device.create_bind_group_layout(&BindGroupLayoutDescriptor { label: None, entries: &entries })
}

/// A pipeline with this entry point for vertices; the shadow pass has no fragments.
fn pipeline(
    device: &Device,
    module: &ShaderModule,
    entry: &'static str,
    layouts: [&BindGroupLayout; 2],
) -> RenderPipeline {
    let layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
        bind_group_layouts: &layouts.map(Some),
        ..PipelineLayoutDescriptor::default()
    });
    let compilation_options = PipelineCompilationOptions::default();
    let targets = [Some(PICTURE.into())];
    let fragment = (entry == "forward").then(|| FragmentState {
        module,
        entry_point: Some("lit"),
        compilation_options: compilation_options.clone(),
        targets: &targets,
    });
    device.create_render_pipeline(&RenderPipelineDescriptor {
        label: None,
        layout: Some(&layout),
        vertex: VertexState {
            module,
            entry_point: Some(entry),
            compilation_options: compilation_options.clone(),
            buffers: &[Some(VertexBufferLayout {
                array_stride: VERTEX,
                step_mode: VertexStepMode::Vertex,
                attributes: &vertex_attr_array![0 => Float32x3, 1 => Float32x3],
            })],
        },
        primitive: PrimitiveState::default(),
        depth_stencil: Some(DepthStencilState {
            format: DEPTH,
            depth_write_enabled: Some(true),
            depth_compare: Some(CompareFunction::Less),
            stencil: StencilState::default(),
            bias: DepthBiasState::default(),
        }),
        multisample: MultisampleState::default(),
        fragment,
        multiview_mask: None,
        cache: None,
    })
}
