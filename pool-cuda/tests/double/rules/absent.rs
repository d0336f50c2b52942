//! Calls of PyTorch and of other libraries that `pool-cuda` itself does not make: the double answers
//! them as the driver's documentation says. Code numbers are those of `CUresult`.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a block asks one question after the other, all by local variables"
)]

use super::calls::{
    MIB, allocate, allocate_host, begin, context, end, free, free_host, launch, mapped, stream,
    synchronize,
};
use crate::harness::{double, hazards, run};
use cudarc::driver::sys::{self, CUpointer_attribute as Attribute, CUstreamCaptureMode as Mode};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::{ptr, thread};

/// What the driver answers.
fn says(answer: sys::CUresult) -> u32 {
    answer as u32
}

/// The status of a capture by version 2 of the call, and its number.
fn capture_info(on: sys::CUstream) -> (u32, u32, u64) {
    type Info = extern "C" fn(sys::CUstream, *mut u32, *mut u64, usize, usize, usize) -> u32;
    // SAFETY: the double is loaded.
    let library = unsafe { sys::culib() };
    // SAFETY: the type is that of the double's function.
    let info = unsafe { library.get::<Info>(b"cuStreamGetCaptureInfo_v2") }.unwrap();
    let (mut status, mut number) = (9, 0);
    (info(on, &raw mut status, &raw mut number, 0, 0, 0), status, number)
}

/// One attribute of an address, as a number of 8 bytes, and the code.
fn attribute(which: Attribute, at: u64) -> (u32, u64) {
    let mut value = 0_u64;
    // SAFETY: no attribute that the tests ask for has more than 8 bytes.
    let code = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), which, at) };
    (says(code), value)
}

#[test]
fn a_capture_has_a_status_and_a_number_of_its_own() {
    let _one = double();
    let _context = context(0);
    let on = stream();
    assert_eq!(capture_info(on), (0, 0, 0), "under no capture");
    begin(on, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    let (code, status, first) = capture_info(on);
    assert_eq!((code, status), (0, 1));
    let (mut status, mut number) = (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
    let none = ptr::null_mut();
    // SAFETY: the call writes local variables; the others may be null.
    let code = unsafe {
        let none = (none, ptr::null_mut(), ptr::null_mut());
        let (graph, edges, count) = none;
        let nodes = ptr::null_mut();
        let (status, number) = (&raw mut status, &raw mut number);
        sys::cuStreamGetCaptureInfo_v3(on, status, number, graph, nodes, edges, count)
    };
    assert_eq!((says(code), status as u32, number), (0, 1, first));
    end(on);
    begin(on, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    assert_ne!(capture_info(on).2, first);
    assert_eq!(synchronize(on), 900, "which breaks the capture");
    assert_eq!(capture_info(on), (0, 2, 0));
    end(on);
    assert_eq!(capture_info(ptr::without_provenance_mut(0x9999)).0, 400);
}

#[test]
fn an_address_is_known_by_what_it_is_in() {
    let _one = double();
    let context = context(1);
    let (block, host) = (allocate(MIB).unwrap(), allocate_host(4096));
    let inside = block + 77;
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside), (0, 2));
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), (0, 1));
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), (0, block));
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), (0, MIB as u64));
    let of_context = context.cu_ctx().addr() as u64;
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, inside), (0, of_context));
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER, inside).0, 1);
    let locked = host.addr() as u64;
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, locked), (0, 1));
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER, locked), (0, locked));
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + MIB as u64).0, 1);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, block).0, 801);
    let (start, handle) = mapped();
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, start), (0, 0));
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, start), (0, 0));
    assert!(handle > 0);
    let elsewhere =
        thread::spawn(move || attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block).0);
    assert_eq!(elsewhere.join().unwrap(), 201, "no context");
    assert_eq!((free(block), free_host(host)), (0, 0));
}

#[test]
fn attributes_of_an_unknown_address_are_null() {
    let _one = double();
    let _context = context(0);
    let block = allocate(MIB).unwrap();
    let all = |at| {
        let (mut kind, mut ordinal, mut start) = (9_u32, 9_i32, 9_u64);
        let mut which = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        ];
        let mut data: [*mut c_void; 3] =
            [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut start).cast()];
        // SAFETY: the call reads and writes local variables.
        let code =
            unsafe { sys::cuPointerGetAttributes(3, which.as_mut_ptr(), data.as_mut_ptr(), at) };
        (says(code), kind, ordinal, start)
    };
    assert_eq!(all(block + 1), (0, 2, 0, block));
    assert_eq!(all(64), (0, 0, -2, 0));
}

#[test]
fn the_range_around_an_address() {
    let _one = double();
    let _context = context(0);
    let block = allocate(MIB).unwrap();
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: the calls write local variables; each of these may be null.
    unsafe {
        assert_eq!(
            says(sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, block + 5)),
            0
        );
        assert_eq!((start, bytes), (block, MIB));
        let none = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(says(sys::cuMemGetAddressRange_v2(none.0, none.1, block)), 0);
        assert_eq!(says(sys::cuMemGetAddressRange_v2(none.0, none.1, 64)), 500);
    }
}

#[test]
fn contexts_of_a_thread_are_a_stack() {
    let _one = double();
    let contexts = [context(0), context(1)].map(|context| context.cu_ctx());
    let current = || {
        let mut current = ptr::null_mut();
        // SAFETY: the call writes a local variable.
        assert_eq!(says(unsafe { sys::cuCtxGetCurrent(&raw mut current) }), 0);
        current
    };
    assert_eq!(current(), contexts[1]);
    let mut popped = ptr::null_mut();
    // SAFETY: both contexts live, and the calls write local variables.
    unsafe {
        assert_eq!(says(sys::cuCtxPushCurrent_v2(contexts[0])), 0);
        assert_eq!(current(), contexts[0]);
        assert_eq!(says(sys::cuCtxPopCurrent_v2(&raw mut popped)), 0);
        assert_eq!((popped, current()), (contexts[0], contexts[1]));
        assert_eq!(says(sys::cuCtxPushCurrent_v2(ptr::null_mut())), 201);
        assert_eq!(says(sys::cuCtxPushCurrent_v2(contexts[0])), 0);
        assert_eq!(says(sys::cuCtxSetCurrent(ptr::null_mut())), 0);
        assert_eq!(current(), contexts[1], "a null context takes the top away");
        assert_eq!(says(sys::cuCtxPopCurrent_v2(ptr::null_mut())), 0);
        assert_eq!(says(sys::cuCtxPopCurrent_v2(&raw mut popped)), 201, "nothing is left");
    }
}

#[test]
fn a_context_that_is_reset_is_inactive_until_it_is_retained() {
    let _one = double();
    let active = |device| {
        let (mut flags, mut active) = (9, 9);
        // SAFETY: the call writes local variables.
        let code =
            unsafe { sys::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
        (says(code), active)
    };
    let context = context(0);
    let block = allocate(MIB).unwrap();
    assert_eq!([active(0), active(1)], [(0, 1), (0, 0)]);
    assert_eq!(active(99).0, 101);
    // SAFETY: the only context that is used afterwards is retained anew.
    assert_eq!(says(unsafe { sys::cuDevicePrimaryCtxReset_v2(0) }), 0);
    assert_eq!((active(0), free(block)), ((0, 0), 709));
    let again = self::context(0);
    assert_eq!((active(0), free(block)), ((0, 1), 1), "its memory went with it");
    drop((context, again));
}

/// Calls of [`count_up`].
static CALLED: AtomicU32 = AtomicU32::new(0);
/// What the driver answered to a call in [`count_up`].
static ANSWERED: AtomicU32 = AtomicU32::new(0);

/// A host function. It calls the driver, which none may.
unsafe extern "C" fn count_up(by: *mut c_void) {
    CALLED.fetch_add(u32::try_from(by.addr()).unwrap_or(0), Relaxed);
    // SAFETY: refused, whatever is current.
    ANSWERED.store(says(unsafe { sys::cuCtxSynchronize() }), Relaxed);
}

#[test]
fn a_host_function_runs_when_its_turn_comes() {
    let _one = double();
    let _context = context(0);
    let (on, three) = (stream(), ptr::without_provenance_mut(3));
    CALLED.store(0, Relaxed);
    // SAFETY: the function takes any number, and the stream lives.
    let host = |function| says(unsafe { sys::cuLaunchHostFunc(on, function, three) });
    assert_eq!((host(None), host(Some(count_up))), (1, 0));
    assert_eq!(CALLED.load(Relaxed), 0);
    assert_eq!(synchronize(on), 0);
    assert_eq!((CALLED.load(Relaxed), ANSWERED.load(Relaxed)), (3, 800));
    begin(on, Mode::CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_eq!(host(Some(count_up)), 0);
    let (_, graph) = end(on);
    launch(graph, on);
    launch(graph, on);
    run();
    assert_eq!(CALLED.load(Relaxed), 9, "once for each launch");
}

#[test]
fn copies_without_a_stream_are_done_on_return() {
    let _one = double();
    let _context = context(0);
    let (block, other) = (allocate(MIB).unwrap(), allocate(MIB).unwrap());
    let (from, mut to) = ([7_u8; 16], [0_u8; 16]);
    let (source, target) = (from.as_ptr().cast(), to.as_mut_ptr());
    let address = |of: *const c_void| of.expose_provenance() as u64;
    // SAFETY: the blocks and the arrays have 16 bytes, or the address is refused.
    unsafe {
        assert_eq!(says(sys::cuMemcpyHtoD_v2(block, source, 16)), 0);
        assert_eq!(says(sys::cuMemcpyDtoD_v2(other, block, 16)), 0);
        assert_eq!(says(sys::cuMemcpyDtoH_v2(target.cast(), other, 16)), 0);
        assert_eq!(to, from);
        assert_eq!(says(sys::cuMemsetD8_v2(block, 9, 8)), 0);
        assert_eq!(says(sys::cuMemcpy(other + 8, block, 8)), 0);
        assert_eq!(says(sys::cuMemcpy(address(target.cast()), other, 16)), 0);
        assert_eq!(to, [[7; 8], [9; 8]].concat()[..]);
        assert_eq!(says(sys::cuMemcpy(other, address(source), 16)), 0);
        assert_eq!(says(sys::cuMemcpy(address(target.cast()), address(source), 16)), 0);
        assert_eq!(to, from);
        assert_eq!(says(sys::cuMemcpyHtoD_v2(64, source, 16)), 1);
    }
    assert_eq!(hazards(), 0);
    let on = stream();
    begin(on, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    // SAFETY: as above.
    assert_eq!(says(unsafe { sys::cuMemcpyHtoD_v2(block, source, 16) }), 900, "beside a capture");
    end(on);
}

#[test]
fn a_device_has_a_name_that_no_other_has() {
    let _one = double();
    let _context = context(0);
    let name = |device| {
        let (mut uuid, mut bus) = (sys::CUuuid { bytes: [0; 16] }, [0_i8; 16]);
        // SAFETY: the calls write local variables.
        unsafe {
            assert_eq!(says(sys::cuDeviceGetUuid_v2(&raw mut uuid, device)), 0);
            assert_eq!(says(sys::cuDeviceGetPCIBusId(bus.as_mut_ptr().cast(), 16, device)), 0);
            assert_eq!(says(sys::cuDeviceGetPCIBusId(bus.as_mut_ptr().cast(), 5, device)), 1);
        }
        (uuid.bytes, bus)
    };
    let (first, second) = (name(0), name(1));
    assert!(first.0 != second.0 && first.1 != second.1);
}
