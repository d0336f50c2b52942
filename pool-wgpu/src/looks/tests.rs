//! Frames of many buffers do as much for each as frames of few.
#![expect(clippy::unwrap_used, reason = "tests")]

use super::LOOKS;
use crate::{GrowingBuffer, InFlight, Scope, Textures, WgpuAllocator};
use pool_core::{BucketPool, KIB, MIB, PooledBuffer, ZeroPolicy};
use wgpu::{
    BufferUsages, CommandEncoder, Extent3d, TextureDescriptor, TextureDimension, TextureFormat,
    TextureUsages,
};

type Pooled = PooledBuffer<WgpuAllocator>;

/// Few, and many.
const COUNTS: [u32; 2] = [1000, 8000];

fn noop() -> WgpuAllocator {
    let required_features = wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
    let descriptor = wgpu::DeviceDescriptor { required_features, ..Default::default() };
    let (device, queue) = wgpu::Device::noop(&descriptor);
    WgpuAllocator::new(device, queue)
}

fn encoder(device: &WgpuAllocator) -> CommandEncoder {
    device.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

/// The looks of the third frame of so many buffers: the two before it leave blocks, chunks and marks.
fn looks<F: FnMut(u32)>(frames: impl Fn(WgpuAllocator, u32) -> F, count: u32) -> u64 {
    let mut frame = frames(noop(), count);
    frame(0);
    frame(1);
    let before = LOOKS.get();
    frame(2);
    LOOKS.get() - before
}

/// Compares what a frame does for each of many buffers with what it does for each of few.
fn is_linear<F: FnMut(u32)>(
    name: &str,
    counts: [u32; 2],
    frames: impl Fn(WgpuAllocator, u32) -> F,
) {
    let [few, many] = counts.map(|count| looks(&frames, count) as f64 / f64::from(count));
    assert!(few >= 1.0, "{name}: {few} looks for each buffer count nothing");
    assert!(many <= few * 1.1, "{name}: {few:.2} looks for each of few, {many:.2} of many");
}

fn held(pool: &BucketPool<WgpuAllocator>, count: u32) -> Vec<Pooled> {
    (0..count).map(|_| pool.allocate(64).unwrap()).collect()
}

#[test]
fn a_lend_and_an_upload_behind_it() {
    is_linear("lent, then uploaded to", [8000, 32_000], |device, count| {
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(64 * KIB, 64 * MIB));
        let held = held(&pool, count);
        move |_| {
            let mut scope = device.scope();
            for buffer in &held {
                scope.lend(buffer).unwrap();
            }
            for buffer in &held {
                scope.upload(&uploads, buffer, 0, &[1; 16]).unwrap();
            }
            scope.submit_with(encoder(&device)).unwrap();
        }
    });
}

#[test]
fn a_temporary_that_is_zeroed_and_uploaded_to_in_part() {
    is_linear("temporaries", COUNTS, |device, count| {
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(64 * KIB, 64 * MIB));
        move |_| {
            let mut scope = device.scope();
            let taken: Vec<_> = (0..count).map(|_| scope.take(&pool, 64).unwrap()).collect();
            for buffer in &taken {
                scope.upload(&uploads, buffer, 0, &[1; 16]).unwrap();
                scope.lend(buffer).unwrap();
            }
            drop(taken);
            scope.submit_with(encoder(&device)).unwrap();
        }
    });
}

#[test]
fn a_temporary_of_the_scopes_own_encoder_that_it_fills() {
    is_linear("temporaries to fill", COUNTS, |device, count| {
        let pool = BucketPool::new(device.clone());
        move |_| {
            let mut scope = device.scope();
            for _ in 0..count {
                let buffer = scope.take_to_fill(&pool, 64).unwrap();
                let lent = scope.lend(&buffer).unwrap();
                scope.encoder().clear_buffer(&lent, 0, None);
            }
            scope.submit().unwrap();
        }
    });
}

/// A chunk for each two uploads.
#[test]
fn a_chunk_of_staging_memory() {
    for bounded in [false, true] {
        is_linear("chunks", COUNTS, |device, count| {
            let in_flight = match bounded {
                true => InFlight::Wait(u64::from(count) * KIB),
                false => InFlight::Unbounded,
            };
            let uploads = device.bounded_uploads(64, 64 * MIB, in_flight);
            let own = pool_of_one(&device);
            move |_| {
                let mut scope = device.scope();
                // Each sixteenth needs a larger chunk.
                for bytes in (0..count).map(|at| [32, 128][usize::from(at % 16 == 0)]) {
                    scope.upload(&uploads, &own, 0, &[1; 128][..bytes]).unwrap();
                }
                scope.submit().unwrap();
            }
        });
    }
}

fn pool_of_one(device: &WgpuAllocator) -> Pooled {
    BucketPool::new(device.clone()).allocate(KIB).unwrap()
}

#[test]
fn placed_data_and_uploads_in_turns() {
    is_linear("placed and uploaded", COUNTS, |device, count| {
        let uploads = device.uploads(64 * KIB, 64 * MIB);
        let placed = device.frame_data(BufferUsages::UNIFORM, 256, 64 * MIB).unwrap();
        let own = pool_of_one(&device);
        move |_| {
            let mut scope = device.scope();
            for _ in 0..count {
                scope.place(&placed, &[1; 256]).unwrap();
                scope.upload(&uploads, &own, 0, &[1; 16]).unwrap();
            }
            scope.submit().unwrap();
        }
    });
}

#[test]
fn a_prologue() {
    is_linear("prologues", COUNTS, |device, count| {
        let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(256, 64 * MIB));
        move |_| {
            let mut scope = device.scope();
            for _ in 0..count {
                let buffer = scope.take(&pool, 64).unwrap();
                scope.upload(&uploads, &buffer, 0, &[1; 16]).unwrap();
                scope.lend(&buffer).unwrap();
            }
            let (on, mut commands) = (scope.stream(), encoder(&device));
            let prologue = scope.prologue(&mut commands).unwrap();
            device.queue().submit(prologue.into_iter().chain([commands.finish()]));
            device.submitted(&on);
        }
    });
}

/// Frames that run, and frames that are dropped, whose growths are made by themselves.
#[test]
fn a_buffer_that_grows() {
    for runs in [true, false] {
        is_linear("growing buffers", COUNTS, |device, count| {
            let (pool, uploads) =
                (BucketPool::new(device.clone()), device.uploads(64 * KIB, 64 * MIB));
            let new = || GrowingBuffer::new(&pool, 16, BufferUsages::VERTEX).unwrap();
            let mut grow: Vec<_> = (0..count).map(|_| new()).collect();
            move |_| {
                let mut scope = device.scope();
                for buffer in &mut grow {
                    let bytes = buffer.capacity() * 2;
                    buffer.reserve(&mut scope, bytes).unwrap();
                    scope.upload(&uploads, buffer.buffer(), bytes - 4, &[1; 4]).unwrap();
                }
                if runs {
                    scope.submit_with(encoder(&device)).unwrap();
                }
            }
        });
    }
}

#[test]
fn a_texture_of_each_size() {
    is_linear("textures", COUNTS, |device, count| {
        let targets = device.textures();
        targets.keep(u64::MAX);
        move |_| {
            let scope = device.scope();
            for at in 0..count {
                take(&scope, &targets, at);
            }
            scope.submit_with(encoder(&device)).unwrap();
        }
    });
}

fn take(scope: &Scope, targets: &Textures, at: u32) {
    let descriptor = TextureDescriptor {
        label: None,
        size: Extent3d { width: 1 + at % 256, height: 1 + at / 256, depth_or_array_layers: 1 },
        mip_level_count: 1,
        sample_count: 1,
        dimension: TextureDimension::D2,
        format: TextureFormat::R8Unorm,
        usage: TextureUsages::COPY_DST,
        view_formats: &[],
    };
    scope.take_texture(targets, &descriptor).unwrap();
}

/// What one frame alone had is free by a look at whether that was handed over and one at how far it is; and by one
/// at whether another frame is open, once it was submitted.
#[test]
fn a_drop_looks_twice_at_open_frames() {
    let device = noop();
    let pool = BucketPool::builder(device.clone()).zero(ZeroPolicy::Never).build();
    let scope = device.scope();
    let (first, second) = (scope.take(&pool, 64).unwrap(), scope.take(&pool, 128).unwrap());
    let looks_of_drop = |buffer: Pooled| {
        let before = LOOKS.get();
        drop(buffer);
        LOOKS.get() - before
    };
    assert_eq!(looks_of_drop(first), 2);
    scope.submit().unwrap();
    assert_eq!(looks_of_drop(second), 1);
}
