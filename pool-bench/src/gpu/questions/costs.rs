//! Question 10: what the calls of a hit, of a steal and of a capture cost, and tiles end to end.

use super::{Inquiry, Refused, call, done};
use crate::rounds;
use bucketpool::cuda::cudarc::driver::sys;
use serde_json::{Map, Value, json};
use std::ptr;
use std::time::Instant;

/// The share that seed 000's tiles gained from a pool, end to end, in its own measurement.
const SEED_TILES: f64 = 0.085;

pub(super) fn single_calls(asked: &Inquiry<'_>) -> Result<Value, Refused> {
    let count = if asked.process.smoke { 100 } else { 100_000 };
    let [on, other] = [&asked.gpu.streams[5], &asked.gpu.streams[6]].map(|s| s.cu_stream());
    let (mut event, mut context) = (ptr::null_mut(), ptr::null_mut());
    done(call!(cuEventCreate(&raw mut event, 2)), "cuEventCreate")?; // without timing
    done(call!(cuCtxGetCurrent(&raw mut context)), "cuCtxGetCurrent")?;
    let mut costs = Map::new();
    let mut cost = |name: &str, work: &mut dyn FnMut() -> u32| -> Result<(), Refused> {
        done(work(), name)?;
        let start = Instant::now();
        for _ in 0..count {
            std::hint::black_box(work());
        }
        let ns = start.elapsed().as_nanos() as f64 / f64::from(count);
        costs.insert(format!("{name}, ns"), json!(ns));
        Ok(())
    };
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    cost("cuThreadExchangeStreamCaptureMode", &mut || {
        call!(cuThreadExchangeStreamCaptureMode(&raw mut mode))
    })?;
    mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL; // as a thread has it first
    done(call!(cuThreadExchangeStreamCaptureMode(&raw mut mode)), "restoring the mode")?;
    cost("cuCtxGetCurrent", &mut || {
        let mut current = ptr::null_mut();
        call!(cuCtxGetCurrent(&raw mut current))
    })?;
    cost("cuCtxSetCurrent", &mut || call!(cuCtxSetCurrent(context)))?;
    cost("cuEventRecord", &mut || call!(cuEventRecord(event, on)))?;
    cost("cuStreamWaitEvent", &mut || call!(cuStreamWaitEvent(other, event, 0)))?;
    asked.gpu.device.context().synchronize()?;
    cost("cuEventQuery", &mut || call!(cuEventQuery(event)))?;
    done(call!(cuEventDestroy_v2(event)), "cuEventDestroy")?;
    let tiles = rounds::pool(vec![super::super::whole::rows(asked.process)], &["cuMemAlloc"]);
    costs.insert("tiles".into(), serde_json::to_value(tiles).unwrap_or_default());
    costs.insert("tiles, the seed's own gain".into(), json!(SEED_TILES));
    Ok(costs.into())
}
