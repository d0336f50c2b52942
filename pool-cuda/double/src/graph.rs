//! Captures and graphs.
#![expect(unsafe_code, reason = "symbols are exported by name")]

use crate::capture::{MODE, RELAXED};
use crate::code::{self, Code};
use crate::pointer::{InOut, Out};
use crate::state::{DEVICES, State, Stream, call, said};
use pool_sim::engine::Graph;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;
use std::thread;

/// `CUstreamCaptureStatus`.
const NONE: c_uint = 0;
const ACTIVE: c_uint = 1;
const INVALIDATED: c_uint = 2;

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
        if mode > RELAXED {
            return Err(code::INVALID_VALUE);
        }
        if on.number < DEVICES {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED); // the legacy stream
        }
        said(state.engine.begin_capture(on.number))?;
        let number = state.engine.capture_of(on.number).ok_or(code::ILLEGAL_STATE)?;
        state.captures.begin(number, on.device, mode);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: usize, status: Out<c_uint>) -> Code {
    call("cuStreamIsCapturing", |state| {
        let on = state.any_stream(stream)?;
        let capture = state.capture_to_tell(on)?;
        let valid = state.is_capture_valid(capture).is_ok();
        let known = if capture.is_some() { ACTIVE } else { NONE };
        status.put(if valid { known } else { INVALIDATED });
        Ok(())
    })
}

/// The number of a capture serves no other one. A graph under capture has no handle yet, and its
/// nodes have none at all: the answer is a null graph without dependencies.
fn capture_info(
    name: &'static str,
    stream: usize,
    (status, id): (Out<c_uint>, Out<c_ulonglong>),
    (graph, dependencies, count): (Out<usize>, Out<usize>, Out<usize>),
) -> Code {
    call(name, |state| {
        if status.is_null() {
            return Err(code::INVALID_VALUE);
        }
        let on = state.any_stream(stream)?;
        let capture = state.capture_to_tell(on)?;
        let valid = state.is_capture_valid(capture).is_ok();
        let Some(capture) = capture.filter(|_| valid) else {
            status.put(if valid { NONE } else { INVALIDATED });
            return Ok(());
        };
        status.put(ACTIVE);
        id.put_if_wanted(capture + 1);
        graph.put_if_wanted(0);
        dependencies.put_if_wanted(0);
        count.put_if_wanted(0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: usize,
    status: Out<c_uint>,
    id: Out<c_ulonglong>,
    graph: Out<usize>,
    dependencies: Out<usize>,
    count: Out<usize>,
) -> Code {
    let nodes = (graph, dependencies, count);
    capture_info("cuStreamGetCaptureInfo_v2", stream, (status, id), nodes)
}

/// As version 2; no dependency has data of its own.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: usize,
    status: Out<c_uint>,
    id: Out<c_ulonglong>,
    graph: Out<usize>,
    dependencies: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
) -> Code {
    edges.put_if_wanted(0);
    let nodes = (graph, dependencies, count);
    capture_info("cuStreamGetCaptureInfo_v3", stream, (status, id), nodes)
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
    /// Returns the capture that a stream is under. Beside a capture of a blocking stream the legacy
    /// stream has no answer; the question breaks no capture.
    fn capture_to_tell(&self, on: Stream) -> Result<Option<u64>, Code> {
        if on.number < DEVICES && !self.captures_beside_legacy(on.device).is_empty() {
            return Err(code::STREAM_CAPTURE_IMPLICIT);
        }
        Ok(self.engine.capture_of(on.number))
    }

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
