//! Calls of the driver, for the tests beside this file. All handles and addresses that the tests
//! pass come from these functions, and live as long as the tests use them.

use cudarc::driver::sys::{self, CUevent, CUgraph, CUmemoryPool, CUresult, CUstream};
use cudarc::driver::sys::{CUmemPool_attribute as Attribute, CUstreamCaptureMode as Mode};
use cudarc::driver::{CudaContext, DriverError, result};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

pub(super) const MIB: usize = 1 << 20;

/// The code of a result; 0 if it is none.
pub(super) fn code<T>(done: Result<T, DriverError>) -> u32 {
    done.map_or_else(|error| error.0 as u32, |_| 0)
}

/// A context of a device, current to this thread.
pub(super) fn context(ordinal: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(ordinal).unwrap();
    context.bind_to_thread().unwrap();
    context
}

pub(super) fn stream() -> CUstream {
    result::stream::create(result::stream::StreamKind::NonBlocking).unwrap()
}

pub(super) fn synchronize(on: CUstream) -> u32 {
    // SAFETY: a stream of `stream`.
    code(unsafe { result::stream::synchronize(on) })
}

pub(super) fn destroy(on: CUstream) {
    // SAFETY: a stream of `stream`, which is not used afterwards.
    unsafe { result::stream::destroy(on) }.unwrap();
}

pub(super) fn event() -> CUevent {
    result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap()
}

pub(super) fn record(event: CUevent, on: CUstream) -> u32 {
    // SAFETY: an event of `event`, a stream of `stream`.
    code(unsafe { result::event::record(event, on) })
}

/// 0 once the event has passed, 600 before that.
pub(super) fn query(event: CUevent) -> u32 {
    // SAFETY: an event of `event`.
    code(unsafe { result::event::query(event) })
}

pub(super) fn wait_on_host(event: CUevent) -> u32 {
    // SAFETY: an event of `event`.
    code(unsafe { result::event::synchronize(event) })
}

pub(super) fn begin(on: CUstream, mode: Mode) {
    // SAFETY: a stream of `stream`.
    unsafe { result::stream::begin_capture(on, mode) }.unwrap();
}

/// The code with which a capture ends, and the graph.
pub(super) fn end(on: CUstream) -> (u32, CUgraph) {
    let mut graph = ptr::dangling_mut();
    // SAFETY: a stream of `stream`; the call writes a local variable.
    let ended = unsafe { sys::cuStreamEndCapture(on, &raw mut graph) };
    (ended as u32, graph)
}

/// 0: not under capture, 1: under capture, 2: the capture is invalid.
pub(super) fn status(on: CUstream) -> u32 {
    // SAFETY: a stream of `stream`.
    unsafe { result::stream::is_capturing(on) }.unwrap() as u32
}

/// Runs calls in the relaxed mode, in which a capture forbids the least.
pub(super) fn relaxed(calls: impl FnOnce()) {
    let mut mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: reads and writes a mode of this thread.
    let exchange = |mode: &mut Mode| unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) };
    assert_eq!(exchange(&mut mode), CUresult::CUDA_SUCCESS);
    calls();
    assert_eq!(exchange(&mut mode), CUresult::CUDA_SUCCESS);
}

/// Makes an instance of a graph, and launches it.
pub(super) fn launch(graph: CUgraph, on: CUstream) {
    let flags = sys::CUgraphInstantiate_flags(0);
    // SAFETY: a graph of `end`.
    let instance = unsafe { result::graph::instantiate(graph, flags) }.unwrap();
    // SAFETY: made above; a stream of `stream`.
    unsafe { result::graph::launch(instance, on) }.unwrap();
}

pub(super) fn destroy_graph(graph: CUgraph) {
    // SAFETY: a graph of `end`, which is not used afterwards.
    unsafe { result::graph::destroy(graph) }.unwrap();
}

pub(super) fn copy_to(at: u64, from: &[u8], on: CUstream) {
    // SAFETY: memory of `allocate`; the tests keep the slice until the copy has run.
    unsafe { result::memcpy_htod_async(at, from, on) }.unwrap();
}

pub(super) fn copy_back(to: &mut [u8], at: u64, on: CUstream) {
    // SAFETY: as in `copy_to`.
    unsafe { result::memcpy_dtoh_async(to, at, on) }.unwrap();
}

pub(super) fn allocate(bytes: usize) -> Result<u64, DriverError> {
    // SAFETY: requests memory in the current context.
    unsafe { result::malloc_sync(bytes) }
}

pub(super) fn free(at: u64) -> u32 {
    // SAFETY: memory of `allocate`, which is freed once.
    code(unsafe { result::free_sync(at) })
}

pub(super) fn allocate_on(on: CUstream, bytes: usize) -> u64 {
    // SAFETY: a stream of `stream`.
    unsafe { result::malloc_async(on, bytes) }.unwrap()
}

pub(super) fn free_on(at: u64, on: CUstream) {
    // SAFETY: memory of `allocate_on`, which is freed once.
    unsafe { result::free_async(at, on) }.unwrap();
}

pub(super) fn allocate_host(bytes: usize) -> *mut c_void {
    // SAFETY: requests page-locked memory.
    unsafe { result::malloc_host(bytes, 0) }.unwrap()
}

pub(super) fn free_host(at: *mut c_void) -> u32 {
    // SAFETY: memory of `allocate_host`, which is freed once.
    code(unsafe { result::free_host(at) })
}

/// The driver's own pool of device 0, with a release threshold.
pub(super) fn pool(threshold: u64) -> CUmemoryPool {
    let (mut pool, mut value) = (ptr::null_mut(), threshold);
    // SAFETY: the call writes a local variable.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, 0) }.result().unwrap();
    let attribute = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a 64-bit number, which the call reads.
    let set = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()) };
    set.result().unwrap();
    pool
}

/// The code with which the driver's own pool says what it has reserved.
pub(super) fn ask(pool: CUmemoryPool) -> u32 {
    let (attribute, mut value) = (Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0_u64);
    // SAFETY: the attribute is a 64-bit number, which the call writes.
    unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) as u32 }
}

pub(super) fn trim(pool: CUmemoryPool) {
    // SAFETY: a pool of `pool`.
    unsafe { sys::cuMemPoolTrimTo(pool, 0) }.result().unwrap();
}

/// Reserves 2 MiB, maps a piece there and sets access. Returns the address, and the handle.
pub(super) fn mapped() -> (u64, u64) {
    let (mut at, mut handle) = (0, 0);
    // SAFETY: all zeroes are valid for this structure of C.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: as above.
    let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
    access.location = properties.location;
    access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    // SAFETY: the call writes a local variable.
    unsafe { sys::cuMemAddressReserve(&raw mut at, 2 * MIB, 0, 0, 0) }.result().unwrap();
    // SAFETY: the call reads and writes local variables.
    let created = unsafe { sys::cuMemCreate(&raw mut handle, 2 * MIB, &raw const properties, 0) };
    created.result().unwrap();
    // SAFETY: reserved and created above.
    unsafe { sys::cuMemMap(at, 2 * MIB, 0, handle, 0) }.result().unwrap();
    // SAFETY: mapped above.
    unsafe { sys::cuMemSetAccess(at, 2 * MIB, &raw const access, 1) }.result().unwrap();
    (at, handle)
}

/// Sets access to what `mapped` has mapped once more.
pub(super) fn set_access(at: u64) -> u32 {
    // SAFETY: all zeroes are valid for this structure of C.
    let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
    access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    // SAFETY: mapped by `mapped`.
    unsafe { sys::cuMemSetAccess(at, 2 * MIB, &raw const access, 1) as u32 }
}

/// Page-locks memory of this process, and returns the code of unlocking it beside a kernel.
pub(super) fn unregister_beside(kernel: impl FnOnce(u64)) -> u32 {
    let memory = vec![0_u8; 4096].leak();
    let at = memory.as_mut_ptr();
    // SAFETY: the memory is never freed.
    unsafe { sys::cuMemHostRegister_v2(at.cast(), 4096, 0) }.result().unwrap();
    kernel(at.addr() as u64);
    // SAFETY: registered above.
    unsafe { sys::cuMemHostUnregister(at.cast()) as u32 }
}

pub(super) fn unmap(at: u64) -> u32 {
    // SAFETY: mapped by `mapped`.
    unsafe { sys::cuMemUnmap(at, 2 * MIB) as u32 }
}

pub(super) fn release(handle: u64) {
    // SAFETY: a handle of `mapped`, which is released once.
    unsafe { sys::cuMemRelease(handle) }.result().unwrap();
}
