//! Streams, contexts, and what a steady program costs.

use crate::harness::{
    capture, count, double, events, fail, hazards, held, kernel, leftovers, memory_calls, mend, run,
};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, DriverError, result};
use pool_core::{ArenaConfig, BucketPolicy, BucketPool, KIB, MIB, PoolBuilder, StreamClock, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaVmmAllocator, PoolStream, VmmConfig, Vram,
};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

fn device() -> CudaDevice {
    CudaDevice::new(0).unwrap()
}

fn streams(device: &CudaDevice, how_many: usize) -> Vec<PoolStream> {
    let new = |_| device.stream(&device.context().new_stream().unwrap()).unwrap();
    (0..how_many).map(new).collect()
}

/// Three streams pass buffers on; after a while that costs no memory call and no new event.
fn steady<A: Vram>(pool: &BucketPool<A>) {
    let streams = streams(pool.allocator().cuda_device(), 3);
    let turn = |i: usize| {
        let (s, t) = (&streams[i % 3], &streams[(i + 2) % 3]);
        let buffer = pool.allocate_on(s, MIB).unwrap();
        kernel(&buffer, s);
        if i.is_multiple_of(2) {
            kernel(&buffer, t);
        }
    };
    (0..300).for_each(turn); // until each stream has as many events as it remembers
    let (memory, created, recorded) =
        (memory_calls(), count("cuEventCreate"), count("cuEventRecord"));
    (300..600).for_each(turn);
    assert_eq!((memory_calls(), count("cuEventCreate")), (memory, created));
    let records = count("cuEventRecord") - recorded;
    assert!(records > 0 && records <= 450, "{records} events recorded");
    assert_eq!(hazards(), 0);
}

#[test]
fn streams_hand_buffers_on_without_memory_calls_and_without_new_events() {
    let _one = double();
    steady(&BucketPool::new(CudaAllocator::on(device())));
}

#[test]
fn so_does_memory_in_the_order_of_streams() {
    let _one = double();
    steady(&BucketPool::new(CudaAsyncAllocator::new(device(), u64::MAX).unwrap()));
}

#[test]
fn so_does_an_arena_in_pages() {
    let _one = double();
    let memory = CudaVmmAllocator::new(device(), &[]).unwrap();
    steady(&BucketPool::builder(memory).arena(ArenaConfig::grow()).build());
}

#[test]
fn a_stream_is_registered_once_and_another_devices_is_refused() {
    let _one = double();
    let (device, other) = (device(), CudaDevice::new(1).unwrap());
    let raw = device.context().new_stream().unwrap();
    let (once, twice) = (device.stream(&raw).unwrap(), device.stream(&raw).unwrap());
    assert_eq!(format!("{once:?}"), format!("{twice:?}"));
    let pool = BucketPool::new(CudaAllocator::on(device));
    assert_eq!(other.stream(&raw).unwrap_err().why, Why::Foreign);
    let foreign = other.stream(&other.context().new_stream().unwrap()).unwrap();
    assert_eq!(pool.allocate_on(&foreign, 1).unwrap_err().why(), Why::Foreign);
    assert!(pool.allocate_on(&once, 1).is_ok());
}

#[test]
fn allocators_of_one_device_share_their_streams_order() {
    let _one = double();
    let device = device();
    let s = streams(&device, 1).remove(0);
    let plain = BucketPool::new(CudaAllocator::on(device.clone()));
    let ordered = BucketPool::new(CudaAsyncAllocator::new(device, 0).unwrap());
    kernel(&plain.allocate_on(&s, KIB).unwrap(), &s);
    kernel(&ordered.allocate_on(&s, KIB).unwrap(), &s);
    assert_eq!(hazards(), 0);
}

#[test]
fn the_legacy_stream_gets_events_like_any_other() {
    let _one = double();
    let device = device();
    let s = streams(&device, 1).remove(0);
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let buffer = pool.allocate(KIB).unwrap();
    kernel(&buffer, device.clock().default_stream());
    kernel(&buffer, &s);
    assert_eq!((count("cuStreamWaitEvent"), hazards()), (1, 0));
    // SAFETY: `CU_STREAM_LEGACY` is the null stream.
    let again = unsafe { device.context().wrap_borrowed_stream(ptr::without_provenance_mut(1)) };
    let again = device.stream(&again).unwrap();
    assert_eq!(format!("{again:?}"), format!("{:?}", device.clock().default_stream()));
}

#[test]
fn the_per_thread_stream_is_each_threads_own() {
    let _one = double();
    let device = device();
    let own = || device.stream(&device.context().per_thread_stream()).unwrap();
    let here = own();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let buffer = pool.allocate_on(&here, KIB).unwrap();
    kernel(&buffer, &here);
    thread::scope(|scope| {
        scope.spawn(|| {
            device.context().bind_to_thread().unwrap();
            let there = own();
            assert_ne!(format!("{here:?}"), format!("{there:?}"));
            // An event cannot be recorded on the other thread's stream: the host waits.
            let before = count("cuCtxSynchronize");
            kernel(&buffer, &there);
            assert_eq!(count("cuCtxSynchronize"), before + 1);
            device.retire(&there).unwrap();
        });
    });
    assert_eq!(format!("{here:?}"), format!("{:?}", own()));
    kernel(&buffer, &here);
    assert_eq!(hazards(), 0);
}

/// The handle is that of this thread's own default stream, on which nothing is ordered.
#[test]
fn work_on_the_default_stream_of_another_thread_is_waited_for() {
    let _one = double();
    let device = device();
    let here = device.stream(&device.context().per_thread_stream()).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let buffer = pool.allocate_on(&here, KIB).unwrap();
    kernel(&buffer, &here);
    let used = buffer.on(&here).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let context = device.context();
            context.bind_to_thread().unwrap();
            context.per_thread_stream().memset_zeros(&mut &*used).unwrap();
        });
    });
    drop(used);
    drop(buffer);
    kernel(&pool.allocate_on(&here, KIB).unwrap(), &here);
    run();
    assert_eq!((pool.stats().hits, hazards()), (1, 0));
}

/// That wait is for the whole context, which breaks captures.
#[test]
fn the_wait_for_another_threads_default_stream_breaks_no_capture() {
    let _one = double();
    let device = device();
    let here = device.stream(&device.context().per_thread_stream()).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let buffer = pool.allocate_on(&here, KIB).unwrap();
    let captured = capture(&pool, &streams(&device, 1)[0]).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let context = device.context();
            context.bind_to_thread().unwrap();
            let used = buffer.on(&here).unwrap();
            let _told = context.per_thread_stream().memset_zeros(&mut &*used);
            assert!(context.check_err().is_err(), "that it was not waited for is told");
        });
    });
    assert!(captured.end().is_ok(), "the capture goes on");
}

#[test]
fn a_wrapped_stream_is_retired_before_its_owner_destroys_it() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let handle = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    // SAFETY: it is a stream of this context, and is destroyed after it was retired.
    let theirs = unsafe { device.wrap_stream(handle) }.unwrap();
    // SAFETY: as above.
    let twice = unsafe { device.wrap_stream(handle) }.unwrap();
    assert_eq!(format!("{:?}", *twice), format!("{:?}", *theirs), "one registration");
    twice.retire().unwrap();
    kernel(&pool.allocate_on(&theirs, KIB).unwrap(), &theirs);
    fail("cuEventRecord", 0, 1, 0);
    let (theirs, error) = theirs.retire().unwrap_err();
    assert_eq!((error.why, error.call), (Why::Other, "cuEventRecord"));
    theirs.retire().unwrap();
    // SAFETY: created above, and not used afterwards.
    unsafe { result::stream::destroy(handle) }.unwrap();
    let other = streams(&device, 1).remove(0);
    kernel(&pool.allocate_on(&other, KIB).unwrap(), &other);
    assert_eq!((pool.stats().misses, hazards()), (1, 0), "its memory is not stranded");
    // The driver may give the same handle to a new stream, which is another one.
    let again = device.context().new_stream().unwrap();
    assert!(pool.allocate_on(&device.stream(&again).unwrap(), KIB).is_ok());
}

#[test]
fn a_wrapped_stream_that_is_dropped_is_retired() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let other = streams(&device, 1).remove(0);
    let handle = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    // SAFETY: a stream of this context, destroyed after the drop, which no capture forbids.
    let theirs = unsafe { device.wrap_stream(handle) }.unwrap();
    kernel(&pool.allocate_on(&theirs, KIB).unwrap(), &theirs);
    let registered = theirs.clone();
    drop(theirs);
    assert_eq!(pool.allocate_on(&registered, KIB).unwrap_err().why(), Why::Foreign);
    // SAFETY: created above, and not used afterwards.
    unsafe { result::stream::destroy(handle) }.unwrap();
    kernel(&pool.allocate_on(&other, KIB).unwrap(), &other);
    assert_eq!((pool.stats().misses, hazards()), (1, 0), "its memory is not stranded");
    // The driver gives the same handle to a new stream.
    let again = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    assert_eq!(again, handle);
    // SAFETY: as above.
    let theirs = unsafe { device.wrap_stream(again) }.unwrap();
    assert!(pool.allocate_on(&theirs, KIB).is_ok());
}

#[test]
fn a_wrapped_stream_that_is_kept_stays_registered_until_it_is_retired() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let owner = device.context().new_stream().unwrap();
    // SAFETY: the owner keeps the stream to the end.
    let kept = unsafe { device.wrap_stream(owner.cu_stream()) }.unwrap().keep();
    assert!(pool.allocate_on(&kept, KIB).is_ok());
    device.retire(&kept).unwrap();
    assert_eq!(pool.allocate_on(&kept, KIB).unwrap_err().why(), Why::Foreign);
}

#[test]
fn two_threads_that_wrap_a_handle_have_one_registration() {
    const ROUNDS: usize = 5000;
    let _one = double();
    let device = device();
    let owner = device.context().new_stream().unwrap();
    let handle = owner.cu_stream().addr();
    let (ready, tried) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Both threads go on at once, sooner than after a lock.
    let both = |count: &AtomicUsize, round: usize| {
        count.fetch_add(1, SeqCst);
        while count.load(SeqCst) < 2 * (round + 1) {
            thread::yield_now();
        }
    };
    let wrap = || {
        let mut registrations = Vec::with_capacity(ROUNDS);
        for round in 0..ROUNDS {
            both(&ready, round);
            // SAFETY: the owner keeps the stream to the end.
            let wrapped =
                unsafe { device.wrap_stream(ptr::without_provenance_mut(handle)) }.unwrap();
            registrations.push(format!("{:?}", *wrapped));
            both(&tried, round);
            drop(wrapped);
        }
        registrations
    };
    let registrations = thread::scope(|scope| {
        [scope.spawn(wrap), scope.spawn(wrap)].map(|thread| thread.join().unwrap())
    });
    assert_eq!(registrations[0], registrations[1]);
}

#[test]
fn the_null_handle_is_the_default_stream() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let default = device.clock().default_stream();
    for handle in [ptr::null_mut(), ptr::without_provenance_mut(1), ptr::null_mut()] {
        // SAFETY: `CU_STREAM_LEGACY` and the null handle always exist.
        let wrapped = unsafe { device.wrap_stream(handle) }.unwrap();
        assert_eq!(format!("{:?}", *wrapped), format!("{default:?}"));
        kernel(&pool.allocate_on(&wrapped, KIB).unwrap(), &wrapped);
        wrapped.retire().unwrap();
        kernel(&pool.allocate_on(default, KIB).unwrap(), default);
    }
    assert_eq!((pool.stats().misses, hazards()), (1, 0));
}

#[test]
fn the_per_thread_handle_is_the_default_stream_of_the_calling_thread() {
    let _one = double();
    let device = device();
    // SAFETY: `CU_STREAM_PER_THREAD` always exists.
    let wrap = || unsafe { device.wrap_stream(ptr::without_provenance_mut(2)) };
    let here = wrap().unwrap();
    let of_thread = device.stream(&device.context().per_thread_stream()).unwrap();
    assert_eq!(format!("{:?}", *here), format!("{of_thread:?}"));
    let waits = count("cuCtxSynchronize");
    thread::scope(|scope| {
        scope.spawn(|| {
            device.context().bind_to_thread().unwrap();
            let there = wrap().unwrap();
            assert_ne!(format!("{:?}", *here), format!("{:?}", *there));
            drop(here); // not its own thread: to retire it, the host would wait for the context
        });
    });
    assert_eq!((count("cuCtxSynchronize"), device.retire(&of_thread)), (waits, Ok(())));
}

#[test]
fn the_callers_context_is_back_after_each_call() {
    let _one = double();
    let callers = CudaContext::new(1).unwrap();
    let current = || result::ctx::get_current().unwrap();
    assert_eq!(current(), Some(callers.cu_ctx()));
    let device = device();
    assert_eq!(current(), Some(callers.cu_ctx()), "opening a device");
    let pool = BucketPool::new(CudaAllocator::on(device));
    let buffer = pool.allocate_zeroed(KIB).unwrap();
    assert_eq!(current(), Some(callers.cu_ctx()), "an allocation");
    drop(buffer);
    pool.clear().unwrap();
    let lives = pool.allocate(KIB).unwrap();
    drop(pool);
    assert_eq!(current(), Some(callers.cu_ctx()), "a drop");
    thread::spawn(move || {
        assert_eq!(current(), None);
        drop(lives);
        assert_eq!(current(), None, "a drop on a thread without a context");
    })
    .join()
    .unwrap();
    assert_eq!(held(), 0);
}

#[test]
fn the_drivers_code_is_kept() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let error = pool.allocate(1 << 40).unwrap_err();
    assert_eq!((error.why(), error.figures().cause.code), (Why::OutOfMemory, 2));
    assert_eq!(error.figures().cause.call, "cuMemAlloc");
    assert_eq!(CudaAllocator::new(7).unwrap_err().why, Why::Unsupported);
}

#[test]
fn what_the_device_lacks_is_unsupported() {
    let _one = double();
    let device = device();
    fail("cuDeviceGetAttribute", 0, 1, 801); // CUDA_ERROR_NOT_SUPPORTED
    let error = CudaAsyncAllocator::new(device.clone(), 0).unwrap_err();
    assert_eq!((error.why, error.code), (Why::Unsupported, 801));
    fail("cuMemPoolSetAttribute", 0, 1, 0);
    assert_eq!(CudaAsyncAllocator::new(device, 0).unwrap_err().call, "cuMemPoolSetAttribute");
    assert_eq!(leftovers(), 0, "the pool that was made is destroyed");
}

#[test]
fn buffers_pools_and_streams_go_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let _one = double();
        let device = device();
        let stream = streams(&device, 1).remove(0);
        let pool = BucketPool::new(CudaAllocator::on(device));
        let buffer = pool.allocate_on(&stream, KIB).unwrap();
        kernel(&buffer, &stream);
        drop(pool.allocate(KIB)); // and something for another stream, behind an event
        drop(pool.allocate_on(&stream, KIB));
        let (mut buffer, mut pool, mut stream) = (Some(buffer), Some(pool), Some(stream));
        for which in order {
            match which {
                0 => thread::scope(|s| s.spawn(|| drop(buffer.take())).join().unwrap()),
                1 => drop(pool.take()),
                _ => drop(stream.take()),
            }
        }
        assert_eq!((held(), hazards()), (0, 0), "{order:?}");
        assert_eq!(events(), 0, "{order:?}: events that nobody has destroyed");
    }
}

/// A step of putting memory behind addresses fails, once and for good: all is as it was.
fn failed_steps_are_undone<A: Vram>(make: impl Fn(CudaDevice) -> PoolBuilder<A>) {
    for step in ["cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemSetAccess", "cuMemAddressFree"] {
        let _one = double();
        let pool = make(device()).policy(BucketPolicy::Exact).build();
        fail(step, 0, 1, 2);
        let buffer = pool.allocate(10 * MIB).unwrap();
        assert_eq!(held(), 10 * MIB, "{step}");
        drop(buffer);
        pool.clear().unwrap();
        assert_eq!((held(), pool.stats().reserved_bytes), (0, 0), "{step}");
        if !matches!(step, "cuMemRelease" | "cuMemAddressFree") {
            fail(step, 0, u64::MAX, 2);
            let error = pool.allocate(10 * MIB).unwrap_err();
            pool.clear().unwrap();
            assert_eq!(
                (error.why(), held(), pool.stats().reserved_bytes),
                (Why::OutOfMemory, 0, 0)
            );
            mend();
        }
        drop(pool);
        assert_eq!((held(), leftovers()), (0, 0), "{step}");
    }
}

#[test]
fn whole_blocks_in_pages_come_and_go_whole() {
    let make = |device| BucketPool::builder(CudaVmmAllocator::new(device, &[]).unwrap());
    failed_steps_are_undone(make);
}

#[test]
fn a_growth_that_fails_leaves_nothing() {
    let make = |device| {
        let memory = CudaVmmAllocator::new(device, &[]).unwrap();
        BucketPool::builder(memory).arena(ArenaConfig::pages(2 * MIB, 0.0))
    };
    failed_steps_are_undone(make);
}

#[test]
fn an_arena_gives_single_handles_back() {
    let _one = double();
    let device = device();
    let on = device.clock().default_stream().clone();
    let pool = BucketPool::builder(CudaVmmAllocator::new(device, &[]).unwrap());
    let pool = pool.arena(ArenaConfig::pages(2 * MIB, 0.05).least_growth(0.0, 0)).build();
    let buffers: Vec<_> = (0..8).map(|_| pool.allocate(2 * MIB).unwrap()).collect();
    for buffer in &buffers {
        kernel(buffer, &on);
    }
    let kept: Vec<_> = buffers.into_iter().step_by(2).collect();
    pool.clear().unwrap();
    assert_eq!(held(), 8 * MIB, "every other handle");
    drop(kept);
    drop(pool);
    assert_eq!((held(), leftovers(), hazards()), (0, 0, 0));
}

/// cudarc keeps an error that a drop could not return, and tells it at its next call.
#[test]
fn an_error_that_a_drop_has_left_is_not_that_of_a_new_device() {
    let _one = double();
    let context = CudaContext::new(0).unwrap();
    let left = || {
        let error = CUresult::CUDA_ERROR_LAUNCH_FAILED;
        context.record_err::<()>(Err(DriverError(error)));
    };
    left();
    let device = CudaDevice::in_context(context.clone()).unwrap();
    left();
    assert!(CudaVmmAllocator::with(device, &VmmConfig::default()).is_ok());
    assert!(context.check_err().is_err(), "the error is still there");
}

/// A driver before an attribute was invented.
#[test]
fn what_a_driver_does_not_know_is_not_supported() {
    let _one = double();
    let device = device();
    fail("cuDeviceGetAttribute", 0, 100, 1);
    let refused = CudaVmmAllocator::with(device, &VmmConfig::default()).unwrap_err();
    mend();
    assert_eq!(refused.why, Why::Unsupported);
}
