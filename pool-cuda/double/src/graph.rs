//! Captures and graphs.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::capture::{MODE, RELAXED};
use crate::code::{self, Code};
use crate::pointer::{InOut, Out};
use crate::state::{DEVICES, State, call, said};
use pool_sim::engine::Graph;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;
use std::thread;

/// Captured work, with the blocks that it allocates. They are there as long as the graph and its
/// instances.
pub(crate) struct GraphMemory {
    graph: Graph,
    memory: Vec<u64>,
}

#[unsafe(no_mangle)]
pub extern "C" fn cuThreadExchangeStreamCaptureMode(mode: InOut<c_uint>) -> Code {
    call("cuThreadExchangeStreamCaptureMode", |_| {
        if mode.get() > RELAXED {
            return Err(code::INVALID_VALUE);
        }
        mode.put(MODE.replace(mode.get()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) -> Code {
    call("cuStreamBeginCapture_v2", |state| {
        let on = state.stream(stream)?;
        if on.number < DEVICES {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED); // the legacy stream
        }
        said(state.engine.begin_capture(on.number))?;
        let number = state.engine.capture_of(on.number).ok_or(code::ILLEGAL_STATE)?;
        state.captures.begin(number, on.device, mode);
        Ok(())
    })
}

/// 0: not under capture, 1: under capture, 2: the capture is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: usize, status: Out<c_uint>) -> Code {
    call("cuStreamIsCapturing", |state| {
        let on = state.any_stream(stream)?;
        if on.number < DEVICES && !state.captures_beside_legacy(on.device).is_empty() {
            return Err(code::STREAM_CAPTURE_IMPLICIT); // no capture is broken by the question
        }
        let capture = state.engine.capture_of(on.number);
        let valid = state.is_capture_valid(capture).is_ok();
        status.put(if valid { c_uint::from(capture.is_some()) } else { 2 });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: usize, graph: Out<usize>) -> Code {
    call("cuStreamEndCapture", |state| {
        let on = state.any_stream(stream)?.number;
        let number = state.engine.capture_of(on).ok_or(code::ILLEGAL_STATE)?;
        let capture = state.captures.get_mut(number).ok_or(code::ILLEGAL_STATE)?;
        if capture.mode != RELAXED && capture.thread != thread::current().id() {
            return Err(code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let ended = said(state.engine.end_capture(on));
        if ended.as_ref().err() == Some(&code::STREAM_CAPTURE_UNMATCHED) {
            return Err(code::STREAM_CAPTURE_UNMATCHED); // it goes on
        }
        let capture = state.captures.end(number).ok_or(code::ILLEGAL_STATE)?;
        let ended = if capture.invalid { Err(code::STREAM_CAPTURE_INVALIDATED) } else { ended };
        let captured = match ended {
            Ok(captured) => captured,
            Err(code) => {
                state.free_all(&capture.memory);
                graph.put(0);
                return Err(code);
            }
        };
        let handle = state.new_handle();
        let memory = capture.memory;
        state.graphs.insert(handle, Arc::new(GraphMemory { graph: captured, memory }));
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
        let on = state.stream(stream)?.number;
        let graph = state.graphs.get(&instance).ok_or(code::INVALID_VALUE)?.clone();
        state.engine.launch(&graph.graph, on);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(instance: usize) -> Code {
    call("cuGraphExecDestroy", |state| state.destroy_graph(instance))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: usize) -> Code {
    call("cuGraphDestroy", |state| state.destroy_graph(graph))
}

impl State {
    fn destroy_graph(&mut self, handle: usize) -> Result<(), Code> {
        let graph = self.graphs.remove(&handle).ok_or(code::INVALID_VALUE)?;
        self.destroyed(handle);
        if let Some(GraphMemory { memory, .. }) = Arc::into_inner(graph)
            && !memory.is_empty()
        {
            self.engine.synchronize_all(); // the driver keeps it until its launches are done
            self.free_all(&memory);
        }
        Ok(())
    }

    fn free_all(&mut self, blocks: &[u64]) {
        for at in blocks {
            self.memory.remove(at);
            // Each address began a block when it was allocated, and only this frees it.
            let _ = self.engine.free(*at);
        }
    }
}
