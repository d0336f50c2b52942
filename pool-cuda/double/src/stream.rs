//! Streams and events.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::Out;
use crate::state::{State, Stream, call, current, said};
use pool_core::sim::engine::{Engine, Event};
use std::ffi::{c_int, c_uint};

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Out<usize>, _flags: c_uint) -> Code {
    call("cuStreamCreate", |state| {
        let device = current()?;
        let (number, handle) = (state.engine.new_stream(), state.new_handle());
        state.streams.insert(handle, Stream { number, device });
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

/// What was given to the stream still runs; nothing more can be given to it.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> Code {
    call("cuStreamDestroy_v2", |state| {
        state.streams.remove(&stream).map(|_| ()).ok_or(code::INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> Code {
    call("cuStreamSynchronize", |state| {
        let (on, _) = state.stream(stream)?;
        if state.engine.is_capturing(on) {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        state.engine.synchronize_stream(on);
        Ok(())
    })
}

/// A wait for an event that was never recorded is none.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> Code {
    call("cuStreamWaitEvent", |state| {
        let (on, _) = state.stream(stream)?;
        let State { engine, events, .. } = state;
        match events.get(&event).ok_or(code::INVALID_HANDLE)? {
            Some(event) => said(engine.wait(on, event)),
            None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Out<usize>, _flags: c_uint) -> Code {
    call("cuEventCreate", |state| {
        let handle = state.new_handle();
        state.events.insert(handle, None);
        event.put(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Code {
    call("cuEventDestroy_v2", |state| {
        state.events.remove(&event).map(|_| ()).ok_or(code::INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Code {
    call("cuEventRecord", |state| {
        let (on, _) = state.stream(stream)?;
        let recorded = said(state.engine.record(on))?;
        *state.events.get_mut(&event).ok_or(code::INVALID_HANDLE)? = Some(recorded);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Code {
    recorded("cuEventQuery", event, |engine, event| {
        if said(engine.query(event))? { Ok(()) } else { Err(code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Code {
    recorded("cuEventSynchronize", event, |engine, event| {
        engine.synchronize(event);
        Ok(())
    })
}

/// Works on an event; one that was never recorded has passed.
fn recorded(
    name: &'static str,
    event: usize,
    work: impl FnOnce(&mut Engine, &Event) -> Result<(), Code>,
) -> Code {
    call(name, |state| {
        state.not_in_capture()?;
        let State { engine, events, .. } = state;
        match events.get(&event).ok_or(code::INVALID_HANDLE)? {
            Some(event) => work(engine, event),
            None => Ok(()),
        }
    })
}
