//! A pass of the pipeline, and its numbers: the part of the program that a pool does not change.

use crate::gpu::{compute, shader};
use bucketpool::wgpu::wgpu::{
    BindGroupDescriptor, BindGroupEntry, Buffer, CommandEncoder, ComputePassDescriptor,
    ComputePipeline, Device,
};

pub(crate) const FRAMES: u32 = 24;
pub(crate) const STEPS: u32 = 4;
/// Bytes of the longest array.
pub(crate) const MOST: u64 = 64 << 10;

const SHADER: &str = "
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@compute @workgroup_size(64)
fn turn(@builtin(global_invocation_id) id: vec3<u32>) {
    let many = arrayLength(&a);
    if id.x >= many { return; }
    let beside = a[(id.x + 1u) % many];
    // What `b` had before counts: a fresh buffer has zeroes.
    b[id.x] = b[id.x] + a[id.x] * 1664525u + beside;
}";

pub(crate) struct Pipeline(ComputePipeline);

impl Pipeline {
    pub(crate) fn new(device: &Device) -> Self {
        Self(compute(device, &shader(device, SHADER), "turn"))
    }

    /// Adds a pass that computes `to` from `from`.
    pub(crate) fn pass(
        &self,
        device: &Device,
        encoder: &mut CommandEncoder,
        from: &Buffer,
        to: &Buffer,
    ) {
        let group = device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &self.0.get_bind_group_layout(0),
            entries: &[
                BindGroupEntry { binding: 0, resource: from.as_entire_binding() },
                BindGroupEntry { binding: 1, resource: to.as_entire_binding() },
            ],
        });
        let words = u32::try_from(from.size() / 4).unwrap_or(0);
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(&self.0);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(words.div_ceil(64), 1, 1);
    }
}

/// The numbers of a frame; the arrays differ in length.
pub(crate) fn numbers(frame: u32) -> Vec<u8> {
    let many = 1024 * (4 + frame * 7 % 12);
    (0..many).flat_map(|at| (at ^ frame).wrapping_mul(2_654_435_761).to_ne_bytes()).collect()
}
