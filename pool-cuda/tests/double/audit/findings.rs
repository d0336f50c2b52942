//! Findings of the outside audit of November 2026 that are not faults of order.

use super::{device, stream};
use crate::harness::{count, double, held, kernel, run};
use pool_core::{ArenaConfig, BucketPool, KIB, MIB};
use pool_cuda::{CudaAllocator, CudaVmmAllocator};

/// More bytes than the device has are no reason to empty the caches.
#[test]
fn an_absurd_size_evicts_nothing() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::on(device()));
    drop(pool.allocate(MIB).unwrap());
    assert!(pool.allocate(1 << 46).is_err());
    assert_eq!(pool.stats().cached_bytes, MIB);
    let memory = CudaVmmAllocator::new(device(), &[]).unwrap();
    let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    drop(pool.allocate(MIB).unwrap());
    let cached = pool.stats().cached_bytes;
    assert!(pool.allocate(1 << 46).is_err());
    assert_eq!(pool.stats().cached_bytes, cached);
}

#[test]
fn a_miss_waits_for_no_evicted_block() {
    let _one = double();
    let device = device();
    let pool = BucketPool::builder(CudaAllocator::on(device.clone())).cached_limit(MIB).build();
    let (s, t) = (stream(&device), stream(&device));
    let large = pool.allocate_on(&s, 4 * MIB).unwrap();
    kernel(&large, &s);
    drop(large); // evicted: a deferred free
    let before = count("cuEventSynchronize");
    drop(pool.allocate_on(&t, KIB).unwrap());
    assert_eq!(count("cuEventSynchronize"), before, "the host waited for `s`");
    assert!(held() > 4 * MIB);
    run();
    drop(pool.allocate_on(&t, 2 * MIB).unwrap());
    assert!(held() < 4 * MIB, "a query has found it done");
    assert_eq!(count("cuEventSynchronize"), before);
}

/// A full device is worth a wait.
#[test]
fn a_full_device_waits_for_evicted_blocks() {
    let _one = double();
    let device = device();
    let pool = BucketPool::builder(CudaAllocator::on(device.clone())).cached_limit(MIB).build();
    let (s, t) = (stream(&device), stream(&device));
    let large = pool.allocate_on(&s, 700 * MIB).unwrap();
    kernel(&large, &s);
    drop(large);
    assert!(pool.allocate_on(&t, 600 * MIB).is_ok());
}
