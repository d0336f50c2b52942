//! The double: loaded once, given to one test at a time, and asked what happened.

use crate::stand_in::stand_in;
use cudarc::driver::sys;
use parking_lot::{Mutex, MutexGuard};
use pool_core::{BucketPool, DeviceError, PooledBuffer};
use pool_cuda::{CudaCapture, PoolStream, Vram};
use std::ffi::CString;
use std::sync::LazyLock;

/// Loads the double ([`stand_in`]) and gives the machine to one test, as new.
pub(crate) fn double() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static LOADED: LazyLock<()> = LazyLock::new(stand_in);
    let one = ONE.lock();
    LazyLock::force(&LOADED);
    reset();
    one
}

/// A function of the double, by name.
fn call<F: Copy>(name: &[u8]) -> F {
    // SAFETY: looks a symbol up; the double is loaded.
    let library = unsafe { sys::culib() };
    // SAFETY: each caller names the type that the double declares (double/src/control.rs).
    *unsafe { library.get::<F>(name) }.unwrap()
}

fn name(of: &str) -> CString {
    CString::new(of).unwrap()
}

/// The machine as new.
pub(crate) fn reset() {
    call::<extern "C" fn()>(b"cuda_double_reset")();
}

/// Calls of a name, or of all for an empty one.
pub(crate) fn count(of: &str) -> u64 {
    call::<extern "C" fn(*const i8) -> u64>(b"cuda_double_count")(name(of).as_ptr().cast())
}

/// Calls that take or give back memory, of any sort.
pub(crate) fn memory_calls() -> u64 {
    let names = ["cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocFromPoolAsync", "cuMemFreeAsync"];
    let pages = ["cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemHostAlloc", "cuMemFreeHost"];
    let rest = ["cuMemHostRegister_v2", "cuMemHostUnregister"];
    names.iter().chain(&pages).chain(&rest).map(|name| count(name)).sum()
}

/// Lets calls of a name, or any for an empty one, fail.
pub(crate) fn fail(of: &str, skip: u64, times: u64, code: u32) {
    let fail = call::<extern "C" fn(*const i8, u64, u64, u32)>(b"cuda_double_fail");
    fail(name(of).as_ptr().cast(), skip, times, code);
}

/// Nothing fails any more.
pub(crate) fn mend() {
    call::<extern "C" fn()>(b"cuda_double_mend")();
}

/// A call of a name says that it was done, and does nothing: the one after `skip` more.
pub(crate) fn pretend(of: &str, skip: u64) {
    call::<extern "C" fn(*const i8, u64)>(b"cuda_double_pretend")(name(of).as_ptr().cast(), skip);
}

/// The devices are gone.
pub(crate) fn lose(code: u32) {
    call::<extern "C" fn(u32)>(b"cuda_double_lose")(code);
}

/// Queued work runs now and then between calls.
pub(crate) fn seed(seed: u64) {
    call::<extern "C" fn(u64)>(b"cuda_double_seed")(seed);
}

/// Everything that is queued runs.
pub(crate) fn run() {
    call::<extern "C" fn()>(b"cuda_double_run")();
}

/// Bytes of device memory that are handed out, or mapped.
pub(crate) fn held() -> u64 {
    call::<extern "C" fn() -> u64>(b"cuda_double_held")()
}

/// Bytes of page-locked host memory.
pub(crate) fn pinned() -> u64 {
    call::<extern "C" fn() -> u64>(b"cuda_double_pinned")()
}

/// Reservations, memory pools and graphs that the program has not given back.
pub(crate) fn leftovers() -> usize {
    call::<extern "C" fn() -> usize>(b"cuda_double_leftovers")()
}

/// Events that the program has not destroyed.
pub(crate) fn events() -> usize {
    call::<extern "C" fn() -> usize>(b"cuda_double_events")()
}

/// Returns the number of uses out of order, and prints the first ones.
pub(crate) fn hazards() -> usize {
    let hazards = expected_hazards();
    if hazards > 0 {
        call::<extern "C" fn()>(b"cuda_double_tell_hazards")();
    }
    hazards
}

/// Returns the number of uses out of order, in a test that expects some.
pub(crate) fn expected_hazards() -> usize {
    call::<extern "C" fn() -> usize>(b"cuda_double_hazards")()
}

/// The CPU uses these bytes now.
pub(crate) fn touch(bytes: &[u8]) {
    let touch = call::<extern "C" fn(u64, usize)>(b"cuda_double_touch");
    touch(bytes.as_ptr().addr() as u64, bytes.len());
}

/// A kernel that uses bytes at an address.
pub(crate) fn kernel_at(on: &PoolStream, at: u64, bytes: u64) -> u32 {
    kernel_on(on.raw().cu_stream().addr(), at, usize::try_from(bytes).unwrap())
}

/// A kernel that uses bytes at an address, on a stream by its handle.
pub(crate) fn kernel_on(on: usize, at: u64, bytes: usize) -> u32 {
    call::<extern "C" fn(usize, u64, usize) -> u32>(b"cuda_double_kernel")(on, at, bytes)
}

/// Nanoseconds of the calls of virtual memory so far, by three sets of costs.
pub(crate) fn cost_sets() -> [u64; 3] {
    let cost = call::<extern "C" fn(usize) -> u64>(b"cuda_double_cost");
    [0, 1, 2].map(|set| cost(set))
}

/// A kernel that uses all of a buffer.
pub(crate) fn kernel<A: Vram>(buffer: &PooledBuffer<A>, on: &PoolStream) {
    let view = buffer.on(on).unwrap();
    assert_eq!(kernel_at(on, view.as_ptr(), buffer.size()), 0);
}

/// Begins a capture.
pub(crate) fn capture<A: Vram>(
    pool: &BucketPool<A>,
    on: &PoolStream,
) -> Result<CudaCapture<A>, DeviceError> {
    // SAFETY: where a test copies pageable memory in a capture, it keeps that memory until the last
    // launch has run.
    unsafe { CudaCapture::begin(pool, on) }
}

/// Bytes of device memory that are taken: handed out, mapped, or kept by the driver's pools.
pub(crate) fn taken() -> u64 {
    call::<extern "C" fn() -> u64>(b"cuda_double_taken")()
}

/// Lets the calls of which the documentation leaves it open wait for the device, or not.
pub(crate) fn calls_wait(they_do: bool) {
    call::<extern "C" fn(bool)>(b"cuda_double_calls_wait")(they_do);
}

/// Pieces of memory that were made so that RDMA can reach them.
pub(crate) fn for_rdma() -> usize {
    call::<extern "C" fn() -> usize>(b"cuda_double_for_rdma")()
}
