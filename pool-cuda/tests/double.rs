//! The real CUDA code, through cudarc's own loader, on a double of libcuda.
//!
//! One test at a time: the double is one device for the whole process.
#![expect(unsafe_code, reason = "the double's control functions are called through C")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use cudarc::driver::sys;
use parking_lot::{Mutex, MutexGuard};
use pool_core::conformance::{self, Probe};
use pool_core::{BucketPool, DeviceAllocator, KIB, MIB, PooledBuffer, StreamClock, Why};
use pool_cuda::CudaAllocator;
use std::process::Command;
use std::sync::LazyLock;

/// Builds the double, loads it by its path and keeps it; cudarc's own `dlopen` then finds it by its
/// name. Gives the device to one test, as new.
fn double() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static LOADED: LazyLock<()> = LazyLock::new(|| {
        // SAFETY: the library is ours, and its initialisers do nothing.
        let library = unsafe { libloading::Library::new(built()) }.unwrap();
        std::mem::forget(library);
    });
    let one = ONE.lock();
    LazyLock::force(&LOADED);
    call::<extern "C" fn()>(b"cuda_double_reset")();
    one
}

fn built() -> String {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--package", "cuda-double", "--message-format=json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    for message in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(message).unwrap();
        let file = message["filenames"][0].as_str().unwrap_or_default();
        if message["target"]["name"] == "cuda_double" && !file.is_empty() {
            return file.to_owned();
        }
    }
    panic!("cargo built no double:\n{messages}");
}

/// A function of the double, by name.
fn call<F: Copy>(name: &[u8]) -> F {
    // SAFETY: looks a symbol up; the double is loaded.
    let library = unsafe { sys::culib() };
    // SAFETY: each caller names the type that the double declares (double/src/control.rs).
    *unsafe { library.get::<F>(name) }.unwrap()
}

#[derive(Debug, PartialEq, Eq)]
struct Calls {
    allocations: u64,
    frees: u64,
    events: u64,
    waits: u64,
    events_created: u64,
}

fn calls() -> Calls {
    let of = call::<extern "C" fn(u32) -> u64>(b"cuda_double_calls");
    Calls { allocations: of(0), frees: of(1), events: of(2), waits: of(3), events_created: of(5) }
}

fn held() -> u64 {
    call::<extern "C" fn() -> u64>(b"cuda_double_held")()
}

fn hazards() -> usize {
    call::<extern "C" fn() -> usize>(b"cuda_double_hazards")()
}

fn fail(kind: u32, skip: u64, times: u64) {
    call::<extern "C" fn(u32, u64, u64)>(b"cuda_double_fail")(kind, skip, times);
}

type Buffer = PooledBuffer<CudaAllocator>;

fn kernel(buffer: &Buffer, on: &pool_cuda::CudaStreamOf) {
    let view = buffer.on(on).unwrap();
    let kernel = call::<extern "C" fn(usize, u64, usize) -> u32>(b"cuda_double_kernel");
    let stream = on.raw().cu_stream().addr();
    assert_eq!(kernel(stream, view.as_ptr(), usize::try_from(buffer.size()).unwrap()), 0);
}

fn fill(buffer: &mut Buffer, byte: u8) {
    let on = buffer.allocator().clock().default_stream().clone();
    let bytes = vec![byte; usize::try_from(buffer.size()).unwrap()];
    if !bytes.is_empty() {
        on.raw().memcpy_htod(&bytes, &mut &*buffer.on(&on).unwrap()).unwrap();
        on.raw().synchronize().unwrap();
    }
}

fn contents(buffer: &Buffer) -> Vec<u8> {
    let on = buffer.allocator().clock().default_stream();
    let mut bytes = vec![0; usize::try_from(buffer.size()).unwrap()];
    if !bytes.is_empty() {
        on.raw().memcpy_dtoh(&*buffer.on(on).unwrap(), &mut bytes).unwrap();
    }
    bytes
}

#[test]
fn cuda_memory_passes_the_suite_on_the_double() {
    let _one = double();
    conformance::run(|| CudaAllocator::new(0).unwrap(), Probe { fill, contents });
    assert_eq!((held(), hazards()), (0, 0));
}

#[test]
fn streams_hand_buffers_on_without_memory_calls_and_without_new_events() {
    let _one = double();
    let device = CudaAllocator::new(0).unwrap();
    let raw: Vec<_> = (0..3).map(|_| device.context().new_stream().unwrap()).collect();
    let streams: Vec<_> = raw.iter().map(|stream| device.stream(stream).unwrap()).collect();
    let pool = BucketPool::new(device);
    let turn = |i: usize| {
        let (s, t) = (&streams[i % 3], &streams[(i + 2) % 3]);
        let buffer = pool.allocate_on(s, MIB).unwrap();
        kernel(&buffer, s);
        if i.is_multiple_of(2) {
            kernel(&buffer, t);
        }
    };
    (0..60).for_each(turn); // until each stream has as many events as it remembers
    let before = calls();
    (60..360).for_each(turn);
    let after = calls();
    assert_eq!(after.allocations, before.allocations);
    assert_eq!(after.events_created, before.events_created);
    assert!(after.events > before.events && after.events - before.events <= 450, "{after:?}");
    assert_eq!(hazards(), 0);
}

#[test]
fn a_stream_is_registered_once_and_another_devices_is_refused() {
    let _one = double();
    let (device, other) = (CudaAllocator::new(0).unwrap(), CudaAllocator::new(0).unwrap());
    let raw = device.context().new_stream().unwrap();
    let (once, twice) = (device.stream(&raw).unwrap(), device.stream(&raw).unwrap());
    assert_eq!(format!("{once:?}"), format!("{twice:?}"));
    let pool = BucketPool::new(device);
    assert_eq!(pool.allocate_on(&other.stream(&raw).unwrap(), 1).unwrap_err().why(), Why::Foreign);
    assert!(pool.allocate_on(&once, 1).is_ok());
}

#[test]
fn a_view_is_right_on_another_stream_too() {
    let _one = double();
    let device = CudaAllocator::new(0).unwrap();
    let (mine, others) =
        (device.context().new_stream().unwrap(), device.context().new_stream().unwrap());
    let on = device.stream(&mine).unwrap();
    let pool = BucketPool::new(device);
    let buffer = pool.allocate_on(&on, KIB).unwrap();
    let mut back = vec![0; 1024];
    mine.memcpy_htod(&[7; 1024], &mut &*buffer.on(&on).unwrap()).unwrap();
    others.memcpy_dtoh(&*buffer.on(&on).unwrap(), &mut back).unwrap();
    assert_eq!((back, hazards()), (vec![7; 1024], 0));
    let error = pool.allocator().stream(&pool.allocator().context().per_thread_stream());
    assert_eq!(error.unwrap_err().why, Why::Unsupported);
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
fn every_single_refusal_of_memory_is_survived_and_counters_stay_exact() {
    let program = |pool: &BucketPool<CudaAllocator>| {
        (1..40).filter(|i| pool.allocate(i * 3000 % (64 * KIB)).is_err()).count()
    };
    for k in 0..12 {
        let _one = double();
        fail(0, k, 1);
        let pool =
            BucketPool::builder(CudaAllocator::new(0).unwrap()).cached_limit(96 * KIB).build();
        assert_eq!(program(&pool), 0, "call {k}");
        assert_eq!(pool.stats().reserved_bytes, held(), "call {k}");
        drop(pool);
        assert_eq!(held(), 0, "call {k}");
    }
}

#[test]
fn buffers_pools_and_streams_go_in_any_order() {
    let _one = double();
    let device = CudaAllocator::new(0).unwrap();
    let raw = device.context().new_stream().unwrap();
    let stream = device.stream(&raw).unwrap();
    let pool = BucketPool::new(device);
    let buffer = pool.allocate_on(&stream, KIB).unwrap();
    kernel(&buffer, &stream);
    drop(pool.allocate(KIB)); // and something for another stream, behind an event
    drop(pool.allocate_on(&stream, KIB));
    drop((pool, raw));
    std::thread::spawn(move || drop(buffer)).join().unwrap();
    drop(stream);
    assert_eq!((held(), hazards()), (0, 0));
    let events = call::<extern "C" fn() -> usize>(b"cuda_double_events")();
    assert_eq!(events, 0, "events that nobody has destroyed");
}

#[test]
fn a_raw_block_leaves_the_accounts_and_is_the_callers() {
    let _one = double();
    let pool = BucketPool::new(CudaAllocator::new(0).unwrap());
    let (block, marks) = pool.allocate(KIB).unwrap().detach().into_raw();
    assert_eq!((pool.stats().reserved_bytes, held()), (0, KIB));
    pool.allocator().free(block, &marks).unwrap();
    assert_eq!(held(), 0);
}
