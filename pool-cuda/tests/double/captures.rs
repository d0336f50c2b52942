//! Graphs through cudarc's real calls.

use crate::harness::{
    capture, count, double, fail, hazards, held, kernel, leftovers, memory_calls, run,
};
use cudarc::driver::DriverError;
use cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode as Mode, CUstreamCaptureStatus,
};
use pool_core::port::Limit;
use pool_core::{ArenaConfig, BucketPool, DeviceAllocator, KIB, MIB, StreamClock, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaPinnedAllocator, CudaVmmAllocator,
    PoolStream, Vram, into_slice,
};
use std::thread;

fn streams<A: Vram>(pool: &BucketPool<A>, how_many: usize) -> Vec<PoolStream> {
    let device = pool.allocator().cuda_device();
    let new = |_| device.stream(&device.context().new_stream().unwrap()).unwrap();
    (0..how_many).map(new).collect()
}

/// The calls that a capture forbids.
fn forbidden() -> u64 {
    ["cuEventQuery", "cuEventSynchronize", "cuCtxSynchronize"].iter().map(|name| count(name)).sum()
}

fn a_chain_is_captured_and_launched<A: Vram>(pool: BucketPool<A>) {
    let [s, other] = streams(&pool, 2).try_into().unwrap();
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s); // something idle, behind work outside
    let captured = capture(&pool, &s).unwrap();
    let before = (forbidden(), count("cuEventRecord"));
    let result = pool.allocate_on(&s, MIB).unwrap();
    for _ in 0..10 {
        let scratch = pool.allocate_on(&s, MIB).unwrap();
        kernel(&scratch, &s);
        kernel(&result, &s);
    }
    assert_eq!((forbidden(), count("cuEventRecord")), before, "no event, no query in a capture");
    let mut graph = captured.end().unwrap();
    assert_eq!(pool.stats().served_by.private, 9, "the scratch of each step is the same block");
    let steady = memory_calls();
    for stream in [&s, &other, &s] {
        graph.launch(stream, &[&result]).unwrap();
        kernel(&result, &other); // behind the launch, and the next launch behind it
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
    a_chain_is_captured_and_launched(BucketPool::new(CudaAllocator::new(0).unwrap()));
}

#[test]
fn a_chain_over_memory_in_the_order_of_streams() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let memory = CudaAsyncAllocator::new(device, 0).unwrap();
    a_chain_is_captured_and_launched(BucketPool::new(memory));
}

#[test]
fn a_chain_over_an_arena_in_pages() {
    let _one = double();
    let memory = CudaVmmAllocator::new(CudaDevice::new(0).unwrap(), &[]).unwrap();
    let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    a_chain_is_captured_and_launched(pool);
}

#[test]
fn forked_streams_share_what_the_edges_order() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, t] = streams(&pool, 2).try_into().unwrap();
    let mut captured = capture(&pool, &s).unwrap();
    let input = pool.allocate_on(&s, MIB).unwrap();
    kernel(&input, &s);
    captured.fork(&t, &s).unwrap();
    kernel(&input, &t);
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!(pool.stats().misses, 3, "side by side");
    captured.join(&s, &t).unwrap();
    let both = [pool.allocate_on(&s, MIB).unwrap(), pool.allocate_on(&s, MIB).unwrap()];
    for buffer in &both {
        kernel(buffer, &s);
    }
    assert_eq!(pool.stats().misses, 3, "after both");
    drop((both, input));
    let mut graph = captured.end().unwrap();
    for _ in 0..3 {
        graph.launch(&s, &[]).unwrap();
        graph.launch(&t, &[]).unwrap();
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
    let captured = capture(&pool, &s).unwrap();
    kernel(&input, &s);
    assert_eq!(input.on(&load).unwrap_err().why, Why::NotSubmitted);
    let mut graph = captured.end().unwrap();
    graph.launch(&s, &[]).unwrap();
    assert_eq!(hazards(), 0);
    kernel(&input, &load);
    for turn in 0..10 {
        // It is loaded anew between launches, wherever they go.
        graph.launch(if turn % 2 == 0 { &s } else { &load }, &[&input]).unwrap();
        kernel(&input, if turn % 3 == 0 { &s } else { &load });
    }
    assert_eq!(hazards(), 0);
}

#[test]
fn a_launch_elsewhere_waits_for_what_the_captured_stream_was_given_before() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, t] = streams(&pool, 2).try_into().unwrap();
    let input = pool.allocate_on(&s, MIB).unwrap();
    kernel(&input, &s);
    let captured = capture(&pool, &s).unwrap();
    kernel(&input, &s);
    let mut graph = captured.end().unwrap();
    graph.launch(&t, &[]).unwrap();
    assert_eq!(hazards(), 0);
}

#[test]
fn edges_of_a_graph_order_nothing_outside_of_it() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, t] = streams(&pool, 2).try_into().unwrap();
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    let mut captured = capture(&pool, &s).unwrap();
    captured.fork(&t, &s).unwrap();
    drop(captured.end().unwrap());
    // t is not behind s: only in the graph was it.
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    assert_eq!((pool.stats().misses, hazards()), (1, 0));
}

#[test]
fn a_capture_takes_from_its_own_pool_only() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let other = BucketPool::new(CudaAllocator::on(device.clone()));
    let host = BucketPool::new(CudaPinnedAllocator::on(device));
    let [s, t] = streams(&pool, 2).try_into().unwrap();
    let staging = host.allocate(KIB).unwrap();
    let pending = host.allocate(KIB).unwrap();
    let cleared = other.allocate_on(&t, 16).unwrap();
    t.raw().memset_zeros(&mut &*cleared.on(&t).unwrap()).unwrap();
    drop(cleared);
    drop(pending.on(&t).unwrap());
    drop(pending); // only a query tells that it is done
    let mut captured = capture(&pool, &s).unwrap();
    assert_eq!(other.allocate_on(&s, KIB).unwrap_err().why(), Why::NotSubmitted);
    assert_eq!(host.allocate_on(&s, KIB).unwrap_err().why(), Why::NotSubmitted);
    assert_eq!(staging.on(&s).unwrap_err().why, Why::NotSubmitted);
    assert_eq!(captured.join(&s, &t).unwrap_err().why, Why::NotSubmitted);
    assert_eq!(captured.fork(&s, &t).unwrap_err().why, Why::NotSubmitted);
    let asked = count("cuEventQuery");
    drop(host.allocate(KIB).unwrap()); // on another stream: the query is none of the capture's
    assert_eq!(count("cuEventQuery"), asked + 1);
    drop(captured.end().unwrap());
    assert!(other.allocate_on(&s, KIB).is_ok());
}

#[test]
fn a_buffer_that_outlives_its_graph_is_behind_the_last_launch() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, t] = streams(&pool, 2).try_into().unwrap();
    let captured = capture(&pool, &s).unwrap();
    let result = pool.allocate_on(&s, MIB).unwrap();
    kernel(&result, &s);
    let mut graph = captured.end().unwrap();
    graph.launch(&t, &[]).unwrap();
    drop(graph);
    drop(result);
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    assert_eq!((pool.stats().misses, hazards()), (1, 0));
}

#[test]
fn a_block_of_a_graph_is_nobodys_slice() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = BucketPool::new(CudaAsyncAllocator::new(device, 0).unwrap());
    let [s] = streams(&pool, 1).try_into().unwrap();
    let captured = capture(&pool, &s).unwrap();
    let detached = pool.allocate_on(&s, KIB).unwrap().detach();
    drop(pool.allocate_on(&s, KIB).unwrap().detach());
    drop(pool.allocate_on(&s, KIB).unwrap());
    assert_eq!(pool.stats().served_by.private, 0, "what was detached is not lent again");
    let graph = captured.end().unwrap();
    assert_eq!(into_slice::<u8>(detached, s.raw()).unwrap_err().why, Why::Unsupported);
    assert_eq!((pool.stats().private_bytes, held()), (3 * KIB, 3 * KIB));
    drop(graph);
    pool.clear().unwrap();
    assert_eq!((pool.stats().reserved_bytes, held()), (0, 0));
}

#[test]
fn what_a_capture_lacks_comes_from_the_device_whatever_the_capture_forbids() {
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    let pool = BucketPool::builder(CudaAllocator::on(device)).reserved_limit(4 * MIB).build();
    let [s] = streams(&pool, 1).try_into().unwrap();
    let idle = [(); 4].map(|()| pool.allocate(MIB).unwrap());
    for buffer in &idle {
        kernel(buffer, pool.allocator().clock().default_stream());
    }
    drop(idle); // so that freeing them waits for their events
    assert_eq!(pool.stats().cached_bytes, 4 * MIB);
    let captured = capture(&pool, &s).unwrap();
    // Idle blocks go back to make room: `cuMemFree` and `cuMemAlloc` under the capture.
    let buffers = [(); 3].map(|()| pool.allocate_on(&s, MIB).unwrap());
    assert_eq!(pool.allocate_on(&s, 2 * MIB).unwrap_err().why(), Why::Limit(Limit::Reserved));
    for buffer in &buffers {
        kernel(buffer, &s);
    }
    let mut graph = captured.end().unwrap();
    graph.launch(&s, &[]).unwrap();
    assert_eq!(hazards(), 0);
}

#[test]
fn a_capture_that_fails_or_is_dropped_leaves_nothing_bound() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, t] = streams(&pool, 2).try_into().unwrap();
    let legacy = pool.allocator().clock().default_stream();
    assert_eq!(capture(&pool, legacy).unwrap_err().why, Why::NotSubmitted);
    for step in ["cuEventRecord", "cuStreamBeginCapture_v2"] {
        fail(step, 0, 1, 0);
        assert!(capture(&pool, &s).is_err(), "{step}");
    }
    for step in ["cuStreamEndCapture", "cuGraphInstantiateWithFlags"] {
        let mut captured = capture(&pool, &s).unwrap();
        assert_eq!(capture(&pool, &s).unwrap_err().why, Why::NotSubmitted);
        captured.fork(&t, &s).unwrap();
        drop(pool.allocate_on(&s, KIB));
        fail(step, 0, 1, 0);
        assert!(captured.end().is_err(), "{step}");
        let before = pool.stats().served_by.private;
        kernel(&pool.allocate_on(&s, KIB).unwrap(), &t);
        assert_eq!(pool.stats().served_by.private, before, "{step}: bound no more");
    }
    let captured = capture(&pool, &s).unwrap();
    drop(pool.allocate_on(&s, KIB));
    drop(captured);
    kernel(&pool.allocate_on(&s, KIB).unwrap(), &t);
    assert_eq!((leftovers(), hazards()), (0, 0));
}

/// Two inputs are last used on one stream, with an event between the two uses. The captured work
/// uses the later one first.
#[test]
fn a_launch_waits_for_the_later_of_two_marks_of_one_stream() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [copy, s, t, other] = streams(&pool, 4).try_into().unwrap();
    let (early, late) =
        (pool.allocate_on(&copy, KIB).unwrap(), pool.allocate_on(&copy, KIB).unwrap());
    kernel(&early, &copy);
    drop(early.on(&other).unwrap()); // records an event on `copy`
    kernel(&late, &copy);
    let mut captured = capture(&pool, &s).unwrap();
    captured.fork(&t, &s).unwrap();
    kernel(&late, &s);
    kernel(&early, &t);
    let mut graph = captured.end().unwrap();
    graph.launch(&s, &[]).unwrap();
    run();
    assert_eq!(hazards(), 0);
}

#[test]
fn a_graph_is_launched_into_no_capture() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, t, load] = streams(&pool, 3).try_into().unwrap();
    let input = pool.allocate_on(&load, KIB).unwrap();
    kernel(&input, &load);
    let captured = capture(&pool, &s).unwrap();
    kernel(&pool.allocate_on(&s, KIB).unwrap(), &s);
    kernel(&input, &s);
    let mut inner = captured.end().unwrap();
    let launches = count("cuGraphLaunch");
    let captured = capture(&pool, &s).unwrap();
    assert_eq!(inner.launch(&s, &[&input]).unwrap_err().why, Why::NotSubmitted);
    assert!(input.on(&load).is_ok(), "the refused launch is no use of it");
    let mut outer = captured.end().unwrap();
    t.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    assert_eq!(inner.launch(&t, &[]).unwrap_err().why, Why::NotSubmitted, "not the clock's");
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    t.raw().end_capture(flags).unwrap();
    assert_eq!(count("cuGraphLaunch"), launches, "the driver was given no launch");
    inner.launch(&t, &[&input]).unwrap();
    drop(inner);
    kernel(&pool.allocate_on(&load, KIB).unwrap(), &load);
    outer.launch(&s, &[]).unwrap();
    run();
    assert_eq!(hazards(), 0);
}

/// A launch asks the driver about the stream, whose owner may have destroyed it.
#[test]
fn a_graph_is_launched_on_no_stream_that_has_ended() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let [s, ended] = streams(&pool, 2).try_into().unwrap();
    let mut graph = capture(&pool, &s).unwrap().end().unwrap();
    pool.allocator().device().retire(&ended).unwrap();
    let asked = count("cuStreamIsCapturing");
    assert_eq!(graph.launch(&ended, &[]).unwrap_err().why, Why::Foreign);
    assert_eq!(count("cuStreamIsCapturing"), asked);
}

/// To wait for a stream in a capture would take the other stream into it, and the host cannot wait
/// for it then. cudarc takes no error from a view, and tells it with its next call.
#[test]
fn a_view_on_another_stream_than_its_use_breaks_no_capture() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let device = pool.allocator().device().clone();
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let [s, t, outside] = streams(&pool, 3).try_into().unwrap();
    let mut captured = capture(&pool, &s).unwrap();
    captured.fork(&t, &s).unwrap();
    let (of_capture, other) =
        (pool.allocate_on(&s, KIB).unwrap(), pool.allocate_on(&outside, KIB).unwrap());
    let locked = host.allocate_on(&outside, KIB).unwrap();
    let in_capture = of_capture.on(&s).unwrap();
    let (used, used_locked) = (other.on(&outside).unwrap(), locked.on(&outside).unwrap());
    let told = || assert_eq!(device.context().check_err(), Err(isolation()));
    outside.raw().memset_zeros(&mut &*in_capture).unwrap();
    told(); // of a call outside of the capture
    t.raw().memset_zeros(&mut &*in_capture).unwrap();
    told(); // of a call in the capture
    s.raw().memset_zeros(&mut &*used).unwrap();
    told(); // of memory that is used outside of the capture
    s.raw().memcpy_htod(&*used_locked, &mut &*in_capture).unwrap();
    told(); // of page-locked memory that is used there
    let own = device.stream(&device.context().per_thread_stream()).unwrap();
    let used = other.on(&own).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            s.raw().memset_zeros(&mut &*used).unwrap();
            told(); // of memory that is used on another thread's stream
        });
    });
    let status = outside.raw().capture_status().unwrap();
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    assert!(captured.end().is_ok(), "the capture goes on");
}

#[test]
fn a_view_on_another_stream_breaks_no_capture_of_another_library() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let device = pool.allocator().device().clone();
    let [s, theirs] = streams(&pool, 2).try_into().unwrap();
    let buffer = pool.allocate_on(&s, KIB).unwrap();
    let used = buffer.on(&s).unwrap();
    theirs.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    theirs.raw().memset_zeros(&mut &*used).unwrap();
    assert_eq!(device.context().check_err(), Err(isolation()));
    let status = theirs.raw().capture_status().unwrap();
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    assert!(theirs.raw().end_capture(flags).is_ok(), "it goes on");
}

fn isolation() -> DriverError {
    DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
}
