//! Questions 3 and 4: what a capture survives, and what it does with pageable memory.

use super::pages::Page;
use super::{Inquiry, Refused, call, done};
use bucketpool::cuda::cudarc::driver::sys;
use serde_json::{Map, Value, json};
use std::ffi::c_void;
use std::ptr;
use std::thread;

const MIB: usize = 1 << 20;

/// Handles as numbers, so that another thread may use them.
#[derive(Clone, Copy)]
struct Handle(usize);

/// Begins a capture of `stream` as this thread's own; calls that it would forbid are relaxed.
fn begin(stream: sys::CUstream) -> Result<(), Refused> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    done(call!(cuStreamBeginCapture_v2(stream, mode)), "cuStreamBeginCapture")
}

/// Ends it: the code, and the graph if there is one.
fn end(stream: sys::CUstream) -> (u32, sys::CUgraph) {
    let mut graph = ptr::null_mut();
    (call!(cuStreamEndCapture(stream, &raw mut graph)), graph)
}

fn relaxed(work: impl FnOnce() -> u32) -> u32 {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let _ = call!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
    let code = work();
    let _ = call!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
    code
}

/// The memory and the event that calls work on, made before any capture.
struct Prepared {
    block: u64,
    host: *mut c_void,
    event: sys::CUevent,
    context: Handle,
}

impl Prepared {
    fn new(stream: sys::CUstream) -> Result<Self, Refused> {
        let (mut block, mut host, mut event) = (0, ptr::null_mut(), ptr::null_mut());
        let mut context = ptr::null_mut();
        done(call!(cuMemAlloc_v2(&raw mut block, MIB)), "cuMemAlloc")?;
        done(call!(cuMemHostAlloc(&raw mut host, MIB, 0)), "cuMemHostAlloc")?;
        done(call!(cuEventCreate(&raw mut event, 2)), "cuEventCreate")?; // without timing
        done(call!(cuEventRecord(event, stream)), "cuEventRecord")?;
        done(call!(cuCtxGetCurrent(&raw mut context)), "cuCtxGetCurrent")?;
        Ok(Self { block, host, event, context: Handle(context.expose_provenance()) })
    }
}

/// A call that a pool may make while a stream captures.
type Call = fn(&Prepared) -> u32;

const CALLS: [(&str, Call); 9] = [
    ("cuMemCreate, Map, SetAccess, Unmap, Release", |_| {
        Page::new(2 * MIB).map_or(999, Page::cycle)
    }),
    ("cuMemAlloc", |_| {
        let mut block = 0;
        let code = call!(cuMemAlloc_v2(&raw mut block, MIB));
        if code == 0 { call!(cuMemFree_v2(block)) } else { code }
    }),
    ("cuMemFree", |prepared| call!(cuMemFree_v2(prepared.block))),
    ("cuMemFreeHost", |prepared| call!(cuMemFreeHost(prepared.host))),
    ("cuMemAddressReserve and cuMemAddressFree", |_| {
        let mut at = 0;
        let code = call!(cuMemAddressReserve(&raw mut at, 2 * MIB, 0, 0, 0));
        if code == 0 { call!(cuMemAddressFree(at, 2 * MIB)) } else { code }
    }),
    ("cuMemPoolGetAttribute", |_| {
        let (mut pool, mut value) = (ptr::null_mut(), 0_u64);
        let code = call!(cuDeviceGetDefaultMemPool(&raw mut pool, 0));
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value = (&raw mut value).cast();
        if code == 0 { call!(cuMemPoolGetAttribute(pool, attribute, value)) } else { code }
    }),
    ("cuEventQuery of an earlier event", |prepared| call!(cuEventQuery(prepared.event))),
    ("cuEventCreate", |_| {
        let mut event = ptr::null_mut();
        let code = call!(cuEventCreate(&raw mut event, 2));
        if code == 0 { call!(cuEventDestroy_v2(event)) } else { code }
    }),
    ("cuCtxSynchronize of another thread", |prepared| {
        let context = prepared.context;
        let other = thread::spawn(move || {
            let Handle(context) = context;
            let context = ptr::with_exposed_provenance_mut(context);
            let code = call!(cuCtxSetCurrent(context));
            if code == 0 { call!(cuCtxSynchronize()) } else { code }
        });
        other.join().unwrap_or(u32::MAX)
    }),
];

pub(super) fn calls(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let stream = asked.gpu.streams[2].cu_stream();
    let mut answers = Map::new();
    for (name, work) in CALLS {
        let prepared = Prepared::new(stream)?;
        asked.gpu.device.context().synchronize()?;
        begin(stream)?;
        let code = relaxed(|| work(&prepared));
        let (end_code, graph) = end(stream);
        if end_code == 0 {
            let _ = call!(cuGraphDestroy(graph));
        }
        answers.insert(
            name.into(),
            json!({
                "code": code, "end_code": end_code, "capture_survives": end_code == 0,
            }),
        );
        // What the call has freed is refused here.
        let _ = call!(cuMemFree_v2(prepared.block));
        let _ = call!(cuMemFreeHost(prepared.host));
        let _ = call!(cuEventDestroy_v2(prepared.event));
    }
    Ok(answers.into())
}

/// Captures a copy from pageable memory, changes the memory, and launches: which bytes arrive?
pub(super) fn pageable_copies(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    const BYTES: usize = 4096;
    let stream = asked.gpu.streams[2].cu_stream();
    let mut block = 0;
    done(call!(cuMemAlloc_v2(&raw mut block, BYTES)), "cuMemAlloc")?;
    let mut from = vec![1_u8; BYTES];
    begin(stream)?;
    let code = call!(cuMemcpyHtoDAsync_v2(block, from.as_ptr().cast(), BYTES, stream));
    let (end_code, graph) = end(stream);
    let mut answer = json!({ "copy_code": code, "end_code": end_code });
    if end_code == 0 && code == 0 {
        let mut instance = ptr::null_mut();
        let made = call!(cuGraphInstantiateWithFlags(&raw mut instance, graph, 0));
        done(made, "cuGraphInstantiate")?;
        from.fill(2); // the memory lives, with other contents
        done(call!(cuGraphLaunch(instance, stream)), "cuGraphLaunch")?;
        done(call!(cuStreamSynchronize(stream)), "cuStreamSynchronize")?;
        let mut back = vec![0_u8; BYTES];
        let copied = call!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), block, BYTES, stream));
        done(copied, "cuMemcpyDtoH")?;
        done(call!(cuStreamSynchronize(stream)), "cuStreamSynchronize")?;
        answer["launch_copies"] = match back[0] {
            1 => "what the memory held at capture".into(),
            2 => "what the memory holds at launch: the address was recorded".into(),
            other => format!("byte {other}").into(),
        };
        let _ = call!(cuGraphExecDestroy(instance));
    }
    if end_code == 0 {
        let _ = call!(cuGraphDestroy(graph));
    }
    let mut to = vec![0_u8; BYTES];
    begin(stream)?;
    let code = call!(cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), block, BYTES, stream));
    let (end_code, graph) = end(stream);
    if end_code == 0 {
        let _ = call!(cuGraphDestroy(graph));
    }
    answer["device_to_host"] = json!({ "copy_code": code, "end_code": end_code });
    done(call!(cuMemFree_v2(block)), "cuMemFree")?;
    Ok(answer)
}
