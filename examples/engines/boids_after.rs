//! A renderer of boids with its own encoder and its own submit, with a pool.

use crate::boids::{BYTES, Boids, FRAMES, PICTURE};
use crate::gpu::{DRAWN, Failure, shown, to_read};
use bucketpool::wgpu::wgpu::{CommandEncoderDescriptor, Device, Queue};
use bucketpool::wgpu::{Usage, WgpuAllocator};
use bucketpool::{BucketPool, DeviceAllocator, StreamClock};

pub(crate) fn run(device: &Device, queue: &Queue) -> Result<Vec<u8>, Failure> {
    let (boids, back) = (Boids::new(device), to_read(device, PICTURE));
    let pool = BucketPool::new(WgpuAllocator::new(device.clone(), queue.clone()));
    let (on, drawn) = (*pool.allocator().clock().default_stream(), Usage::new(DRAWN));
    let mut now = pool.allocate_kind(&on, BYTES, drawn)?;
    now.on(&on)?.write(0, &Boids::begin())?;
    let mut pictures = Vec::new();
    for _ in 0..FRAMES {
        let scope = pool.allocator().scope();
        let next = pool.allocate_kind(&scope.stream(), BYTES, drawn)?;
        let (from, to) = (&scope.lend(&now)?, &scope.lend(&next)?);
        let mut encoder = device.create_command_encoder(&CommandEncoderDescriptor::default());
        boids.fly(device, &mut encoder, from, to);
        boids.draw(&mut encoder, to, &back);
        scope.submit_with(encoder)?;
        pictures.extend(shown(device, &back)?);
        now = next;
    }
    assert!(pool.stats().misses <= 3, "{}", pool.stats());
    Ok(pictures)
}
