//! Streams and events.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::Out;
use crate::state::{HANDLES, State, call, state};
use pool_core::sim::engine::Event;
use std::ffi::{c_int, c_uint};

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Out<usize>, _flags: c_uint) -> Code {
    let mut state = state();
    state.streams += 1;
    stream.put(HANDLES + state.engine.new_stream());
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(
    stream: Out<usize>,
    flags: c_uint,
    _priority: c_int,
) -> Code {
    cuStreamCreate(stream, flags)
}

/// What was given to the stream still runs; its handle is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> Code {
    cuStreamSynchronize(stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> Code {
    call(|state| {
        let stream = state.known(stream)?;
        state.engine.synchronize_stream(stream);
        Ok(())
    })
}

/// A wait for an event that was never recorded is none.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> Code {
    call(|state| {
        let stream = state.known(stream)?;
        let State { engine, events, .. } = state;
        match events.get(&event).ok_or(code::INVALID_HANDLE)? {
            Some(event) => ok(engine.wait(stream, event)),
            None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Out<usize>, _flags: c_uint) -> Code {
    let mut state = state();
    state.events_created += 1;
    let handle = usize::try_from(state.events_created).unwrap_or(usize::MAX);
    state.events.insert(handle, None);
    event.put(handle);
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Code {
    let gone = state().events.remove(&event);
    if gone.is_some() { code::SUCCESS } else { code::INVALID_HANDLE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Code {
    call(|state| {
        let stream = state.known(stream)?;
        let slot = state.events.get_mut(&event).ok_or(code::INVALID_HANDLE)?;
        let recorded = state.engine.record(stream);
        let failed = recorded.as_ref().map(|_| ()).map_err(|error| *error);
        *slot = recorded.ok();
        ok(failed)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Code {
    recorded(event, |engine, event| match engine.query(event) {
        Ok(true) => Ok(()),
        Ok(false) => Err(code::NOT_READY),
        Err(error) => ok(Err(error)),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Code {
    recorded(event, |engine, event| {
        engine.synchronize(event);
        Ok(())
    })
}

/// Works on an event; one that was never recorded has passed.
fn recorded(
    event: usize,
    work: impl FnOnce(&mut pool_core::sim::engine::Engine, &Event) -> Result<(), Code>,
) -> Code {
    call(|state| {
        let State { engine, events, .. } = state;
        match events.get(&event).ok_or(code::INVALID_HANDLE)? {
            Some(event) => work(engine, event),
            None => Ok(()),
        }
    })
}

fn ok(result: Result<(), pool_core::DeviceError>) -> Result<(), Code> {
    match code::of(&result) {
        code::SUCCESS => Ok(()),
        failed => Err(failed),
    }
}
