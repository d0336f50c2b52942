//! Memory pools: allocation and freeing in the order of a stream.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::device::device;
use crate::pages::Access;
use crate::pointer::{InOut, Out};
use crate::state::{DEVICES, State, call, current, said};
use std::ffi::{c_int, c_uint};

/// `CUmemPoolProps`, as far as it is read: its device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProperties {
    allocation: c_uint,
    handles: c_uint,
    location: c_uint,
    device: c_int,
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolCreate(pool: Out<usize>, properties: InOut<PoolProperties>) -> Code {
    call("cuMemPoolCreate", |state| {
        let of = device(properties.get().device)?;
        let handle = state.new_handle();
        state.pools.insert(handle, of);
        pool.put(handle);
        Ok(())
    })
}

/// The pool of a device that is there from the start.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<usize>, of: c_int) -> Code {
    call("cuDeviceGetDefaultMemPool", |_| {
        pool.put(device(of)? + 1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: usize) -> Code {
    call("cuMemPoolDestroy", |state| {
        state.pools.remove(&pool).map(|_| ()).ok_or(code::INVALID_VALUE)
    })
}

/// What a pool keeps is not modelled: freed memory is the device's when its turn comes.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(
    pool: usize,
    _attribute: c_uint,
    _value: InOut<u64>,
) -> Code {
    call("cuMemPoolSetAttribute", |state| known(state, pool).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolGetAttribute(
    pool: usize,
    _attribute: c_uint,
    value: InOut<u64>,
) -> Code {
    call("cuMemPoolGetAttribute", |state| {
        let held = state.held(known(state, pool)?);
        value.put(held);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: usize, _bytes: usize) -> Code {
    call("cuMemPoolTrimTo", |state| known(state, pool).map(|_| ()))
}

/// Of one device at a time, which is given access and never loses it.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAccess(pool: usize, access: InOut<Access>, count: usize) -> Code {
    call("cuMemPoolSetAccess", |state| {
        let own = known(state, pool)?;
        let who = access.get().device()?;
        if count != 1 || who == own {
            return Err(code::INVALID_VALUE);
        }
        state.pool_access.insert((pool, who));
        Ok(())
    })
}

fn known(state: &State, pool: usize) -> Result<usize, Code> {
    let first = pool.checked_sub(1).filter(|device| *device < DEVICES);
    first.or_else(|| state.pools.get(&pool).copied()).ok_or(code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(
    at: Out<u64>,
    bytes: usize,
    pool: usize,
    stream: usize,
) -> Code {
    call("cuMemAllocFromPoolAsync", |state| {
        at.put(in_order(state, bytes, pool, stream)?);
        Ok(())
    })
}

/// From a pool of the device that is there from the start.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(at: Out<u64>, bytes: usize, stream: usize) -> Code {
    call("cuMemAllocAsync", |state| {
        at.put(in_order(state, bytes, current()? + 1, stream)?);
        Ok(())
    })
}

fn in_order(state: &mut State, bytes: usize, pool: usize, stream: usize) -> Result<u64, Code> {
    let device = known(state, pool)?;
    let (on, _) = state.stream(stream)?;
    if state.engine.is_capturing(on) {
        return Err(code::STREAM_CAPTURE_UNSUPPORTED); // a node of the graph in the driver; not here
    }
    let at = state.allocate(bytes, device, Some(pool))?;
    // Usable after this point of the stream only.
    state.engine.kernel(on, at..at + bytes as u64);
    Ok(at)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(at: u64, stream: usize) -> Code {
    call("cuMemFreeAsync", |state| {
        let (on, _) = state.stream(stream)?;
        if !state.memory.contains_key(&at) {
            return Err(code::INVALID_VALUE);
        }
        said(state.engine.free_in_order(on, at))?;
        state.memory.remove(&at);
        Ok(())
    })
}
