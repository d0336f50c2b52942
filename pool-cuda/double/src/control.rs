//! What tests ask of the double, beside the driver's own interface.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::Code;
use crate::state::{State, call, state};
use pool_core::sim::SimCall;
use std::ffi::c_uint;

/// A new device: nothing handed out, nothing counted, no script. Streams and events of before are
/// gone.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_reset() {
    *state() = State::new();
}

/// Queues a kernel that uses these bytes and does nothing to them.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_kernel(stream: usize, at: u64, bytes: usize) -> Code {
    call(|state| {
        let (on, range) = (state.known(stream)?, state.check(at, bytes)?);
        state.engine.kernel(on, range);
        Ok(())
    })
}

/// Uses that were not ordered after the use before them.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_hazards() -> usize {
    state().engine.hazards().len()
}

/// Bytes that are handed out.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_held() -> u64 {
    state().engine.held_bytes()
}

/// Successful calls: 0 memory taken, 1 given back, 2 events recorded, 3 waits, 4 queries, 5 events
/// created.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_calls(kind: c_uint) -> u64 {
    let state = state();
    let calls = state.engine.calls();
    match kind {
        0 => calls.allocations,
        1 => calls.frees,
        2 => calls.records,
        3 => calls.waits,
        4 => calls.queries,
        _ => state.events_created,
    }
}

/// Lets a kind of call, numbered as for `cuda_double_calls`, fail after `skip` more, `times` times.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_fail(kind: c_uint, skip: u64, times: u64) {
    let call = match kind {
        0 => SimCall::Allocate,
        1 => SimCall::Free,
        2 => SimCall::Record,
        3 => SimCall::Wait,
        _ => SimCall::Query,
    };
    state().engine.fail(call, skip, times);
}

/// Events that exist.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_double_events() -> usize {
    state().events.len()
}
