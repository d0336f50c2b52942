//! What others do or refuse, and what the pool owes its caller then: a test for each finding of the second audit
//! of November 2026 that the double can show.

use crate::harness::{
    calls_wait, capture, double, fail, hazards, held, kernel, kernel_at, mend, pinned, run, touch,
};
use cudarc::driver::result;
use cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode};
use pool_core::limits::Budget;
use pool_core::{ArenaConfig, BucketPool, DeviceError, KIB, MIB, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaCapture, CudaDevice, CudaPinnedAllocator, PinnedBytes,
    PoolStream,
};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::{iter, ptr, thread};

fn device() -> CudaDevice {
    CudaDevice::new(0).unwrap()
}

fn stream(device: &CudaDevice) -> PoolStream {
    device.stream(&device.context().new_stream().unwrap()).unwrap()
}

/// Pools of device and of page-locked memory, and a stream.
fn pools() -> (BucketPool<CudaAllocator>, BucketPool<CudaPinnedAllocator>, PoolStream) {
    let device = device();
    let on = stream(&device);
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    (pool, BucketPool::new(CudaPinnedAllocator::on(device)), on)
}

/// When a copy in has returned, the caller may write the source again.
fn source_of_a_copy_is_the_callers(refused: &str, times: u64, code: u32) {
    let _one = double();
    calls_wait(false);
    let (pool, host, on) = pools();
    let mut target = pool.allocate_on(&on, KIB).unwrap();
    let mut source = host.allocate(KIB).unwrap();
    source.bytes_mut().unwrap().fill(7);
    fail(refused, 0, times, code);
    let written = target.write_at_on(&on, 0, source.bytes().unwrap());
    mend();
    let bytes = source.bytes_mut().unwrap(); // no use of it is known
    touch(bytes);
    bytes.fill(8);
    run();
    let mut shown = [0; 1024];
    target.read_at_on(&on, 0, &mut shown).unwrap();
    let is_written = shown == [7; 1024];
    assert_eq!((written, hazards(), is_written), (Ok(()), 0, true), "{refused}");
}

#[test]
fn a_copy_in_whose_event_is_refused_has_run() {
    source_of_a_copy_is_the_callers("cuEventRecord", 1, 0);
    source_of_a_copy_is_the_callers("cuEventRecord", u64::MAX, 1);
}

#[test]
fn a_copy_in_for_which_no_event_is_left_has_run() {
    source_of_a_copy_is_the_callers("cuEventCreate", u64::MAX, 2);
}

#[test]
fn a_copy_in_whose_wait_is_refused_has_run() {
    source_of_a_copy_is_the_callers("cuEventSynchronize", u64::MAX, 900);
}

#[test]
fn a_copy_out_whose_event_is_refused_has_run() {
    let _one = double();
    calls_wait(false);
    let (pool, host, on) = pools();
    let source = pool.allocate_zeroed_on(&on, KIB).unwrap();
    let mut target = host.allocate(KIB).unwrap();
    fail("cuEventRecord", 0, 1, 0);
    let read = source.read_at_on(&on, 0, target.bytes_mut().unwrap());
    mend();
    let bytes = target.bytes_mut().unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "the copy has run");
    touch(bytes);
    bytes.fill(9);
    run();
    assert_eq!((read, hazards(), target.bytes().unwrap()[0]), (Ok(()), 0, 9));
}

#[test]
fn a_copy_on_the_default_stream_of_another_thread_is_refused_beside_a_capture() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let (give, given) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let (own_device, own_pool) = (device.clone(), pool.clone());
    let thread = thread::spawn(move || {
        own_device.context().bind_to_thread().unwrap();
        let own = own_device.stream(&own_device.context().per_thread_stream()).unwrap();
        give.send((own_pool.allocate_on(&own, KIB).unwrap(), own)).unwrap();
        ends.recv().unwrap_err(); // its stream would end with it
    });
    let (mut buffer, theirs) = given.recv().unwrap();
    let captured = capture(&pool, &stream(&device)).unwrap();
    assert_eq!(buffer.write_at_on(&theirs, 0, &[1; 8]).unwrap_err().why, Why::Foreign);
    assert_eq!(buffer.read_at_on(&theirs, 0, &mut [0; 8]).unwrap_err().why, Why::Foreign);
    drop(buffer);
    drop(end);
    thread.join().unwrap();
    drop(captured);
}

#[test]
fn a_device_of_which_nothing_is_known_ends_a_wait() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let on = stream(&device);
    let mut target = pool.allocate_on(&on, KIB).unwrap();
    let mut source = vec![1; 1024];
    target.write_at_on(&on, 0, &source).unwrap();
    for call in ["cuEventRecord", "cuEventSynchronize"] {
        fail(call, 0, u64::MAX, 999);
    }
    fail("cuStreamSynchronize", 0, u64::MAX, 999);
    let refused = target.write_at_on(&on, 0, &source).unwrap_err();
    source.fill(2);
    assert_eq!(refused.why, Why::Lost);
    mend();
}

/// Two devices, and a stream of each.
fn two_devices() -> ([CudaDevice; 2], [PoolStream; 2]) {
    let devices = [0, 1].map(|ordinal| CudaDevice::new(ordinal).unwrap());
    let streams = devices.each_ref().map(stream);
    (devices, streams)
}

#[test]
fn a_copy_to_a_device_without_memory_for_events_keeps_its_source() {
    let full = |skip| {
        let _one = double();
        calls_wait(false);
        let ([here, there], [mine, theirs]) = two_devices();
        let pools = [&here, &there].map(|on| BucketPool::new(CudaAllocator::on(on.clone())));
        let source = pools[0].allocate_on(&mine, KIB).unwrap();
        let mut target = pools[1].allocate_on(&theirs, KIB).unwrap();
        kernel(&source, &mine);
        fail("cuEventCreate", skip, u64::MAX, 2);
        let copied = pool_cuda::copy_to_peer((&source, &mine), (&mut target, &theirs));
        drop(source);
        kernel(&pools[0].allocate_on(&mine, KIB).unwrap(), &mine); // the same block
        mend();
        run();
        assert_eq!(hazards(), 0, "{skip} events, {copied:?}");
        copied.is_ok()
    };
    // With fewer than two it is refused before anything is queued.
    assert_eq!([0, 1, 2, 3].map(full), [false, false, true, true]);
}

#[test]
fn a_use_on_a_peer_whose_events_are_refused_keeps_its_block() {
    for refused in ["cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize"] {
        for (skip, times) in [(1, 1), (1, 3), (1, u64::MAX), (2, u64::MAX)] {
            let _one = double();
            calls_wait(false);
            let ([here, there], [mine, theirs]) = two_devices();
            there.enable_access_to(&here).unwrap();
            let pool = BucketPool::new(CudaAllocator::on(here.clone()));
            let buffer = pool.allocate_on(&mine, KIB).unwrap();
            kernel(&buffer, &mine);
            fail(refused, skip, times, 1);
            let used = pool_cuda::use_on_peer(&buffer, &mine, (&there, &theirs), |view| {
                kernel_at(&theirs, view.as_ptr(), KIB)
            });
            drop(buffer);
            kernel(&pool.allocate_on(&mine, KIB).unwrap(), &mine);
            mend();
            run();
            assert_eq!(hazards(), 0, "{refused} {skip} {times}: {used:?}");
        }
    }
}

/// A pool whose allocator's blocks go back to a pool of the driver, with `cached` bytes that are free.
fn ordered(device: &CudaDevice, budget: &Budget, cached: u64) -> BucketPool<CudaAsyncAllocator> {
    let memory = CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap();
    let pool = BucketPool::builder(memory).budget(budget).build();
    drop(pool.allocate(cached).unwrap());
    run();
    pool
}

#[test]
fn a_request_gets_what_the_driver_keeps_for_another_pool_of_the_budget() {
    let _one = double();
    let (device, budget) = (device(), Budget::new(u64::MAX));
    let ordered = ordered(&device, &budget, 600 * MIB);
    let plain = BucketPool::builder(CudaAllocator::on(device)).budget(&budget).build();
    let got = plain.allocate(512 * MIB);
    assert!(got.is_ok(), "{}", got.unwrap_err());
    assert_eq!(ordered.stats().reserved_bytes, 0);
}

#[test]
fn what_the_driver_keeps_stays_where_only_a_limit_is_short() {
    let _one = double();
    let (device, budget) = (device(), Budget::new(600 * MIB));
    let ordered = ordered(&device, &budget, 512 * MIB);
    let plain = BucketPool::builder(CudaAllocator::on(device.clone())).budget(&budget).build();
    let before = device.free_bytes().unwrap();
    let _got = plain.allocate(128 * MIB).unwrap();
    assert_eq!(ordered.stats().reserved_bytes, 0, "the limit had not left them");
    assert_eq!(before - device.free_bytes().unwrap(), 128 * MIB, "the driver has kept its 512");
}

#[test]
fn a_trim_of_a_budget_gives_memory_to_the_device() {
    let _one = double();
    let (device, budget) = (device(), Budget::new(u64::MAX));
    let _ordered = ordered(&device, &budget, 600 * MIB);
    let before = device.free_bytes().unwrap();
    let given = budget.trim(u64::MAX);
    assert_eq!((device.free_bytes().unwrap() - before, given > 0), (given, true));
}

#[test]
fn room_is_made_of_what_the_driver_keeps() {
    let _one = double();
    let device = device();
    let pool = ordered(&device, &Budget::new(u64::MAX), 600 * MIB);
    pool.make_room(800 * MIB).unwrap();
    assert!(device.free_bytes().unwrap() >= 800 * MIB);
    // Another library.
    // SAFETY: requests memory.
    let theirs = unsafe { result::malloc_sync(800 << 20) };
    assert!(theirs.is_ok(), "{theirs:?}");
}

/// What a pool cached goes to the driver's pool only where it must.
#[test]
fn room_that_the_driver_keeps_costs_the_pool_nothing() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAsyncAllocator::new(device.clone(), u64::MAX).unwrap());
    drop([512 * MIB, 128 * MIB].map(|bytes| pool.allocate(bytes).unwrap()));
    assert_eq!(pool.trim(1).unwrap(), 512 * MIB, "the oldest");
    assert_eq!(pool.make_room(800 * MIB).unwrap(), 0, "the driver had kept enough");
    assert!(device.free_bytes().unwrap() >= 800 * MIB);
    assert_eq!(pool.stats().cached_bytes, 128 * MIB);
}

#[test]
fn memory_for_a_capture_that_the_driver_does_not_take_back_is_counted() {
    let _one = double();
    let pool = BucketPool::new(CudaAsyncAllocator::new(device(), 0).unwrap());
    let on = stream(pool.allocator().device());
    let captured = capture(&pool, &on).unwrap();
    fail("cuStreamSynchronize", 0, 1, 0);
    fail("cuMemFreeAsync", 0, 1, 0);
    let refused = pool.allocate_on(&on, MIB).unwrap_err();
    mend();
    assert_eq!(pool.allocator().waiting_bytes(), MIB, "{refused}");
    drop(captured);
    pool.clear().unwrap();
    run();
    assert_eq!((pool.allocator().waiting_bytes(), pool.stats().lost_bytes), (0, 0));
    pool.allocator().trim_to(0).unwrap();
    assert_eq!(held(), 0);
}

/// Calls `uses` on 200 threads one after the other, each with its default stream, registered by `on`.
fn threads_that_end(
    device: &CudaDevice,
    on: impl Fn() -> PoolStream + Sync,
    uses: impl Fn(&PoolStream) + Sync,
) {
    for _ in 0..200 {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                device.context().bind_to_thread().unwrap();
                uses(&on());
            });
            thread.join().unwrap(); // with the ends of its variables
        });
        run();
    }
}

#[test]
fn memory_of_threads_that_have_ended_serves_again() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let uses = |own: &PoolStream| kernel(&pool.allocate_on(own, MIB).unwrap(), own);
    let registered = || device.stream(&device.context().per_thread_stream()).unwrap();
    threads_that_end(&device, registered, uses);
    assert_eq!((pool.stats().reserved_bytes, hazards()), (MIB, 0));
    // The same through the handle that a library of C passes.
    let handle = || ptr::without_provenance_mut(2);
    // SAFETY: the driver's own handle, which has no owner.
    let kept = || unsafe { device.wrap_stream(handle()) }.unwrap().keep();
    threads_that_end(&device, kept, uses);
    assert_eq!((pool.stats().reserved_bytes, hazards()), (MIB, 0));
}

#[test]
fn page_locked_memory_of_threads_that_have_ended_serves_again() {
    let _one = double();
    let device = device();
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let registered = || device.stream(&device.context().per_thread_stream()).unwrap();
    threads_that_end(&device, registered, |own| {
        let target = pool.allocate_on(own, MIB).unwrap();
        let mut batch = host.allocate_on(own, MIB).unwrap();
        batch.bytes_mut().unwrap().fill(1);
        let (from, to) = (batch.read_on(own).unwrap(), target.on(own).unwrap());
        own.raw().memcpy_htod(&*from, &mut &*to).unwrap();
    });
    assert_eq!((pinned(), hazards()), (MIB, 0));
}

thread_local!(static AT_END: Cell<Option<CallsAtEnd>> = const { Cell::new(None) });

struct CallsAtEnd(BucketPool<CudaAllocator>, PoolStream);

impl Drop for CallsAtEnd {
    fn drop(&mut self) {
        // Its stream may have ended before this variable.
        let _ = self.0.allocate_on(&self.1, KIB).map(drop);
    }
}

/// Variables of a thread go in any order.
#[test]
fn what_a_thread_does_at_its_end_is_served_or_refused() {
    let _one = double();
    for first in [true, false] {
        let device = device();
        let pool = BucketPool::new(CudaAllocator::on(device.clone()));
        let all = pool.clone();
        let thread = thread::spawn(move || {
            device.context().bind_to_thread().unwrap();
            if first {
                AT_END.set(None);
            }
            let own = device.stream(&device.context().per_thread_stream()).unwrap();
            AT_END.set(Some(CallsAtEnd(all, own)));
        });
        thread.join().unwrap();
        assert_eq!(hazards(), 0);
        pool.clear().unwrap();
        assert_eq!(pool.stats().reserved_bytes, 0);
    }
}

#[test]
fn writes_by_several_threads_keep_the_bound_on_their_way() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let bytes = vec![1_u8; 8 << 20];
    let streams: Vec<_> = iter::repeat_with(|| stream(&device)).take(16).collect();
    let most = AtomicU64::new(0);
    thread::scope(|scope| {
        for on in &streams {
            scope.spawn(|| {
                device.context().bind_to_thread().unwrap();
                let mut buffer = pool.allocate_on(on, 8 * MIB).unwrap();
                for _ in 0..40 {
                    buffer.write_later(on, 0, &bytes).unwrap();
                    most.fetch_max(pinned(), Relaxed);
                }
            });
        }
    });
    assert!(most.into_inner() <= 256 * MIB);
}

#[test]
fn what_copies_have_locked_is_in_a_figure() {
    let _one = double();
    let device = device();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let on = stream(&device);
    let mut buffer = pool.allocate_on(&on, 64 * MIB).unwrap();
    let bytes = vec![1_u8; 64 << 20];
    (0..4).for_each(|_| buffer.write_later(&on, 0, &bytes).unwrap());
    drop(buffer);
    run();
    assert_eq!((pool.allocator().staging_bytes(), pinned()), (256 * MIB, 256 * MIB));
    assert!(format!("{:?}", pool.allocator()).contains("staging_bytes: 268435456"));
}

/// 200 graphs after each other, each dropped after its launch. Returns the bytes that are reserved in the end.
fn reserved_by_graphs(pool: &BucketPool<CudaAllocator>, ways: [bool; 3]) -> u64 {
    let [adopts, new_stream, runs] = ways;
    let device = pool.allocator().device().clone();
    let kept = device.context().new_stream().unwrap();
    for _ in 0..200 {
        let raw = if new_stream { device.context().new_stream().unwrap() } else { kept.clone() };
        let on = device.stream(&raw).unwrap();
        let use_scratch = || kernel(&pool.allocate_on(&on, KIB).unwrap(), &on);
        if adopts {
            raw.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            // SAFETY: the graph goes first.
            let mut adopted = unsafe { CudaCapture::adopt(pool, &on) }.unwrap();
            use_scratch();
            let flags = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            let graph = raw.end_capture(flags).unwrap().unwrap();
            let memory = adopted.end().unwrap();
            let launch = || graph.launch().map_err(|_| DeviceError::new(Why::Other, "a launch"));
            memory.launch(&on, launch).unwrap();
            drop(graph);
        } else {
            let captured = capture(pool, &on).unwrap();
            use_scratch();
            captured.end().unwrap().launch(&on, &[]).unwrap();
        }
        if new_stream {
            device.retire(&on).unwrap();
        }
        if runs {
            run();
        }
    }
    pool.stats().reserved_bytes
}

#[test]
fn the_next_capture_takes_what_the_last_graph_gave_back() {
    for number in 0..8 {
        let ways @ [_, new_stream, runs] = [number & 1, number & 2, number & 4].map(|bit| bit > 0);
        if new_stream && !runs {
            continue; // what other streams still use, a capture cannot wait for
        }
        for arena in [false, true] {
            let _one = double();
            calls_wait(false);
            let mut builder = BucketPool::builder(CudaAllocator::on(device()));
            if arena {
                builder = builder.arena(ArenaConfig::segments(64 * KIB));
            }
            let reserved = reserved_by_graphs(&builder.build(), ways);
            let one = if arena { 64 * KIB } else { KIB };
            assert_eq!((reserved, hazards()), (one, 0), "adopts, new stream, runs: {ways:?}");
        }
    }
}
