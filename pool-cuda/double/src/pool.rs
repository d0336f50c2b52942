//! Memory pools: allocation and freeing in the order of a stream.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::device::device;
use crate::pages::Access;
use crate::pointer::{InOut, Out};
use crate::state::{Origin, State, call, current, said};
use crate::store::Store;
use std::ffi::{c_int, c_uint};

/// `CUmemPool_attribute`.
const REUSE_FIRST: c_uint = 1;
const REUSE_LAST: c_uint = 3;
const THRESHOLD: c_uint = 4;
const RESERVED: c_uint = 5;
const USED: c_uint = 7;

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
        state.unsafe_call()?;
        let of = device(properties.get().device)?;
        let handle = state.new_handle();
        state.stores.insert(handle, Store::new(of));
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
        state.unsafe_call()?;
        state.destroy_store(pool)
    })
}

/// The release threshold is kept; the reuse policies are all on.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(pool: usize, attribute: c_uint, value: InOut<u64>) -> Code {
    call("cuMemPoolSetAttribute", |state| {
        state.unsafe_call()?;
        let store = state.stores.get(pool)?;
        match attribute {
            THRESHOLD => store.threshold = value.get(),
            REUSE_FIRST..=REUSE_LAST => {}
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolGetAttribute(pool: usize, attribute: c_uint, value: InOut<u64>) -> Code {
    call("cuMemPoolGetAttribute", |state| {
        state.unsafe_call()?;
        let store = state.stores.get(pool)?;
        value.put(match attribute {
            THRESHOLD => store.threshold,
            RESERVED => store.reserved,
            USED => store.used,
            _ => return Err(code::INVALID_VALUE),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: usize, keep: usize) -> Code {
    call("cuMemPoolTrimTo", |state| {
        state.unsafe_call()?;
        state.trim_store(pool, keep as u64)
    })
}

/// Of one device at a time, which is given access and never loses it.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAccess(pool: usize, access: InOut<Access>, count: usize) -> Code {
    call("cuMemPoolSetAccess", |state| {
        state.unsafe_call()?;
        let store = state.stores.get(pool)?;
        let who = access.get().device()?;
        if count != 1 || who == store.device {
            return Err(code::INVALID_VALUE);
        }
        store.access.insert(who);
        Ok(())
    })
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

/// Allocates from the pool of the device that is there from the start.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(at: Out<u64>, bytes: usize, stream: usize) -> Code {
    call("cuMemAllocAsync", |state| {
        at.put(in_order(state, bytes, current()? + 1, stream)?);
        Ok(())
    })
}

/// In a capture the call is a node of the graph, and the memory is the graph's.
fn in_order(state: &mut State, bytes: usize, pool: usize, stream: usize) -> Result<u64, Code> {
    let on = state.stream(stream)?;
    let Some(capture) = state.engine.capture_of(on.number) else {
        return state.take_from_store(pool, bytes, on.number);
    };
    let device = state.stores.get(pool)?.device;
    let at = state.allocate(bytes, device, Origin::Graph)?;
    state.engine.kernel(on.number, at..at + bytes as u64);
    if let Some(capture) = state.captures.get_mut(capture) {
        capture.memory.push(at);
    }
    Ok(at)
}

/// Memory of `cuMemAlloc` stays taken until a synchronisation that comes after its turn, as on an
/// H100. In a capture only memory of a graph can be freed. That stays until the graph goes.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(at: u64, stream: usize) -> Code {
    call("cuMemFreeAsync", |state| {
        let on = state.stream(stream)?;
        let known = state.memory.get(&at).ok_or(code::INVALID_VALUE)?;
        let (range, origin) = (at..at + known.bytes, known.origin);
        let captured = state.engine.capture_of(on.number);
        match (origin, captured) {
            (Origin::Graph, _) => state.engine.kernel(on.number, range),
            (Origin::Pool(pool), None) => {
                if known.device != on.device && !state.stores.may_use(pool, on.device) {
                    return Err(code::INVALID_VALUE);
                }
                state.memory.remove(&at);
                state.free_to_store(pool, range, on.number)?;
            }
            (Origin::Device, None) => {
                state.engine.kernel(on.number, range);
                let event = said(state.engine.record(on.number))?;
                state.freed_late.push((at, event));
            }
            (_, Some(capture)) => return state.breaks(capture, code::INVALID_VALUE),
        }
        Ok(())
    })
}
