//! The driver's result codes.

use pool_core::{DeviceError, Why};
use std::ffi::c_uint;

/// `CUresult`.
pub(crate) type Code = c_uint;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const PEER_ACCESS_UNSUPPORTED: Code = 217;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const ILLEGAL_STATE: Code = 401;
/// `CUDA_ERROR_OPERATING_SYSTEM`, which says nothing of the device.
pub(crate) const OPERATING_SYSTEM: Code = 304;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Code = 712;
pub(crate) const HOST_MEMORY_NOT_REGISTERED: Code = 713;
pub(crate) const NOT_PERMITTED: Code = 800;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Code = 900;
pub(crate) const STREAM_CAPTURE_INVALIDATED: Code = 901;
pub(crate) const STREAM_CAPTURE_UNMATCHED: Code = 903;
pub(crate) const STREAM_CAPTURE_IMPLICIT: Code = 906;
pub(crate) const CAPTURED_EVENT: Code = 907;
pub(crate) const STREAM_CAPTURE_WRONG_THREAD: Code = 908;

/// Returns the code for a refusal of the simulated device: its own where it has one.
pub(crate) fn of(error: DeviceError) -> Code {
    match (error.why, Code::try_from(error.code)) {
        (_, Ok(code)) if code > 0 => code,
        (Why::OutOfMemory, _) => OUT_OF_MEMORY,
        (Why::Foreign, _) => INVALID_VALUE,
        _ => ILLEGAL_STATE,
    }
}

/// Returns the code of an injected failure: out of memory where memory is requested.
pub(crate) fn injected(call: &str) -> Code {
    match call {
        "cuMemAlloc_v2"
        | "cuMemCreate"
        | "cuMemHostAlloc"
        | "cuMemHostRegister_v2"
        | "cuMemAddressReserve"
        | "cuMemAllocAsync"
        | "cuMemAllocFromPoolAsync" => OUT_OF_MEMORY,
        _ => OPERATING_SYSTEM,
    }
}
