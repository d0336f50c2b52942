//! The ends of a process and of a device.

use crate::harness::{capture, count, double, fail, held, kernel, lose, memory_calls};
use pool_core::{BucketPool, KIB, MIB, PooledBuffer, StreamClock, Why};
use pool_cuda::{BorrowedStream, CudaAllocator, CudaDevice, CudaPinnedAllocator, PoolStream};

struct Program {
    device: CudaDevice,
    stream: PoolStream,
    pool: BucketPool<CudaAllocator>,
    host: BucketPool<CudaPinnedAllocator>,
    lives: PooledBuffer<CudaAllocator>,
    wrapped: BorrowedStream,
}

/// A program in the middle of its work: something lives, something is idle, events are out.
fn program() -> Program {
    let device = CudaDevice::new(0).unwrap();
    let stream = device.stream(&device.context().new_stream().unwrap()).unwrap();
    let pool = BucketPool::new(CudaAllocator::on(device.clone()));
    let host = BucketPool::new(CudaPinnedAllocator::on(device.clone()));
    let lives = pool.allocate_on(&stream, MIB).unwrap();
    kernel(&lives, device.clock().default_stream());
    drop(pool.allocate_on(&stream, MIB).unwrap());
    drop(host.allocate(KIB).unwrap());
    // SAFETY: `CU_STREAM_PER_THREAD` always exists.
    let wrapped = unsafe { device.wrap_stream(std::ptr::without_provenance_mut(2)) }.unwrap();
    Program { device, stream, pool, host, lives, wrapped }
}

/// Every call says `why`, hits among them.
fn every_call_says(why: Why, program: &Program) {
    let Program { device, stream, pool, host, lives, .. } = program;
    assert_eq!(pool.allocate_on(stream, MIB).unwrap_err().why(), why, "what would be a hit");
    assert_eq!(pool.allocate_zeroed(64 * MIB).unwrap_err().why(), why);
    assert_eq!(host.allocate(KIB).unwrap_err().why(), why);
    assert_eq!(lives.on(stream).unwrap_err().why, why);
    assert_eq!(lives.record_stream(stream).unwrap_err().why, why);
    assert_eq!(pool.warm_up(&[(MIB, 1)]).unwrap_err().why(), why);
    let bytes = [pool.trim(MIB), pool.shrink_to(0), pool.clear()];
    assert!(bytes.into_iter().all(|done| done.unwrap_err().why() == why));
    assert_eq!(capture(pool, stream).unwrap_err().why, why);
    assert_eq!(device.retire(stream).unwrap_err().why, why);
}

/// In a forked child: whether nothing panics and no call reaches the driver.
fn in_child(program: Program) -> i32 {
    let before = count("");
    let checks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        every_call_says(Why::Forked, &program);
        let raw = program.stream.raw();
        assert_eq!(CudaDevice::new(0).unwrap_err().why, Why::Forked);
        assert_eq!(program.device.stream(raw).unwrap_err().why, Why::Forked);
        let Program { device, stream, pool, host, lives, wrapped } = program;
        drop(wrapped);
        assert_eq!(lives.detach().free().unwrap_err().why, Why::Forked);
        drop((pool, host, stream, device));
    }));
    match checks {
        Err(_) => 1,
        Ok(()) if count("") != before => 2,
        Ok(()) => 0,
    }
}

#[test]
fn a_forked_child_is_told_and_its_drops_touch_no_driver() {
    let _one = double();
    let program = program();
    // SAFETY: the child runs this thread only, on locks that no other thread holds: the test has
    // the double to itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = in_child(program);
        // SAFETY: ends the child without what the test harness would do.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child died: status {status}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "1: a check failed, 2: the driver was called");
    // The parent goes on.
    kernel(&program.pool.allocate_on(&program.stream, MIB).unwrap(), &program.stream);
    drop(program);
    assert_eq!(held(), 0);
}

#[test]
fn after_device_lost_every_call_says_so_and_the_counters_end_at_zero() {
    // The driver says of each of these that the process must end: an illegal address, a failed
    // launch, a server of MPS that failed, a contained error, a tensor memory leak, a terminated client of
    // MPS, an error of an external device.
    for code in [700, 719, 806, 226, 721, 810, 911] {
        let _one = double();
        let program = program();
        lose(code);
        // The first call that reaches the driver finds out.
        let error = program.pool.allocate(300 * MIB).unwrap_err();
        assert_eq!((error.why(), error.figures().cause.code), (Why::Lost, code.into()));
        let calls = memory_calls() + count("cuEventRecord") + count("cuEventDestroy_v2");
        every_call_says(Why::Lost, &program);
        let Program { device, stream, pool, host, lives, wrapped } = program;
        drop((lives, stream, wrapped));
        assert!(pool.clear().is_err() && host.clear().is_err());
        let stats = [pool.stats(), host.stats()];
        for stats in stats {
            assert_eq!((stats.reserved_bytes, stats.requested_bytes), (0, 0), "{code}");
            assert_eq!((stats.cached_bytes, stats.lost_bytes), (0, 0), "{code}");
        }
        drop((pool, host, device)); // what cudarc itself destroys then is refused
        let after = memory_calls() + count("cuEventRecord") + count("cuEventDestroy_v2");
        assert_eq!(after, calls, "a lost device is not called");
    }
}

#[test]
fn a_stray_kernel_ends_the_device() {
    let _one = double();
    let program = program();
    assert_eq!(crate::harness::kernel_at(&program.stream, 1 << 40, 16), 0, "it is queued");
    assert!(program.pool.allocate(MIB).is_ok(), "it has not run");
    crate::harness::run();
    assert_eq!(program.pool.allocate(300 * MIB).unwrap_err().why(), Why::Lost);
}

#[test]
fn the_end_of_the_driver_is_silent() {
    let _one = double();
    let program = program();
    fail("", 0, u64::MAX, 4); // CUDA_ERROR_DEINITIALIZED, as at the end of a process
    let Program { device, stream, pool, host, lives, wrapped } = program;
    drop((pool, lives, host, stream, wrapped, device)); // nothing panics, nothing is printed
}
