//! Streams.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{Host, Out};
use crate::state::{IN_HOST_FUNCTION, Stream, call, context_of, current, said};
use pool_sim::engine::Access;
use std::ffi::{c_int, c_uint};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Out<usize>, flags: c_uint) -> Code {
    call("cuStreamCreate", |state| {
        if flags > NON_BLOCKING {
            return Err(code::INVALID_VALUE);
        }
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

/// The number of a stream serves no other one, as its handle does.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetId(stream: usize, id: Out<u64>) -> Code {
    call("cuStreamGetId", |state| {
        let on = state.any_stream(stream)?;
        id.put(on.number as u64 + 1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCtx(stream: usize, context: Out<usize>) -> Code {
    call("cuStreamGetCtx", |state| {
        let on = state.any_stream(stream)?;
        context.put(context_of(on.device));
        Ok(())
    })
}

/// 600 while work is queued.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: usize) -> Code {
    call("cuStreamQuery", |state| {
        let on = state.stream(stream)?;
        state.stops_stream(on.number)?;
        state.lost.check(on.device)?;
        let event = said(state.engine.record(on.number))?;
        if said(state.engine.query(&event))? { Ok(()) } else { Err(code::NOT_READY) }
    })
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

/// The function runs when its turn comes, on whichever thread runs the streams; not if the context
/// is lost by then. It may call nothing of the driver, and wait for no thread that does.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(
    stream: usize,
    function: Option<extern "C" fn(Host)>,
    data: Host,
) -> Code {
    call("cuLaunchHostFunc", |state| {
        let function = function.ok_or(code::INVALID_VALUE)?;
        let on = state.stream(stream)?;
        let (lost, none) = (state.lost.clone(), Access::reading("host function"));
        state.engine.later(on.number, [(0..0, none), (0..0, none)], move |_| {
            if lost.check(on.device).is_ok() {
                IN_HOST_FUNCTION.set(true);
                function(data);
                IN_HOST_FUNCTION.set(false);
            }
        });
        Ok(())
    })
}

/// A wait for an event that was never recorded is none.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) -> Code {
    call("cuStreamWaitEvent", |state| {
        if flags > 1 {
            return Err(code::INVALID_VALUE); // `CU_EVENT_WAIT_EXTERNAL`
        }
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
