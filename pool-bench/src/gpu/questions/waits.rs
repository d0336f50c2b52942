//! Questions 5 and 9: which frees wait for the device, and what a free on another stream costs.

use super::{Inquiry, Refused, call, done};
use bucketpool::cuda::CudaAsyncAllocator;
use bucketpool::cuda::cudarc::driver::sys;
use serde_json::{Value, json};
use std::ffi::c_void;
use std::ptr;
use std::time::Instant;

const MIB: usize = 1 << 20;

/// The kernel runs on a stream of cudarc's, which does not block the default stream.
pub(super) fn frees(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let block = || {
        let mut block = 0;
        done(call!(cuMemAlloc_v2(&raw mut block, MIB)), "cuMemAlloc").map(|()| block)
    };
    let free = asked.idle_and_busy(block, |block| call!(cuMemFree_v2(block)))?;
    let host = || {
        let mut host: *mut c_void = ptr::null_mut();
        done(call!(cuMemHostAlloc(&raw mut host, MIB, 0)), "cuMemHostAlloc").map(|()| host)
    };
    let free_host = asked.idle_and_busy(host, |host| call!(cuMemFreeHost(host)))?;
    let mut memory = vec![0_u8; MIB];
    let at: *mut c_void = memory.as_mut_ptr().cast();
    let register = || done(call!(cuMemHostRegister_v2(at, MIB, 0)), "cuMemHostRegister");
    let unregister = asked.idle_and_busy(register, |()| call!(cuMemHostUnregister(at)))?;
    Ok(json!({
        "cuMemFree": free, "cuMemFreeHost": free_host, "cuMemHostUnregister": unregister,
    }))
}

/// Allocation, work and free, again and again, freed on the stream of the work or on another behind
/// an event: nanoseconds of a turn, and how far the driver's pool grows.
pub(super) fn separate_stream(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let turns = if asked.process.smoke { 20 } else { 2000 };
    let [work, other] = [&asked.gpu.streams[3], &asked.gpu.streams[4]].map(|s| s.cu_stream());
    let mut answers = Vec::new();
    for on_another in [false, true] {
        let pool = CudaAsyncAllocator::new(asked.gpu.device.clone(), u64::MAX)?;
        asked.gpu.device.context().bind_to_thread()?;
        let mut event = ptr::null_mut();
        done(call!(cuEventCreate(&raw mut event, 2)), "cuEventCreate")?;
        let start = Instant::now();
        for turn in 0..turns {
            let (mut block, bytes) = (0, MIB << (turn % 4));
            let code = call!(cuMemAllocFromPoolAsync(&raw mut block, bytes, pool.as_raw(), work));
            done(code, "cuMemAllocFromPoolAsync")?;
            done(call!(cuMemsetD8Async(block, 1, bytes, work)), "cuMemsetD8Async")?;
            let on = if on_another {
                done(call!(cuEventRecord(event, work)), "cuEventRecord")?;
                done(call!(cuStreamWaitEvent(other, event, 0)), "cuStreamWaitEvent")?;
                other
            } else {
                work
            };
            done(call!(cuMemFreeAsync(block, on)), "cuMemFreeAsync")?;
        }
        let ns = start.elapsed().as_nanos() as f64 / f64::from(turns);
        asked.gpu.device.context().synchronize()?;
        done(call!(cuEventDestroy_v2(event)), "cuEventDestroy")?;
        answers.push(json!({
            "freed_on": if on_another { "a separate stream" } else { "the stream of the work" },
            "ns": ns, "turns": turns, "reserved_bytes": pool.reserved_bytes()?,
        }));
    }
    Ok(answers.into())
}
