//! Streams that come as handles, from libraries that never say that one ends.

use crate::harness::{calls_wait, count, double, fail, hazards, kernel, kernel_on, run};
use cudarc::driver::sys;
use pool_core::{BucketPool, KIB, MIB, StreamClock, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaPinnedAllocator, PoolStream, Vram,
};
use std::sync::Barrier;
use std::{ptr, thread};

fn device() -> CudaDevice {
    CudaDevice::new(0).unwrap()
}

/// A registration by the handle of a stream that lives.
fn by_handle(device: &CudaDevice, handle: sys::CUstream) -> PoolStream {
    // SAFETY: each test keeps the stream until the call that uses the registration has returned.
    unsafe { device.stream_by_handle(handle) }.unwrap()
}

/// Streams that come and go without a word, each with the handle of the one before, and queued work on each.
fn handles_that_serve_again<A: Vram>(memory: impl Fn(CudaDevice) -> A) {
    for waits in [false, true] {
        let _one = double();
        calls_wait(waits);
        let device = device();
        let _first = device.context().new_stream().unwrap(); // cudarc waits for the device at the first
        let pool = BucketPool::new(memory(device.clone()));
        let mut handles = Vec::new();
        for turn in 0..20 {
            let theirs = device.context().new_stream().unwrap();
            let on = by_handle(&device, theirs.cu_stream());
            assert!(device.clock().is_on(&on, device.clock().mark(&on)));
            let buffer = pool.allocate_on(&on, MIB).unwrap();
            kernel(&buffer, &on);
            assert_eq!(
                by_handle(&device, theirs.cu_stream()).raw().cu_stream(),
                on.raw().cu_stream()
            );
            drop(buffer);
            handles.push(theirs.cu_stream());
            if turn % 7 == 6 {
                pool.clear().unwrap();
            }
        }
        handles.dedup();
        assert_eq!(handles.len(), 1, "the driver gives a handle again");
        assert_eq!(hazards(), 0);
        assert!(pool.stats().reserved_bytes <= 2 * MIB, "{:?}", pool.stats());
    }
}

#[test]
fn a_stream_with_the_handle_of_another_is_not_ordered_behind_it() {
    handles_that_serve_again(CudaAllocator::on);
    handles_that_serve_again(|device| CudaAsyncAllocator::new(device, u64::MAX).unwrap());
}

#[test]
fn memory_of_a_stream_that_is_gone_serves_another_behind_its_work() {
    let _one = double();
    calls_wait(false);
    let device = device();
    let kept = device.context().new_stream().unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let mut batch = {
        let theirs = device.context().new_stream().unwrap();
        let on = by_handle(&device, theirs.cu_stream());
        kernel(&pool.allocate_on(&on, MIB).unwrap(), &on);
        let batch = host.allocate_on(&on, KIB).unwrap();
        let at = batch.on(&on).unwrap().as_ptr().as_ptr().addr();
        assert_eq!(kernel_on(theirs.cu_stream().addr(), at as u64, 1024), 0);
        batch
    };
    // Its handle is nobody's, and then another stream's.
    let waits = count("cuCtxSynchronize");
    batch.on_cpu().unwrap();
    let other = device.context().new_stream().unwrap();
    let on = device.stream(&kept).unwrap();
    kernel(&pool.allocate_on(&on, MIB).unwrap(), &on);
    assert_eq!((pool.stats().misses, hazards()), (1, 0));
    assert!(count("cuCtxSynchronize") > waits, "no event tells of it");
    let on = by_handle(&device, other.cu_stream());
    kernel(&pool.allocate_on(&on, MIB).unwrap(), &on);
    assert_eq!((pool.stats().misses, hazards()), (1, 0));
}

/// The driver would free it in the order of another stream.
#[test]
fn memory_of_a_stream_that_is_gone_is_freed_behind_its_work() {
    let _one = double();
    calls_wait(false);
    let device = device();
    let _first = device.context().new_stream().unwrap();
    let pool = BucketPool::new(CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap());
    let theirs = device.context().new_stream().unwrap();
    kernel(
        &pool.allocate_on(&by_handle(&device, theirs.cu_stream()), MIB).unwrap(),
        &by_handle(&device, theirs.cu_stream()),
    );
    let handle = theirs.cu_stream();
    drop(theirs);
    let other = device.context().new_stream().unwrap();
    assert_eq!(other.cu_stream(), handle, "the driver gives a handle again");
    assert_eq!(pool.clear().unwrap(), MIB);
    let on = by_handle(&device, other.cu_stream());
    kernel(&pool.allocate_on(&on, MIB).unwrap(), &on);
    assert_eq!((pool.stats().misses, hazards()), (2, 0));
}

#[test]
fn a_handle_that_is_retired_costs_no_wait() {
    let _one = double();
    let device = device();
    let _first = device.context().new_stream().unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let waits = count("cuCtxSynchronize");
    for _ in 0..10 {
        let theirs = device.context().new_stream().unwrap();
        let on = by_handle(&device, theirs.cu_stream());
        kernel(&pool.allocate_on(&on, MIB).unwrap(), &on);
        device.retire_handle(theirs.cu_stream()).unwrap();
        device.retire_handle(theirs.cu_stream()).unwrap(); // it is known no more
        assert_eq!(pool.allocate_on(&on, MIB).unwrap_err().why(), Why::Foreign);
    }
    assert_eq!((pool.stats().misses, count("cuCtxSynchronize") - waits, hazards()), (1, 0, 0));
}

#[test]
fn the_small_handles_are_the_default_streams() {
    let _one = double();
    let device = device();
    let clock = device.clock();
    for small in [0, 1] {
        let on = by_handle(&device, ptr::without_provenance_mut(small));
        assert!(clock.is_on(clock.default_stream(), clock.mark(&on)), "{small}");
    }
    device.context().bind_to_thread().unwrap();
    let own = by_handle(&device, ptr::without_provenance_mut(2));
    let known = device.stream(&device.context().per_thread_stream()).unwrap();
    assert!(clock.is_on(&own, clock.mark(&known)));
    device.retire_handle(ptr::null_mut()).unwrap(); // it does not end
    assert!(BucketPool::new(CudaAllocator::on(device.clone())).allocate(KIB).is_ok());
}

/// An allocator makes streams of its own, whose handles may have been others'.
#[test]
fn a_stream_that_a_program_registers_is_not_the_one_that_had_its_handle() {
    for by in 0..3 {
        let _one = double();
        calls_wait(false);
        let device = device();
        let _first = device.context().new_stream().unwrap();
        let pool = BucketPool::new(CudaAllocator::on(device.clone()));
        let theirs = device.context().new_stream().unwrap();
        let old = by_handle(&device, theirs.cu_stream());
        kernel(&pool.allocate_on(&old, MIB).unwrap(), &old);
        drop(theirs);
        let ordered = (by == 2).then(|| CudaAsyncAllocator::new(device.clone(), 0).unwrap());
        let next = device.context().new_stream().unwrap();
        let on = match by {
            // SAFETY: the stream lives to the end of this turn.
            1 => unsafe { device.wrap_stream(next.cu_stream()) }.unwrap().keep(),
            _ => device.stream(&next).unwrap(),
        };
        assert!(!device.clock().is_on(&on, device.clock().mark(&old)));
        kernel(&pool.allocate_on(&on, MIB).unwrap(), &on);
        assert_eq!(hazards(), 0, "{by}");
        drop((pool, ordered));
        device.retire(&on).unwrap();
    }
}

#[test]
fn a_handle_that_an_owner_keeps_is_his() {
    let _one = double();
    let device = device();
    let theirs = device.context().new_stream().unwrap();
    let registered = device.stream(&theirs).unwrap();
    let on = by_handle(&device, theirs.cu_stream());
    let clock = device.clock();
    assert!(clock.is_on(&on, clock.mark(&registered)));
    device.retire(&registered).unwrap();
    let again = by_handle(&device, theirs.cu_stream());
    assert!(clock.owns(&again) && !clock.owns(&on));
}

#[test]
fn a_handle_that_the_driver_refuses_is_refused() {
    let _one = double();
    let (device, other) = (device(), CudaDevice::new(1).unwrap());
    let theirs = other.context().new_stream().unwrap();
    // SAFETY: the stream lives to the end of the test.
    let ask = || unsafe { device.stream_by_handle(theirs.cu_stream()) };
    assert_eq!(ask().unwrap_err().why, Why::Foreign);
    for step in ["cuStreamGetId", "cuStreamGetCtx"] {
        let own = device.context().new_stream().unwrap();
        fail(step, 0, 1, 0);
        // SAFETY: as above.
        let refused = unsafe { device.stream_by_handle(own.cu_stream()) };
        assert_eq!(refused.unwrap_err().call, step);
        assert!(device.clock().owns(&by_handle(&device, own.cu_stream())));
    }
}

#[test]
fn threads_whose_streams_come_and_go_beside_each_other() {
    let _one = double();
    calls_wait(false);
    let device = device();
    let _first = device.context().new_stream().unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let uses = || {
        device.context().bind_to_thread().unwrap();
        for turn in 0..50 {
            let theirs = device.context().new_stream().unwrap();
            (0..3).for_each(|_| {
                let on = by_handle(&device, theirs.cu_stream());
                kernel(&pool.allocate_on(&on, KIB << (turn % 3)).unwrap(), &on);
            });
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(uses))));
    run();
    assert_eq!((pool.stats().allocated_bytes, hazards()), (0, 0));
    pool.clear().unwrap();
    assert_eq!(pool.stats().reserved_bytes, 0);
}

/// A library that tells of no uses frees what it allocated on a stream whose end it has told.
#[test]
fn a_buffer_may_be_dropped_behind_a_stream_that_has_ended() {
    for told in [true, false] {
        let _one = double();
        calls_wait(false);
        let device = device();
        let _first = device.context().new_stream().unwrap(); // cudarc waits for the device at the first
        let theirs = device.context().new_stream().unwrap();
        let pool = BucketPool::new(CudaAllocator::on(device.clone()));
        let (on, other) = (by_handle(&device, theirs.cu_stream()), device.clock().default_stream());
        let buffer = pool.allocate_on(&on, KIB).unwrap();
        let at = buffer.on(&on).unwrap().as_ptr();
        device.clock().order(other, &[device.clock().mark(&on)]).unwrap(); // its event is before the kernel
        assert_eq!(kernel_on(theirs.cu_stream().addr(), at, 1024), 0);
        if told {
            device.retire_handle(theirs.cu_stream()).unwrap();
        }
        drop(theirs);
        buffer.drop_on(&on).unwrap();
        kernel(&pool.allocate(KIB).unwrap(), other);
        run();
        // Behind a stream that is gone the host would wait: that comes after a miss.
        assert_eq!((hazards(), pool.stats().misses == 1), (0, told));
    }
}

#[test]
fn threads_that_name_a_stream_at_once_have_one_registration() {
    const THREADS: usize = 4;
    let _one = double();
    let device = CudaDevice::new(0).unwrap();
    for round in 0..300 {
        let theirs = device.context().new_stream().unwrap();
        let handle = theirs.cu_stream().expose_provenance();
        let begin = Barrier::new(THREADS);
        let name = || {
            begin.wait();
            by_handle(&device, ptr::with_exposed_provenance_mut(handle))
        };
        let named: Vec<PoolStream> = thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(name));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let clock = device.clock();
        assert!(named.iter().all(|on| clock.owns(on)), "one was ended, round {round}");
        assert!(named.iter().all(|on| ptr::eq(on.raw(), named[0].raw())), "round {round}");
        device.retire_handle(theirs.cu_stream()).unwrap();
    }
}
