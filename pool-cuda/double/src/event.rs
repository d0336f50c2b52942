//! Events.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::Out;
use crate::state::{Recorded, State, call, current, said};
use pool_sim::engine::Event;
use std::ffi::c_uint;

/// `CUevent_flags`.
const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;
const ALL_FLAGS: c_uint = 7;

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Out<usize>, flags: c_uint) -> Code {
    call("cuEventCreate", |state| {
        let is_shared_with_times = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
        if flags & !ALL_FLAGS != 0 || is_shared_with_times {
            return Err(code::INVALID_VALUE);
        }
        let (device, handle) = (current()?, state.new_handle());
        state.events.insert(handle, Recorded { device, event: None });
        event.put(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Code {
    call("cuEventDestroy_v2", |state| {
        state.events.remove(&event).ok_or(code::INVALID_HANDLE)?;
        state.destroyed(event);
        Ok(())
    })
}

/// The event and the stream must be of one context.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Code {
    call("cuEventRecord", |state| {
        let on = state.stream(stream)?;
        let known = state.events.get(&event).filter(|known| known.device == on.device);
        let device = known.ok_or(code::INVALID_HANDLE)?.device;
        let recorded = Some(said(state.engine.record(on.number))?);
        state.events.insert(event, Recorded { device, event: recorded });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Code {
    recorded("cuEventQuery", event, |state, event| {
        if said(state.engine.query(event))? { Ok(()) } else { Err(code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Code {
    recorded("cuEventSynchronize", event, |state, event| {
        state.engine.synchronize(event);
        state.give_back_to_thresholds();
        Ok(())
    })
}

/// Works on an event; one that was never recorded has passed. An event of a capture can be waited
/// for by streams only.
fn recorded(
    name: &'static str,
    event: usize,
    work: impl FnOnce(&mut State, &Event) -> Result<(), Code>,
) -> Code {
    call(name, |state| {
        state.unsafe_call()?;
        let known = state.events.get(&event).ok_or(code::INVALID_HANDLE)?;
        let (device, event) = (known.device, known.event.clone());
        state.lost.check(device)?;
        let Some(event) = event else { return Ok(()) };
        if let Some(capture) = event.capture() {
            return state.breaks(capture, code::CAPTURED_EVENT);
        }
        work(state, &event)?;
        state.lost.check(device)
    })
}
