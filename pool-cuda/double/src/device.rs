//! The driver, its devices and their contexts.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{Host, Out};
use crate::state::{CAPACITY, CURRENT, DEVICES, call, context_of, current, device_of};
use std::ffi::{c_char, c_int, c_uint};

/// The version that is claimed: CUDA 12.8.
const VERSION: c_int = 12080;
/// The attributes that are told; the others are 0.
const VIRTUAL_MEMORY: c_uint = 102;
const FILE_HANDLES: c_uint = 103;
const RDMA: c_uint = 110;
const MEMORY_POOLS: c_uint = 115;

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> Code {
    call("cuInit", |_| Ok(()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> Code {
    version.put(VERSION);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> Code {
    call("cuDeviceGetCount", |_| {
        count.put(c_int::try_from(DEVICES).unwrap_or(0));
        Ok(())
    })
}

/// The number of a device, if there is one.
pub(crate) fn device(handle: c_int) -> Result<usize, Code> {
    let device = usize::try_from(handle).ok().filter(|device| *device < DEVICES);
    device.ok_or(code::INVALID_DEVICE)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(handle: Out<c_int>, ordinal: c_int) -> Code {
    call("cuDeviceGet", |_| {
        device(ordinal)?;
        handle.put(ordinal);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: Host, bytes: c_int, _device: c_int) -> Code {
    call("cuDeviceGetName", |_| {
        let text = c"a double of libcuda, no GPU".to_bytes_with_nul();
        if usize::try_from(bytes).is_ok_and(|bytes| bytes >= text.len()) {
            name.write(text);
            return Ok(());
        }
        Err(code::INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, _device: c_int) -> Code {
    call("cuDeviceTotalMem_v2", |_| {
        bytes.put(usize::try_from(*CAPACITY).unwrap_or(usize::MAX));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(
    value: Out<c_int>,
    attribute: c_uint,
    _device: c_int,
) -> Code {
    call("cuDeviceGetAttribute", |_| {
        value.put(c_int::from(matches!(
            attribute,
            VIRTUAL_MEMORY | FILE_HANDLES | RDMA | MEMORY_POOLS
        )));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Out<usize>, handle: c_int) -> Code {
    call("cuDevicePrimaryCtxRetain", |_| {
        context.put(context_of(device(handle)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Code {
    call("cuDevicePrimaryCtxRelease_v2", |_| Ok(()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Out<usize>) -> Code {
    call("cuCtxGetCurrent", |_| {
        context.put(CURRENT.get());
        Ok(())
    })
}

/// A context that is lost becomes current, and the call returns its code: the documentation says
/// that the call "may also return error codes from previous, asynchronous launches".
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    call("cuCtxSetCurrent", |state| {
        CURRENT.set(context);
        device_of(context).map_or(Ok(()), |device| state.lost.check(device))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    call("cuCtxSynchronize", |state| {
        let device = current()?;
        state.stops_device(device)?;
        state.engine.synchronize_all();
        state.give_back_to_thresholds();
        state.lost.check(device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceCanAccessPeer(can: Out<c_int>, from: c_int, to: c_int) -> Code {
    call("cuDeviceCanAccessPeer", |_| {
        can.put(c_int::from(device(from)? != device(to)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(context: usize, _flags: c_uint) -> Code {
    call("cuCtxEnablePeerAccess", |state| {
        let (from, to) = (current()?, device_of(context)?);
        if from == to {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        state.lost.check(to)?;
        if state.peers.insert((from, to)) { Ok(()) } else { Err(code::PEER_ACCESS_ALREADY_ENABLED) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    call("cuMemGetInfo_v2", |state| {
        let taken = state.taken(current()?);
        free.put(usize::try_from(*CAPACITY - taken.min(*CAPACITY)).unwrap_or(0));
        total.put(usize::try_from(*CAPACITY).unwrap_or(usize::MAX));
        Ok(())
    })
}

fn text(error: Code) -> *const c_char {
    match error {
        code::SUCCESS => c"CUDA_SUCCESS",
        code::OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        code::NOT_READY => c"CUDA_ERROR_NOT_READY",
        code::NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED: the double of libcuda has no kernels",
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
