//! The driver, its devices and their contexts.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{Host, Out};
use crate::state::{
    BELOW, CAPACITY, CURRENT, DEVICES, INITIALIZED, call, context_of, current, device_of,
};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering::Relaxed;

/// The version that is claimed: CUDA 12.8.
const VERSION: c_int = 12080;
/// The attributes that are told, with the values of an H100; the others are 0.
const TOLD: [(c_uint, c_int); 12] = [
    (1, 1024),    // threads of a block
    (8, 49_152),  // bytes that a block shares
    (10, 32),     // threads of a warp
    (12, 65_536), // registers of a block
    (16, 132),    // multiprocessors
    (41, 1),      // one address space for host and device
    (75, 9),      // compute capability
    (102, 1),     // virtual memory
    (103, 1),     // its export as a file
    (110, 1),     // memory that RDMA reaches
    (115, 1),     // memory pools
    (39, 2048),   // threads of a multiprocessor
];

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> Code {
    call("cuInit", |_| {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        INITIALIZED.store(true, Relaxed);
        Ok(())
    })
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
pub extern "C" fn cuDeviceGetName(name: Host, bytes: c_int, of: c_int) -> Code {
    call("cuDeviceGetName", |_| {
        device(of)?;
        let text = c"a double of libcuda, no GPU".to_bytes_with_nul();
        if usize::try_from(bytes).is_ok_and(|bytes| bytes >= text.len()) {
            name.write(text);
            return Ok(());
        }
        Err(code::INVALID_VALUE)
    })
}

/// 16 bytes that name a device.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(bytes: Host, of: c_int) -> Code {
    call("cuDeviceGetUuid_v2", |_| {
        let mut name = *b"cuda double    0";
        name[15] += u8::try_from(device(of)?).unwrap_or(0);
        if bytes.is_null() {
            return Err(code::INVALID_VALUE);
        }
        bytes.write(&name);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetPCIBusId(text: Host, bytes: c_int, of: c_int) -> Code {
    call("cuDeviceGetPCIBusId", |_| {
        let name = format!("0000:{:02x}:00.0\0", device(of)? + 1);
        if text.is_null() || usize::try_from(bytes).is_ok_and(|bytes| bytes < name.len()) {
            return Err(code::INVALID_VALUE);
        }
        text.write(name.as_bytes());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, of: c_int) -> Code {
    call("cuDeviceTotalMem_v2", |_| {
        device(of)?;
        bytes.put(usize::try_from(*CAPACITY).unwrap_or(usize::MAX));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, of: c_int) -> Code {
    call("cuDeviceGetAttribute", |_| {
        device(of)?;
        let told = TOLD.iter().find(|(number, _)| *number == attribute);
        value.put(told.map_or(0, |(_, value)| *value));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Out<usize>, handle: c_int) -> Code {
    call("cuDevicePrimaryCtxRetain", |state| {
        let device = device(handle)?;
        state.retained[device] += 1;
        state.is_reset[device] = false;
        context.put(context_of(device));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(handle: c_int) -> Code {
    call("cuDevicePrimaryCtxRelease_v2", |state| {
        let device = device(handle)?;
        state.retained[device] =
            state.retained[device].checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
        if state.retained[device] == 0 {
            state.destroy_context(device);
        }
        Ok(())
    })
}

/// The flags are the default ones: nothing sets others.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxGetState(
    handle: c_int,
    flags: Out<c_uint>,
    active: Out<c_int>,
) -> Code {
    call("cuDevicePrimaryCtxGetState", |state| {
        let device = device(handle)?;
        if flags.is_null() || active.is_null() {
            return Err(code::INVALID_VALUE);
        }
        flags.put(0);
        active.put(c_int::from(state.is_active(device)));
        Ok(())
    })
}

/// The context's memory, streams and events go. Its holders still release it; until one retains
/// it anew, calls in it are refused.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset_v2(handle: c_int) -> Code {
    call("cuDevicePrimaryCtxReset_v2", |state| {
        let device = device(handle)?;
        if state.is_active(device) {
            state.destroy_context(device);
            state.is_reset[device] = true;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(handle: Out<c_int>) -> Code {
    call("cuCtxGetDevice", |_| {
        handle.put(c_int::try_from(current()?).unwrap_or(0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Out<usize>) -> Code {
    call("cuCtxGetCurrent", |_| {
        context.put(CURRENT.get());
        Ok(())
    })
}

/// Replaces the top of the thread's stack of contexts; a null context takes the top away. A context
/// that is lost becomes current, and the call returns its code: the documentation says
/// that the call "may also return error codes from previous, asynchronous launches".
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    call("cuCtxSetCurrent", |state| {
        let device = if context == 0 { None } else { Some(device_of(context)?) };
        let below = || BELOW.with_borrow_mut(Vec::pop).unwrap_or(0);
        CURRENT.set(if context == 0 { below() } else { context });
        device.map_or(Ok(()), |device| state.lost.check(device))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: usize) -> Code {
    call("cuCtxPushCurrent_v2", |state| {
        let device = device_of(context)?;
        let before = CURRENT.replace(context);
        if before != 0 {
            BELOW.with_borrow_mut(|below| below.push(before));
        }
        state.lost.check(device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPopCurrent_v2(context: Out<usize>) -> Code {
    call("cuCtxPopCurrent_v2", |_| {
        current()?;
        let below = BELOW.with_borrow_mut(Vec::pop);
        context.put_if_wanted(CURRENT.replace(below.unwrap_or(0)));
        Ok(())
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
