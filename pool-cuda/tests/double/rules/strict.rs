//! Calls that CUDA's documentation refuses, which the double refuses too; and calls of plugs.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a block asks one question after the other, all by local variables"
)]

use super::calls::{MIB, code, context, event, stream};
use crate::harness::{double, held};
use cudarc::driver::{result, sys};
use std::{mem, ptr, thread};

/// What the driver answers.
fn says(answer: sys::CUresult) -> u32 {
    answer as u32
}

#[test]
fn e19_flags_and_modes_that_are_unknown_are_refused() {
    let _one = double();
    let _context = context(0);
    let (on, known, mut made) = (stream(), event(), 0_usize);
    let at = (&raw mut made).cast();
    // SAFETY: the calls write a local variable, and name a live stream and event.
    unsafe {
        assert_eq!(says(sys::cuStreamCreate(at, 77)), 1);
        assert_eq!(says(sys::cuEventCreate(at.cast(), 4)), 1, "shared with times");
        assert_eq!(says(sys::cuEventCreate(at.cast(), 64)), 1);
        assert_eq!(says(sys::cuStreamWaitEvent(on, known, 99)), 1);
        assert_eq!(says(sys::cuInit(7)), 1);
    }
}

#[test]
fn e20_calls_without_a_context_or_a_device_are_refused() {
    let _one = double();
    let context = context(0);
    let (mut at, mut bytes) = (ptr::null_mut(), 0);
    let elsewhere = thread::spawn(|| {
        let mut at = ptr::null_mut();
        // SAFETY: the call writes a local variable.
        let none = says(unsafe { sys::cuMemHostAlloc(&raw mut at, 4096, 0) });
        // SAFETY: a number that is no context.
        let garbage = says(unsafe { sys::cuCtxSetCurrent(ptr::without_provenance_mut(0x1234)) });
        (none, garbage)
    });
    assert_eq!(elsewhere.join().unwrap(), (201, 201));
    // SAFETY: the calls write local variables.
    unsafe {
        assert_eq!(says(sys::cuDeviceTotalMem_v2(&raw mut bytes, 99)), 101);
        assert_eq!(says(sys::cuDevicePrimaryCtxRelease_v2(99)), 101);
        assert_eq!(says(sys::cuMemHostAlloc(&raw mut at, 0, 0)), 1);
        assert_eq!(says(sys::cuMemHostRegister_v2(at, 0, 0)), 1);
    }
    drop(context);
}

#[test]
fn e21_a_context_goes_with_its_last_release() {
    let _one = double();
    let context = context(0);
    // SAFETY: requests memory.
    let at = unsafe { result::malloc_sync(MIB) }.unwrap();
    let on = stream();
    drop(context);
    assert_eq!(held(), 0, "its memory goes with it");
    // SAFETY: nothing is there any more, which is what is asked.
    unsafe {
        assert_eq!(code(result::stream::synchronize(on)), 709);
        assert_eq!(code(result::free_sync(at)), 709);
        assert_eq!(says(sys::cuDevicePrimaryCtxRelease_v2(0)), 201, "once too often");
    }
    let _again = self::context(0);
    // SAFETY: as above.
    assert_eq!(code(unsafe { result::free_sync(at) }), 1);
}

#[test]
fn e22_virtual_memory_is_asked_for_as_documented() {
    let _one = double();
    let _context = context(0);
    let (mut at, mut handle) = (0, 0);
    // SAFETY: all zeroes are valid for this structure of C.
    let mut properties: sys::CUmemAllocationProp = unsafe { mem::zeroed() };
    // SAFETY: the calls read and write local variables.
    unsafe {
        assert_eq!(says(sys::cuMemAddressReserve(&raw mut at, 2 * MIB, 3, 0, 0)), 1);
        assert_eq!(says(sys::cuMemAddressReserve(&raw mut at, 1 << 50, 0, 0, 0)), 2);
        assert_eq!(says(sys::cuMemAddressReserve(&raw mut at, 2 * MIB, 0, 0, 0)), 0);
        let create = sys::cuMemCreate;
        assert_eq!(says(create(&raw mut handle, 2 * MIB, &raw const properties, 0)), 1);
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        assert_eq!(says(create(&raw mut handle, 2 * MIB, &raw const properties, 0)), 1);
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.requestedHandleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
        assert_eq!(says(create(&raw mut handle, 2 * MIB, &raw const properties, 0)), 801);
        properties.requestedHandleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        assert_eq!(says(create(&raw mut handle, 2 * MIB, &raw const properties, 0)), 0);
        assert_eq!(says(sys::cuMemMap(at, 2 * MIB, 4096, handle, 0)), 1);
        assert_eq!(says(sys::cuMemMap(at, 2 * MIB, 0, handle, 0)), 0);
        assert_eq!(says(sys::cuMemUnmap(at, 2 * MIB)), 0);
        assert_eq!(says(sys::cuMemRelease(handle)), 0);
        assert_eq!(says(sys::cuMemAddressFree(at, 2 * MIB)), 0);
    }
}

#[test]
fn e23_a_stream_has_a_number_that_no_other_has() {
    let _one = double();
    let context = context(0);
    let number = |on| {
        let mut number = 0;
        // SAFETY: the stream lives, and the call writes a local variable.
        assert_eq!(says(unsafe { sys::cuStreamGetId(on, &raw mut number) }), 0);
        number
    };
    let first = stream();
    let before = number(first);
    // SAFETY: made above, and destroyed once.
    unsafe { result::stream::destroy(first) }.unwrap();
    let second = stream();
    assert_eq!(second, first, "the handle serves again");
    assert_ne!(number(second), before);
    let mut of = ptr::null_mut();
    // SAFETY: as above.
    unsafe {
        assert_eq!(says(sys::cuStreamGetCtx(second, &raw mut of)), 0);
        assert_eq!(says(sys::cuStreamQuery(second)), 0);
    }
    assert_eq!(of, context.cu_ctx());
}
