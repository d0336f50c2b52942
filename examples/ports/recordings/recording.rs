//! What both engines run: recordings, the shaders that they name, and the recordings of a frame.

use bucketpool::wgpu::wgpu::{
    BindGroup, BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType,
    Buffer, BufferBindingType, BufferUsages, CommandEncoder, ComputePassDescriptor,
    ComputePipeline, ComputePipelineDescriptor, Device, PipelineCompilationOptions,
    PipelineLayoutDescriptor, ShaderModuleDescriptor, ShaderSource, ShaderStages,
};
use std::error::Error;

pub(crate) type Failure = Box<dyn Error>;

/// Uses of all buffers that shaders compute in: the engine does not know what for.
pub(crate) const STORAGE: BufferUsages = BufferUsages::COPY_SRC
    .union(BufferUsages::COPY_DST)
    .union(BufferUsages::STORAGE)
    .union(BufferUsages::INDIRECT);

/// A buffer of a recording, before it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proxy {
    pub(crate) id: u32,
    pub(crate) size: u64,
    pub(crate) name: &'static str,
}

/// How many workgroups a dispatch has.
pub(crate) enum Groups<B> {
    Count(u32),
    /// As this buffer says.
    Indirect(B),
}

pub(crate) enum Call {
    UploadUniform(Proxy, Vec<u8>),
    Upload(Proxy, Vec<u8>),
    /// The shader of this number, with these bindings.
    Dispatch(usize, Groups<Proxy>, Vec<Proxy>),
    Clear(Proxy),
    Download(Proxy),
    Free(Proxy),
}

/// A pipeline of each shader; all have one layout.
pub(crate) struct Shaders {
    pub(crate) layout: BindGroupLayout,
    pipelines: [ComputePipeline; 2],
}

/// Fills its last binding from the one before.
const SCALE: usize = 0;
/// Writes the arguments of a dispatch.
const COUNT: usize = 1;

const SOURCE: &str = "
@group(0) @binding(0) var<uniform> config: vec4<u32>;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < config.x { out[id.x] = out[id.x] * config.z + source[id.x] * config.y + id.x; }
}
@compute @workgroup_size(1)
fn count() {
    out[0] = (config.x + 63u) / 64u + source[0] * 0u;
    out[1] = 1u;
    out[2] = 1u;
}";

impl Shaders {
    pub(crate) fn new(device: &Device) -> Self {
        let source = ShaderSource::Wgsl(SOURCE.into());
        let module = &device.create_shader_module(ShaderModuleDescriptor { label: None, source });
        let storage = |read_only| BufferBindingType::Storage { read_only };
        let kinds = [BufferBindingType::Uniform, storage(true), storage(false)];
        let entries: Vec<_> = (0..).zip(kinds).map(|(binding, ty)| entry(binding, ty)).collect();
        let layout = device.create_bind_group_layout(&BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        });
        let whole = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            bind_group_layouts: &[Some(&layout)],
            ..PipelineLayoutDescriptor::default()
        });
        let pipelines = ["scale", "count"].map(|entry| {
            device.create_compute_pipeline(&ComputePipelineDescriptor {
                label: None,
                layout: Some(&whole),
                module,
                entry_point: Some(entry),
                compilation_options: PipelineCompilationOptions::default(),
                cache: None,
            })
        });
        Self { layout, pipelines }
    }

    /// Adds a dispatch.
    pub(crate) fn dispatch(
        &self,
        encoder: &mut CommandEncoder,
        shader: usize,
        group: &BindGroup,
        groups: &Groups<Buffer>,
    ) {
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipelines[shader]);
        pass.set_bind_group(0, group, &[]);
        match groups {
            Groups::Count(count) => pass.dispatch_workgroups(*count, 1, 1),
            Groups::Indirect(arguments) => pass.dispatch_workgroups_indirect(arguments, 0),
        }
    }
}

fn entry(binding: u32, ty: BufferBindingType) -> BindGroupLayoutEntry {
    let ty = BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None };
    BindGroupLayoutEntry { binding, visibility: ShaderStages::COMPUTE, ty, count: None }
}

/// The recordings of a frame.
pub(crate) struct TwoRecordings {
    /// Buffers of the first live until the end of the second.
    pub(crate) recordings: [Vec<Call>; 2],
    /// The buffer that the second one downloads, and what it has then.
    pub(crate) out: Proxy,
    pub(crate) expected: Vec<u8>,
}

/// A frame: a scene of another size each time, which three dispatches turn into a picture.
pub(crate) fn frame(number: u32) -> TwoRecordings {
    let words = 500 + number.wrapping_mul(7919) % 3000;
    let (size, groups) = (u64::from(words) * 4, words.div_ceil(64));
    let proxy = |id, size, name| Proxy { id, size, name };
    let (config, scene, path) =
        (proxy(0, 16, "config"), proxy(1, size, "scene"), proxy(2, size, "path"));
    let (tiles, count, out) =
        (proxy(3, size, "tiles"), proxy(4, 12, "count"), proxy(5, size, "out"));
    let factor = number | 1;
    let data: Vec<u32> = (0..words).map(|at| at ^ number).collect();
    let scaled = |at: u32, from: u32| from.wrapping_mul(factor).wrapping_add(at);
    let expected = (0..words).zip(&data);
    let expected = expected.map(|(at, from)| scaled(at, scaled(at, scaled(at, *from))));
    let coarse = vec![
        Call::UploadUniform(config, bytes([words, factor, 0, 0])),
        Call::Upload(scene, bytes(data.iter().copied())),
        Call::Dispatch(SCALE, Groups::Count(groups), vec![config, scene, path]),
        Call::Dispatch(SCALE, Groups::Count(groups), vec![config, path, tiles]),
        Call::Dispatch(COUNT, Groups::Count(1), vec![config, path, count]),
        Call::Free(scene),
        Call::Free(path),
    ];
    let fine = vec![
        Call::Clear(out),
        Call::Dispatch(SCALE, Groups::Indirect(count), vec![config, tiles, out]),
        Call::Download(out),
        Call::Free(config),
        Call::Free(tiles),
        Call::Free(count),
        Call::Free(out),
    ];
    TwoRecordings { recordings: [coarse, fine], out, expected: bytes(expected) }
}

fn bytes(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}
