//! Section B of the audit: what is slow, or not as claimed.

use super::{device, stream};
use crate::harness::{capture, count, double, for_rdma, hazards, held, kernel, run, taken};
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use pool_core::stream::StealPolicy;
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, StreamClock, Why};
use pool_cuda::{CudaAllocator, CudaAsyncAllocator, CudaVmmAllocator, Exported, VmmConfig};

#[test]
fn b10_a_block_is_not_freed_in_another_librarys_capture() {
    let _one = double();
    let memory = CudaAsyncAllocator::new(device(), u64::MAX).unwrap();
    let s = stream(memory.device());
    let pool = BucketPool::builder(memory).cached_limit(0).build();
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    s.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let _ = pool.trim(0);
    assert!(s.raw().capture_status().is_ok_and(|status| status as u32 == 1), "it goes on");
    let refused = pool.allocate_on(&s, MIB).unwrap_err();
    assert_eq!(refused.why(), Why::NotSubmitted, "the pool does not know the graph");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    drop(s.raw().end_capture(flags).unwrap());
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    run();
    assert!(pool.allocate_on(&s, 2 * MIB).is_ok(), "the device lives");
    assert_eq!(hazards(), 0);
}

#[test]
fn b7_an_arena_has_a_handle_for_each_growth() {
    let _one = double();
    let memory = CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
    let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    drop(pool.allocate(256 * MIB).unwrap());
    assert_eq!((count("cuMemCreate"), held()), (1, 256 * MIB));
    let _more = pool.allocate(257 * MIB).unwrap();
    assert_eq!((count("cuMemCreate"), held()), (2, 264 * MIB), "1/32 of what it has");
    pool.clear().unwrap();
    assert_eq!(held(), 264 * MIB, "a block lies over both handles");
}

#[test]
fn nothing_is_unmapped_to_serve_a_miss_while_the_device_has_memory() {
    let _one = double();
    let memory = CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
    let arena = ArenaConfig::pages(2 * MIB, 0.0).least_growth(0.0, 0);
    let pool = BucketPool::builder(memory).policy(BucketPolicy::Exact).arena(arena).build();
    let blocks: Vec<_> = (0..16).map(|_| pool.allocate(2 * MIB).unwrap()).collect();
    drop(blocks.into_iter().step_by(2).collect::<Vec<_>>());
    // No stretch of free memory is long enough.
    let _large = pool.allocate(16 * MIB).unwrap();
    assert_eq!((count("cuMemUnmap"), count("cuEventSynchronize")), (0, 0));
}

#[test]
fn b8_a_drop_makes_no_call_that_may_wait_for_the_device() {
    let _one = double();
    let memory = CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
    let arena = ArenaConfig::pages(2 * MIB, 0.0);
    let pool = BucketPool::builder(memory).arena(arena).cached_limit(2 * MIB).build();
    let on = pool.allocator().device().clock().default_stream().clone();
    let buffers: Vec<_> = (0..8).map(|_| pool.allocate(2 * MIB).unwrap()).collect();
    for buffer in &buffers {
        kernel(buffer, &on);
    }
    let before = (count("cuMemUnmap"), count("cuMemSetAccess"), count("cuEventSynchronize"));
    drop(buffers);
    let after = (count("cuMemUnmap"), count("cuMemSetAccess"), count("cuEventSynchronize"));
    assert_eq!(after, before);
}

#[test]
fn b9_growth_of_a_page_at_a_time_gives_no_page_back() {
    let _one = double();
    let memory = CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
    let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    let (first, second) = (pool.allocate(2 * MIB).unwrap(), pool.allocate(2 * MIB).unwrap());
    drop(first);
    let _third = pool.allocate(3 * MIB).unwrap();
    assert_eq!(count("cuMemUnmap"), 0, "the page of the first stays");
    drop(second);
}

#[test]
fn b10_a_block_is_freed_on_the_stream_that_used_it_and_serves_it_again_at_once() {
    let _one = double();
    let memory = CudaAsyncAllocator::new(device(), u64::MAX).unwrap();
    let s = stream(memory.device());
    let pool = BucketPool::builder(memory).cached_limit(0).build();
    let first = pool.allocate_on(&s, MIB).unwrap();
    kernel(&first, &s);
    let at = first.on(&s).unwrap().as_ptr();
    drop(first);
    let (records, waits) = (count("cuEventRecord"), count("cuStreamWaitEvent"));
    pool.trim(0).unwrap();
    assert_eq!((count("cuEventRecord"), count("cuStreamWaitEvent")), (records, waits));
    let second = pool.allocate_on(&s, MIB).unwrap();
    assert_eq!((second.on(&s).unwrap().as_ptr(), taken()), (at, 2 * MIB));
    kernel(&second, &s);
    assert_eq!(hazards(), 0);
}

#[test]
fn b11_freed_memory_is_seen_before_a_request_fails() {
    let _one = double();
    let memory = CudaAsyncAllocator::new(device(), u64::MAX).unwrap();
    let s = stream(memory.device());
    let pool = BucketPool::builder(memory).policy(BucketPolicy::Exact).cached_limit(0).build();
    let first = pool.allocate_on(&s, 600 * MIB).unwrap();
    kernel(&first, &s);
    drop(first);
    pool.trim(0).unwrap();
    let second = pool.allocate_on(&s, 700 * MIB).unwrap();
    kernel(&second, &s);
    drop(second);
    pool.trim(0).unwrap();
    pool.allocator().trim_to(0).unwrap();
    assert_eq!((taken(), hazards()), (0, 0), "a trim waits for the frees");
}

#[test]
fn b11_a_trim_leaves_out_a_free_in_another_librarys_capture_and_waits_for_it_later() {
    let _one = double();
    let memory = CudaAsyncAllocator::new(device(), u64::MAX).unwrap();
    let (s, t) = (stream(memory.device()), stream(memory.device()));
    let pool = BucketPool::builder(memory).cached_limit(0).build();
    for on in [&s, &t] {
        kernel(&pool.allocate_on(on, 2 * MIB).unwrap(), on);
        pool.trim(0).unwrap();
    }
    s.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    pool.allocator().trim_to(0).unwrap();
    assert!(s.raw().capture_status().is_ok_and(|status| status as u32 == 1), "it goes on");
    assert_eq!(taken(), 2 * MIB, "the free on the captured stream has not been seen");
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    s.raw().end_capture(flags).unwrap();
    pool.allocator().trim_to(0).unwrap();
    assert_eq!((taken(), hazards()), (0, 0));
}

#[test]
fn b12_no_second_stream_of_cudarcs_is_made() {
    let _one = double();
    let device = device();
    let memory = CudaAsyncAllocator::new(device.clone(), 0).unwrap();
    assert!(!device.context().is_in_multi_stream_mode());
    assert_eq!(count("cuStreamCreate"), 2, "the allocator's own two");
    drop(memory);
    assert_eq!(count("cuStreamDestroy_v2"), 2);
}

#[test]
fn b13_a_recorded_use_makes_no_call_until_another_stream_wants_the_block() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::on(device()));
    let (s, t) = (stream(pool.allocator().device()), stream(pool.allocator().device()));
    let buffer = pool.allocate_on(&s, MIB).unwrap();
    kernel(&buffer, &s);
    let calls = count("");
    buffer.record_stream(&t).unwrap();
    drop(buffer);
    assert_eq!(count(""), calls, "recorded, no more");
    let waits = count("cuStreamWaitEvent");
    let again = pool.allocate_on(&s, MIB).unwrap();
    kernel(&again, &s);
    assert_eq!((count("cuStreamWaitEvent"), pool.stats().misses, hazards()), (waits + 1, 1, 0));
}

#[test]
fn b13_work_that_is_done_is_not_waited_for() {
    let _one = double();
    let pool = BucketPool::builder(CudaAllocator::on(device()));
    let pool = pool.arena(ArenaConfig::segments(MIB).steal(StealPolicy::Wait)).build();
    let (s, t) = (stream(pool.allocator().device()), stream(pool.allocator().device()));
    let both = [pool.allocate_on(&s, 512 * KIB).unwrap(), pool.allocate_on(&s, 512 * KIB).unwrap()];
    for buffer in &both {
        kernel(buffer, &s);
    }
    drop(both);
    let take = || pool.allocate_on(&t, 512 * KIB).unwrap();
    let first = take();
    kernel(&first, &t);
    let waits = count("cuStreamWaitEvent");
    assert_eq!(waits, 1, "an event is recorded, and waited for");
    let u = stream(pool.allocator().device());
    run();
    // The second half is behind the same event, which has passed.
    kernel(&pool.allocate_on(&u, 512 * KIB).unwrap(), &u);
    assert_eq!((count("cuStreamWaitEvent"), pool.stats().misses, hazards()), (waits, 1, 0));
}

#[test]
fn b14_a_pool_of_the_driver_is_asked_and_trimmed_beside_a_capture() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap());
    let s = stream(&device);
    let captured = capture(&pool, &s).unwrap();
    let other = CudaAsyncAllocator::new(device, 0).unwrap();
    assert_eq!(other.reserved_bytes(), Ok(0));
    other.trim_to(0).unwrap();
    drop(other);
    assert!(captured.end().is_ok());
}

#[test]
fn b15_memory_is_exported_as_it_was_made() {
    let _one = double();
    let exported = |config: &VmmConfig| {
        let memory = CudaVmmAllocator::with(device(), config).unwrap();
        let pool = BucketPool::new(memory);
        let buffer = pool.allocate(2 * MIB).unwrap();
        let at = buffer.on(pool.allocator().device().clock().default_stream()).unwrap().as_ptr();
        let (mut handle, mut file) = (0, 0_i32);
        let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let at = std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap());
        // SAFETY: the address is mapped; the call writes a local variable.
        let retained = unsafe { sys::cuMemRetainAllocationHandle(&raw mut handle, at) };
        retained.result().unwrap();
        let out = (&raw mut file).cast();
        // SAFETY: retained above; the call writes a local variable.
        let done = unsafe { sys::cuMemExportToShareableHandle(out, handle, kind, 0) };
        // SAFETY: retained above, and released once.
        unsafe { sys::cuMemRelease(handle) }.result().unwrap();
        (done as u32, for_rdma())
    };
    assert_eq!(exported(&VmmConfig::default()), (1, 0));
    let open = VmmConfig { exported_as: vec![Exported::File], rdma: true, ..VmmConfig::default() };
    assert_eq!(exported(&open), (0, 1));
    let fabric = VmmConfig { exported_as: vec![Exported::Fabric], ..VmmConfig::default() };
    let error = CudaVmmAllocator::with(device(), &fabric).unwrap_err();
    assert_eq!(error.why, Why::Unsupported);
}
