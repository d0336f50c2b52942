//! Memory, copies and fills.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{Out, Source, Target};
use crate::state::{call, state};

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(at: Out<u64>, bytes: usize) -> Code {
    if bytes == 0 {
        return code::INVALID_VALUE;
    }
    let allocated = state().engine.allocate(bytes as u64);
    if let Ok(address) = allocated {
        at.put(address);
    }
    code::of(&allocated)
}

/// Waits for the device, as the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> Code {
    let mut state = state();
    state.engine.synchronize_all();
    code::of(&state.engine.free(at))
}

/// Pageable memory is read before the call returns, as the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: Source, bytes: usize, stream: usize) -> Code {
    call(|state| {
        let (on, _) = (state.known(stream)?, state.check(to, bytes)?);
        state.engine.write(on, to, from.read(bytes));
        Ok(())
    })
}

/// Into pageable memory, so it waits for the stream, as the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: Target, from: u64, bytes: usize, stream: usize) -> Code {
    call(|state| {
        let (on, range) = (state.known(stream)?, state.check(from, bytes)?);
        to.write(&state.engine.read(on, range));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(at: u64, byte: u8, bytes: usize, stream: usize) -> Code {
    call(|state| {
        let (on, range) = (state.known(stream)?, state.check(at, bytes)?);
        state.engine.fill(on, range, byte);
        Ok(())
    })
}
