//! A pipeline of compute passes over arrays of varying length, with its own encoder and its own
//! submit, with a pool.

use crate::gpu::{Failure, shown, to_read};
use crate::pipeline::{FRAMES, MOST, Pipeline, STEPS, numbers};
use bucketpool::wgpu::WgpuAllocator;
use bucketpool::wgpu::wgpu::{CommandEncoderDescriptor, Device, Queue};
use bucketpool::{BucketPolicy, BucketPool, MIB};

pub(crate) fn run(device: &Device, queue: &Queue) -> Result<Vec<u8>, Failure> {
    let (pipeline, back) = (Pipeline::new(device), to_read(device, MOST));
    let allocator = WgpuAllocator::new(device.clone(), queue.clone());
    // The pipeline binds whole buffers, whose length its shader reads: no block may be larger.
    let pool = BucketPool::builder(allocator).policy(BucketPolicy::Exact).build();
    let uploads = pool.allocator().uploads(MIB, MIB);
    let mut results = Vec::new();
    for frame in 0..FRAMES {
        let numbers = numbers(frame);
        let bytes = numbers.len() as u64;
        let mut scope = pool.allocator().scope();
        let (a, b) = (scope.take(&pool, bytes)?, scope.take(&pool, bytes)?);
        scope.upload(&uploads, &a, 0, &numbers)?;
        let (a, b) = (&scope.lend(&a)?, &scope.lend(&b)?);
        let mut encoder = device.create_command_encoder(&CommandEncoderDescriptor::default());
        for step in 0..STEPS {
            let (from, to) = if step % 2 == 0 { (a, b) } else { (b, a) };
            pipeline.pass(device, &mut encoder, from, to);
        }
        encoder.copy_buffer_to_buffer(a, 0, &back, 0, bytes);
        scope.submit_with(encoder)?;
        results.extend_from_slice(&shown(device, &back)?[..numbers.len()]);
    }
    assert!(pool.stats().hits >= pool.stats().misses, "{}", pool.stats());
    Ok(results)
}
