//! Graphs through cudarc's real calls.

use crate::harness::{count, double, fail, hazards, held, kernel, leftovers, memory_calls, run};
use pool_core::{Arena, ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, StreamClock, Why};
use pool_cuda::{CudaAllocator, CudaCapture, CudaDevice, CudaStreamOf, CudaVmmAllocator, Vram};

fn streams<A: Vram>(pool: &BucketPool<A>, how_many: usize) -> Vec<CudaStreamOf> {
    let device = pool.allocator().cuda_device();
    let new = |_| device.stream(&device.context().new_stream().unwrap()).unwrap();
    (0..how_many).map(new).collect()
}

/// The calls that a capture forbids.
fn forbidden() -> u64 {
    ["cuEventQuery", "cuEventSynchronize", "cuCtxSynchronize"].iter().map(|name| count(name)).sum()
}

fn a_chain_is_captured_and_launched<A: Vram>(allocator: A) {
    let pool = BucketPool::new(allocator);
    let [s, other] = streams(&pool, 2).try_into().unwrap();
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s); // something idle, behind work outside
    let capture = CudaCapture::begin(&pool, &s).unwrap();
    let before = (forbidden(), count("cuEventRecord"));
    let result = pool.allocate_on(&s, MIB).unwrap();
    for _ in 0..10 {
        let scratch = pool.allocate_on(&s, MIB).unwrap();
        kernel(&scratch, &s);
        kernel(&result, &s);
    }
    assert_eq!((forbidden(), count("cuEventRecord")), before, "no event, no query in a capture");
    let mut graph = capture.end().unwrap();
    assert_eq!(pool.stats().served_by.private, 9, "the scratch of each step is the same block");
    let steady = memory_calls();
    for stream in [&s, &other, &s] {
        graph.launch(stream).unwrap();
        kernel(&result, &other); // behind the launch
        kernel(&pool.allocate_on(stream, MIB).unwrap(), stream);
    }
    assert!(memory_calls() <= steady + 2, "launches take no memory");
    drop(result);
    assert_eq!(graph.cached_bytes(), 2 * MIB);
    drop(graph);
    drop(pool);
    run();
    assert_eq!((held(), leftovers(), hazards()), (0, 0, 0));
}

#[test]
fn a_chain_over_alloc() {
    let _one = double();
    a_chain_is_captured_and_launched(CudaAllocator::new(0).unwrap());
}

#[test]
fn a_chain_over_an_arena_in_pages() {
    let _one = double();
    let memory = CudaVmmAllocator::new(CudaDevice::new(0).unwrap(), &[]).unwrap();
    a_chain_is_captured_and_launched(Arena::over_pages(memory, ArenaConfig::grow()));
}

#[test]
fn forked_streams_share_what_the_edges_order() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, t] = streams(&pool, 2).try_into().unwrap();
    let mut capture = CudaCapture::begin(&pool, &s).unwrap();
    let input = pool.allocate_on(&s, MIB).unwrap();
    kernel(&input, &s);
    capture.fork(&t, &s).unwrap();
    kernel(&input, &t);
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!(pool.stats().misses, 3, "side by side");
    capture.join(&s, &t).unwrap();
    let both = [pool.allocate_on(&s, MIB).unwrap(), pool.allocate_on(&s, MIB).unwrap()];
    for buffer in &both {
        kernel(buffer, &s);
    }
    assert_eq!(pool.stats().misses, 3, "after both");
    drop((both, input));
    let mut graph = capture.end().unwrap();
    for _ in 0..3 {
        graph.launch(&s).unwrap();
        graph.launch(&t).unwrap();
    }
    run();
    assert_eq!(hazards(), 0);
}

#[test]
fn a_launch_waits_for_an_input_that_another_stream_loads() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, load] = streams(&pool, 2).try_into().unwrap();
    let input = pool.allocate_on(&load, MIB).unwrap();
    kernel(&input, &load);
    let capture = CudaCapture::begin(&pool, &s).unwrap();
    kernel(&input, &s);
    assert_eq!(input.on(&load).unwrap_err().why, Why::NotSubmitted);
    let mut graph = capture.end().unwrap();
    graph.launch(&s).unwrap();
    assert_eq!(hazards(), 0);
    kernel(&input, &load);
    assert_eq!(hazards(), 0);
}

#[test]
fn what_a_capture_lacks_comes_from_the_device_whatever_the_capture_forbids() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = BucketPool::builder(CudaAllocator::on(device)).reserved_limit(4 * MIB).build();
    let [s] = streams(&pool, 1).try_into().unwrap();
    drop([(); 4].map(|()| pool.allocate(MIB).unwrap()));
    assert_eq!(pool.stats().cached_bytes, 4 * MIB);
    let capture = CudaCapture::begin(&pool, &s).unwrap();
    // Idle blocks go back to make room: `cuMemFree` and `cuMemAlloc` under the capture.
    let buffers = [(); 3].map(|()| pool.allocate_on(&s, MIB).unwrap());
    assert_eq!(pool.allocate_on(&s, 2 * MIB).unwrap_err().why(), Why::Limit);
    for buffer in &buffers {
        kernel(buffer, &s);
    }
    let mut graph = capture.end().unwrap();
    graph.launch(&s).unwrap();
    assert_eq!(hazards(), 0);
}

#[test]
fn a_capture_that_fails_or_is_dropped_leaves_nothing_bound() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, t] = streams(&pool, 2).try_into().unwrap();
    let legacy = pool.allocator().clock().default_stream();
    assert_eq!(CudaCapture::begin(&pool, legacy).unwrap_err().why, Why::NotSubmitted);
    for step in ["cuEventRecord", "cuStreamBeginCapture_v2"] {
        fail(step, 0, 1, 0);
        assert!(CudaCapture::begin(&pool, &s).is_err(), "{step}");
    }
    for step in ["cuStreamEndCapture", "cuGraphInstantiateWithFlags"] {
        let mut capture = CudaCapture::begin(&pool, &s).unwrap();
        assert_eq!(CudaCapture::begin(&pool, &s).unwrap_err().why, Why::NotSubmitted);
        capture.fork(&t, &s).unwrap();
        drop(pool.allocate_on(&s, KIB));
        fail(step, 0, 1, 0);
        assert!(capture.end().is_err(), "{step}");
        let before = pool.stats().served_by.private;
        kernel(&pool.allocate_on(&s, KIB).unwrap(), &t);
        assert_eq!(pool.stats().served_by.private, before, "{step}: bound no more");
    }
    let capture = CudaCapture::begin(&pool, &s).unwrap();
    drop(pool.allocate_on(&s, KIB));
    drop(capture);
    kernel(&pool.allocate_on(&s, KIB).unwrap(), &t);
    assert_eq!((leftovers(), hazards()), (0, 0));
}
