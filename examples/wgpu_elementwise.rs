//! An element-wise pipeline in WGSL over pooled buffers, its results checked:
//! `cargo run --release --features wgpu --example wgpu_elementwise`
#![expect(clippy::print_stdout, reason = "an example tells what it did")]

use bucketpool::wgpu::wgpu::{
    BindGroupLayout, ComputePassDescriptor, ComputePipeline, ComputePipelineDescriptor,
    PipelineCompilationOptions, ShaderModuleDescriptor, ShaderSource,
};
use bucketpool::wgpu::{Scope, WgpuAllocator};
use bucketpool::{BucketPool, MIB, PooledBuffer};
use std::error::Error;

const SHADER: &str = "
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@compute @workgroup_size(64)
fn step(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&a) { b[id.x] = 2.0 * a[id.x] + 1.0; }
}";
const NUMBERS: u32 = 1 << 20;
const STEPS: usize = 4;

type Numbers = PooledBuffer<WgpuAllocator>;

struct Step {
    pipeline: ComputePipeline,
    layout: BindGroupLayout,
}

impl Step {
    fn new(device: &WgpuAllocator) -> Self {
        let module = device.device().create_shader_module(ShaderModuleDescriptor {
            label: None,
            source: ShaderSource::Wgsl(SHADER.into()),
        });
        let pipeline = device.device().create_compute_pipeline(&ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("step"),
            compilation_options: PipelineCompilationOptions::default(),
            cache: None,
        });
        let layout = pipeline.get_bind_group_layout(0);
        Self { pipeline, layout }
    }

    /// `to = 2 * from + 1`. The bind group is cached: pooled buffers are the same ones again.
    fn run(
        &self,
        scope: &mut Scope,
        (from, to): (&Numbers, &Numbers),
    ) -> Result<(), Box<dyn Error>> {
        let group = scope.bind_group(&self.layout, &[(0, from), (1, to)])?;
        let mut pass = scope.encoder().begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(NUMBERS.div_ceil(64), 1, 1);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = WgpuAllocator::on_default_adapter()?;
    let step = Step::new(&device);
    let (uploads, backs) = (device.uploads(4 * MIB, 16 * MIB), device.read_backs(16 * MIB));
    let pool = BucketPool::new(device.clone());
    let bytes = u64::from(NUMBERS) * 4;
    for frame in 0..10_u16 {
        let mut scope = device.scope();
        let mut current = scope.take(&pool, bytes)?;
        let numbers: Vec<u8> = (0..NUMBERS).flat_map(|_| f32::from(frame).to_ne_bytes()).collect();
        scope.upload(&uploads, &current, 0, &numbers)?;
        for _ in 0..STEPS {
            let next = scope.take(&pool, bytes)?;
            step.run(&mut scope, (&current, &next))?;
            current = next;
            scope.end_step(); // what was dropped serves the next steps
        }
        let back = scope.read_back(&backs, &current, 0, bytes)?;
        scope.submit()?;
        // 2 x + 1, four times.
        let expected = (16.0 * f32::from(frame) + 15.0).to_ne_bytes();
        let wrong = back.wait(|shown| shown.chunks(4).filter(|n| **n != expected).count())?;
        if wrong > 0 {
            return Err(format!("frame {frame}: {wrong} wrong numbers").into());
        }
    }
    println!(
        "10 frames of {STEPS} steps, all right; {} bind groups\n{}",
        device.bind_group_stats().cached,
        pool.stats()
    );
    Ok(())
}
