//! Every call of the driver refused, one after the other: nothing lost, counters exact, and the
//! next call works.

use crate::harness::{count, double, fail, hazards, held, mend, pinned, reset, seed};
use pool_core::{
    ArenaConfig, BucketPool, DeviceAllocator, DeviceError, KIB, MIB, PoolBuilder, PooledBuffer, Why,
};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaPinnedAllocator, CudaVmmAllocator,
    PinnedBytes, VmmConfig, Vram,
};

/// An error of the driver, or of one of cudarc's own calls.
type Refused = Box<dyn std::error::Error>;

/// Batches of three vectors each, uploaded through page-locked memory, freed out of
/// order, under a bound.
fn embedding<A: Vram>(
    pool: &BucketPool<A>,
    host: &BucketPool<CudaPinnedAllocator>,
) -> Result<(), Refused> {
    let device = pool.allocator().cuda_device();
    let raw = device.context().new_stream()?;
    let on = device.stream(&raw)?;
    let mut kept: Vec<PooledBuffer<A>> = Vec::new();
    for batch in 0..6_u64 {
        for bytes in [64 * KIB, 96 * KIB, 40 * KIB] {
            let bytes = bytes + batch * 8 * KIB;
            let buffer = pool.allocate_on(&on, bytes)?;
            let mut staging = host.allocate(bytes)?;
            staging.bytes_mut()?.fill(1);
            raw.memcpy_htod(&*staging.on(&on)?, &mut &*buffer.on(&on)?)?;
            kept.push(buffer);
        }
        kept.drain(..kept.len() / 2);
    }
    device.retire(&on)?;
    Ok(())
}

/// A tile is loaded on one stream while the one before is computed on another.
fn tiles<A: Vram>(
    pool: &BucketPool<A>,
    host: &BucketPool<CudaPinnedAllocator>,
) -> Result<(), Refused> {
    let device = pool.allocator().cuda_device();
    let streams = [device.context().new_stream()?, device.context().new_stream()?];
    let [load, compute] = [device.stream(&streams[0])?, device.stream(&streams[1])?];
    for tile in 0..6_u64 {
        let bytes = 256 * KIB - tile % 3 * 10 * KIB;
        let mut staging = host.allocate(bytes)?;
        staging.bytes_mut()?.fill(2);
        let input = pool.allocate_on(&load, bytes)?;
        streams[0].memcpy_htod(&*staging.on(&load)?, &mut &*input.on(&load)?)?;
        let output = pool.allocate_on(&compute, bytes)?;
        streams[1].memcpy_dtod(&*input.on(&compute)?, &mut &*output.on(&compute)?)?;
        output.record_stream(&load)?;
        if tile % 2 == 1 {
            pool.trim(64 * KIB)?;
        }
    }
    pool.clear()?;
    Ok(())
}

/// The accounts, as the driver keeps them.
fn exact<A: Vram>(pool: &BucketPool<A>, host: &BucketPool<CudaPinnedAllocator>, at: &str) {
    DeviceAllocator::release_kept(pool.allocator()).unwrap();
    let (vram, locked) = (pool.stats(), host.stats());
    assert_eq!((vram.requested_bytes, vram.allocated_bytes), (0, 0), "{at}");
    assert_eq!((vram.reserved_bytes, locked.reserved_bytes), (held(), pinned()), "{at}");
}

fn every_call<A: Vram>(
    make: impl Fn(CudaDevice) -> Result<PoolBuilder<A>, DeviceError>,
    work: impl Fn(&BucketPool<A>, &BucketPool<CudaPinnedAllocator>) -> Result<(), Refused>,
) {
    let _one = double();
    for times in [1, u64::MAX] {
        for k in 0.. {
            reset();
            seed(k + 1);
            // The device is opened; what fails is the work.
            let device = CudaDevice::new(0).unwrap();
            let pool = make(device.clone()).unwrap();
            let pool = pool.cached_limit(512 * KIB).reserved_limit(64 * MIB).build();
            let host = BucketPool::builder(CudaPinnedAllocator::on(device)).build();
            let before = count("");
            fail("", k, times, 0);
            let done = work(&pool, &host);
            let at = format!("call {k}, {times} times: {:?}", done.as_ref().err());
            let enough = count("") - before < k;
            mend();
            if times == 1 {
                exact(&pool, &host, &at);
            }
            // The next call works; it offers again what the driver would not take back.
            let _ = pool.allocator().cuda_device().context().check_err();
            work(&pool, &host).unwrap_or_else(|error| panic!("{at}: and then {error}"));
            exact(&pool, &host, &at);
            assert_eq!(hazards(), 0, "{at}");
            let lost = pool.stats().lost_bytes;
            drop(pool);
            crate::harness::run();
            assert_eq!(held(), lost, "{at}");
            if enough {
                assert!(k > 40, "only {k} calls");
                break;
            }
        }
    }
}

fn in_order(device: CudaDevice) -> Result<PoolBuilder<CudaAsyncAllocator>, DeviceError> {
    CudaAsyncAllocator::new(device, 0).map(BucketPool::builder)
}

fn pages(device: CudaDevice) -> Result<PoolBuilder<CudaVmmAllocator>, DeviceError> {
    let config = VmmConfig::default();
    let memory = CudaVmmAllocator::with(device, &config)?;
    Ok(BucketPool::builder(memory).arena(ArenaConfig::grow()))
}

#[test]
fn embedding_by_alloc() {
    every_call(|device| Ok(BucketPool::builder(CudaAllocator::on(device))), embedding);
}

#[test]
fn embedding_in_the_order_of_streams() {
    every_call(in_order, embedding);
}

#[test]
fn embedding_in_pages() {
    every_call(pages, embedding);
}

#[test]
fn tiles_by_alloc() {
    every_call(|device| Ok(BucketPool::builder(CudaAllocator::on(device))), tiles);
}

#[test]
fn tiles_in_the_order_of_streams() {
    every_call(in_order, tiles);
}

#[test]
fn tiles_in_pages() {
    every_call(pages, tiles);
}

/// Want of addresses is no want of memory: it is told as that, and nothing goes for it.
#[test]
fn want_of_addresses_evicts_nothing() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let blocks = BucketPool::new(CudaVmmAllocator::new(device.clone(), &[]).unwrap());
    let arena = CudaVmmAllocator::new(device, &[]).unwrap();
    let arena = BucketPool::builder(arena).arena(ArenaConfig::grow()).build();
    for pool in [blocks, arena] {
        let all: Vec<_> = (0..10).map(|_| pool.allocate(4 * MIB).unwrap()).collect();
        drop(all);
        let cached = pool.stats().cached_bytes;
        assert!(cached > 0);
        fail("cuMemAddressReserve", 0, u64::MAX, 2);
        let refused = pool.allocate(1 << 44).unwrap_err();
        mend();
        assert_eq!(refused.why(), Why::OutOfAddresses, "{refused}");
        assert!(refused.to_string().contains("cuMemAddressReserve: out of addresses"), "{refused}");
        assert_eq!(pool.stats().cached_bytes, cached, "{refused}");
    }
}
