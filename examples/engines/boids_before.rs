//! A renderer of boids with its own encoder and its own submit, without a pool.

use crate::boids::{BYTES, Boids, FRAMES, PICTURE};
use crate::gpu::{Failure, drawn, shown, to_read};
use bucketpool::wgpu::wgpu::{CommandEncoderDescriptor, Device, Queue};

pub(crate) fn run(device: &Device, queue: &Queue) -> Result<Vec<u8>, Failure> {
    let (boids, back) = (Boids::new(device), to_read(device, PICTURE));
    let mut now = drawn(device, BYTES);
    queue.write_buffer(&now, 0, &Boids::begin());
    let mut pictures = Vec::new();
    for _ in 0..FRAMES {
        let next = drawn(device, BYTES);
        let (from, to) = (&now, &next);
        let mut encoder = device.create_command_encoder(&CommandEncoderDescriptor::default());
        boids.fly(device, &mut encoder, from, to);
        boids.draw(&mut encoder, to, &back);
        queue.submit([encoder.finish()]);
        pictures.extend(shown(device, &back)?);
        now = next;
    }
    Ok(pictures)
}
