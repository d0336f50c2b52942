//! Findings of the outside audit of November 2026 that are not faults of order.

use super::{device, stream};
use crate::harness::{
    capture, count, double, fail, hazards, held, kernel, kernel_at, memory_calls, pinned, run,
};
use cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use pool_core::port::Arrival;
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, DeviceError, KIB, MIB, StreamClock, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaCapture, CudaDevice, CudaPinnedAllocator, CudaPools,
    CudaVmmAllocator, PinnedBytes, PoolStream, copy_to_peer, use_on_peer,
};
use std::sync::mpsc;
use std::thread;

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

const FLAGS: Flags = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

/// Begins a capture as another library does.
fn begin(on: &PoolStream) {
    on.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
}

/// `write_later` waits for nothing while less than its bound is on its way.
#[test]
fn a_large_write_waits_for_no_earlier_one() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let s = stream(&device);
    let bytes = vec![7; 60 << 20];
    let mut buffer = pool.allocate_on(&s, 60 * MIB).unwrap();
    for _ in 0..4 {
        buffer.write_later(&s, 0, &bytes).unwrap();
    }
    assert_eq!(count("cuEventSynchronize"), 0, "the host waited");
    assert_eq!(buffer.read_later(&s, 0, 60 << 20).unwrap().wait().unwrap(), bytes);
}

#[test]
fn writes_lock_no_more_than_their_bound() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let s = stream(&device);
    let mut buffer = pool.allocate_on(&s, 100 * MIB).unwrap();
    for turn in 0..6_u8 {
        buffer.write_later(&s, 0, &vec![turn; 100 << 20]).unwrap();
        // One more is being filled.
        assert!(pinned() <= 264 * MIB, "{} MiB are page-locked", pinned() / MIB);
    }
    let mut last = [0; 9];
    buffer.read_at_on(&s, 100 * MIB - 9, &mut last).unwrap();
    assert_eq!((last, hazards()), ([5; 9], 0));
    pool.clear().unwrap();
    assert_eq!(pinned(), 0);
}

#[test]
fn a_miss_waits_for_no_default_stream_of_another_thread() {
    let _one = double();
    let device = device();
    let builder = BucketPool::builder(CudaAllocator::on(device.clone()));
    let pool = builder.policy(BucketPolicy::Exact).build();
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let (has_used, used) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let on_its_own = {
        let (device, pool, host) = (device.clone(), pool.clone(), host.clone());
        move || {
            device.context().bind_to_thread().unwrap();
            let own = device.stream(&device.context().per_thread_stream()).unwrap();
            kernel(&pool.allocate_on(&own, 600 * MIB).unwrap(), &own);
            drop(host.allocate_on(&own, MIB).unwrap().on(&own).unwrap());
            has_used.send(()).unwrap();
            ends.recv().unwrap_err(); // its stream would end with it
        }
    };
    let thread = thread::spawn(on_its_own);
    used.recv().unwrap();
    let s = stream(&device); // the first stream lets cudarc wait for the context
    let before = count("cuCtxSynchronize");
    let _buffers = (pool.allocate_on(&s, 400 * MIB).unwrap(), host.allocate_on(&s, MIB).unwrap());
    assert_eq!(count("cuCtxSynchronize"), before, "the host waited for the context");
    let large = pool.allocate_on(&s, 600 * MIB).unwrap();
    kernel(&large, &s);
    let waits = count("cuCtxSynchronize") - before;
    assert_eq!((waits, hazards()), (1, 0), "there is no other way");
    drop(end);
    thread.join().unwrap();
}

#[test]
fn a_miss_notices_the_capture_of_another_library() {
    let _one = double();
    let device = device();
    let s = stream(&device);
    let whole = BucketPool::new(CudaAllocator::on(device.clone()));
    let memory = CudaVmmAllocator::new(device.clone(), &[]).unwrap();
    let pages = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    begin(&s);
    assert_eq!(whole.allocate_on(&s, KIB).unwrap_err().why(), Why::NotSubmitted);
    assert_eq!(pages.allocate_on(&s, KIB).unwrap_err().why(), Why::NotSubmitted);
    assert_eq!(held(), 0);
    assert!(s.raw().end_capture(FLAGS).is_ok(), "the capture goes on");
    assert!(whole.allocate_on(&s, KIB).is_ok());
}

#[test]
fn a_use_breaks_no_capture_of_another_library() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let (s, t) = (stream(&device), stream(&device));
    let buffer = pool.allocate_on(&t, KIB).unwrap();
    kernel(&buffer, &t);
    begin(&s);
    assert_eq!(buffer.on(&s).map(drop).unwrap_err().why, Why::NotSubmitted);
    assert!(s.raw().end_capture(FLAGS).is_ok(), "the capture goes on");
    kernel(&buffer, &s);
    run();
    assert_eq!(hazards(), 0);
}

/// Calls `work` in a capture that the pool adopts, and launches its graph on two streams between
/// which the pool's memory is used.
#[test]
fn an_adopted_capture_keeps_its_memory_while_its_graph_lives() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let [s, t, side] = [(); 3].map(|()| stream(&device));
    let input = pool.allocate_on(&t, KIB).unwrap();
    kernel(&input, &t); // behind no event yet
    begin(&s);
    // SAFETY: the input outlives the graph.
    let mut adopted = unsafe { CudaCapture::adopt(&pool, &s) }.unwrap();
    // SAFETY: as above.
    let again = unsafe { CudaCapture::adopt(&pool, &s) }.unwrap_err();
    assert_eq!(again.why, Why::NotSubmitted, "a capture has one pool");
    // SAFETY: it is in no other capture.
    let early = unsafe { adopted.take_in(&side) }.unwrap_err();
    assert_eq!(early.why, Why::NotSubmitted, "it is in no capture");
    side.raw().join(s.raw()).unwrap();
    // SAFETY: it was just joined.
    unsafe { adopted.take_in(&side) }.unwrap();
    let scratch = pool.allocate_on(&s, MIB).unwrap();
    kernel(&scratch, &s);
    kernel(&input, &s);
    drop(scratch);
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s); // the same block
    kernel(&pool.allocate_on(&side, MIB).unwrap(), &side); // another one
    s.raw().join(side.raw()).unwrap();
    let early = adopted.end().unwrap_err();
    assert_eq!(early.why, Why::NotSubmitted, "the other library has not ended it");
    let graph = s.raw().end_capture(FLAGS).unwrap().unwrap();
    let memory = adopted.end().unwrap();
    assert_eq!((memory.cached_bytes(), pool.stats().private_bytes), (2 * MIB, 2 * MIB));
    let launch = || graph.launch().map_err(|_| DeviceError::new(Why::Other, "a launch"));
    for turn in 0..3 {
        let uses = (turn > 0).then(|| input.on(&s).unwrap());
        memory.launch(&s, launch).unwrap();
        drop(uses);
        kernel(&pool.allocate_on(&t, MIB).unwrap(), &t); // none of the graph's
    }
    drop((graph, memory));
    kernel(&pool.allocate_on(&t, MIB).unwrap(), &t);
    run();
    assert_eq!(hazards(), 0);
}

/// What was given to the stream before the capture has no event, and none can be recorded.
#[test]
fn work_before_an_adopted_capture_is_waited_for_after_it() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let (s, t) = (stream(&device), stream(&device));
    let before = pool.allocate_on(&s, KIB).unwrap();
    kernel(&before, &s);
    begin(&s);
    // SAFETY: nothing is captured.
    let adopted = unsafe { CudaCapture::adopt(&pool, &s) }.unwrap();
    assert_eq!(before.on(&t).map(drop).unwrap_err().why, Why::NotSubmitted);
    drop(s.raw().end_capture(FLAGS).unwrap());
    drop(adopted);
    kernel(&before, &t);
    drop(before);
    kernel(&pool.allocate_on(&t, KIB).unwrap(), &t);
    run();
    assert_eq!(hazards(), 0);
}

/// A capture whose graph cannot be made is ended once.
#[test]
fn a_graph_that_finds_no_memory_gets_what_the_pool_keeps() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let (s, other) = (stream(&device), stream(&device));
    drop(pool.allocate_on(&other, MIB).unwrap());
    let captured = capture(&pool, &s).unwrap();
    fail("cuGraphInstantiateWithFlags", 0, 1, 2);
    let graph = captured.end();
    assert!(graph.is_ok(), "it was made at the second try");
    assert_eq!(pool.stats().cached_bytes, 0);
    let captured = capture(&pool, &s).unwrap();
    fail("cuGraphInstantiateWithFlags", 0, 1, 2);
    assert_eq!(captured.end().unwrap_err().why, Why::OutOfMemory, "nothing is cached");
    assert_eq!(count("cuStreamEndCapture"), 2);
}

#[test]
fn unknown_errors_twice_in_a_row_are_a_loss() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    fail("cuMemAlloc_v2", 0, 1, 999);
    assert_eq!(pool.allocate(KIB).unwrap_err().why(), Why::Other);
    assert!(pool.allocate(KIB).is_ok());
    fail("cuMemAlloc_v2", 0, 1, 999);
    assert_eq!(pool.allocate(MIB).unwrap_err().why(), Why::Other, "it has succeeded since");
    fail("cuMemAlloc_v2", 0, 1, 999);
    assert_eq!(pool.allocate(2 * MIB).unwrap_err().why(), Why::Lost);
    assert_eq!(device.clock().fault().map(|fault| fault.why), Some(Why::Lost));
    let before = memory_calls();
    assert_eq!(pool.allocate(MIB).unwrap_err().why(), Why::Lost);
    assert_eq!(memory_calls(), before, "a lost device is not asked");
}

#[test]
fn two_devices_of_one_gpu_know_each_others_streams() {
    let _one = double();
    let (device, other) = (CudaDevice::new(0).unwrap(), CudaDevice::new(0).unwrap());
    let pools = [&device, &other].map(|device| BucketPool::new(CudaAllocator::on(device.clone())));
    let s = stream(&device);
    assert!(pools[1].allocate_on(&s, KIB).is_ok());
    let owner = device.context().new_stream().unwrap();
    // SAFETY: the owner keeps the stream until both have retired it.
    let [one, two] =
        [&device, &other].map(|device| unsafe { device.wrap_stream(owner.cu_stream()) }.unwrap());
    kernel(&pools[0].allocate_on(&one, KIB).unwrap(), &one);
    one.retire().unwrap();
    assert!(pools[1].allocate_on(&two, KIB).is_ok(), "the other has it still");
    two.retire().unwrap();
    drop(owner);
    kernel(&pools[0].allocate_on(&s, KIB).unwrap(), &s);
    run();
    assert_eq!(hazards(), 0);
}

#[test]
fn one_page_locked_pool_serves_two_devices() {
    let _one = double();
    let (here, there) = (CudaDevice::new(0).unwrap(), CudaDevice::new(1).unwrap());
    let host = BucketPool::new(CudaPinnedAllocator::on(here.clone()));
    let (s, theirs) = (stream(&here), stream(&there));
    let mut bytes = host.allocate_on(&s, KIB).unwrap();
    bytes.bytes_mut().unwrap().fill(3);
    let at = |at: *const u8| at.addr() as u64;
    use_on_peer(&bytes, &s, (&there, &theirs), |view| {
        assert_eq!(kernel_at(&theirs, at(view.as_ptr().as_ptr()), KIB), 0);
    })
    .unwrap();
    drop(bytes);
    let mut next = host.allocate_on(&s, KIB).unwrap();
    crate::harness::touch(next.bytes_mut().unwrap());
    run();
    assert_eq!(hazards(), 0);
}

#[test]
fn a_copy_between_devices_is_in_the_order_of_both() {
    let _one = double();
    let pools = CudaPools::on_all(|device| Ok(BucketPool::new(CudaAllocator::on(device)))).unwrap();
    let device = |ordinal| pools.device(ordinal).unwrap().allocator().device().clone();
    let (s, theirs) = (stream(&device(0)), stream(&device(1)));
    for turn in 0..20_u8 {
        let mut source = pools.allocate_on(&s, KIB).unwrap();
        let mut target = pools.allocate_on(&theirs, KIB).unwrap();
        source.write_at_on(&s, 0, &[turn; 1024]).unwrap();
        kernel(&target, &theirs);
        copy_to_peer((&source, &s), (&mut target, &theirs)).unwrap();
        drop(source);
        let mut bytes = [0; 1024];
        target.read_at_on(&theirs, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [turn; 1024]);
        let small = &mut pools.allocate_on(&theirs, 8).unwrap();
        let large = pools.allocate_on(&s, KIB).unwrap();
        let refused = copy_to_peer((&large, &s), (small, &theirs)).unwrap_err();
        assert_eq!(refused.why, Why::OutOfRange);
    }
    run();
    assert_eq!(hazards(), 0);
}

/// A drop that the driver refuses gives up its part, so that whoever wraps the stream anew ends it.
#[test]
fn a_stream_whose_retirement_was_refused_ends_with_the_next_one() {
    let _one = double();
    let device = device();
    let owner = device.context().new_stream().unwrap();
    // SAFETY: the owner keeps the stream until it is retired.
    let wrap = || unsafe { device.wrap_stream(owner.cu_stream()) }.unwrap();
    let first = wrap();
    let name = format!("{:?}", *first);
    begin(&first);
    drop(first); // refused: no event is recorded in a capture
    owner.end_capture(FLAGS).unwrap();
    let again = wrap();
    assert_eq!(format!("{:?}", *again), name, "it is registered still");
    again.retire().unwrap();
    assert_ne!(format!("{:?}", *wrap()), name, "it has ended");
    let (kept, other) = (wrap().keep(), wrap());
    other.retire().unwrap();
    assert_eq!(format!("{:?}", *wrap()), format!("{kept:?}"), "what is kept stays");
    device.retire(&kept).unwrap();
}

#[test]
fn parts_of_another_threads_default_stream_serve_where_nothing_else_is_left() {
    let _one = double();
    let device = device();
    let memory = || CudaAllocator::on(device.clone());
    let segments = BucketPool::builder(memory()).arena(ArenaConfig::segments(20 * MIB));
    let pool = segments.reserved_limit(20 * MIB).build();
    let held = thread::scope(|scope| {
        let on_its_own = || {
            device.context().bind_to_thread().unwrap();
            let own = device.stream(&device.context().per_thread_stream()).unwrap();
            let [kept, dropped] = [(); 2].map(|()| pool.allocate_on(&own, 8 * MIB).unwrap());
            kernel(&dropped, &own);
            kept
        };
        scope.spawn(on_its_own).join().unwrap()
    });
    let s = stream(&device);
    kernel(&pool.allocate_on(&s, 8 * MIB).unwrap(), &s);
    drop(held);
    assert_eq!(hazards(), 0);
}

#[test]
fn bytes_on_the_default_stream_of_a_thread_arrive_for_all() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let arrival = thread::scope(|scope| {
        let on_its_own = || {
            device.context().bind_to_thread().unwrap();
            let own = device.stream(&device.context().per_thread_stream()).unwrap();
            let buffer = pool.allocate_on(&own, KIB).unwrap();
            kernel(&buffer, &own);
            buffer.read_later(&own, 0, 1024).unwrap()
        };
        scope.spawn(on_its_own).join().unwrap()
    });
    run();
    assert_eq!(arrival.is_here(), Ok(true));
}

#[test]
fn an_adopted_capture_ends_on_its_own_thread() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let own = device.stream(&device.context().per_thread_stream()).unwrap();
    begin(&own);
    // SAFETY: nothing is captured.
    let mut adopted = unsafe { CudaCapture::adopt(&pool, &own) }.unwrap();
    let ended = thread::scope(|scope| scope.spawn(|| adopted.end()).join().unwrap());
    assert_eq!(ended.unwrap_err().why, Why::Foreign);
    own.raw().end_capture(FLAGS).unwrap();
    assert!(adopted.end().is_ok());
}

#[test]
fn a_graph_of_others_is_launched_into_no_capture_of_others() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let s = stream(&device);
    begin(&s);
    // SAFETY: the captured work uses memory of the capture only.
    let mut adopted = unsafe { CudaCapture::adopt(&pool, &s) }.unwrap();
    kernel(&pool.allocate_on(&s, KIB).unwrap(), &s);
    let graph = s.raw().end_capture(FLAGS).unwrap().unwrap();
    let memory = adopted.end().unwrap();
    begin(&s);
    let launch = || graph.launch().map_err(|_| DeviceError::new(Why::Other, "a launch"));
    assert_eq!(memory.launch(&s, launch).unwrap_err().why, Why::NotSubmitted);
    s.raw().end_capture(FLAGS).unwrap();
    assert_eq!(memory.launch(&s, launch), Ok(()));
}

#[test]
fn unknown_errors_of_two_calls_are_no_loss() {
    let _one = double();
    let device = device();
    let (whole, host) = (
        BucketPool::new(CudaAllocator::on(device.clone())),
        BucketPool::new(CudaPinnedAllocator::on(device)),
    );
    fail("cuMemHostAlloc", 0, 1, 999);
    assert_eq!(host.allocate(KIB).unwrap_err().why(), Why::Other);
    fail("cuMemAlloc_v2", 0, 1, 999);
    assert_eq!(whole.allocate(KIB).unwrap_err().why(), Why::Other);
    assert!(whole.allocate(KIB).is_ok());
}

/// cudarc counts the streams of each handle of a context for itself.
#[test]
fn a_device_has_the_context_that_it_was_opened_with() {
    let _one = double();
    let first = device();
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let second = CudaDevice::in_context(context.clone()).unwrap();
    assert!(std::sync::Arc::ptr_eq(second.context(), &context));
    let s = stream(&second);
    assert!(BucketPool::new(CudaAllocator::on(first)).allocate_on(&s, KIB).is_ok());
}

/// Memory that the driver keeps of freed blocks is no room for a graph.
#[test]
fn a_graph_finds_what_a_pool_of_the_drivers_keeps() {
    let _one = double();
    let device = device();
    let memory = CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap();
    let pool = BucketPool::new(memory);
    let (s, other) = (stream(&device), stream(&device));
    drop(pool.allocate_on(&other, MIB).unwrap());
    let captured = capture(&pool, &s).unwrap();
    fail("cuGraphInstantiateWithFlags", 0, 1, 2);
    assert!(captured.end().is_ok());
    assert_eq!(pool.allocator().reserved_bytes(), Ok(0));
}
