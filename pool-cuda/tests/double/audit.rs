//! A test for each item of sections A and B of the audit of November 2026 that the double can show:
//! section A here, section B beside.

mod beside;
mod findings;
mod memory;

use crate::harness::{capture, count, double, fail, hazards, held, kernel, run};
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use pool_array::PooledArray;
use pool_core::{BucketPool, KIB, MIB, Why};
use pool_cuda::{CudaAllocator, CudaDevice, PoolStream};
use std::thread;

fn device() -> CudaDevice {
    CudaDevice::new(0).unwrap()
}

fn stream(device: &CudaDevice) -> PoolStream {
    device.stream(&device.context().new_stream().unwrap()).unwrap()
}

#[test]
fn a1_a_launch_reads_the_host_memory_that_a_capture_has_copied() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::on(device()));
    let on = stream(pool.allocator().device());
    let target = pool.allocate_on(&on, 4).unwrap();
    let mut source = vec![1_u8; 4];
    let captured = capture(&pool, &on).unwrap();
    on.raw().memcpy_htod(&source, &mut &*target.on(&on).unwrap()).unwrap();
    let mut graph = captured.end().unwrap();
    source.fill(2);
    graph.launch(&on, &[&target]).unwrap();
    let mut shown = vec![0; 4];
    on.raw().memcpy_dtoh(&*target.on(&on).unwrap(), &mut shown).unwrap();
    assert_eq!(shown, [2; 4]);
}

#[test]
fn a2_no_stream_waits_for_an_event_in_another_librarys_capture() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::on(device()));
    let (s, t) = (stream(pool.allocator().device()), stream(pool.allocator().device()));
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    // cudarc's own capture is safe to begin; the clock does not know of it.
    s.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let waits = count("cuStreamWaitEvent");
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!((pool.stats().misses, count("cuStreamWaitEvent")), (2, waits), "not the block of s");
    let status = t.raw().capture_status().unwrap();
    assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    s.raw().end_capture(flags).unwrap();
    // The block is not lost.
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    let both = [pool.allocate_on(&t, MIB).unwrap(), pool.allocate_on(&t, MIB).unwrap()];
    for buffer in &both {
        kernel(buffer, &t);
    }
    assert_eq!((pool.stats().misses, hazards()), (2, 0));
}

#[test]
fn a2_a_block_that_goes_back_in_another_librarys_capture_is_freed_after_it() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::on(device()));
    let s = stream(pool.allocator().device());
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    s.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    assert_eq!(pool.clear().unwrap(), MIB);
    assert_eq!((held(), pool.stats().lost_bytes), (MIB, 0), "it waits");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    s.raw().end_capture(flags).unwrap();
    run();
    drop(pool.allocate_on(&s, KIB).unwrap());
    assert_eq!((held(), hazards()), (KIB, 0));
}

#[test]
fn a3_no_capture_is_broken_by_a_wait_for_the_context() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let own = device.stream(&device.context().per_thread_stream()).unwrap();
    let buffer = pool.allocate_on(&own, KIB).unwrap();
    kernel(&buffer, &own);
    let s = stream(&device);
    let before = count("cuCtxSynchronize"); // cudarc's first `new_stream` makes one
    let captured = capture(&pool, &s).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            device.context().bind_to_thread().unwrap();
            let other = stream(&device);
            // Only a wait for the context could order it behind this thread's default stream.
            assert_eq!(buffer.on(&other).unwrap_err().why, Why::NotSubmitted);
        });
    });
    assert_eq!(count("cuCtxSynchronize"), before);
    drop(captured.end().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| kernel(&buffer, &stream(&device)));
    });
    assert_eq!((count("cuCtxSynchronize"), hazards()), (before + 1, 0));
}

#[test]
fn a3_a_capture_that_failed_is_counted_no_more() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let s = stream(&device);
    for step in ["cuStreamEndCapture", "cuGraphInstantiateWithFlags"] {
        let captured = capture(&pool, &s).unwrap();
        fail(step, 0, 1, 0);
        assert!(captured.end().is_err(), "{step}");
    }
    let own = device.stream(&device.context().per_thread_stream()).unwrap();
    let buffer = pool.allocate_on(&own, KIB).unwrap();
    kernel(&buffer, &own);
    thread::scope(|scope| {
        // By a wait for the context.
        scope.spawn(|| kernel(&buffer, &stream(&device)));
    });
    assert_eq!(hazards(), 0);
}

#[test]
fn an_array_that_copies_have_used_keeps_no_stream_alive() {
    let _one = double();
    let device = device();
    let raw = device.context().new_stream().unwrap();
    let on = device.stream(&raw).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let array = PooledArray::<u8, _>::new_on(&pool, &on, 16).unwrap();
    raw.memcpy_htod(&[1; 16], &mut array.on(&on).unwrap().typed::<u8>()).unwrap();
    drop((array, pool));
    device.retire(&on).unwrap();
    raw.synchronize().unwrap();
    drop(on);
    assert_eq!(std::sync::Arc::strong_count(&raw), 1);
}
