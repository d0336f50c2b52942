//! Device memory, copies and fills.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{Host, Out};
use crate::state::{State, call, current, said};

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(at: Out<u64>, bytes: usize) -> Code {
    call("cuMemAlloc_v2", |state| {
        state.not_in_capture()?;
        at.put(state.allocate(bytes, current()?, None)?);
        Ok(())
    })
}

/// Waits for the device, as the driver usually does; it promises nothing. With
/// `CUDA_DOUBLE_FREE=at-once` in the environment it does not wait, and a free under work that uses
/// the memory is the end of the context, as after a kernel that strays.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> Code {
    call("cuMemFree_v2", |state| {
        state.not_in_capture()?;
        let owned = state.memory.get(&at).ok_or(code::INVALID_VALUE)?;
        if owned.device != current()? {
            return Err(code::INVALID_VALUE);
        }
        if !state.frees_at_once {
            state.engine.synchronize_all();
        }
        let before = state.engine.hazards().len();
        said(state.engine.free(at))?;
        state.memory.remove(&at);
        if state.frees_at_once && state.engine.hazards().len() > before {
            state.script.lose(code::ILLEGAL_ADDRESS);
            return Err(code::ILLEGAL_ADDRESS);
        }
        Ok(())
    })
}

/// Page-locked memory is read when the copy's turn comes; other memory before the call returns, as
/// the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: Host, bytes: usize, stream: usize) -> Code {
    call("cuMemcpyHtoDAsync_v2", |state| {
        let (on, device) = state.stream(stream)?;
        let range = state.check(to, bytes, device)?;
        let source = from.address()..from.address() + bytes as u64;
        if state.hosts.holds(&source) {
            let uses = [(source, "copy from"), (range, "copy to")];
            state.engine.later(on, uses, move |memory| memory.write(to, &from.read(bytes)));
        } else {
            state.engine.write(on, to, from.read(bytes));
        }
        Ok(())
    })
}

/// Into page-locked memory when the copy's turn comes. Into other memory it waits for the stream,
/// as the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: Host, from: u64, bytes: usize, stream: usize) -> Code {
    call("cuMemcpyDtoHAsync_v2", |state| {
        let (on, device) = state.stream(stream)?;
        let range = state.check(from, bytes, device)?;
        let target = to.address()..to.address() + bytes as u64;
        if state.hosts.holds(&target) {
            let uses = [(range.clone(), "copy from"), (target, "copy to")];
            state.engine.later(on, uses, move |memory| to.write(&memory.read(&range)));
        } else {
            in_capture(state, on)?;
            to.write(&state.engine.read(on, range));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Code {
    call("cuMemcpyDtoDAsync_v2", |state| {
        let (on, device) = state.stream(stream)?;
        let (source, target) = (state.check(from, bytes, device)?, state.check(to, bytes, device)?);
        let uses = [(source.clone(), "copy from"), (target, "copy to")];
        state.engine.later(on, uses, move |memory| {
            let bytes = memory.read(&source);
            memory.write(to, &bytes);
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(at: u64, byte: u8, bytes: usize, stream: usize) -> Code {
    call("cuMemsetD8Async", |state| {
        let (on, device) = state.stream(stream)?;
        let range = state.check(at, bytes, device)?;
        state.engine.fill(on, range, byte);
        Ok(())
    })
}

/// What waits for a stream cannot be captured.
fn in_capture(state: &State, on: usize) -> Result<(), Code> {
    if state.engine.is_capturing(on) { Err(code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}
