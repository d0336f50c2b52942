//! The driver, its device and its context.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::Out;
use crate::state::{CAPACITY, call, state};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint};

/// The handle of the primary context.
const CONTEXT: usize = 0xC0DE;
/// The version that is claimed: CUDA 12.8.
const VERSION: c_int = 12080;

thread_local!(static CURRENT: Cell<usize> = const { Cell::new(0) });

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> Code {
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> Code {
    version.put(VERSION);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> Code {
    count.put(1);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> Code {
    if ordinal != 0 {
        return code::INVALID_DEVICE;
    }
    device.put(0);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, _device: c_int) -> Code {
    bytes.put(usize::try_from(CAPACITY).unwrap_or(usize::MAX));
    code::SUCCESS
}

/// No memory pools, no virtual memory, nothing else either.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(
    value: Out<c_int>,
    _attribute: c_uint,
    _device: c_int,
) -> Code {
    value.put(0);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Out<usize>, _device: c_int) -> Code {
    context.put(CONTEXT);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Code {
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Out<usize>) -> Code {
    context.put(CURRENT.get());
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    CURRENT.set(context);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    call(|state| {
        state.engine.synchronize_all();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    let held = state().engine.held_bytes();
    free.put(usize::try_from(CAPACITY - held.min(CAPACITY)).unwrap_or(0));
    total.put(usize::try_from(CAPACITY).unwrap_or(usize::MAX));
    code::SUCCESS
}

fn text(error: Code) -> *const c_char {
    match error {
        code::SUCCESS => c"CUDA_SUCCESS",
        code::OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        code::NOT_READY => c"CUDA_ERROR_NOT_READY",
        _ => c"an error of the double",
    }
    .as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: Code, name: Out<*const c_char>) -> Code {
    name.put(text(error));
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(error: Code, string: Out<*const c_char>) -> Code {
    string.put(text(error));
    code::SUCCESS
}
