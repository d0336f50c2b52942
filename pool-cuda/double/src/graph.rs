//! Captures and graphs.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::code::{self, Code};
use crate::pointer::{InOut, Out};
use crate::state::{call, said};
use std::cell::Cell;
use std::ffi::{c_uint, c_ulonglong};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;

thread_local!(static MODE: Cell<c_uint> = const { Cell::new(0) });

/// Whether this thread may make calls that a capture would forbid.
pub(crate) fn is_relaxed() -> bool {
    MODE.get() == RELAXED
}

#[unsafe(no_mangle)]
pub extern "C" fn cuThreadExchangeStreamCaptureMode(mode: InOut<c_uint>) -> Code {
    call("cuThreadExchangeStreamCaptureMode", |_| {
        mode.put(MODE.replace(mode.get()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: usize, _mode: c_uint) -> Code {
    call("cuStreamBeginCapture_v2", |state| {
        let (on, device) = state.stream(stream)?;
        if on == device {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED); // the legacy stream
        }
        said(state.engine.begin_capture(on))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: usize, status: Out<c_uint>) -> Code {
    call("cuStreamIsCapturing", |state| {
        let (on, _) = state.stream(stream)?;
        status.put(c_uint::from(state.engine.is_capturing(on)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: usize, graph: Out<usize>) -> Code {
    call("cuStreamEndCapture", |state| {
        let (on, _) = state.stream(stream)?;
        let captured = said(state.engine.end_capture(on))?;
        let handle = state.new_handle();
        state.graphs.insert(handle, captured.into());
        graph.put(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(
    instance: Out<usize>,
    graph: usize,
    _flags: c_ulonglong,
) -> Code {
    call("cuGraphInstantiateWithFlags", |state| {
        let graph = state.graphs.get(&graph).ok_or(code::INVALID_VALUE)?.clone();
        let handle = state.new_handle();
        state.graphs.insert(handle, graph);
        instance.put(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(instance: usize, stream: usize) -> Code {
    call("cuGraphLaunch", |state| {
        let (on, _) = state.stream(stream)?;
        let graph = state.graphs.get(&instance).ok_or(code::INVALID_VALUE)?.clone();
        state.engine.launch(&graph, on);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(instance: usize) -> Code {
    call("cuGraphExecDestroy", |state| {
        state.graphs.remove(&instance).map(|_| ()).ok_or(code::INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: usize) -> Code {
    call("cuGraphDestroy", |state| {
        state.graphs.remove(&graph).map(|_| ()).ok_or(code::INVALID_VALUE)
    })
}
