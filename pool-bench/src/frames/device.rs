//! The device that frames are measured on, and how contenders take turns.

use crate::apart::Process;
use crate::rounds::{Rounds, Row};
use bucketpool::DeviceError;
use bucketpool::wgpu::WgpuAllocator;
use bucketpool::wgpu::wgpu::{
    self, BindGroup, BindGroupLayout, Buffer, BufferDescriptor, BufferUsages, CommandEncoder,
    ComputePipeline, Device, PollType, Queue, SubmissionIndex,
};
use std::num::NonZeroU64;
use std::time::Instant;

/// Frames that count, and those of a smoke test.
const ROUNDS: (usize, usize) = (155, 2);
/// Frames before that: pools fill.
const COLD: usize = 3;

const SHADER: &str = "
@group(0) @binding(0) var<storage, read_write> numbers: array<vec4<f32>>;
@compute @workgroup_size(64)
fn add_one(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&numbers) {
        numbers[id.x] = numbers[id.x] + vec4<f32>(1.0);
    }
}";

pub(super) type Failed = String;

pub(super) fn said(error: DeviceError) -> Failed {
    error.to_string()
}

/// One frame of a contender.
type Frame<'f> = Box<dyn FnMut() -> Result<(), Failed> + 'f>;
/// A contender: its name and its frames.
pub(super) type Contender<'f> = (&'static str, Frame<'f>);

/// Lets contenders take turns in random order; the first is what the others are compared with.
pub(super) fn contest(
    case: &str,
    bench: &FrameBench,
    mut contenders: Vec<Contender<'_>>,
) -> Result<Vec<Row>, Failed> {
    let names: Vec<&str> = contenders.iter().map(|(name, _)| *name).collect();
    let (rounds, failures) = Rounds::run(&names, (COLD, bench.rounds), bench.seed, |at| {
        let start = Instant::now();
        contenders[at].1()?;
        Ok::<_, Failed>(start.elapsed().as_nanos() as f64)
    });
    match failures.into_iter().flatten().next() {
        Some(failed) => Err(failed),
        None => Ok(rounds.rows(case, 0)),
    }
}

/// A device, and a kernel that adds one to each number.
pub(super) struct FrameBench {
    pub(super) device: WgpuAllocator,
    pipeline: ComputePipeline,
    pub(super) layout: BindGroupLayout,
    rounds: usize,
    seed: u64,
}

impl FrameBench {
    pub(super) fn new(device: WgpuAllocator, process: &Process) -> Self {
        let module = device.device().create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(SHADER.into()),
        });
        let pipeline = device.device().create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("add_one"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let layout = pipeline.get_bind_group_layout(0);
        let rounds = if process.smoke { ROUNDS.1 } else { process.share(ROUNDS.0) };
        Self { device, pipeline, layout, rounds, seed: process.seed }
    }

    /// Rounds before those that count, and those.
    pub(super) fn rounds(&self) -> (usize, usize) {
        (COLD, self.rounds)
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn gpu(&self) -> (&Device, &Queue) {
        (self.device.device(), self.device.queue())
    }

    pub(super) fn buffer(
        &self,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
    ) -> Buffer {
        let descriptor = BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation };
        self.gpu().0.create_buffer(&descriptor)
    }

    pub(super) fn wait(&self) -> Result<(), Failed> {
        let polled = self.gpu().0.poll(PollType::wait_indefinitely());
        polled.map(|_| ()).map_err(|error| error.to_string())
    }

    pub(super) fn encoder(&self) -> CommandEncoder {
        self.gpu().0.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    pub(super) fn submit(&self, encoder: CommandEncoder) -> Result<(), Failed> {
        self.gpu().1.submit([encoder.finish()]);
        self.wait()
    }

    /// Waits for one submission and those before.
    pub(super) fn wait_for(&self, submission: SubmissionIndex) -> Result<(), Failed> {
        let until = PollType::Wait { submission_index: Some(submission), timeout: None };
        self.gpu().0.poll(until).map(|_| ()).map_err(|error| error.to_string())
    }

    pub(super) fn group(&self, buffer: &Buffer, offset: u64, bytes: u64) -> BindGroup {
        let size = NonZeroU64::new(bytes);
        let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
        self.gpu().0.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.layout,
            entries: &[wgpu::BindGroupEntry { binding: 0, resource }],
        })
    }

    pub(super) fn dispatch(&self, encoder: &mut CommandEncoder, group: &BindGroup, groups: u32) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(groups.min(65_535), 1, 1);
    }
}
