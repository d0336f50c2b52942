//! Buffers of a frame on a wgpu device, from bucketpool, from `CubeCL`'s runtime for wgpu, and from
//! wgpu itself, measured in one run.
//!
//! Measured: on one thread, the time to take 64 buffers of 64 KiB to 1 MiB, of four sizes in turn,
//! to give them back, and to submit what was recorded, after the pools have filled. The default
//! adapter is used: on a machine without a GPU that is lavapipe, a driver on the CPU.
//!
//! - `bucketpool`: `allocate_on` a scope, with and without zeroing, and `submit`.
//! - `CubeCL`: `ComputeClient::empty`, drops, and `flush`. Its client passes requests to a server
//!   under a lock, counts no bytes, and does not zero.
//! - `wgpu`: `create_buffer`, drops, and an empty `submit`. wgpu zeroes a buffer at its first use.
//!
//! Not measured: work on the buffers, several threads, and the memory that each holds.

use criterion::{Criterion, criterion_group, criterion_main};
use cubecl_core::Runtime;
use cubecl_wgpu::{WgpuDevice, WgpuRuntime, WgslCompiler};
use pool_core::{BucketPool, KIB, ZeroPolicy};
use pool_wgpu::{Usage, WgpuAllocator, wgpu};
use std::hint::black_box;
use std::time::Duration;

const BUFFERS: usize = 64;
const SIZES: [u64; 4] = [64 * KIB, 100 * KIB, 512 * KIB, 1024 * KIB];

fn sizes() -> impl Iterator<Item = u64> {
    SIZES.into_iter().cycle().take(BUFFERS)
}

fn bucketpool(c: &mut Criterion, name: &str, zero: ZeroPolicy) {
    let device = WgpuAllocator::on_default_adapter().expect("an adapter");
    let pool = BucketPool::builder(device.clone()).zero(zero).build();
    c.bench_function(name, |b| {
        b.iter(|| {
            let scope = device.scope();
            let on = scope.stream();
            let buffers: Vec<_> = sizes().map(|bytes| pool.allocate_on(&on, bytes)).collect();
            assert!(buffers.iter().all(Result::is_ok), "no request is refused");
            drop(black_box(buffers));
            scope.submit().expect("a submission");
        });
    });
    assert!(pool.stats().hit_rate() > 0.9, "{}", pool.stats());
}

fn cubecl(c: &mut Criterion) {
    let client = WgpuRuntime::<WgslCompiler>::client(&WgpuDevice::default());
    c.bench_function("CubeCL", |b| {
        b.iter(|| {
            let empty = |bytes| client.empty(usize::try_from(bytes).expect("64 bits"));
            let buffers: Vec<_> = sizes().map(empty).collect();
            drop(black_box(buffers));
            client.flush().expect("a submission");
        });
    });
}

fn fresh(c: &mut Criterion) {
    let device = WgpuAllocator::on_default_adapter().expect("an adapter");
    let usage = Usage::default().flags();
    c.bench_function("wgpu", |b| {
        b.iter(|| {
            let fresh = |size| {
                let descriptor =
                    wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
                device.device().create_buffer(&descriptor)
            };
            let buffers: Vec<_> = sizes().map(fresh).collect();
            drop(black_box(buffers));
            device.queue().submit([]);
        });
    });
}

fn frames(c: &mut Criterion) {
    bucketpool(c, "bucketpool, not zeroed", ZeroPolicy::Never);
    bucketpool(c, "bucketpool, zeroed", ZeroPolicy::OnAllocate);
    cubecl(c);
    fresh(c);
}

criterion_group! {
    name = wgpu_frames;
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(4))
        .sample_size(30);
    targets = frames
}
criterion_main!(wgpu_frames);
