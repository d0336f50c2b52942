//! Streams.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::Out;
use crate::state::{Stream, call, current, said};
use std::ffi::{c_int, c_uint};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Out<usize>, flags: c_uint) -> Code {
    call("cuStreamCreate", |state| {
        let (device, blocking) = (current()?, flags & NON_BLOCKING == 0);
        let (number, handle) = (state.engine.new_stream(), state.new_handle());
        state.streams.insert(handle, Stream { number, device, blocking });
        stream.put(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(
    stream: Out<usize>,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    cuStreamCreate(stream, flags)
}

/// The stream's queued work still runs. The stream takes no more work.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> Code {
    call("cuStreamDestroy_v2", |state| {
        state.streams.remove(&stream).ok_or(code::INVALID_HANDLE)?;
        state.destroyed(stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> Code {
    call("cuStreamSynchronize", |state| {
        let on = state.stream(stream)?;
        state.stops_stream(on.number)?;
        state.engine.synchronize_stream(on.number);
        state.give_back_to_thresholds();
        state.lost.check(on.device)
    })
}

/// A wait for an event that was never recorded is none.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> Code {
    call("cuStreamWaitEvent", |state| {
        let on = state.stream(stream)?.number;
        let recorded = state.events.get(&event).ok_or(code::INVALID_HANDLE)?;
        let Some(event) = recorded.event.clone() else { return Ok(()) };
        state.is_capture_valid(event.capture())?;
        let captures = [state.engine.capture_of(on), event.capture()];
        said(state.engine.wait(on, &event)).inspect_err(|code| {
            // An edge that may not be: none of its captures goes on.
            for capture in captures.into_iter().flatten() {
                let _ = state.breaks(capture, *code);
            }
        })
    })
}
