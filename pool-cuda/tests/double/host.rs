//! Page-locked memory: the host is a stream that cannot wait on a device.

use crate::harness::{count, double, hazards, pinned, run, touch};
use pool_core::{ArenaConfig, BucketPool, KIB, MIB, PooledBuffer};
use pool_cuda::{CudaAllocator, CudaDevice, CudaPinnedAllocator, PinnedBytes};

#[test]
fn a_buffer_whose_copy_is_pending_is_not_handed_out() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let vram = BucketPool::new(CudaAllocator::on(device));
    let target = vram.allocate_on(&on, KIB).unwrap();

    let mut source = host.allocate(KIB).unwrap();
    source.bytes().unwrap().fill(1);
    raw.memcpy_htod(&*source.on(&on).unwrap(), &mut &*target.on(&on).unwrap()).unwrap();
    drop(source); // the copy has not run

    let mut next = host.allocate(KIB).unwrap();
    assert_eq!((host.stats().misses, host.stats().hits), (2, 0));
    let bytes = next.bytes().unwrap();
    touch(bytes);
    bytes.fill(2);
    run();
    drop(next);
    let mut first = host.allocate(KIB).unwrap();
    touch(first.bytes().unwrap());
    assert_eq!((host.stats().misses, host.stats().hits), (2, 1), "now that it has run");

    let mut shown = vec![0; 1024];
    raw.memcpy_dtoh(&*target.on(&on).unwrap(), &mut shown).unwrap();
    assert_eq!((shown, hazards()), (vec![1; 1024], 0));
}

#[test]
fn the_cpu_waits_for_a_read_back() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let host = BucketPool::new(CudaPinnedAllocator::registered(device.clone()));
    let vram = BucketPool::new(CudaAllocator::on(device));
    let source = vram.allocate_on(&on, KIB).unwrap();
    raw.memcpy_htod(&[7; 1024], &mut &*source.on(&on).unwrap()).unwrap();
    let mut back = host.allocate(KIB).unwrap();
    raw.memcpy_dtoh(&*source.on(&on).unwrap(), &mut &*back.on(&on).unwrap()).unwrap();
    let bytes = back.bytes().unwrap();
    touch(bytes);
    assert_eq!((&*bytes, hazards()), (&[7; 1024][..], 0));
}

#[test]
fn an_arena_wastes_no_power_of_two() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = BucketPool::builder(CudaPinnedAllocator::on(device))
        .arena(ArenaConfig::segments(16 * MIB))
        .build();
    let batches: Vec<_> = (0..16).map(|_| pool.allocate(MIB - 100 * KIB).unwrap()).collect();
    assert_eq!((pinned(), count("cuMemHostAlloc")), (16 * MIB, 1));
    assert_eq!(batches.iter().map(PooledBuffer::allocated_size).sum::<u64>(), 16 * 924 * KIB);
    drop(batches);
    drop(pool);
    assert_eq!(pinned(), 0);
}
