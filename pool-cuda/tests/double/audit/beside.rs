//! Other libraries' captures, other threads, and a driver that refuses: beside them no memory is
//! lost.

use super::{device, stream};
use crate::harness::{
    capture, count, double, fail, hazards, held, kernel, kernel_at, leftovers, mend, pinned, reset,
    run,
};
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use pool_core::port::VirtualMemory;
use pool_core::{
    ArenaConfig, BucketPolicy, BucketPool, DeviceAllocator, KIB, MIB, StreamClock, Why,
};
use pool_cuda::{
    BorrowedStream, CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaPinnedAllocator,
    CudaVmmAllocator, PoolStream, VmmConfig,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;

fn begin(on: &PoolStream) {
    on.raw().begin_capture(Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
}

/// A new stream that waits for the legacy stream.
fn blocking(device: &CudaDevice) -> BorrowedStream {
    let mut raw = std::ptr::null_mut();
    // SAFETY: creates a stream.
    unsafe { sys::cuStreamCreate(&raw mut raw, 0) }.result().unwrap();
    // SAFETY: just created in this context, and never destroyed.
    unsafe { device.wrap_stream(raw) }.unwrap()
}

fn end(on: &PoolStream) {
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    drop(on.raw().end_capture(flags));
}

#[test]
fn an_event_on_the_legacy_stream_breaks_no_capture_of_a_blocking_stream() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let legacy = device.clock().default_stream().clone();
    let (other, blocking) = (stream(&device), blocking(&device));
    kernel(&pool.allocate_on(&legacy, MIB).unwrap(), &legacy);
    let captured = capture(&pool, &blocking).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pool.allocate_on(&other, MIB).unwrap());
    });
    assert!(captured.end().is_ok(), "the capture goes on");
}

/// A steal makes the requesting stream wait for another one. On the legacy stream the wait would
/// break the capture, so the pool requests fresh memory instead.
#[test]
fn a_request_on_the_legacy_stream_steals_nothing_while_a_blocking_stream_is_captured() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let legacy = device.clock().default_stream().clone();
    let (other, blocking) = (stream(&device), blocking(&device));
    kernel(&pool.allocate_on(&other, MIB).unwrap(), &other);
    let captured = capture(&pool, &blocking).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pool.allocate_on(&legacy, MIB).unwrap());
    });
    assert!(captured.end().is_ok(), "the capture goes on");
}

#[test]
fn zeroing_on_the_legacy_stream_is_refused_while_a_blocking_stream_is_captured() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let (legacy, blocking) = (device.clock().default_stream().clone(), blocking(&device));
    let captured = capture(&pool, &blocking).unwrap();
    let refused = pool.allocate_zeroed_on(&legacy, MIB).unwrap_err();
    assert_eq!(refused.why(), Why::NotSubmitted);
    assert!(captured.end().is_ok(), "the capture goes on");
    assert!(pool.allocate_zeroed_on(&legacy, MIB).is_ok());
}

/// A capture has ended, but its work still runs, when the device has no memory left.
#[test]
fn a_request_waits_for_blocks_of_an_ended_capture_before_it_is_out_of_memory() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::on(device()));
    let (s, t) = (stream(pool.allocator().device()), stream(pool.allocator().device()));
    let large = 600 * MIB;
    kernel(&pool.allocate_on(&s, large).unwrap(), &s);
    begin(&s);
    pool.clear().unwrap();
    end(&s);
    assert!(pool.allocate_on(&t, large).is_ok());
    assert_eq!(pool.allocator().waiting_bytes(), 0);
}

/// A refused rollback leaves pieces at addresses that the pool takes for empty. Threads that map
/// and unmap there at once must not lose a piece, nor give one piece two places.
#[test]
fn threads_that_map_where_a_rollback_was_refused_share_no_piece() {
    let _one = double();
    for _ in 0..300 {
        reset();
        let memory = CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
        let block = memory.reserve(256 * MIB).unwrap();
        fail("cuMemSetAccess", 0, 1, 2);
        fail("cuMemUnmap", 0, 1, 304);
        assert!(memory.commit(&block, 0..64 * MIB).is_err());
        mend();
        let barrier = Barrier::new(3);
        let map_and_unmap = |half: std::ops::Range<u64>| {
            memory.device().context().bind_to_thread().unwrap();
            barrier.wait();
            while memory.commit(&block, half.clone()).is_err() {}
            memory.decommit(&block, half, &[]).unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| map_and_unmap(0..32 * MIB));
            scope.spawn(|| map_and_unmap(32 * MIB..64 * MIB));
            barrier.wait();
            memory.release_kept().unwrap();
        });
        VirtualMemory::release(&memory, block, &[]).unwrap();
        memory.release_kept().unwrap();
        assert_eq!((memory.refused_bytes(), held()), (0, 0));
    }
}

#[test]
fn a_miss_on_the_legacy_stream_is_served_while_a_blocking_stream_is_captured() {
    let _one = double();
    let device = device();
    let memory = CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap();
    let pool = BucketPool::new(memory);
    let legacy = device.clock().default_stream().clone();
    let blocking = blocking(&device);
    let captured = capture(&pool, &blocking).unwrap();
    assert!(pool.allocate_on(&legacy, MIB).is_ok());
    assert!(captured.end().is_ok(), "the capture goes on");
}

#[test]
fn page_locked_memory_waits_for_the_end_of_a_capture() {
    let _one = double();
    let device = device();
    let (pool, s) = (BucketPool::new(CudaPinnedAllocator::on(device.clone())), stream(&device));
    let buffer = pool.allocate(MIB).unwrap();
    drop(buffer.on(&s).unwrap());
    drop(buffer);
    begin(&s);
    pool.clear().unwrap();
    assert_eq!(pinned(), MIB, "the capture may use it");
    end(&s);
    pool.clear().unwrap();
    assert_eq!((pinned(), pool.stats().lost_bytes), (0, 0));
}

#[test]
fn a_reservation_that_goes_beside_a_capture_waits_for_its_end() {
    let _one = double();
    let device = device();
    let memory = CudaVmmAllocator::with(device.clone(), &VmmConfig::default()).unwrap();
    let s = stream(&device);
    let block = memory.reserve(256 * MIB).unwrap();
    memory.commit(&block, 0..64 * MIB).unwrap();
    memory.commit(&block, 128 * MIB..192 * MIB).unwrap();
    let mark = device.clock().mark(&s);
    begin(&s);
    VirtualMemory::release(&memory, block, &[mark]).unwrap();
    assert_eq!(memory.waiting_bytes(), 128 * MIB, "the capture may use what is mapped");
    end(&s);
    memory.release_kept().unwrap();
    assert_eq!((memory.waiting_bytes(), held()), (0, 0));
    drop(memory);
    assert_eq!(leftovers(), 0);
}

#[test]
fn what_a_refused_unmap_left_is_offered_again() {
    let _one = double();
    let memory = || CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
    for arena in [true, false] {
        let pool = match arena {
            true => BucketPool::builder(memory()).arena(ArenaConfig::grow()).build(),
            false => BucketPool::new(memory()),
        };
        drop(pool.allocate(64 * MIB).unwrap());
        fail("cuMemUnmap", 0, 1, 304);
        drop(pool);
        assert_eq!((held(), leftovers()), (0, 0), "arena: {arena}");
        mend();
    }
}

#[test]
fn a_refusal_of_a_block_that_waited_is_told_once() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::on(device()));
    let s = stream(pool.allocator().device());
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    begin(&s);
    pool.clear().unwrap();
    assert_eq!(pool.allocator().waiting_bytes(), MIB);
    end(&s);
    fail("cuMemFree_v2", 0, 1, 1);
    assert_eq!(pool.clear().unwrap_err().why(), Why::Other);
    assert_eq!((pool.clear().is_ok(), pool.allocator().waiting_bytes()), (true, 0));
    mend();
}

#[test]
fn a_miss_waits_for_no_block_of_another_stream() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::on(device()));
    let (s, t) = (stream(pool.allocator().device()), stream(pool.allocator().device()));
    kernel(&pool.allocate_on(&s, MIB).unwrap(), &s);
    begin(&s);
    pool.clear().unwrap();
    end(&s);
    drop(pool.allocate_on(&t, 2 * MIB).unwrap());
    assert_eq!(pool.allocator().waiting_bytes(), MIB, "its work is not done");
    run();
    drop(pool.allocate_on(&t, 4 * MIB).unwrap());
    assert_eq!(pool.allocator().waiting_bytes(), 0);
}

#[test]
fn pieces_that_the_driver_refuses_are_told_and_counted() {
    let _one = double();
    let memory = CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
    let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    drop(pool.allocate(64 * MIB).unwrap());
    fail("cuMemRelease", 0, 100, 304);
    assert!(pool.clear().is_err());
    assert_eq!(pool.allocator().refused_bytes(), held());
    assert!(held() > 0);
    mend();
    pool.clear().unwrap();
    assert_eq!((pool.allocator().refused_bytes(), held()), (0, 0));
}

#[test]
fn a_refused_request_keeps_no_pieces() {
    let _one = double();
    let memory = CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
    let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    assert!(pool.allocate(2000 * MIB).is_err());
    assert_eq!(held(), 0);
}

#[test]
fn two_misses_at_once_find_what_was_freed() {
    let _one = double();
    for _ in 0..20 {
        reset();
        let device = device();
        let memory = CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap();
        let pool = BucketPool::builder(memory).policy(BucketPolicy::Exact).cached_limit(0).build();
        for _ in 0..30 {
            let s = stream(&device);
            let buffer = pool.allocate_on(&s, 32 * MIB).unwrap();
            kernel(&buffer, &s);
            drop(buffer);
            pool.trim(0).unwrap();
        }
        let barrier = Barrier::new(2);
        let request = || {
            device.context().bind_to_thread().unwrap();
            let s = stream(&device);
            barrier.wait();
            let buffer = pool.allocate_on(&s, 400 * MIB);
            barrier.wait(); // both are alive together
            buffer.map(drop)
        };
        thread::scope(|scope| {
            let threads = [scope.spawn(request), scope.spawn(request)];
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
        });
        drop(pool);
        run();
    }
}

#[test]
fn an_allocation_for_a_capture_waits_for_no_other_stream() {
    let _one = double();
    let device = device();
    let memory = CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap();
    let pool = BucketPool::builder(memory).cached_limit(0).build();
    let (s, t, c) = (stream(&device), stream(&device), stream(&device));
    let buffer = pool.allocate_on(&s, MIB).unwrap();
    kernel(&buffer, &s);
    buffer.record_stream(&t).unwrap();
    kernel_at(&t, 0, 0); // work that the pool did not order
    let event = t.raw().record_event(None).unwrap();
    drop(buffer);
    pool.trim(0).unwrap(); // freed behind both
    let captured = capture(&pool, &c).unwrap();
    let buffer = pool.allocate_on(&c, MIB).unwrap();
    assert!(!event.is_complete(), "the host did not wait for `t`");
    drop((buffer, captured.end()));
    run();
    assert_eq!(hazards(), 0);
}

#[test]
fn a_free_that_fell_into_another_librarys_capture_is_not_lost() {
    let _one = double();
    let device = device();
    let memory = CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap();
    let s = stream(&device);
    let pool = BucketPool::builder(memory).cached_limit(0).build();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            device.context().bind_to_thread().unwrap();
            while !stop.load(Relaxed) {
                pool.trim(0).unwrap();
            }
        });
        for _ in 0..300 {
            drop((0..20).map(|_| pool.allocate_on(&s, KIB).unwrap()).collect::<Vec<_>>());
            begin(&s);
            thread::yield_now();
            // The free may have ended the capture: only the program can serialise the two.
            end(&s);
        }
        stop.store(true, Relaxed);
    });
    pool.clear().unwrap();
    run();
    assert_eq!(pool.stats().lost_bytes, 0);
}

#[test]
fn frees_of_streams_that_are_gone_are_forgotten() {
    let _one = double();
    let device = device();
    let memory = CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap();
    let pool = BucketPool::builder(memory).cached_limit(0).build();
    for _ in 0..100 {
        let s = stream(&device);
        drop(pool.allocate_on(&s, KIB).unwrap());
        pool.trim(0).unwrap();
        device.clock().synchronize(device.clock().mark(&s)).unwrap();
        device.retire(&s).unwrap();
    }
    assert!(pool.allocator().unseen_frees() < 4, "{}", pool.allocator().unseen_frees());
}

#[test]
fn a_watcher_hears_of_each_range_before_it_is_unmapped() {
    let _one = double();
    let memory = CudaVmmAllocator::with(device(), &VmmConfig::default()).unwrap();
    let (heard, at_that_time) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (count, then) = (heard.clone(), at_that_time.clone());
    memory.on_unmap(move |range| {
        count.fetch_add(range.end - range.start, Relaxed);
        then.store(held(), Relaxed);
    });
    let pool = BucketPool::builder(memory).arena(ArenaConfig::grow()).build();
    drop(pool.allocate(64 * MIB).unwrap());
    let before = held();
    pool.clear().unwrap();
    assert_eq!((heard.load(Relaxed), at_that_time.load(Relaxed)), (before, before));
}

/// A copy of the host's bytes would become a part of the graph, and run when they are gone.
#[test]
fn copies_are_kept_out_of_another_librarys_capture() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let s = stream(&device);
    let mut buffer = pool.allocate_on(&s, KIB).unwrap();
    begin(&s);
    let refused = [
        buffer.write_later(&s, 0, &[7; 64]).unwrap_err().why,
        buffer.read_later(&s, 0, 64).map(drop).unwrap_err().why,
        buffer.write_at_on(&s, 0, &[7; 64]).unwrap_err().why,
        buffer.read_at_on(&s, 0, &mut [0; 64]).unwrap_err().why,
    ];
    assert_eq!(refused, [Why::NotSubmitted; 4]);
    let copies = count("cuMemcpyHtoDAsync_v2") + count("cuMemcpyDtoHAsync_v2");
    assert_eq!(copies, 0, "the driver was given no copy");
    end(&s);
    buffer.write_at_on(&s, 0, &[7; 64]).unwrap();
}

#[test]
fn copies_on_the_legacy_stream_break_no_capture_of_a_blocking_stream() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let (legacy, blocking) = (device.clock().default_stream().clone(), blocking(&device));
    let mut buffer = pool.allocate(KIB).unwrap();
    let (on, mut graph) = (stream(&device), {
        let captured = capture(&pool, &blocking).unwrap();
        captured.end().unwrap()
    });
    graph.launch(&on, &[]).unwrap();
    let captured = capture(&pool, &blocking).unwrap();
    let refused = [
        buffer.write_at(0, &[7; 64]).unwrap_err().why,
        buffer.contents().unwrap_err().why,
        buffer.write_later(&legacy, 0, &[7; 64]).unwrap_err().why,
        graph.launch(&legacy, &[]).unwrap_err().why,
    ];
    assert_eq!(refused, [Why::NotSubmitted; 4]);
    assert!(captured.end().is_ok(), "the capture goes on");
    assert!(buffer.write_at(0, &[7; 64]).is_ok() && graph.launch(&legacy, &[]).is_ok());
}

#[test]
fn streams_of_two_captures_are_not_joined() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let [s, t, u] = [(); 3].map(|()| stream(&device));
    let mut first = capture(&pool, &s).unwrap();
    let second = capture(&pool, &t).unwrap();
    let refused = [
        first.join(&s, &t).unwrap_err().why,
        first.join(&t, &s).unwrap_err().why,
        first.fork(&u, &t).unwrap_err().why,
        first.fork(&t, &s).unwrap_err().why,
    ];
    assert_eq!(refused, [Why::NotSubmitted; 4]);
    first.fork(&u, &s).unwrap();
    assert!(first.end().is_ok() && second.end().is_ok(), "both captures go on");
}

#[test]
fn page_locked_memory_of_copies_goes_back_with_what_an_allocator_keeps() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let s = stream(&device);
    let bytes = vec![7; 128 << 20];
    let mut buffer = pool.allocate_on(&s, 128 * MIB).unwrap();
    buffer.write_later(&s, 0, &bytes).unwrap();
    assert!(pinned() >= 128 * MIB);
    pool.clear().unwrap();
    assert_eq!(pinned(), 0);
    assert!(buffer.contents().unwrap() == bytes, "the copy was waited for");
}
