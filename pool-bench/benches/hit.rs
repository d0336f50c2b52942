//! The hit path: one allocation and its free, never a call to the device.

use bucketpool::host::HostAllocator;
use bucketpool::sim::SimDevice;
use bucketpool::{BucketPolicy, BucketPool, DeviceAllocator};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;

fn pair<A: DeviceAllocator>(c: &mut Criterion, name: &str, policy: BucketPolicy, allocator: A) {
    let pool = BucketPool::builder(allocator).policy(policy).build();
    c.bench_function(name, |b| b.iter(|| pool.allocate(black_box(4096)).map(drop)));
    assert_eq!(pool.stats().misses, 1, "everything but the first is a hit");
}

/// Many sizes idle at once, as after a step of a training loop.
fn pair_among<A: DeviceAllocator>(c: &mut Criterion, name: &str, sizes: u64, allocator: A) {
    let pool = BucketPool::builder(allocator).policy(BucketPolicy::Exact).build();
    let live: Vec<_> = (1..=sizes).map(|size| pool.allocate(size * 512)).collect();
    drop(live);
    let mut size = 0;
    c.bench_function(name, |b| {
        b.iter(|| {
            size = size % sizes + 1;
            pool.allocate(black_box(size * 512)).map(drop)
        });
    });
    assert_eq!(pool.stats().misses, sizes, "everything but the first round is a hit");
}

fn hits(c: &mut Criterion) {
    c.bench_function("malloc and free, 4 KiB", |b| {
        b.iter(|| drop(black_box(Vec::<u8>::with_capacity(black_box(4096)))));
    });
    pair(c, "host, pow2", BucketPolicy::PowerOfTwo, HostAllocator::new());
    pair(c, "host, exact", BucketPolicy::Exact, HostAllocator::new());
    pair(c, "host, fit:2", BucketPolicy::Fit { alpha: 2.0 }, HostAllocator::new());
    pair(c, "sim, pow2", BucketPolicy::PowerOfTwo, SimDevice::new());
    pair_among(c, "host, exact, 10 sizes", 10, HostAllocator::new());
    pair_among(c, "host, exact, 500 sizes", 500, HostAllocator::new());
}

criterion_group!(benches, hits);
criterion_main!(benches);
