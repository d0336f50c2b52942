//! Two devices.

use crate::harness::{count, double, fail, hazards, held, kernel, kernel_at, mend, run};
use pool_core::{BucketPool, KIB, MIB, StreamClock, Why};
use pool_cuda::{
    CudaAllocator, CudaAsyncAllocator, CudaDevice, CudaPools, CudaView, PoolStream, use_on_peer,
};

fn devices() -> [CudaDevice; 2] {
    [0, 1].map(|ordinal| CudaDevice::new(ordinal).unwrap())
}

fn stream(device: &CudaDevice) -> PoolStream {
    device.stream(&device.context().new_stream().unwrap()).unwrap()
}

#[test]
fn each_device_has_its_pool_and_each_buffer_its_device() {
    let _one = double();
    let devices = devices();
    let streams = devices.each_ref().map(stream);
    let [first, second] =
        devices.each_ref().map(|device| BucketPool::new(CudaAllocator::on(device.clone())));
    let pools = CudaPools::new(first, [second]);
    for (ordinal, on) in streams.iter().enumerate() {
        let buffer = pools.allocate_on(on, MIB).unwrap();
        assert_eq!(buffer.allocator().device().ordinal(), ordinal);
        kernel(&buffer, on);
        let wrong = &streams[1 - ordinal];
        assert_eq!(buffer.on(wrong).unwrap_err().why, Why::Foreign);
        let of_device = pools.device(ordinal).unwrap();
        assert_eq!(of_device.allocate_on(wrong, MIB).unwrap_err().why(), Why::Foreign);
    }
    assert!(pools.device(2).is_none());
    let stats = pools.stats();
    assert_eq!(stats.iter().map(|(ordinal, _)| *ordinal).collect::<Vec<_>>(), [0, 1]);
    assert!(stats.iter().all(|(_, stats)| stats.misses == 1 && stats.reserved_bytes == MIB));
    drop(pools);
    assert_eq!((held(), hazards()), (0, 0));
}

#[test]
fn a_peer_uses_a_buffer_in_order() {
    let _one = double();
    let [here, there] = devices();
    let (home, other, theirs) = (stream(&here), stream(&here), stream(&there));
    there.enable_access_to(&here).unwrap();
    there.enable_access_to(&here).unwrap(); // a second time is no fault
    let pool = BucketPool::new(CudaAllocator::on(here.clone()));
    let on_peer = |buffer: &pool_core::PooledBuffer<CudaAllocator>| {
        let kernel = |view: &CudaView<'_>| kernel_at(&theirs, view.as_ptr(), KIB);
        assert_eq!(use_on_peer(buffer, &home, (&there, &theirs), kernel), Ok(0));
    };
    for _ in 0..20 {
        let buffer = pool.allocate_on(&other, KIB).unwrap();
        kernel(&buffer, &other);
        on_peer(&buffer);
        kernel(&buffer, &other);
        on_peer(&buffer); // and dropped behind it
    }
    assert_eq!((pool.stats().misses, hazards()), (1, 0));
    let buffer = pool.allocate_on(&other, KIB).unwrap();
    let wrong = use_on_peer(&buffer, &home, (&there, &other), |_| ()).unwrap_err();
    assert_eq!(wrong.why, Why::Foreign);
    // An event that cannot be recorded at the end is a wait of the host instead.
    let before = count("cuEventSynchronize");
    let used = use_on_peer(&buffer, &home, (&there, &theirs), |view| {
        fail("cuEventRecord", 0, 1, 0);
        kernel_at(&theirs, view.as_ptr(), KIB)
    });
    assert_eq!((used, count("cuEventSynchronize")), (Ok(0), before + 1));
    kernel(&buffer, &other);
    assert_eq!(hazards(), 0);
}

/// Its handle is null, and so means the stream of the current context.
#[test]
fn cudarc_writes_a_peers_buffer_on_the_default_stream_that_it_was_given() {
    let _one = double();
    let [here, there] = devices();
    there.enable_access_to(&here).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(here.clone()));
    let (home, theirs) = (stream(&here), there.clock().default_stream().clone());
    let raw = there.context().default_stream();
    let buffer = pool.allocate_on(&home, KIB).unwrap();
    let written = use_on_peer(&buffer, &home, (&there, &theirs), |view| {
        raw.memset_zeros(&mut &*view) // returns when the stream that it was given is done
    });
    assert_eq!(written, Ok(Ok(())));
    drop(buffer);
    kernel(&pool.allocate_on(&home, KIB).unwrap(), &home);
    run();
    assert_eq!(hazards(), 0);
}

/// The code with which a device is lost, as its next call says.
fn lost_code(device: &CudaDevice) -> Option<i64> {
    let call = BucketPool::new(CudaAllocator::on(device.clone())).allocate(MIB);
    call.err().map(|error| error.figures().cause.code)
}

#[test]
fn without_access_the_other_device_is_refused() {
    let _one = double();
    let [here, there] = devices();
    let (home, theirs) = (stream(&here), stream(&there));
    assert_eq!(here.enable_access_to(&here).unwrap_err().why, Why::Unsupported);
    let pool = BucketPool::new(CudaAllocator::on(here.clone()));
    let buffer = pool.allocate_on(&home, KIB).unwrap();
    let kernel = |view: &CudaView<'_>| kernel_at(&theirs, view.as_ptr(), KIB);
    assert_eq!(use_on_peer(&buffer, &home, (&there, &theirs), kernel), Ok(0), "it is queued");
    run();
    assert_eq!(lost_code(&there), Some(700), "as on a device: an illegal address");
    assert_eq!(lost_code(&here), None, "the other context works on");
}

#[test]
fn a_pool_of_the_drivers_says_itself_who_may_use_it() {
    let _one = double();
    let [here, there] = devices();
    let (home, theirs) = (stream(&here), stream(&there));
    let pool = BucketPool::new(CudaAsyncAllocator::new(here.clone(), u64::MAX).unwrap());
    let used = |pool: &BucketPool<CudaAsyncAllocator>| {
        let buffer = pool.allocate_on(&home, KIB).unwrap();
        let kernel = |view: &CudaView<'_>| kernel_at(&theirs, view.as_ptr(), KIB);
        assert_eq!(use_on_peer(&buffer, &home, (&there, &theirs), kernel), Ok(0));
        run();
        lost_code(&there)
    };
    pool.allocator().let_use(&there).unwrap();
    pool.allocator().let_use(&there).unwrap(); // a second time is no fault
    assert_eq!((used(&pool), hazards()), (None, 0));
    assert_eq!(pool.allocator().let_use(&here).unwrap_err().why, Why::Unsupported, "itself");

    let closed = BucketPool::new(CudaAsyncAllocator::new(here.clone(), u64::MAX).unwrap());
    there.enable_access_to(&here).unwrap();
    assert_eq!(
        used(&closed),
        Some(700),
        "access between contexts is not access to the driver's pools"
    );
}

/// The faults of a peer's context that a call may return where it names the peer.
#[test]
fn a_lost_peer_is_no_fault_of_this_device() {
    let _one = double();
    let [here, there] = devices();
    let (home, theirs) = (stream(&here), stream(&there));
    let pool = BucketPool::new(CudaAllocator::on(here.clone()));
    let buffer = pool.allocate_on(&home, KIB).unwrap();
    use_on_peer(&buffer, &home, (&there, &theirs), |_| {
        fail("cuStreamWaitEvent", 0, 1, 700); // of this device for an event of the peer
    })
    .unwrap();
    assert_eq!((here.clock().fault(), there.clock().fault()), (None, None));
    lose_peer(&theirs);
    assert_eq!(here.enable_access_to(&there).unwrap_err().why, Why::Lost);
    assert_eq!(here.clock().fault(), None);
    assert!(pool.allocate_on(&home, MIB).is_ok());
}

/// The threads of the peer's context go on to use this device.
#[test]
fn the_callers_broken_context_is_no_fault_of_this_device() {
    let _one = double();
    let [here, there] = devices();
    let theirs = stream(&there);
    let pool = BucketPool::new(CudaAllocator::on(here.clone()));
    there.context().bind_to_thread().unwrap();
    lose_peer(&theirs);
    let mut misses = vec![pool.allocate(MIB).unwrap()];
    assert_eq!(here.clock().fault(), None);
    mend();
    // Destroyed by another library, and still current to this thread. The second call of each name
    // is the one that makes the caller's context current again.
    for (call, skip) in [("cuCtxGetCurrent", 0), ("cuCtxSetCurrent", 1)] {
        for code in [709, 201] {
            there.context().bind_to_thread().unwrap();
            fail(call, skip, 1, code);
            misses.extend(pool.allocate(MIB));
            mend();
            there.context().bind_to_thread().unwrap();
            misses.pop(); // cached, so that there is something to give back
            let reserved = pool.reserved_bytes();
            fail(call, skip, 1, code);
            let went = pool.clear().unwrap_or_default();
            mend();
            assert_eq!(pool.reserved_bytes(), reserved - went, "{code} of {call}");
            assert_eq!(held(), pool.reserved_bytes(), "{code} of {call}: what the driver has");
            assert_eq!(here.clock().fault(), None, "{code} of {call}");
            misses.push(pool.allocate(MIB).unwrap());
        }
    }
    there.context().bind_to_thread().unwrap();
    fail("cuCtxSetCurrent", 1, 1, 709);
    assert_eq!(CudaDevice::new(0).map(drop), Ok(()), "nor of one that is opened");
}

/// A kernel of the peer strays, and runs.
fn lose_peer(theirs: &PoolStream) {
    assert_eq!(kernel_at(theirs, 1 << 40, 16), 0, "it is queued");
    run();
}
