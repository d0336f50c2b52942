//! A pipeline of compute passes over arrays of varying length, with its own encoder and its own
//! submit, without a pool.

use crate::gpu::{Failure, fresh, shown, to_read};
use crate::pipeline::{FRAMES, MOST, Pipeline, STEPS, numbers};
use bucketpool::wgpu::wgpu::{CommandEncoderDescriptor, Device, Queue};

pub(crate) fn run(device: &Device, queue: &Queue) -> Result<Vec<u8>, Failure> {
    let (pipeline, back) = (Pipeline::new(device), to_read(device, MOST));
    let mut results = Vec::new();
    for frame in 0..FRAMES {
        let numbers = numbers(frame);
        let bytes = numbers.len() as u64;
        let (a, b) = (fresh(device, bytes), fresh(device, bytes));
        let (a, b) = (&a, &b);
        queue.write_buffer(a, 0, &numbers);
        let mut encoder = device.create_command_encoder(&CommandEncoderDescriptor::default());
        for step in 0..STEPS {
            let (from, to) = if step % 2 == 0 { (a, b) } else { (b, a) };
            pipeline.pass(device, &mut encoder, from, to);
        }
        encoder.copy_buffer_to_buffer(a, 0, &back, 0, bytes);
        queue.submit([encoder.finish()]);
        results.extend_from_slice(&shown(device, &back)?[..numbers.len()]);
    }
    Ok(results)
}
